/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Arrows from a waker to the run of whom it woke, for `convert ftrace`: only those whose both ends lie on slices that are
 * written, since viewers refuse or misplace others. Remembers the last slices of each CPU, so that memory does not follow
 * the trace. Called by ftrace.c with what it writes.
 */
#ifndef CONVERT_FTRACE_ARROW_H
#define CONVERT_FTRACE_ARROW_H

#include "convert/ftrace_sink.h"

struct farrows;

/** farrows_new/_free - NULL when out of memory; NULL is fine to free */
struct farrows *farrows_new(struct fview *view);
void farrows_free(struct farrows *arrows);

/** farrows_woken - a task that was woken begins to run: its slice comes when it ends. Return: 0 or -ENOMEM. */
int farrows_woken(struct farrows *arrows, const struct sched_span *wake);

/**
 * farrows_wrote - a row of a CPU's lane was written: ROW_ON_CPU, ROW_SWITCH or ROW_GAP
 * @arrow: filled with a ROW_ARROW when the row is the slice that an arrow waited for
 *
 * Return: 1 with @arrow, 0, or -ENOMEM.
 */
int farrows_wrote(struct farrows *arrows, const struct frow *row, struct frow *arrow);

#endif
