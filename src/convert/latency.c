/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See latency.h. */
#include "convert/latency.h"

#include <errno.h>
#include <stdlib.h>

#define SUB 8 /* buckets a factor of two */
#define BUCKETS (64 * SUB)

static unsigned int bucket_of(uint64_t ns)
{
	unsigned int log;

	if (ns < SUB)
		return (unsigned int)ns;
	log = 63 - (unsigned int)__builtin_clzll(ns);
	return (log - 2) * SUB + (unsigned int)(ns >> (log - 3) & (SUB - 1));
}

static uint64_t bucket_end(unsigned int bucket)
{
	unsigned int log = bucket / SUB + 2;

	return bucket < SUB ? bucket : ((uint64_t)(SUB + bucket % SUB + 1) << (log - 3)) - 1;
}

int latency_add(struct latency *l, uint64_t ns)
{
	if (!l->hist)
		l->hist = calloc(BUCKETS, sizeof(*l->hist));
	if (!l->hist)
		return -ENOMEM;
	l->count++;
	l->total_ns += ns;
	l->max_ns = ns > l->max_ns ? ns : l->max_ns;
	l->hist[bucket_of(ns)]++;
	return 0;
}

double latency_us(const struct latency *l, double part)
{
	uint64_t want = (uint64_t)((double)l->count * part), seen = 0, end;
	unsigned int i;

	if (!l->hist)
		return 0;
	for (i = 0; i < BUCKETS - 1; i++) {
		seen += l->hist[i];
		if (seen > want)
			break;
	}
	end = bucket_end(i);
	return (double)(end < l->max_ns ? end : l->max_ns) / 1e3;
}

void latency_fini(struct latency *l)
{
	free(l->hist);
	l->hist = NULL;
}
