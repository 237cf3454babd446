/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of timeline files, and of io_trace and os_trace files, in JSON: our own form and proto3's canonical one (64-bit numbers as text, lowerCamelCase).
 * Streaming: a piece of the file goes through libyajl, whole records become events. A cut tail keeps what came before.
 * Opened by open.c; the meaning of records is timeline.c's.
 */
#include "trace/io.h"
#include "trace/os.h"
#include "trace/readers.h"
#include "trace/timeline.h"
#include "trace/top.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool json_timeline_knows(const unsigned char *head, size_t len)
{
	const unsigned char *end = head + len;
	const unsigned char *key;
	size_t key_len;
	bool maybe = false;
	int depth = 0;

	while (head < end && isspace(*head))
		head++;
	if (head == end || *head != '{')
		return false;
	while ((key = top_key(head, end, &depth, &key_len)) != NULL) {
		enum tl_message message = tl_by_json((const char *)key, key_len);

		head = key + key_len + 1;
		if (message == TL_IO || message == TL_OS)
			return false;
		if (message == TL_ORIGIN || message == TL_DROP || tl_find_json(TL_PYTORCH, (const char *)key, key_len))
			maybe = true; /* other files of ours have these too */
		else
			return message != TL_NONE || tl_same_name((const char *)key, key_len, "ext");
	}
	return maybe;
}

/* The key of these entries, with nothing before it that a timeline or another tool's file would have. */
static bool entries_known(const unsigned char *head, size_t len, enum tl_message entries)
{
	const unsigned char *end = head + len;
	const unsigned char *key;
	size_t key_len;
	int depth = 0;

	while (head < end && isspace(*head))
		head++;
	if (head == end || *head != '{')
		return false;
	while ((key = top_key(head, end, &depth, &key_len)) != NULL) {
		enum tl_message message = tl_by_json((const char *)key, key_len);

		if (message != TL_ORIGIN && message != TL_DROP && message != TL_THREAD && message != TL_NOTE)
			return message == entries;
		head = key + key_len + 1;
	}
	return false;
}

static bool json_io_knows(const unsigned char *head, size_t len)
{
	return entries_known(head, len, TL_IO);
}

static bool json_os_knows(const unsigned char *head, size_t len)
{
	return entries_known(head, len, TL_OS);
}

#ifdef HAVE_YAJL
#include <yajl/yajl_parse.h>

#define PIECE_BYTES (64u << 10)
#define TEXT_BYTES (256u << 10) /* all texts of one record */

/** enum place - what the parser is inside of */
enum place {
	IN_FILE,
	IN_TOP, /* the object that is the file */
	IN_EXT, /* array of such objects: what the published form has no place for (the .ext.json companion) */
	IN_LIST, /* array of records */
	IN_RECORD,
	IN_FRAMES,
	IN_GC,
	IN_CLOCKS,
	IN_CLOCK,
	IN_UNKNOWN, /* anything else; depth counts */
	PLACES
};

struct json_timeline {
	struct ev_reader base;
	struct input input;
	struct tl_state state;
	struct io_state io; /* .reader set: a file of I/O calls */
	struct os_state os; /* .reader set: a file of OS events */
	yajl_handle parser;
	enum place stack[8];
	unsigned int depth; /* of stack */
	unsigned int unknown_depth;
	enum tl_message message; /* of the list or record inside */
	const struct tl_field *field; /* of the key just read, NULL = unknown */
	enum place opens; /* what a container behind the key just read would be */
	bool saw_rank;
	bool dropped; /* the key just read is the count of lost I/O calls */
	struct event *queue;
	size_t queue_at, queue_len, queue_room;
	bool done, no_memory;
	uint64_t unknown_fields, bad_values, long_texts;
	uint64_t end_offset;
	char end_why[160];
	char *text; /* of the record being read */
	size_t text_used;
	struct tl_record record;
};

static enum place inside(const struct json_timeline *tl)
{
	return tl->stack[tl->depth];
}

