/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace convert ftrace`: from one ftrace recording (trace.dat or text) to a MindStudio Insight database, its JSON form,
 * Chrome JSON or a Perfetto trace. Reads the events, runs them through the scheduler's state machine (trace/sched_state.h)
 * or that of mmap_lock, puts times on the wanted axis and hands rows to an exporter. Memory is bounded by the tasks and
 * names in the trace, not by its length.
 */
#ifndef CONVERT_FTRACE_H
#define CONVERT_FTRACE_H

#include "convert/ftrace_align.h"
#include "trace/event.h"
#include "trace/sched_state.h"

struct fsink_ops;
struct pid_map;

/** ftrace_formats - the table of exporters, NULL-terminated */
extern const struct fsink_ops *const ftrace_formats[];

enum ftrace_type { FTRACE_SCHED, FTRACE_MMAPLOCK };

/** struct ftrace_options - first field is the size of the struct */
struct ftrace_options {
	size_t size;
	const struct fsink_ops *format;
	const char *input; /* "-" = standard input */
	const char *output; /* "-" = standard output, not for databases */
	enum ftrace_type type;
	bool hide_kernel; /* leave out kernel threads */
	struct ftrace_axis axis;
	const struct pid_map *pids; /* NULL = shown as they are */
	/* called about every 65536 events; returning true stops with -ECANCELED. May be NULL. */
	bool (*progress)(void *arg, const struct ev_reader *reader);
	/* lines for people about what is missing or was repaired. May be NULL. */
	void (*note)(void *arg, const char *text);
	void *arg;
};

/** struct ftrace_summary - what was read and written */
struct ftrace_summary {
	uint64_t events;
	uint64_t before, after; /* events outside the window */
	uint64_t first_ns, last_ns; /* of all events, trace clock */
	uint64_t slices, switches, irqs, states, gaps_shown, arrows;
	uint64_t futexes; /* left out when the format has no place for them */
	uint64_t hidden; /* slices of hidden tasks */
	uint64_t open; /* slices still open at the end */
	uint64_t cut; /* slices cut by lost events */
	uint64_t skipped; /* records or lines not understood */
	uint64_t lost; /* events that the recording lost */
	uint64_t bytes; /* of the output */
	uint32_t cpus, tasks; /* lanes written */
	enum ev_clock clock;
	struct sched_stats sched;
};

/**
 * ftrace_convert - read @options->input to its end and write @options->output
 *
 * Context: tool. Return: 0; -ENODATA with @err when there is nothing to write (no events; none inside the window: @err
 * says which side they lie on); -ECANCELED; -errno with @err. No file is left then.
 */
int ftrace_convert(const struct ftrace_options *options, struct ftrace_summary *summary, struct st_err *err);

#endif
