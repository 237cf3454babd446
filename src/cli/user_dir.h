/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A job's dump directory as a descriptor, for a probe that runs as root: opened (and made) by a child that first became
 * the job's user, below the job's own root, so that no path or link of the job's is ever followed with more rights than
 * the job has. Used by probe_targets.c.
 */
#ifndef CLI_USER_DIR_H
#define CLI_USER_DIR_H

#include "base/err.h"

#include <sys/types.h>

/**
 * user_dir_open - open a directory, making what is missing of it, and perhaps a file that is there already
 * @pid: whose root (mount namespace) and supplementary groups; 0 = this process's
 * @uid, @gid: whose rights
 * @file: absolute path of a file to open for reading too, NULL = none
 * @file_fd: gets its descriptor, -1 = not there
 *
 * Context: tool; waits at most a few seconds for a file system that does not answer. Return: descriptor (O_CLOEXEC), or
 * -errno with @err.
 */
int user_dir_open(pid_t pid, uid_t uid, gid_t gid, const char *path, const char *file, int *file_fd,
		  struct st_err *err);

#endif
