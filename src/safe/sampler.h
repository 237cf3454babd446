/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Poisson sampling by bytes: every byte that is allocated is a point of a Poisson process with one hit in @period bytes on
 * average, and a block is sampled when at least one of its bytes is hit. So a block of s bytes is sampled with probability
 * 1 - exp(-s/period), whatever came before it, and dividing by that makes sums over sampled blocks unbiased. Arithmetic
 * only: fit for a hook, no mathematical library.
 */
#ifndef SAFE_SAMPLER_H
#define SAFE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

/** struct sampler - of one thread; zeroed it belongs to no epoch */
struct sampler {
	uint64_t left; /* bytes up to the next hit */
	uint64_t random; /* state of the generator, 0 = not seeded */
	uint32_t epoch; /* for which .left was drawn */
};

/**
 * sampler_seed - seed the generator. @seed: any value; equal ones give equal draws. Context: hook.
 */
void sampler_seed(struct sampler *s, uint64_t seed);

/** sampler_draw - bytes up to the next hit, exponentially distributed with mean @period. Context: hook. */
uint64_t sampler_draw(struct sampler *s, uint64_t period);

/**
 * sampler_hit - is a block sampled?
 * @period: mean bytes between hits; 1 = every block is
 *
 * The caller has made sure that @s was drawn for this period. Context: hook.
 */
static inline bool sampler_hit(struct sampler *s, uint64_t bytes, uint64_t period)
{
	if (bytes <= s->left && period > 1) {
		s->left -= bytes;
		return false;
	}
	s->left = sampler_draw(s, period);
	return true;
}

/** sampler_weight - bytes that a sampled block of @bytes bytes stands for: bytes / (1 - exp(-bytes/period)). */
uint64_t sampler_weight(uint64_t bytes, uint64_t period);

#endif
