/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the fuzz targets of readers share: any bytes as a file go through ev_open, the merge and both exporters. Nothing may
 * crash, leak or loop; an error has a text that names the file.
 */
#ifndef FUZZ_READER_H
#define FUZZ_READER_H

#include "convert/mem_out.h"
#include "convert/timeline.h"
#include "trace/event.h"
#include "trace/session.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void fuzz_line(void *arg, const char *text)
{
	if (!*text)
		abort();
}

/* Read @path to its end. Return: events, -1 = not opened. */
static long fuzz_read(struct ev_session *session, const char *path)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(session, path, &err);
	struct event ev;
	long events = 0;
	int ret;

	if (!reader) {
		if (!strstr(err.text, path) || err.code >= 0)
			abort();
		return -1;
	}
	while ((ret = ev_next(reader, &ev, &err)) == 1) {
		events++;
		if (ev.kind >= EV_KINDS || ev.nargs > EV_MAX_ARGS || ev.name >= ev_name_count(session))
			abort();
	}
	if (ret < 0 && !*err.text)
		abort();
	if (ev_next(reader, &ev, &err) > 0 && ret == 0)
		abort(); /* nothing comes after the end */
	if (reader->ops->report)
		reader->ops->report(reader, fuzz_line, NULL);
	ev_close(reader);
	return events;
}

static inline void fuzz_write(const char *path, const struct tsink_ops *format)
{
	struct ev_session *session = ev_session_new();
	struct merge *merge = merge_new(session);
	struct timeline_options options = { .size = sizeof(options), .format = format, .output = "/dev/null" };
	struct ev_reader *reader = ev_open(session, path, NULL);
	struct timeline_summary sum;
	struct st_err err;

	if (reader && merge_add(merge, reader) == 0)
		timeline_write(session, merge, &options, &sum, &err);
	merge_free(merge);
	ev_session_free(session);
}

/* Memory has exporters of its own. */
static inline void fuzz_mem(const char *path)
{
	struct ev_session *session = ev_session_new();
	struct merge *merge = merge_new(session);
	struct ev_reader *reader = ev_open(session, path, NULL);
	struct text_options options = { .most = 5, .json = true };
	struct mem_sum *sum = mem_new(session, NULL);
	FILE *out = fopen("/dev/null", "w");
	struct merge_stats stats;
	struct st_err err;

	if (reader && merge_add(merge, reader) == 0 && mem_read(sum, merge, &err) > 0) {
		merge_stats(merge, &stats);
		mem_text_write(session, sum, &stats, out, &options, &err);
		options.json = false;
		mem_text_write(session, sum, &stats, out, &options, &err);
		mem_flame_write(session, sum, MEM_INUSE, true, "/dev/null", &err);
		mem_flame_write(session, sum, MEM_ALLOCATED, false, "/dev/null", &err);
	}
	fclose(out);
	mem_free(sum);
	merge_free(merge);
	ev_session_free(session);
}

static inline void fuzz_mem_timeline(const char *path)
{
	struct ev_session *session = ev_session_new();
	struct merge *merge = merge_new(session);
	struct ev_reader *reader = ev_open(session, path, NULL);
	struct mem_timeline_summary sum;
	struct st_err err;

	if (reader && merge_add(merge, reader) == 0)
		mem_timeline_write(session, merge, &tsink_chrome, "/dev/null", &sum, &err);
	merge_free(merge);
	ev_session_free(session);
}

static inline int fuzz_bytes(const uint8_t *data, size_t size)
{
	struct ev_session *session = ev_session_new();
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	char path[64];
	size_t i;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size))
		abort();
	if (fuzz_read(session, path) > 0) {
		for (i = 0; tsink_formats[i]; i++)
			fuzz_write(path, tsink_formats[i]);
		fuzz_mem(path);
		fuzz_mem_timeline(path);
	}
	close(fd);
	ev_session_free(session);
	return 0;
}

#endif
