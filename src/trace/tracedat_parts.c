/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Parts of a trace.dat that versions 6 and 7 share: formats, names of tasks, options; see tracedat_impl.h. */
#include "trace/tracedat_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUFFERS 4096u

enum option {
	OPT_DONE,
	OPT_DATE,
	OPT_CPUSTAT,
	OPT_BUFFER,
	OPT_TRACECLOCK,
	OPT_UNAME,
	OPT_HOOK,
	OPT_OFFSET,
	OPT_CPUCOUNT,
	OPT_VERSION,
	OPT_PROCMAPS,
	OPT_TRACEID,
	OPT_TIME_SHIFT,
	OPT_GUEST,
	OPT_TSC2NSEC,
	OPT_LAST_KNOWN = 25
};

int part_header_info(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	char name[16];
	uint64_t bytes;
	char *text;
	int ret;

	ret = cursor_text(c, name, sizeof(name), "header_page");
	if (!ret && strcmp(name, "header_page"))
		return err_set(c->err, -EINVAL, "%s: expected header_page at offset %" PRIu64 ", found '%.16s'",
			       dat->path, c->at, name);
	if (!ret)
		ret = cursor_uint(c, 8, &bytes, "header_page");
	if (!ret)
		ret = cursor_dup(c, bytes, &text, "header_page");
	if (ret)
		return ret;
	ret = ring_layout_parse(&dat->layout, text, bytes, c->err);
	free(text);
	if (ret)
		return ret;
	dat->layout.endian = dat->endian;
	dat->long_bytes = dat->layout.commit_size;
	ret = cursor_text(c, name, sizeof(name), "header_event");
	if (!ret)
		ret = cursor_uint(c, 8, &bytes, "header_event");
	return ret ? ret : cursor_skip(c, bytes, "header_event");
}

static int add_format(struct cursor *c, const char *system)
{
	struct tracedat *dat = c->dat;
	struct ftrace_format *format, **more;
	struct st_err why = { 0 };
	uint64_t bytes;
	char *text;
	int ret = cursor_uint(c, 8, &bytes, "an event format");

	if (!ret)
		ret = cursor_dup(c, bytes, &text, "an event format");
	if (ret)
		return ret;
	format = ftrace_format_parse(system, text, bytes, &why);
	free(text);
	if (!format) {
		if (why.code == -ENOMEM)
			return err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
		if (!dat->bad_formats++)
			dat->bad_format = why;
		return 0;
	}
	if (!(dat->format_count & (dat->format_count - 1))) {
		more = realloc(dat->formats, (dat->format_count ? 2 * dat->format_count : 1) * sizeof(*more));
		if (!more) {
			free(format);
			return err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
		}
		dat->formats = more;
	}
	dat->formats[dat->format_count++] = format;
	return 0;
}

int part_ftrace_events(struct cursor *c)
{
	uint64_t count, i;
	int ret = cursor_uint(c, 4, &count, "the list of ftrace formats");

	for (i = 0; !ret && i < count; i++)
		ret = add_format(c, "ftrace");
	return ret;
}

int part_event_formats(struct cursor *c)
{
	uint64_t systems, events, i, j;
	char system[FTRACE_NAME_BYTES];
	int ret = cursor_uint(c, 4, &systems, "the list of event systems");

	for (i = 0; !ret && i < systems; i++) {
		ret = cursor_text(c, system, sizeof(system), "an event system");
		if (!ret)
			ret = cursor_uint(c, 4, &events, "the events of a system");
		for (j = 0; !ret && j < events; j++)
			ret = add_format(c, system);
	}
	return ret;
}

int part_cmdlines(struct cursor *c)
{
	uint64_t bytes;
	int ret = cursor_uint(c, 8, &bytes, "saved_cmdlines");

	free(c->dat->cmdlines);
	c->dat->cmdlines = NULL;
	return ret ? ret : cursor_dup(c, bytes, &c->dat->cmdlines, "saved_cmdlines");
}

