/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Folding of Chrome traces; see fold.h. The layout of the files is sink_chrome.c's. */
#include "spool/fold.h"

#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES (1u << 20) /* an Origin is half a KiB */
#define COPY_BYTES (256u << 10)
#define LATE_NS 500000000 /* longer than a writer holds a batch */

static const char begin_origin[] = "\"origin\":[", begin_folded[] = "],\"folded\":[",
		  begin_events[] = "],\"traceEvents\":[\n", tail[] = "\n]}\n";

/* One file, as far as it is needed: {..."origin":[<origins>]<more>,"traceEvents":[\n<body>\n]}\n */
struct part {
	const char *path;
	int fd; /* -1 = not folded */
	struct stat st; /* when it was looked at */
	char *head;
	const char *origins;
	size_t origins_bytes;
	const char *folded; /* names of files that went into it; NULL = none */
	size_t folded_bytes;
	uint64_t body, body_end;
};

static void part_fini(struct part *part)
{
	if (part->fd >= 0)
		close(part->fd);
	part->fd = -1;
	free(part->head);
	part->head = NULL;
}

/* Where the last element ends, in the file as it is now. Return: 0 or -EBADMSG. */
static int find_body_end(struct part *part, uint64_t size)
{
	char text[4096];
	size_t want = size < sizeof(text) ? (size_t)size : sizeof(text);
	ssize_t n = sys_pread_all(part->fd, text, want, size - want), at;

	for (at = n - 2; n == (ssize_t)want && at > 0; at--) {
		if (text[at] != '\n' || text[at + 1] != ']')
			continue;
		part->body_end = size - want + (uint64_t)at;
		return part->body_end >= part->body ? 0 : -EBADMSG;
	}
	return -EBADMSG;
}

