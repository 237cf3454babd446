/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Distribution of durations in little memory: 64 buckets for each power of two, and only those that hold something are
 * stored. Percentiles are the middle of a bucket, at most 0.79 % off (below 128 ns exact); smallest, largest, sum and count
 * are exact. Used for wake-up latencies, one per row of `analyze sched`.
 */
#ifndef ANALYZE_SCHED_HIST_H
#define ANALYZE_SCHED_HIST_H

#include <stdint.h>

/** largest relative error of sched_hist_share(), percent */
#define SCHED_HIST_ERROR_PCT 0.79

struct sched_hist_slot {
	uint64_t bucket : 16, count : 48;
};

/** struct sched_hist - zero-initialise */
struct sched_hist {
	struct sched_hist_slot *slots; /* ascending */
	uint32_t used, room;
	uint64_t count;
	uint64_t sum_ns, min_ns, max_ns;
};

/** sched_hist_add - one duration. Return: 0 or -ENOMEM (then nothing was added). */
int sched_hist_add(struct sched_hist *hist, uint64_t ns);

/** sched_hist_merge - add all of @from to @to. Return: 0 or -ENOMEM. */
int sched_hist_merge(struct sched_hist *to, const struct sched_hist *from);

/** sched_hist_share - smallest value that at least @share (0..1) of the values do not exceed, ns; 0 for no values */
uint64_t sched_hist_share(const struct sched_hist *hist, double share);

void sched_hist_fini(struct sched_hist *hist);

#endif
