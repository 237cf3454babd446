/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of memory records in JSON: os_trace files (an object whose proc_mem are ProcMem) and hbm_trace files (a ProcMem, or
 * several, at the top level); our own form and proto3's canonical one. Streaming through libyajl; a cut tail keeps what came
 * before. The meaning of records is mem.c's. Opened by open.c.
 */
#include "trace/mem.h"
#include "trace/readers.h"
#include "trace/top.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lists of a ProcMem. */
static const struct {
	const char *json;
	enum tl_message what;
} lists[] = {
#define LIST_mem_alloc TL_MEM_ALLOC
#define LIST_mem_free TL_MEM_FREE
#define LIST_mem_site TL_MEM_SITE
#define LIST_mem_state TL_MEM_STATE
#define LIST_origin TL_NONE
#define LIST_drop TL_NONE
#define LIST(number, message, name) { #name, LIST_##message },
	REPEATED_PROC_MEM(LIST)
};

static enum tl_message list_of(const char *key, size_t len)
{
	size_t i;

	for (i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		if (lists[i].what != TL_NONE && tl_same_name(key, len, lists[i].json))
			return lists[i].what;
	return TL_NONE;
}

/* The first key that is not everybody's tells. */
static bool json_mem_knows(const unsigned char *head, size_t len)
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
		const char *text = (const char *)key;

		if (tl_same_name(text, key_len, "proc_mem") || list_of(text, key_len) != TL_NONE)
			return true;
		if (!tl_same_name(text, key_len, "origin") && !tl_same_name(text, key_len, "pid") &&
		    !tl_same_name(text, key_len, "tgid") && !tl_same_name(text, key_len, "space"))
			return false;
		head = key + key_len + 1;
	}
	return false;
}

#ifdef HAVE_YAJL
#include <yajl/yajl_parse.h>

#define PIECE_BYTES (64u << 10)
#define TEXT_BYTES (64u << 10) /* all texts of one record */

enum place {
	IN_FILE,
	IN_TOP,
	IN_ORIGINS,
	IN_ORIGIN,
	IN_CLOCKS,
	IN_CLOCK,
	IN_PROCS,
	IN_PROC, /* IN_TOP is one, too, in files of one process */
	IN_LIST,
	IN_ENTRY,
	IN_FRAMES,
	IN_FRAME
};

struct json_mem {
	struct ev_reader base;
	struct input input;
	struct tl_state tl;
	struct mem_state mem;
	yajl_handle parser;
	enum place stack[12];
	unsigned int depth;
	unsigned int unknown_depth;
	const struct tl_field *field; /* of the key just read, NULL = unknown */
	enum place opens; /* what a container behind it would be; IN_FILE = nothing known */
	bool dropped; /* the key just read is the count of lost records */
	struct msg_proc_mem proc;
	struct mem_entry entry;
	struct tl_record record; /* of the origin */
	struct event *queue;
	size_t queue_at, queue_len, queue_room;
	bool done, no_memory;
	uint64_t unknown_fields, bad_values;
	uint64_t end_offset;
	char end_why[160];
	size_t text_used;
	char text[TEXT_BYTES];
};

static enum place inside(const struct json_mem *m)
{
	return m->stack[m->depth];
}