static void enter(struct json_timeline *tl, enum place place)
{
	tl->stack[++tl->depth] = place;
	tl->field = NULL;
	tl->opens = IN_UNKNOWN;
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static void *target(struct json_timeline *tl)
{
	if (inside(tl) == IN_GC)
		return &tl->record.gc_debug;
	if (inside(tl) == IN_CLOCK)
		return &tl->record.clock;
	return &tl->record.stage; /* any member of the union */
}

static bool parse_number(const char *text, size_t len, uint64_t *value)
{
	char copy[48];
	char *end;

	if (!len || len >= sizeof(copy))
		return false;
	memcpy(copy, text, len);
	copy[len] = 0;
	errno = 0;
	*value = copy[0] == '-' ? (uint64_t)strtoll(copy, &end, 10) : strtoull(copy, &end, 10);
	if (*end == '.' || *end == 'e' || *end == 'E') { /* some writers make doubles of everything */
		double number = strtod(copy, &end);

		if (!(number > -9.2e18 && number < 1.8e19))
			return false;
		*value = number < 0 ? (uint64_t)(int64_t)number : (uint64_t)number;
	}
	return *end == 0 && end != copy && errno == 0;
}

static struct msg_text keep_text(struct json_timeline *tl, const char *text, size_t len)
{
	char *at = tl->text + tl->text_used;

	if (len > TEXT_BYTES - tl->text_used) {
		tl->long_texts++;
		return (struct msg_text){ NULL, 0 };
	}
	memcpy(at, text, len);
	tl->text_used += len;
	return (struct msg_text){ at, len };
}

static int push_event(struct json_timeline *tl, enum tl_message message);

static int take_dropped(struct json_timeline *tl, uint64_t count)
{
	tl->dropped = false;
	if (!count)
		return 1;
	tl_clear(&tl->record);
	tl->record.drop = (struct msg_drop){ .source = msg_text(tl->os.reader ? "cpu" : "io"), .count = count };
	return push_event(tl, TL_DROP);
}

static int take_number(struct json_timeline *tl, uint64_t value, bool valid)
{
	if (tl->dropped && !tl->unknown_depth)
		return take_dropped(tl, valid ? value : 0);
	if (tl->unknown_depth || !tl->field)
		return 1;
	if (!valid || !tl_set_number(tl->field, target(tl), value)) {
		tl->bad_values++;
	} else if (inside(tl) == IN_TOP && tl->field->number == 2) {
		tl->saw_rank = true;
		tl_rank(&tl->state, value);
	}
	return 1;
}

static int on_number(void *arg, const char *text, size_t len)
{
	uint64_t value = 0;
	bool valid = parse_number(text, len, &value);

	return take_number(arg, value, valid);
}

static int on_boolean(void *arg, int value)
{
	return take_number(arg, (uint64_t)value, true);
}

static int on_null(void *arg)
{
	return 1;
}

static int on_string(void *arg, const unsigned char *bytes, size_t len)
{
	struct json_timeline *tl = arg;
	const char *text = (const char *)bytes;
	uint64_t value = 0;

	if (tl->unknown_depth)
		return 1;
	if (inside(tl) == IN_FRAMES) {
		if (tl->record.nframes < TL_MAX_FRAMES)
			tl->record.frames[tl->record.nframes++] = keep_text(tl, text, len);
		return 1;
	}
	if (!tl->field)
		return 1;
	if (tl_set_text(tl->field, target(tl), text, len))
		return 1;
	if (tl->field->type != TL_str && tl->field->type != TL_bytes) {
		bool valid = parse_number(text, len, &value);

		return take_number(tl, value, valid);
	}
	if (inside(tl) == IN_TOP)
		tl_job(&tl->state, (struct msg_text){ text, len });
	else
		*(struct msg_text *)(void *)((char *)target(tl) + tl->field->offset) = keep_text(tl, text, len);
	return 1;
}

/* ---- structure ---------------------------------------------------------------------------------------------------- */

static int push_event(struct json_timeline *tl, enum tl_message message)
{
	struct event *queue = tl->queue;

	if (tl->queue_len + OS_EVENTS_MAX > tl->queue_room) {
		size_t room = tl->queue_room ? tl->queue_room * 2 : 256;

		queue = realloc(queue, room * sizeof(*queue));
		if (!queue) {
			tl->no_memory = true;
			return 0;
		}
		tl->queue = queue;
		tl->queue_room = room;
	}
	if (message == TL_IO)
		io_event(&tl->io, &tl->record.io, &queue[tl->queue_len++]);
	else if (message == TL_OS)
		tl->queue_len += os_events(&tl->os, &tl->record.os, &queue[tl->queue_len]);
	else
		tl->queue_len += (size_t)tl_event(&tl->state, message, &tl->record, &queue[tl->queue_len]);
	return 1;
}

static int on_key(void *arg, const unsigned char *bytes, size_t len)
{
	struct json_timeline *tl = arg;
	const char *key = (const char *)bytes;

	if (tl->unknown_depth)
		return 1;
	tl->opens = IN_UNKNOWN;
	tl->field = NULL;
	tl->dropped = false;
	switch (inside(tl)) {
	case IN_TOP:
		if ((tl->io.reader || tl->os.reader) && tl_same_name(key, len, "dropped")) {
			tl->dropped = true;
			return 1;
		}
		tl->field = tl_find_json(TL_PYTORCH, key, len);
		tl->message = tl->field ? TL_PYTORCH : tl_by_json(key, len);
		if ((tl->message == TL_IO && !tl->io.reader) || (tl->message == TL_OS && !tl->os.reader))
			tl->message = TL_NONE;
		if (tl_same_name(key, len, "ext"))
			tl->opens = IN_EXT;
		else if (tl->message == TL_NONE)
			tl->unknown_fields++;
		else if (!tl->field)
			tl->opens = IN_LIST;
		else
			tl_clear(&tl->record);
		return 1;
	case IN_RECORD:
		tl->field = tl_find_json(tl->message, key, len);
		if (tl->field)
			return 1;
		if (tl->message == TL_STAGE && tl_same_name(key, len, "stack_frames"))
			tl->opens = IN_FRAMES;
		else if (tl->message == TL_STAGE && tl_same_name(key, len, "gc_debug"))
			tl->opens = IN_GC;
		else if (tl->message == TL_ORIGIN && tl_same_name(key, len, "clocks"))
			tl->opens = IN_CLOCKS;
		else
			tl->unknown_fields++;
		return 1;
	case IN_GC:
		tl->field = tl_find_json(TL_GC_DEBUG, key, len);
		return 1;
	case IN_CLOCK:
		tl->field = tl_find_json(TL_CLOCK, key, len);
		return 1;
	default:
		return 1;
	}
}

static int start_record(struct json_timeline *tl)
{
	tl_clear(&tl->record);
	tl->text_used = 0;
	enter(tl, IN_RECORD);
	return 1;
}

static int start_unknown(struct json_timeline *tl)
{
	tl->unknown_depth++;
	return 1;
}

static int on_start_map(void *arg)
{
	struct json_timeline *tl = arg;

	if (tl->unknown_depth)
		return start_unknown(tl);
	switch (inside(tl)) {
	case IN_FILE:
	case IN_EXT:
		enter(tl, IN_TOP);
		return 1;
	case IN_LIST:
		return start_record(tl);
	case IN_TOP:
		return tl->opens == IN_LIST ? start_record(tl) : start_unknown(tl); /* origin may stand alone */
	case IN_CLOCKS:
		if (tl->record.has_clock)
			return start_unknown(tl);
		tl->record.has_clock = true;
		enter(tl, IN_CLOCK);
		return 1;
	case IN_RECORD:
		if (tl->opens != IN_GC)
			return start_unknown(tl);
		enter(tl, IN_GC);
		return 1;
	default:
		return start_unknown(tl);
	}
}

static int on_start_array(void *arg)
{
	struct json_timeline *tl = arg;

	if (tl->unknown_depth || (inside(tl) != IN_TOP && inside(tl) != IN_RECORD))
		return start_unknown(tl);
	if ((tl->opens != IN_LIST && tl->opens != IN_FRAMES && tl->opens != IN_CLOCKS && tl->opens != IN_EXT) ||
	    (tl->opens == IN_EXT && tl->depth > 1))
		return start_unknown(tl);
	enter(tl, tl->opens);
	return 1;
}

static int on_end(void *arg)
{
	struct json_timeline *tl = arg;
	enum place place;

	if (tl->unknown_depth) {
		tl->unknown_depth--;
		return 1;
	}
	place = inside(tl);
	if (tl->depth)
		tl->depth--;
	tl->field = NULL;
	tl->opens = inside(tl) == IN_TOP && place == IN_LIST ? IN_UNKNOWN : tl->opens;
	return place == IN_RECORD ? push_event(tl, tl->message) : 1;
}

static const yajl_callbacks callbacks = {
	.yajl_null = on_null,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_map_key = on_key,
	.yajl_start_map = on_start_map,
	.yajl_end_map = on_end,
	.yajl_start_array = on_start_array,
	.yajl_end_array = on_end,
};

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static void stop(struct json_timeline *tl, size_t consumed, const char *why)
{
	tl->done = true;
	tl->base.stats.torn = true;
	tl->end_offset = tl->input.offset + consumed;
	snprintf(tl->end_why, sizeof(tl->end_why), "%s", why);
}

static void stop_by_parser(struct json_timeline *tl, const unsigned char *piece, size_t len)
{
	unsigned char *why = yajl_get_error(tl->parser, 0, piece, len);
	size_t end = why ? strcspn((char *)why, "\n") : 0;

	if (why)
		why[end] = 0;
	stop(tl, yajl_get_bytes_consumed(tl->parser), why ? (const char *)why : "no JSON");
	yajl_free_error(tl->parser, why);
}

/* Parse the next piece into the queue. Return: 0 or -errno. */
static int parse_piece(struct json_timeline *tl, struct st_err *err)
{
	struct input *input = &tl->input;
	yajl_status status;
	size_t len;
	int ret;

	tl->queue_at = tl->queue_len = 0;
	ret = input_want(input, 1, err);
	if (ret < 0)
		return ret;
	len = input->len < PIECE_BYTES ? input->len : PIECE_BYTES;
	if (!len) {
		if (yajl_complete_parse(tl->parser) != yajl_status_ok || tl->depth)
			stop(tl, 0, "the file is cut");
		tl->done = true;
		return 0;
	}
	status = yajl_parse(tl->parser, input->at, len);
	if (tl->no_memory)
		return err_set(err, -ENOMEM, "%s: out of memory", tl->base.path);
	if (status != yajl_status_ok)
		stop_by_parser(tl, input->at, len);
	input_skip(input, len);
	return 0;
}

static int json_timeline_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct json_timeline *tl = (struct json_timeline *)reader;
	int ret;

	while (tl->queue_at == tl->queue_len) {
		if (tl->done)
			return 0;
		ret = parse_piece(tl, err);
		if (ret < 0)
			return ret;
		reader_progress(reader, &tl->input);
	}
	*ev = tl->queue[tl->queue_at++];
	reader->stats.events++;
	return 1;
}

