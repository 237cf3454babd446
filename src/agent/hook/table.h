/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Every function of the C library that a plugin can see, one row each:
 *
 *   H(id, "symbol", version, plugins, type returned, (parameters))
 *
 * A row makes the pointer hook_real.<id>, the slot request of agent/hook/hook.c, and calls for a wrapper hook_<id> in
 * the file of its plugin. One wrapper may serve several plugins (a bit each). Rows whose plugins are 0 are only looked up:
 * functions that wrappers call. The version is that which callers ask for; NULL = any.
 */
#ifndef AGENT_HOOK_TABLE_H
#define AGENT_HOOK_TABLE_H

#include "wire/plugin_spec.h"

#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define ON_IO PLUGIN_BIT(PLUGIN_IO)
#define ON_GIL PLUGIN_BIT(PLUGIN_GIL)
#define ON_MUTEX PLUGIN_BIT(PLUGIN_MUTEX)
#define ON_MEMORY PLUGIN_BIT(PLUGIN_MEMORY)
#define ON_MEMORY_NEW \
	(1u << 31) /* no plugin: where an allocator brings its own operators of C++, Memory switches these too */

/* Condition variables changed their layout once on x86_64: callers of the old form must reach the old functions. */
#if defined(__x86_64__)
#define COND_VERSION "GLIBC_2.3.2"
#else
#define COND_VERSION NULL
#endif

