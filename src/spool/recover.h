/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Finishes what killed processes left: finds their spool directories, truncates each of their files to its committed
 * length, drains the rest of the pool into them and removes the directory. Called by `systrace recover`, by sysTrace_cli
 * and, some minutes after its start, by an agent's io thread. Safe twice at once and when it is killed itself.
 */
#ifndef SPOOL_RECOVER_H
#define SPOOL_RECOVER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum recover_verdict {
	RECOVER_DONE, /* drained and removed */
	RECOVER_ALIVE, /* its process lives */
	RECOVER_UNKNOWN, /* other pid namespace: cannot tell from here */
	RECOVER_BUSY, /* another recover is at it */
	RECOVER_CHILDREN, /* drained, but forked children still write into it: left for later */
	RECOVER_FAILED /* see text; left as it is */
};

/** struct recover_report - what was done with one spool directory */
struct recover_report {
	const char *dir;
	enum recover_verdict verdict;
	uint32_t pid; /* owner, in its own namespace */
	uint64_t records; /* appended to files */
	uint64_t files; /* touched */
	uint64_t dropped; /* records the pool had to drop in its life */
	const char *text; /* "" or the reason */
};

struct recover_options {
	size_t size; /* sizeof(struct recover_options) */
	const char *place; /* like spool_options.place */
	uid_t uid; /* whose directories */
	const char *dump_path; /* only pools whose files belong below it, or that have none; NULL = all */
	uint32_t worker_of; /* only pools of processes that this one had started (pool_header.worker_of); 0 = all */
	bool dry_run; /* say what would be done, change nothing */
	void (*report)(void *ctx, const struct recover_report *report); /* may be NULL */
	void *ctx;
};

/**
 * recover_run - all spool directories of one user below one place
 *
 * Context: thread, tool. The caller runs as that user (tools started by root become the user first).
 * Return: directories recovered (or that would be), or -errno when the base directory can't be read; -ENOENT: none.
 */
int recover_run(const struct recover_options *options, struct st_err *err);

#endif