static struct event *push(struct json_mem *m)
{
	if (m->queue_len == m->queue_room) {
		size_t room = m->queue_room ? m->queue_room * 2 : 256;
		struct event *queue = realloc(m->queue, room * sizeof(*queue));

		if (!queue) {
			m->no_memory = true;
			return NULL;
		}
		m->queue = queue;
		m->queue_room = room;
	}
	return &m->queue[m->queue_len];
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static void *target(struct json_mem *m)
{
	switch (inside(m)) {
	case IN_ORIGIN:
		return &m->record.origin;
	case IN_CLOCK:
		return &m->record.clock;
	case IN_ENTRY:
		return &m->entry.alloc; /* any member of the union */
	case IN_FRAME:
		return &m->entry.frames[m->entry.nframes];
	default:
		return &m->proc;
	}
}

static int take_dropped(struct json_mem *m, uint64_t count)
{
	struct event *ev = count ? push(m) : NULL;

	m->dropped = false;
	if (!count)
		return 1;
	if (!ev)
		return 0;
	tl_clear(&m->record);
	m->record.drop = (struct msg_drop){ .source = { "memory", 6 }, .count = count };
	m->queue_len += (size_t)tl_event(&m->tl, TL_DROP, &m->record, ev);
	return 1;
}

static int take_number(struct json_mem *m, const char *text, size_t len)
{
	char copy[32], *end;
	uint64_t value;

	if (len >= sizeof(copy) || !len) {
		m->bad_values++;
		return 1;
	}
	memcpy(copy, text, len);
	copy[len] = 0;
	errno = 0;
	value = copy[0] == '-' ? (uint64_t)strtoll(copy, &end, 10) : strtoull(copy, &end, 10);
	if (*end || errno) {
		m->bad_values++;
		return 1;
	}
	if (m->dropped)
		return take_dropped(m, value);
	if (!tl_set_number(m->field, target(m), value))
		m->bad_values++;
	return 1;
}

static int on_number(void *arg, const char *text, size_t len)
{
	struct json_mem *m = arg;

	return m->unknown_depth || (!m->field && !m->dropped) ? 1 : take_number(m, text, len);
}

static int on_boolean(void *arg, int value)
{
	return on_number(arg, value ? "1" : "0", 1);
}

static int on_null(void *arg)
{
	return 1;
}

static int on_string(void *arg, const unsigned char *bytes, size_t len)
{
	struct json_mem *m = arg;
	const char *text = (const char *)bytes;

	if (m->unknown_depth || !m->field || tl_set_text(m->field, target(m), text, len))
		return 1;
	if (m->field->type != TL_str && m->field->type != TL_bytes)
		return take_number(m, text, len);
	if (len > TEXT_BYTES - m->text_used) {
		m->bad_values++;
		return 1;
	}
	memcpy(m->text + m->text_used, text, len);
	*(struct msg_text *)(void *)((char *)target(m) + m->field->offset) =
		(struct msg_text){ m->text + m->text_used, len };
	m->text_used += len;
	return 1;
}

/* ---- structure ---------------------------------------------------------------------------------------------------- */

static void key_of_proc(struct json_mem *m, const char *key, size_t len)
{
	enum tl_message what = list_of(key, len);

	m->field = tl_find_json(TL_PROC_MEM, key, len);
	if (m->field)
		return;
	m->entry.what = what;
	if (what != TL_NONE)
		m->opens = IN_LIST;
	else
		m->unknown_fields++;
}

static void key_of_top(struct json_mem *m, const char *key, size_t len)
{
	if (tl_same_name(key, len, "dropped"))
		m->dropped = true;
	else if (tl_same_name(key, len, "origin"))
		m->opens = IN_ORIGINS;
	else if (tl_same_name(key, len, "proc_mem"))
		m->opens = IN_PROCS;
	else
		key_of_proc(m, key, len);
}

static int on_key(void *arg, const unsigned char *bytes, size_t len)
{
	struct json_mem *m = arg;
	const char *key = (const char *)bytes;

	if (m->unknown_depth)
		return 1;
	m->opens = IN_FILE;
	m->field = NULL;
	m->dropped = false;
	switch (inside(m)) {
	case IN_TOP:
		key_of_top(m, key, len);
		return 1;
	case IN_PROC:
		key_of_proc(m, key, len);
		return 1;
	case IN_ORIGIN:
		m->field = tl_find_json(TL_ORIGIN, key, len);
		m->opens = tl_same_name(key, len, "clocks") ? IN_CLOCKS : IN_FILE;
		return 1;
	case IN_CLOCK:
		m->field = tl_find_json(TL_CLOCK, key, len);
		return 1;
	case IN_ENTRY:
		m->field = tl_find_json(m->entry.what, key, len);
		if (!m->field && tl_same_name(key, len, "stack_frames"))
			m->opens = IN_FRAMES;
		else if (!m->field)
			m->unknown_fields++;
		return 1;
	case IN_FRAME:
		m->field = tl_find_json(TL_FRAME, key, len);
		return 1;
	default:
		return 1;
	}
}

static void clear_entry(struct mem_entry *entry)
{
	enum tl_message what = entry->what; /* of the whole list */

	memset(entry, 0, offsetof(struct mem_entry, frames));
	entry->what = what;
}

static int enter(struct json_mem *m, enum place place)
{
	if (place == IN_FILE) {
		m->unknown_depth++;
		return 1;
	}
	m->stack[++m->depth] = place;
	m->field = NULL;
	m->opens = IN_FILE;
	if (place == IN_TOP || place == IN_PROC)
		m->proc = (struct msg_proc_mem){ 0 };
	if (place == IN_ORIGIN)
		tl_clear(&m->record);
	if (place == IN_ENTRY)
		clear_entry(&m->entry);
	if (place == IN_ENTRY || place == IN_ORIGIN)
		m->text_used = 0;
	if (place == IN_FRAME)
		m->entry.frames[m->entry.nframes] = (struct msg_frame){ 0 };
	return 1;
}

/* The object that stands in such a list, or may stand for it. */
static enum place object_in(const struct json_mem *m)
{
	switch (inside(m)) {
	case IN_FILE:
		return IN_TOP;
	case IN_TOP:
		return m->opens == IN_ORIGINS ? IN_ORIGIN : IN_FILE; /* it may stand alone */
	case IN_ORIGINS:
		return IN_ORIGIN;
	case IN_CLOCKS:
		return m->record.has_clock ? IN_FILE : IN_CLOCK;
	case IN_PROCS:
		return IN_PROC;
	case IN_LIST:
		return IN_ENTRY;
	case IN_FRAMES:
		return m->entry.nframes < MEM_FRAMES ? IN_FRAME : IN_FILE;
	default:
		return IN_FILE;
	}
}

static int on_start_map(void *arg)
{
	struct json_mem *m = arg;

	return enter(m, m->unknown_depth ? IN_FILE : object_in(m));
}

static int on_start_array(void *arg)
{
	struct json_mem *m = arg;

	return enter(m, m->unknown_depth ? IN_FILE : m->opens);
}

static int on_end(void *arg)
{
	struct json_mem *m = arg;
	enum place place = inside(m);
	struct event *ev;

	if (m->unknown_depth) {
		m->unknown_depth--;
		return 1;
	}
	if (m->depth)
		m->depth--;
	m->field = NULL;
	m->opens = IN_FILE;
	m->record.has_clock |= place == IN_CLOCK;
	m->entry.nframes += place == IN_FRAME;
	if (place != IN_ENTRY && place != IN_ORIGIN)
		return 1;
	ev = push(m);
	if (!ev)
		return 0;
	if (place == IN_ORIGIN) {
		m->queue_len += (size_t)tl_event(&m->tl, TL_ORIGIN, &m->record, ev);
		return 1;
	}
	mem_event(&m->mem, &m->proc, &m->entry, ev);
	m->queue_len++;
	return 1;
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

static void stop(struct json_mem *m, size_t consumed, const char *why)
{
	m->done = true;
	m->base.stats.torn = true;
	m->end_offset = m->input.offset + consumed;
	snprintf(m->end_why, sizeof(m->end_why), "%.*s", (int)strcspn(why, "\n"), why);
}

/* Parse the next piece into the queue. Return: 0 or -errno. */
static int parse_piece(struct json_mem *m, struct st_err *err)
{
	struct input *input = &m->input;
	unsigned char *why;
	size_t len;
	int ret;

	m->queue_at = m->queue_len = 0;
	ret = input_want(input, 1, err);
	if (ret < 0)
		return ret;
	len = input->len < PIECE_BYTES ? input->len : PIECE_BYTES;
	if (!len) {
		if (yajl_complete_parse(m->parser) != yajl_status_ok || m->depth)
			stop(m, 0, "the file is cut");
		m->done = true;
		return 0;
	}
	ret = yajl_parse(m->parser, input->at, len) == yajl_status_ok ? 0 : -EBADMSG;
	if (m->no_memory)
		return err_set(err, -ENOMEM, "%s: out of memory", m->base.path);
	if (ret < 0) {
		why = yajl_get_error(m->parser, 0, input->at, len);
		stop(m, yajl_get_bytes_consumed(m->parser), why ? (const char *)why : "no JSON");
		yajl_free_error(m->parser, why);
	}
	input_skip(input, len);
	return 0;
}

static int json_mem_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct json_mem *m = (struct json_mem *)reader;
	int ret;

	while (m->queue_at == m->queue_len) {
		if (m->done)
			return 0;
		ret = parse_piece(m, err);
		if (ret < 0)
			return ret;
		reader_progress(reader, &m->input);
	}
	*ev = m->queue[m->queue_at++];
	reader->stats.events++;
	return 1;
}

static void json_mem_close(struct ev_reader *reader)
{
	struct json_mem *m = (struct json_mem *)reader;

	input_close(&m->input);
	if (m->parser)
		yajl_free(m->parser);
	free(m->queue);
	free(m);
}

static void json_mem_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct json_mem *m = (const struct json_mem *)reader;
	char text[512];

