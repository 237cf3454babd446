/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The native back end: one thread takes pages of all CPUs out of the kernel's ring buffer while it records, packs them
 * and keeps them beside the output; at the end only small tables are added. Called by recorder.c.
 */
#include "probe/ftrace/backend.h"
#include "probe/ftrace/stream.h"
#include "probe/ftrace/task_names.h"
#include "probe/ftrace/tracedat_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define DRAIN_MS 250 /* buffers are emptied at least that often; a half full one wakes the thread earlier */
#define DRAIN_PAGES 1024 /* of one CPU before the next one has its turn */

struct native {
	struct instance instance;
	struct packer *packer;
	struct stream *streams;
	int *fds; /* trace_pipe_raw of each stream's CPU; -1 */
	struct pollfd *polls; /* one per stream, then the eventfd */
	size_t count, page_bytes;
	struct task_names names;
	pthread_t thread;
	bool thread_runs;
	int wake; /* eventfd: recording is off, take the rest and end */
	_Atomic uint64_t bytes; /* taken out; relaxed, for the progress line */
	_Atomic int failed; /* -errno of the first failure; relaxed, the thread writes it once */
};

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* Return: pages taken (more than DRAIN_PAGES are left for the next turn), or -errno. */
static int drain_cpu(struct native *native, size_t at)
{
	struct stream *stream = &native->streams[at];
	int pages = 0, ret;

	while (pages < DRAIN_PAGES) {
		uint8_t *page = stream_space(stream);
		ssize_t got = read(native->fds[at], page, native->page_bytes);

		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0 || (got < 0 && (errno == EAGAIN || errno == ENODEV)))
			break;
		if (got < 0)
			return -errno;
		if ((size_t)got < native->page_bytes)
			memset(page + got, 0, native->page_bytes - (size_t)got);
		atomic_fetch_add_explicit(&native->bytes, native->page_bytes, memory_order_relaxed);
		ret = stream_commit(stream, native->packer, native->page_bytes);
		if (ret < 0)
			return ret;
		pages++;
	}
	return pages;
}

/* All CPUs, until each was found empty once (or, while recording, for one turn). */
static int drain(struct native *native, bool all)
{
	bool more;

	do {
		more = false;
		for (size_t i = 0; i < native->count; i++) {
			int ret = drain_cpu(native, i);

			if (native->polls[i].revents & (POLLERR | POLLHUP | POLLNVAL))
				native->polls[i].fd = -1; /* a CPU that is offline: looked at every DRAIN_MS only */
			if (ret < 0)
				return ret;
			more |= ret == DRAIN_PAGES;
		}
	} while (more && all);
	return 0;
}

static void *take_pages(void *arg)
{
	struct native *native = arg;
	struct pollfd *wake = &native->polls[native->count];
	int ret = 0;

	prctl(PR_SET_NAME, "systrace/ftrace");
	while (ret == 0 && !(wake->revents & POLLIN)) {
		if (poll(native->polls, native->count + 1, DRAIN_MS) < 0 && errno != EINTR) {
			ret = -errno;
			break;
		}
		ret = drain(native, wake->revents & POLLIN);
	}
	if (ret < 0)
		atomic_store_explicit(&native->failed, ret, memory_order_relaxed);
	return NULL;
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static int open_cpus(struct native *native, int dir, struct st_err *err)
{
	struct instance *in = &native->instance;
	char path[64];
	int ret;

	native->count = in->cpu_count;
	native->streams = calloc(native->count, sizeof(*native->streams));
	native->polls = calloc(native->count + 1, sizeof(*native->polls));
	native->fds = calloc(native->count, sizeof(*native->fds));
	if (!native->streams || !native->polls || !native->fds)
		return err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < native->count; i++) {
		native->streams[i].fd = -1;
		native->fds[i] = native->polls[i].fd = -1;
	}
	native->polls[native->count] = (struct pollfd){ .fd = native->wake, .events = POLLIN };
	for (size_t i = 0; i < native->count; i++) {
		ret = stream_init(&native->streams[i], in->cpus[i], dir, native->packer);
		if (ret < 0)
			return err_set(err, ret, "out of memory");
		snprintf(path, sizeof(path), "per_cpu/cpu%" PRIu32 "/trace_pipe_raw", in->cpus[i]);
		native->fds[i] = openat(in->fd, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (native->fds[i] < 0)
			return err_set(err, -errno, "cannot open %s: %s%s", path, strerror(errno),
				       errno == EMFILE ? "; raise `ulimit -n`" : "");
		native->polls[i] = (struct pollfd){ .fd = native->fds[i], .events = POLLIN };
	}
	return 0;
}

static int start_thread(struct native *native, struct st_err *err)
{
	sigset_t all, before;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(&native->thread, NULL, take_pages, native);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret < 0)
		return err_set(err, ret, "cannot start a thread: %s", strerror(-ret));
	native->thread_runs = true;
	return 0;
}

