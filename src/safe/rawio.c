/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Whole reads and writes; see rawio.h. errno is left as the last call set it; hooks save it around what they do. */
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int sys_write_all(int fd, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = write(fd, at, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int sys_pwrite_all(int fd, const void *data, size_t bytes, uint64_t offset)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = pwrite(fd, at, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		offset += (uint64_t)n;
		bytes -= (size_t)n;
	}
	return 0;
}

ssize_t sys_pread_all(int fd, void *data, size_t bytes, uint64_t offset)
{
	char *at = data;
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, at + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

ssize_t sys_read_file(const char *path, char *text, size_t room)
{
	size_t done = 0;
	ssize_t n = 0;
	int fd;

	text[0] = 0;
	fd = sys_open_apart(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	while (done < room - 1) {
		n = read(fd, text + done, room - 1 - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (n < 0) {
		n = -errno;
		done = 0;
	}
	close(fd);
	text[done] = 0;
	return n < 0 ? n : (ssize_t)done;
}

/* On the 64-bit machines we build for, the kernel's struct stat is the C library's. */
_Static_assert(sizeof(long) == 8, "64-bit machines only");

static int stat_at(int dir, const char *path, struct stat *st, int flags)
{
	return syscall(SYS_newfstatat, dir, path, st, flags) ? -errno : 0;
}

int sys_fstat(int fd, struct stat *st)
{
	return stat_at(fd, "", st, AT_EMPTY_PATH);
}

int sys_lstat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int sys_stat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, 0);
}

static _Atomic int apart_from; /* 0 = our threads have a table of their own */

void sys_keep_apart(int first)
{
	atomic_store_explicit(&apart_from, first, memory_order_relaxed);
}

static bool is_file(int fd, const struct stat *want)
{
	struct stat st;

	return !sys_fstat(fd, &st) && st.st_ino == want->st_ino && st.st_dev == want->st_dev;
}

/* @fd to @first or above; -1 with EBADF when one of the two is not @want any more. */
static int move_up(int fd, int first, const struct stat *want)
{
	int moved = is_file(fd, want) ? (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first) : -1;

	if (moved >= 0 && is_file(moved, want)) {
		if (is_file(fd, want))
			close(fd);
		return moved;
	}
	if (moved >= 0)
		close(moved);
	else if (is_file(fd, want))
		return fd; /* all those numbers are taken: the limit is low */
	errno = EBADF;
	return -1;
}

int sys_openat_apart(int dir, const char *path, int flags, mode_t mode)
{
	int first = atomic_load_explicit(&apart_from, memory_order_relaxed);
	int fd = openat(dir, path, flags, mode);
	struct stat want;

	if (!first || fd < 0 || fd >= first)
		return fd;
	if (stat_at(dir, path, &want, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0)) {
		errno = EBADF;
		return -1;
	}
	return move_up(fd, first, &want);
}

int sys_open_apart(const char *path, int flags, mode_t mode)
{
	return sys_openat_apart(AT_FDCWD, path, flags, mode);
}

struct linux_dirent64 {
	uint64_t d_ino;
	int64_t d_off;
	unsigned short d_reclen;
	unsigned char d_type;
	char d_name[];
};

int sys_dir_each(int dir, int (*visit)(void *ctx, const char *name, uint64_t inode), void *ctx)
{
	char buf[4096] __attribute__((aligned(8)));
	long n, at;
	int ret = 0;

	while (ret == 0 && (n = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
		for (at = 0; at < n && ret == 0;) {
			const struct linux_dirent64 *entry = (const struct linux_dirent64 *)(buf + at);

			at += entry->d_reclen;
			if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
				ret = visit(ctx, entry->d_name, entry->d_ino);
		}
	}
	return ret ? ret : n < 0 ? -errno : 0;
}
