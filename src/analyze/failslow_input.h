/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Step times for FailSlow: out of the timelines of some ranks of a job, or out of a training log. Called by
 * cmd_failslow.
 */
#ifndef ANALYZE_FAILSLOW_INPUT_H
#define ANALYZE_FAILSLOW_INPUT_H

#include "analyze/failslow.h"
#include "analyze/records.h"

/** struct failslow_feed - what was read */
struct failslow_feed {
	size_t ranks; /* whose steps were read; 0 with a training log */
	size_t steps;
	int64_t last_us; /* wall clock of the last record of these ranks, 0 = unknown */
};

/**
 * failslow_feed_records - median step time of up to 16 ranks, rank by rank
 * @records: as records_find() left them
 *
 * Context: tool. Return: 0 or -ENOMEM; out->steps 0 means there was nothing to judge.
 */
int failslow_feed_records(struct failslow *fs, const struct records *records, struct failslow_feed *out);

/**
 * failslow_feed_log - steps of a training log: lines with `per_step_time: <n>ms` or `elapsed time per iteration (ms):
 * <n>`, the time in front of the line and the iteration where the line tells them
 *
 * Return: 0, -errno with @err.
 */
int failslow_feed_log(struct failslow *fs, const char *path, struct failslow_feed *out, struct st_err *err);

/** failslow_is_log - is this file a training log (text with one of the two marks)? */
bool failslow_is_log(const char *path);

#endif
