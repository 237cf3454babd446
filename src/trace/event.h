/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The one event model: every reader turns its file into these events, every converter and analyser takes only these.
 * A reader is a pull iterator over one file; names and stacks are interned once per reading session (struct ev_session),
 * so that an id means the same text in all files read together. trace/merge.h joins readers in time order.
 */
#ifndef TRACE_EVENT_H
#define TRACE_EVENT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** enum ev_clock - what t_ns counts; readers convert once to CLOCK_MONOTONIC of their host where the file tells how */
enum ev_clock { EV_CLOCK_MONO, EV_CLOCK_MONO_RAW, EV_CLOCK_BOOT, EV_CLOCK_REAL, EV_CLOCK_DEVICE, EV_CLOCK_UNKNOWN };

enum ev_kind {
	EV_NONE,
	EV_STAGE, /* Python stage; arg "kind" = enum stage_type */
	EV_STEP, /* a whole step */
	EV_COMM, /* a collective: host or device side */
	EV_COMM_SUM, /* a step's calls of one collective */
	EV_KERNEL,
	EV_API,
	EV_IO,
	EV_GIL,
	EV_LOCK,
	EV_MEM_ALLOC,
	EV_MEM_FREE,
	EV_SCHED_SWITCH,
	EV_SCHED_WAKEUP,
	EV_SCHED_MIGRATE,
	EV_TASK, /* fork, exec, exit, rename */
	EV_IRQ,
	EV_SOFTIRQ,
	EV_SYSCALL,
	EV_FAULT,
	EV_OFFCPU,
	EV_ONCPU,
	EV_COUNTER,
	EV_LOST, /* the source lost records in [t_ns, t_ns + dur_ns]; arg "count" */
	EV_NOTE,
	EV_OTHER, /* any other event; name says which, args what */
	EV_SOCKET, /* an I/O call on a socket; args as of EV_IO, the file being the peer */
	EV_MEM_SITE, /* the sampled blocks of one stack that are alive at the end of a capture */
	EV_MEM_STATE, /* what a process holds */
	EV_TAKER, /* a task that ran on a CPU while a thread of the job waited for it; args as of EV_ONCPU (trace/os.h) */
	EV_KINDS
};

enum ev_phase {
	EV_COMPLETE, /* t_ns .. t_ns + dur_ns */
	EV_BEGIN, /* its end comes as an EV_END of the same track, or never (open) */
	EV_END,
	EV_INSTANT
};

/** bits of event.quality */
#define EV_LOST_BEFORE 1u /* records of this source are missing just before */
#define EV_CUT_BEGIN 2u
#define EV_CUT_END 4u
#define EV_RAISED 8u /* the stage was left by an exception */
#define EV_WORKER 16u /* from a forked child of the rank */

#define EV_NO_RANK (-1)
#define EV_MAX_ARGS 8

/** struct ev_track - where it happened; unused members are -1 (host: 0) */
struct ev_track {
	uint32_t host; /* name id */
	int32_t pid;
	int32_t tid;
	int32_t cpu;
	int32_t device;
	int32_t stream;
};

enum ev_arg_type { EV_ARG_NONE, EV_ARG_I64, EV_ARG_U64, EV_ARG_F64, EV_ARG_NAME, EV_ARG_PTR };

struct ev_arg {
	uint32_t key; /* name id */
	enum ev_arg_type type;
	union {
		int64_t i64;
		uint64_t u64;
		double f64;
		uint32_t name; /* name id */
	};
};

struct event {
	uint64_t t_ns;
	uint64_t dur_ns;
	uint64_t flow_in; /* ids of arrows that end or begin here, 0 = none */
	uint64_t flow_out;
	struct ev_track track;
	int32_t rank; /* EV_NO_RANK = unknown */
	uint32_t step; /* 0 = unknown */
	uint32_t name; /* name id */
	uint32_t stack; /* stack id, 0 = none */
	uint16_t kind; /* enum ev_kind */
	uint8_t phase; /* enum ev_phase */
	uint8_t clock; /* enum ev_clock */
	uint8_t quality;
	uint8_t nargs;
	uint16_t source; /* index of the file in the session */
	struct ev_arg args[EV_MAX_ARGS];
};

