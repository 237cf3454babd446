/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sampling by bytes: draws have the right mean and tail, hits the right probability, weights undo it exactly. */
#include "safe/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define PERIOD (512u << 10)
#define DRAWS 1000000

static void draws_are_exponential(void **state)
{
	double sum = 0, squares = 0, beyond = 0;
	struct sampler s = { 0 };
	int i;

	sampler_seed(&s, 1);
	for (i = 0; i < DRAWS; i++) {
		double x = (double)sampler_draw(&s, PERIOD);

		sum += x;
		squares += x * x;
		beyond += x > 3.0 * PERIOD;
	}
	/* a mean of 1e6 draws is right to 0.1 %; five times that is asked for */
	assert_true(fabs(sum / DRAWS / PERIOD - 1) < 0.005);
	assert_true(fabs(squares / DRAWS / PERIOD / PERIOD - 2) < 0.02);
	assert_true(fabs(beyond / DRAWS - exp(-3)) < 0.0012);
}

static void hits_have_the_probability_of_their_size(void **state)
{
	static const uint64_t sizes[] = { 1, 100, 4096, 100000, PERIOD, 3 * PERIOD };
	struct sampler s = { 0 };
	size_t k;

	sampler_seed(&s, 2);
	for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		double p = -expm1(-(double)sizes[k] / PERIOD), hits = 0;
		int i, tries = DRAWS * 4;

		s.left = sampler_draw(&s, PERIOD);
		for (i = 0; i < tries; i++)
			hits += sampler_hit(&s, sizes[k], PERIOD);
		assert_true(fabs(hits - p * tries) < 5 * sqrt(p * (1 - p) * tries) + 1);
	}
}

static void weights_are_exact(void **state)
{
	uint64_t bytes;

	for (bytes = 1; bytes < 100ull * PERIOD; bytes = bytes * 9 / 8 + 1) {
		double want = (double)bytes / -expm1(-(double)bytes / PERIOD);

		assert_true(fabs((double)sampler_weight(bytes, PERIOD) - want) <= 0.5 + want * 1e-12);
	}
	assert_int_equal(sampler_weight(0, PERIOD), 0);
	assert_int_equal(sampler_weight(123, 1), 123);
}

static void sums_are_unbiased(void **state)
{
	double worst = 0, mean = 0;
	int seed;

	for (seed = 0; seed < 10; seed++) {
		uint64_t total = 0, estimate = 0, bytes = 1;
		struct sampler s = { 0 };
		int i;

		sampler_seed(&s, (uint64_t)seed);
		s.left = sampler_draw(&s, PERIOD);
		for (i = 0; i < 2000000; i++) {
			bytes = bytes * 31 % 65521;
			total += bytes % 3000;
			if (sampler_hit(&s, bytes % 3000, PERIOD))
				estimate += sampler_weight(bytes % 3000, PERIOD);
		}
		mean += (double)estimate / (double)total / 10;
		if (fabs((double)estimate / (double)total - 1) > worst)
			worst = fabs((double)estimate / (double)total - 1);
	}
	/* 3 GB are 5700 hits: 1.3 % */
	assert_true(worst < 0.05);
	assert_true(fabs(mean - 1) < 0.015);
}

static void everything_is_everything(void **state)
{
	struct sampler s = { 0 };
	int i;

	sampler_seed(&s, 3);
	for (i = 0; i < 100; i++)
		assert_true(sampler_hit(&s, (uint64_t)(i % 3), 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(draws_are_exponential),    cmocka_unit_test(hits_have_the_probability_of_their_size),
		cmocka_unit_test(weights_are_exact),	    cmocka_unit_test(sums_are_unbiased),
		cmocka_unit_test(everything_is_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
