/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Writes a trace.dat of version 7 from streams of ring buffer pages and what tracefs says about them. Everything but the
 * pages is small and built in memory; the pages are moved, not copied, where the file system can do that.
 * Source: docs/formats/trace.dat.md.
 */
#ifndef PROBE_FTRACE_TRACEDAT_WRITER_H
#define PROBE_FTRACE_TRACEDAT_WRITER_H

#include "base/err.h"
#include "probe/ftrace/events.h"
#include "probe/ftrace/stream.h"
#include "probe/ftrace/tracefs.h"

/** struct tracedat_source - what goes into the file; all borrowed */
struct tracedat_source {
	const struct tracefs *fs; /* headers, formats of the events, printk formats */
	const struct event_list *events;
	const char *cmdlines; /* lines "PID comm" */
	const char *cpustat; /* "CPU: n" and that CPU's stats, for each */
	const char *clocks; /* content of trace_clock: all clocks, the one used in brackets */
	const char *clock; /* the one used, "mono_raw" */
	uint32_t cpu_count; /* of the machine: highest + 1 */
	size_t page_bytes;
	const char *zstd_version; /* the streams are packed; NULL = raw pages */
	struct stream *streams; /* finished ones; those without bytes are left out */
	size_t stream_count;
};

/**
 * tracedat_write - write the file
 * @fd: an empty file, open for writing
 * @bytes: its size
 *
 * Context: tool. The streams' files are emptied. Return: 0 or -errno with @err.
 */
int tracedat_write(int fd, const struct tracedat_source *source, uint64_t *bytes, struct st_err *err);

#endif
