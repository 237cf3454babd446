/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Between the scheduler's spans and the files of `convert ftrace`: which lane a span belongs to, what it is called, its
 * arguments as text, the time axis. ftrace.c, the one caller, turns each span into a row; an exporter (ftrace_db.c,
 * ftrace_json.c, ftrace_perfetto.c) only writes rows down. All formats therefore show the same slices.
 */
#ifndef CONVERT_FTRACE_SINK_H
#define CONVERT_FTRACE_SINK_H

#include "convert/ftrace.h"
#include "convert/outfile.h"
#include "trace/sched_state.h"

enum frow_kind {
	ROW_ON_CPU,
	ROW_SWITCH, /* instant */
	ROW_IRQ,
	ROW_SOFTIRQ,
	ROW_STATE,
	ROW_GAP,
	ROW_FUTEX,
	ROW_LOCK_WAIT,
	ROW_LOCK_HOLD,
	ROW_ARROW, /* from a moment of lane track to a moment of lane task; count = its number */
	ROW_KINDS
};

/** struct frow - one slice or instant; names are name ids, tracks are indices of fview */
struct frow {
	uint64_t begin_ns, end_ns; /* on the output's axis */
	uint32_t track;
	uint32_t task; /* track of the task that it is about: on CPU, interrupted; UINT32_MAX = none */
	uint16_t flags; /* SPAN_* of sched_state.h, ROW_OUTSIDE */
	uint8_t kind; /* enum frow_kind */
	uint8_t state; /* enum sched_task_state */
	int32_t cpu;
	union {
		struct {
			uint64_t runtime_ns;
			int64_t vruntime;
			uint32_t end_state;
			int32_t prio;
		} on_cpu;
		struct {
			int32_t prev_pid, prev_prio, next_pid, next_prio;
			uint32_t prev_comm, prev_state, next_comm;
		} sw;
		struct {
			int64_t number;
			uint32_t label, result;
		} irq;
		struct {
			uint32_t sleep;
			uint32_t waker_comm;
			int32_t waker_pid; /* -1 = unknown */
		} state_of;
		uint64_t count; /* gap, arrow */
	};
};

#define ROW_OUTSIDE 0x8000u /* goes on outside the time window */
#define FTRACE_NO_TASK UINT32_MAX
#define FROW_ARGS_BYTES 32768 /* most that the arguments of a row take */

/** struct ftext - a text for JSON: escaped, UTF-8, without quotes, at most 4096 bytes */
struct ftext {
	char *text;
	uint32_t len;
};

/** struct ftrack - a lane: a CPU, or a task under one of its names */
struct ftrack {
	bool is_cpu;
	bool hidden; /* the idle task, kernel threads with --hide-kernel */
	int32_t number; /* CPU, or pid in the trace */
	int32_t pid; /* as shown: translated by the pid map */
	uint32_t comm; /* name id */
	uint32_t next; /* hash chain, index + 1 */
	uint64_t rows; /* written on it */
	uint64_t futexes; /* of these, what exporters show on a lane of its own */
	struct ftext label; /* "CPU 000", "python3:4711" */
	void *own; /* the exporter's; freed with free() */
	uint32_t own_len;
};

/** struct fview - what all exporters look at */
struct fview {
	struct ev_session *session;
	const struct ftrace_options *options;
	struct ftrack *tracks;
	uint32_t track_count, track_room;
	uint32_t *buckets;
	uint32_t bucket_mask;
	uint32_t *cpu_tracks; /* by CPU number, index + 1 */
	uint32_t cpu_room;
	struct ftext *texts; /* by name id */
	uint32_t text_room;
	enum ev_clock clock; /* of the trace */
	uint64_t first_ns; /* first event, trace clock */
	const struct sched_state *machine; /* knows the names of tasks */
	const char *release; /* of the kernel, NULL = unknown */
	int failed; /* -errno, kept */
};

/** fview_time - a time of the trace on the output's axis */
uint64_t fview_time(const struct fview *view, uint64_t t_ns);

/** fview_cpu/_task - index of the lane, made when it is new; FTRACE_NO_TASK and view->failed when out of memory */
uint32_t fview_cpu(struct fview *view, int32_t cpu);
uint32_t fview_task(struct fview *view, uint32_t comm, int32_t pid);

/** fview_pid - pid as shown */
int32_t fview_pid(const struct fview *view, int32_t pid);

/** fview_text - text of a name id for JSON; never NULL */
const struct ftext *fview_text(struct fview *view, uint32_t id);

/** fview_order - lanes that have rows in the order of the database: CPUs by text, then tasks by text. Return: count; *order to be freed. */
uint32_t fview_order(struct fview *view, uint32_t **order);

/** fview_utf8 - label of a lane as plain UTF-8, to be freed */
char *fview_utf8(const struct fview *view, const struct ftrack *track);

/** fview_fini - free what it holds; a zeroed one is fine */
void fview_fini(struct fview *view);

/** frow_name - name of a slice, escaped for JSON */
struct ftext frow_name(struct fview *view, const struct frow *row);

/**
 * frow_args - arguments of a row as a JSON object
 * @out: FROW_ARGS_BYTES
 *
 * Return: behind the last byte; @out when there are none.
 */
char *frow_args(struct fview *view, const struct frow *row, char *out);

/** frow_escape - any bytes as the inside of a JSON text, like Python's json.dumps(ensure_ascii=False); @out: 6 * len. Return: bytes. */
size_t frow_escape(char *out, const char *text, size_t len);

struct fsink;

/** struct fsink_ops - one exporter. All: 0 or -errno; write errors may also show up in finish() only. */
struct fsink_ops {
	const char *name; /* `--format` */
	const char *output; /* default name */
	const char *help;
	bool futexes; /* shows ROW_FUTEX */
	bool gaps; /* shows ROW_GAP */
	bool arrows; /* shows ROW_ARROW */
	bool trace_times; /* wants rows in the trace's own time */
	struct fsink *(*open)(struct fview *view, const char *path, struct st_err *err);
	int (*row)(struct fsink *sink, const struct frow *row);
	int (*event)(struct fsink *sink, const struct event *ev); /* every event inside the window; may be NULL */
	int (*finish)(struct fsink *sink, uint64_t *bytes, struct st_err *err); /* closes and frees in any case */
	void (*discard)(struct fsink *sink); /* give up: no file is left; NULL is fine */
};

/** struct fsink - first member of each exporter's own struct */
struct fsink {
	const struct fsink_ops *ops;
	struct fview *view;
};

extern const struct fsink_ops fsink_db, fsink_json, fsink_chrome, fsink_perfetto;

#endif
