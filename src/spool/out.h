/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One output file: finding its name so that no two live processes write one file and no file is lost, appending in
 * writes of at most 64 KiB after each of which the file is whole, committing, rolling back, segments. It knows neither
 * records nor messages. Called by spool/drain.c and the sinks, on the drain's thread.
 */
#ifndef SPOOL_OUT_H
#define SPOOL_OUT_H

#include "base/err.h"
#include "safe/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUT_WRITE (64u * 1024u) /* one write: buffer and tail together */
#define OUT_TAIL 64u

/** struct out_place - what all files of one drain share */
struct out_place {
	char dump_path[POOL_PATH];
	char lock_base[POOL_PATH]; /* "" = no locks */
	char host[128];
	char boot_id[40];
	uint32_t pid; /* of the process whose records these are */
	uint64_t proc_start;
	bool keep_open;
	bool owner_dead; /* recover: an empty file may be the one that its process was about to write */
	uint64_t segment_bytes;
	void (*say)(void *ctx, const char *text); /* never NULL */
	void *say_ctx;
};

#define OUT_PAST 48 /* files of one name after the other: two days of hours */

/** struct out_past - a file that was given up for one of another name */
struct out_past {
	char path[POOL_PATH];
	uint32_t oldest, segment; /* its closed segments, 0 = none */
};

struct out {
	const struct out_place *place;
	struct pool_header *head; /* its files[index] and commits tell recover about this file */
	uint32_t index;
	char path[POOL_PATH]; /* live segment, or the last one; "" = never opened */
	bool live;
	char locked[POOL_PATH]; /* name whose lock is held, "" = none */
	char lock[POOL_PATH]; /* and its lock file */
	int lock_fd;
	int fd; /* -1 between batches unless keep_open */
	uint64_t dev, ino;
	uint32_t segment; /* number of the newest closed one, 0 = none */
	uint32_t oldest; /* number of the oldest closed segment that still exists; 0 = none */
	int64_t wall_minus_mono_ns;
	uint64_t committed; /* length without tail that the last good batch left */
	uint64_t length; /* in the file now, without tail */
	size_t used; /* in buf, not written */
	uint64_t end; /* what the file system has: length and tail */
	bool elements, committed_elements; /* does the growing array hold anything? (JSON) */
	bool torn; /* a rollback did not work out: again before anything else */
	struct out_past *past; /* OUT_PAST rows, NULL = not used yet */
	uint32_t past_count;
	size_t (*tail)(const void *ctx, char *text); /* NULL = none */
	const void *tail_ctx;
	uint8_t buf[OUT_WRITE];
};

/** enum out_found - how out_open() got its file */
enum out_found {
	OUT_NEW, /* empty: the head is to be written */
	OUT_OURS /* left by an earlier capture of the same process: go on at its end */
};

/** out_init - a file not yet opened; @tail may be NULL */
void out_init(struct out *o, const struct out_place *place, struct pool_header *head, uint32_t index,
	      size_t (*tail)(const void *ctx, char *text), const void *tail_ctx);

/**
 * out_open - find the name and open the file (contract 1 and 2)
 * @stem, @suffix: documented name below the dump path, in two parts so that -<hostname> and -<pid> go between
 * @format_json: growing array in an object: where the body ends is looked for
 *
 * Context: thread. Return: enum out_found, or -errno.
 */
int out_open(struct out *o, const char *stem, const char *suffix, bool format_json, struct st_err *err);

/** out_offset - clock offset of the live segment, noted for recover too */
void out_offset(struct out *o, int64_t wall_minus_mono_ns);

/**
 * out_adopt - go on with the file that the pool's header names, after its process died
 * @length: committed; the file is cut to that and closed with its tail
 *
 * Return: 0, -ENOENT when the file is not there any more (moved, deleted, other mount), -errno.
 */
int out_adopt(struct out *o, uint64_t length, struct st_err *err);

/** out_reopen - at the start of a batch: descriptor, and is the file still there? Return: 0, -ESTALE (now closed), -errno. */
int out_reopen(struct out *o, struct st_err *err);

/**
 * out_put - append
 * @bytes: at most OUT_WRITE - OUT_TAIL
 *
 * Return: 0; -EFBIG when the segment would grow too long (nothing was appended; the batch must be rolled back and the
 * segment closed); -errno of a write.
 */
int out_put(struct out *o, const void *data, size_t bytes);

/** out_write - what was put goes to the file. Return: 0 or -errno. */
int out_write(struct out *o);

/** out_commit - the batch counts; call after the pool's header says so */
void out_commit(struct out *o);

/** out_rollback - back to the last commit. Return: 0 or -errno (then tried again by out_reopen). */
int out_rollback(struct out *o);

/** out_rest - end of a batch: gives the descriptor back unless keep_open */
void out_rest(struct out *o);

/**
 * out_rotate - close the live segment: it becomes <path>.<n>; nothing may be uncommitted
 *
 * Return: 0 or -errno (the segment then stays live).
 */
int out_rotate(struct out *o, struct st_err *err);

/** out_close - give up the file as it is, and the lock of its name. Nothing may be uncommitted. Idempotent. */
void out_close(struct out *o);

/** out_retire - as out_close(), for a file whose name changes with time; the old one still counts. Context: thread. */
void out_retire(struct out *o);

/** out_free - what out_retire() keeps; after out_close() */
void out_free(struct out *o);

/** out_size - bytes of all existing segments of this file, the live one included. Context: thread. */
uint64_t out_size(const struct out *o);

/**
 * out_drop_oldest - unlink the oldest closed segment
 * @name: gets its path
 *
 * Return: bytes freed, 0 when there is none, -errno.
 */
int64_t out_drop_oldest(struct out *o, char *name, size_t room);

/** out_oldest_time - last write of the oldest closed segment, ns of the wall clock; 0 = there is none */
uint64_t out_oldest_time(const struct out *o);

/**
 * out_replace - write a small file whole: <path>.part, then rename
 *
 * Context: thread. Return: 0 or -errno.
 */
int out_replace(const char *path, const void *data, size_t bytes);

#endif
