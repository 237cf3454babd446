/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of timeline files in protobuf: one Pytorch message of any length, taken field by field as it streams by. Old
 * files (published fields only) carry rank and job behind the stages, so these are looked up first where the file can
 * be read twice. Opened by open.c; the meaning of records is timeline.c's. Files of I/O calls and of OS events, whose top
 * level is the same but for the entries, are read here too (io.c, os.c).
 */
#include "trace/io.h"
#include "trace/os.h"
#include "trace/readers.h"
#include "trace/timeline.h"
#include "trace/top.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_PROC_MEM MSG_OS_proc_mem /* a number that timelines have sums of calls in */

struct pb_timeline {
	struct ev_reader base;
	struct input input;
	struct tl_state state;
	struct io_state io; /* .io.reader set: a file of I/O calls */
	struct os_state os; /* .os.reader set: a file of OS events */
	struct event more[OS_EVENTS_MAX]; /* of the entry before: what has not been given out */
	unsigned int more_at, more_count;
	uint64_t bad_records; /* framing was right, content not */
	uint64_t unknown_fields;
	uint64_t first_bad; /* offset */
	uint64_t end_offset; /* where reading stopped early */
	const char *end_why;
	struct tl_record record;
};

/* Frames and nested messages, which msg_..._read passes over. */
static void read_nested(struct tl_record *record, enum tl_message message, const struct pb_field *from)
{
	struct pb_reader cursor;
	struct pb_field field;

	/* most stages have neither: no byte of theirs is one of the two tags */
	if (message == TL_STAGE && !memchr(from->data, MSG_STAGE_stack_frames << 3 | PB_BYTES, from->bytes) &&
	    !memchr(from->data, MSG_STAGE_gc_debug << 3 | PB_BYTES, from->bytes))
		return;
	pb_read(&cursor, from->data, from->bytes);
	while (pb_next(&cursor, &field) == 1) {
		if (field.wire != PB_BYTES)
			continue;
		if (message == TL_STAGE && field.number == MSG_STAGE_stack_frames && record->nframes < TL_MAX_FRAMES)
			record->frames[record->nframes++] = (struct msg_text){ (const char *)field.data, field.bytes };
		else if (message == TL_STAGE && field.number == MSG_STAGE_gc_debug)
			msg_gc_debug_read(&record->gc_debug, field.data, field.bytes);
		else if (message == TL_ORIGIN && field.number == MSG_ORIGIN_clocks && !record->has_clock)
			record->has_clock = msg_clock_read(&record->clock, field.data, field.bytes) == 0;
	}
}

static int read_record(struct tl_record *record, enum tl_message message, const struct pb_field *field)
{
	const void *data = field->data;
	size_t bytes = field->bytes;
	int ret;

	tl_clear(record);
	switch (message) {
	case TL_STAGE:
		ret = msg_stage_read(&record->stage, data, bytes);
		break;
	case TL_COMM_SUM:
		return msg_comm_sum_read(&record->comm_sum, data, bytes);
	case TL_STEP:
		return msg_step_read(&record->step, data, bytes);
	case TL_NOTE:
		return msg_note_read(&record->note, data, bytes);
	case TL_THREAD:
		return msg_thread_read(&record->thread, data, bytes);
	case TL_DROP:
		return msg_drop_read(&record->drop, data, bytes);
	case TL_ORIGIN:
		ret = msg_origin_read(&record->origin, data, bytes);
		break;
	default:
		return -EBADMSG;
	}
	if (ret == 0)
		read_nested(record, message, field);
	return ret;
}

static int bad_record(struct pb_timeline *tl)
{
	if (!tl->bad_records++)
		tl->first_bad = tl->input.offset;
	tl->base.stats.skipped++;
	return 0;
}

/* An entry of an os_trace file: the first of its events at once, the others next. Memory records are read elsewhere. */
static int take_os(struct pb_timeline *tl, const struct pb_field *field, struct event *ev)
{
	struct msg_os entry;

	if (field->number == NUMBER_PROC_MEM)
		return 0;
	if (field->wire != PB_BYTES || msg_os_read(&entry, field->data, field->bytes) < 0)
		return bad_record(tl);
	tl->more_count = os_events(&tl->os, &entry, tl->more);
	tl->more_at = 1;
	if (!tl->more_count)
		return 0;
	*ev = tl->more[0];
	return 1;
}

