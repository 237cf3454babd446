/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin Ftrace: kernel events and functions as text, in a tracing instance of its own. trace_pipe is taken out while
 * the kernel records, so that a small buffer suffices. Driven by the probe's loop: ftrace_log_pump() whenever it has time,
 * at least ten times a second. Format of the file: docs/formats/ftrace-text.md.
 */
#ifndef PROBE_FTRACE_LOG_H
#define PROBE_FTRACE_LOG_H

#include "base/err.h"
#include "probe/ftrace/note.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct ftrace_log_options - as in wire/plugin_spec.c; texts NULL = not given. Only read by ftrace_log_start(). */
struct ftrace_log_options {
	const char *cpu_list;
	const char *events;
	const char *function_tracer; /* NULL or nop = none */
	const char *func;
	const char *set_event_pid, *set_ftrace_pid;
	bool func_stack_trace, event_stack_trace;
	uint32_t buffer_kb; /* per CPU; 0 = 32768 */
	const char *tracefs; /* where it is; NULL = found or mounted */
};

struct ftrace_log_status {
	uint64_t bytes; /* in the file */
	uint64_t events; /* seen by the ring buffer */
	uint64_t lost; /* overwritten or dropped in the ring buffer */
	uint64_t unwritten; /* lines that could not be written (full disk) */
	int failed; /* 0, or -errno of the last write that failed */
};

struct ftrace_log;

/**
 * ftrace_log_new - everything up to the point where the kernel could begin
 * @note: where warnings go (CPUs beyond the machine, events that do not go on); copied, until ftrace_log_begin()
 *
 * Left-overs of recorders that were killed are removed first. Context: tool. Return: NULL with @err: -EPERM not root or
 * the kernel refuses, -ENODEV no tracefs, -ENOENT no such event, function, process or CPU (the nearest names are told),
 * -EINVAL.
 */
struct ftrace_log *ftrace_log_new(const struct ftrace_log_options *opts, const struct note *note, struct st_err *err);

/**
 * ftrace_log_begin - record; returns once the kernel does
 * @fd: the file, open for writing; the caller's, kept open until ftrace_log_stop()
 * @note: where what happens later is told; copied
 *
 * Return: 0 or -errno with @err; ftrace_log_stop() or ftrace_log_free() in any case.
 */
int ftrace_log_begin(struct ftrace_log *log, int fd, const struct note *note, struct st_err *err);

/**
 * ftrace_log_pump - move what the ring buffer holds to the file, at most some MiB
 *
 * Return: bytes moved (0: nothing is there now), or -errno of reading. Failures of writing are counted, told once by
 * @note and tried again after a second.
 */
int64_t ftrace_log_pump(struct ftrace_log *log);

/** ftrace_log_status - how far is it? Costs one small file per CPU. */
void ftrace_log_status(const struct ftrace_log *log, struct ftrace_log_status *status);

/**
 * ftrace_log_stop - switch off, move the rest, write what was lost at the end, put everything back, free @log
 *
 * Return: 0, or -errno with @err; in any case everything is put back.
 */
int ftrace_log_stop(struct ftrace_log *log, struct ftrace_log_status *status, struct st_err *err);

/** ftrace_log_free - put everything back without a word in the file. NULL is fine. */
void ftrace_log_free(struct ftrace_log *log);

/** ftrace_log_cpus - how many CPUs have a buffer */
size_t ftrace_log_cpus(const struct ftrace_log *log);

#endif
