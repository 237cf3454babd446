/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reads the head of trace.dat files, versions 6 and 7; see tracedat.h. */
#include "trace/tracedat.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define MAX_PART (256u << 20) /* largest single part (kallsyms, formats) that is believed */
#define MAX_CPUS 65536u
#define MAX_BUFFERS 4096u

enum section {
	SEC_OPTIONS = 0,
	SEC_BUFFER = 3,
	SEC_STRINGS = 15,
	SEC_HEADER_INFO = 16,
	SEC_FTRACE_EVENTS = 17,
	SEC_EVENT_FORMATS = 18,
	SEC_KALLSYMS = 19,
	SEC_PRINTK = 20,
	SEC_CMDLINES = 21,
	SEC_BUFFER_TEXT = 22
};

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

/* A place in the file, or in an unpacked section: memory when mem is set, else pread from dat->fd. */
struct cursor {
	struct tracedat *dat;
	const uint8_t *mem;
	uint64_t at; /* offset in the file, or in mem */
	uint64_t end;
	uint8_t buf[8192]; /* read-ahead of the file */
	uint64_t buf_at;
	uint32_t buf_len;
	struct st_err *err;
};

static int cut(struct cursor *c, const char *what)
{
	return err_set(c->err, -ENODATA,
		       "%s: cut at offset %" PRIu64
		       " while reading %s: the recorder was probably killed before it wrote its "
		       "tables; record again and stop it with Ctrl-C",
		       c->dat->path, c->at, what);
}

static int cur_bytes(struct cursor *c, void *out, uint64_t bytes, const char *what)
{
	uint8_t *to = out;

	if (bytes > c->end - c->at)
		return cut(c, what);
	if (c->mem) {
		memcpy(out, c->mem + c->at, bytes);
		c->at += bytes;
		return 0;
	}
	while (bytes) {
		uint64_t skip = c->at - c->buf_at, n;

		if (c->at < c->buf_at || skip >= c->buf_len) {
			ssize_t got = pread(c->dat->fd, c->buf, sizeof(c->buf), (off_t)c->at);

			if (got < 0)
				return err_set(c->err, -errno, "%s: cannot read at offset %" PRIu64 ": %s",
					       c->dat->path, c->at, strerror(errno));
			if (!got)
				return cut(c, what);
			c->buf_at = c->at;
			c->buf_len = (uint32_t)got;
			skip = 0;
		}
		n = c->buf_len - skip < bytes ? c->buf_len - skip : bytes;
		memcpy(to, c->buf + skip, n);
		to += n;
		c->at += n;
		bytes -= n;
	}
	return 0;
}

static int cur_uint(struct cursor *c, uint32_t size, uint64_t *value, const char *what)
{
	uint8_t raw[8];
	int ret = cur_bytes(c, raw, size, what);

	*value = ret ? 0 : ftrace_uint(raw, size, c->dat->endian);
	return ret;
}

static int cur_skip(struct cursor *c, uint64_t bytes, const char *what)
{
	if (bytes > c->end - c->at)
		return cut(c, what);
	c->at += bytes;
	return 0;
}

/* Text up to its NUL, cut at @room. */
static int cur_text(struct cursor *c, char *out, size_t room, const char *what)
{
	size_t n = 0;
	char ch;
	int ret;

	do {
		ret = cur_bytes(c, &ch, 1, what);
		if (ret)
			return ret;
		if (n < room)
			out[n++] = ch;
	} while (ch && n < (1u << 16));
	out[n < room ? n : room - 1] = 0;
	return 0;
}

/* @bytes bytes as a new terminated text. */
static int cur_dup(struct cursor *c, uint64_t bytes, char **out, const char *what)
{
	int ret;

	*out = NULL;
	if (bytes > MAX_PART)
		return err_set(c->err, -EINVAL,
			       "%s: %s at offset %" PRIu64 " claims %" PRIu64 " bytes: the file is damaged",
			       c->dat->path, what, c->at, bytes);
	if (bytes > c->end - c->at)
		return cut(c, what);
	*out = malloc(bytes + 1);
	if (!*out)
		return err_set(c->err, -ENOMEM, "%s: out of memory", c->dat->path);
	ret = cur_bytes(c, *out, bytes, what);
	if (ret) {
		free(*out);
		*out = NULL;
		return ret;
	}
	(*out)[bytes] = 0;
	return 0;
}

