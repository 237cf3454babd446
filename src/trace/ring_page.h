/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One page (sub-buffer) of the kernel's trace ring buffer as read from trace_pipe_raw or found in a trace.dat: walks its
 * events and keeps the time. No allocation; any bytes are survived.
 * Source: include/linux/ring_buffer.h and kernel/trace/ring_buffer.c of the kernel, events/header_page.
 */
#ifndef TRACE_RING_PAGE_H
#define TRACE_RING_PAGE_H

#include "trace/ftrace_format.h"

/** struct ring_layout - what events/header_page says */
struct ring_layout {
	uint32_t ts_offset;
	uint32_t commit_offset;
	uint32_t commit_size; /* 4 or 8: also the kernel's sizeof(long) */
	uint32_t data_offset;
	struct ftrace_endian endian;
};

struct ring_page {
	const uint8_t *data; /* the events */
	uint32_t len; /* valid bytes of data */
	uint32_t at; /* next event */
	uint64_t t_ns; /* time of the last event, or the page's own */
	uint64_t lost; /* events lost just before this page, if lost_known */
	bool lost_before;
	bool lost_known;
	bool broken; /* an event did not fit: the rest of the page was given up */
};

struct ring_event {
	uint64_t t_ns; /* in the trace clock's unit */
	const uint8_t *payload;
	uint32_t len;
};

/** ring_layout_parse - read the text of events/header_page. Return: 0, -EINVAL with @err. */
int ring_layout_parse(struct ring_layout *layout, const char *text, size_t len, struct st_err *err);

/**
 * ring_page_begin - start on a page
 * @bytes: size of the page; must stay in place until the walk is over
 *
 * Return: 0, or -EINVAL when the page's length does not fit into @bytes (walks the part that is there).
 */
int ring_page_begin(struct ring_page *page, const struct ring_layout *layout, const uint8_t *data, uint32_t bytes);

/** ring_page_next - next data event. Return: true and *ev, false at the end of the page. */
bool ring_page_next(struct ring_page *page, const struct ring_layout *layout, struct ring_event *ev);

#endif
