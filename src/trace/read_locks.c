/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of Mutex and GIL files: Chrome traces that the agent has written (docs/formats/mutex_gil.md), of one process or,
 * folded, of the ranks of a host. Streaming: a piece of the file goes through libyajl, whole objects of traceEvents become
 * events. A cut tail keeps what came before. Opened by open.c.
 */
#include "trace/locks.h"
#include "trace/readers.h"
#include "trace/session.h"
#include "trace/stacks.h"
#include "trace/timeline.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *after(const unsigned char *head, size_t len, const char *word)
{
	const unsigned char *at = memmem(head, len, word, strlen(word));

	return at ? (const char *)at + strlen(word) : NULL;
}

/* Ours begin so: {"displayTimeUnit":"ns","records":"GIL","origin":[ */
static bool knows(const unsigned char *head, size_t len, const char *records)
{
	size_t some = len < 512 ? len : 512;
	const char *at;

	while (some && isspace(*head)) {
		head++;
		some--;
		len--;
	}
	if (!some || *head != '{' || !after(head, some, "\"displayTimeUnit\""))
		return false;
	at = after(head, some, "\"records\":\"");
	return at && (const char *)head + len - at > 8 && strncmp(at, records, strlen(records)) == 0 &&
	       at[strlen(records)] == '"' && after(head, len, "\"origin\"");
}

static bool gil_knows(const unsigned char *head, size_t len)
{
	return knows(head, len, "GIL");
}

static bool mutex_knows(const unsigned char *head, size_t len)
{
	return knows(head, len, "Mutex");
}

#ifdef HAVE_YAJL
#include <yajl/yajl_parse.h>

#define PIECE_BYTES (64u << 10)
#define TEXT_BYTES 4096u /* all texts of one object */
#define PID_ROWS_STEP 64

enum place { IN_FILE, IN_TOP, IN_ORIGINS, IN_ORIGIN, IN_CLOCKS, IN_CLOCK, IN_FOLDED, IN_EVENTS, IN_EVENT, IN_ARGS };

/** enum key - members of an event and of its args that mean something here */
enum key {
	KEY_NONE,
	KEY_PH,
	KEY_NAME,
	KEY_CAT,
	KEY_PID,
	KEY_TID,
	KEY_TS,
	KEY_DUR,
	KEY_COUNT, /* args from here on */
	KEY_RANK,
	KEY_STEP,
	KEY_STACK,
	KEY_CUT,
	KEY_PLACE,
	KEY_ARG /* goes into the event as it is */
};

/** struct raw - one object of traceEvents */
struct raw {
	char phase;
	struct msg_text name, cat, arg_name;
	uint64_t pid, tid, ts_ns, dur_ns, count, rank, step, stack;
	bool has_rank, cut_begin, cut_end;
	uint8_t nargs;
	struct ev_arg args[EV_MAX_ARGS];
};

/* Whose a process is: its own Origin's, or that of the rank that forked it. */
struct whose {
	uint32_t pid;
	int32_t rank;
	bool worker;
};

struct locks {
	struct ev_reader base;
	struct input input;
	struct tl_state state;
	yajl_handle parser;
	enum place stack[8];
	unsigned int depth;
	unsigned int unknown_depth;
	enum place opens; /* what a container behind the key just read would be; IN_FILE = unknown */
	enum key key;
	uint32_t arg_key;
	const struct tl_field *field; /* inside an origin */
	struct tl_record record;
	unsigned int origins;
	struct raw raw;
	char text[TEXT_BYTES];
	size_t text_used;
	struct whose *whose;
	size_t whose_count;
	uint32_t key_count, key_what, name_thread;
	struct event *queue;
	size_t queue_at, queue_len, queue_room;
	bool done, no_memory;
	uint64_t bad_values, more_args;
	uint64_t end_offset;
	char end_why[160];
};

static enum place inside(const struct locks *l)
{
	return l->stack[l->depth];
}

