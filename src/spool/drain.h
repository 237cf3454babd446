/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Empties the pool into files. Whoever has a loop (the agent's io thread, a probe, `systrace recover`) calls
 * drain_step() again and again; the drain itself has no thread, never sleeps, and is used by one thread at a time.
 *
 * Batch protocol (safe/pool.h, struct pool_commit): each committed record is in the files exactly once, wherever the
 * process is killed. A batch that can't be written (full disk, I/O error) is rolled back, the chunks are kept, and it is
 * tried again after a pause; meanwhile a pool that runs full drops records and counts them.
 */
#ifndef SPOOL_DRAIN_H
#define SPOOL_DRAIN_H

#include "base/err.h"
#include "safe/pool.h"
#include "spool/sink.h"
#include "wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DRAIN_SEGMENT_BYTES (128ull << 20)

struct drain_options {
	size_t size; /* sizeof(struct drain_options) */
	struct pool *pool;
	const char *dump_path; /* absolute; it and the directories below are made with the first file */
	const char *lock_base; /* spool.base: locks of file names live in <lock_base>/locks; NULL or "" = no locks */
	bool json; /* SYSTRACE_FORMAT */
	bool keep_open; /* descriptors live in a table of our own; false: open, write, close in each batch */
	uint64_t segment_bytes; /* 0 = DRAIN_SEGMENT_BYTES; a closed segment is never longer */
	uint64_t max_bytes; /* SYSTRACE_MAX_MB in bytes, all files of this process together; 0 = no limit */
	/* a line for the log (errors once each, what was given up); called on the drain's thread; may be NULL */
	void (*say)(void *ctx, const char *text);
	void *say_ctx;
};

struct drain_stats {
	uint64_t records; /* written */
	uint64_t bytes; /* of files, written by this drain */
	uint64_t batches;
	uint64_t failures; /* batches rolled back */
	uint64_t unknown; /* records of a type nobody here knows, or broken ones; not written */
	uint64_t dropped; /* by the pool, all sources */
	int last_error; /* negative errno of the last failed batch, 0 after a good one */
	char last_text[256];
	char given_up[256]; /* "" or the file whose records are dropped because it alone can't be written, and why */
};

struct drain;

/**
 * drain_new - a drain for @options->pool; opens no file yet
 *
 * Context: thread, tool (mmap, no malloc). Return: NULL with @err (-ENOMEM, -EINVAL).
 */
struct drain *drain_new(const struct drain_options *options, struct st_err *err);

/**
 * drain_announce - tell recover who fills this pool, before there is a drain
 * @dump_path: where the files are to be
 *
 * Marks the pool as not recording yet (POOL_READY), unless it is already. Context: thread, one at a time with
 * drain_identify(). Return: 0, -EMSGSIZE when the texts are too long (1 KiB together).
 */
int drain_announce(struct pool *pool, const struct msg_origin *origin, const char *dump_path, bool json,
		   struct st_err *err);

/** drain_recorded - is there anything in this pool that belongs into files? Context: tool, thread. */
bool drain_recorded(const struct pool_header *head);

/**
 * drain_identify - who this process is; nothing is written before
 * @origin: rank, host, run, ...; copied. wall_minus_mono_ns and segment are set by the drain, file by file
 *
 * File names are made of host, rank, ip and pid as they are here. May be called again while no file is open yet.
 * Context: the drain's thread. Return: 0, -EMSGSIZE when the texts are too long (1 KiB together).
 */
int drain_identify(struct drain *d, const struct msg_origin *origin, struct st_err *err);

/**
 * drain_part - this process is from now on another one to readers: a worker that has become a rank
 *
 * The files so far stay as they are, new ones are made. Context: the drain's thread, between steps.
 * Return: as drain_identify().
 */
int drain_part(struct drain *d, const struct msg_origin *origin, struct st_err *err);

/**
 * drain_step - write what is there
 * @flush: false: only chunks handed back full. true: also what idle and busy threads have put so far (every flush
 *	period, 200 ms; before an answer to `disable`; at exit)
 *
 * Also every 60 s a clock snapshot, and Drop messages when counts have risen. A failure is said once through say() and
 * retried after 0.5 s, 1 s, ... 30 s: until then calls return -EAGAIN at once. A file that alone has failed four times
 * is set aside for 30 s: the others go on, its records are dropped and counted (drain_stats.given_up).
 * Context: the drain's thread. Return: records written (0 = nothing to do), or -errno.
 */
int drain_step(struct drain *d, bool flush, struct st_err *err);

/** drain_retry_now - forget the pause after a failure: the next drain_step() tries. Context: the drain's thread. */
void drain_retry_now(struct drain *d);

/**
 * drain_pending - bytes of records in the pool that are not in files
 *
 * Context: any. An estimate while threads write.
 */
uint64_t drain_pending(const struct pool *pool);

/**
 * drain_note - a text for people (back-off, what was given up), as a Note record of this process, stamped now
 *
 * Goes through the pool like any other record. Context: thread.
 */
void drain_note(struct pool *pool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * drain_dump_flight - write markers of the flight-recorder ring that began at or after @since_ns (CLOCK_MONOTONIC)
 *
 * Into the markers file; a marker is dumped once. Context: the drain's thread. Return: markers written, or -errno.
 */
int drain_dump_flight(struct drain *d, uint64_t since_ns, struct st_err *err);

/**
 * drain_redirect - from now on new files go below @dump_path (slow or remote file system: local segments)
 *
 * The live files become closed segments. Context: the drain's thread. Return: 0, -ENAMETOOLONG.
 */
int drain_redirect(struct drain *d, const char *dump_path, struct st_err *err);

/**
 * drain_adopt - go on where a dead process stopped (recover)
 *
 * Takes identity, finished ranges and files from the pool's header, cuts each file to its committed length. From then on
 * chunks of the dead owner count as handed back. Context: tool, thread. Return: files adopted; -ENOENT when the process
 * never recorded; -errno.
 */
int drain_adopt(struct drain *d, struct st_err *err);

/** drain_remote - is @path (or its nearest existing parent) on a network file system? Context: thread, tool. */
bool drain_remote(const char *path);

/** drain_files - paths of the live files, for the meta file. Return: how many; path[i] valid until the next step. */
int drain_files(const struct drain *d, const char *path[POOL_FILES]);

void drain_stats(const struct drain *d, struct drain_stats *stats);

/** drain_free - close the files (they stay as the last batch left them) and free; NULL is fine. Does not flush. */
void drain_free(struct drain *d);

#endif
