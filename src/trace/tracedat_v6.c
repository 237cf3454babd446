/* SPDX-License-Identifier: MulanPSL-2.0 */
/* trace.dat version 6: its parts one behind the other; see tracedat_impl.h. */
#include "trace/tracedat_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From `flyrecord` on: CPU table and clock; or the text of a latency trace. */
static int read_flyrecord(struct cursor *c, const char *name, struct later_buffers *later)
{
	struct tracedat *dat = c->dat;
	struct tracedat_buffer *buffer;
	uint64_t offset, bytes, next, i;
	char tag[16], *text;
	bool clock = false;
	int ret = cursor_bytes(c, tag, 10, "flyrecord");

	if (!ret && !memcmp(tag, "options  ", 10)) {
		ret = part_options(c, later, &next, &clock);
		if (!ret)
			ret = cursor_bytes(c, tag, 10, "flyrecord");
	}
	if (ret)
		return ret;
	if (!memcmp(tag, "latency  ", 10))
		return cursor_dup(c, c->end - c->at, &dat->latency_text, "a latency trace");
	if (memcmp(tag, "flyrecord", 10))
		return err_set(c->err, -EINVAL, "%s: expected flyrecord before offset %" PRIu64 ": the file is damaged",
			       dat->path, c->at);
	buffer = part_add_buffer(c, name);
	ret = buffer ? part_add_streams(c, buffer, dat->cpu_count) : -ENOMEM;
	for (i = 0; !ret && i < dat->cpu_count; i++) {
		ret = cursor_uint(c, 8, &offset, "the CPU table");
		if (!ret)
			ret = cursor_uint(c, 8, &bytes, "the CPU table");
		if (!ret)
			ret = part_add_stream(c, buffer, i, offset, bytes);
	}
	/* the clock is there when option 4 was, and for every buffer of such a file */
	if (ret || !(clock || name[0]))
		return ret;
	ret = cursor_uint(c, 8, &bytes, "the trace clock");
	if (!ret && bytes < 4096) {
		ret = cursor_dup(c, bytes, &text, "the trace clock");
		if (!ret)
			part_chosen_clock(text, buffer->clock);
		if (!ret)
			free(text);
	}
	return ret;
}

int tracedat_read_v6(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	struct later_buffers *later;
	uint64_t count;
	uint32_t i;
	int ret = part_header_info(c);

	if (!ret)
		ret = part_ftrace_events(c);
	if (!ret)
		ret = part_event_formats(c);
	if (!ret)
		ret = part_skip(c, "kallsyms");
	if (!ret)
		ret = part_skip(c, "printk_formats");
	if (!ret)
		ret = part_cmdlines(c);
	if (!ret)
		ret = cursor_uint(c, 4, &count, "the number of CPUs");
	if (ret)
		return ret;
	if (count > TRACEDAT_MAX_CPUS)
		return err_set(c->err, -EINVAL, "%s: %" PRIu64 " CPUs at offset %" PRIu64 ": the file is damaged",
			       dat->path, count, c->at);
	dat->cpu_count = (uint32_t)count;
	later = calloc(1, sizeof(*later));
	if (!later)
		return err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
	ret = read_flyrecord(c, "", later);
	for (i = 0; !ret && i < later->count; i++) {
		struct later_buffers none = { .count = 0 };

		if (later->offset[i] >= dat->file_bytes) {
			ret = err_set(c->err, -ENODATA,
				      "%s: buffer %s at offset %" PRIu64 " lies beyond the file's end", dat->path,
				      later->name[i], later->offset[i]);
			break;
		}
		c->at = later->offset[i];
		ret = read_flyrecord(c, later->name[i], &none);
	}
	free(later);
	return ret;
}
