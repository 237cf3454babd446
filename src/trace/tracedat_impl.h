/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Private to the reader of trace.dat's container, which is told in four files: reading at a place (tracedat_cursor.c), the parts
 * that both versions have (tracedat_parts.c), their order in version 6 (tracedat_v6.c), the sections of version 7
 * (tracedat_v7.c), and what opens and closes them all (tracedat.c).
 */
#ifndef TRACE_TRACEDAT_IMPL_H
#define TRACE_TRACEDAT_IMPL_H

#include "trace/tracedat.h"

#define TRACEDAT_MAX_PART (256u << 20) /* largest single part (kallsyms, formats) that is believed */
#define TRACEDAT_MAX_CPUS 65536u

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

/* ---- reading at a place ---- */

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

/* All: 0, or -errno with c->err; @what names the part for people. */

/** cursor_cut - the file ends inside a part. Return: -ENODATA. */
int cursor_cut(struct cursor *c, const char *what);

/** cursor_bytes/_uint/_skip - next @bytes bytes; a number of @size bytes in the file's order; move on */
int cursor_bytes(struct cursor *c, void *out, uint64_t bytes, const char *what);
int cursor_uint(struct cursor *c, uint32_t size, uint64_t *value, const char *what);
int cursor_skip(struct cursor *c, uint64_t bytes, const char *what);

/** cursor_text - text up to its NUL, cut at @room */
int cursor_text(struct cursor *c, char *out, size_t room, const char *what);

/** cursor_dup - @bytes bytes as a new terminated text, to be freed */
int cursor_dup(struct cursor *c, uint64_t bytes, char **out, const char *what);

/* ---- parts, the same in both versions ---- */

/** struct later_buffers - what options tell for later: v6: other flyrecord blocks; v7: where the sections lie */
struct later_buffers {
	uint64_t section[SEC_BUFFER_TEXT + 1];
	uint64_t offset[64];
	char name[64][128];
	uint32_t count;
};

int part_header_info(struct cursor *c);
int part_ftrace_events(struct cursor *c);
int part_event_formats(struct cursor *c);
int part_cmdlines(struct cursor *c);

/** part_skip - u32 size and as many bytes that nobody needs */
int part_skip(struct cursor *c, const char *what);

/** part_add_buffer - a new buffer, NULL with c->err; part_add_streams - room for its CPUs; part_add_stream - one of them */
struct tracedat_buffer *part_add_buffer(struct cursor *c, const char *name);
int part_add_streams(struct cursor *c, struct tracedat_buffer *buffer, uint64_t count);
int part_add_stream(struct cursor *c, struct tracedat_buffer *buffer, uint64_t cpu, uint64_t offset, uint64_t bytes);

/** part_chosen_clock - "[mono_raw]" or "local [mono_raw] boot": the chosen one */
void part_chosen_clock(const char *text, char out[32]);

/**
 * part_options - options up to DONE
 * @next: v7, offset of the next options section, 0 = none
 * @clock: set when the option TRACECLOCK was there
 */
int part_options(struct cursor *c, struct later_buffers *later, uint64_t *next, bool *clock);

/* ---- the versions: everything behind the page size ---- */

int tracedat_read_v6(struct cursor *c);
int tracedat_read_v7(struct cursor *c);

#endif
