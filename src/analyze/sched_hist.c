/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Distribution of durations; see sched_hist.h. */
#include "analyze/sched_hist.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_BITS 6 /* buckets for each power of two, as a power of two */
#define STEPS (1u << STEPS_BITS)
#define EXACT (2u * STEPS) /* values below have a bucket each */

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t power;

	if (ns < EXACT)
		return (uint32_t)ns;
	power = 63 - (uint32_t)__builtin_clzll(ns);
	return EXACT + (power - STEPS_BITS - 1) * STEPS + ((uint32_t)(ns >> (power - STEPS_BITS)) & (STEPS - 1));
}

static uint64_t middle_of(uint32_t bucket)
{
	uint32_t shift, step;

	if (bucket < EXACT)
		return bucket;
	shift = (bucket - EXACT) / STEPS + 1;
	step = (bucket - EXACT) % STEPS;
	return ((uint64_t)(STEPS + step) << shift) + ((uint64_t)1 << (shift - 1));
}

/* First slot whose bucket is not below @bucket. */
static uint32_t search(const struct sched_hist *hist, uint32_t bucket)
{
	uint32_t low = 0, high = hist->used;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (hist->slots[mid].bucket < bucket)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int count_up(struct sched_hist *hist, uint32_t bucket, uint64_t count)
{
	uint32_t at = search(hist, bucket);

	if (at == hist->used || hist->slots[at].bucket != bucket) {
		if (hist->used == hist->room) {
			uint32_t room = hist->room ? 2 * hist->room : 4;
			struct sched_hist_slot *more = realloc(hist->slots, room * sizeof(*more));

			if (!more)
				return -ENOMEM;
			hist->slots = more;
			hist->room = room;
		}
		memmove(&hist->slots[at + 1], &hist->slots[at], (hist->used - at) * sizeof(hist->slots[0]));
		hist->slots[at] = (struct sched_hist_slot){ .bucket = bucket };
		hist->used++;
	}
	hist->slots[at].count += count;
	return 0;
}

int sched_hist_add(struct sched_hist *hist, uint64_t ns)
{
	if (count_up(hist, bucket_of(ns), 1))
		return -ENOMEM;
	if (!hist->count || ns < hist->min_ns)
		hist->min_ns = ns;
	if (ns > hist->max_ns)
		hist->max_ns = ns;
	hist->sum_ns += ns;
	hist->count++;
	return 0;
}

int sched_hist_merge(struct sched_hist *to, const struct sched_hist *from)
{
	uint32_t i;

	for (i = 0; i < from->used; i++)
		if (count_up(to, from->slots[i].bucket, from->slots[i].count))
			return -ENOMEM;
	if (from->count && (!to->count || from->min_ns < to->min_ns))
		to->min_ns = from->min_ns;
	if (from->max_ns > to->max_ns)
		to->max_ns = from->max_ns;
	to->sum_ns += from->sum_ns;
	to->count += from->count;
	return 0;
}

uint64_t sched_hist_share(const struct sched_hist *hist, double share)
{
	uint64_t rank = (uint64_t)ceil(share * (double)hist->count), seen = 0, value;
	uint32_t i;

	if (!hist->count)
		return 0;
	for (i = 0; i < hist->used; i++) {
		seen += hist->slots[i].count;
		if (seen >= rank)
			break;
	}
	if (i == hist->used)
		return hist->max_ns;
	value = middle_of(hist->slots[i].bucket);
	if (value < hist->min_ns)
		return hist->min_ns;
	return value > hist->max_ns ? hist->max_ns : value;
}

void sched_hist_fini(struct sched_hist *hist)
{
	free(hist->slots);
	*hist = (struct sched_hist){ 0 };
}