/* clang-format off */
#define HOOKS_IO(H) \
	H(open, "open", NULL, ON_IO, int, (const char *path, int flags, ...)) \
	H(open64, "open64", NULL, ON_IO, int, (const char *path, int flags, ...)) \
	H(openat, "openat", NULL, ON_IO, int, (int dir, const char *path, int flags, ...)) \
	H(openat64, "openat64", NULL, ON_IO, int, (int dir, const char *path, int flags, ...)) \
	H(open_2, "__open_2", NULL, ON_IO, int, (const char *path, int flags)) \
	H(open64_2, "__open64_2", NULL, ON_IO, int, (const char *path, int flags)) \
	H(openat_2, "__openat_2", NULL, ON_IO, int, (int dir, const char *path, int flags)) \
	H(openat64_2, "__openat64_2", NULL, ON_IO, int, (int dir, const char *path, int flags)) \
	H(creat, "creat", NULL, ON_IO, int, (const char *path, mode_t mode)) \
	H(creat64, "creat64", NULL, ON_IO, int, (const char *path, mode_t mode)) \
	H(close, "close", NULL, ON_IO, int, (int fd)) \
	H(read, "read", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes)) \
	H(read_chk, "__read_chk", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, size_t room)) \
	H(write, "write", NULL, ON_IO, ssize_t, (int fd, const void *data, size_t bytes)) \
	H(pread, "pread", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, off_t at)) \
	H(pread64, "pread64", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, off_t at)) \
	H(pread_chk, "__pread_chk", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, off_t at, size_t room)) \
	H(pread64_chk, "__pread64_chk", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, off_t at, size_t room)) \
	H(pwrite, "pwrite", NULL, ON_IO, ssize_t, (int fd, const void *data, size_t bytes, off_t at)) \
	H(pwrite64, "pwrite64", NULL, ON_IO, ssize_t, (int fd, const void *data, size_t bytes, off_t at)) \
	H(readv, "readv", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count)) \
	H(writev, "writev", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count)) \
	H(preadv, "preadv", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at)) \
	H(preadv64, "preadv64", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at)) \
	H(pwritev, "pwritev", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at)) \
	H(pwritev64, "pwritev64", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at)) \
	H(preadv2, "preadv2", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at, int flags)) \
	H(preadv64v2, "preadv64v2", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at, int flags)) \
	H(pwritev2, "pwritev2", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at, int flags)) \
	H(pwritev64v2, "pwritev64v2", NULL, ON_IO, ssize_t, (int fd, const struct iovec *iov, int count, off_t at, int flags)) \
	H(fsync, "fsync", NULL, ON_IO, int, (int fd)) \
	H(fdatasync, "fdatasync", NULL, ON_IO, int, (int fd)) \
	H(fopen, "fopen", NULL, ON_IO, FILE *, (const char *path, const char *mode)) \
	H(fopen64, "fopen64", NULL, ON_IO, FILE *, (const char *path, const char *mode)) \
	H(fclose, "fclose", NULL, ON_IO, int, (FILE *file)) \
	H(fread, "fread", NULL, ON_IO, size_t, (void *data, size_t size, size_t count, FILE *file)) \
	H(fread_unlocked, "fread_unlocked", NULL, ON_IO, size_t, (void *data, size_t size, size_t count, FILE *file)) \
	H(fread_chk, "__fread_chk", NULL, ON_IO, size_t, (void *data, size_t room, size_t size, size_t count, FILE *file)) \
	H(fread_unlocked_chk, "__fread_unlocked_chk", NULL, ON_IO, size_t, \
	  (void *data, size_t room, size_t size, size_t count, FILE *file)) \
	H(fwrite, "fwrite", NULL, ON_IO, size_t, (const void *data, size_t size, size_t count, FILE *file)) \
	H(fwrite_unlocked, "fwrite_unlocked", NULL, ON_IO, size_t, (const void *data, size_t size, size_t count, FILE *file)) \
	H(fflush, "fflush", NULL, ON_IO, int, (FILE *file)) \
	H(rename, "rename", NULL, ON_IO, int, (const char *from, const char *to)) \
	H(renameat, "renameat", NULL, ON_IO, int, (int dir, const char *from, int to_dir, const char *to)) \
	H(unlink, "unlink", NULL, ON_IO, int, (const char *path)) \
	H(unlinkat, "unlinkat", NULL, ON_IO, int, (int dir, const char *path, int flags)) \
	H(remove, "remove", NULL, ON_IO, int, (const char *path)) \
	H(mkdir, "mkdir", NULL, ON_IO, int, (const char *path, mode_t mode)) \
	H(mkdirat, "mkdirat", NULL, ON_IO, int, (int dir, const char *path, mode_t mode)) \
	H(rmdir, "rmdir", NULL, ON_IO, int, (const char *path)) \
	H(opendir, "opendir", NULL, ON_IO, DIR *, (const char *path)) \
	H(closedir, "closedir", NULL, ON_IO, int, (DIR *dir)) \
	H(connect, "connect", NULL, ON_IO, int, (int fd, const struct sockaddr *peer, socklen_t bytes)) \
	H(accept, "accept", NULL, ON_IO, int, (int fd, struct sockaddr *peer, socklen_t *bytes)) \
	H(accept4, "accept4", NULL, ON_IO, int, (int fd, struct sockaddr *peer, socklen_t *bytes, int flags)) \
	H(send, "send", NULL, ON_IO, ssize_t, (int fd, const void *data, size_t bytes, int flags)) \
	H(recv, "recv", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, int flags)) \
	H(recv_chk, "__recv_chk", NULL, ON_IO, ssize_t, (int fd, void *data, size_t bytes, size_t room, int flags)) \
	H(sendto, "sendto", NULL, ON_IO, ssize_t, \
	  (int fd, const void *data, size_t bytes, int flags, const struct sockaddr *peer, socklen_t peer_bytes)) \
	H(recvfrom, "recvfrom", NULL, ON_IO, ssize_t, \
	  (int fd, void *data, size_t bytes, int flags, struct sockaddr *peer, socklen_t *peer_bytes)) \
	H(recvfrom_chk, "__recvfrom_chk", NULL, ON_IO, ssize_t, \
	  (int fd, void *data, size_t bytes, size_t room, int flags, struct sockaddr *peer, socklen_t *peer_bytes)) \
	H(sendmsg, "sendmsg", NULL, ON_IO, ssize_t, (int fd, const struct msghdr *msg, int flags)) \
	H(recvmsg, "recvmsg", NULL, ON_IO, ssize_t, (int fd, struct msghdr *msg, int flags)) \
	H(dup, "dup", NULL, ON_IO, int, (int fd)) \
	H(dup2, "dup2", NULL, ON_IO, int, (int fd, int to)) \
	H(dup3, "dup3", NULL, ON_IO, int, (int fd, int to, int flags)) \
	H(socket, "socket", NULL, ON_IO, int, (int domain, int type, int protocol)) \
	H(chdir, "chdir", NULL, ON_IO, int, (const char *path)) \
	H(fchdir, "fchdir", NULL, ON_IO, int, (int fd))