	if (m->end_why[0] || m->input.torn) {
		snprintf(text, sizeof(text), "%s: %s (byte %" PRIu64 "); the %" PRIu64 " events before it were read",
			 reader->path, m->input.torn ? m->input.problem : m->end_why, m->end_offset,
			 reader->stats.events);
		line(arg, text);
	}
	if (m->unknown_fields) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " fields of a newer version left out", reader->path,
			 m->unknown_fields);
		line(arg, text);
	}
	if (m->bad_values) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " values of the wrong type left out", reader->path,
			 m->bad_values);
		line(arg, text);
	}
}

static const struct ev_reader_ops json_mem_ops = {
	.format = "mem-json",
	.next = json_mem_next,
	.close = json_mem_close,
	.report = json_mem_report,
};

static struct ev_reader *json_mem_open(struct ev_session *session, struct input *input, const char *path,
				       struct st_err *err)
{
	struct json_mem *m = calloc(1, sizeof(*m));

	if (!m || reader_init(&m->base, &json_mem_ops, session, path, err) < 0 || tl_state_init(&m->tl, &m->base) < 0 ||
	    mem_state_init(&m->mem, &m->base, &m->tl) < 0 || !(m->parser = yajl_alloc(&callbacks, NULL, m))) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		if (m)
			free(m->base.path);
		free(m);
		return NULL;
	}
	yajl_config(m->parser, yajl_dont_validate_strings, 1);
	yajl_config(m->parser, yajl_allow_multiple_values, 1);
	m->base.origin.rank = mem_rank_of_name(path, &m->mem.file_pid);
	m->input = *input;
	*input = (struct input){ .fd = -1 };
	/* who wrote it is known before the first event */
	if (parse_piece(m, err) < 0) {
		ev_close(&m->base);
		return NULL;
	}
	reader_progress(&m->base, &m->input);
	return &m->base;
}
#else
static struct ev_reader *json_mem_open(struct ev_session *session, struct input *input, const char *path,
				       struct st_err *err)
{
	err_set(err, -ENOTSUP, "%s is JSON, and this build is without libyajl: install it and build again", path);
	return NULL;
}
#endif

const struct format format_mem_json = {
	.name = "mem-json",
	.what = "memory (JSON)",
	.knows = json_mem_knows,
	.open = json_mem_open,
};
