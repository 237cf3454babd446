/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * How long something took, many times: number, sum, longest, and percentiles from buckets an eighth of a factor of two
 * wide. For the tables of the convert commands.
 */
#ifndef CONVERT_LATENCY_H
#define CONVERT_LATENCY_H

#include <stdint.h>

/** struct latency - zeroed at first; latency_fini() frees what it has */
struct latency {
	uint64_t count, total_ns, max_ns;
	uint32_t *hist; /* made with the first value */
};

/** latency_add - one more. Return: 0 or -ENOMEM. */
int latency_add(struct latency *l, uint64_t ns);

/** latency_us - percentile @part (0 to 1) in microseconds, right within 13 %; 0 when there is none */
double latency_us(const struct latency *l, double part);

void latency_fini(struct latency *l);

#endif