static void json_timeline_close(struct ev_reader *reader)
{
	struct json_timeline *tl = (struct json_timeline *)reader;

	input_close(&tl->input);
	if (tl->parser)
		yajl_free(tl->parser);
	free(tl->queue);
	free(tl->text);
	free(tl);
}

static void json_timeline_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct json_timeline *tl = (const struct json_timeline *)reader;
	const struct {
		uint64_t count;
		const char *what;
	} rows[] = {
		{ tl->unknown_fields, "fields of a newer version left out" },
		{ tl->bad_values, "values of the wrong type left out" },
		{ tl->long_texts, "texts too long for a record left out" },
	};
	char text[512];
	size_t i;

	if (tl->end_why[0] || tl->input.torn) {
		snprintf(text, sizeof(text), "%s: %s (byte %" PRIu64 "); the %" PRIu64 " events before it were read",
			 reader->path, tl->input.torn ? tl->input.problem : tl->end_why, tl->end_offset,
			 reader->stats.events);
		line(arg, text);
	}
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (!rows[i].count)
			continue;
		snprintf(text, sizeof(text), "%s: %" PRIu64 " %s", reader->path, rows[i].count, rows[i].what);
		line(arg, text);
	}
}

static const struct ev_reader_ops json_timeline_ops = {
	.format = "timeline-json",
	.next = json_timeline_next,
	.close = json_timeline_close,
	.report = json_timeline_report,
};