int part_skip(struct cursor *c, const char *what)
{
	uint64_t bytes;
	int ret = cursor_uint(c, 4, &bytes, what);

	return ret ? ret : cursor_skip(c, bytes, what);
}

struct tracedat_buffer *part_add_buffer(struct cursor *c, const char *name)
{
	struct tracedat *dat = c->dat;
	struct tracedat_buffer *more = NULL;

	if (dat->buffer_count < MAX_BUFFERS)
		more = realloc(dat->buffers, (dat->buffer_count + 1) * sizeof(*more));
	if (!more) {
		err_set(c->err, -ENOMEM, "%s: out of memory for %u buffers", dat->path, dat->buffer_count + 1);
		return NULL;
	}
	dat->buffers = more;
	more += dat->buffer_count;
	*more = (struct tracedat_buffer){ .name = strdup(name), .page_bytes = dat->page_bytes };
	if (!more->name) {
		err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
		return NULL;
	}
	dat->buffer_count++;
	return more;
}

int part_add_streams(struct cursor *c, struct tracedat_buffer *buffer, uint64_t count)
{
	if (count > TRACEDAT_MAX_CPUS)
		return err_set(c->err, -EINVAL, "%s: %" PRIu64 " CPUs at offset %" PRIu64 ": the file is damaged",
			       c->dat->path, count, c->at);
	buffer->streams = calloc(count ? count : 1, sizeof(*buffer->streams));
	if (!buffer->streams)
		return err_set(c->err, -ENOMEM, "%s: out of memory", c->dat->path);
	return 0;
}

int part_add_stream(struct cursor *c, struct tracedat_buffer *buffer, uint64_t cpu, uint64_t offset, uint64_t bytes)
{
	struct tracedat *dat = c->dat;

	if (bytes && (offset > dat->file_bytes || bytes > dat->file_bytes - offset))
		return err_set(c->err, -ENODATA,
			       "%s: the data of CPU %" PRIu64 " (%" PRIu64 " bytes at offset %" PRIu64
			       ") lies beyond the file's end at %" PRIu64 ": the file was cut, copy it again",
			       dat->path, cpu, bytes, offset, dat->file_bytes);
	if (bytes)
		buffer->streams[buffer->count++] = (struct tracedat_stream){
			.cpu = (uint32_t)cpu,
			.offset = offset,
			.bytes = bytes,
			.compressed = dat->compression != TRACEDAT_RAW,
		};
	return 0;
}

/* "[mono_raw]" or "local [mono_raw] boot": the chosen one. */
void part_chosen_clock(const char *text, char out[32])
{
	const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;

	if (close)
		snprintf(out, 32, "%.*s", (int)(close - open - 1 < 31 ? close - open - 1 : 31), open + 1);
	else
		snprintf(out, 32, "%.31s", text);
}

/* ---- options ---------------------------------------------------------------------------------------------------------- */

static void option_tsc(struct tracedat *dat, const uint8_t *data, uint64_t bytes)
{
	if (bytes < 16)
		return;
	dat->tsc_mult = (uint32_t)ftrace_uint(data, 4, dat->endian);
	dat->tsc_shift = (uint32_t)ftrace_uint(data + 4, 4, dat->endian);
	dat->tsc_offset = ftrace_uint(data + 8, 8, dat->endian);
	dat->has_tsc = dat->tsc_shift < 64;
}

