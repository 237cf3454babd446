/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Output files: appending, committing, segments; see out.h. Their names are found in out_name.c. */
#include "spool/out.h"
#include "base/fault.h"
#include "safe/rawio.h"
#include "spool/out_name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 1
#endif

void out_init(struct out *o, const struct out_place *place, struct pool_header *head, uint32_t index,
	      size_t (*tail)(const void *ctx, char *text), const void *tail_ctx)
{
	memset(o, 0, sizeof(*o));
	o->place = place;
	o->head = head;
	o->index = index;
	o->tail = tail;
	o->tail_ctx = tail_ctx;
	o->fd = -1;
	o->lock_fd = -1;
}

static void say(const struct out *o, const char *what)
{
	char text[POOL_PATH + 80];

	snprintf(text, sizeof(text), "%s %s", o->path, what);
	o->place->say(o->place->say_ctx, text);
}

/* --- the row in the pool's header: valid exactly while path[0] is set ------------------------------------------------- */

static void slot_clear(struct out *o)
{
	__atomic_store_n(&o->head->files[o->index].path[0], 0, __ATOMIC_SEQ_CST);
}

static void slot_publish(struct out *o)
{
	struct pool_file *slot = &o->head->files[o->index];

	slot_clear(o);
	o->head->commits[0].length[o->index] = o->committed;
	o->head->commits[1].length[o->index] = o->committed;
	slot->segment = o->segment;
	slot->ino = o->ino;
	slot->dev = o->dev;
	slot->wall_minus_mono_ns = o->wall_minus_mono_ns;
	snprintf(slot->path + 1, sizeof(slot->path) - 1, "%s", o->path + 1);
	__atomic_store_n(&slot->path[0], o->path[0], __ATOMIC_SEQ_CST);
}

/* --- opening -------------------------------------------------------------------------------------------------------- */

/* Where the body of an existing file of ours ends. -EBADMSG: it can't be continued. */
static int find_end(struct out *o, uint64_t size, bool format_json)
{
	char text[4096];
	size_t want = size < sizeof(text) ? (size_t)size : sizeof(text);
	ssize_t n = sys_pread_all(o->fd, text, want, size - want);
	ssize_t at;

	if (n != (ssize_t)want)
		return n < 0 ? (int)n : -EBADMSG;
	if (!o->tail) {
		o->length = size;
		return 0;
	}
	for (at = n - 2; format_json && at > 0; at--) {
		if (text[at] != '\n' || text[at + 1] != ']')
			continue;
		o->length = size - want + (uint64_t)at;
		o->elements = text[at - 1] != '[';
		return 0;
	}
	return -EBADMSG;
}

int out_open(struct out *o, const char *stem, const char *suffix, bool format_json, struct st_err *err)
{
	struct out_name name = {
		.place = o->place,
		.stem = stem,
		.suffix = suffix,
		.known_ino = o->head->files[o->index].ino,
	};
	uint64_t size;
	int ret;

	ret = out_name_open(&name, o->locked, o->lock, &o->lock_fd, err);
	if (ret < 0)
		return ret;
	o->fd = ret;
	o->length = o->used = 0;
	o->elements = false;
	o->torn = false;
	size = name.size;
	if (size && find_end(o, size, format_json) < 0) {
		close(o->fd);
		o->fd = out_name_afresh(&name, err);
		if (o->fd < 0)
			return o->fd;
		size = 0;
		o->elements = false;
	}
	snprintf(o->path, sizeof(o->path), "%s", name.path);
	o->dev = name.dev;
	o->ino = name.ino;
	o->committed = o->length;
	o->committed_elements = o->elements;
	o->end = size;
	o->live = true;
	o->wall_minus_mono_ns = name.wall_minus_mono_ns;
	slot_publish(o);
	return size ? OUT_OURS : OUT_NEW;
}

void out_offset(struct out *o, int64_t wall_minus_mono_ns)
{
	o->wall_minus_mono_ns = wall_minus_mono_ns;
	o->head->files[o->index].wall_minus_mono_ns = wall_minus_mono_ns;
	o->head->wall_minus_mono_ns = wall_minus_mono_ns;
}

/* Open @path if it is the file of the header's row. */
static int open_row(struct out *o, const struct pool_file *slot, const char *path)
{
	struct stat st;
	int fd = FAULT("out.adopt") ? -1 : open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return -errno;
	if (sys_fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_ino != slot->ino) {
		close(fd);
		return -ENOENT;
	}
	snprintf(o->path, sizeof(o->path), "%s", path);
	o->dev = st.st_dev;
	o->ino = st.st_ino;
	o->end = (uint64_t)st.st_size;
	return fd;
}

/* A file that was moved aside, or became a closed segment, since its process died: same directory, same inode. */
struct moved {
	const char *base;
	uint64_t ino;
	char name[256];
};

