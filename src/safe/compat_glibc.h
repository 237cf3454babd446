/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Pins the glibc symbol versions of the agent to its floor (2.17 on x86_64; aarch64 starts at 2.17 anyway), so that a
 * library built on a new distribution loads on an old one: a preload that asks for a newer version is fatal to every
 * process. Force-included into every file of libsysTrace.so; tools/check-glibc proves the result.
 *
 * Before glibc 2.34 these functions live in libpthread and libdl, which a plain C program does not load. They are weak
 * here: NULL in such a process, which has no interpreter either, and the constructor leaves it alone (agent/life.c).
 */
#ifndef SAFE_COMPAT_GLIBC_H
#define SAFE_COMPAT_GLIBC_H

#if defined(__x86_64__)
#define GLIBC_PIN(name, version) __asm__(".symver " #name "," #name "@" version)
#pragma weak dlsym
#pragma weak dlvsym
#pragma weak dlopen
#pragma weak dlclose
#pragma weak dladdr
#pragma weak dladdr1
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
GLIBC_PIN(dlsym, "GLIBC_2.2.5");
GLIBC_PIN(dlvsym, "GLIBC_2.2.5");
GLIBC_PIN(dlopen, "GLIBC_2.2.5");
GLIBC_PIN(dlclose, "GLIBC_2.2.5");
GLIBC_PIN(dladdr, "GLIBC_2.2.5");
GLIBC_PIN(dladdr1, "GLIBC_2.3.3");
GLIBC_PIN(pthread_create, "GLIBC_2.2.5");
GLIBC_PIN(pthread_setname_np, "GLIBC_2.12");
GLIBC_PIN(pthread_sigmask, "GLIBC_2.2.5");
GLIBC_PIN(pthread_getattr_np, "GLIBC_2.2.5");
GLIBC_PIN(pthread_attr_setstacksize, "GLIBC_2.2.5");
GLIBC_PIN(pthread_attr_setguardsize, "GLIBC_2.2.5");
GLIBC_PIN(pthread_setaffinity_np, "GLIBC_2.3.4");
GLIBC_PIN(pthread_join, "GLIBC_2.2.5");
GLIBC_PIN(pthread_detach, "GLIBC_2.2.5");
GLIBC_PIN(pthread_kill, "GLIBC_2.2.5");
#endif

#endif