static void stop_thread(struct native *native)
{
	uint64_t one = 1;

	if (!native->thread_runs)
		return;
	if (write(native->wake, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(native->thread, NULL);
	native->thread_runs = false;
}

static int native_free(struct native *native, struct st_err *err)
{
	int ret;

	stop_thread(native);
	for (size_t i = 0; i < native->count && native->polls && native->streams && native->fds; i++) {
		if (native->fds[i] >= 0)
			close(native->fds[i]);
		stream_fini(&native->streams[i]);
	}
	if (native->wake >= 0)
		close(native->wake);
	free(native->streams);
	free(native->polls);
	free(native->fds);
	packer_free(native->packer);
	task_names_fini(&native->names);
	ret = instance_remove(&native->instance, err);
	free(native);
	return ret;
}

static int make_packer(struct native *native, uint32_t compress, struct st_err *err)
{
	bool zstd = compress != SYSTRACE_FTRACE_COMPRESS_NONE;

	native->page_bytes = instance_page_bytes(&native->instance);
	native->packer = packer_new(zstd, native->page_bytes);
	if (!native->packer && errno == ENOTSUP && compress == SYSTRACE_FTRACE_COMPRESS_AUTO)
		native->packer = packer_new(false, native->page_bytes);
	if (native->packer)
		return 0;
	return err_set(err, -errno, "%s",
		       errno == ENOTSUP ? "zstd is not built in; use --compress=none" : "out of memory");
}

static int native_check(struct recording *rec, struct st_err *err)
{
	return 0;
}

static int native_start(struct recording *rec, struct st_err *err)
{
	struct native *native = calloc(1, sizeof(*native));
	struct instance *in;
	int ret;

	if (!native)
		return err_set(err, -ENOMEM, "out of memory");
	in = &native->instance;
	native->wake = eventfd(0, EFD_CLOEXEC);
	ret = instance_create(in, &rec->fs, rec->instance_name, err);
	if (ret == 0)
		ret = instance_setup(in, rec->cpus, rec->cpu_count, rec->buffer_kb, &rec->events, &rec->note, err);
	if (ret == 0)
		ret = make_packer(native, rec->compress, err);
	if (ret == 0)
		ret = open_cpus(native, rec->dir, err);
	if (ret == 0)
		ret = start_thread(native, err);
	if (ret == 0) {
		task_names_scan(&native->names, &rec->fs);
		ret = instance_on(in, true, err);
	}
	if (ret < 0) {
		native_free(native, NULL);
		return ret;
	}
	rec->state = native;
	return 0;
}

/* --- status and stop ---------------------------------------------------------------------------------------------- */

static void native_status(struct recording *rec, struct systrace_ftrace_status *status)
{
	struct native *native = rec->state;
	struct cpu_stats sum;

	instance_sum(&native->instance, &sum);
	status->lost = cpu_stats_lost(&sum);
	status->bytes = atomic_load_explicit(&native->bytes, memory_order_relaxed);
	status->failed = atomic_load_explicit(&native->failed, memory_order_relaxed);
	status->events = sum.read + (status->failed ? 0 : sum.entries); /* what is left then is not saved */
}

/* "CPU: n" and the kernel's figures, for `trace-cmd report --stat` and our reader. */
static char *stats_text(const struct instance *in)
{
	char *text = NULL, one[1024];
	struct cpu_stats stats;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return NULL;
	for (size_t i = 0; i < in->cpu_count; i++)
		if (instance_stats(in, in->cpus[i], &stats, one, sizeof(one)) == 0)
			fprintf(out, "CPU: %" PRIu32 "\n%s", in->cpus[i], one);
	return fclose(out) == 0 ? text : NULL;
}

static int finish_streams(struct native *native, struct st_err *err)
{
	int ret = 0, one;

	for (size_t i = 0; i < native->count; i++) {
		one = stream_finish(&native->streams[i], native->packer);
		if (one < 0 && ret == 0)
			ret = err_set(err, one, "cannot write the pages of CPU %" PRIu32 ": %s", native->streams[i].cpu,
				      strerror(-one));
	}
	return ret;
}

static int write_file(struct recording *rec, struct native *native, uint64_t *bytes, struct st_err *err)
{
	const struct instance *in = &native->instance;
	struct tracedat_source source = {
		.fs = &rec->fs,
		.events = &rec->events,
		.clock = "mono_raw",
		.cpu_count = (uint32_t)sysconf(_SC_NPROCESSORS_CONF),
		.page_bytes = native->page_bytes,
		.zstd_version = packer_version(native->packer),
		.streams = native->streams,
		.stream_count = native->count,
	};
	char *cmdlines = NULL, *stats = NULL, *clocks = NULL;
	int fd, ret = -ENOMEM;

	fd = recording_part(rec, err);
	if (fd < 0)
		return fd;
	if (source.cpu_count <= in->cpus[in->cpu_count - 1])
		source.cpu_count = in->cpus[in->cpu_count - 1] + 1;
	source.cmdlines = cmdlines = task_names_text(&native->names);
	source.cpustat = stats = stats_text(in);
	if (cmdlines && stats)
		ret = file_read(in->fd, "trace_clock", &clocks, NULL);
	source.clocks = clocks;
	if (ret < 0)
		err_set(err, ret, "cannot gather what belongs into the file: %s", strerror(-ret));
	else
		ret = tracedat_write(fd, &source, bytes, err);
	free(cmdlines);
	free(stats);
	free(clocks);
	if (close(fd) < 0 && ret == 0)
		ret = err_set(err, -errno, "cannot write the file: %s", strerror(errno));
	return ret;
}

static int native_stop(struct recording *rec, struct systrace_ftrace_status *status, struct st_err *err)
{
	struct native *native = rec->state;
	struct st_err later = { 0 };
	int ret, one;

	ret = instance_on(&native->instance, false, err);
	task_names_scan(&native->names, &rec->fs); /* now: later some tasks have other names */
	stop_thread(native);
	native_status(rec, status);
	if (status->failed && ret == 0)
		ret = err_set(err, status->failed, "recording ended early: %s; what was recorded before is saved",
			      strerror(-status->failed));
	recording_losses(rec, &native->instance);
	one = finish_streams(native, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	one = write_file(rec, native, &status->file_bytes, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	if (one < 0 && later.text[0])
		note_say(&rec->note, SYSTRACE_FTRACE_ERROR, "%s", later.text); /* the first failure is returned */
	one = native_free(native, ret == 0 ? err : &later);
	rec->state = NULL;
	return ret < 0 ? ret : one;
}

const struct backend backend_native = {
	.id = SYSTRACE_FTRACE_NATIVE,
	.name = "native",
	.output = "trace.dat",
	.check = native_check,
	.start = native_start,
	.status = native_status,
	.stop = native_stop,
};
