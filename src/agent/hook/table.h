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
/* clang-format on */

#define HOOKS(H) HOOKS_IO(H)

#endif
