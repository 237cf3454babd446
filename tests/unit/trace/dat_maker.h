/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Makes small trace.dat files of every kind that the format knows, byte by byte and independent of our own writer: version
 * 6 or 7, byte order, size of long, packed or not, further buffers. For the tests of the reader and the seeds of its fuzzer.
 */
#ifndef DAT_MAKER_H
#define DAT_MAKER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define DM_PAGE 4096
#define DM_CPUS 2

struct dm {
	uint8_t *data;
	size_t len, room;
	bool big; /* byte order of the file */
	int version, long_bytes;
	const char *packing; /* "none", "zstd", "zlib" */
	bool extra_buffer;
	const char *options; /* text of option 7 (OFFSET), NULL = none */
	uint8_t pages[DM_CPUS][2][DM_PAGE];
	uint32_t page_at[DM_CPUS][2]; /* bytes of events in it */
	size_t cuts[64]; /* where a part of the file ends */
	size_t cut_count;
};

static inline void dm_put(struct dm *m, const void *data, size_t len)
{
	if (m->len + len > m->room) {
		m->room = 2 * (m->len + len);
		m->data = realloc(m->data, m->room);
	}
	if (len)
		memcpy(m->data + m->len, data, len);
	m->len += len;
}

static inline void dm_number(bool big, uint8_t *out, uint64_t value, int bytes)
{
	int i;

	for (i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> 8 * (big ? bytes - 1 - i : i));
}

static inline void dm_uint(struct dm *m, uint64_t value, int bytes)
{
	uint8_t out[8];

	dm_number(m->big, out, value, bytes);
	dm_put(m, out, (size_t)bytes);
}

static inline void dm_text(struct dm *m, const char *text)
{
	dm_put(m, text, strlen(text) + 1);
}

static inline void dm_cut(struct dm *m)
{
	m->cuts[m->cut_count++] = m->len;
}

static inline size_t dm_header_page(const struct dm *m, char out[1024])
{
	int l = m->long_bytes;

	return (size_t)snprintf(out, 1024,
				"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
				"\tfield: local_t commit;\toffset:8;\tsize:%d;\tsigned:1;\n"
				"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
				"\tfield: char data;\toffset:%d;\tsize:%d;\tsigned:1;\n",
				l, 8 + l, DM_PAGE - 8 - l);
}

static const char dm_common[] = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
				"\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
				"\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
				"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

static const struct {
	const char *system, *name, *fields;
	int id;
} dm_formats[] = {
	{ "sched", "sched_switch",
	  "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n"
	  "\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n"
	  "\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n"
	  "\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n"
	  "\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n"
	  "\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n"
	  "\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n",
	  314 },
	{ "sched", "sched_migrate_task",
	  "\tfield:__data_loc char[] comm;\toffset:8;\tsize:4;\tsigned:0;\n"
	  "\tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;\n"
	  "\tfield:int prio;\toffset:16;\tsize:4;\tsigned:1;\n"
	  "\tfield:int orig_cpu;\toffset:20;\tsize:4;\tsigned:1;\n"
	  "\tfield:int dest_cpu;\toffset:24;\tsize:4;\tsigned:1;\n",
	  315 },
	{ "mine", "odd_event",
	  "\tfield:u64 big;\toffset:8;\tsize:8;\tsigned:0;\n"
	  "\tfield:void * where;\toffset:16;\tsize:8;\tsigned:0;\n"
	  "\tfield:s16 small;\toffset:24;\tsize:2;\tsigned:1;\n",
	  5000 },
};

#define DM_FORMATS (sizeof(dm_formats) / sizeof(dm_formats[0]))

static inline size_t dm_format(size_t i, char out[2048])
{
	return (size_t)snprintf(out, 2048, "name: %s\nID: %d\nformat:\n%s%s\nprint fmt: \"\"\n", dm_formats[i].name,
				dm_formats[i].id, dm_common, dm_formats[i].fields);
}

