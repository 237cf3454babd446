/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The table of formats: ev_open() looks at the first bytes of a file and hands it to the reader whose row knows them.
 * Private to trace/; a new format is a new row in open.c.
 */
#ifndef TRACE_READERS_H
#define TRACE_READERS_H

#include "trace/event.h"
#include "trace/input.h"

#define SNIFF_BYTES (64u << 10)

/** struct format - one format of files */
struct format {
	const char *name; /* as in ev_reader_ops.format */
	const char *what; /* for people */
	/* does a file that begins with these bytes look like it? */
	bool (*knows)(const unsigned char *head, size_t len);
	/* Take over @input (zeroed on success) and make a reader; what common part is filled by ev_open(). */
	struct ev_reader *(*open)(struct ev_session *session, struct input *input, const char *path,
				  struct st_err *err);
};

extern const struct format format_tracedat, format_ftrace_text;
extern const struct format format_io_pb, format_timeline_pb, format_timeline_json, format_markers;
extern const struct format format_gil, format_mutex, format_io_json, format_profile, format_os_pb, format_os_json;
extern const struct format format_mem_pb, format_mem_json;

/** reader_init - common part of a reader: copies @path, numbers the source. Return: 0 or -ENOMEM with @err. */
int reader_init(struct ev_reader *reader, const struct ev_reader_ops *ops, struct ev_session *session, const char *path,
		struct st_err *err);

/** reader_progress - bring bytes and torn of the statistics up to date from the input */
void reader_progress(struct ev_reader *reader, const struct input *input);

/** ev_sniff - format of a file by its first bytes, without opening a reader. Return: its row, NULL with errno and @err. */
const struct format *ev_sniff(const char *path, struct st_err *err);

#endif
