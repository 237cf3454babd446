/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The pool's place: a file in memory (/dev/shm) that outlives the process, in a directory named after it, so that
 * `systrace recover` finds what a killed process left. Called by the agent when it starts, grows and ends, and by probes.
 * Where such a file can't be had the pool is private memory and the reason is kept for `status`.
 */
#ifndef SPOOL_DIR_H
#define SPOOL_DIR_H

#include "base/err.h"
#include "safe/pool.h"
#include "spool/owner.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SPOOL_PLACE "/dev/shm"
#define SPOOL_SMALL_CHUNKS 64u /* always-on: 512 KiB */
#define SPOOL_PATH_BYTES 320

struct spool_options {
	size_t size; /* sizeof(struct spool_options) */
	const char *place; /* SYSTRACE_SPOOL_PATH; NULL or "" = /dev/shm. The base is <place>/sysTrace.<uid> */
	uint32_t chunks; /* to begin with; 0 = SPOOL_SMALL_CHUNKS */
	uint64_t max_bytes; /* SYSTRACE_SPOOL_MB in bytes: what spool_grow may reach; 0 = 8 MiB */
};

/** struct spool - where this process's pool lives */
struct spool {
	struct pool *pool;
	char base[SPOOL_PATH_BYTES]; /* <place>/sysTrace.<uid>, mode 0700; "" when it can't be had */
	char dir[SPOOL_PATH_BYTES]; /* <base>/<pid namespace>-<pid>-<start time>; "" = private memory */
	char note[160]; /* "" or why records do not survive a SIGKILL ("not crash-safe: ...") */
	uint8_t *area;
	size_t area_bytes; /* mapped and backed */
	size_t reserved_bytes; /* address space; the rest of it is PROT_NONE */
	uint64_t dev, ino; /* of the pool file: grow and remove touch no other */
};

/**
 * spool_create - make a pool for this process and attach @pool to it
 * @pool: filled last; hooks may put records as soon as this returns. Its guard page has MADV_WIPEONFORK where the
 *	kernel can (4.14)
 *
 * The file is at most 1/8 of what its file system has free, and really allocated (never sparse). No descriptor stays
 * open. Context: thread, also the job's own; not async-signal-safe. Return: 0 (see @spool->note for private memory), or
 * -errno when not even private memory can be had.
 */
int spool_create(struct spool *spool, struct pool *pool, const struct spool_options *options, struct st_err *err);

/**
 * spool_grow - more room, for plugins that record much
 * @bytes: wanted size of all chunks together; cut to the limit given at creation and to the file system's
 *
 * Context: thread, one at a time. Return: bytes of chunks there are now, or -errno (what there was stays usable).
 */
int64_t spool_grow(struct spool *spool, uint64_t bytes, struct st_err *err);

/**
 * spool_remove - unlink file and directory after everything was drained; the memory stays mapped, hooks may go on
 *
 * Context: thread. Idempotent.
 */
void spool_remove(struct spool *spool);

/**
 * spool_base_open - open <place>/sysTrace.<uid>, making it when it is missing
 * @path: SPOOL_PATH_BYTES, gets the path
 *
 * Refuses (-EPERM) a symlink, another owner, or a mode that lets others in. Context: thread, tool.
 * Return: descriptor (O_CLOEXEC), or -errno.
 */
int spool_base_open(const char *place, uid_t uid, bool make, char *path, struct st_err *err);

#endif
