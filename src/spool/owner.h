/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Who owns a spool directory or a lock, and does it live? A pid alone proves nothing (pids are reused, and two containers
 * that share /dev/shm are both pid 1), so an owner is pid namespace, pid and start time together, and death is judged
 * only where it can be seen: within the same pid namespace, or by root in the first one.
 */
#ifndef SPOOL_OWNER_H
#define SPOOL_OWNER_H

#include <stddef.h>
#include <stdint.h>

#define OWNER_BOOT_ID 40

/** struct owner - a process, for longer than its pid is its own */
struct owner {
	uint64_t pidns; /* inode of /proc/<pid>/ns/pid, 0 = unknown */
	uint32_t pid; /* in that namespace */
	uint64_t start; /* field 22 of /proc/<pid>/stat, clock ticks since boot */
	char boot_id[OWNER_BOOT_ID]; /* "" = unknown */
};

enum owner_life { OWNER_DEAD, OWNER_ALIVE, OWNER_UNKNOWN };

/** owner_self - this process. Context: thread, tool (reads /proc, no allocation). Unknown fields are 0 or "". */
void owner_self(struct owner *self);

/**
 * owner_life - does it live?
 *
 * Zombies count as dead: they write no more. Context: thread, tool. OWNER_UNKNOWN when it can't be seen from here.
 */
enum owner_life owner_life(const struct owner *owner);

/**
 * owner_proc_start - start time and state letter of a process of this namespace
 * @state: may be NULL
 *
 * Context: thread, tool. Return: 0, -ESRCH, -EBADMSG when /proc/<pid>/stat makes no sense, -errno.
 */
int owner_proc_start(uint32_t pid, uint64_t *start, char *state);

#endif
