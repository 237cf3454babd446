/* SPDX-License-Identifier: MulanPSL-2.0 */
/* trace.dat version 7: sections, packed or not, that options tell the places of; see tracedat_impl.h. */
#include "trace/tracedat_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

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
	int ret = cursor_uint(c, 4, &packed, "a compressed section");

	if (!ret)
		ret = cursor_uint(c, 4, &unpacked, "a compressed section");
	if (!ret && unpacked > TRACEDAT_MAX_PART)
		ret = err_set(c->err, -EINVAL, "%s: section at offset %" PRIu64 " claims %" PRIu64 " bytes unpacked",
			      dat->path, at, unpacked);
	if (!ret)
		ret = cursor_dup(c, packed, &in, "a compressed section");
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
		return part_options(c, later, next_options, &clock);
	case SEC_HEADER_INFO:
		return part_header_info(c);
	case SEC_FTRACE_EVENTS:
		return part_ftrace_events(c);
	case SEC_EVENT_FORMATS:
		return part_event_formats(c);
	case SEC_CMDLINES:
		return part_cmdlines(c);
	case SEC_BUFFER_TEXT:
		return c->dat->latency_text ? 0
					    : cursor_dup(c, c->end - c->at, &c->dat->latency_text, "a latency trace");
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
	int ret = cursor_uint(c, 2, &id, "a section");

	if (!ret)
		ret = cursor_uint(c, 2, &flags, "a section");
	if (!ret)
		ret = cursor_uint(c, 4, &string, "a section");
	if (!ret)
		ret = cursor_uint(c, 8, &bytes, "a section");
	if (ret)
		return ret;
	*id_out = (uint32_t)id;
	start = c->at;
	if (bytes > end - start)
		return cursor_cut(c, "a section");
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
	int ret = cursor_text(c, name, sizeof(name), "the compression's name");

	if (!ret)
		ret = cursor_text(c, version, sizeof(version), "the compression's version");
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
			return cursor_cut(c, "the options");
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

int tracedat_read_v7(struct cursor *c)
{
	static const uint32_t order[] = { SEC_HEADER_INFO, SEC_FTRACE_EVENTS, SEC_EVENT_FORMATS, SEC_CMDLINES,
					  SEC_BUFFER_TEXT };
	struct tracedat *dat = c->dat;
	struct later_buffers *later;
	uint64_t options, next;
	uint32_t id, i;
	int ret = read_compression(c);

	if (!ret)
		ret = cursor_uint(c, 8, &options, "the offset of the options");
	if (ret)
		return ret;
	if (!options)
		return cursor_cut(c, "the options");
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
		ret = c->at < dat->file_bytes ? read_section(c, &id, later, &next) : cursor_cut(c, "a section");
		if (!ret && id != order[i])
			ret = err_set(c->err, -EINVAL, "%s: expected section %u at offset %" PRIu64 ", found %u",
				      dat->path, order[i], later->section[order[i]], id);
	}
	free(later);
	return ret;
}
