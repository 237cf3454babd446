/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Output files of probes; see out.h. All opening is relative to the dump directory's descriptor and follows no link. */
#include "probe/out.h"
#include "safe/rawio.h"
#include "spool/whose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES 8

void probe_as_user(const struct probe_target *target)
{
	setfsgid(target->gid); /* first: changing it needs the rights that the other one takes away */
	setfsuid(target->uid);
}

void probe_as_root(void)
{
	setfsuid(geteuid());
	setfsgid(getegid());
}

/* --- names ------------------------------------------------------------------------------------------------------------- */

/* The folder of our kind of files. The job may have made it, or another probe. */
static int open_folder(const struct probe_target *target, const char *folder, struct st_err *err)
{
	int fd;

	if (mkdirat(target->dir_fd, folder, 0755) < 0 && errno != EEXIST)
		return err_set(err, -errno, "cannot make %s/%s: %s", target->dump_path, folder, strerror(errno));
	fd = openat(target->dir_fd, folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_set(err, -errno, "cannot open %s/%s: %s", target->dump_path, folder, strerror(errno));
	return fd;
}

static int move_aside(int dir, const char *name, int fd)
{
	char to[320];
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	for (int i = 0; i < TRIES; i++) {
		snprintf(to, sizeof(to), i ? "%s.%lld-%d" : "%s.%lld", name, (long long)st.st_mtim.tv_sec, i);
		if (renameat2(dir, name, dir, to, RENAME_NOREPLACE) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

static bool same_text(struct msg_text text, const char *other)
{
	return strlen(other) == text.bytes && memcmp(text.at, other, text.bytes) == 0;
}

enum standing { STANDS_OURS, STANDS_ASIDE, STANDS_FOREIGN };

/* What is the file that stands there? */
static enum standing judge(int fd, const struct probe_target *target, const char *shown, enum probe_out_mode mode)
{
	const struct msg_origin *origin = &target->origin;
	struct whose whose = { 0 };
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != target->uid || st.st_nlink != 1)
		return STANDS_FOREIGN;
	if (mode == PROBE_OUT_AFRESH)
		return STANDS_ASIDE;
	whose_file(fd, shown, &whose);
	if (!whose.known)
		return STANDS_ASIDE;
	if (origin->host.bytes && !same_text(origin->host, whose.host))
		return STANDS_FOREIGN;
	return whose.pid == origin->pid && whose.proc_start == origin->proc_start &&
			       same_text(origin->boot_id, whose.boot_id)
		       ? STANDS_OURS
		       : STANDS_ASIDE;
}

/* Where the body of a file with a closing text ends. */
static uint64_t body_end(int fd, uint64_t size, const char *tail)
{
	size_t bytes = strlen(tail);
	char text[PROBE_OUT_TAIL];

	if (bytes && size >= bytes && sys_pread_all(fd, text, bytes, size - bytes) == (ssize_t)bytes &&
	    text[0] == tail[0] && text[1] == tail[1])
		return size - bytes;
	return size;
}

static int open_existing(struct probe_out *out, int dir, const char *name, enum probe_out_mode mode)
{
	int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return errno == ENOENT ? -EAGAIN : -EEXIST;
	switch (judge(fd, out->target, out->name, mode)) {
	case STANDS_OURS:
		if (fstat(fd, &st) == 0 && st.st_size > 0) {
			out->at = body_end(fd, (uint64_t)st.st_size, out->tail);
			out->empty = out->at == 0;
			return fd;
		}
		close(fd);
		return -EEXIST;
	case STANDS_ASIDE:
		if (move_aside(dir, name, fd) < 0) {
			close(fd);
			return -EEXIST;
		}
		close(fd);
		return -EAGAIN;
	case STANDS_FOREIGN:
		break;
	}
	close(fd);
	return -EEXIST;
}

/* Return: descriptor, -EEXIST = the name is somebody else's, -errno. */
static int open_name(struct probe_out *out, int dir, const char *name, enum probe_out_mode mode)
{
	for (int i = 0; i < TRIES; i++) {
		int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);

		out->at = 0;
		out->empty = true;
		if (fd >= 0 || errno != EEXIST)
			return fd >= 0 ? fd : -errno;
		fd = open_existing(out, dir, name, mode);
		if (fd != -EAGAIN)
			return fd;
	}
	return -EEXIST;
}

/* The documented name, then with the host's name, then with the process's number before the suffix (contract 1). */
static int open_any(struct probe_out *out, int dir, const char *folder, const char *stem, const char *suffix,
		    enum probe_out_mode mode)
{
	const struct msg_origin *origin = &out->target->origin;
	char names[3][192];
	int fd = -EEXIST;

	snprintf(names[0], sizeof(names[0]), "%.100s%s", stem, suffix);
	snprintf(names[1], sizeof(names[1]), "%.100s-%.*s%s", stem,
		 (int)(origin->host.bytes < 64 ? origin->host.bytes : 64), origin->host.at ? origin->host.at : "",
		 suffix);
	snprintf(names[2], sizeof(names[2]), "%.100s-%d%s", stem, (int)out->target->pid, suffix);
	for (int i = 0; i < 3 && fd == -EEXIST; i++) {
		snprintf(out->name, sizeof(out->name), "%.32s/%.191s", folder, names[i]);
		fd = open_name(out, dir, names[i], mode);
	}
	return fd;
}

int probe_out_open(struct probe_out *out, const struct probe_target *target, const char *folder, const char *stem,
		   const char *suffix, const char *tail, enum probe_out_mode mode, struct st_err *err)
{
	int dir, fd;

	out->target = target;
	out->fd = -1;
	out->used = 0;
	out->failed = 0;
	snprintf(out->tail, sizeof(out->tail), "%s", tail ? tail : "");
	probe_as_user(target);
	dir = open_folder(target, folder, err);
	fd = dir < 0 ? dir : open_any(out, dir, folder, stem, suffix, mode);
	if (dir >= 0)
		close(dir);
	probe_as_root();
	if (dir < 0)
		return dir;
	if (fd < 0)
		return err_set(err, fd, "cannot make %s/%s: %s", target->dump_path, out->name, strerror(-fd));
	out->fd = fd;
	return 0;
}

int probe_out_fd(const struct probe_target *target, const char *folder, const char *name, struct st_err *err)
{
	struct probe_out out;
	int ret = probe_out_open(&out, target, folder, name, "", NULL, PROBE_OUT_AFRESH, err);

	return ret < 0 ? ret : out.fd;
}

void probe_out_unmake(const struct probe_target *target, const char *folder, int fd)
{
	char link[40], path[4096], *name;
	struct stat is, was;
	ssize_t bytes;
	int dir;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	bytes = readlink(link, path, sizeof(path) - 1);
	path[bytes > 0 ? bytes : 0] = '\0';
	name = strrchr(path, '/');
	probe_as_user(target);
	dir = name ? open_folder(target, folder, NULL) : -1;
	/* only a name is taken from there: it must be this very file's in our folder */
	if (dir >= 0 && fstat(fd, &was) == 0 && fstatat(dir, name + 1, &is, AT_SYMLINK_NOFOLLOW) == 0 &&
	    is.st_ino == was.st_ino && is.st_dev == was.st_dev)
		unlinkat(dir, name + 1, 0);
	probe_as_root();
	if (dir >= 0)
		close(dir);
	close(fd);
}

/* --- writing ----------------------------------------------------------------------------------------------------------- */

int probe_out_write(struct probe_out *out)
{
	size_t tail = strlen(out->tail), body = out->used;
	int ret;

	if (out->fd < 0)
		return body ? -EBADF : 0;
	if (!body)
		return 0;
	memcpy(out->buf + body, out->tail, tail);
	ret = sys_pwrite_all(out->fd, out->buf, body + tail, out->at);
	out->used = 0;
	out->failed = ret;
	if (ret < 0) {
		out->failures++;
		/* what a full disk took of it goes again, so that the file ends where a message ends */
		(void)!ftruncate(out->fd, (off_t)out->at);
		if (tail)
			(void)sys_pwrite_all(out->fd, out->tail, tail, out->at);
		return ret;
	}
	out->at += body;
	out->bytes += body;
	return 0;
}

int probe_out_put(struct probe_out *out, const void *data, size_t bytes)
{
	int ret = 0;

	if (bytes > PROBE_OUT_WRITE - PROBE_OUT_TAIL)
		return -EMSGSIZE;
	if (out->used + bytes > PROBE_OUT_WRITE - PROBE_OUT_TAIL)
		ret = probe_out_write(out);
	memcpy(out->buf + out->used, data, bytes);
	out->used += bytes;
	return ret;
}

int probe_out_close(struct probe_out *out)
{
	int ret = probe_out_write(out);

	if (out->fd >= 0)
		close(out->fd);
	out->fd = -1;
	return ret;
}