#define HOOKS_LOCK(H) \
	H(mutex_lock, "pthread_mutex_lock", NULL, ON_MUTEX | ON_GIL, int, (pthread_mutex_t *m)) \
	H(mutex_trylock, "pthread_mutex_trylock", NULL, ON_MUTEX, int, (pthread_mutex_t *m)) \
	H(mutex_timedlock, "pthread_mutex_timedlock", NULL, ON_MUTEX, int, (pthread_mutex_t *m, const struct timespec *until)) \
	H(mutex_clocklock, "pthread_mutex_clocklock", NULL, ON_MUTEX, int, (pthread_mutex_t *m, clockid_t clock, const struct timespec *until)) \
	H(rwlock_rdlock, "pthread_rwlock_rdlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l)) \
	H(rwlock_tryrdlock, "pthread_rwlock_tryrdlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l)) \
	H(rwlock_timedrdlock, "pthread_rwlock_timedrdlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l, const struct timespec *until)) \
	H(rwlock_clockrdlock, "pthread_rwlock_clockrdlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l, clockid_t clock, const struct timespec *until)) \
	H(rwlock_wrlock, "pthread_rwlock_wrlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l)) \
	H(rwlock_trywrlock, "pthread_rwlock_trywrlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l)) \
	H(rwlock_timedwrlock, "pthread_rwlock_timedwrlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l, const struct timespec *until)) \
	H(rwlock_clockwrlock, "pthread_rwlock_clockwrlock", NULL, ON_MUTEX, int, (pthread_rwlock_t *l, clockid_t clock, const struct timespec *until)) \
	H(spin_lock, "pthread_spin_lock", NULL, ON_MUTEX, int, (pthread_spinlock_t *l)) \
	H(spin_trylock, "pthread_spin_trylock", NULL, ON_MUTEX, int, (pthread_spinlock_t *l)) \
	H(timedjoin, "pthread_timedjoin_np", NULL, ON_MUTEX, int, (pthread_t thread, void **value, const struct timespec *until)) \
	H(clockjoin, "pthread_clockjoin_np", NULL, ON_MUTEX, int, (pthread_t thread, void **value, clockid_t clock, const struct timespec *until)) \
	H(tryjoin, "pthread_tryjoin_np", NULL, ON_MUTEX, int, (pthread_t thread, void **value)) \
	H(pthread_yield, "pthread_yield", NULL, ON_MUTEX, int, (void)) \
	H(sched_yield, "sched_yield", NULL, ON_MUTEX, int, (void)) \
	H(sem_wait, "sem_wait", NULL, ON_MUTEX, int, (sem_t *s)) \
	H(sem_timedwait, "sem_timedwait", NULL, ON_MUTEX, int, (sem_t *s, const struct timespec *until)) \
	H(sem_clockwait, "sem_clockwait", NULL, ON_MUTEX, int, (sem_t *s, clockid_t clock, const struct timespec *until)) \
	H(sem_trywait, "sem_trywait", NULL, ON_MUTEX, int, (sem_t *s)) \
	H(cond_wait, "pthread_cond_wait", COND_VERSION, ON_MUTEX | ON_GIL, int, (pthread_cond_t *c, pthread_mutex_t *m)) \
	H(cond_timedwait, "pthread_cond_timedwait", COND_VERSION, ON_MUTEX | ON_GIL, int, (pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until)) \
	H(cond_clockwait, "pthread_cond_clockwait", NULL, ON_MUTEX, int, (pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock, const struct timespec *until)) \
	H(cond_signal, "pthread_cond_signal", COND_VERSION, ON_GIL, int, (pthread_cond_t *c)) \
	H(testcancel, "pthread_testcancel", NULL, 0, void, (void))

#define HOOKS_MEMORY(H) \
	H(malloc, "malloc", NULL, ON_MEMORY, void *, (size_t bytes)) \
	H(calloc, "calloc", NULL, ON_MEMORY, void *, (size_t count, size_t size)) \
	H(realloc, "realloc", NULL, ON_MEMORY, void *, (void *old, size_t bytes)) \
	H(reallocarray, "reallocarray", NULL, ON_MEMORY, void *, (void *old, size_t count, size_t size)) \
	H(free, "free", NULL, ON_MEMORY, void, (void *block)) \
	H(memalign, "memalign", NULL, ON_MEMORY, void *, (size_t align, size_t bytes)) \
	H(aligned_alloc, "aligned_alloc", NULL, ON_MEMORY, void *, (size_t align, size_t bytes)) \
	H(posix_memalign, "posix_memalign", NULL, ON_MEMORY, int, (void **block, size_t align, size_t bytes)) \
	H(valloc, "valloc", NULL, ON_MEMORY, void *, (size_t bytes)) \
	H(pvalloc, "pvalloc", NULL, ON_MEMORY, void *, (size_t bytes)) \
	H(malloc_usable_size, "malloc_usable_size", NULL, 0, size_t, (void *block)) \
	H(mmap, "mmap", NULL, ON_MEMORY, void *, (void *at, size_t bytes, int prot, int flags, int fd, off_t offset)) \
	H(mmap64, "mmap64", NULL, ON_MEMORY, void *, (void *at, size_t bytes, int prot, int flags, int fd, off64_t offset)) \
	H(munmap, "munmap", NULL, ON_MEMORY, int, (void *at, size_t bytes)) \
	H(mremap, "mremap", NULL, ON_MEMORY, void *, (void *old, size_t old_bytes, size_t bytes, int flags, ...))

/* operator new and delete as C++ names them on 64-bit machines */
#define HOOKS_NEW(H) \
	H(op_new, "_Znwm", NULL, ON_MEMORY_NEW, void *, (size_t bytes)) \
	H(op_new_array, "_Znam", NULL, ON_MEMORY_NEW, void *, (size_t bytes)) \
	H(op_new_nothrow, "_ZnwmRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void *, (size_t bytes, const void *nothrow)) \
	H(op_new_array_nothrow, "_ZnamRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void *, (size_t bytes, const void *nothrow)) \
	H(op_new_align, "_ZnwmSt11align_val_t", NULL, ON_MEMORY_NEW, void *, (size_t bytes, size_t align)) \
	H(op_new_array_align, "_ZnamSt11align_val_t", NULL, ON_MEMORY_NEW, void *, (size_t bytes, size_t align)) \
	H(op_new_align_nothrow, "_ZnwmSt11align_val_tRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void *, \
	  (size_t bytes, size_t align, const void *nothrow)) \
	H(op_new_array_align_nothrow, "_ZnamSt11align_val_tRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void *, \
	  (size_t bytes, size_t align, const void *nothrow)) \
	H(op_delete, "_ZdlPv", NULL, ON_MEMORY_NEW, void, (void *block)) \
	H(op_delete_array, "_ZdaPv", NULL, ON_MEMORY_NEW, void, (void *block)) \
	H(op_delete_size, "_ZdlPvm", NULL, ON_MEMORY_NEW, void, (void *block, size_t bytes)) \
	H(op_delete_array_size, "_ZdaPvm", NULL, ON_MEMORY_NEW, void, (void *block, size_t bytes)) \
	H(op_delete_nothrow, "_ZdlPvRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void, (void *block, const void *nothrow)) \
	H(op_delete_array_nothrow, "_ZdaPvRKSt9nothrow_t", NULL, ON_MEMORY_NEW, void, (void *block, const void *nothrow)) \
	H(op_delete_align, "_ZdlPvSt11align_val_t", NULL, ON_MEMORY_NEW, void, (void *block, size_t align)) \
	H(op_delete_array_align, "_ZdaPvSt11align_val_t", NULL, ON_MEMORY_NEW, void, (void *block, size_t align)) \
	H(op_delete_size_align, "_ZdlPvmSt11align_val_t", NULL, ON_MEMORY_NEW, void, (void *block, size_t bytes, size_t align)) \
	H(op_delete_array_size_align, "_ZdaPvmSt11align_val_t", NULL, ON_MEMORY_NEW, void, \
	  (void *block, size_t bytes, size_t align))

/* before the others of their names: of two rows that fit, for callers without versions, the later one is taken */
#if defined(__x86_64__)
#define HOOKS_OLD_CONDS(H) \
	H(old_cond_wait, "pthread_cond_wait", "GLIBC_2.2.5", ON_MUTEX, int, (pthread_cond_t *c, pthread_mutex_t *m)) \
	H(old_cond_timedwait, "pthread_cond_timedwait", "GLIBC_2.2.5", ON_MUTEX, int, \
	  (pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until))
#else
#define HOOKS_OLD_CONDS(H)
#endif
/* clang-format on */

#define HOOKS(H) HOOKS_IO(H) HOOKS_OLD_CONDS(H) HOOKS_LOCK(H) HOOKS_MEMORY(H) HOOKS_NEW(H)

#endif
