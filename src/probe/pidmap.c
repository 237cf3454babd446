/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Collecting, writing and refreshing the pid map; see pidmap.h. Format: docs/formats/pid_mapping.md. */
#include "probe/pidmap.h"

#include "probe/ftrace/tracefs.h"
#include "probe/proc_tasks.h"
#include "wire/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
	int32_t tid;
	char inner[12]; /* second number of NSpid, "" = not in a pid namespace of its own */
	char name[64]; /* as status has it: \n and \\ escaped */
	char tgid[12], ppid[12];
};

struct pidmap {
	struct row *rows; /* ascending tid */
	size_t count, room;
};

struct pidmap_thread {
	struct pidmap *map;
	char *path;
	uint32_t period_s;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* CLOCK_MONOTONIC */
	bool end; /* under lock */
	bool runs;
};

/* --- collecting --------------------------------------------------------------------------------------------------- */

/* n-th word (from 0) behind "Key:" */
static void take(const char *status, const char *key, unsigned nth, char *value, size_t room)
{
	const char *at = strstr(status, key);
	size_t len = 0;

	*value = '\0';
	if (!at)
		return;
	at += strlen(key);
	for (unsigned i = 0; i <= nth; i++) {
		at += len;
		at += strspn(at, " \t");
		len = strcspn(at, " \t\n");
	}
	snprintf(value, room, "%.*s", (int)len, at);
}

static void take_line(const char *status, const char *key, char *value, size_t room)
{
	size_t keys = strlen(key);

	*value = '\0';
	if (strncmp(status, key, keys) == 0) /* Name: is the first line */
		snprintf(value, room, "%.*s", (int)strcspn(status + keys, "\n"), status + keys);
}

/* Newest state of a task; the row of an earlier one with the same id is replaced. */
static int put_row(struct pidmap *map, const struct row *row)
{
	size_t low = 0, high = map->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (map->rows[middle].tid < row->tid)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < map->count && map->rows[low].tid == row->tid) {
		map->rows[low] = *row;
		return 0;
	}
	if (map->count == map->room) {
		size_t room = map->room * 2 + 256;
		struct row *more = realloc(map->rows, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		map->rows = more;
		map->room = room;
	}
	memmove(map->rows + low + 1, map->rows + low, (map->count - low) * sizeof(*row));
	map->rows[low] = *row;
	map->count++;
	return 0;
}

static int collect_task(void *ctx, int32_t pid, int32_t tid)
{
	struct row row = { .tid = tid };
	char path[64], *status;

	snprintf(path, sizeof(path), "/proc/%" PRId32 "/task/%" PRId32 "/status", pid, tid);
	if (file_read(AT_FDCWD, path, &status, NULL) < 0)
		return 0; /* ended meanwhile */
	take_line(status, "Name:\t", row.name, sizeof(row.name));
	take(status, "\nNSpid:", 1, row.inner, sizeof(row.inner));
	take(status, "\nTgid:", 0, row.tgid, sizeof(row.tgid));
	take(status, "\nPPid:", 0, row.ppid, sizeof(row.ppid));
	free(status);
	return put_row(ctx, &row);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void put_member(struct json_writer *json, const char *key, const char *value)
{
	json_key(json, key);
	json_text(json, value, strlen(value));
}

static int put_rows(const struct pidmap *map, FILE *out)
{
	char text[1024], tid[16];
	struct json_writer json;

	for (size_t i = 0; i < map->count; i++) {
		const struct row *row = &map->rows[i];

		json_init(&json, text, sizeof(text));
		snprintf(tid, sizeof(tid), "%" PRId32, row->tid);
		json_key(&json, tid);
		json_open(&json, '{');
		put_member(&json, "NSpid", row->inner);
		put_member(&json, "name", row->name);
		put_member(&json, "Tgid", row->tgid);
		put_member(&json, "PPid", row->ppid);
		json_close(&json, '}');
		fputs(i ? ",\n" : "{\n", out);
		fwrite(json.data, 1, json.used, out);
	}
	fputs(map->count ? "\n}\n" : "{}\n", out);
	return ferror(out) ? -EIO : 0;
}

struct pidmap *pidmap_new(void)
{
	return calloc(1, sizeof(struct pidmap));
}

void pidmap_free(struct pidmap *map)
{
	if (map)
		free(map->rows);
	free(map);
}

int pidmap_write(struct pidmap *map, const char *path, struct st_err *err)
{
	char part[4096];
	FILE *out;
	int ret, fd;

	ret = proc_tasks(collect_task, map);
	if (ret < 0)
		return err_set(err, ret, "cannot read /proc: %s", strerror(-ret));
	if (snprintf(part, sizeof(part), "%s.%d.part", path, (int)getpid()) >= (int)sizeof(part))
		return err_set(err, -ENAMETOOLONG, "%.100s...: name too long", path);
	unlink(part);
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out) {
		ret = err_set(err, -errno, "cannot create %s: %s", part, strerror(errno));
		if (fd >= 0)
			close(fd);
		return ret;
	}
	ret = put_rows(map, out);
	if (fclose(out) != 0)
		ret = -errno;
	if (ret == 0 && rename(part, path) < 0)
		ret = -errno;
	if (ret < 0) {
		unlink(part);
		return err_set(err, ret, "cannot write %s: %s", path, strerror(-ret));
	}
	return (int)map->count;
}

