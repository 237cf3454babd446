/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Pins the glibc symbol versions of the agent to its floor (2.17 on x86_64, 2.28 on aarch64), so that a library built
 * on a new distribution loads on an old one: a preload that asks for a newer version is fatal to every process.
 * Force-included into every file of libsysTrace.so; tools/check-glibc proves the result.
 *
 * Before glibc 2.34 the functions listed here live in libpthread and libdl, which a plain C program does not load. They
 * are weak: NULL in such a process, which has no interpreter either, and the constructor leaves it alone (agent/life.c).
 */
#ifndef SAFE_COMPAT_GLIBC_H
#define SAFE_COMPAT_GLIBC_H

#include <dlfcn.h>
#include <fcntl.h>
#include <features.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define GLIBC_OLD(x86_64_version) "GLIBC_" x86_64_version
#elif defined(__aarch64__)
#define GLIBC_OLD(x86_64_version) "GLIBC_2.17"
#else
#error "the agent runs on x86_64 and aarch64"
#endif
#define GLIBC_PIN(name, x86_64_version) __asm__(".symver " #name "," #name "@" GLIBC_OLD(x86_64_version))

#pragma weak dlsym
#pragma weak dlvsym
#pragma weak dlopen
#pragma weak dlclose
#pragma weak dladdr
#pragma weak dladdr1
#pragma weak dlinfo
#pragma weak pthread_create
#pragma weak pthread_setname_np
#pragma weak pthread_sigmask
#pragma weak pthread_getattr_np
#pragma weak pthread_attr_setstacksize
#pragma weak pthread_attr_setguardsize
#pragma weak pthread_setaffinity_np
#pragma weak pthread_join
#pragma weak pthread_detach
#pragma weak pthread_kill
#pragma weak pthread_key_create
#pragma weak pthread_setspecific
GLIBC_PIN(dlsym, "2.2.5");
GLIBC_PIN(dlvsym, "2.2.5");
GLIBC_PIN(dlopen, "2.2.5");
GLIBC_PIN(dlclose, "2.2.5");
GLIBC_PIN(dladdr, "2.2.5");
GLIBC_PIN(dladdr1, "2.3.3");
GLIBC_PIN(dlinfo, "2.3.3");
GLIBC_PIN(pthread_create, "2.2.5");
GLIBC_PIN(pthread_setname_np, "2.12");
GLIBC_PIN(pthread_sigmask, "2.2.5");
GLIBC_PIN(pthread_getattr_np, "2.2.5");
GLIBC_PIN(pthread_attr_setstacksize, "2.2.5");
GLIBC_PIN(pthread_attr_setguardsize, "2.2.5");
GLIBC_PIN(pthread_setaffinity_np, "2.3.4");
GLIBC_PIN(pthread_join, "2.2.5");
GLIBC_PIN(pthread_detach, "2.2.5");
GLIBC_PIN(pthread_kill, "2.2.5");
GLIBC_PIN(pthread_key_create, "2.2.5");
GLIBC_PIN(pthread_setspecific, "2.2.5");

/* The headers of 2.38 and later send strtol, sscanf and their like to names that older ones lack. */
#ifdef __GLIBC_USE_C2X_STRTOL
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#endif
#ifdef __GLIBC_USE_C23_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
#endif

/*
 * stat and friends became symbols of libc.so.6 in 2.33 only; before, headers wrapped __xstat. The system call fills the
 * very struct on both 64-bit machines.
 */
static inline int compat_fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return (int)syscall(SYS_newfstatat, dir, path, st, flags);
}
#define fstatat(dir, path, st, flags) compat_fstatat(dir, path, st, flags)
#define fstat(fd, st) compat_fstatat(fd, "", st, AT_EMPTY_PATH)
#define stat(path, st) compat_fstatat(AT_FDCWD, path, st, 0)
#define lstat(path, st) compat_fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW)

#endif