/* A field of the top level. Return: 1 = event, 0 = none. */
static int take_field(struct pb_timeline *tl, const struct pb_field *field, struct event *ev)
{
	enum tl_message message = tl_by_number(field->number);
	struct msg_io entry;

	if (tl->os.reader && (field->number == MSG_OS_OSprobe_entries || field->number == NUMBER_PROC_MEM))
		return take_os(tl, field, ev);
	if (tl->io.reader && field->number == MSG_IO_IO_entries && field->wire == PB_BYTES) {
		if (msg_io_read(&entry, field->data, field->bytes) == 0) {
			io_event(&tl->io, &entry, ev);
			return 1;
		}
		return bad_record(tl);
	}
	if (message != TL_NONE && field->wire == PB_BYTES) {
		if (read_record(&tl->record, message, field) == 0)
			return tl_event(&tl->state, message, &tl->record, ev);
		return bad_record(tl);
	}
	if (field->number == 2 && field->wire == PB_VARINT)
		tl_rank(&tl->state, field->value);
	else if (field->number == 4 && field->wire == PB_BYTES)
		tl_job(&tl->state, (struct msg_text){ (const char *)field->data, field->bytes });
	else if (field->number != 3)
		tl->unknown_fields++;
	return 0;
}

static int pb_timeline_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct pb_timeline *tl = (struct pb_timeline *)reader;
	struct pb_field field;
	size_t total;
	int ret;

	if (tl->more_at < tl->more_count) {
		*ev = tl->more[tl->more_at++];
		reader->stats.events++;
		return 1;
	}
	if (tl->end_why)
		return 0;
	for (;;) {
		ret = top_field(&tl->input, &field, &total, &tl->end_why, err);
		if (ret == TOP_FIELD) {
			ret = take_field(tl, &field, ev);
			input_skip(&tl->input, total);
			if (!ret)
				continue;
			reader->stats.events++;
			reader_progress(reader, &tl->input);
			return 1;
		}
		if (ret == TOP_DAMAGED) {
			tl->end_offset = tl->input.offset;
			reader->stats.torn = true;
			ret = 0;
		}
		reader_progress(reader, &tl->input);
		reader->stats.resume_bytes = tl->input.offset;
		return ret;
	}
}

static int pb_timeline_resume(struct ev_reader *reader, uint64_t offset, const struct ev_origin *origin)
{
	struct pb_timeline *tl = (struct pb_timeline *)reader;
	int ret = input_seek(&tl->input, offset);

	if (!ret)
		reader->origin = *origin;
	return ret;
}

static void pb_timeline_close(struct ev_reader *reader)
{
	struct pb_timeline *tl = (struct pb_timeline *)reader;

	input_close(&tl->input);
	free(tl);
}

static void pb_timeline_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct pb_timeline *tl = (const struct pb_timeline *)reader;
	char text[512];

	if (tl->end_why) {
		snprintf(text, sizeof(text), "%s: %s at byte %" PRIu64 "; the %" PRIu64 " events before it were read",
			 reader->path, tl->end_why, tl->end_offset, reader->stats.events);
		line(arg, text);
	}
	if (tl->input.torn) {
		snprintf(text, sizeof(text), "%s: %s; the %" PRIu64 " events before it were read", reader->path,
			 tl->input.problem, reader->stats.events);
		line(arg, text);
	}
	if (tl->bad_records) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " damaged records left out, the first at byte %" PRIu64,
			 reader->path, tl->bad_records, tl->first_bad);
		line(arg, text);
	}
	if (tl->unknown_fields) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " fields of a newer version left out", reader->path,
			 tl->unknown_fields);
		line(arg, text);
	}
}

