/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the job's descriptors are: a table of our own, so that a hook knows the path or peer of a call without asking the
 * kernel. Hooks write it as descriptors come and go; what was open before, or came by a way that is not seen, is looked up
 * in /proc/self/fd by systrace/hook. Fixed memory, no locks; a forked child has a copy.
 */
#ifndef AGENT_HOOK_FDS_H
#define AGENT_HOOK_FDS_H

#include "wire/record.h"

#include <stdbool.h>
#include <stdint.h>

#define FDS_MAX 16384 /* descriptors above are unknown */

enum fds_kind { FDS_UNKNOWN, FDS_FILE, FDS_SOCKET };

/** struct fds_name - what a descriptor is; not terminated */
struct fds_name {
	uint8_t kind; /* enum fds_kind; UNKNOWN: text is empty */
	uint8_t bytes;
	char text[IO_TEXT_MAX];
};

/** fds_init - reserve the table (4 MiB of address space, pages as they are used). Context: thread. Return: 0 or -errno. */
int fds_init(void);

/** fds_set - a descriptor is known now; any number is accepted. Context: hook. */
void fds_set(int fd, const struct fds_name *name);

/** fds_clear - it goes, or is not known any more. Context: hook. */
void fds_clear(int fd);

/** fds_get - what it is; an unknown one is looked up by the next tick. Context: hook. */
void fds_get(int fd, struct fds_name *name);

/** fds_path - a path as the job gave it, made absolute where directory or working directory are known. Context: hook. */
void fds_path(int dir, const char *path, struct fds_name *name);

/** fds_peer - an address as text: "10.0.0.1:80", "[::1]:80", "unix:/path". Context: hook. */
void fds_peer(const void *address, uint32_t bytes, struct fds_name *name);

/** fds_cwd_changed - the job called chdir. Context: hook. */
void fds_cwd_changed(void);

/** fds_tick - look up what is unknown; once a second, what has changed unseen. @all: look at every one now. Context: thread. */
void fds_tick(bool all);

#endif