static void enter(struct locks *l, enum place place)
{
	l->stack[++l->depth] = place;
	l->opens = IN_FILE;
	l->key = KEY_NONE;
	l->field = NULL;
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static struct event *push(struct locks *l)
{
	if (l->queue_len == l->queue_room) {
		size_t room = l->queue_room ? l->queue_room * 2 : 256;
		struct event *queue = realloc(l->queue, room * sizeof(*queue));

		if (!queue) {
			l->no_memory = true;
			return NULL;
		}
		l->queue = queue;
		l->queue_room = room;
	}
	return &l->queue[l->queue_len++];
}

static const struct whose *whose_of(const struct locks *l, uint64_t pid)
{
	size_t i;

	for (i = 0; i < l->whose_count; i++)
		if (l->whose[i].pid == pid)
			return &l->whose[i];
	return NULL;
}

static void remember(struct locks *l, uint64_t pid, int32_t rank, bool worker)
{
	struct whose *rows;

	if (whose_of(l, pid))
		return;
	if (l->whose_count % PID_ROWS_STEP == 0) {
		rows = realloc(l->whose, (l->whose_count + PID_ROWS_STEP) * sizeof(*rows));
		if (!rows) {
			l->no_memory = true;
			return;
		}
		l->whose = rows;
	}
	l->whose[l->whose_count++] = (struct whose){ (uint32_t)pid, rank, worker };
}

static void event_base(struct locks *l, struct event *ev, enum ev_kind kind)
{
	const struct raw *raw = &l->raw;
	const struct whose *whose = whose_of(l, raw->pid);

	/* not the whole struct: args beyond nargs are never read */
	memset(ev, 0, offsetof(struct event, args));
	ev->kind = (uint16_t)kind;
	ev->t_ns = raw->ts_ns;
	ev->clock = EV_CLOCK_MONO;
	ev->rank = whose ? whose->rank : l->base.origin.rank;
	ev->source = l->base.source;
	ev->step = (uint32_t)raw->step;
	ev->track = (struct ev_track){ l->base.origin.host, (int32_t)raw->pid, (int32_t)raw->tid, -1, -1, -1 };
	ev->quality = (whose && whose->worker ? EV_WORKER : 0) | (raw->cut_begin ? EV_CUT_BEGIN : 0) |
		      (raw->cut_end ? EV_CUT_END : 0);
	if (raw->ts_ns + raw->dur_ns > l->state.last_ns)
		l->state.last_ns = raw->ts_ns + raw->dur_ns;
}

static uint32_t text_id(struct locks *l, struct msg_text text)
{
	return text.bytes ? ev_name(l->base.session, text.at, text.bytes) : 0;
}

static void add_u64(struct event *ev, uint32_t key, uint64_t value)
{
	ev->args[ev->nargs++] = (struct ev_arg){ .key = key, .type = EV_ARG_U64, .u64 = value };
}

static bool text_is(struct msg_text text, const char *want)
{
	return text.bytes == strlen(want) && memcmp(text.at, want, text.bytes) == 0;
}

static void take_slice(struct locks *l)
{
	bool gil = text_is(l->raw.cat, "GIL");
	struct event *ev = push(l);

	if (!ev)
		return;
	event_base(l, ev, gil ? EV_GIL : EV_LOCK);
	ev->stack = l->raw.stack <= UINT32_MAX ? (uint32_t)l->raw.stack : 0; /* the file's id until it is delivered */
	ev->dur_ns = l->raw.dur_ns;
	ev->name = text_id(l, l->raw.name);
	ev->nargs = l->raw.nargs;
	memcpy(ev->args, l->raw.args, l->raw.nargs * sizeof(*ev->args));
}

static void take_instant(struct locks *l)
{
	static const char calls[] = "calls: ";
	bool lost = text_is(l->raw.name, "records lost"), note = text_is(l->raw.name, "note") && l->raw.nargs;
	struct msg_text name = l->raw.name;
	struct event *ev;

	if (!lost && !note && (name.bytes < sizeof(calls) || memcmp(name.at, calls, sizeof(calls) - 1) != 0))
		return;
	ev = push(l);
	if (!ev)
		return;
	event_base(l, ev, lost ? EV_LOST : note ? EV_NOTE : EV_COUNTER);
	ev->phase = EV_INSTANT;
	if (note) {
		ev->name = l->raw.args[0].type == EV_ARG_NAME ? l->raw.args[0].name : 0;
		return;
	}
	if (lost) {
		ev->name = ev_namez(l->base.session, l->base.ops->format[0] == 'g' ? "GIL" : "Mutex");
		add_u64(ev, l->key_count, l->raw.count);
		l->base.stats.lost += l->raw.count;
		return;
	}
	name.at += sizeof(calls) - 1;
	name.bytes -= sizeof(calls) - 1;
	ev->name = text_id(l, name);
	ev->nargs = l->raw.nargs;
	memcpy(ev->args, l->raw.args, l->raw.nargs * sizeof(*ev->args));
}

static void take_meta(struct locks *l)
{
	struct event *ev;

	if (text_is(l->raw.name, "process_name")) {
		if (l->raw.has_rank && l->raw.rank <= INT32_MAX)
			remember(l, l->raw.pid, (int32_t)l->raw.rank, true);
		return;
	}
	if (!text_is(l->raw.name, "thread_name") || !l->raw.arg_name.bytes)
		return;
	ev = push(l);
	if (!ev)
		return;
	l->raw.ts_ns = l->state.last_ns;
	event_base(l, ev, EV_TASK);
	ev->phase = EV_INSTANT;
	ev->name = text_id(l, l->raw.arg_name);
	ev->args[ev->nargs++] = (struct ev_arg){ .key = l->key_what, .type = EV_ARG_NAME, .name = l->name_thread };
}

static void take_event(struct locks *l)
{
	if (l->raw.phase == 'X')
		take_slice(l);
	else if (l->raw.phase == 'i')
		take_instant(l);
	else if (l->raw.phase == 'M')
		take_meta(l);
}

/* The first one says who wrote the file; of a folded one the others say whose the processes are. */
static void take_origin(struct locks *l)
{
	const struct msg_origin *origin = &l->record.origin;
	struct event unused;

	remember(l, origin->pid, origin->rank_known ? (int32_t)origin->rank : EV_NO_RANK, false);
	if (!l->origins++)
		tl_event(&l->state, TL_ORIGIN, &l->record, &unused);
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

/* "123.456" in microseconds, exactly. */
static bool parse_us(const char *text, size_t len, uint64_t *ns)
{
	const char *end = text + len;
	uint64_t us = 0;
	uint32_t scale = 100, part = 0;

	for (; text < end && isdigit((unsigned char)*text) && us < UINT64_MAX / 20000; text++)
		us = us * 10 + (uint64_t)(*text - '0');
	if (text < end && *text == '.') {
		for (text++; text < end && isdigit((unsigned char)*text); text++, scale /= 10)
			part += (uint32_t)(*text - '0') * scale;
	}
	*ns = us * 1000 + part;
	return text == end && len;
}

static bool parse_whole(const char *text, size_t len, uint64_t *value)
{
	char copy[24];
	char *end;

	if (!len || len >= sizeof(copy))
		return false;
	memcpy(copy, text, len);
	copy[len] = 0;
	errno = 0;
	*value = copy[0] == '-' ? (uint64_t)strtoll(copy, &end, 10) : strtoull(copy, &end, 10);
	return !*end && end != copy && !errno;
}

static struct ev_arg *add_arg(struct locks *l, enum ev_arg_type type)
{
	struct ev_arg *arg;

	if (l->raw.nargs == EV_MAX_ARGS) {
		l->more_args++;
		return NULL;
	}
	arg = &l->raw.args[l->raw.nargs++];
	*arg = (struct ev_arg){ .key = l->arg_key, .type = type };
	return arg;
}

static void take_number(struct locks *l, const char *text, size_t len)
{
	uint64_t *times[] = { [KEY_TS] = &l->raw.ts_ns, [KEY_DUR] = &l->raw.dur_ns };
	uint64_t value = 0;
	struct ev_arg *arg;
	bool valid;

	if (l->key == KEY_TS || l->key == KEY_DUR)
		valid = parse_us(text, len, times[l->key]);
	else
		valid = parse_whole(text, len, &value);
	if (!valid) {
		l->bad_values++;
		return;
	}
	switch (l->key) {
	case KEY_PID:
		l->raw.pid = value;
		break;
	case KEY_TID:
		l->raw.tid = value;
		break;
	case KEY_COUNT:
		l->raw.count = value;
		break;
	case KEY_RANK:
		l->raw.rank = value;
		l->raw.has_rank = true;
		break;
	case KEY_STEP:
		l->raw.step = value;
		break;
	case KEY_STACK:
		l->raw.stack = value;
		break;
	case KEY_ARG:
		arg = add_arg(l, EV_ARG_U64);
		if (arg)
			arg->u64 = value;
		break;
	default:
		break;
	}
}

static int on_number(void *arg, const char *text, size_t len)
{
	struct locks *l = arg;
	uint64_t value = 0;

	if (l->unknown_depth)
		return 1;
	if (inside(l) == IN_EVENT || inside(l) == IN_ARGS) {
		take_number(l, text, len);
	} else if (l->field) {
		void *to = inside(l) == IN_CLOCK ? (void *)&l->record.clock : (void *)&l->record.origin;

		if (!parse_whole(text, len, &value) || !tl_set_number(l->field, to, value))
			l->bad_values++;
	}
	return 1;
}

static int on_boolean(void *arg, int value)
{
	return on_number(arg, value ? "1" : "0", 1);
}

static int on_null(void *arg)
{
	return 1;
}

static struct msg_text keep(struct locks *l, const char *text, size_t len)
{
	char *at = l->text + l->text_used;

	if (len > TEXT_BYTES - l->text_used) {
		l->bad_values++;
		return (struct msg_text){ NULL, 0 };
	}
	memcpy(at, text, len);
	l->text_used += len;
	return (struct msg_text){ at, len };
}

/* Where an address lies in the job's object files goes behind the address: "0x7f12 3+0x40". */
static void add_place(struct locks *l, const char *text, size_t len)
{
	struct ev_arg *arg = l->raw.nargs ? &l->raw.args[l->raw.nargs - 1] : NULL;
	char both[80];
	int n;

	if (!arg || arg->type != EV_ARG_NAME || len > 40)
		return;
	n = snprintf(both, sizeof(both), "%.32s %.*s", ev_text(l->base.session, arg->name), (int)len, text);
	arg->name = ev_name(l->base.session, both, (size_t)n);
}

static void take_text(struct locks *l, const char *text, size_t len)
{
	struct ev_arg *arg;

	switch (l->key) {
	case KEY_PH:
		l->raw.phase = len == 1 ? text[0] : 0;
		break;
	case KEY_NAME:
		*(inside(l) == IN_ARGS ? &l->raw.arg_name : &l->raw.name) = keep(l, text, len);
		break;
	case KEY_CAT:
		l->raw.cat = keep(l, text, len);
		break;
	case KEY_CUT:
		*(text[0] == 'b' ? &l->raw.cut_begin : &l->raw.cut_end) = true;
		break;
	case KEY_ARG:
		arg = add_arg(l, EV_ARG_NAME);
		if (arg)
			arg->name = ev_name(l->base.session, text, len);
		break;
	case KEY_PLACE:
		add_place(l, text, len);
		break;
	default:
		break;
	}
}

/* The list becomes one text: names between slashes. */
static int add_folded(struct locks *l, const char *text, size_t len)
{
	const char *before = ev_text(l->base.session, l->base.origin.folded);
	char *list = NULL;
	int n = asprintf(&list, "%s%s%.*s/", before, *before ? "" : "/", (int)len, text);

	if (n < 0) {
		l->no_memory = true;
		return 0;
	}
	l->base.origin.folded = ev_name(l->base.session, list, (size_t)n);
	free(list);
	return 1;
}

static int on_string(void *arg, const unsigned char *bytes, size_t len)
{
	struct locks *l = arg;
	const char *text = (const char *)bytes;
	bool clock = inside(l) == IN_CLOCK;

	if (l->unknown_depth)
		return 1;
	if (inside(l) == IN_FOLDED)
		return add_folded(l, text, len);
	if (inside(l) == IN_EVENT || inside(l) == IN_ARGS) {
		take_text(l, text, len);
	} else if (l->field && (l->field->type == TL_str || l->field->type == TL_bytes)) {
		char *to = clock ? (char *)&l->record.clock : (char *)&l->record.origin;

		*(struct msg_text *)(void *)(to + l->field->offset) = keep(l, text, len);
	} else if (l->field) {
		on_number(arg, text, len); /* 64-bit numbers as text */
	}
	return 1;
}

/* ---- structure ---------------------------------------------------------------------------------------------------- */

static enum key key_of(const struct locks *l, const char *key, size_t len)
{
	static const struct {
		const char *text;
		enum key key;
	} rows[] = { { "ph", KEY_PH },	       { "name", KEY_NAME },	  { "cat", KEY_CAT }, { "pid", KEY_PID },
		     { "tid", KEY_TID },       { "ts", KEY_TS },	  { "dur", KEY_DUR }, { "count", KEY_COUNT },
		     { "rank", KEY_RANK },     { "step", KEY_STEP },	  { "cut", KEY_CUT }, { "stack", KEY_STACK },
		     { "lock_at", KEY_PLACE }, { "caller_at", KEY_PLACE } };
	bool args = inside(l) == IN_ARGS;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (strlen(rows[i].text) == len && memcmp(rows[i].text, key, len) == 0 &&
		    (rows[i].key >= KEY_COUNT || rows[i].key == KEY_NAME || !args))
			return rows[i].key;
	return args ? KEY_ARG : KEY_NONE;
}

static bool key_is(const char *key, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(key, want, len) == 0;
}

static int on_key(void *arg, const unsigned char *bytes, size_t len)
{
	struct locks *l = arg;
	const char *key = (const char *)bytes;

	if (l->unknown_depth)
		return 1;
	l->opens = IN_FILE;
	l->field = NULL;
	l->key = KEY_NONE;
	switch (inside(l)) {
	case IN_TOP:
		l->opens = key_is(key, len, "folded")	     ? IN_FOLDED
			   : key_is(key, len, "origin")	     ? IN_ORIGINS
			   : key_is(key, len, "traceEvents") ? IN_EVENTS
							     : IN_FILE;
		break;
	case IN_ORIGIN:
		l->field = tl_find_json(TL_ORIGIN, key, len);
		l->opens = key_is(key, len, "clocks") ? IN_CLOCKS : IN_FILE;
		break;
	case IN_CLOCK:
		l->field = tl_find_json(TL_CLOCK, key, len);
		break;
	case IN_EVENT:
		l->key = key_of(l, key, len);
		l->opens = key_is(key, len, "args") ? IN_ARGS : IN_FILE;
		break;
	case IN_ARGS:
		l->key = key_of(l, key, len);
		if (l->key == KEY_ARG)
			l->arg_key = ev_name(l->base.session, key, len);
		break;
	default:
		break;
	}
	return 1;
}

static int on_start_map(void *arg)
{
	struct locks *l = arg;

	if (l->unknown_depth || l->depth + 1 == sizeof(l->stack) / sizeof(l->stack[0])) {
		l->unknown_depth++;
		return 1;
	}
	switch (inside(l)) {
	case IN_FILE:
		enter(l, IN_TOP);
		return 1;
	case IN_ORIGINS:
		tl_clear(&l->record);
		l->text_used = 0;
		enter(l, IN_ORIGIN);
		return 1;
	case IN_CLOCKS:
		if (l->record.has_clock)
			break;
		l->record.has_clock = true;
		enter(l, IN_CLOCK);
		return 1;
	case IN_EVENTS:
		l->raw = (struct raw){ 0 };
		l->text_used = 0;
		enter(l, IN_EVENT);
		return 1;
	case IN_EVENT:
		if (l->opens != IN_ARGS)
			break;
		enter(l, IN_ARGS);
		return 1;
	default:
		break;
	}
	l->unknown_depth++;
	return 1;
}

static int on_start_array(void *arg)
{
	struct locks *l = arg;
	bool known =
		!l->unknown_depth &&
		((inside(l) == IN_TOP && (l->opens == IN_ORIGINS || l->opens == IN_FOLDED || l->opens == IN_EVENTS)) ||
		 (inside(l) == IN_ORIGIN && l->opens == IN_CLOCKS));

	if (known)
		enter(l, l->opens);
	else
		l->unknown_depth++;
	return 1;
}

static int on_end(void *arg)
{
	struct locks *l = arg;
	enum place place;

	if (l->unknown_depth) {
		l->unknown_depth--;
		return 1;
	}
	place = inside(l);
	if (l->depth)
		l->depth--;
	l->key = KEY_NONE;
	l->field = NULL;
	l->opens = IN_FILE;
	if (place == IN_ORIGIN)
		take_origin(l);
	if (place == IN_EVENT)
		take_event(l);
	return !l->no_memory;
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

static void stop(struct locks *l, size_t consumed, const char *why)
{
	l->done = true;
	l->base.stats.torn = true;
	l->end_offset = l->input.offset + consumed;
	snprintf(l->end_why, sizeof(l->end_why), "%.*s", (int)strcspn(why, "\n"), why);
}

static void stop_by_parser(struct locks *l, const unsigned char *piece, size_t len)
{
	unsigned char *why = yajl_get_error(l->parser, 0, piece, len);

	stop(l, yajl_get_bytes_consumed(l->parser), why ? (const char *)why : "no JSON");
	yajl_free_error(l->parser, why);
}

/* Parse the next piece into the queue. Return: 0 or -errno. */
static int parse_piece(struct locks *l, struct st_err *err)
{
	struct input *input = &l->input;
	yajl_status status;
	size_t len;
	int ret;

	l->queue_at = l->queue_len = 0;
	ret = input_want(input, 1, err);
	if (ret < 0)
		return ret;
	len = input->len < PIECE_BYTES ? input->len : PIECE_BYTES;
	if (!len) {
		if (yajl_complete_parse(l->parser) != yajl_status_ok || l->depth)
			stop(l, 0, "the file is cut");
		l->done = true;
		return 0;
	}
	status = yajl_parse(l->parser, input->at, len);
	if (l->no_memory)
		return err_set(err, -ENOMEM, "%s: out of memory", l->base.path);
	if (status != yajl_status_ok)
		stop_by_parser(l, input->at, len);
	input_skip(input, len);
	return 0;
}

/* The process that wrote the stacks file: a forked child's ids are those of the rank that forked it. */
static uint32_t stacks_owner(const struct locks *l, uint64_t pid)
{
	const struct whose *whose = whose_of(l, pid);
	size_t i;

	if (whose && !whose->worker)
		return (uint32_t)pid;
	for (i = 0; whose && i < l->whose_count; i++)
		if (!l->whose[i].worker && l->whose[i].rank == whose->rank)
			return l->whose[i].pid;
	return l->base.origin.pid;
}

static uint32_t stack_of(const struct locks *l, const struct event *ev)
{
	struct stacks *stacks = ev->stack ? ev_session_stacks(l->base.session) : NULL;

	return stacks ? stacks_find(stacks, l->base.path, stacks_owner(l, (uint64_t)ev->track.pid), ev->stack) : 0;
}

/* "0x7f12 3+0x40" becomes "0x7f12 function@file:line"; without symbols and stacks files it stays. */
static void name_places(struct locks *l, struct event *ev)
{
	struct stacks *stacks = ev_session_stacks(l->base.session);
	uint8_t i;

	for (i = 0; stacks && ev->kind == EV_LOCK && i < ev->nargs; i++) {
		const char *text = ev->args[i].type == EV_ARG_NAME ? ev_text(l->base.session, ev->args[i].name) : "";
		const char *place = strchr(text, ' ');
		char named[4200];
		uint32_t id;

		if (!place || strncmp(text, "0x", 2) != 0)
			continue;
		id = stacks_place(stacks, l->base.path, stacks_owner(l, (uint64_t)ev->track.pid), place + 1);
		if (!id)
			continue;
		snprintf(named, sizeof(named), "%.*s %s", (int)(place - text), text, ev_text(l->base.session, id));
		ev->args[i].name = ev_namez(l->base.session, named);
	}
}

static int locks_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct locks *l = (struct locks *)reader;
	int ret;

	while (l->queue_at == l->queue_len) {
		if (l->done)
			return 0;
		ret = parse_piece(l, err);
		if (ret < 0)
			return ret;
		reader_progress(reader, &l->input);
	}
	*ev = l->queue[l->queue_at++];
	ev->stack = stack_of(l, ev);
	name_places(l, ev);
	reader->stats.events++;
	return 1;
}

static void locks_close(struct ev_reader *reader)
{
	struct locks *l = (struct locks *)reader;

	input_close(&l->input);
	if (l->parser)
		yajl_free(l->parser);
	free(l->queue);
	free(l->whose);
	free(l);
}

static void locks_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct locks *l = (const struct locks *)reader;
	char text[512];

	if (l->end_why[0] || l->input.torn) {
		snprintf(text, sizeof(text), "%s: %s (byte %" PRIu64 "); the %" PRIu64 " events before it were read",
			 reader->path, l->input.torn ? l->input.problem : l->end_why, l->end_offset,
			 reader->stats.events);
		line(arg, text);
	}
	if (l->bad_values) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " values of the wrong type left out", reader->path,
			 l->bad_values);
		line(arg, text);
	}
	if (l->more_args) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " arguments beyond %d of an event left out", reader->path,
			 l->more_args, EV_MAX_ARGS);
		line(arg, text);
	}
}

