/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * openat2(2) for C libraries and kernel headers older than it (Linux 5.6): the one call that opens a path inside another
 * root without following links out of it. Used by targets.c; a kernel without it answers -ENOSYS.
 */
#ifndef CLI_COMPAT_OPENAT2_H
#define CLI_COMPAT_OPENAT2_H

#include <sys/syscall.h>
#include <unistd.h>

#if defined(__has_include) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#else
#include <stdint.h>

struct open_how {
	uint64_t flags;
	uint64_t mode;
	uint64_t resolve;
};
#define RESOLVE_NO_MAGICLINKS 0x02
#define RESOLVE_NO_SYMLINKS 0x04
#define RESOLVE_IN_ROOT 0x10
#endif

#ifndef SYS_openat2
#define SYS_openat2 437 /* the same on every architecture */
#endif

/** compat_openat2 - Return: descriptor, or -1 with errno, like open(2). */
static inline int compat_openat2(int dir, const char *path, const struct open_how *how)
{
	return (int)syscall(SYS_openat2, dir, path, how, sizeof(*how));
}

#endif
