/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading and writing whole buffers on plain descriptors: short counts and EINTR are dealt with here and nowhere else.
 * No stdio, no allocation, no lock. Called by spool/, the log and the sockets.
 */
#ifndef SAFE_RAWIO_H
#define SAFE_RAWIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/** sys_write_all - Return: 0 when all @bytes were written, else -errno (-EIO for a write of 0). Context: hook. */
int sys_write_all(int fd, const void *data, size_t bytes);

/** sys_pwrite_all - the same at an offset; the file position stays. Context: hook. */
int sys_pwrite_all(int fd, const void *data, size_t bytes, uint64_t offset);

/** sys_pread_all - Return: bytes read, fewer than @bytes only at the end of the file, or -errno. Context: hook. */
ssize_t sys_pread_all(int fd, void *data, size_t bytes, uint64_t offset);

/**
 * sys_read_file - content of a small file (/proc, sysfs), cut at @room - 1 and terminated
 *
 * Context: hook. Return: bytes, or -errno; @text is "" then.
 */
ssize_t sys_read_file(const char *path, char *text, size_t room);

/**
 * sys_keep_apart - our threads share the host's descriptor table: sys_open_apart() uses numbers from @first on
 *
 * Context: thread.
 */
void sys_keep_apart(int first);

/**
 * sys_open_apart, sys_openat_apart - open a file out of the host's way
 *
 * A host may close numbers that it does not know, and its next files get the lowest free ones. In a shared table a low
 * number of ours is soon another file, a high one is just closed. So the descriptor is moved up, and is compared with
 * what the path names: one that the host got hold of meanwhile is neither used nor closed. Without sys_keep_apart() these
 * are open() and openat().
 * Context: hook. Return: descriptor, or -1 with errno; EBADF: lost to the host, a new file is there and empty.
 */
int sys_open_apart(const char *path, int flags, mode_t mode);
int sys_openat_apart(int dir, const char *path, int flags, mode_t mode);

/**
 * sys_fstat, sys_lstat, sys_stat - as the C library's, by system call
 *
 * The library's own are GLIBC_2.33 symbols when built on a new distribution, which would tie the agent to it.
 * Context: hook. Return: 0 or -errno.
 */
int sys_fstat(int fd, struct stat *st);
int sys_lstat(const char *path, struct stat *st);
int sys_stat(const char *path, struct stat *st);

/**
 * sys_dir_each - names in a directory, without the allocation of opendir
 * @dir: descriptor opened with O_DIRECTORY, at its beginning
 * @visit: called for each name but "." and ".."; not 0 ends the walk
 *
 * Context: thread. Return: 0, what @visit returned, or -errno.
 */
int sys_dir_each(int dir, int (*visit)(void *ctx, const char *name, uint64_t inode), void *ctx);

#endif
