/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of memory records in protobuf: the agent's part of os_trace files (OSprobe, whose proc_mem are ProcMem) and
 * hbm_trace files (ProcMem, or Mem, at the top level; published files have neither origin nor times). The meaning of
 * records is mem.c's. Opened by open.c.
 */
#include "trace/mem.h"
#include "trace/readers.h"
#include "trace/top.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEM_PROC_MEM 1 /* Mem: repeated ProcMem */

struct pb_mem {
	struct ev_reader base;
	struct input input;
	struct tl_state tl;
	struct mem_state mem;
	bool os; /* OSprobe at the top level */
	struct msg_proc_mem proc; /* in which the next entry stands */
	struct pb_reader inside; /* what is left of the ProcMem being read: bytes of the input's window */
	size_t total; /* of the top-level field that it is; 0 = none */
	uint64_t bad_records, unknown_fields, first_bad, end_offset;
	const char *end_why;
	struct mem_entry entry;
	struct tl_record record;
};

static void read_frames(struct mem_entry *entry, const struct pb_field *from)
{
	struct pb_reader cursor;
	struct pb_field field;

	pb_read(&cursor, from->data, from->bytes);
	while (pb_next(&cursor, &field) == 1) {
		if (field.number != MSG_MEM_ALLOC_stack_frames || field.wire != PB_BYTES ||
		    entry->nframes == MEM_FRAMES)
			continue;
		msg_frame_read(&entry->frames[entry->nframes++], field.data, field.bytes);
	}
}

/* Return: 1 = m->entry is filled, 0 = not an entry, -EBADMSG. */
static int read_entry(struct pb_mem *m, const struct pb_field *field)
{
	struct mem_entry *entry = &m->entry;
	int ret;

	entry->nframes = 0;
	switch (field->number) {
	case MSG_PROC_MEM_mem_alloc_stacks:
		entry->what = TL_MEM_ALLOC;
		ret = msg_mem_alloc_read(&entry->alloc, field->data, field->bytes);
		read_frames(entry, field);
		break;
	case MSG_PROC_MEM_mem_free_stacks:
		entry->what = TL_MEM_FREE;
		ret = msg_mem_free_read(&entry->gone, field->data, field->bytes);
		break;
	case MSG_PROC_MEM_mem_live_stacks:
		entry->what = TL_MEM_SITE;
		ret = msg_mem_site_read(&entry->site, field->data, field->bytes);
		read_frames(entry, field);
		break;
	case MSG_PROC_MEM_mem_states:
		entry->what = TL_MEM_STATE;
		ret = msg_mem_state_read(&entry->state, field->data, field->bytes);
		break;
	default:
		return 0;
	}
	return ret < 0 ? ret : 1;
}

static void bad_record(struct pb_mem *m)
{
	if (!m->bad_records++)
		m->first_bad = m->input.offset;
	m->base.stats.skipped++;
}

/* A field of a ProcMem. Return: 1 = event. */
static int take_proc_field(struct pb_mem *m, const struct pb_field *field, struct event *ev)
{
	int ret;

	if (field->wire == PB_VARINT) {
		if (field->number == 1)
			m->proc.pid = (uint32_t)field->value;
		else if (field->number == 23)
			m->proc.tgid = (uint32_t)field->value;
		else if (field->number == 24)
			m->proc.space = (uint32_t)field->value;
		return 0;
	}
	ret = field->wire == PB_BYTES ? read_entry(m, field) : 0;
	if (ret < 0)
		bad_record(m);
	if (ret > 0)
		mem_event(&m->mem, &m->proc, &m->entry, ev);
	return ret > 0;
}

/* Its scalars stand before or behind its entries. */
static void begin_proc(struct pb_mem *m, const struct pb_field *field, size_t total)
{
	if (msg_proc_mem_read(&m->proc, field->data, field->bytes) < 0)
		bad_record(m);
	pb_read(&m->inside, field->data, field->bytes);
	m->total = total;
}

static int take_origin(struct pb_mem *m, const struct pb_field *from)
{
	struct pb_reader cursor;
	struct pb_field field;
	struct event ev;

	tl_clear(&m->record);
	if (msg_origin_read(&m->record.origin, from->data, from->bytes) < 0)
		return -EBADMSG;
	pb_read(&cursor, from->data, from->bytes);
	while (!m->record.has_clock && pb_next(&cursor, &field) == 1)
		if (field.number == MSG_ORIGIN_clocks && field.wire == PB_BYTES)
			m->record.has_clock = msg_clock_read(&m->record.clock, field.data, field.bytes) == 0;
	return tl_event(&m->tl, TL_ORIGIN, &m->record, &ev);
}

