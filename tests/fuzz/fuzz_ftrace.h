/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the fuzz targets of kernel traces share: any bytes go through the reader, the state machines and the exporters of
 * text and Perfetto. Nothing may crash, leak or loop, spans must not end before they begin, and an error says something.
 */
#ifndef FUZZ_FTRACE_H
#define FUZZ_FTRACE_H

#include "convert/ftrace.h"
#include "convert/ftrace_sink.h"
#include "fuzz_reader.h"

static int fuzz_span(void *arg, const struct sched_span *span)
{
	if (span->end_ns < span->begin_ns || span->kind > SPAN_LOCK_HOLD || span->cpu < -1)
		abort();
	return 0;
}

static void fuzz_spans(const char *path)
{
	struct ev_session *session = ev_session_new();
	struct ev_reader *reader = ev_open(session, path, NULL);
	struct sched_state *machine = sched_state_new(session, fuzz_span, NULL);
	struct event ev;

	while (reader && ev_next(reader, &ev, NULL) == 1)
		if (sched_state_feed(machine, &ev))
			abort();
	if (sched_state_finish(machine))
		abort();
	sched_state_free(machine);
	ev_close(reader);
	ev_session_free(session);
}

static void fuzz_convert(const char *path, const struct fsink_ops *format, enum ftrace_type type)
{
	struct ftrace_options options = {
		.size = sizeof(options), .format = format, .input = path, .output = "/dev/null", .type = type
	};
	struct ftrace_summary sum;
	struct st_err err = { 0 };

	if (ftrace_convert(&options, &sum, &err) < 0 && !*err.text)
		abort();
}

static int fuzz_ftrace(const uint8_t *data, size_t size)
{
	static unsigned int turn;
	struct ev_session *session;
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size))
		abort();
	session = ev_session_new();
	if (fuzz_read(session, path) > 0) {
		fuzz_spans(path);
		fuzz_convert(path,
			     turn % 3 == 0   ? &fsink_json
			     : turn % 3 == 1 ? &fsink_chrome
					     : &fsink_perfetto,
			     turn % 7 ? FTRACE_SCHED : FTRACE_MMAPLOCK);
		turn++;
	}
	ev_session_free(session);
	close(fd);
	return 0;
}

#endif
