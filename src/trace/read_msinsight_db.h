/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reads a database of `convert ftrace` (or of MindStudio Insight's own script) back: slices become the spans of
 * sched_state.h again, so that `analyze sched` sums a database as it sums the trace. What the tables do not hold (idle time,
 * why a task waits, who woke it) follows from the sched_switch marks beside the slices.
 */
#ifndef TRACE_READ_MSINSIGHT_DB_H
#define TRACE_READ_MSINSIGHT_DB_H

#include "trace/sched_state.h"

struct msdb;

/** struct msdb_info - what a database holds */
struct msdb_info {
	uint64_t first_ns, last_ns; /* begin of the first slice, end of the last one; 0 = there is none */
	uint64_t slices;
	uint64_t skipped; /* slices that were not understood; msdb_read() counts */
};

/** msdb_knows - is it a file of SQLite? Context: tool. */
bool msdb_knows(const char *path);

/**
 * msdb_open - open a database for reading
 * @session: for the names; must outlive it
 *
 * Context: tool. Return: NULL with errno and @err: no such tables, damaged, built without SQLite (ENOTSUP).
 */
struct msdb *msdb_open(struct ev_session *session, const char *path, struct st_err *err);

/** msdb_info - valid until msdb_close() */
const struct msdb_info *msdb_info(const struct msdb *db);

/**
 * msdb_read - give all spans, ascending end_ns, to @emit(@arg, span)
 *
 * Memory: the tracks, and what SQLite's sorter keeps beside its temporary file. Return: 0, what @emit returned when it was
 * not 0, or -errno with @err.
 */
int msdb_read(struct msdb *db, sched_emit emit, void *arg, struct st_err *err);

/** msdb_close - NULL is fine */
void msdb_close(struct msdb *db);

#endif
