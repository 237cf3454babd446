/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Sinks turn records of the pool into files of the dump directory. A sink owns one output file (spool/out.h): its name,
 * what stands at the head and tail of it, and how a record becomes bytes. spool/drain.c drives them, in the agent's io
 * thread and in recover alike. A new kind of file is one sink_ops in one sink_*.c and one row of sink_table.
 */
#ifndef SPOOL_SINK_H
#define SPOOL_SINK_H

#include "safe/clock.h"
#include "safe/pool.h"
#include "spool/out.h"
#include "spool/owner.h"
#include "wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** enum sink_kind - frozen: stored in pool_file.kind */
enum sink_kind {
	SINK_NONE,
	SINK_TIMELINE, /* timeline/<hostname>--<rank:05d>.timeline */
	SINK_MARKERS, /* mspti/mspti-marker-<ip>-<rank>.csv */
	SINK_IO,
	SINK_GIL,
	SINK_MUTEX,
	SINK_OS,
	SINK_HBM,
	SINK_TIMELINE_EXT, /* JSON only: <timeline>.ext.json, what the published schema has no array for */
	SINK_STACKS, /* stacks/stacks_rank<r>_<pid>.json: what stack ids in other files stand for */
	SINK_KINDS
};

/** struct sink_rec - one record and who wrote it */
struct sink_rec {
	const struct rec_head *head; /* whole: at least as long as its type's struct */
	uint32_t pid; /* of the writer; a forked child's differs from the pool owner's */
	uint32_t tid;
	const char *comm; /* terminated */
	bool worker; /* a forked child */
};

/** struct sink_env - what all sinks of one drain share; written by the drain only */
struct sink_env {
	const struct pool_header *head;
	const struct msg_origin *origin; /* identity; wall_minus_mono_ns and segment are the out's */
	struct out_place place;
	bool json;
	uint64_t next_id; /* ids given so far in this and earlier batches */
	uint64_t dropped[POOL_SRC_COUNT]; /* totals the files tell after this batch */
	uint8_t *scratch; /* SINK_SCRATCH bytes for one encoded record */
};

#define SINK_STATE 8192u
#define SINK_SCRATCH (64u * 1024u) /* a text of 1 KiB is 6 KiB of JSON at worst; a record has few of them */

struct sink;

struct sink_ops {
	enum sink_kind kind;
	const char *name; /* in messages for people */
	bool for_pb, for_json; /* in which SYSTRACE_FORMAT it is used */
	uint32_t types; /* bit 1 << enum rec_type for each type it writes */
	/* is a record of these types for this file? NULL: all are */
	bool (*concerns)(const struct sink *s, const struct sink_rec *rec);
	uint32_t learned; /* and for each that it is only told, whether or not its file is open */
	void (*learn)(struct sink *s, const struct sink_rec *rec);
	/* stem and suffix of the documented name below the dump path, for example "mspti/mspti-marker-10.0.0.1-0", ".csv" */
	void (*file_name)(const struct sink *s, char *stem, size_t room, const char **suffix);
	/* first bytes of a new file or segment, by out_put() */
	int (*begin)(struct sink *s, const struct clock_snapshot *clocks);
	/* closing bytes that make the file whole between writes; NULL = none. Return: bytes, at most OUT_TAIL */
	size_t (*tail)(const struct sink *s, char *text);
	/* one record. Return: 0, -EFBIG (out_put), -errno */
	int (*put)(struct sink *s, const struct sink_rec *rec);
	/* these three may be NULL: the sink does not carry such things */
	int (*thread)(struct sink *s, const struct sink_rec *rec); /* first record of this (pid, tid, comm) */
	int (*clocks)(struct sink *s, const struct clock_snapshot *clocks); /* every 60 s */
	int (*drop)(struct sink *s, const struct msg_drop *drop);
	/* a file that can be read alone tells these too, of its own records; may be NULL */
	int (*own_thread)(struct sink *s, const struct sink_rec *rec);
	int (*own_drop)(struct sink *s, const struct msg_drop *drop);
	uint32_t sources; /* bit 1 << enum pool_source whose drops own_drop is told */
	/* after a batch was committed: sidecars; NULL = nothing. Errors are reported by the drain, not fatal */
	int (*settled)(struct sink *s);
	size_t state_bytes; /* of sink.state, at most SINK_STATE */
	/* files whose name changes with time: is the live one's over? Asked between batches; may be NULL */
	bool (*over)(const struct sink *s, uint64_t unix_ns);
	void (*free)(struct sink *s); /* what the state points to; may be NULL */
};

struct sink {
	const struct sink_ops *ops;
	struct sink_env *env;
	void *state; /* zeroed; the sink's own */
	struct out out;
};

/** sink_table - all sinks, NULL-terminated */
extern const struct sink_ops *const sink_table[];

/** sink_source_name - name of a drop counter in files. Context: any. */
const char *sink_source_name(enum pool_source source);

/** sink_note_of - does a note (REC_NOTE) speak of this plugin: does its text begin with its name? Context: thread. */
bool sink_note_of(const struct sink *s, const struct sink_rec *rec, const char *plugin);

/** sink_origin - identity with this file's own offset and segment number. Context: thread. */
struct msg_origin sink_origin(const struct sink *s);

#define SINK_WORKER 16u

/** sink_of_worker - what a worker's files have in their names behind the rank: "-<pid>", "" for others; returns @text */
const char *sink_of_worker(const struct sink *s, char text[SINK_WORKER]);

/** sink_clock - a snapshot as a message. */
struct msg_clock sink_clock(const struct clock_snapshot *clocks);

/**
 * sink_text - text of a pool name, bounded also when the area is damaged
 *
 * Context: thread, tool. Valid as long as the area is mapped.
 */
struct msg_text sink_text(const struct pool_header *head, uint32_t id);

/* helpers shared by the sinks; all append to the sink's file and return what out_put() returns */
int sink_put_pb(struct sink *s, const struct pb_writer *w);
int sink_put_json(struct sink *s, const struct json_writer *w); /* one element of the growing array */

/** sink_json - begin such an element in the scratch buffer */
void sink_json(struct sink *s, struct json_writer *w);

/** sink_origin_json - "origin":[{...}] with clocks, into an open object */
void sink_origin_json(struct json_writer *w, const struct msg_origin *origin, const struct clock_snapshot *clocks,
		      size_t count);

#endif
