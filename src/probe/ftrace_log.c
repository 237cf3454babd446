/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Setting up the instance, streaming its text, ending it; see ftrace_log.h. */
#include "probe/ftrace_log.h"

#include "base/num.h"
#include "probe/ftrace/events.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace/saved_state.h"
#include "probe/ftrace/tracefs.h"
#include "probe/ftrace_func.h"
#include "probe/probe.h"
#include "safe/clock.h"
#include "systrace/ftrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_BUFFER_KB 32768u
#define CHUNK_BYTES (256u * 1024u) /* one write to the file */
#define PUMP_BYTES (8u << 20) /* one pump, so that the loop's other work has its turn */
#define RETRY_NS 1000000000u /* after a write that failed */
#define TID_PASSES 8 /* threads are born while they are listed */

struct ftrace_log {
	struct tracefs fs;
	struct instance instance;
	struct event_list events;
	uint32_t *cpus;
	size_t cpu_count;
	struct note note;
	int pipe; /* trace_pipe of the instance; -1 */
	int out; /* the caller's; -1 = none yet */
	char *asked; /* the options, for the head */
	char *chunk; /* CHUNK_BYTES */
	size_t used;
	uint64_t bytes, unwritten;
	uint64_t unsaid; /* of unwritten: not yet told in the file */
	int failed;
	uint64_t retry_ns; /* no write before that */
	uint64_t begin_ns; /* CLOCK_MONOTONIC */
};

/* --- writing ------------------------------------------------------------------------------------------------------ */

static uint64_t lines_in(const char *text, size_t bytes)
{
	uint64_t lines = 0;

	for (const char *end = text + bytes; (text = memchr(text, '\n', (size_t)(end - text))); text++)
		lines++;
	return lines;
}

/* All of it or nothing: half a chunk is taken back, so that the file holds whole lines. Return: 0 or -errno. */
static int write_whole(int fd, const char *data, size_t bytes)
{
	off_t begin = lseek(fd, 0, SEEK_CUR);
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = write(fd, data + done, bytes - done);
		int ret = got < 0 ? -errno : -ENOSPC;

		if (got > 0) {
			done += (size_t)got;
			continue;
		}
		if (got < 0 && errno == EINTR)
			continue;
		if (begin >= 0 && ftruncate(fd, begin) == 0)
			lseek(fd, begin, SEEK_SET);
		return ret;
	}
	return 0;
}

static int put(struct ftrace_log *log, const char *data, size_t bytes)
{
	int ret = bytes ? write_whole(log->out, data, bytes) : 0;

	if (ret == 0)
		log->bytes += bytes;
	return ret;
}