/* ---- pages ---------------------------------------------------------------------------------------------------------- */

static inline uint8_t *dm_data(struct dm *m, int cpu, int page)
{
	return m->pages[cpu][page] + 8 + m->long_bytes + m->page_at[cpu][page];
}

/* Header of an event: type and delta in the bit order of the file. */
static inline void dm_head(struct dm *m, int cpu, int page, uint32_t type, uint32_t delta)
{
	dm_number(m->big, dm_data(m, cpu, page), m->big ? type << 27 | delta : delta << 5 | type, 4);
	m->page_at[cpu][page] += 4;
}

static inline void dm_word(struct dm *m, int cpu, int page, uint32_t word)
{
	dm_number(m->big, dm_data(m, cpu, page), word, 4);
	m->page_at[cpu][page] += 4;
}

static inline void dm_event(struct dm *m, int cpu, int page, uint32_t delta, const void *payload, uint32_t len)
{
	if (len <= 112) {
		dm_head(m, cpu, page, (len + 3) / 4, delta);
	} else {
		dm_head(m, cpu, page, 0, delta);
		dm_word(m, cpu, page, len + 4);
	}
	memcpy(dm_data(m, cpu, page), payload, len);
	m->page_at[cpu][page] += (len + 3) & ~3u;
}

static inline void dm_common_fields(struct dm *m, uint8_t *rec, int id, int pid)
{
	dm_number(m->big, rec, (uint64_t)id, 2);
	dm_number(m->big, rec + 4, (uint64_t)pid, 4);
}

static inline void dm_switch(struct dm *m, int cpu, int page, uint32_t delta, const char *prev, int prev_pid,
			     uint64_t state, const char *next, int next_pid)
{
	uint8_t rec[64] = { 0 };

	dm_common_fields(m, rec, 314, prev_pid);
	strncpy((char *)rec + 8, prev, 15);
	dm_number(m->big, rec + 24, (uint64_t)prev_pid, 4);
	dm_number(m->big, rec + 28, 120, 4);
	dm_number(m->big, rec + 32, state, 8);
	strncpy((char *)rec + 40, next, 15);
	dm_number(m->big, rec + 56, (uint64_t)next_pid, 4);
	dm_number(m->big, rec + 60, 120, 4);
	dm_event(m, cpu, page, delta, rec, sizeof(rec));
}

static inline void dm_migrate(struct dm *m, int cpu, int page, uint32_t delta, const char *comm, int pid)
{
	uint8_t rec[48] = { 0 };

	dm_common_fields(m, rec, 315, pid);
	dm_number(m->big, rec + 8, 28 | (strlen(comm) + 1) << 16, 4);
	dm_number(m->big, rec + 12, (uint64_t)pid, 4);
	dm_number(m->big, rec + 16, 100, 4);
	dm_number(m->big, rec + 20, 0, 4);
	dm_number(m->big, rec + 24, 1, 4);
	memcpy(rec + 28, comm, strlen(comm) + 1);
	dm_event(m, cpu, page, delta, rec, sizeof(rec));
}

/* A record longer than a small one can be. */
static inline void dm_odd(struct dm *m, int cpu, int page, uint32_t delta, uint32_t len)
{
	uint8_t rec[512] = { 0 };

	dm_common_fields(m, rec, 5000, 7);
	dm_number(m->big, rec + 8, 0xfedcba9876543210u, 8);
	dm_number(m->big, rec + 16, 0xffff800000001000u, 8);
	dm_number(m->big, rec + 24, (uint64_t)-5, 2);
	dm_event(m, cpu, page, delta, rec, len);
}

