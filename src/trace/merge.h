/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Joins readers in time order and puts their events on one axis. Each reader says how far its events may be out of order
 * (window_ns); an event is given out once no reader can bring an earlier one any more, so that memory holds one window,
 * not the files. Callers are converters and analysers; which files belong together is trace/dir.h's business.
 */
#ifndef TRACE_MERGE_H
#define TRACE_MERGE_H

#include "trace/event.h"

struct merge;

/** enum merge_axis - what the t_ns of merged events count */
enum merge_axis {
	MERGE_MONO, /* CLOCK_MONOTONIC of the one host that all files come from */
	MERGE_WALL /* the wall clock, Unix epoch: several hosts, or a file that does not know CLOCK_MONOTONIC */
};

/** merge_new/_free - NULL with errno when out of memory; _free closes the readers, NULL is fine. Context: tool. */
struct merge *merge_new(struct ev_session *session);
void merge_free(struct merge *merge);

/** merge_add - one more reader, before the first merge_next(). Owns it also on failure. Return: 0 or -ENOMEM. */
int merge_add(struct merge *merge, struct ev_reader *reader);

/**
 * merge_axis - the axis of all events, settled with the first merge_next()
 *
 * Of one host all files share one offset between both clocks (the first file's that knows it), so that what happened in
 * one order stays in it; files of several hosts are as exact to each other as the hosts' wall clocks are.
 */
enum merge_axis merge_axis(const struct merge *merge);

/** merge_wall_minus_mono - offset of the first host, ns; 0 if no file knows it */
int64_t merge_wall_minus_mono(const struct merge *merge);

/**
 * merge_next - next event in order of t_ns (equal times: the longer one first)
 *
 * Return: 1, 0 at the end, -errno with @err: the reader that failed gives no more, the others go on with the next call.
 */
int merge_next(struct merge *merge, struct event *ev, struct st_err *err);

/** struct merge_stats - sums over the readers, and what the merge itself met */
struct merge_stats {
	struct ev_reader_stats read;
	uint64_t late; /* events behind their reader's window: given out as soon as they came */
	uint64_t peak; /* most events held at a time */
};

void merge_stats(const struct merge *merge, struct merge_stats *stats);

/** merge_count/_reader - the readers, in the order of merge_add(); for reports */
size_t merge_count(const struct merge *merge);
const struct ev_reader *merge_reader(const struct merge *merge, size_t i);

#endif
