/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Names of output files; see out_name.h. */
#include "spool/out_name.h"
#include "base/fault.h"
#include "safe/rawio.h"
#include "spool/whose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#define NAME_TRIES 8
#define EMPTY_QUIET_S 10 /* a file is empty for as long as its first batch takes */

int out_rename(const char *from, const char *to)
{
	struct stat st;

	if (FAULT("name.rename"))
		return -errno;
	if (!syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	/* NFS and old kernels: a hard link does not replace either */
	if (!link(from, to))
		return unlink(from) ? -errno : 0;
	if (errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK)
		return -errno;
	if (sys_lstat(to, &st) == 0)
		return -EEXIST;
	return rename(from, to) ? -errno : 0;
}

/* <path>.<unix time of its last write>, or with -1, -2 ... when that is taken; the sidecar of a CSV goes with it. */
static int move_aside(const char *path, struct st_err *err)
{
	char aside[POOL_PATH + 32], from[POOL_PATH + 16], to[POOL_PATH + 48];
	struct stat st;
	int i, ret;

	ret = sys_lstat(path, &st);
	for (i = 0; ret == 0 && i < NAME_TRIES; i++) {
		int n = snprintf(aside, sizeof(aside), "%s.%lld", path, (long long)st.st_mtim.tv_sec);

		if (i)
			snprintf(aside + n, sizeof(aside) - (size_t)n, "-%d", i);
		ret = out_rename(path, aside);
		if (ret != -EEXIST)
			break;
		ret = i + 1 < NAME_TRIES ? 0 : ret;
	}
	if (ret == -ENOENT)
		return 0;
	if (ret < 0)
		return err_set(err, ret, "cannot move %s aside: %s", path, strerror(-ret));
	snprintf(from, sizeof(from), "%s.meta.json", path);
	snprintf(to, sizeof(to), "%s.meta.json", aside);
	out_rename(from, to);
	return 0;
}

/* Return: 0, or what kept the last of them from being made: more to the point than that it is missing. */
static int make_parents(char *path)
{
	int ret = 0;
	char *at;

	for (at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = 0;
		ret = mkdir(path, 0755) && errno != EEXIST ? -errno : 0;
		*at = '/';
	}
	return ret;
}

static int note_identity(struct out_name *name, int fd)
{
	struct stat st;
	int ret = sys_fstat(fd, &st);

	if (ret < 0)
		return ret;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	name->dev = st.st_dev;
	name->ino = st.st_ino;
	name->size = (uint64_t)st.st_size;
	name->planted = st.st_uid != geteuid() || st.st_nlink != 1;
	return 0;
}

static int create(struct out_name *name, struct st_err *err)
{
	int fd, ret, why = make_parents(name->path);

	fd = FAULT("name.create")
		     ? -1
		     : sys_open_apart(name->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0 && errno == EEXIST)
		return -EEXIST;
	if (fd < 0 && errno == EBADF) {
		unlink(name->path); /* made and lost again at once: nobody's, and empty */
		return err_set(err, -EBADF, "the program closed the descriptor of %s", name->path);
	}
	if (fd < 0) {
		ret = errno == ENOENT && why ? why : -errno;
		return err_set(err, ret, "cannot create %s: %s", name->path, strerror(-ret));
	}
	ret = note_identity(name, fd);
	if (ret < 0) {
		close(fd);
		return err_set(err, ret, "cannot stat %s: %s", name->path, strerror(-ret));
	}
	return fd;
}

int out_name_afresh(struct out_name *name, struct st_err *err)
{
	int ret = move_aside(name->path, err);

	return ret < 0 ? ret : create(name, err);
}

enum verdict { FILE_EMPTY, FILE_OURS, FILE_EARLIER, FILE_OTHER_HOST, FILE_LIVE };

static enum verdict judge(struct out_name *name, int fd)
{
	const struct out_place *place = name->place;
	struct whose whose;

	if (!name->size && !place->owner_dead && name->ino != name->known_ino && whose_fresh(name->path, EMPTY_QUIET_S))
		return FILE_LIVE;
	if (!name->size) /* an empty one that somebody else put there would make our records theirs */
		return name->planted ? FILE_EARLIER : FILE_EMPTY;
	if (whose_file(fd, name->path, &whose) < 0 || !whose.known)
		return FILE_EARLIER;
	if (whose.host[0] && strcmp(whose.host, place->host) != 0)
		return FILE_OTHER_HOST;
	if (whose.pid != place->pid || whose.proc_start != place->proc_start ||
	    strcmp(whose.boot_id, place->boot_id) != 0)
		return whose_writes(name->path, &whose) ? FILE_LIVE : FILE_EARLIER;
	if (name->ino != name->known_ino)
		return FILE_EARLIER; /* from before an exec */
	name->wall_minus_mono_ns = whose.wall_minus_mono_ns;
	return FILE_OURS;
}

/* Open or create name->path, whose lock we have. -EXDEV: another host's; -EBUSY: a live process's. */
static int open_or_create(struct out_name *name, struct st_err *err)
{
	int fd, ret;

	fd = FAULT("name.open") ? -1 : sys_open_apart(name->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
	if (fd < 0 && errno == ENOENT)
		return create(name, err);
	if (fd < 0)
		return errno == ELOOP || errno == EISDIR
			       ? out_name_afresh(name, err)
			       : err_set(err, -errno, "cannot open %s: %s", name->path, strerror(errno));
	ret = note_identity(name, fd);
	switch (ret < 0 ? FILE_EARLIER : judge(name, fd)) {
	case FILE_EMPTY:
	case FILE_OURS:
		return fd;
	case FILE_OTHER_HOST:
		close(fd);
		return -EXDEV;
	case FILE_LIVE:
		close(fd);
		return -EBUSY;
	case FILE_EARLIER:
		break;
	}
	close(fd);
	return out_name_afresh(name, err);
}

/* Own the lock of name->path; the lock held before is given back when it was another name's. */
static int own(struct out_name *name, char *locked, char *lock, int *lock_fd)
{
	char fresh[POOL_PATH];
	int fd, ret;

	if (!name->place->lock_base[0] || !strcmp(locked, name->path))
		return 0;
	ret = lock_take(name->place->lock_base, name->path, name->place->keep_open, fresh, sizeof(fresh), &fd);
	if (ret == -EBUSY)
		return ret;
	if (ret < 0)
		return 0; /* no locks to be had (spool gone): the names still keep runs and hosts apart */
	lock_drop(lock, *lock_fd);
	snprintf(locked, POOL_PATH, "%s", name->path);
	snprintf(lock, POOL_PATH, "%s", fresh);
	*lock_fd = fd;
	return 0;
}

int out_name_open(struct out_name *name, char *locked, char *lock, int *lock_fd, struct st_err *err)
{
	const struct out_place *place = name->place;
	bool with_host = false, with_pid = false, with_start = false;
	int i, ret = -EBUSY;

	for (i = 0; i < NAME_TRIES; i++) {
		char pid[48] = "";

		if (with_start) /* two containers of one host name, both pid 1 */
			snprintf(pid, sizeof(pid), "-%u-%llu", place->pid, (unsigned long long)place->proc_start);
		else if (with_pid)
			snprintf(pid, sizeof(pid), "-%u", place->pid);
		if (snprintf(name->path, sizeof(name->path), "%s/%s%s%s%s%s", place->dump_path, name->stem,
			     with_host ? "-" : "", with_host ? place->host : "", pid,
			     name->suffix) >= (int)sizeof(name->path) - 40)
			return err_set(err, -ENAMETOOLONG, "%s: path too long", place->dump_path);
		ret = own(name, locked, lock, lock_fd);
		if (ret == 0)
			ret = open_or_create(name, err);
		if (ret >= 0)
			return ret;
		if (ret == -EXDEV && !with_host)
			with_host = true;
		else if ((ret == -EBUSY || ret == -EXDEV) && !with_pid)
			with_pid = true;
		else if ((ret == -EBUSY || ret == -EXDEV) && !with_start)
			with_start = true;
		else if (ret != -EEXIST) /* lost a race for the name: look again */
			break;
	}
	return ret == -EBUSY || ret == -EXDEV || ret == -EEXIST
		       ? err_set(err, ret, "%s belongs to another live process", name->path)
		       : ret;
}
