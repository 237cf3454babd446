/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The timeline of a whole job (one file, all workers; trace/profile.h) as a table of workers and steps. Its slices say
 * themselves what is computing, so that a worker's own time needs no collectives to be told.
 */
#ifndef ANALYZE_JOB_TIMELINE_H
#define ANALYZE_JOB_TIMELINE_H

#include "analyze/failslow.h"
#include "analyze/localize.h"
#include "analyze/records.h"

struct job_timeline;

/**
 * job_timeline_read - read all job timelines among the records
 *
 * Context: tool. Return: NULL with errno: 0 = there is none among them, ENOMEM. What is unreadable is noted through
 * records_note().
 */
struct job_timeline *job_timeline_read(const struct records *records);
void job_timeline_free(struct job_timeline *job);

/** job_timeline_localize - feed all workers. Return: 0 or -ENOMEM. */
int job_timeline_localize(const struct job_timeline *job, struct localize *loc);

/** job_timeline_failslow - feed the job's steps; @last_us gets the end of the last one. Return: their count, -ENOMEM. */
long job_timeline_failslow(const struct job_timeline *job, struct failslow *fs, int64_t *last_us);

/** job_timeline_workers - how many there are */
size_t job_timeline_workers(const struct job_timeline *job);

#endif
