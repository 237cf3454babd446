/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Who may write a file name of the dump directory on this host: one small lock file per name in the local spool (never
 * in the dump path, which may be remote). It names its owner, so that it works without a descriptor being held; with
 * one, flock also tells across pid namespaces. Called by spool/out.c.
 */
#ifndef SPOOL_LOCK_H
#define SPOOL_LOCK_H

#include <stdbool.h>
#include <stddef.h>

/**
 * lock_take - own the name @path
 * @base: spool base directory (mode 0700)
 * @hold: keep the descriptor, with flock, in *@fd; else *@fd is -1
 * @lock: gets the lock file's path, for lock_drop()
 *
 * A lock whose owner is dead is taken over; one that is ours already is taken again. Context: thread.
 * Return: 0, -EBUSY when another live process has it (or one that can't be judged), -errno.
 */
int lock_take(const char *base, const char *path, bool hold, char *lock, size_t room, int *fd);

/** lock_drop - give the name back. @fd -1 is fine, @lock "" too. */
void lock_drop(const char *lock, int fd);

#endif
