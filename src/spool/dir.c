/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Spool directory and pool memory; see dir.h. */
#include "spool/dir.h"
#include "base/fault.h"
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define DEFAULT_MAX_BYTES (8ull << 20)
#define FREE_SHARE 8 /* a pool takes at most this part of what its file system has free */
#define SMALLEST_CHUNKS 16u
#define NAME_TRIES 16 /* exec keeps pid and start time: the pools of earlier images may still lie there */

static size_t round_up(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

int spool_base_open(const char *place, uid_t uid, bool make, char *path, struct st_err *err)
{
	struct stat st;
	int fd, ret;

	if (!place || !place[0])
		place = SPOOL_PLACE;
	if (snprintf(path, SPOOL_PATH_BYTES, "%s/sysTrace.%u", place, (unsigned int)uid) >= SPOOL_PATH_BYTES)
		return err_set(err, -ENAMETOOLONG, "%s: path too long", place);
	if (make && (FAULT("dir.mkdir_base") || mkdir(path, 0700)) && errno != EEXIST)
		return err_set(err, -errno, "cannot create %s: %s", path, strerror(errno));
	fd = FAULT("dir.open_base") ? -1 : sys_open_apart(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
	ret = sys_fstat(fd, &st);
	if (ret < 0) {
		err_set(err, ret, "cannot stat %s: %s", path, strerror(-ret));
	} else if (st.st_uid != uid || (st.st_mode & 077)) {
		ret = err_set(err, -EPERM, "%s belongs to uid %u with mode %03o, wanted uid %u and 700", path,
			      (unsigned int)st.st_uid, (unsigned int)(st.st_mode & 0777), (unsigned int)uid);
	} else {
		return fd;
	}
	close(fd);
	return ret;
}

/* Make <base>/<owner>/ and open it; -EEXIST is taken care of. */
static int make_dir(struct spool *spool, int base, const struct owner *self, struct st_err *err)
{
	char name[80];
	int i, fd;

	for (i = 0; i < NAME_TRIES; i++) {
		int n = snprintf(name, sizeof(name), "%llu-%u-%llu", (unsigned long long)self->pidns, self->pid,
				 (unsigned long long)self->start);

		if (i)
			snprintf(name + n, sizeof(name) - (size_t)n, "-%d", i);
		if (!FAULT("dir.mkdir") && !mkdirat(base, name, 0700))
			break;
		if (errno != EEXIST)
			return err_set(err, -errno, "cannot create %s/%s: %s", spool->base, name, strerror(errno));
	}
	if (i == NAME_TRIES)
		return err_set(err, -EEXIST, "%s/%s exists: run `systrace recover`", spool->base, name);
	if (snprintf(spool->dir, sizeof(spool->dir), "%s/%s", spool->base, name) >= (int)sizeof(spool->dir)) {
		spool->dir[0] = 0;
		unlinkat(base, name, AT_REMOVEDIR);
		return err_set(err, -ENAMETOOLONG, "%s: path too long", spool->base);
	}
	fd = FAULT("dir.open") ? -1 : openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd >= 0 ? fd : err_set(err, -errno, "cannot open %s: %s", spool->dir, strerror(errno));
}

static int back_with_memory(int fd, size_t from, size_t to)
{
	struct rlimit limit;
	int ret;

	if (FAULT("dir.fallocate"))
		return -errno;
	/* beyond it the kernel would send SIGXFSZ to the thread that asks: the job's own */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && to > limit.rlim_cur)
		return -EFBIG;

	do
		ret = posix_fallocate(fd, (off_t)from, (off_t)(to - from));
	while (ret == EINTR);
	return -ret;
}

/* How many bytes a pool may take on the file system of @fd. */
static uint64_t allowed_bytes(int fd)
{
	struct statvfs vfs;

	return fstatvfs(fd, &vfs) ? 0 : (uint64_t)vfs.f_bavail * vfs.f_frsize / FREE_SHARE;
}

/* Chunks that fit: @chunks, or fewer on a small file system; 0 = not even the smallest pool. */
static uint32_t fit_chunks(uint32_t chunks, uint64_t allowed)
{
	while (chunks > SMALLEST_CHUNKS && round_up(pool_area_bytes(chunks)) > allowed)
		chunks /= 2;
	return round_up(pool_area_bytes(chunks)) <= allowed ? chunks : 0;
}

/* The pool file in @dir, allocated; returns its descriptor and the chunks it has room for. */
static int make_file(struct spool *spool, int dir, uint32_t *chunks, struct st_err *err)
{
	uint64_t allowed = allowed_bytes(dir);
	struct stat st;
	int fd, ret;

	*chunks = fit_chunks(*chunks, allowed);
	if (!*chunks)
		return err_set(err, -ENOSPC, "only %llu KiB of %s may be used, 1/%d of what is free",
			       (unsigned long long)(allowed >> 10), spool->base, FREE_SHARE);
	fd = FAULT("dir.create") ? -1 : openat(dir, "pool", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_set(err, -errno, "cannot create %s/pool: %s", spool->dir, strerror(errno));
	ret = back_with_memory(fd, 0, round_up(pool_area_bytes(*chunks)));
	if (ret == 0)
		ret = sys_fstat(fd, &st);
	if (ret < 0) {
		err_set(err, ret, "cannot allocate %s/pool: %s", spool->dir, strerror(-ret));
		unlinkat(dir, "pool", 0);
		close(fd);
		return ret;
	}
	spool->dev = st.st_dev;
	spool->ino = st.st_ino;
	return fd;
}

/* Map the part [from, to) of the area; @fd -1: private memory, shared with children all the same. */
static int map_part(struct spool *spool, int fd, size_t from, size_t to)
{
	int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *at = FAULT("dir.map") ? MAP_FAILED
				    : mmap(spool->area + from, to - from, PROT_READ | PROT_WRITE, flags, fd,
					   fd < 0 ? 0 : (off_t)from);

	if (at == MAP_FAILED)
		return -errno;
	spool->area_bytes = to;
	return 0;
}

static int file_memory(struct spool *spool, const struct spool_options *options, const struct owner *self,
		       uint32_t *chunks, struct st_err *err)
{
	int base, dir = -1, fd = -1, ret;

	base = spool_base_open(options->place, geteuid(), true, spool->base, err);
	if (base < 0) {
		spool->base[0] = 0;
		return base;
	}
	ret = dir = make_dir(spool, base, self, err);
	if (ret < 0)
		goto out;
	ret = fd = make_file(spool, dir, chunks, err);
	if (ret < 0)
		goto out;
	ret = map_part(spool, fd, 0, round_up(pool_area_bytes(*chunks)));
	if (ret < 0)
		err_set(err, ret, "cannot map %s/pool: %s", spool->dir, strerror(-ret));
out:
	if (ret < 0 && fd >= 0)
		unlinkat(dir, "pool", 0);
	if (ret < 0 && spool->dir[0]) {
		rmdir(spool->dir);
		spool->dir[0] = 0;
	}
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
	close(base);
	return ret < 0 ? ret : 0;
}

static struct pool_guard *make_guard(void)
{
	size_t bytes = round_up(sizeof(struct pool_guard));
	void *page = FAULT("dir.guard") ? MAP_FAILED
					: mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return NULL;
	madvise(page, bytes, MADV_WIPEONFORK); /* before 4.14: the agent's atfork handler clears it */
	return page;
}

static void fill_owner(struct pool_header *head, const struct owner *self)
{
	head->owner_pid = self->pid;
	head->owner_uid = (uint32_t)geteuid();
	head->owner_start = self->start;
	head->owner_pidns = self->pidns;
	snprintf(head->boot_id, sizeof(head->boot_id), "%s", self->boot_id);
}

static uint32_t most_chunks(const struct spool_options *options)
{
	uint64_t bytes = options->max_bytes ? options->max_bytes : DEFAULT_MAX_BYTES;
	uint64_t chunks = bytes / POOL_CHUNK_BYTES;

	return chunks > UINT16_MAX ? UINT16_MAX : chunks < SMALLEST_CHUNKS ? SMALLEST_CHUNKS : (uint32_t)chunks;
}

int spool_create(struct spool *spool, struct pool *pool, const struct spool_options *options, struct st_err *err)
{
	uint32_t most = most_chunks(options);
	uint32_t chunks = options->chunks ? options->chunks : SPOOL_SMALL_CHUNKS;
	struct pool_guard *guard;
	uint32_t want;
	struct st_err why;
	struct owner self;
	int ret;

	memset(spool, 0, sizeof(*spool));
	if (chunks > most)
		chunks = most;
	want = chunks;
	owner_self(&self);
	spool->reserved_bytes = round_up(pool_area_bytes(most));
	spool->area = FAULT("dir.reserve") ? MAP_FAILED
					   : mmap(NULL, spool->reserved_bytes, PROT_NONE,
						  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (spool->area == MAP_FAILED)
		return err_set(err, -errno, "cannot reserve %zu bytes for the pool", spool->reserved_bytes);
	guard = make_guard();
	ret = guard ? file_memory(spool, options, &self, &chunks, &why) : 0;
	if (guard && ret < 0) {
		chunks = want; /* what would have fitted there does not matter here */
		snprintf(spool->note, sizeof(spool->note), "not crash-safe: %.140s", why.text);
		ret = map_part(spool, -1, 0, round_up(pool_area_bytes(chunks)));
	}
	if (!guard || ret < 0) {
		munmap(spool->area, spool->reserved_bytes);
		return err_set(err, -ENOMEM, "no memory for a pool of %u chunks", chunks);
	}
	fill_owner((struct pool_header *)spool->area, &self);
	pool_format(spool->area, chunks);
	ret = pool_attach(pool, spool->area, spool->area_bytes, guard);
	if (ret < 0)
		return err_set(err, ret, "pool of %u chunks does not fit its area", chunks);
	pool->shared_file = spool->dir[0] != 0;
	pool->reserved_bytes = spool->reserved_bytes;
	spool->pool = pool;
	return 0;
}

/* The file of this spool, checked to be the very one that was made. */
static int open_file(const struct spool *spool, struct st_err *err)
{
	char path[SPOOL_PATH_BYTES + 8];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/pool", spool->dir);
	fd = FAULT("dir.reopen") ? -1 : sys_open_apart(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
	if (sys_fstat(fd, &st) || st.st_dev != spool->dev || st.st_ino != spool->ino) {
		close(fd);
		return err_set(err, -ESTALE, "%s is not the file that was made", path);
	}
	return fd;
}

int64_t spool_grow(struct spool *spool, uint64_t bytes, struct st_err *err)
{
	uint32_t have = atomic_load_explicit(&spool->pool->mapped_chunks, memory_order_relaxed);
	uint64_t most = (spool->reserved_bytes - pool_area_bytes(0)) / POOL_CHUNK_BYTES;
	uint64_t want = bytes / POOL_CHUNK_BYTES;
	int fd = -1, ret = 0;
	size_t to;

	if (want > most)
		want = most;
	if (want <= have)
		return (int64_t)have * POOL_CHUNK_BYTES;
	if (spool->dir[0]) {
		fd = open_file(spool, err);
		if (fd < 0)
			return fd;
		want = have + fit_chunks((uint32_t)want - have, allowed_bytes(fd));
	}
	to = round_up(pool_area_bytes((uint32_t)want));
	if (to > spool->area_bytes) {
		ret = fd < 0 ? 0 : back_with_memory(fd, spool->area_bytes, to);
		if (ret == 0)
			ret = map_part(spool, fd, spool->area_bytes, to);
	}
	if (fd >= 0)
		close(fd);
	if (ret < 0)
		return err_set(err, ret, "pool stays at %u KiB: %s", have * (POOL_CHUNK_BYTES >> 10), strerror(-ret));
	pool_grow(spool->pool, (uint32_t)want);
	return (int64_t)want * POOL_CHUNK_BYTES;
}

void spool_remove(struct spool *spool)
{
	char path[SPOOL_PATH_BYTES + 8];
	int fd;

	if (!spool->dir[0])
		return;
	fd = open_file(spool, NULL);
	if (fd >= 0) {
		snprintf(path, sizeof(path), "%s/pool", spool->dir);
		unlink(path);
		close(fd);
		rmdir(spool->dir);
	}
	spool->dir[0] = 0;
}