/* Return: 0, or -errno: it is left alone. */
static int part_open(struct part *part)
{
	const char *events;
	ssize_t n;

	part->fd = open(part->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (part->fd < 0)
		return -errno;
	if (fstat(part->fd, &part->st))
		return -errno;
	if (!S_ISREG(part->st.st_mode))
		return -EBADMSG;
	part->head = malloc(HEAD_BYTES);
	if (!part->head)
		return -ENOMEM;
	n = sys_pread_all(part->fd, part->head, HEAD_BYTES - 1, 0);
	if (n < 0)
		return (int)n;
	part->head[n] = 0;
	part->origins = strstr(part->head, begin_origin);
	events = strstr(part->head, begin_events);
	if (!part->origins || !events || events < part->origins)
		return -EBADMSG;
	part->origins += sizeof(begin_origin) - 1;
	part->folded = strstr(part->origins, begin_folded);
	if (part->folded && part->folded < events) {
		part->origins_bytes = (size_t)(part->folded - part->origins);
		part->folded += sizeof(begin_folded) - 1;
		part->folded_bytes = (size_t)(events - part->folded);
	} else {
		part->folded = NULL;
		part->origins_bytes = (size_t)(events - part->origins);
	}
	part->body = (uint64_t)(events + sizeof(begin_events) - 1 - part->head);
	return find_body_end(part, (uint64_t)part->st.st_size);
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static int copy(int to, const struct part *part, uint64_t from, uint64_t end)
{
	char *buffer = malloc(COPY_BYTES);
	int ret = buffer ? 0 : -ENOMEM;

	while (ret == 0 && from < end) {
		size_t want = end - from < COPY_BYTES ? (size_t)(end - from) : COPY_BYTES;
		ssize_t n = sys_pread_all(part->fd, buffer, want, from);

		if (n != (ssize_t)want)
			ret = n < 0 ? (int)n : -EIO; /* cut by somebody */
		else
			ret = sys_write_all(to, buffer, want);
		from += want;
	}
	free(buffer);
	return ret;
}

static int put(int fd, const char *text, size_t bytes)
{
	return sys_write_all(fd, text, bytes);
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Names of all files that went into it, now or earlier; then the list of events begins. */
static int put_folded(int fd, const struct part *parts, size_t count)
{
	size_t i, listed = 0;
	int ret = put(fd, begin_folded, sizeof(begin_folded) - 1);

	for (i = 0; i < count && ret == 0; i++) {
		const struct part *part = &parts[i];
		char name[300];
		int n = 0;

		if (part->fd < 0)
			continue;
		if (i)
			n = snprintf(name, sizeof(name), "%s\"%.255s\"", listed++ ? "," : "", base_name(part->path));
		ret = put(fd, name, (size_t)n);
		if (ret == 0 && part->folded_bytes && listed++)
			ret = put(fd, ",", 1);
		if (ret == 0 && part->folded)
			ret = put(fd, part->folded, part->folded_bytes);
	}
	return ret == 0 ? put(fd, begin_events, sizeof(begin_events) - 1) : ret;
}

/* Head of the first file with everybody's origin. */
static int put_head(int fd, const struct part *parts, size_t count)
{
	const struct part *first = &parts[0];
	size_t i;
	int ret = put(fd, first->head, (size_t)(first->origins - first->head) + first->origins_bytes);

	for (i = 1; i < count && ret == 0; i++) {
		if (parts[i].fd < 0)
			continue;
		ret = put(fd, ",", 1);
		if (ret == 0)
			ret = put(fd, parts[i].origins, parts[i].origins_bytes);
	}
	return ret == 0 ? put_folded(fd, parts, count) : ret;
}

static int put_all(int fd, const struct part *parts, size_t count)
{
	bool any = false;
	size_t i;
	int ret = put_head(fd, parts, count);

	for (i = 0; i < count && ret == 0; i++) {
		if (parts[i].fd < 0 || parts[i].body == parts[i].body_end)
			continue;
		if (any)
			ret = put(fd, ",\n", 2);
		if (ret == 0)
			ret = copy(fd, &parts[i], parts[i].body, parts[i].body_end);
		any = true;
	}
	return ret == 0 ? put(fd, tail, sizeof(tail) - 1) : ret;
}

/* ---- the others go ------------------------------------------------------------------------------------------------ */

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Has nobody written to it, or put another one in its place, since it was looked at? */
static bool untouched(const struct part *part)
{
	struct stat now;

	return !lstat(part->path, &now) && same(&now, &part->st);
}

/* What was written into a file that has no name any more: to one of its name again, with a number if it is taken. */
static int keep_late(struct part *part)
{
	uint64_t from = part->body_end;
	char path[4096];
	struct stat now;
	int fd, ret;

	if (fstat(part->fd, &now) || same(&now, &part->st) || find_body_end(part, (uint64_t)now.st_size) < 0 ||
	    part->body_end <= from)
		return 0;
	fd = open(part->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0) {
		snprintf(path, sizeof(path), "%s.%lld", part->path, (long long)time(NULL));
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	}
	if (fd < 0)
		return -errno;
	ret = put(fd, part->head, part->body);
	from += from > part->body; /* its comma; the line break may stay */
	if (ret == 0)
		ret = copy(fd, part, from, part->body_end);
	if (ret == 0)
		ret = put(fd, tail, sizeof(tail) - 1);
	close(fd);
	return ret;
}

static int take_place(const char *made, struct part *parts, size_t count, struct st_err *err)
{
	const struct timespec pause = { .tv_nsec = LATE_NS };
	int folded = 0, ret = 0;
	size_t i;

	for (i = 0; i < count; i++)
		if (parts[i].fd >= 0 && !untouched(&parts[i]))
			return err_set(err, -EBUSY, "%s is being written: it is left as it is", parts[i].path);
	if (rename(made, parts[0].path))
		return err_set(err, -errno, "cannot rename %s to %s: %s", made, parts[0].path, strerror(errno));
	for (i = 1; i < count; i++) {
		if (parts[i].fd < 0)
			continue;
		folded++;
		if (unlink(parts[i].path))
			ret = err_set(err, -errno, "cannot remove %s: %s", parts[i].path, strerror(errno));
	}
	nanosleep(&pause, NULL);
	for (i = 0; i < count; i++) {
		int late = parts[i].fd < 0 ? 0 : keep_late(&parts[i]);

		if (late < 0)
			ret = err_set(err, late, "cannot keep what was written to %s meanwhile: %s", parts[i].path,
				      strerror(-late));
	}
	return ret < 0 ? ret : folded;
}

static int fold(struct part *parts, size_t count, struct st_err *err)
{
	char made[4096];
	size_t i, good = 0;
	int fd, ret;

	for (i = 0; i < count; i++) {
		ret = part_open(&parts[i]);
		if (ret < 0)
			part_fini(&parts[i]);
		if (ret < 0 && i == 0)
			return err_set(err, ret, "cannot fold into %s: %s", parts[0].path,
				       ret == -EBADMSG ? "it is no whole file of ours" : strerror(-ret));
		good += ret == 0;
	}
	if (good < 2)
		return 0;
	if (snprintf(made, sizeof(made), "%s.fold.part", parts[0].path) >= (int)sizeof(made))
		return err_set(err, -ENAMETOOLONG, "%s: the name is too long", parts[0].path);
	unlink(made); /* of one that was killed */
	fd = open(made, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return err_set(err, -errno, "cannot create %s: %s", made, strerror(errno));
	ret = put_all(fd, parts, count);
	if (close(fd) && ret == 0)
		ret = -errno;
	if (ret < 0)
		err_set(err, ret, "cannot write %s: %s", made, strerror(-ret));
	else
		ret = take_place(made, parts, count, err);
	if (ret < 0)
		unlink(made);
	return ret;
}

/* One at a time in a directory. Return: descriptor that holds the lock, -1 = no locks there, or -EBUSY. */
static int lock_directory(const char *path)
{
	char dir[4096];
	int fd;

	snprintf(dir, sizeof(dir), "%.*s", (int)(base_name(path) - path), path);
	fd = open(dir[0] ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB))
		return fd < 0 ? -1 : fd;
	close(fd);
	return errno == EWOULDBLOCK ? -EBUSY : -1;
}

int fold_files(const char *const *paths, size_t count, struct st_err *err)
{
	struct part *parts = calloc(count + 1, sizeof(*parts));
	int lock, ret;
	size_t i;

	if (!parts)
		return err_set(err, -ENOMEM, "out of memory");
	for (i = 0; i < count; i++)
		parts[i] = (struct part){ .path = paths[i], .fd = -1 };
	lock = count ? lock_directory(paths[0]) : -1;
	if (lock == -EBUSY)
		ret = err_set(err, lock, "%s is being folded already", paths[0]);
	else
		ret = count ? fold(parts, count, err) : 0;
	for (i = 0; i < count; i++)
		part_fini(&parts[i]);
	free(parts);
	if (lock >= 0)
		close(lock);
	return ret;
}
