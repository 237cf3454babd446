/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documents' tracefs/debugfs back end: the kernel keeps the events in its ring buffer, at the end its text is copied
 * into the file. Slow for large buffers and limited to what the buffer holds, but it needs nothing else. Called by
 * recorder.c. It works in an instance of its own, whose text is the same as the top level's.
 */
#include "probe/ftrace/backend.h"
#include "safe/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_BYTES (1u << 20)

struct text {
	struct instance instance;
};

static int text_check(struct recording *rec, struct st_err *err)
{
	return 0;
}

static int text_start(struct recording *rec, struct st_err *err)
{
	struct text *text = calloc(1, sizeof(*text));
	struct instance *in;
	int ret;

	if (!text)
		return err_set(err, -ENOMEM, "out of memory");
	in = &text->instance;
	ret = instance_create(in, &rec->fs, rec->instance_name, err);
	if (ret == 0)
		ret = instance_setup(in, rec->cpus, rec->cpu_count, rec->buffer_kb, &rec->events, &rec->note, err);
	if (ret == 0)
		ret = instance_on(in, true, err);
	if (ret < 0) {
		instance_remove(in, NULL);
		free(text);
		return ret;
	}
	rec->state = text;
	return 0;
}

static void text_status(struct recording *rec, struct systrace_ftrace_status *status)
{
	struct text *text = rec->state;
	struct cpu_stats sum;

	instance_sum(&text->instance, &sum);
	status->lost = cpu_stats_lost(&sum);
	status->events = sum.entries + sum.read;
}

static int write_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t done = write(fd, data, bytes);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? -errno : -ENOSPC;
		data += done;
		bytes -= (size_t)done;
	}
	return 0;
}

/* The kernel gives at most a page per read(2), whatever is asked for. */
static int copy_text(int from, int to, uint64_t *bytes, struct st_err *err)
{
	char *buffer = malloc(COPY_BYTES);
	size_t used = 0;
	ssize_t got = 1;
	int ret = 0;

	if (!buffer)
		return err_set(err, -ENOMEM, "out of memory");
	while (ret == 0 && got > 0) {
		do
			got = read(from, buffer + used, COPY_BYTES - used);
		while (got < 0 && errno == EINTR);
		if (got < 0) {
			ret = err_set(err, -errno, "cannot read the trace: %s", strerror(errno));
			break;
		}
		used += (size_t)got;
		if (used < COPY_BYTES && got > 0)
			continue;
		ret = write_all(to, buffer, used);
		if (ret < 0)
			err_set(err, ret, "cannot write the file: %s", strerror(-ret));
		else
			*bytes += used;
		used = 0;
	}
	free(buffer);
	return ret;
}

static int save_text(struct recording *rec, const struct instance *in, uint64_t *bytes, struct st_err *err)
{
	uint64_t begin_ns = clock_mono_ns(), took_ns;
	int from, to, ret;

	from = openat(in->fd, "trace", O_RDONLY | O_CLOEXEC);
	if (from < 0)
		return err_set(err, -errno, "cannot open the trace of instance %s: %s", in->name, strerror(errno));
	to = recording_part(rec, err);
	if (to < 0) {
		close(from);
		return to;
	}
	ret = copy_text(from, to, bytes, err);
	close(from);
	if (close(to) < 0 && ret == 0)
		ret = err_set(err, -errno, "cannot write the file: %s", strerror(errno));
	took_ns = clock_mono_ns() - begin_ns;
	if (ret == 0)
		note_say(&rec->note, SYSTRACE_FTRACE_INFO,
			 "debugfs trace snapshot copy finished: bytes=%" PRIu64 ", duration=%.3fs", *bytes,
			 (double)took_ns / 1e9);
	return ret;
}

static int text_stop(struct recording *rec, struct systrace_ftrace_status *status, struct st_err *err)
{
	uint64_t begin_ns = clock_mono_ns(), took_ns;
	struct text *text = rec->state;
	struct st_err later = { 0 };
	int ret, one;

	ret = instance_on(&text->instance, false, err);
	took_ns = clock_mono_ns() - begin_ns;
	note_say(&rec->note, SYSTRACE_FTRACE_INFO, "debugfs tracing disabled in %.3fs", (double)took_ns / 1e9);
	text_status(rec, status);
	recording_losses(rec, &text->instance);
	if (ret == 0)
		ret = save_text(rec, &text->instance, &status->file_bytes, err);
	status->bytes = status->file_bytes;
	one = instance_remove(&text->instance, ret == 0 ? err : &later);
	free(text);
	rec->state = NULL;
	return ret < 0 ? ret : one;
}

const struct backend backend_text = {
	.id = SYSTRACE_FTRACE_DEBUGFS,
	.name = "debugfs",
	.output = "trace.txt",
	.check = text_check,
	.start = text_start,
	.status = text_status,
	.stop = text_stop,
};
