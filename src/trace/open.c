/* SPDX-License-Identifier: MulanPSL-2.0 */
/* ev_open: which reader for a file, told by its content; see readers.h. */
#include "trace/readers.h"

#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct format *const formats[] = { &format_tracedat,    &format_markers,	    &format_gil,
						&format_mutex,	     &format_timeline_json, &format_io_json,
						&format_ftrace_text, &format_profile,	    &format_mem_pb,
						&format_mem_json,    &format_os_json,	    &format_os_pb,
						&format_io_pb,	     &format_timeline_pb };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

int reader_init(struct ev_reader *reader, const struct ev_reader_ops *ops, struct ev_session *session, const char *path,
		struct st_err *err)
{
	reader->ops = ops;
	reader->session = session;
	reader->path = strdup(path);
	if (!reader->path)
		return err_set(err, -ENOMEM, "%s: out of memory", path);
	reader->source = ev_source_add(session, path);
	reader->window_ns = 10000000000u;
	reader->origin.rank = EV_NO_RANK;
	reader->origin.local_rank = -1;
	return 0;
}

void reader_progress(struct ev_reader *reader, const struct input *input)
{
	reader->stats.bytes = input->offset;
	reader->stats.consumed_bytes = input->consumed;
	reader->stats.total_bytes = input->total;
	if (input->torn)
		reader->stats.torn = true;
}

/* What a file of no known format looks like, for people. */
static int unknown(const struct input *input, const char *path, struct st_err *err)
{
	char head[3 * 16 + 1] = "";
	size_t i;

	if (!input->len)
		return err_set(err, -ENODATA, "%s is empty: nothing was recorded into it", path);
	if (input->len > 13 && memmem(input->at, input->len < 4096 ? input->len : 4096, "\"traceEvents\"", 13))
		return err_set(err, -EINVAL,
			       "%s is a Chrome trace already: open it in https://ui.perfetto.dev or chrome://tracing",
			       path);
	for (i = 0; i < 16 && i < input->len; i++)
		snprintf(head + 3 * i, 4, "%02x ", input->at[i]);
	return err_set(
		err, -EINVAL,
		"%s: none of the known formats begins with %s(timelines, I/O, memory and scheduling records as protobuf or "
		"JSON, GIL and Mutex files, MSPTI marker CSV, PyTorch profiles, ftrace text, trace.dat, each also as gz or "
		"zst); name a file from the dump directory",
		path, head);
}

static const struct format *choose(struct input *input, const char *path, struct st_err *err)
{
	size_t i;

	if (input_want(input, SNIFF_BYTES, err) < 0)
		return NULL;
	for (i = 0; i < COUNT(formats); i++)
		if (formats[i]->knows(input->at, input->len))
			return formats[i];
	if (input->torn)
		err_set(err, -EINVAL, "%s: %s", path, input->problem);
	else
		unknown(input, path, err);
	return NULL;
}

const struct format *ev_sniff(const char *path, struct st_err *err)
{
	const struct format *format;
	struct st_err local;
	struct input input;

	if (!err)
		err = &local;
	if (input_open(&input, path, err) < 0) {
		errno = -err->code;
		return NULL;
	}
	format = choose(&input, path, err);
	input_close(&input);
	if (!format)
		errno = -err->code;
	return format;
}

struct ev_reader *ev_open(struct ev_session *session, const char *path, struct st_err *err)
{
	const struct format *format;
	struct ev_reader *reader = NULL;
	struct st_err local;
	struct input input;

	if (!err)
		err = &local;
	if (input_open(&input, path, err) < 0) {
		errno = -err->code;
		return NULL;
	}
	format = choose(&input, path, err);
	if (format)
		reader = format->open(session, &input, path, err);
	if (!reader) {
		errno = -err->code;
		input_close(&input);
	}
	return reader;
}

void ev_close(struct ev_reader *reader)
{
	char *path;

	if (!reader)
		return;
	path = reader->path;
	reader->ops->close(reader);
	free(path);
}