/* ---- parts, the same in both versions --------------------------------------------------------------------------------- */

static int read_header_info(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	char name[16];
	uint64_t bytes;
	char *text;
	int ret;

	ret = cur_text(c, name, sizeof(name), "header_page");
	if (!ret && strcmp(name, "header_page"))
		return err_set(c->err, -EINVAL, "%s: expected header_page at offset %" PRIu64 ", found '%.16s'",
			       dat->path, c->at, name);
	if (!ret)
		ret = cur_uint(c, 8, &bytes, "header_page");
	if (!ret)
		ret = cur_dup(c, bytes, &text, "header_page");
	if (ret)
		return ret;
	ret = ring_layout_parse(&dat->layout, text, bytes, c->err);
	free(text);
	if (ret)
		return ret;
	dat->layout.endian = dat->endian;
	dat->long_bytes = dat->layout.commit_size;
	ret = cur_text(c, name, sizeof(name), "header_event");
	if (!ret)
		ret = cur_uint(c, 8, &bytes, "header_event");
	return ret ? ret : cur_skip(c, bytes, "header_event");
}

static int add_format(struct cursor *c, const char *system)
{
	struct tracedat *dat = c->dat;
	struct ftrace_format *format, **more;
	struct st_err why = { 0 };
	uint64_t bytes;
	char *text;
	int ret = cur_uint(c, 8, &bytes, "an event format");

	if (!ret)
		ret = cur_dup(c, bytes, &text, "an event format");
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

static int read_ftrace_events(struct cursor *c)
{
	uint64_t count, i;
	int ret = cur_uint(c, 4, &count, "the list of ftrace formats");

	for (i = 0; !ret && i < count; i++)
		ret = add_format(c, "ftrace");
	return ret;
}

static int read_event_formats(struct cursor *c)
{
	uint64_t systems, events, i, j;
	char system[FTRACE_NAME_BYTES];
	int ret = cur_uint(c, 4, &systems, "the list of event systems");

	for (i = 0; !ret && i < systems; i++) {
		ret = cur_text(c, system, sizeof(system), "an event system");
		if (!ret)
			ret = cur_uint(c, 4, &events, "the events of a system");
		for (j = 0; !ret && j < events; j++)
			ret = add_format(c, system);
	}
	return ret;
}

static int read_cmdlines(struct cursor *c)
{
	uint64_t bytes;
	int ret = cur_uint(c, 8, &bytes, "saved_cmdlines");

	free(c->dat->cmdlines);
	c->dat->cmdlines = NULL;
	return ret ? ret : cur_dup(c, bytes, &c->dat->cmdlines, "saved_cmdlines");
}

static int skip_sized(struct cursor *c, const char *what)
{
	uint64_t bytes;
	int ret = cur_uint(c, 4, &bytes, what);

	return ret ? ret : cur_skip(c, bytes, what);
}

static struct tracedat_buffer *add_buffer(struct cursor *c, const char *name)
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

static int add_streams(struct cursor *c, struct tracedat_buffer *buffer, uint64_t count)
{
	if (count > MAX_CPUS)
		return err_set(c->err, -EINVAL, "%s: %" PRIu64 " CPUs at offset %" PRIu64 ": the file is damaged",
			       c->dat->path, count, c->at);
	buffer->streams = calloc(count ? count : 1, sizeof(*buffer->streams));
	if (!buffer->streams)
		return err_set(c->err, -ENOMEM, "%s: out of memory", c->dat->path);
	return 0;
}

static int add_stream(struct cursor *c, struct tracedat_buffer *buffer, uint64_t cpu, uint64_t offset, uint64_t bytes)
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
static void chosen_clock(const char *text, char out[32])
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
	ret = cur_uint(c, 8, &value, "a buffer's offset");
	if (!ret)
		ret = cur_text(c, name, sizeof(name), "a buffer's name");
	if (!ret) {
		buffer = add_buffer(c, name);
		ret = buffer ? cur_text(c, buffer->clock, sizeof(buffer->clock), "a buffer's clock") : -ENOMEM;
	}
	if (!ret)
		ret = cur_uint(c, 4, &page, "a buffer's page size");
	if (!ret)
		ret = cur_uint(c, 4, &count, "a buffer's CPUs");
	if (!ret)
		ret = add_streams(c, buffer, count);
	if (!ret && page)
		buffer->page_bytes = (uint32_t)page;
	for (i = 0; !ret && i < count; i++) {
		ret = cur_uint(c, 4, &cpu, "a CPU's number");
		if (!ret)
			ret = cur_uint(c, 8, &offset, "a CPU's offset");
		if (!ret)
			ret = cur_uint(c, 8, &size, "a CPU's size");
		if (!ret)
			ret = add_stream(c, buffer, cpu, offset, size);
	}
	free(c);
	return ret;
}