/* --- again and again ---------------------------------------------------------------------------------------------- */

static void *refresh(void *arg)
{
	struct pidmap_thread *thread = arg;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	pthread_mutex_lock(&thread->lock);
	while (!thread->end) {
		until.tv_sec += thread->period_s;
		while (!thread->end && pthread_cond_timedwait(&thread->wake, &thread->lock, &until) == 0)
			;
		if (thread->end)
			break;
		pthread_mutex_unlock(&thread->lock);
		pidmap_write(thread->map, thread->path, NULL); /* the last writing, at stop, reports */
		pthread_mutex_lock(&thread->lock);
	}
	pthread_mutex_unlock(&thread->lock);
	return NULL;
}

static int run(struct pidmap_thread *thread)
{
	pthread_condattr_t monotonic;
	sigset_t all, before;
	int ret;

	pthread_mutex_init(&thread->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&thread->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (thread->period_s == 0)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(&thread->thread, NULL, refresh, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	thread->runs = ret == 0;
	return ret;
}

static void thread_free(struct pidmap_thread *thread)
{
	if (!thread)
		return;
	pidmap_free(thread->map);
	free(thread->path);
	free(thread);
}

struct pidmap_thread *pidmap_start(const char *path, uint32_t period_s, struct st_err *err)
{
	struct pidmap_thread *thread = calloc(1, sizeof(*thread));
	int ret = -ENOMEM;

	if (thread) {
		thread->period_s = period_s;
		thread->map = pidmap_new();
		thread->path = strdup(path);
	}
	if (!thread || !thread->map || !thread->path)
		err_set(err, ret, "out of memory");
	else
		ret = pidmap_write(thread->map, path, err);
	if (ret >= 0) {
		ret = run(thread);
		if (ret == 0)
			return thread;
		err_set(err, ret, "cannot start a thread: %s", strerror(-ret));
	}
	thread_free(thread);
	errno = -ret;
	return NULL;
}

int pidmap_stop(struct pidmap_thread *thread, struct st_err *err)
{
	int ret;

	if (!thread)
		return 0;
	pthread_mutex_lock(&thread->lock);
	thread->end = true;
	pthread_cond_signal(&thread->wake);
	pthread_mutex_unlock(&thread->lock);
	if (thread->runs)
		pthread_join(thread->thread, NULL);
	ret = pidmap_write(thread->map, thread->path, err);
	pthread_cond_destroy(&thread->wake);
	pthread_mutex_destroy(&thread->lock);
	thread_free(thread);
	return ret < 0 ? ret : 0;
}
