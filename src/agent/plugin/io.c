/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin IO: the wrappers of file and socket calls, and what switches them. One record a call: how long, how many bytes or
 * which errno, path or peer by the table of descriptors, step and stage. Written down by spool/sink_io.c. Bytes that a
 * mapped file brings in are no calls: they show as page faults elsewhere.
 */
#include "agent/hook/fds.h"
#include "agent/hook/hook.h"
#include "agent/identity.h"
#include "agent/plugin.h"
#include "base/cpulist.h"
#include "base/num.h"
#include "safe/clock.h"
#include "wire/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT PLUGIN_BIT(PLUGIN_IO)
#define PATTERN_MAX 256

/* What wrappers read; a new one is put beside the old one. Whoever still reads the old one finds it terminated. */
struct io_config {
	uint64_t min_ns;
	char pattern[PATTERN_MAX]; /* "" = all */
	bool wild; /* else a path: it and what is below */
};

static struct io_config configs[2];
static _Atomic(const struct io_config *) config = &configs[0];
static uint64_t base_calls; /* when it was switched on */
static bool not_this_rank;

/* --- which records are kept ------------------------------------------------------------------------------------------ */

/* [...] at *at: does it hold the character? Moves *at behind it. */
static bool glob_set(const char **at, char c)
{
	const char *p = *at + 1;
	bool invert = *p == '!' || *p == '^', found = false, first = true;

	for (p += invert; *p && (first || *p != ']'); p++, first = false) {
		if (p[1] == '-' && p[2] && p[2] != ']') {
			found |= c >= p[0] && c <= p[2];
			p += 2;
		} else {
			found |= c == *p;
		}
	}
	*at = *p ? p + 1 : p;
	return found != invert;
}

