/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Finishing what killed processes left; see recover.h. */
#include "spool/recover.h"
#include "base/fault.h"
#include "safe/pool.h"
#include "safe/rawio.h"
#include "spool/dir.h"
#include "spool/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define DRAIN_ROUNDS 64 /* a pool is empty after one or two; a bound in case that children go on writing */

/* struct work - one run, and the directory it is at */
struct work {
	const struct recover_options *options;
	const char *base;
	int base_fd;
	int done;
	char dir[SPOOL_PATH_BYTES + 256];
	char text[512]; /* reason, or what the drain had to say */
	struct owner owner;
	bool named_dead; /* by the directory's name alone */
	struct recover_report report;
};

static void keep_text(void *ctx, const char *text)
{
	struct work *w = ctx;

	if (!w->text[0])
		snprintf(w->text, sizeof(w->text), "%s", text);
}

static bool parse_name(const char *name, struct owner *owner)
{
	memset(owner, 0, sizeof(*owner));
	return sscanf(name, "%" SCNu64 "-%" SCNu32 "-%" SCNu64, &owner->pidns, &owner->pid, &owner->start) == 3;
}

/* Is the layout the one this program was built with? Nothing else in the area is believed unchecked. */
static bool layout_is_sound(const struct pool_header *head, size_t bytes)
{
	uint32_t chunks = atomic_load_explicit(&head->chunk_count, memory_order_relaxed);
	size_t fixed = pool_area_bytes(0);

	return head->version == POOL_VERSION && head->header_bytes == sizeof(*head) && head->chunks_off == fixed &&
	       head->flight_off == fixed - (size_t)POOL_FLIGHT_SLOTS * POOL_FLIGHT_BYTES &&
	       head->names_off < head->flight_off && head->names_off >= sizeof(*head) && head->names_off % 64 == 0 &&
	       head->flight_off - head->names_off >= sizeof(struct pool_names) && chunks <= bytes / POOL_CHUNK_BYTES &&
	       pool_area_bytes(chunks) <= bytes && memchr(head->dump_path, 0, sizeof(head->dump_path)) &&
	       memchr(head->format, 0, sizeof(head->format)) && memchr(head->boot_id, 0, sizeof(head->boot_id));
}

/* Does process @pid map the pool? True as well when that can't be read: then only its being alive is known. */
static bool maps_pool(uint32_t pid, const char *dir)
{
	char path[48], text[8192 + 1];
	size_t kept = 0, length = strlen(dir);
	bool found = false;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/maps", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno != ENOENT && !kill((pid_t)pid, 0);
	while (!found && (n = read(fd, text + kept, sizeof(text) - 1 - kept)) > 0) {
		size_t have = kept + (size_t)n;

		found = memmem(text, have, dir, length) != NULL;
		kept = have < length ? have : length - 1; /* the path may lie across two reads */
		memmove(text, text + have - kept, kept);
	}
	close(fd);
	return found;
}

/* Children of the dead process that are alive and may put more records into its pool. */
static bool children_live(const struct work *w, const struct pool *pool)
{
	uint32_t i, last = 0, count = atomic_load_explicit(&pool->mapped_chunks, memory_order_relaxed);

	for (i = 0; i < count; i++) {
		struct pool_chunk *chunk = (struct pool_chunk *)(pool->chunks + (size_t)i * POOL_CHUNK_BYTES);
		uint32_t pid = chunk->pid;

		if (!chunk->generation || !pid || pid == last || pid == pool->head->owner_pid)
			continue;
		last = pid;
		if (maps_pool(pid, w->dir))
			return true;
	}
	return false;
}

static int empty_pool(struct work *w, struct pool *pool, struct st_err *err)
{
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = pool->head->dump_path,
		.lock_base = w->base,
		.json = !strcmp(pool->head->format, "json"),
		.keep_open = true,
		.say = keep_text,
		.say_ctx = w,
	};
	struct drain_stats stats;
	struct drain *d;
	int ret, round, file;

	if (!drain_recorded(pool->head)) {
		keep_text(w, "the process never recorded");
		return 0;
	}
	d = drain_new(&options, err);
	if (!d)
		return -errno;
	ret = drain_adopt(d, err);
	for (round = 0; ret >= 0 && round < DRAIN_ROUNDS; round++) {
		ret = drain_step(d, true, err);
		if (ret == 0)
			break;
	}
	for (file = 0; file < POOL_FILES; file++)
		w->report.files += pool->head->files[file].path[0] != 0;
	drain_stats(d, &stats);
	w->report.records = stats.records;
	w->report.dropped = stats.dropped;
	drain_free(d);
	return ret < 0 ? ret : 0;
}

/* What was killed before it was a pool is nobody's worker. Return: 0 = it may go. */
static int unfinished(const struct work *w)
{
	return w->named_dead && !w->options->worker_of ? 0 : -EAGAIN;
}

static int recover_area(struct work *w, void *area, size_t bytes, struct st_err *err)
{
	/* a guard of our own: this pool has no writer here */
	static struct pool_guard guard;
	struct pool_header *head = area;
	struct pool pool;
	bool live;
	int ret;

	if (!layout_is_sound(head, bytes))
		return err_set(err, -EBADMSG, "pool of another version, or damaged");
	if (w->options->worker_of && (head->worker_of & ~POOL_WORKER) != w->options->worker_of)
		return -EAGAIN; /* somebody else's to do */
	if (w->options->dump_path && drain_recorded(head) && strcmp(w->options->dump_path, head->dump_path) != 0)
		return -EAGAIN;
	ret = pool_attach(&pool, area, bytes, &guard);
	if (ret < 0)
		return err_set(err, ret, "pool of another version, or damaged");
	if (w->options->dry_run) {
		w->report.records = 0;
		snprintf(w->text, sizeof(w->text), "%llu bytes of records wait for %.400s",
			 (unsigned long long)drain_pending(&pool), head->dump_path[0] ? head->dump_path : "nobody");
		return 0;
	}
	/* before: what a child records while it is emptied, and then ends, is for the next recover */
	live = children_live(w, &pool);
	ret = empty_pool(w, &pool, err);
	if (ret == 0 && live)
		w->report.verdict = RECOVER_CHILDREN;
	return ret;
}