/* The published fields rank and comm, wherever they stand; a file without them or read from a pipe keeps its name's. */
static void prescan(struct pb_timeline *tl)
{
	struct input input;
	struct pb_field field;
	const char *why;
	struct event ev;
	bool job = false;
	size_t total;

	if (!tl->input.total || input_open(&input, tl->base.path, NULL) < 0)
		return;
	while (top_field(&input, &field, &total, &why, NULL) == TOP_FIELD) {
		if (field.number == 100)
			break;
		if (field.number == 2 || field.number == 4) {
			take_field(tl, &field, &ev);
			job |= field.number == 4; /* the last one of a chunk: rank came before, or is 0 and unwritten */
		}
		if (job)
			break;
		input_skip(&input, total);
	}
	tl->unknown_fields = tl->bad_records = 0;
	input_close(&input);
}

static const struct ev_reader_ops pb_timeline_ops = {
	.format = "timeline-pb",
	.next = pb_timeline_next,
	.close = pb_timeline_close,
	.report = pb_timeline_report,
	.resume = pb_timeline_resume,
};

static const struct ev_reader_ops pb_io_ops = {
	.format = "io-pb",
	.next = pb_timeline_next,
	.close = pb_timeline_close,
	.report = pb_timeline_report,
};

static const struct ev_reader_ops pb_os_ops = {
	.format = "os-pb",
	.next = pb_timeline_next,
	.close = pb_timeline_close,
	.report = pb_timeline_report,
};

static int init_entries(struct pb_timeline *tl, const struct ev_reader_ops *ops)
{
	if (ops == &pb_io_ops)
		return io_state_init(&tl->io, &tl->base);
	return ops == &pb_os_ops ? os_state_init(&tl->os, &tl->base) : 0;
}

static struct ev_reader *open_as(struct ev_session *session, struct input *input, const char *path,
				 const struct ev_reader_ops *ops, struct st_err *err)
{
	struct pb_timeline *tl = calloc(1, sizeof(*tl));
	struct pb_field field;
	const char *why;
	struct event ev;
	size_t total;

	if (!tl || reader_init(&tl->base, ops, session, path, err) < 0 || tl_state_init(&tl->state, &tl->base) < 0 ||
	    init_entries(tl, ops) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		if (tl)
			free(tl->base.path);
		free(tl);
		return NULL;
	}
	tl->input = *input;
	*input = (struct input){ .fd = -1 };
	/* who wrote it is known before the first event */
	if (top_field(&tl->input, &field, &total, &why, NULL) == TOP_FIELD && field.number == 100) {
		take_field(tl, &field, &ev);
		input_skip(&tl->input, total);
	} else if (ops == &pb_timeline_ops) {
		prescan(tl);
	}
	reader_progress(&tl->base, &tl->input);
	return &tl->base;
}

static struct ev_reader *pb_timeline_open(struct ev_session *session, struct input *input, const char *path,
					  struct st_err *err)
{
	return open_as(session, input, path, &pb_timeline_ops, err);
}

static struct ev_reader *pb_io_open(struct ev_session *session, struct input *input, const char *path,
				    struct st_err *err)
{
	return open_as(session, input, path, &pb_io_ops, err);
}

static struct ev_reader *pb_os_open(struct ev_session *session, struct input *input, const char *path,
				    struct st_err *err)
{
	return open_as(session, input, path, &pb_os_ops, err);
}

/* Numbers in 1 to 6 and 9, texts in 7 and 8; @sure: and no entry of another file, for it cannot be one of I/O calls */
static bool is_os_entry(const struct pb_field *from, bool *sure)
{
	struct pb_reader cursor;
	struct pb_field field;
	bool key = false;
	int ret;

	pb_read(&cursor, from->data, from->bytes);
	while ((ret = pb_next(&cursor, &field)) == 1) {
		bool text = field.number == 7 || field.number == 8;

		if (field.number <= 9 && field.wire != (text ? PB_BYTES : PB_VARINT))
			return false;
		/* a thread id and then microseconds since 1970, which begin an I/O entry; who ran instead */
		if (field.number == 1)
			key = field.value <= UINT32_MAX;
		if (field.number == 2)
			*sure |= key && field.value > (uint64_t)1 << 40;
		*sure |= field.number == 8 || field.number == 9;
	}
	return ret == 0;
}