/* @lost: -1 = none, 0 = how many is not stored */
static inline void dm_page_end(struct dm *m, int cpu, int page, uint64_t t_ns, int64_t lost)
{
	uint8_t *at = m->pages[cpu][page];
	uint64_t commit = m->page_at[cpu][page];

	if (lost >= 0)
		commit |= 1u << 31;
	if (lost > 0) {
		commit |= 1u << 30;
		dm_number(m->big, dm_data(m, cpu, page), (uint64_t)lost, m->long_bytes);
	}
	if (lost >= 0 && m->long_bytes == 8)
		commit |= 0xffffffff00000000u; /* the kernel extends the sign */
	dm_number(m->big, at, t_ns, 8);
	dm_number(m->big, at + 8, commit, m->long_bytes);
}

/* Two CPUs; every kind of ring buffer entry. */
static inline void dm_pages(struct dm *m)
{
	memset(m->pages, 0, sizeof(m->pages));
	memset(m->page_at, 0, sizeof(m->page_at));
	dm_switch(m, 0, 0, 10, "swapper/0", 0, 0, "a b", 10);
	dm_head(m, 0, 0, 30, 5); /* time extend: 1 << 27 more, and 5 */
	dm_word(m, 0, 0, 1);
	dm_switch(m, 0, 0, 20, "a b", 10, 1, "b", 20);
	dm_head(m, 0, 0, 29, 3); /* discarded event of 12 bytes */
	dm_word(m, 0, 0, 8);
	dm_word(m, 0, 0, 0xdeadbeef);
	dm_odd(m, 0, 0, 4, 320);
	dm_head(m, 0, 0, 29, 0); /* the rest is empty */
	dm_page_end(m, 0, 0, 1000000, -1);
	dm_head(m, 0, 1, 31, 77); /* absolute time 3 << 27 | 77 */
	dm_word(m, 0, 1, 3);
	dm_switch(m, 0, 1, 0, "b", 20, 0x100, "a b", 10);
	dm_page_end(m, 0, 1, 200000000, 58943);
	dm_migrate(m, 1, 0, 7, "mover", 30);
	dm_page_end(m, 1, 0, 1000005, 0);
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static inline void dm_pack(const struct dm *m, const void *in, size_t len, uint8_t *out, size_t *out_len)
{
#ifdef HAVE_ZSTD
	if (!strcmp(m->packing, "zstd"))
		*out_len = ZSTD_compress(out, *out_len, in, len, 3);
#endif
#ifdef HAVE_ZLIB
	if (!strcmp(m->packing, "zlib")) {
		uLongf room = *out_len;

		compress(out, &room, in, len);
		*out_len = room;
	}
#endif
}

static inline void dm_file_start(struct dm *m)
{
	m->len = 0;
	m->cut_count = 0;
	dm_put(m, "\x17\x08\x44tracing", 10);
	dm_text(m, m->version == 6 ? "6" : "7");
	dm_uint(m, m->big, 1);
	dm_uint(m, (uint64_t)m->long_bytes, 1);
	dm_uint(m, DM_PAGE, 4);
	dm_cut(m);
}

static inline void dm_header_info(struct dm *m)
{
	char text[1024];
	size_t len = dm_header_page(m, text);

	dm_text(m, "header_page");
	dm_uint(m, len, 8);
	dm_put(m, text, len);
	dm_text(m, "header_event");
	dm_uint(m, 3, 8);
	dm_put(m, "x\n\n", 3);
}

static inline void dm_event_formats(struct dm *m)
{
	char text[2048];
	size_t i, len;

	dm_uint(m, 2, 4);
	dm_text(m, "sched");
	dm_uint(m, 2, 4);
	for (i = 0; i < DM_FORMATS; i++) {
		if (i == 2) {
			dm_text(m, "mine");
			dm_uint(m, 1, 4);
		}
		len = dm_format(i, text);
		dm_uint(m, len, 8);
		dm_put(m, text, len);
	}
}

static const char dm_cmdlines[] = "10 a b\n20 b\n30 mover\n";
static const char dm_clocks[] = "local global [mono_raw] boot\n";

static inline void dm_patch(struct dm *m, size_t at, uint64_t value)
{
	dm_number(m->big, m->data + at, value, 8);
}

static inline void dm_flyrecord(struct dm *m)
{
	size_t table, cpu;

	dm_text(m, "flyrecord");
	table = m->len;
	for (cpu = 0; cpu < 2 * DM_CPUS; cpu++)
		dm_uint(m, 0, 8);
	dm_uint(m, 10, 8);
	dm_put(m, "[mono_raw]", 10);
	dm_cut(m);
	for (cpu = 0; cpu < DM_CPUS; cpu++) {
		while (m->len % DM_PAGE)
			dm_put(m, "", 1);
		dm_patch(m, table + 16 * cpu, m->len);
		dm_patch(m, table + 16 * cpu + 8, (cpu ? 1 : 2) * DM_PAGE);
		dm_put(m, m->pages[cpu], (cpu ? 1 : 2) * DM_PAGE);
		dm_cut(m);
	}
}

static inline void dm_option(struct dm *m, int id, const void *data, size_t len)
{
	dm_uint(m, (uint64_t)id, 2);
	dm_uint(m, len, 4);
	dm_put(m, data, len);
}

static inline void dm_v6(struct dm *m)
{
	uint8_t where[16] = { 0 };
	size_t at = 0;

	dm_header_info(m);
	dm_cut(m);
	dm_uint(m, 0, 4); /* no ftrace events */
	dm_event_formats(m);
	dm_cut(m);
	dm_uint(m, 0, 4); /* kallsyms */
	dm_uint(m, 0, 4); /* printk */
	dm_uint(m, sizeof(dm_cmdlines) - 1, 8);
	dm_put(m, dm_cmdlines, sizeof(dm_cmdlines) - 1);
	dm_cut(m);
	dm_uint(m, DM_CPUS, 4);
	dm_put(m, "options  ", 10);
	dm_option(m, 4, dm_clocks, sizeof(dm_clocks));
	dm_option(m, 5, "Linux host 5.10.0-60 x86_64", 28);
	dm_option(m, 99, "new", 4);
	if (m->options)
		dm_option(m, 7, m->options, strlen(m->options) + 1);
	if (m->extra_buffer) {
		memcpy(where + 8, "inst", 5);
		dm_option(m, 3, where, 13);
		at = m->len - 13;
	}
	dm_uint(m, 0, 2);
	dm_cut(m);
	dm_flyrecord(m);
	if (m->extra_buffer) {
		dm_patch(m, at, m->len);
		dm_flyrecord(m);
	}
}

/* A section of version 7: @body is put behind its header, packed where the file is. Return: its offset. */
static inline size_t dm_section(struct dm *m, int id, const uint8_t *body, size_t len, bool packed)
{
	size_t at = m->len, out_len = len * 2 + 1024;
	uint8_t *out = malloc(out_len);

	if (packed)
		dm_pack(m, body, len, out, &out_len);
	dm_uint(m, (uint64_t)id, 2);
	dm_uint(m, packed, 2);
	dm_uint(m, 0, 4);
	dm_uint(m, packed ? out_len + 8 : len, 8);
	if (packed) {
		dm_uint(m, out_len, 4);
		dm_uint(m, len, 4);
		dm_put(m, out, out_len);
	} else {
		dm_put(m, body, len);
	}
	free(out);
	dm_cut(m);
	return at;
}

/* Bodies are built in a maker of their own. */
static inline struct dm dm_part(const struct dm *m)
{
	struct dm part = { .big = m->big, .version = m->version, .long_bytes = m->long_bytes, .packing = m->packing };

	return part;
}

static inline size_t dm_stream(struct dm *m, int cpu, bool packed)
{
	size_t at, i, pages = cpu ? 1 : 2, out_len;
	uint8_t out[3 * DM_PAGE];

	if (!packed)
		while (m->len % DM_PAGE)
			dm_put(m, "", 1);
	at = m->len;
	if (packed)
		dm_uint(m, pages, 4);
	for (i = 0; i < pages; i++) {
		if (!packed) {
			dm_put(m, m->pages[cpu][i], DM_PAGE);
			continue;
		}
		out_len = sizeof(out);
		dm_pack(m, m->pages[cpu][i], DM_PAGE, out, &out_len);
		dm_uint(m, out_len, 4);
		dm_uint(m, DM_PAGE, 4);
		dm_put(m, out, out_len);
	}
	dm_cut(m);
	return at;
}

static inline void dm_v7(struct dm *m)
{
	bool packed = strcmp(m->packing, "none") != 0;
	size_t options_at, sections[4], streams[2][DM_CPUS], buffer, ends[2][DM_CPUS];
	int buffers = m->extra_buffer ? 2 : 1, b, cpu;
	struct dm part = dm_part(m);

	dm_text(m, m->packing);
	dm_text(m, packed ? "1.0" : "");
	options_at = m->len;
	dm_uint(m, 0, 8);
	dm_cut(m);
	dm_header_info(&part);
	sections[0] = dm_section(m, 16, part.data, part.len, packed);
	part.len = 0;
	dm_event_formats(&part);
	sections[1] = dm_section(m, 18, part.data, part.len, packed);
	part.len = 0;
	dm_uint(&part, sizeof(dm_cmdlines) - 1, 8);
	dm_put(&part, dm_cmdlines, sizeof(dm_cmdlines) - 1);
	sections[2] = dm_section(m, 21, part.data, part.len, packed);
	buffer = m->len;
	dm_section(m, 3, NULL, 0, false);
	for (b = 0; b < buffers; b++)
		for (cpu = 0; cpu < DM_CPUS; cpu++) {
			streams[b][cpu] = dm_stream(m, cpu, packed);
			ends[b][cpu] = m->len;
		}
	m->data[buffer + 2] = m->big ? 0 : (uint8_t)packed;
	m->data[buffer + 3] = m->big ? (uint8_t)packed : 0;
	dm_patch(m, buffer + 8, m->len - buffer - 16);

	part.len = 0;
	for (b = 0; b < 3; b++) {
		static const int ids[] = { 16, 18, 21 };
		uint8_t where[8];

		dm_number(m->big, where, sections[b], 8);
		dm_option(&part, ids[b], where, 8);
	}
	{
		uint8_t count[4];

		dm_number(m->big, count, DM_CPUS, 4);
		dm_option(&part, 8, count, 4);
	}
	dm_option(&part, 4, dm_clocks, sizeof(dm_clocks));
	dm_option(&part, 5, "Linux host 5.10.0-60 x86_64", 28);
	dm_option(&part, 99, "new", 4);
	if (m->options)
		dm_option(&part, 7, m->options, strlen(m->options) + 1);
	for (b = 0; b < buffers; b++) {
		struct dm o = dm_part(m);

		dm_uint(&o, buffer, 8);
		dm_text(&o, b ? "inst" : "");
		dm_text(&o, "mono_raw");
		dm_uint(&o, DM_PAGE, 4);
		dm_uint(&o, DM_CPUS, 4);
		for (cpu = 0; cpu < DM_CPUS; cpu++) {
			dm_uint(&o, (uint64_t)cpu, 4);
			dm_uint(&o, streams[b][cpu], 8);
			dm_uint(&o, ends[b][cpu] - streams[b][cpu], 8);
		}
		dm_option(&part, 3, o.data, o.len);
		free(o.data);
	}
	{
		uint8_t next[8] = { 0 };

		dm_option(&part, 0, next, 8);
	}
	dm_patch(m, options_at, m->len);
	dm_section(m, 0, part.data, part.len, packed);
	free(part.data);
}

/* Fill in version, long_bytes, packing first. Result: m->data, m->len; free() the data. */
static inline void dm_make(struct dm *m)
{
	dm_file_start(m);
	dm_pages(m);
	if (m->version == 6)
		dm_v6(m);
	else
		dm_v7(m);
}

#endif
