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

/** farrows_wrote - a row of a CPU's lane was written or left out: ROW_ON_CPU, ROW_SWITCH or ROW_GAP. Return: 0 or -ENOMEM. */
int farrows_wrote(struct farrows *arrows, const struct frow *row);

/** farrows_next - next ROW_ARROW whose both slices were written; false when there is none. Call it after each farrows_wrote(). */
bool farrows_next(struct farrows *arrows, struct frow *arrow);

#endif