/* What is not memory. Return: 1 = event, 0, -EBADMSG. */
static int take_other(struct pb_mem *m, const struct pb_field *field, struct event *ev)
{
	int ret;

	tl_clear(&m->record);
	switch (field->wire == PB_BYTES ? field->number : 0) {
	case MSG_OS_origin:
		return take_origin(m, field);
	case MSG_OS_drops:
		ret = msg_drop_read(&m->record.drop, field->data, field->bytes);
		return ret < 0 ? ret : tl_event(&m->tl, TL_DROP, &m->record, ev);
	case MSG_OS_threads:
		ret = msg_thread_read(&m->record.thread, field->data, field->bytes);
		return ret < 0 ? ret : tl_event(&m->tl, TL_THREAD, &m->record, ev);
	case MSG_OS_notes:
		ret = msg_note_read(&m->record.note, field->data, field->bytes);
		return ret < 0 ? ret : tl_event(&m->tl, TL_NOTE, &m->record, ev);
	default:
		m->unknown_fields++;
		return 0;
	}
}

static bool is_proc(const struct pb_mem *m, const struct pb_field *field)
{
	return field->wire == PB_BYTES && field->number == (m->os ? MSG_OS_proc_mem : MEM_PROC_MEM);
}

static bool of_proc(const struct pb_field *field)
{
	return field->number <= 3 || (field->number >= 23 && field->number <= MSG_PROC_MEM_mem_states);
}

/* Return: 1 = event, 0 = none yet. */
static int take_top(struct pb_mem *m, const struct pb_field *field, size_t total, struct event *ev)
{
	int ret;

	if (is_proc(m, field)) {
		begin_proc(m, field, total);
		return 0;
	}
	ret = !m->os && of_proc(field) ? take_proc_field(m, field, ev) : take_other(m, field, ev);
	if (ret < 0)
		bad_record(m);
	input_skip(&m->input, total);
	return ret > 0;
}

/* The rest of the ProcMem that is open. Return: 1 = event, 0 = it is over. */
static int take_inside(struct pb_mem *m, struct event *ev)
{
	struct pb_field field;
	int ret;

	while ((ret = pb_next(&m->inside, &field)) == 1) {
		if (take_proc_field(m, &field, ev))
			return 1;
	}
	if (ret < 0)
		bad_record(m);
	input_skip(&m->input, m->total);
	m->total = 0;
	return 0;
}

static int pb_mem_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct pb_mem *m = (struct pb_mem *)reader;
	struct pb_field field;
	size_t total;
	int ret = 0;

	while (!ret && !m->end_why) {
		if (m->total) {
			ret = take_inside(m, ev);
			continue;
		}
		ret = top_field(&m->input, &field, &total, &m->end_why, err);
		if (ret < 0 || ret == TOP_END)
			break;
		if (ret == TOP_DAMAGED) {
			m->end_offset = m->input.offset;
			reader->stats.torn = true;
			ret = 0;
		} else {
			ret = take_top(m, &field, total, ev);
		}
	}
	reader_progress(reader, &m->input);
	reader->stats.events += ret == 1;
	return ret;
}

static void pb_mem_close(struct ev_reader *reader)
{
	struct pb_mem *m = (struct pb_mem *)reader;

	input_close(&m->input);
	free(m);
}

static void pb_mem_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct pb_mem *m = (const struct pb_mem *)reader;
	char text[512];

	if (m->end_why || m->input.torn) {
		snprintf(text, sizeof(text), "%s: %s at byte %" PRIu64 "; the %" PRIu64 " events before it were read",
			 reader->path, m->input.torn ? m->input.problem : m->end_why,
			 m->input.torn ? m->input.offset : m->end_offset, reader->stats.events);
		line(arg, text);
	}
	if (m->bad_records) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " damaged records left out, the first at byte %" PRIu64,
			 reader->path, m->bad_records, m->first_bad);
		line(arg, text);
	}
	if (m->unknown_fields) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " fields of another kind or a newer version left out",
			 reader->path, m->unknown_fields);
		line(arg, text);
	}
}

static const struct ev_reader_ops pb_mem_ops = {
	.format = "mem-pb",
	.next = pb_mem_next,
	.close = pb_mem_close,
	.report = pb_mem_report,
};

/* --- is it one? -------------------------------------------------------------------------------------------------------- */

/* Wire types of MemAllocEntry and MemFreeEntry: numbers but for the frames. A text would not parse as one. */
static bool is_entry(const struct pb_field *from)
{
	struct pb_reader cursor;
	struct pb_field field;
	int ret;

	pb_read(&cursor, from->data, from->bytes);
	while ((ret = pb_next(&cursor, &field)) == 1)
		if (field.number <= 5 && (field.wire == PB_BYTES) != (field.number == 5))
			return false;
	return ret == 0 && from->bytes;
}