/* The pool file is locked. Return: 0 when the directory may go. */
static int recover_pool(struct work *w, int fd, struct st_err *err)
{
	struct pool_header *head;
	struct stat st;
	void *area;
	int ret;

	ret = sys_fstat(fd, &st);
	if (ret < 0)
		return err_set(err, ret, "cannot stat: %s", strerror(-ret));
	if (!st.st_nlink) { /* another recover was faster */
		w->report.verdict = RECOVER_BUSY;
		return 0;
	}
	if ((size_t)st.st_size < pool_area_bytes(1))
		return unfinished(w); /* killed, or still busy, while it was made */
	/* a hole (somebody's sparse copy) on a full file system would end us, or the job that recovers, by SIGBUS */
	ret = posix_fallocate(fd, 0, st.st_size);
	if (ret && ret != EOPNOTSUPP)
		return err_set(err, -ret, "no memory for the holes of the pool: %s", strerror(ret));
	area = FAULT("recover.map") ? MAP_FAILED
				    : mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		return err_set(err, -errno, "cannot map: %s", strerror(errno));
	head = area;
	if (head->magic == POOL_MAGIC) {
		snprintf(w->owner.boot_id, sizeof(w->owner.boot_id), "%.39s", head->boot_id);
		ret = owner_life(&w->owner) == OWNER_DEAD ? recover_area(w, area, (size_t)st.st_size, err) : -EAGAIN;
	} else {
		ret = unfinished(w);
	}
	munmap(area, (size_t)st.st_size);
	return ret;
}

static enum recover_verdict verdict_of(enum owner_life life)
{
	return life == OWNER_ALIVE ? RECOVER_ALIVE : life == OWNER_DEAD ? RECOVER_DONE : RECOVER_UNKNOWN;
}

/* Everything about one directory, @dir open. */
static int recover_dir(struct work *w, int dir, const char *name, struct st_err *err)
{
	int fd, ret;

	fd = FAULT("recover.open") ? -1 : sys_openat_apart(dir, "pool", O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0 && errno != ENOENT)
		return err_set(err, -errno, "cannot open the pool: %s", strerror(errno));
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
		w->report.verdict = RECOVER_BUSY;
		close(fd);
		return 0;
	}
	ret = fd >= 0 ? recover_pool(w, fd, err) : unfinished(w);
	if (ret == 0 && w->report.verdict == RECOVER_DONE && !w->options->dry_run) {
		unlinkat(dir, "pool", 0);
		unlinkat(w->base_fd, name, AT_REMOVEDIR);
	}
	if (fd >= 0)
		close(fd); /* with it the lock goes: after the unlink, so that nobody begins again */
	return ret;
}

static int visit(void *ctx, const char *name, uint64_t inode)
{
	struct work *w = ctx;
	struct st_err err = { 0 };
	struct stat st;
	int dir, ret;

	(void)inode;
	if (!parse_name(name, &w->owner))
		return 0;
	snprintf(w->dir, sizeof(w->dir), "%s/%.255s", w->base, name);
	w->text[0] = 0;
	w->report = (struct recover_report){ .dir = w->dir, .pid = w->owner.pid, .text = w->text };
	w->report.verdict = verdict_of(owner_life(&w->owner));
	if (w->report.verdict == RECOVER_UNKNOWN)
		snprintf(w->text, sizeof(w->text),
			 "its pid namespace is not ours: run this there, or as root on the host");
	dir = sys_openat_apart(w->base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (dir < 0)
		return 0; /* gone meanwhile */
	ret = sys_fstat(dir, &st);
	if (ret == 0 && st.st_uid != w->options->uid)
		ret = err_set(&err, -EPERM, "belongs to uid %u", (unsigned int)st.st_uid);
	if (ret == 0 && (w->report.verdict == RECOVER_DONE || w->report.verdict == RECOVER_UNKNOWN)) {
		/* unknown by its name alone: the pool's boot id may tell more */
		enum recover_verdict guess = w->report.verdict;

		w->named_dead = guess == RECOVER_DONE;
		w->report.verdict = RECOVER_DONE;
		ret = recover_dir(w, dir, name, &err);
		if (ret == -EAGAIN) {
			w->report.verdict = guess == RECOVER_UNKNOWN ? guess : RECOVER_ALIVE;
			ret = 0;
		}
	}
	close(dir);
	if (ret < 0) {
		w->report.verdict = RECOVER_FAILED;
		snprintf(w->text, sizeof(w->text), "%s", err.text);
	}
	w->done += w->report.verdict == RECOVER_DONE;
	if (w->options->report)
		w->options->report(w->options->ctx, &w->report);
	return 0;
}

int recover_run(const struct recover_options *options, struct st_err *err)
{
	char base[SPOOL_PATH_BYTES];
	struct work w = { .options = options, .base = base };
	int ret;

	w.base_fd = spool_base_open(options->place, options->uid, false, base, err);
	if (w.base_fd < 0)
		return w.base_fd;
	ret = sys_dir_each(w.base_fd, visit, &w);
	close(w.base_fd);
	return ret < 0 ? err_set(err, ret, "cannot read %s: %s", base, strerror(-ret)) : w.done;
}