/* v7: u64 offset, name, clock, u32 page size, u32 count, count x { u32 cpu, u64 offset, u64 bytes } */
static int option_buffer_v7(struct cursor *outer, const char *data, uint64_t bytes)
{
	struct cursor *c = calloc(1, sizeof(*c));
	struct tracedat_buffer *buffer = NULL;
	uint64_t value, page = 0, count = 0, cpu, offset, size, i;
	char name[256];
	int ret;

	if (!c)
		return err_set(outer->err, -ENOMEM, "%s: out of memory", outer->dat->path);
	*c = (struct cursor){ .dat = outer->dat, .mem = (const uint8_t *)data, .end = bytes, .err = outer->err };
	ret = cursor_uint(c, 8, &value, "a buffer's offset");
	if (!ret)
		ret = cursor_text(c, name, sizeof(name), "a buffer's name");
	if (!ret) {
		buffer = part_add_buffer(c, name);
		ret = buffer ? cursor_text(c, buffer->clock, sizeof(buffer->clock), "a buffer's clock") : -ENOMEM;
	}
	if (!ret)
		ret = cursor_uint(c, 4, &page, "a buffer's page size");
	if (!ret)
		ret = cursor_uint(c, 4, &count, "a buffer's CPUs");
	if (!ret)
		ret = part_add_streams(c, buffer, count);
	if (!ret && page)
		buffer->page_bytes = (uint32_t)page;
	for (i = 0; !ret && i < count; i++) {
		ret = cursor_uint(c, 4, &cpu, "a CPU's number");
		if (!ret)
			ret = cursor_uint(c, 8, &offset, "a CPU's offset");
		if (!ret)
			ret = cursor_uint(c, 8, &size, "a CPU's size");
		if (!ret)
			ret = part_add_stream(c, buffer, cpu, offset, size);
	}
	free(c);
	return ret;
}

/* What options tell for later. v6: other flyrecord blocks, read after the top-level one; v7: where the sections lie. */
static int option(struct cursor *c, uint32_t id, char *data, uint64_t bytes, struct later_buffers *later)
{
	struct tracedat *dat = c->dat;

	switch (id) {
	case OPT_DATE:
		dat->offset_ns += (int64_t)strtoull(data, NULL, 0) * 1000;
		break;
	case OPT_OFFSET:
		dat->offset_ns += strtoll(data, NULL, 0);
		break;
	case OPT_CPUSTAT:
		if (!dat->cpustat)
			dat->cpustat = strdup(data);
		break;
	case OPT_UNAME:
		if (!dat->uname)
			dat->uname = strdup(data);
		break;
	case OPT_CPUCOUNT:
		if (bytes >= 4)
			dat->cpu_count = (uint32_t)ftrace_uint((uint8_t *)data, 4, dat->endian);
		break;
	case OPT_TRACEID:
		if (bytes >= 8)
			dat->trace_id = ftrace_uint((uint8_t *)data, 8, dat->endian);
		break;
	case OPT_TSC2NSEC:
		option_tsc(dat, (uint8_t *)data, bytes);
		break;
	case OPT_BUFFER:
		if (dat->version >= 7)
			return option_buffer_v7(c, data, bytes);
		if (bytes > 8 && later->count < 64) {
			later->offset[later->count] = ftrace_uint((uint8_t *)data, 8, dat->endian);
			snprintf(later->name[later->count++], sizeof(later->name[0]), "%s", data + 8);
		}
		break;
	default:
		if (dat->version >= 7 && id >= SEC_HEADER_INFO && id <= SEC_BUFFER_TEXT && bytes >= 8)
			later->section[id] = ftrace_uint((uint8_t *)data, 8, dat->endian);
		else if (id > OPT_LAST_KNOWN)
			dat->unknown_options++;
	}
	return 0;
}

/* Options up to DONE. @next: v7, offset of the next options section, 0 = none. @clock: option 4 was there. */
int part_options(struct cursor *c, struct later_buffers *later, uint64_t *next, bool *clock)
{
	uint64_t id, bytes;
	char *data;
	int ret;

	*next = 0;
	for (;;) {
		ret = cursor_uint(c, 2, &id, "an option");
		if (ret || (id == OPT_DONE && c->dat->version < 7))
			return ret;
		ret = cursor_uint(c, 4, &bytes, "an option's size");
		if (!ret)
			ret = cursor_dup(c, bytes, &data, "an option");
		if (ret)
			return ret;
		if (id == OPT_DONE) {
			if (bytes >= 8)
				*next = ftrace_uint((uint8_t *)data, 8, c->dat->endian);
			free(data);
			return 0;
		}
		if (id == OPT_TRACECLOCK)
			*clock = true;
		ret = option(c, (uint32_t)id, data, bytes, later);
		free(data);
		if (ret)
			return ret;
	}
}