static bool pb_os_knows(const unsigned char *head, size_t len)
{
	struct pb_reader cursor;
	struct pb_field field;
	bool sure = false;

	pb_read(&cursor, head, len);
	while (!sure && pb_next(&cursor, &field) == 1) {
		if (field.wire != PB_BYTES || (field.number > 1 && field.number < NUMBER_PROC_MEM))
			return false;
		if (field.number == MSG_OS_OSprobe_entries && !is_os_entry(&field, &sure))
			return false;
	}
	return sure;
}

const struct format format_os_pb = {
	.name = "os-pb",
	.what = "OS events (protobuf)",
	.knows = pb_os_knows,
	.open = pb_os_open,
};

/* Wire types of the fields of an I/O entry; stages have text in 2, OS events more than one text, locks no text. */
static bool is_io_entry(const struct pb_field *from)
{
	struct pb_reader cursor;
	struct pb_field field;
	int ret;

	pb_read(&cursor, from->data, from->bytes);
	while ((ret = pb_next(&cursor, &field)) == 1) {
		if (field.number == 8 || field.number == 9)
			return false;
		if (field.number <= 7 && (field.wire == PB_BYTES) != (field.number == 7))
			return false;
	}
	return ret == 0;
}

static bool pb_io_knows(const unsigned char *head, size_t len)
{
	struct pb_reader cursor;
	struct pb_field field;
	int entries = 0;

	pb_read(&cursor, head, len);
	while (entries < 16 && pb_next(&cursor, &field) == 1) {
		if (field.wire != PB_BYTES || (field.number > 1 && field.number < 32))
			return false;
		if (field.number != MSG_IO_IO_entries)
			continue;
		if (!is_io_entry(&field))
			return false;
		entries++;
	}
	return entries > 0;
}

const struct format format_io_pb = {
	.name = "io-pb",
	.what = "I/O calls (protobuf)",
	.knows = pb_io_knows,
	.open = pb_io_open,
};

/* Wire types of the fields of a stage; I/O, OS and lock entries, which share its number, differ in field 2. */
static bool is_stage(const struct pb_field *from, bool after_origin)
{
	struct pb_reader cursor;
	struct pb_field field;
	int ret;

	pb_read(&cursor, from->data, from->bytes);
	while ((ret = pb_next(&cursor, &field)) == 1) {
		bool text = field.number == 2 || field.number == 5 || field.number == 6;

		if (field.number <= 6 && (field.wire == PB_BYTES) != text)
			return false;
		if (field.number <= 6 && !text && field.wire != PB_VARINT)
			return false;
	}
	return ret == 0 || after_origin; /* a damaged one is skipped later, if the file is ours by its first record */
}

/* Is this field of the top level one of a timeline, with the right wire type? */
static bool is_ours(const struct pb_field *field, bool after_ours)
{
	bool number = field->number == 2 || field->number == 3;

	if (field->number != 4 && !number && tl_by_number(field->number) == TL_NONE)
		return after_ours; /* of a newer version */
	if (field->wire != (number ? PB_VARINT : PB_BYTES))
		return false;
	if (field->number == 1)
		return is_stage(field, after_ours);
	/* files of OS events have memory records under the number of our sums: those begin with a number */
	return field->number != 30 || !field->bytes || (field->data[0] & 7) == PB_BYTES;
}

static bool pb_timeline_knows(const unsigned char *head, size_t len)
{
	struct pb_reader cursor;
	struct pb_field field;
	bool any = false;
	int i;

	pb_read(&cursor, head, len);
	for (i = 0; i < 64 && pb_next(&cursor, &field) == 1; i++) {
		if (!is_ours(&field, any))
			return false;
		any = true;
	}
	return any;
}

const struct format format_timeline_pb = {
	.name = "timeline-pb",
	.what = "timeline (protobuf)",
	.knows = pb_timeline_knows,
	.open = pb_timeline_open,
};