static const struct ev_reader_ops json_io_ops = {
	.format = "io-json",
	.next = json_timeline_next,
	.close = json_timeline_close,
	.report = json_timeline_report,
};

static const struct ev_reader_ops json_os_ops = {
	.format = "os-json",
	.next = json_timeline_next,
	.close = json_timeline_close,
	.report = json_timeline_report,
};

static int init_entries(struct json_timeline *tl, const struct ev_reader_ops *ops)
{
	if (ops == &json_io_ops)
		return io_state_init(&tl->io, &tl->base);
	return ops == &json_os_ops ? os_state_init(&tl->os, &tl->base) : 0;
}

/* Canonical JSON of an old file has the rank behind its records: look for it in the last bytes. */
static void rank_of_tail(struct json_timeline *tl)
{
	char tail[4096];
	char *at = tail, *found = NULL;
	FILE *file = tl->input.total ? fopen(tl->base.path, "re") : NULL;
	size_t len;

	if (!file)
		return;
	if (fseek(file, -(long)(sizeof(tail) - 1), SEEK_END) != 0)
		rewind(file);
	len = fread(tail, 1, sizeof(tail) - 1, file);
	fclose(file);
	tail[len] = 0;
	while ((at = memmem(at, (size_t)(tail + len - at), "\"rank\"", 6)) != NULL)
		found = at += 6;
	if (!found)
		return;
	found += strspn(found, " \t\r\n:\"");
	if (!isdigit((unsigned char)*found))
		return;
	tl_rank(&tl->state, strtoull(found, NULL, 10));
}