/* What options tell for later. v6: other flyrecord blocks, read after the top-level one; v7: where the sections lie. */
struct later_buffers {
	uint64_t section[SEC_BUFFER_TEXT + 1];
	uint64_t offset[64];
	char name[64][128];
	uint32_t count;
};

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
static int read_options(struct cursor *c, struct later_buffers *later, uint64_t *next, bool *clock)
{
	uint64_t id, bytes;
	char *data;
	int ret;

	*next = 0;
	for (;;) {
		ret = cur_uint(c, 2, &id, "an option");
		if (ret || (id == OPT_DONE && c->dat->version < 7))
			return ret;
		ret = cur_uint(c, 4, &bytes, "an option's size");
		if (!ret)
			ret = cur_dup(c, bytes, &data, "an option");
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

/* ---- version 6 -------------------------------------------------------------------------------------------------------- */

/* From `flyrecord` on: CPU table and clock; or the text of a latency trace. */
static int read_flyrecord_v6(struct cursor *c, const char *name, struct later_buffers *later)
{
	struct tracedat *dat = c->dat;
	struct tracedat_buffer *buffer;
	uint64_t offset, bytes, next, i;
	char tag[16], *text;
	bool clock = false;
	int ret = cur_bytes(c, tag, 10, "flyrecord");

	if (!ret && !memcmp(tag, "options  ", 10)) {
		ret = read_options(c, later, &next, &clock);
		if (!ret)
			ret = cur_bytes(c, tag, 10, "flyrecord");
	}
	if (ret)
		return ret;
	if (!memcmp(tag, "latency  ", 10))
		return cur_dup(c, c->end - c->at, &dat->latency_text, "a latency trace");
	if (memcmp(tag, "flyrecord", 10))
		return err_set(c->err, -EINVAL, "%s: expected flyrecord before offset %" PRIu64 ": the file is damaged",
			       dat->path, c->at);
	buffer = add_buffer(c, name);
	ret = buffer ? add_streams(c, buffer, dat->cpu_count) : -ENOMEM;
	for (i = 0; !ret && i < dat->cpu_count; i++) {
		ret = cur_uint(c, 8, &offset, "the CPU table");
		if (!ret)
			ret = cur_uint(c, 8, &bytes, "the CPU table");
		if (!ret)
			ret = add_stream(c, buffer, i, offset, bytes);
	}
	/* the clock is there when option 4 was, and for every buffer of such a file */
	if (ret || !(clock || name[0]))
		return ret;
	ret = cur_uint(c, 8, &bytes, "the trace clock");
	if (!ret && bytes < 4096) {
		ret = cur_dup(c, bytes, &text, "the trace clock");
		if (!ret)
			chosen_clock(text, buffer->clock);
		if (!ret)
			free(text);
	}
	return ret;
}

static int read_v6(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	struct later_buffers *later;
	uint64_t count;
	uint32_t i;
	int ret = read_header_info(c);

	if (!ret)
		ret = read_ftrace_events(c);
	if (!ret)
		ret = read_event_formats(c);
	if (!ret)
		ret = skip_sized(c, "kallsyms");
	if (!ret)
		ret = skip_sized(c, "printk_formats");
	if (!ret)
		ret = read_cmdlines(c);
	if (!ret)
		ret = cur_uint(c, 4, &count, "the number of CPUs");
	if (ret)
		return ret;
	if (count > MAX_CPUS)
		return err_set(c->err, -EINVAL, "%s: %" PRIu64 " CPUs at offset %" PRIu64 ": the file is damaged",
			       dat->path, count, c->at);
	dat->cpu_count = (uint32_t)count;
	later = calloc(1, sizeof(*later));
	if (!later)
		return err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
	ret = read_flyrecord_v6(c, "", later);
	for (i = 0; !ret && i < later->count; i++) {
		struct later_buffers none = { .count = 0 };

		if (later->offset[i] >= dat->file_bytes) {
			ret = err_set(c->err, -ENODATA,
				      "%s: buffer %s at offset %" PRIu64 " lies beyond the file's end", dat->path,
				      later->name[i], later->offset[i]);
			break;
		}
		c->at = later->offset[i];
		ret = read_flyrecord_v6(c, later->name[i], &none);
	}
	free(later);
	return ret;
}

/* ---- version 7 -------------------------------------------------------------------------------------------------------- */

int tracedat_unpack(const struct tracedat *dat, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
#ifdef HAVE_ZSTD
	if (dat->compression == TRACEDAT_ZSTD)
		return ZSTD_decompress(out, out_bytes, in, in_bytes) == out_bytes ? 0 : -EINVAL;
#endif
#ifdef HAVE_ZLIB
	if (dat->compression == TRACEDAT_ZLIB) {
		uLongf got = out_bytes;

		return uncompress(out, &got, in, in_bytes) == Z_OK && got == out_bytes ? 0 : -EINVAL;
	}
#endif
	return -ENOTSUP;
}

/* Unpack the body of a compressed section: u32 packed bytes, u32 unpacked bytes, data. */
static int unpack_section(struct cursor *c, char **out, uint64_t *out_bytes)
{
	struct tracedat *dat = c->dat;
	uint64_t packed, unpacked, at = c->at;
	char *in;
	int ret = cur_uint(c, 4, &packed, "a compressed section");

	if (!ret)
		ret = cur_uint(c, 4, &unpacked, "a compressed section");
	if (!ret && unpacked > MAX_PART)
		ret = err_set(c->err, -EINVAL, "%s: section at offset %" PRIu64 " claims %" PRIu64 " bytes unpacked",
			      dat->path, at, unpacked);
	if (!ret)
		ret = cur_dup(c, packed, &in, "a compressed section");
	if (ret)
		return ret;
	*out = malloc(unpacked + 1);
	if (!*out)
		ret = err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
	else if (tracedat_unpack(dat, in, packed, *out, unpacked))
		ret = err_set(c->err, -EINVAL, "%s: section at offset %" PRIu64 " does not unpack: the file is damaged",
			      dat->path, at);
	free(in);
	if (ret) {
		free(*out);
		*out = NULL;
		return ret;
	}
	*out_bytes = unpacked;
	return 0;
}

static int section_body(struct cursor *c, uint32_t id, struct later_buffers *later, uint64_t *next_options)
{
	bool clock = false;

	switch (id) {
	case SEC_OPTIONS:
		return read_options(c, later, next_options, &clock);
	case SEC_HEADER_INFO:
		return read_header_info(c);
	case SEC_FTRACE_EVENTS:
		return read_ftrace_events(c);
	case SEC_EVENT_FORMATS:
		return read_event_formats(c);
	case SEC_CMDLINES:
		return read_cmdlines(c);
	case SEC_BUFFER_TEXT:
		return c->dat->latency_text ? 0 : cur_dup(c, c->end - c->at, &c->dat->latency_text, "a latency trace");
	default:
		return 0; /* kallsyms, printk, strings: not needed for events */
	}
}

/* One section at c->at; moves on to the next one. */
static int read_section(struct cursor *c, uint32_t *id_out, struct later_buffers *later, uint64_t *next_options)
{
	uint64_t id, flags, string, bytes, start, end = c->end;
	struct cursor *inner;
	char *body = NULL;
	int ret = cur_uint(c, 2, &id, "a section");

	if (!ret)
		ret = cur_uint(c, 2, &flags, "a section");
	if (!ret)
		ret = cur_uint(c, 4, &string, "a section");
	if (!ret)
		ret = cur_uint(c, 8, &bytes, "a section");
	if (ret)
		return ret;
	*id_out = (uint32_t)id;
	start = c->at;
	if (bytes > end - start)
		return cut(c, "a section");
	c->end = start + bytes;
	if (id == SEC_BUFFER) {
		/* pages: the options tell where */
	} else if (flags & 1) {
		ret = unpack_section(c, &body, &bytes);
		inner = ret ? NULL : malloc(sizeof(*inner));
		if (inner) {
			*inner = (struct cursor){ .dat = c->dat, .mem = (uint8_t *)body, .end = bytes, .err = c->err };
			ret = section_body(inner, (uint32_t)id, later, next_options);
			free(inner);
		} else if (!ret) {
			ret = err_set(c->err, -ENOMEM, "%s: out of memory", c->dat->path);
		}
		if (body)
			free(body);
	} else {
		ret = section_body(c, (uint32_t)id, later, next_options);
	}
	c->at = c->end;
	c->end = end;
	return ret;
}

static int read_compression(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	char name[32], version[32];
	int ret = cur_text(c, name, sizeof(name), "the compression's name");

	if (!ret)
		ret = cur_text(c, version, sizeof(version), "the compression's version");
	if (ret || !strcmp(name, "none") || !name[0])
		return ret;
#ifdef HAVE_ZSTD
	if (!strcmp(name, "zstd")) {
		dat->compression = TRACEDAT_ZSTD;
		return 0;
	}
#endif
#ifdef HAVE_ZLIB
	if (!strcmp(name, "zlib")) {
		dat->compression = TRACEDAT_ZLIB;
		return 0;
	}
#endif
	return err_set(c->err, -ENOTSUP,
		       "%s is compressed with %s, which this build cannot read; convert it with "
		       "`trace-cmd convert --compression none -i %s -o plain.dat`",
		       dat->path, name, dat->path);
}

/* Follow the chain of options sections; each names the next one. */
static int read_option_chain(struct cursor *c, uint64_t offset, struct later_buffers *later)
{
	struct tracedat *dat = c->dat;
	uint32_t id, hops;
	uint64_t next;
	int ret;

	for (hops = 0; offset; hops++, offset = next) {
		if (hops > 1000)
			return err_set(c->err, -EINVAL, "%s: its options sections form a circle: the file is damaged",
				       dat->path);
		c->at = offset;
		if (offset >= dat->file_bytes)
			return cut(c, "the options");
		next = 0;
		ret = read_section(c, &id, later, &next);
		if (!ret && id != SEC_OPTIONS)
			ret = err_set(c->err, -EINVAL, "%s: expected options at offset %" PRIu64 ", found section %u",
				      dat->path, offset, id);
		if (ret)
			return ret;
	}
	return 0;
}

static int read_v7(struct cursor *c)
{
	static const uint32_t order[] = { SEC_HEADER_INFO, SEC_FTRACE_EVENTS, SEC_EVENT_FORMATS, SEC_CMDLINES,
					  SEC_BUFFER_TEXT };
	struct tracedat *dat = c->dat;
	struct later_buffers *later;
	uint64_t options, next;
	uint32_t id, i;
	int ret = read_compression(c);

	if (!ret)
		ret = cur_uint(c, 8, &options, "the offset of the options");
	if (ret)
		return ret;
	if (!options)
		return cut(c, "the options");
	later = calloc(1, sizeof(*later));
	if (!later)
		return err_set(c->err, -ENOMEM, "%s: out of memory", dat->path);
	ret = read_option_chain(c, options, later);
	if (!ret && !later->section[SEC_HEADER_INFO])
		ret = err_set(c->err, -EINVAL, "%s: no option tells where header_page lies: the file is damaged",
			      dat->path);
	for (i = 0; !ret && i < sizeof(order) / sizeof(order[0]); i++) {
		c->at = later->section[order[i]];
		if (!c->at)
			continue;
		ret = c->at < dat->file_bytes ? read_section(c, &id, later, &next) : cut(c, "a section");
		if (!ret && id != order[i])
			ret = err_set(c->err, -EINVAL, "%s: expected section %u at offset %" PRIu64 ", found %u",
				      dat->path, order[i], later->section[order[i]], id);
	}
	free(later);
	return ret;
}

/* ---- both --------------------------------------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
	uint32_t x = (*(struct ftrace_format *const *)a)->id, y = (*(struct ftrace_format *const *)b)->id;

	return (x > y) - (x < y);
}

const struct ftrace_format *tracedat_format(const struct tracedat *dat, uint32_t id)
{
	uint32_t low = 0, high = dat->format_count;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (dat->formats[mid]->id == id)
			return dat->formats[mid];
		if (dat->formats[mid]->id < id)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

static int read_start(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	uint8_t magic[10];
	char version[16];
	uint64_t value;
	int ret;

	if (c->end < sizeof(magic) || cur_bytes(c, magic, sizeof(magic), "the file's head") ||
	    memcmp(magic, "\x17\x08\x44tracing", sizeof(magic)))
		return err_set(c->err, -EINVAL, "%s is not a trace.dat: it does not begin with 17 08 44 'tracing'",
			       dat->path);
	ret = cur_text(c, version, sizeof(version), "the version");
	dat->version = ret ? 0 : atoi(version);
	if (!ret && dat->version != 6 && dat->version != 7)
		return err_set(c->err, -ENOTSUP, "%s: trace.dat version '%s'; versions 6 and 7 can be read", dat->path,
			       version);
	if (!ret)
		ret = cur_uint(c, 1, &value, "the byte order");
	if (ret)
		return ret;
	dat->endian.big = value != 0;
	dat->endian.swap = dat->endian.big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
	ret = cur_uint(c, 1, &value, "the size of long");
	dat->long_bytes = (uint32_t)value;
	if (!ret)
		ret = cur_uint(c, 4, &value, "the page size");
	dat->page_bytes = (uint32_t)value;
	if (!ret && (value < 64 || value > (16u << 20)))
		ret = err_set(c->err, -EINVAL, "%s: page size %" PRIu64 " at offset %" PRIu64 ": the file is damaged",
			      dat->path, value, c->at - 4);
	return ret;
}

static int check_buffers(const struct tracedat *dat, struct st_err *err)
{
	uint32_t i;

	for (i = 0; i < dat->buffer_count; i++)
		if (dat->buffers[i].page_bytes < 64 || dat->buffers[i].page_bytes > (16u << 20))
			return err_set(err, -EINVAL, "%s: buffer '%s' has a page size of %u: the file is damaged",
				       dat->path, dat->buffers[i].name, dat->buffers[i].page_bytes);
	if (!dat->buffer_count && !dat->latency_text)
		return err_set(err, -ENODATA, "%s holds no buffers: nothing was recorded, or the recorder was killed",
			       dat->path);
	return 0;
}

int tracedat_open(struct tracedat *dat, const char *path, struct st_err *err)
{
	struct cursor *c = calloc(1, sizeof(*c));
	struct st_err local;
	struct stat st;
	int ret = -ENOMEM;

	if (!err)
		err = &local;
	*dat = (struct tracedat){ .fd = -1 };
	dat->path = strdup(path);
	if (!c || !dat->path) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		goto out;
	}
	dat->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (dat->fd < 0 || fstat(dat->fd, &st) < 0) {
		ret = err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
		goto out;
	}
	if (!S_ISREG(st.st_mode)) {
		ret = err_set(err, -ESPIPE,
			      "%s is not a regular file: a trace.dat is read at many places at once, store it first",
			      path);
		goto out;
	}
	dat->file_bytes = (uint64_t)st.st_size;
	*c = (struct cursor){ .dat = dat, .end = dat->file_bytes, .err = err };
	ret = read_start(c);
	if (!ret)
		ret = dat->version == 6 ? read_v6(c) : read_v7(c);
	if (!ret && dat->formats)
		qsort(dat->formats, dat->format_count, sizeof(*dat->formats), by_id);
	if (!ret)
		ret = check_buffers(dat, err);
out:
	free(c);
	if (ret)
		tracedat_close(dat);
	return ret;
}

void tracedat_close(struct tracedat *dat)
{
	uint32_t i;

	for (i = 0; i < dat->format_count; i++)
		free(dat->formats[i]);
	for (i = 0; i < dat->buffer_count; i++) {
		free(dat->buffers[i].name);
		free(dat->buffers[i].streams);
	}
	free(dat->formats);
	free(dat->buffers);
	free(dat->cmdlines);
	free(dat->uname);
	free(dat->cpustat);
	free(dat->latency_text);
	free(dat->path);
	if (dat->fd > 0)
		close(dat->fd);
	*dat = (struct tracedat){ .fd = -1 };
}