static int look_for(void *ctx, const char *name, uint64_t inode)
{
	struct moved *m = ctx;

	if (inode != m->ino || strncmp(name, m->base, strlen(m->base)) != 0)
		return 0;
	snprintf(m->name, sizeof(m->name), "%s", name);
	return 1;
}

static int open_moved(struct out *o, const struct pool_file *slot, const char *path)
{
	struct moved m = { .ino = slot->ino };
	char dir[POOL_PATH], found[POOL_PATH + 260];
	int fd, ret;

	snprintf(dir, sizeof(dir), "%s", path);
	m.base = strrchr(path, '/') + 1;
	dir[m.base - path] = 0;
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = sys_dir_each(fd, look_for, &m);
	close(fd);
	if (ret <= 0)
		return ret ? ret : -ENOENT;
	if (snprintf(found, sizeof(found), "%s%s", dir, m.name) >= POOL_PATH)
		return -ENAMETOOLONG;
	return open_row(o, slot, found);
}

int out_adopt(struct out *o, uint64_t length, struct st_err *err)
{
	const struct pool_file *slot = &o->head->files[o->index];
	char path[POOL_PATH];
	char last = 0;
	int fd, ret;

	snprintf(path, sizeof(path), "%.*s", POOL_PATH - 1,
		 slot->path); /* perhaps without an end: the pool may be damaged */
	if (path[0] != '/')
		return err_set(err, -EBADMSG, "the pool names no file");
	fd = open_row(o, slot, path);
	if (fd == -ENOENT)
		fd = open_moved(o, slot, path);
	if (fd < 0)
		return err_set(err, fd, "%s is not there any more: %s", path, strerror(-fd));
	if (o->end < length) {
		close(fd);
		return err_set(err, -EBADMSG, "%s has %llu bytes, %llu were written", path, (unsigned long long)o->end,
			       (unsigned long long)length);
	}
	if (length && sys_pread_all(fd, &last, 1, length - 1) != 1)
		last = 0;
	o->fd = fd;
	o->segment = slot->segment;
	o->wall_minus_mono_ns = slot->wall_minus_mono_ns;
	o->committed = length;
	o->committed_elements = last != '[';
	o->live = o->torn = true;
	ret = out_rollback(o);
	return ret < 0 ? err_set(err, ret, "cannot cut %s to %llu bytes: %s", path, (unsigned long long)length,
				 strerror(-ret))
		       : 0;
}

static void leave(struct out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
	o->live = false;
	o->used = 0;
	if (!o->torn) /* else recover has to cut it */
		slot_clear(o);
	o->torn = false;
}

/* In a shared table: is the file where it was, so that it is the descriptor that is the host's by now? */
static bool descriptor_lost(const struct out *o)
{
	struct stat st;

	return !o->place->keep_open && !sys_lstat(o->path, &st) && st.st_ino == o->ino && st.st_dev == o->dev;
}

