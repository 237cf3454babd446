/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The container format trace.dat, versions 6 and 7: finds the event formats, names of tasks, clocks and, per buffer and
 * CPU, where the ring buffer pages lie. The pages themselves are read by read_tracedat.c; this file reads the small
 * parts only, so opening costs the same for any size of trace.
 * Source: docs/formats/trace.dat.md; Documentation of trace-cmd, trace-cmd.dat.v6.5 and v7.5.
 */
#ifndef TRACE_TRACEDAT_H
#define TRACE_TRACEDAT_H

#include "base/err.h"
#include "trace/ftrace_format.h"
#include "trace/ring_page.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tracedat_compression { TRACEDAT_RAW, TRACEDAT_ZSTD, TRACEDAT_ZLIB };

/** struct tracedat_stream - the pages of one CPU of one buffer */
struct tracedat_stream {
	uint32_t cpu;
	uint64_t offset; /* in the file */
	uint64_t bytes; /* there; compressed: with the chunks' headers */
	bool compressed;
};

struct tracedat_buffer {
	char *name; /* "" = the top level */
	char clock[32]; /* trace clock, "mono_raw"; "" = not told */
	uint32_t page_bytes;
	struct tracedat_stream *streams;
	uint32_t count;
};

struct tracedat {
	int fd; /* for pread of the pages; owned */
	char *path;
	uint64_t file_bytes;
	int version; /* 6 or 7 */
	uint32_t long_bytes;
	uint32_t page_bytes;
	struct ftrace_endian endian;
	enum tracedat_compression compression;
	struct ring_layout layout;

	struct ftrace_format **formats;
	uint32_t format_count;
	char *cmdlines; /* lines "PID comm", terminated; NULL when there are none */
	char *uname; /* "Linux host release machine", NULL when not told */
	char *cpustat; /* per_cpu stats of the recording, NULL when not told */
	uint64_t trace_id;
	uint32_t cpu_count;
	int64_t offset_ns; /* added to each time stamp (options OFFSET and DATE) */
	bool has_tsc; /* stamps are TSC ticks: ns = (t * mult) >> shift + tsc_offset */
	uint32_t tsc_mult, tsc_shift;
	uint64_t tsc_offset;
	char *latency_text; /* the plain text of a latency trace instead of pages */

	struct tracedat_buffer *buffers;
	uint32_t buffer_count;
	uint32_t unknown_options; /* skipped */
	uint32_t bad_formats; /* event formats that could not be read; their events are carried as unknown */
	struct st_err bad_format; /* the first of them */
};

/**
 * tracedat_open - read the head of a trace.dat
 *
 * Context: tool. Return: 0, or -errno with @err (file, offset, what was found, what to do): -EINVAL not a trace.dat or
 * broken, -ENODATA cut before its tables were written (recorder killed), -ENOTSUP compression not built in.
 */
int tracedat_open(struct tracedat *dat, const char *path, struct st_err *err);

/** tracedat_open_fd - the same for an open file, which then belongs to @dat in any case; @path names it for people */
int tracedat_open_fd(struct tracedat *dat, int fd, const char *path, struct st_err *err);

/** tracedat_close - a zeroed one is fine. */
void tracedat_close(struct tracedat *dat);

/** tracedat_format - layout of event @id, NULL when the file does not tell. O(log n). */
const struct ftrace_format *tracedat_format(const struct tracedat *dat, uint32_t id);

struct ev_reader;

/** tracedat_release - kernel release ("5.10.0") that a reader's trace.dat tells, NULL = not told or no trace.dat */
const char *tracedat_release(const struct ev_reader *reader);

/**
 * tracedat_unpack - unpack one compressed block
 * @out: @out_bytes bytes, exactly what the block must give
 *
 * Return: 0, -EINVAL when it does not, -ENOTSUP.
 */
int tracedat_unpack(const struct tracedat *dat, const void *in, size_t in_bytes, void *out, size_t out_bytes);

#endif