static const struct ev_reader_ops gil_ops = {
	.format = "gil-json",
	.next = locks_next,
	.close = locks_close,
	.report = locks_report,
};

static const struct ev_reader_ops mutex_ops = {
	.format = "mutex-json",
	.next = locks_next,
	.close = locks_close,
	.report = locks_report,
};

static int locks_start(struct locks *l, struct st_err *err)
{
	struct ev_session *session = l->base.session;
	int ret;

	if (tl_state_init(&l->state, &l->base) < 0)
		return err_set(err, -ENOMEM, "%s: out of memory", l->base.path);
	l->key_count = ev_namez(session, "count");
	l->key_what = ev_namez(session, "what");
	l->name_thread = ev_namez(session, "thread");
	l->parser = yajl_alloc(&callbacks, NULL, l);
	if (!l->parser || !l->name_thread)
		return err_set(err, -ENOMEM, "%s: out of memory", l->base.path);
	yajl_config(l->parser, yajl_dont_validate_strings, 1);
	yajl_config(l->parser, yajl_allow_multiple_values, 1);
	while (!l->done && !l->queue_len) { /* who wrote it stands first */
		ret = parse_piece(l, err);
		if (ret < 0)
			return ret;
	}
	reader_progress(&l->base, &l->input);
	return 0;
}