int out_reopen(struct out *o, struct st_err *err)
{
	struct stat st;
	int ret;

	if (!o->live)
		return 0;
	if (o->fd < 0)
		o->fd = FAULT("out.reopen") ? -1 : sys_open_apart(o->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
	ret = o->fd < 0 ? -errno : sys_fstat(o->fd, &st);
	if ((ret == 0 && st.st_ino != o->ino && descriptor_lost(o)) || ret == -EBADF) {
		o->fd = -1;
		return err_set(err, -EBADF, "the program closed the descriptor of %s", o->path);
	}
	if (ret == -ENOENT || ret == -ESTALE || ret == -ENOTDIR ||
	    (ret == 0 && (st.st_nlink == 0 || st.st_ino != o->ino))) {
		say(o, "is gone; a new file is begun");
		leave(o);
		return -ESTALE;
	}
	if (ret < 0)
		return err_set(err, ret, "cannot open %s: %s", o->path, strerror(-ret));
	if (o->torn) {
		ret = out_rollback(o);
		if (ret < 0)
			return err_set(err, ret, "cannot cut %s back: %s", o->path, strerror(-ret));
	}
	return 0;
}

/* --- appending ------------------------------------------------------------------------------------------------------ */

int out_put(struct out *o, const void *data, size_t bytes)
{
	int ret;

	if (bytes > OUT_WRITE - OUT_TAIL)
		return -EMSGSIZE;
	if (o->committed && o->length + o->used + bytes + OUT_TAIL > o->place->segment_bytes)
		return -EFBIG;
	if (o->used + bytes > OUT_WRITE - OUT_TAIL) {
		ret = out_write(o);
		if (ret < 0)
			return ret;
	}
	memcpy(o->buf + o->used, data, bytes);
	o->used += bytes;
	return 0;
}

/* Space for a file that ends at @to, before its tail is overwritten: a full disk must not leave it without one. */
static int reserve(struct out *o, uint64_t to)
{
	static const char blank[OUT_WRITE] = { [0 ... OUT_WRITE - 1] = '\n' };
	int ret;

	if (to <= o->end)
		return 0;
	if (!FAULT("out.fallocate") && !fallocate(o->fd, FALLOC_FL_KEEP_SIZE, (off_t)o->end, (off_t)(to - o->end)))
		return 0;
	if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
		return -errno;
	/* blanks after the closing bracket keep the file whole */
	ret = sys_pwrite_all(o->fd, blank, (size_t)(to - o->end), o->end);
	if (ret == 0)
		o->end = to;
	return ret;
}

/* Between open and write the host may have closed our descriptor and got the number for a file of its own. */
static int still_ours(struct out *o)
{
	struct stat st;

	if (o->place->keep_open)
		return 0;
	if (!sys_fstat(o->fd, &st) && st.st_ino == o->ino && st.st_dev == o->dev)
		return 0;
	o->fd = -1; /* not ours to close */
	return -EBADF;
}

int out_write(struct out *o)
{
	size_t tail = o->tail ? o->tail(o->tail_ctx, (char *)o->buf + o->used) : 0;
	int ret;

	if (!o->used)
		return 0;
	ret = still_ours(o);
	if (ret < 0)
		return ret;
	o->torn = true; /* until the write is known to be whole */
	if (tail)
		ret = reserve(o, o->length + o->used + tail);
	if (ret == 0)
		ret = FAULT("out.write") ? -errno : sys_pwrite_all(o->fd, o->buf, o->used + tail, o->length);
	if (ret < 0)
		return ret;
	o->torn = false;
	o->length += o->used;
	o->used = 0;
	o->end = o->length + tail;
	return 0;
}

void out_commit(struct out *o)
{
	o->committed = o->length;
	o->committed_elements = o->elements;
}

int out_rollback(struct out *o)
{
	char tail[OUT_TAIL];
	size_t n;
	int ret;

	o->used = 0;
	if (!o->live || (!o->torn && o->committed && o->length == o->committed))
		return 0;
	o->torn = true;
	if (o->fd < 0)
		return -EBADF;
	ret = still_ours(o);
	if (ret < 0)
		return ret;
	if (FAULT("out.truncate") || ftruncate(o->fd, (off_t)o->committed))
		return -errno;
	o->length = o->end = o->committed;
	o->elements = o->committed_elements;
	if (!o->committed) {
		/* begun in this batch: without its head it is nobody's */
		unlink(o->path);
		leave(o);
		return 0;
	}
	n = o->tail ? o->tail(o->tail_ctx, tail) : 0;
	ret = FAULT("out.tail") ? -errno : sys_pwrite_all(o->fd, tail, n, o->committed);
	if (ret < 0)
		return ret;
	o->end += n;
	o->torn = false;
	return 0;
}

void out_rest(struct out *o)
{
	if (o->fd < 0 || o->place->keep_open)
		return;
	close(o->fd);
	o->fd = -1;
}

/* --- segments ------------------------------------------------------------------------------------------------------- */

static int segment_path(const struct out *o, uint32_t n, const char *more, char *path, size_t room)
{
	return snprintf(path, room, "%s.%u%s", o->path, n, more) < (int)room ? 0 : -ENAMETOOLONG;
}

int out_rotate(struct out *o, struct st_err *err)
{
	char closed[POOL_PATH], from[POOL_PATH], to[POOL_PATH];
	uint32_t n = o->segment;
	int ret;

	if (!o->live)
		return 0;
	ret = o->torn ? out_rollback(o) : 0;
	if (ret < 0)
		return err_set(err, ret, "cannot cut %s back: %s", o->path, strerror(-ret));
	if (!o->live)
		return 0; /* nothing was in it */
	slot_clear(o); /* all is committed: whoever recovers from here on has nothing to cut */
	do {
		ret = segment_path(o, ++n, "", closed, sizeof(closed));
		if (ret == 0)
			ret = out_rename(o->path, closed);
	} while (ret == -EEXIST);
	if (ret < 0) {
		slot_publish(o);
		return err_set(err, ret, "cannot rename %s to %s: %s", o->path, closed, strerror(-ret));
	}
	if (segment_path(o, n, ".meta.json", to, sizeof(to)) == 0 &&
	    snprintf(from, sizeof(from), "%s.meta.json", o->path) < (int)sizeof(from))
		out_rename(from, to); /* only CSV files have one */
	o->segment = n;
	if (!o->oldest)
		o->oldest = n;
	leave(o);
	return 0;
}

void out_close(struct out *o)
{
	leave(o);
	lock_drop(o->lock, o->lock_fd);
	o->lock[0] = o->locked[0] = 0;
	o->lock_fd = -1;
}

static int64_t file_stat(const char *path, uint64_t *time_ns)
{
	struct stat st;
	int ret = sys_lstat(path, &st);

	if (ret < 0)
		return ret;
	if (time_ns)
		*time_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
	return st.st_size;
}

static int64_t segment_stat(const struct out *o, uint32_t n, uint64_t *time_ns)
{
	char path[POOL_PATH];
	int ret = segment_path(o, n, "", path, sizeof(path));

	return ret < 0 ? ret : file_stat(path, time_ns);
}

/* The oldest file of what was retired: a segment, then the file itself. */
static int past_path(const struct out_past *past, char *path, size_t room)
{
	return past->oldest ? snprintf(path, room, "%s.%u", past->path, past->oldest)
			    : snprintf(path, room, "%s", past->path);
}

static void past_pop(struct out *o)
{
	struct out_past *past = o->past;

	if (past->oldest) {
		past->oldest = past->oldest < past->segment ? past->oldest + 1 : 0;
		return;
	}
	memmove(past, past + 1, --o->past_count * sizeof(*past));
}

void out_retire(struct out *o)
{
	if (!o->past) {
		void *room = mmap(NULL, OUT_PAST * sizeof(*o->past), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		o->past = room == MAP_FAILED ? NULL : room;
	}
	if (o->past && o->past_count == OUT_PAST)
		memmove(o->past, o->past + 1, --o->past_count * sizeof(*o->past)); /* it stays, uncounted */
	if (o->past && o->live) {
		struct out_past *past = &o->past[o->past_count++];

		*past = (struct out_past){ .oldest = o->oldest, .segment = o->segment };
		snprintf(past->path, sizeof(past->path), "%s", o->path);
	}
	o->oldest = o->segment = 0;
	out_close(o);
}

void out_free(struct out *o)
{
	if (o->past)
		munmap(o->past, OUT_PAST * sizeof(*o->past));
	o->past = NULL;
	o->past_count = 0;
}

static uint64_t past_size(const struct out *o)
{
	char path[POOL_PATH + 16];
	uint64_t sum = 0;
	uint32_t i, n;

	for (i = 0; i < o->past_count; i++) {
		struct out_past past = o->past[i];
		int64_t bytes = file_stat(past.path, NULL);

		sum += bytes > 0 ? (uint64_t)bytes : 0;
		for (n = past.oldest; n && n <= past.segment; n++) {
			past.oldest = n;
			past_path(&past, path, sizeof(path));
			bytes = file_stat(path, NULL);
			sum += bytes > 0 ? (uint64_t)bytes : 0;
		}
	}
	return sum;
}

uint64_t out_size(const struct out *o)
{
	uint64_t sum = (o->live ? o->end : 0) + past_size(o);
	uint32_t n;

	for (n = o->oldest; n && n <= o->segment; n++) {
		int64_t bytes = segment_stat(o, n, NULL);

		sum += bytes > 0 ? (uint64_t)bytes : 0;
	}
	return sum;
}

uint64_t out_oldest_time(const struct out *o)
{
	char path[POOL_PATH + 16];
	uint64_t time_ns = 0;

	if (o->past_count) {
		past_path(o->past, path, sizeof(path));
		return file_stat(path, &time_ns) >= 0 ? time_ns : 1; /* gone: off the list first */
	}
	return o->oldest && segment_stat(o, o->oldest, &time_ns) >= 0 ? time_ns : 0;
}

int64_t out_drop_oldest(struct out *o, char *name, size_t room)
{
	char sidecar[POOL_PATH];
	int64_t bytes;

	if (o->past_count) {
		past_path(o->past, name, room);
		bytes = file_stat(name, NULL);
		if (unlink(name) && errno != ENOENT)
			return -errno;
		past_pop(o);
		return bytes > 0 ? bytes : 0;
	}
	if (!o->oldest)
		return 0;
	bytes = segment_stat(o, o->oldest, NULL);
	if (segment_path(o, o->oldest, "", name, room) < 0 || (unlink(name) && errno != ENOENT))
		return -errno;
	if (segment_path(o, o->oldest, ".meta.json", sidecar, sizeof(sidecar)) == 0)
		unlink(sidecar);
	o->oldest = o->oldest < o->segment ? o->oldest + 1 : 0;
	return bytes > 0 ? bytes : 0;
}

int out_replace(const char *path, const void *data, size_t bytes)
{
	char part[POOL_PATH + 8];
	int fd, ret;

	snprintf(part, sizeof(part), "%s.part", path);
	unlink(part);
	fd = FAULT("out.part") ? -1 : sys_open_apart(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	ret = FAULT("out.part_write") ? -errno : sys_write_all(fd, data, bytes);
	close(fd);
	if (ret == 0 && (FAULT("out.part_rename") || rename(part, path)))
		ret = -errno;
	if (ret < 0)
		unlink(part);
	return ret;
}