/* `*` matches any text, slashes too. The text is not terminated. Own code: fnmatch allocates and reads the locale. */
static bool glob_match(const char *pattern, const char *text, size_t len)
{
	const char *star = NULL, *end = text + len, *retry = text;

	while (text < end) {
		const char *next = pattern;
		bool fits = *pattern == '?' || (*pattern && *pattern == *text);

		if (*pattern == '*') {
			star = ++pattern;
			retry = text;
			continue;
		}
		if (*pattern == '[')
			fits = glob_set(&next, *text);
		else
			next++;
		if (fits) {
			pattern = next;
			text++;
		} else if (star) {
			pattern = star;
			text = ++retry;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

static bool name_wanted(const struct io_config *c, const struct fds_name *name)
{
	size_t len;

	if (!c->pattern[0])
		return true;
	if (c->wild)
		return glob_match(c->pattern, name->text, name->bytes);
	len = strlen(c->pattern);
	return name->bytes >= len && !memcmp(name->text, c->pattern, len) &&
	       (name->bytes == len || c->pattern[len - 1] == '/' || name->text[len] == '/');
}

/* --- a record -------------------------------------------------------------------------------------------------------- */

struct io_call {
	enum io_type type;
	int fd;
	uint64_t begin_ns, end_ns;
	int64_t bytes, offset;
};

static void put(const struct io_call *call, const struct fds_name *name)
{
	const struct io_config *c = atomic_load_explicit(&config, memory_order_acquire);
	const struct pool_header *head = agent_place();
	uint64_t room[(sizeof(struct rec_io) + IO_TEXT_MAX + 7) / 8];
	struct rec_io *rec = (struct rec_io *)room;
	uint32_t bytes = (uint32_t)(sizeof(*rec) + name->bytes + 7) & ~7u;

	if (call->end_ns - call->begin_ns < c->min_ns || !name_wanted(c, name))
		return;
	*rec = (struct rec_io){
		.head = { .bytes = (uint16_t)bytes,
			  .type = REC_IO,
			  .flags = head == agent.pool.head ? 0 : STAGE_WORKER,
			  .step = (uint32_t)atomic_load_explicit(&head->step, memory_order_relaxed) + 1 },
		.begin_ns = call->begin_ns,
		.dur_ns = call->end_ns - call->begin_ns,
		.bytes = call->bytes,
		.offset = call->offset,
		.stage_id = atomic_load_explicit(&head->stage_id, memory_order_relaxed),
		.fd = call->fd,
		.type = (uint8_t)call->type,
		.stage = (uint8_t)atomic_load_explicit(&head->stage, memory_order_relaxed),
		.flags = name->kind == FDS_SOCKET ? IO_SOCKET : 0,
		.text_bytes = name->bytes,
	};
	if (name->bytes)
		room[bytes / 8 - 1] = 0; /* the padding behind the text */
	memcpy(rec->text, name->text, name->bytes);
	hook_put(rec, bytes, POOL_SRC_IO);
}

/* 0 = this call is not recorded. */
static inline uint64_t begin(enum hook_id id)
{
	if (!hook_on(BIT))
		return 0;
	hook_count(id);
	return clock_mono_ns();
}

/* Result of a call that moves bytes, or says 0: the bytes, or -errno. */
static inline int64_t outcome(int64_t ret, int error)
{
	return ret < 0 ? -(int64_t)error : ret;
}

/* A call on a descriptor has returned. */
static void by_fd(enum io_type type, uint64_t begin_ns, int fd, int64_t ret, int64_t offset)
{
	int saved = errno;
	struct io_call call = { type, fd, begin_ns, clock_mono_ns(), outcome(ret, saved), offset };
	struct fds_name name;

	hook_depth++;
	fds_get(fd, &name);
	put(&call, &name);
	hook_depth--;
	errno = saved;
}

/* A call on a path has returned. @fd: what it opened, -1 = nothing */
static void by_path(enum io_type type, uint64_t begin_ns, int dir, const char *path, int64_t ret, int fd)
{
	int saved = errno;
	struct io_call call = { type, fd, begin_ns, clock_mono_ns(), ret < 0 ? -(int64_t)saved : 0, -1 };
	struct fds_name name;

	hook_depth++;
	name.kind = FDS_UNKNOWN;
	name.bytes = 0;
	/* a path that the kernel could not read is none that we can */
	if (path && (ret >= 0 || saved != EFAULT))
		fds_path(dir, path, &name);
	if (fd >= 0)
		fds_set(fd, &name);
	put(&call, &name);
	hook_depth--;
	errno = saved;
}

/* A descriptor is about to go: its name is taken along, for the number may be another file's before the call returns. */
static void leave_fd(int fd, struct fds_name *name)
{
	hook_depth++;
	fds_get(fd, name);
	fds_clear(fd);
	hook_depth--;
}

static void by_name(enum io_type type, uint64_t begin_ns, int fd, int64_t ret, const struct fds_name *name)
{
	int saved = errno;
	struct io_call call = { type, fd, begin_ns, clock_mono_ns(), outcome(ret, saved), -1 };

	hook_depth++;
	put(&call, name);
	hook_depth--;
	errno = saved;
}

/* A socket's other end is known from now on, unless it is already. */
static void learn_peer(int fd, const void *peer, uint32_t bytes)
{
	int saved = errno;
	struct fds_name name;

	hook_depth++;
	fds_peer(peer, bytes, &name);
	if (name.bytes)
		fds_set(fd, &name);
	hook_depth--;
	errno = saved;
}

/* --- wrappers: paths ------------------------------------------------------------------------------------------------- */

static mode_t mode_of(int flags, va_list args)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
}

#define OPEN_WRAPPER(id, its_type, dir, params, args)                     \
	int hook_##id params                                              \
	{                                                                 \
		uint64_t begin_ns = begin(HOOK_##id);                     \
		int ret = hook_real.id args;                              \
                                                                          \
		if (begin_ns)                                             \
			by_path(its_type, begin_ns, dir, path, ret, ret); \
		return ret;                                               \
	}
#define OPEN_WRAPPER_MODE(id, dir, params, args)                         \
	int hook_##id params                                             \
	{                                                                \
		uint64_t begin_ns;                                       \
		va_list more;                                            \
		mode_t mode;                                             \
		int ret;                                                 \
                                                                         \
		va_start(more, flags);                                   \
		mode = mode_of(flags, more);                             \
		va_end(more);                                            \
		begin_ns = begin(HOOK_##id);                             \
		ret = hook_real.id args;                                 \
		if (begin_ns)                                            \
			by_path(IO_OPEN, begin_ns, dir, path, ret, ret); \
		return ret;                                              \
	}

OPEN_WRAPPER_MODE(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN_WRAPPER_MODE(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN_WRAPPER_MODE(openat, dir, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
OPEN_WRAPPER_MODE(openat64, dir, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
OPEN_WRAPPER(open_2, IO_OPEN, AT_FDCWD, (const char *path, int flags), (path, flags))
OPEN_WRAPPER(open64_2, IO_OPEN, AT_FDCWD, (const char *path, int flags), (path, flags))
OPEN_WRAPPER(openat_2, IO_OPEN, dir, (int dir, const char *path, int flags), (dir, path, flags))
OPEN_WRAPPER(openat64_2, IO_OPEN, dir, (int dir, const char *path, int flags), (dir, path, flags))
OPEN_WRAPPER(creat, IO_OPEN, AT_FDCWD, (const char *path, mode_t mode), (path, mode))
OPEN_WRAPPER(creat64, IO_OPEN, AT_FDCWD, (const char *path, mode_t mode), (path, mode))

#define PATH_WRAPPER(id, its_type, dir, path, params, args)              \
	int hook_##id params                                             \
	{                                                                \
		uint64_t begin_ns = begin(HOOK_##id);                    \
		int ret = hook_real.id args;                             \
                                                                         \
		if (begin_ns)                                            \
			by_path(its_type, begin_ns, dir, path, ret, -1); \
		return ret;                                              \
	}

PATH_WRAPPER(rename, IO_RENAME, AT_FDCWD, from, (const char *from, const char *to), (from, to))
PATH_WRAPPER(renameat, IO_RENAME, dir, from, (int dir, const char *from, int to_dir, const char *to),
	     (dir, from, to_dir, to))
PATH_WRAPPER(unlink, IO_UNLINK, AT_FDCWD, path, (const char *path), (path))
PATH_WRAPPER(unlinkat, flags &AT_REMOVEDIR ? IO_RMDIR : IO_UNLINK, dir, path, (int dir, const char *path, int flags),
	     (dir, path, flags))
PATH_WRAPPER(remove, IO_REMOVE, AT_FDCWD, path, (const char *path), (path))
PATH_WRAPPER(mkdir, IO_MKDIR, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
PATH_WRAPPER(mkdirat, IO_MKDIR, dir, path, (int dir, const char *path, mode_t mode), (dir, path, mode))
PATH_WRAPPER(rmdir, IO_RMDIR, AT_FDCWD, path, (const char *path), (path))

DIR *hook_opendir(const char *path)
{
	uint64_t begin_ns = begin(HOOK_opendir);
	DIR *dir = hook_real.opendir(path);

	if (begin_ns)
		by_path(IO_OPENDIR, begin_ns, AT_FDCWD, path, dir ? 0 : -1, dir ? dirfd(dir) : -1);
	return dir;
}

int hook_closedir(DIR *dir)
{
	uint64_t begin_ns = begin(HOOK_closedir);
	struct fds_name name;
	int fd, ret;

	if (!begin_ns || !dir)
		return hook_real.closedir(dir);
	fd = dirfd(dir);
	leave_fd(fd, &name);
	ret = hook_real.closedir(dir);
	by_name(IO_CLOSEDIR, begin_ns, fd, ret, &name);
	return ret;
}

/* --- wrappers: descriptors ------------------------------------------------------------------------------------------- */

int hook_close(int fd)
{
	uint64_t begin_ns = begin(HOOK_close);
	struct fds_name name;
	int ret;

	if (!begin_ns)
		return hook_real.close(fd);
	leave_fd(fd, &name);
	ret = hook_real.close(fd);
	by_name(IO_CLOSE, begin_ns, fd, ret, &name);
	return ret;
}

#define FD_WRAPPER(type_returned, id, its_type, offset, params, args) \
	type_returned hook_##id params                                \
	{                                                             \
		uint64_t begin_ns = begin(HOOK_##id);                 \
		type_returned ret = hook_real.id args;                \
                                                                      \
		if (begin_ns)                                         \
			by_fd(its_type, begin_ns, fd, ret, offset);   \
		return ret;                                           \
	}

#define READ_ARGS int fd, void *data, size_t bytes
#define WRITE_ARGS int fd, const void *data, size_t bytes
#define IOV_ARGS int fd, const struct iovec *iov, int count

FD_WRAPPER(ssize_t, read, IO_READ, -1, (READ_ARGS), (fd, data, bytes))
FD_WRAPPER(ssize_t, read_chk, IO_READ, -1, (READ_ARGS, size_t room), (fd, data, bytes, room))
FD_WRAPPER(ssize_t, write, IO_WRITE, -1, (WRITE_ARGS), (fd, data, bytes))
FD_WRAPPER(ssize_t, pread, IO_PREAD, at, (READ_ARGS, off_t at), (fd, data, bytes, at))
FD_WRAPPER(ssize_t, pread64, IO_PREAD, at, (READ_ARGS, off_t at), (fd, data, bytes, at))
FD_WRAPPER(ssize_t, pread_chk, IO_PREAD, at, (READ_ARGS, off_t at, size_t room), (fd, data, bytes, at, room))
FD_WRAPPER(ssize_t, pread64_chk, IO_PREAD, at, (READ_ARGS, off_t at, size_t room), (fd, data, bytes, at, room))
FD_WRAPPER(ssize_t, pwrite, IO_PWRITE, at, (WRITE_ARGS, off_t at), (fd, data, bytes, at))
FD_WRAPPER(ssize_t, pwrite64, IO_PWRITE, at, (WRITE_ARGS, off_t at), (fd, data, bytes, at))
FD_WRAPPER(ssize_t, readv, IO_READV, -1, (IOV_ARGS), (fd, iov, count))
FD_WRAPPER(ssize_t, writev, IO_WRITEV, -1, (IOV_ARGS), (fd, iov, count))
FD_WRAPPER(ssize_t, preadv, IO_PREADV, at, (IOV_ARGS, off_t at), (fd, iov, count, at))
FD_WRAPPER(ssize_t, preadv64, IO_PREADV, at, (IOV_ARGS, off_t at), (fd, iov, count, at))
FD_WRAPPER(ssize_t, pwritev, IO_PWRITEV, at, (IOV_ARGS, off_t at), (fd, iov, count, at))
FD_WRAPPER(ssize_t, pwritev64, IO_PWRITEV, at, (IOV_ARGS, off_t at), (fd, iov, count, at))
FD_WRAPPER(ssize_t, preadv2, IO_PREADV, at, (IOV_ARGS, off_t at, int flags), (fd, iov, count, at, flags))
FD_WRAPPER(ssize_t, preadv64v2, IO_PREADV, at, (IOV_ARGS, off_t at, int flags), (fd, iov, count, at, flags))
FD_WRAPPER(ssize_t, pwritev2, IO_PWRITEV, at, (IOV_ARGS, off_t at, int flags), (fd, iov, count, at, flags))
FD_WRAPPER(ssize_t, pwritev64v2, IO_PWRITEV, at, (IOV_ARGS, off_t at, int flags), (fd, iov, count, at, flags))
FD_WRAPPER(int, fsync, IO_FSYNC, -1, (int fd), (fd))
FD_WRAPPER(int, fdatasync, IO_FDATASYNC, -1, (int fd), (fd))
FD_WRAPPER(ssize_t, send, IO_SEND, -1, (WRITE_ARGS, int flags), (fd, data, bytes, flags))
FD_WRAPPER(ssize_t, recv, IO_RECV, -1, (READ_ARGS, int flags), (fd, data, bytes, flags))
FD_WRAPPER(ssize_t, recv_chk, IO_RECV, -1, (READ_ARGS, size_t room, int flags), (fd, data, bytes, room, flags))
FD_WRAPPER(ssize_t, sendmsg, IO_SENDMSG, -1, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags))
FD_WRAPPER(ssize_t, recvmsg, IO_RECVMSG, -1, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))
FD_WRAPPER(ssize_t, recvfrom, IO_RECVFROM, -1, (READ_ARGS, int flags, struct sockaddr *peer, socklen_t *peer_bytes),
	   (fd, data, bytes, flags, peer, peer_bytes))
FD_WRAPPER(ssize_t, recvfrom_chk, IO_RECVFROM, -1,
	   (READ_ARGS, size_t room, int flags, struct sockaddr *peer, socklen_t *peer_bytes),
	   (fd, data, bytes, room, flags, peer, peer_bytes))

/* --- wrappers: sockets ----------------------------------------------------------------------------------------------- */

int hook_connect(int fd, const struct sockaddr *peer, socklen_t bytes)
{
	uint64_t begin_ns = begin(HOOK_connect);
	int ret = hook_real.connect(fd, peer, bytes);

	if (!begin_ns)
		return ret;
	if (ret >= 0 || errno != EFAULT)
		learn_peer(fd, peer, bytes);
	by_fd(IO_CONNECT, begin_ns, fd, ret, -1);
	return ret;
}

ssize_t hook_sendto(WRITE_ARGS, int flags, const struct sockaddr *peer, socklen_t peer_bytes)
{
	uint64_t begin_ns = begin(HOOK_sendto);
	ssize_t ret = hook_real.sendto(fd, data, bytes, flags, peer, peer_bytes);

	if (!begin_ns)
		return ret;
	if (peer && ret >= 0)
		learn_peer(fd, peer, peer_bytes);
	by_fd(IO_SENDTO, begin_ns, fd, ret, -1);
	return ret;
}

/* The record is the new connection's. */
static void accepted(uint64_t begin_ns, int listener, int ret, const struct sockaddr *peer, const socklen_t *bytes)
{
	int saved = errno;

	if (ret >= 0) {
		fds_clear(ret);
		if (peer && bytes)
			learn_peer(ret, peer, *bytes);
	}
	errno = saved;
	by_fd(IO_ACCEPT, begin_ns, ret >= 0 ? ret : listener, ret >= 0 ? 0 : ret, -1);
}

int hook_accept(int fd, struct sockaddr *peer, socklen_t *bytes)
{
	uint64_t begin_ns = begin(HOOK_accept);
	int ret = hook_real.accept(fd, peer, bytes);

	if (begin_ns)
		accepted(begin_ns, fd, ret, peer, bytes);
	return ret;
}

int hook_accept4(int fd, struct sockaddr *peer, socklen_t *bytes, int flags)
{
	uint64_t begin_ns = begin(HOOK_accept4);
	int ret = hook_real.accept4(fd, peer, bytes, flags);

	if (begin_ns)
		accepted(begin_ns, fd, ret, peer, bytes);
	return ret;
}

/* --- wrappers: streams ----------------------------------------------------------------------------------------------- */

static int fd_of(FILE *file)
{
	return file ? file->_fileno : -1;
}

#define FOPEN_WRAPPER(id)                                                                        \
	FILE *hook_##id(const char *path, const char *mode)                                      \
	{                                                                                        \
		uint64_t begin_ns = begin(HOOK_##id);                                            \
		FILE *file = hook_real.id(path, mode);                                           \
                                                                                                 \
		if (begin_ns)                                                                    \
			by_path(IO_FOPEN, begin_ns, AT_FDCWD, path, file ? 0 : -1, fd_of(file)); \
		return file;                                                                     \
	}

FOPEN_WRAPPER(fopen)
FOPEN_WRAPPER(fopen64)

int hook_fclose(FILE *file)
{
	uint64_t begin_ns = begin(HOOK_fclose);
	struct fds_name name;
	int fd, ret;

	if (!begin_ns || !file)
		return hook_real.fclose(file);
	fd = fd_of(file);
	leave_fd(fd, &name);
	ret = hook_real.fclose(file);
	by_name(IO_FCLOSE, begin_ns, fd, ret, &name);
	return ret;
}

#define STREAM_WRAPPER(id, its_type, params, args)                                         \
	size_t hook_##id params                                                            \
	{                                                                                  \
		uint64_t begin_ns = begin(HOOK_##id);                                      \
		size_t ret = hook_real.id args;                                            \
                                                                                           \
		if (begin_ns)                                                              \
			by_fd(its_type, begin_ns, fd_of(file), (int64_t)(ret * size), -1); \
		return ret;                                                                \
	}

#define FREAD_ARGS size_t size, size_t count, FILE *file

STREAM_WRAPPER(fread, IO_FREAD, (void *data, FREAD_ARGS), (data, size, count, file))
STREAM_WRAPPER(fread_unlocked, IO_FREAD, (void *data, FREAD_ARGS), (data, size, count, file))
STREAM_WRAPPER(fread_chk, IO_FREAD, (void *data, size_t room, FREAD_ARGS), (data, room, size, count, file))
STREAM_WRAPPER(fread_unlocked_chk, IO_FREAD, (void *data, size_t room, FREAD_ARGS), (data, room, size, count, file))
STREAM_WRAPPER(fwrite, IO_FWRITE, (const void *data, FREAD_ARGS), (data, size, count, file))
STREAM_WRAPPER(fwrite_unlocked, IO_FWRITE, (const void *data, FREAD_ARGS), (data, size, count, file))

int hook_fflush(FILE *file)
{
	uint64_t begin_ns = begin(HOOK_fflush);
	int fd = begin_ns ? fd_of(file) : -1;
	int ret = hook_real.fflush(file);

	if (begin_ns)
		by_fd(IO_FFLUSH, begin_ns, fd, ret, -1);
	return ret;
}

/* --- wrappers: what only changes the table --------------------------------------------------------------------------- */

static int copied(int from, int to)
{
	int saved = errno;
	struct fds_name name;

	if (to >= 0 && to != from && hook_on(BIT)) {
		hook_depth++;
		fds_get(from, &name);
		fds_set(to, &name);
		hook_depth--;
	}
	errno = saved;
	return to;
}

int hook_dup(int fd)
{
	return copied(fd, hook_real.dup(fd));
}

int hook_dup2(int fd, int to)
{
	return copied(fd, hook_real.dup2(fd, to));
}

int hook_dup3(int fd, int to, int flags)
{
	return copied(fd, hook_real.dup3(fd, to, flags));
}

int hook_socket(int domain, int type, int protocol)
{
	int fd = hook_real.socket(domain, type, protocol);

	if (fd >= 0 && hook_on(BIT))
		fds_clear(fd);
	return fd;
}

int hook_chdir(const char *path)
{
	int ret = hook_real.chdir(path);

	fds_cwd_changed();
	return ret;
}

int hook_fchdir(int fd)
{
	int ret = hook_real.fchdir(fd);

	fds_cwd_changed();
	return ret;
}

/* --- the plugin ------------------------------------------------------------------------------------------------------ */

static void tick(void)
{
	fds_tick(false);
}

static void set_config(uint64_t min_ns, const char *pattern)
{
	const struct io_config *now = atomic_load_explicit(&config, memory_order_relaxed);
	struct io_config *next = &configs[now == &configs[0]];

	next->min_ns = min_ns;
	snprintf(next->pattern, sizeof(next->pattern), "%s", pattern);
	next->wild = strpbrk(pattern, "*?[") != NULL;
	atomic_store_explicit(&config, next, memory_order_release);
}

static bool rank_wanted(const char *list)
{
	uint32_t first, last;

	while (list && cpulist_next(&list, &first, &last) > 0) {
		if (identity.rank_known && identity.rank >= first && identity.rank <= last)
			return true;
	}
	return false;
}

static int io_check(const struct plugin_args *args, struct st_err *err)
{
	const char *path = plugin_args_get(args, "path");

	if (path && strlen(path) >= PATTERN_MAX)
		return err_set(err, -EINVAL, "path= takes at most %d bytes", PATTERN_MAX - 1);
	return 0;
}

static void io_stop(void)
{
	struct st_err ignored;

	pool_switch(&agent.pool, BIT, false);
	hook_switch(BIT, false, NULL, clock_mono_ns() + HOOK_WAIT_NS, &ignored);
}

static int io_start(const struct plugin_args *args, struct st_err *err)
{
	const char *path = plugin_args_get(args, "path"), *min_us = plugin_args_get(args, "min_us");
	const char *ranks = plugin_args_get(args, "rank");
	bool was_on = pool_on(&agent.pool, BIT);
	int ret;

	agent_bind_rank();
	not_this_rank = ranks && !rank_wanted(ranks);
	if (not_this_rank) {
		if (was_on)
			io_stop();
		err_set(err, 0, "nothing is recorded here: this is rank %s%u, not one of rank=%s",
			identity.rank_known ? "" : "unknown, ", identity.rank, ranks);
		return 0;
	}
	ret = fds_init();
	if (ret < 0)
		return err_set(err, ret, "no memory for the table of descriptors: %s", strerror(-ret));
	set_config(min_us ? strtoull(min_us, NULL, 10) * 1000 : 0, path ? path : "");
	if (!was_on) {
		fds_tick(true);
		base_calls = hook_counted_all(BIT);
	}
	hook_tick_add(BIT, tick);
	ret = hook_switch(BIT, true, NULL, clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret < 0 && ret != -ETIMEDOUT)
		return ret;
	pool_switch(&agent.pool, BIT, true);
	return 0;
}

static uint64_t io_calls(void)
{
	return hook_counted_all(BIT);
}

static int io_back_off(unsigned int level, char *what, size_t room)
{
	static const uint32_t min_us[] = { 10, 100, 1000 };
	const struct io_config *now = atomic_load_explicit(&config, memory_order_relaxed);
	char pattern[PATTERN_MAX];

	if (level > sizeof(min_us) / sizeof(min_us[0]))
		return -ERANGE;
	snprintf(pattern, sizeof(pattern), "%s", now->pattern);
	if (now->min_ns < min_us[level - 1] * 1000u)
		set_config(min_us[level - 1] * 1000u, pattern);
	snprintf(what, room, "only calls of %u us and more are kept now", min_us[level - 1]);
	return 0;
}

static void io_status(char *text, size_t room)
{
	struct hook_status hooks;

	hook_status(&hooks, NULL, NULL);
	if (not_this_rank)
		snprintf(text, room, "this rank is not one of rank=");
	else
		snprintf(text, room, "%llu calls; %u slots in %u objects%s",
			 (unsigned long long)(hook_counted_all(BIT) - base_calls), hooks.slots, hooks.objects,
			 hooks.pending ? ", more to come: the loader is busy" : "");
}

const struct plugin plugin_io = {
	.id = PLUGIN_IO,
	.check = io_check,
	.start = io_start,
	.stop = io_stop,
	.calls = io_calls,
	.back_off = io_back_off,
	.status = io_status,
};