static struct ev_reader *open_either(const struct ev_reader_ops *ops, struct ev_session *session, struct input *input,
				     const char *path, struct st_err *err)
{
	struct locks *l = calloc(1, sizeof(*l));

	if (!l || reader_init(&l->base, ops, session, path, err) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		free(l);
		return NULL;
	}
	l->input = *input;
	*input = (struct input){ .fd = -1 };
	if (locks_start(l, err) < 0) {
		ev_close(&l->base);
		return NULL;
	}
	return &l->base;
}

static struct ev_reader *gil_open(struct ev_session *session, struct input *input, const char *path, struct st_err *err)
{
	return open_either(&gil_ops, session, input, path, err);
}

static struct ev_reader *mutex_open(struct ev_session *session, struct input *input, const char *path,
				    struct st_err *err)
{
	return open_either(&mutex_ops, session, input, path, err);
}
#else
static struct ev_reader *gil_open(struct ev_session *session, struct input *input, const char *path, struct st_err *err)
{
	err_set(err, -ENOTSUP, "%s is JSON, and this build is without libyajl: install it and build again", path);
	return NULL;
}

#define mutex_open gil_open
#endif

const struct format format_gil = {
	.name = "gil-json",
	.what = "GIL recording (Chrome trace)",
	.knows = gil_knows,
	.open = gil_open,
};

const struct format format_mutex = {
	.name = "mutex-json",
	.what = "lock waits (Chrome trace)",
	.knows = mutex_knows,
	.open = mutex_open,
};