static int json_timeline_start(struct json_timeline *tl, struct st_err *err)
{
	size_t i;
	int ret;

	if (tl_state_init(&tl->state, &tl->base) < 0)
		return err_set(err, -ENOMEM, "%s: out of memory", tl->base.path);
	tl->text = malloc(TEXT_BYTES);
	tl->parser = yajl_alloc(&callbacks, NULL, tl);
	if (!tl->text || !tl->parser)
		return err_set(err, -ENOMEM, "%s: out of memory", tl->base.path);
	yajl_config(tl->parser, yajl_dont_validate_strings, 1);
	yajl_config(tl->parser, yajl_allow_multiple_values, 1);
	while (!tl->done && !tl->queue_len && !tl->base.origin.known) {
		ret = parse_piece(tl, err);
		if (ret < 0)
			return ret;
	}
	if (!tl->base.origin.known) {
		if (!tl->saw_rank)
			rank_of_tail(tl);
		for (i = 0; i < tl->queue_len; i++) /* the rank stood behind them */
			tl->queue[i].rank = tl->base.origin.rank;
	}
	reader_progress(&tl->base, &tl->input);
	return 0;
}

static struct ev_reader *open_as(struct ev_session *session, struct input *input, const char *path,
				 const struct ev_reader_ops *ops, struct st_err *err)
{
	struct json_timeline *tl = calloc(1, sizeof(*tl));

	if (!tl || reader_init(&tl->base, ops, session, path, err) < 0 || init_entries(tl, ops) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		if (tl)
			free(tl->base.path);
		free(tl);
		return NULL;
	}
	tl->input = *input;
	*input = (struct input){ .fd = -1 };
	if (json_timeline_start(tl, err) < 0) {
		ev_close(&tl->base);
		return NULL;
	}
	return &tl->base;
}

static struct ev_reader *json_timeline_open(struct ev_session *session, struct input *input, const char *path,
					    struct st_err *err)
{
	return open_as(session, input, path, &json_timeline_ops, err);
}

static struct ev_reader *json_io_open(struct ev_session *session, struct input *input, const char *path,
				      struct st_err *err)
{
	return open_as(session, input, path, &json_io_ops, err);
}

static struct ev_reader *json_os_open(struct ev_session *session, struct input *input, const char *path,
				      struct st_err *err)
{
	return open_as(session, input, path, &json_os_ops, err);
}
#else
#define json_io_open json_timeline_open
#define json_os_open json_timeline_open
static struct ev_reader *json_timeline_open(struct ev_session *session, struct input *input, const char *path,
					    struct st_err *err)
{
	err_set(err, -ENOTSUP, "%s is JSON, and this build is without libyajl: install it and build again", path);
	return NULL;
}
#endif

const struct format format_timeline_json = {
	.name = "timeline-json",
	.what = "timeline (JSON)",
	.knows = json_timeline_knows,
	.open = json_timeline_open,
};

const struct format format_io_json = {
	.name = "io-json",
	.what = "I/O calls (JSON)",
	.knows = json_io_knows,
	.open = json_io_open,
};

const struct format format_os_json = {
	.name = "os-json",
	.what = "OS events (JSON)",
	.knows = json_os_knows,
	.open = json_os_open,
};