static bool is_proc_field(const struct pb_field *field, bool *entries)
{
	bool entry = (field->number == 2 || field->number == 3) && field->wire == PB_BYTES;

	if (entry && is_entry(field))
		return *entries = true;
	if (field->number == 1 || field->number == 23 || field->number == 24)
		return field->wire == PB_VARINT;
	if (field->number == MSG_PROC_MEM_mem_live_stacks || field->number == MSG_PROC_MEM_mem_states)
		return *entries = field->wire == PB_BYTES;
	return (field->number == MSG_OS_origin || field->number == MSG_OS_drops) && field->wire == PB_BYTES;
}

/* @cut: not all of it lies in the bytes that are looked at. */
static bool is_proc_mem(const struct pb_field *from, bool cut)
{
	struct pb_reader cursor;
	struct pb_field field;
	bool entries = false;
	int ret;

	pb_read(&cursor, from->data, from->bytes);
	while ((ret = pb_next(&cursor, &field)) == 1)
		if (!is_proc_field(&field, &entries))
			return false;
	return (ret == 0 || cut) && entries;
}

/* A field of which only the beginning is there: what there is of it. */
static bool cut_field(const struct pb_reader *cursor, struct pb_field *field)
{
	const uint8_t *at = cursor->at;
	int i;

	if (cursor->end - at < 12 || (*at & 7) != PB_BYTES)
		return false;
	*field = (struct pb_field){ .number = *at >> 3, .wire = PB_BYTES };
	at++;
	if (field->number > 15) /* tags of two bytes */
		return false;
	for (i = 0; i < 10 && (*at & 128); i++)
		at++;
	field->data = ++at;
	field->bytes = (size_t)(cursor->end - at);
	return true;
}

enum shape { NOT_MEM, TOP_OS, TOP_MEM, TOP_PROC_MEM };

static enum shape shape_of(const unsigned char *head, size_t len)
{
	enum shape shape = NOT_MEM;
	struct pb_reader cursor;
	struct pb_field field;
	bool entries = false;
	int i;

	pb_read(&cursor, head, len);
	for (i = 0; i < 64 && pb_next(&cursor, &field) == 1; i++) {
		bool bytes = field.wire == PB_BYTES;

		if (bytes && field.number == MSG_OS_proc_mem && is_proc_mem(&field, false))
			return shape == NOT_MEM ? TOP_OS : NOT_MEM;
		if (bytes && (field.number == MSG_OS_origin || field.number == MSG_OS_drops ||
			      field.number == MSG_OS_notes || field.number == MSG_OS_threads))
			continue;
		if (bytes && field.number == MEM_PROC_MEM)
			return shape == NOT_MEM && is_proc_mem(&field, false) ? TOP_MEM : NOT_MEM;
		if (!is_proc_field(&field, &entries))
			return NOT_MEM;
		shape = entries ? TOP_PROC_MEM : shape;
	}
	if (i == 0 && cut_field(&cursor, &field) && field.number == MEM_PROC_MEM && is_proc_mem(&field, true))
		return TOP_MEM;
	return shape;
}

static bool pb_mem_knows(const unsigned char *head, size_t len)
{
	return shape_of(head, len) != NOT_MEM;
}

static struct ev_reader *pb_mem_open(struct ev_session *session, struct input *input, const char *path,
				     struct st_err *err)
{
	struct pb_mem *m = calloc(1, sizeof(*m));
	struct pb_field field;
	const char *why;
	size_t total;

	if (!m || reader_init(&m->base, &pb_mem_ops, session, path, err) < 0 || tl_state_init(&m->tl, &m->base) < 0 ||
	    mem_state_init(&m->mem, &m->base, &m->tl) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		if (m)
			free(m->base.path);
		free(m);
		return NULL;
	}
	m->os = shape_of(input->at, input->len) == TOP_OS;
	m->base.origin.rank = mem_rank_of_name(path, &m->mem.file_pid);
	m->input = *input;
	*input = (struct input){ .fd = -1 };
	/* who wrote it is known before the first event */
	if (top_field(&m->input, &field, &total, &why, NULL) == TOP_FIELD && field.number == MSG_OS_origin) {
		take_origin(m, &field);
		input_skip(&m->input, total);
	}
	reader_progress(&m->base, &m->input);
	return &m->base;
}

const struct format format_mem_pb = {
	.name = "mem-pb",
	.what = "memory (protobuf)",
	.knows = pb_mem_knows,
	.open = pb_mem_open,
};
