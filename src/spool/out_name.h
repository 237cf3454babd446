/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names of output files (contract 1 and 2): the documented one, with -<hostname> or -<pid> before the suffix where
 * another host's or another live process's file stands; a file of an earlier process is moved aside first. Part of
 * spool/out, which alone calls it.
 */
#ifndef SPOOL_OUT_NAME_H
#define SPOOL_OUT_NAME_H

#include "spool/lock.h"
#include "spool/out.h"

#include <stdbool.h>
#include <stdint.h>

struct out_name {
	const struct out_place *place;
	const char *stem;
	const char *suffix;
	uint64_t known_ino; /* the last file that this pool wrote under the name: only that is continued, for an exec
			     * leaves pid and start time as they were */
	char path[POOL_PATH]; /* what was found */
	uint64_t size; /* 0: new or empty; else a file of this very process */
	uint64_t dev, ino;
	bool planted; /* another user's file, or one with a second name */
	int64_t wall_minus_mono_ns; /* of an existing file */
};

/**
 * out_name_open - find the name, own its lock, open the file
 * @locked, @lock, @lock_fd: the lock held so far ("" and -1: none) and from now on
 *
 * Context: thread. Return: descriptor, or -errno.
 */
int out_name_open(struct out_name *name, char *locked, char *lock, int *lock_fd, struct st_err *err);

/** out_name_afresh - move the file at name->path aside and create it new. Return: descriptor, or -errno. */
int out_name_afresh(struct out_name *name, struct st_err *err);

/** out_rename - never over something. Return: 0, -EEXIST, -errno. */
int out_rename(const char *from, const char *to);

#endif
