/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Moves what agents wrote below SYSTRACE_LOCAL_PATH (their dump path was remote, or slow) into the dump path, from outside
 * the job. Called by `systrace collect`. Closed segments go at any time, a live file only when its process has ended and
 * nothing of it waits for recover. Safe twice at once and when it is killed: a file is copied whole before it is unlinked.
 */
#ifndef SPOOL_COLLECT_H
#define SPOOL_COLLECT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum collect_verdict {
	COLLECT_MOVED,
	COLLECT_LIVE, /* its process still writes it */
	COLLECT_WAITS, /* its process was killed: recover comes first */
	COLLECT_FAILED /* see text; left where it is */
};

/** struct collect_report - what was done with one file */
struct collect_report {
	enum collect_verdict verdict;
	const char *from; /* absolute */
	const char *to; /* where it is, or would be; "" unless moved */
	uint64_t bytes;
	const char *text; /* "" or the reason */
};

struct collect_options {
	size_t size; /* sizeof(struct collect_options) */
	const char *from; /* SYSTRACE_LOCAL_PATH of the job, absolute */
	const char *to; /* its SYSTRACE_DUMP_PATH, absolute */
	const char *spool; /* its SYSTRACE_SPOOL_PATH; NULL or "" = /dev/shm */
	bool dry_run; /* say what would be done, change nothing */
	void (*report)(void *ctx, const struct collect_report *report); /* may be NULL */
	void *ctx;
};

/**
 * collect_run - go through @options->from once
 *
 * Symbolic links are not followed and nothing is overwritten: where the name is taken by the same process the file
 * becomes the next segment, where it is another's the pid goes before the suffix. Context: tool, as the files' owner.
 * Return: files moved (or that would be), or -errno when the tree can't be read.
 */
int collect_run(const struct collect_options *options, struct st_err *err);

#endif