static int put_text(struct ftrace_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int put_text(struct ftrace_log *log, const char *format, ...)
{
	char text[1024];
	va_list ap;
	int len;

	va_start(ap, format);
	len = vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	return put(log, text, (size_t)(len < (int)sizeof(text) ? len : (int)sizeof(text) - 1));
}

/* The clocks now: the events' own is mono_raw. */
static int put_clocks(struct ftrace_log *log)
{
	struct clock_snapshot clocks;

	clock_snapshot_take(&clocks);
	return put_text(log,
			"# clock=mono_raw mono_ns=%" PRIu64 " mono_raw_ns=%" PRIu64 " boottime_ns=%" PRIu64
			" realtime_ns=%" PRIu64 "\n",
			clocks.mono_ns, clocks.mono_raw_ns, clocks.boottime_ns, clocks.realtime_ns);
}

/* The place where lines are missing, in the file itself. */
static int tell_gap(struct ftrace_log *log)
{
	int ret;

	if (!log->unsaid)
		return 0;
	ret = put_text(log, "# %" PRIu64 " lines are missing here: they could not be written (%s)\n", log->unsaid,
		       strerror(-log->failed));
	if (ret == 0)
		log->unsaid = 0;
	return ret;
}

/* What was collected goes to the file, or is counted. */
static void flush(struct ftrace_log *log, bool last)
{
	uint64_t now_ns = clock_mono_ns(), lines;
	int ret = -EAGAIN;

	if (!log->used)
		return;
	if (last || now_ns >= log->retry_ns) {
		ret = tell_gap(log);
		if (ret == 0)
			ret = put(log, log->chunk, log->used);
	}
	if (ret < 0) {
		lines = lines_in(log->chunk, log->used);
		log->unwritten += lines;
		log->unsaid += lines;
		if (ret != -EAGAIN) {
			if (!log->failed)
				note_say(&log->note, SYSTRACE_FTRACE_WARNING,
					 "the Ftrace log cannot be written: %s; its lines are counted as lost until "
					 "there is room again",
					 strerror(-ret));
			log->failed = ret;
			log->retry_ns = now_ns + RETRY_NS;
		}
	}
	log->used = 0;
}

/* --- whose events ------------------------------------------------------------------------------------------------- */

static bool tid_known(const pid_t *tids, size_t count, pid_t tid)
{
	for (size_t i = 0; i < count; i++)
		if (tids[i] == tid)
			return true;
	return false;
}

/* The kernel's files take one thread with each write. */
static int add_tid(int dir, const char *file, pid_t tid)
{
	char text[16];
	int fd, ret = 0;

	snprintf(text, sizeof(text), "%d", (int)tid);
	fd = openat(dir, file, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

/* All threads of a process, also those that are born meanwhile: later ones the kernel follows itself. */
static int add_process(const struct instance *in, const char *file, pid_t pid, struct st_err *err)
{
	pid_t *tids = NULL, *more;
	size_t count = 0, before = 0;
	char path[32];
	int ret = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	for (int pass = 0; pass < TID_PASSES && ret == 0 && (pass == 0 || count != before); pass++) {
		DIR *dir = opendir(path);
		struct dirent *entry;

		if (!dir) {
			ret = err_set(err, -ENOENT, "%s: there is no process %d", file, (int)pid);
			break;
		}
		before = count;
		while (ret == 0 && (entry = readdir(dir))) {
			pid_t tid = atoi(entry->d_name);

			if (tid <= 0 || tid_known(tids, before, tid))
				continue;
			more = realloc(tids, (count + 1) * sizeof(*tids));
			if (!more) {
				ret = err_set(err, -ENOMEM, "out of memory");
				break;
			}
			tids = more;
			tids[count++] = tid;
			ret = add_tid(in->fd, file, tid);
			if (ret == -ESRCH)
				ret = 0;
			else if (ret < 0)
				err_set(err, ret, "the kernel refuses process %d in %s: %s", (int)pid, file,
					strerror(-ret));
		}
		closedir(dir);
	}
	free(tids);
	return ret;
}

static int add_processes(const struct instance *in, const char *file, const char *option, const char *pids,
			 struct st_err *err)
{
	int ret;

	ret = file_write(in->fd, option, "1");
	if (ret < 0)
		return err_set(err, ret, "this kernel cannot follow new threads (%s): %s", option, strerror(-ret));
	while (ret == 0 && *pids) {
		size_t len = strcspn(pids, ",");
		uint64_t pid;

		if (num_u64_n(pids, len, &pid) < 0 || pid == 0 || pid > INT32_MAX)
			return err_set(err, -EINVAL, "%s: '%.60s' is not a list of process ids", file, pids);
		ret = add_process(in, file, (pid_t)pid, err);
		pids += len + (pids[len] == ',');
	}
	return ret;
}

static int set_processes(const struct instance *in, const struct ftrace_log_options *opts, struct st_err *err)
{
	int ret = 0;

	if ((opts->set_event_pid || opts->set_ftrace_pid) && !probe_sees_host())
		return err_set(
			err, -ENOTSUP,
			"set_event_pid and set_ftrace_pid take the host's process ids, which this container does not "
			"know: run sysTrace_cli on the host, or in a container that shares its processes");
	if (opts->set_event_pid)
		ret = add_processes(in, "set_event_pid", "options/event-fork", opts->set_event_pid, err);
	if (ret == 0 && opts->set_ftrace_pid) /* documented as all of ftrace; the kernel's own file is for functions */
		ret = add_processes(in, "set_event_pid", "options/event-fork", opts->set_ftrace_pid, err);
	if (ret == 0 && opts->set_ftrace_pid && ftrace_func_wanted(opts))
		ret = add_processes(in, "set_ftrace_pid", "options/function-fork", opts->set_ftrace_pid, err);
	return ret;
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static int choose_cpus(struct ftrace_log *log, const char *list, struct st_err *err)
{
	int have = openat(log->fs.fd, "per_cpu", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret;

	if (have < 0)
		return err_set(err, -errno, "cannot open per_cpu of tracefs: %s", strerror(errno));
	ret = cpus_choose(have, list, &log->cpus, &log->cpu_count, &log->note, err);
	close(have);
	return ret;
}

static int choose_events(struct ftrace_log *log, const char *text, struct st_err *err)
{
	int events, ret;

	if (!text)
		return 0;
	events = openat(log->fs.fd, "events", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (events < 0)
		return err_set(err, -errno, "cannot open events of tracefs: %s", strerror(errno));
	ret = events_named(&log->events, events, text, err);
	close(events);
	return ret;
}

/* The columns' names come from the kernel: they differ by version. */
static int write_head(struct ftrace_log *log, struct st_err *err)
{
	char *columns = NULL, *line, *rest;
	int ret;

	ret = file_read(log->instance.fd, "trace", &columns, NULL);
	if (ret < 0)
		return err_set(err, ret, "cannot read the trace of instance %s: %s", log->instance.name,
			       strerror(-ret));
	ret = put(log, log->asked, strlen(log->asked));
	if (ret == 0)
		ret = put_clocks(log);
	for (line = strtok_r(columns, "\n", &rest); line && ret == 0; line = strtok_r(NULL, "\n", &rest))
		if (line[0] == '#' && !strstr(line, "entries-in-buffer"))
			ret = put_text(log, "%s\n", line);
	free(columns);
	return ret < 0 ? err_set(err, ret, "cannot write the log: %s", strerror(-ret)) : 0;
}

void ftrace_log_free(struct ftrace_log *log)
{
	if (!log)
		return;
	if (log->pipe >= 0)
		close(log->pipe);
	instance_remove(&log->instance, NULL);
	events_free(&log->events);
	free(log->cpus);
	free(log->chunk);
	free(log->asked);
	tracefs_close(&log->fs);
	free(log);
}

static int set_up(struct ftrace_log *log, const struct ftrace_log_options *opts, struct st_err *err)
{
	struct instance *in = &log->instance;
	uint32_t buffer_kb = opts->buffer_kb ? opts->buffer_kb : DEFAULT_BUFFER_KB;
	int ret;

	ret = ftrace_func_check(opts, err);
	if (ret == 0)
		ret = tracefs_open(&log->fs, opts->tracefs, err);
	if (ret < 0)
		return ret;
	instance_sweep(&log->fs, &log->note);
	saved_state_sweep(&log->fs, &log->note);
	ret = choose_cpus(log, opts->cpu_list, err);
	if (ret == 0)
		ret = choose_events(log, opts->events, err);
	if (ret == 0)
		ret = instance_create(in, &log->fs, NULL, err);
	if (ret == 0)
		ret = instance_setup(in, log->cpus, log->cpu_count, buffer_kb, &log->events, &log->note, err);
	if (ret == 0)
		ret = set_processes(in, opts, err);
	if (ret == 0)
		ret = ftrace_func_setup(in, opts, err);
	if (ret == 0 && opts->event_stack_trace) {
		ret = file_write(in->fd, "options/stacktrace", "1");
		if (ret < 0)
			err_set(err, ret, "this kernel writes no stacks of events: %s", strerror(-ret));
	}
	if (ret < 0)
		return ret;
	log->pipe = openat(in->fd, "trace_pipe", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (log->pipe < 0)
		return err_set(err, -errno, "cannot open trace_pipe of instance %s: %s", in->name, strerror(errno));
	return 0;
}

struct ftrace_log *ftrace_log_new(const struct ftrace_log_options *opts, const struct note *note, struct st_err *err)
{
	struct ftrace_log *log = calloc(1, sizeof(*log));

	if (!log) {
		err_set(err, -ENOMEM, "out of memory");
		return NULL;
	}
	log->fs.fd = log->pipe = log->instance.fd = log->out = -1;
	log->instance.fs = &log->fs;
	log->chunk = malloc(CHUNK_BYTES);
	if (note)
		log->note = *note;
	if (!log->chunk ||
	    asprintf(&log->asked, "# systrace Ftrace: cpu_list=%s events=%s function_tracer=%s func=%s\n",
		     opts->cpu_list ? opts->cpu_list : "all", opts->events ? opts->events : "-",
		     opts->function_tracer ? opts->function_tracer : "nop", opts->func ? opts->func : "-") < 0) {
		log->asked = NULL;
		err_set(err, -ENOMEM, "out of memory");
	} else if (set_up(log, opts, err) == 0) {
		return log;
	}
	ftrace_log_free(log);
	return NULL;
}

int ftrace_log_begin(struct ftrace_log *log, int fd, const struct note *note, struct st_err *err)
{
	int ret;

	log->out = fd;
	log->note = note ? *note : (struct note){ 0 };
	ret = write_head(log, err);
	log->begin_ns = clock_mono_ns();
	return ret < 0 ? ret : instance_on(&log->instance, true, err);
}

/* --- while it runs ------------------------------------------------------------------------------------------------ */

size_t ftrace_log_cpus(const struct ftrace_log *log)
{
	return log->cpu_count;
}

/* The kernel gives whole lines, at most a page of them with each read. */
static int64_t take(struct ftrace_log *log, uint64_t most)
{
	uint64_t taken = 0;

	while (taken < most) {
		ssize_t got = read(log->pipe, log->chunk + log->used, CHUNK_BYTES - log->used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno != EAGAIN)
			return -errno;
		if (got <= 0)
			break;
		log->used += (size_t)got;
		taken += (uint64_t)got;
		if (CHUNK_BYTES - log->used < CHUNK_BYTES / 8)
			flush(log, false);
	}
	return (int64_t)taken;
}

int64_t ftrace_log_pump(struct ftrace_log *log)
{
	int64_t taken = take(log, PUMP_BYTES);

	flush(log, false);
	return taken;
}

void ftrace_log_status(const struct ftrace_log *log, struct ftrace_log_status *status)
{
	struct cpu_stats sum;

	instance_sum(&log->instance, &sum);
	*status = (struct ftrace_log_status){
		.bytes = log->bytes,
		.events = sum.read + sum.entries,
		.lost = cpu_stats_lost(&sum),
		.unwritten = log->unwritten,
		.failed = log->failed,
	};
}

/* --- stop --------------------------------------------------------------------------------------------------------- */

static int write_tail(struct ftrace_log *log, const struct ftrace_log_status *status)
{
	uint64_t took_ns = clock_mono_ns() - log->begin_ns;
	struct cpu_stats one;
	int ret;

	ret = tell_gap(log);
	if (ret == 0)
		ret = put_clocks(log);
	for (size_t i = 0; i < log->cpu_count && ret == 0; i++)
		if (instance_stats(&log->instance, log->cpus[i], &one, NULL, 0) == 0)
			ret = put_text(log,
				       "# CPU %" PRIu32 ": %" PRIu64 " events, lost: %" PRIu64 " overwritten, %" PRIu64
				       " within an interrupt, %" PRIu64 " dropped\n",
				       log->cpus[i], one.read + one.entries, one.overrun, one.commit_overrun,
				       one.dropped);
	if (ret == 0)
		ret = put_text(log,
			       "# recorded %.3f s: %" PRIu64 " events, %" PRIu64
			       " lost in the kernel's buffer, %" PRIu64 " lines not written%s\n",
			       (double)took_ns / 1e9, status->events, status->lost, log->unwritten,
			       status->lost ? "; a larger buffer_size_kb or fewer events lose less" : "");
	return ret;
}

int ftrace_log_stop(struct ftrace_log *log, struct ftrace_log_status *status, struct st_err *err)
{
	struct ftrace_log_status now;
	struct st_err later = { 0 };
	int64_t taken;
	int ret, one;

	ret = instance_on(&log->instance, false, err);
	do {
		taken = take(log, PUMP_BYTES);
		flush(log, taken <= 0);
	} while (taken > 0);
	if (taken < 0 && ret == 0)
		ret = err_set(err, (int)taken, "cannot read trace_pipe: %s", strerror((int)-taken));
	ftrace_log_status(log, &now);
	one = write_tail(log, &now);
	now.bytes = log->bytes;
	if (one < 0 && ret == 0)
		ret = err_set(err, one, "cannot write the end of the log: %s; %" PRIu64 " lines are not in it",
			      strerror(-one), log->unwritten);
	close(log->pipe);
	log->pipe = -1;
	one = instance_remove(&log->instance, ret == 0 ? err : &later);
	if (status)
		*status = now;
	ftrace_log_free(log);
	return ret < 0 ? ret : one;
}