/* ---- session: names, stacks, origins -------------------------------------------------------------------------------- */

struct ev_session;

/** ev_session_new/_free - one per run of a tool. Context: tool. NULL with errno when out of memory. */
struct ev_session *ev_session_new(void);
void ev_session_free(struct ev_session *session);

/** ev_name - id of a text (any bytes, @len of them), the same for the same text. Return: id, 0 = out of memory. */
uint32_t ev_name(struct ev_session *session, const char *text, size_t len);

/** ev_text - text of an id, terminated, "" for 0; valid until ev_session_free() */
const char *ev_text(const struct ev_session *session, uint32_t id);

/** ev_stack - id of a list of frames (name ids, innermost first). Return: id, 0 for an empty list or out of memory. */
uint32_t ev_stack(struct ev_session *session, const uint32_t *frames, size_t count);

/** ev_stack_frames - frames of a stack id. Return: their count; *frames valid until ev_session_free(). */
size_t ev_stack_frames(const struct ev_session *session, uint32_t id, const uint32_t **frames);

/** struct ev_origin - identity of a file (wire: Origin); texts are name ids */
struct ev_origin {
	uint32_t run, host, boot_id, job, author, ip;
	int32_t rank; /* EV_NO_RANK = unknown */
	int32_t local_rank;
	uint32_t world_size; /* 0 = unknown */
	uint32_t pid;
	uint32_t segment;
	uint64_t proc_start;
	uint64_t run_start_us;
	int64_t wall_minus_mono_ns;
	uint32_t folded; /* name id of "/a/b/": files of its directory whose records are in this one; 0 = none */
	bool known; /* false: the file has no Origin (old or foreign); rank then comes from its name */
};

/* ---- readers -------------------------------------------------------------------------------------------------------- */

struct ev_reader;

/** struct ev_reader_stats - what a reader met; printed by every tool that used it */
struct ev_reader_stats {
	uint64_t events;
	uint64_t bytes; /* of the file, after decompression */
	uint64_t total_bytes; /* on disk; 0 = unknown (pipe) */
	uint64_t consumed_bytes; /* on disk, for progress */
	uint64_t resume_bytes; /* behind the last whole record, for ops->resume */
	uint64_t lost; /* records that the source says it dropped */
	uint64_t skipped; /* records or lines not understood; each kind is in the reader's report */
	bool torn; /* the tail was cut: good part delivered */
};

/** struct ev_reader_ops - what a reader implements (trace/read_<format>.c) */
struct ev_reader_ops {
	const char *format; /* "timeline-pb", "timeline-json", "mspti-csv", "trace.dat", ... */
	/* 1 and *ev, 0 at the end, -errno with err. Order of t_ns is right within window_ns. */
	int (*next)(struct ev_reader *reader, struct event *ev, struct st_err *err);
	void (*close)(struct ev_reader *reader);
	/* one line per thing that was skipped or repaired, for people; may be NULL */
	void (*report)(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg);
	/*
	 * Go on behind the records that an earlier reader of this file had read, before the first next(). @offset, @origin:
	 * its stats.resume_bytes and origin at its end. Return: 0 or -errno; NULL: a file that grows must be read again.
	 */
	int (*resume)(struct ev_reader *reader, uint64_t offset, const struct ev_origin *origin);
};

/** struct ev_reader - first member of each reader's own struct */
struct ev_reader {
	const struct ev_reader_ops *ops;
	struct ev_session *session;
	char *path;
	uint16_t source;
	uint64_t window_ns; /* how far an event may come after a later one; default 10 s */
	struct ev_origin origin; /* of the segment now being read */
	struct ev_reader_stats stats;
};

/**
 * ev_open - open a file, sniffing its content (never its suffix); gz and zst are unpacked on the fly
 * @session: must outlive the reader
 *
 * Context: tool. Return: the reader, or NULL with errno and @err (path, offset, what was found, what to do).
 */
struct ev_reader *ev_open(struct ev_session *session, const char *path, struct st_err *err);

/** ev_next - next event. Return: 1, 0 at the end, -errno. */
static inline int ev_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	return reader->ops->next(reader, ev, err);
}

/** ev_close - NULL is fine. */
void ev_close(struct ev_reader *reader);

#endif
