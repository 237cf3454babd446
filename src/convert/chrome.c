/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Exporter: Chrome Trace Event JSON, as chrome://tracing, Perfetto and MindStudio read it. Integer pids, numeric times in
 * microseconds relative to a base that the metadata name, complete slices. Streaming; the texts of names are escaped
 * once each.
 */
#include "convert/decimal.h"
#include "convert/sink.h"
#include "convert/utf8.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MAX ((uint64_t)1 << 53) /* larger numbers lose bits in JavaScript */

/** struct quoted - a name as JSON text with its quotes; made at its first use */
struct quoted {
	char *text;
	uint32_t len;
};

struct chrome {
	struct tsink base;
	struct tsink_head head;
	uint64_t base_ns; /* subtracted from all times */
	struct quoted *names; /* by name id */
	uint32_t names_room;
	bool any; /* an event was written */
	uint64_t clamped; /* began before the base */
};

static inline void put(struct outfile *out, const char *text, size_t len)
{
	if (len > 256) {
		outfile_put(out, text, len);
		return;
	}
	memcpy(outfile_room(out, len), text, len);
	out->at += len;
}

#define PUT(out, literal) put(out, literal, sizeof(literal) - 1)

static inline void put_u64(struct outfile *out, uint64_t value)
{
	out->at = decimal_u64(outfile_room(out, DECIMAL_BYTES), value);
}

/* ---- texts -------------------------------------------------------------------------------------------------------- */

/* JSON text of any bytes, with quotes; @out has room for 6 * len + 2. Return: bytes. */
static size_t quote(char *out, const char *text, size_t len)
{
	static const char hex[] = "0123456789abcdef";
	const unsigned char *at = (const unsigned char *)text, *end = at + len;
	char *begin = out;
	size_t n;

	*out++ = '"';
	while (at < end) {
		if (*at == '"' || *at == '\\') {
			*out++ = '\\';
			*out++ = (char)*at++;
		} else if (*at < 0x20 || *at == 0x7f) {
			memcpy(out, "\\u00", 4);
			out[4] = hex[*at >> 4];
			out[5] = hex[*at++ & 15];
			out += 6;
		} else if ((n = utf8_valid(at, (size_t)(end - at))) != 0) {
			memcpy(out, at, n);
			out += n;
			at += n;
		} else {
			out += utf8_put_byte(out, *at++);
		}
	}
	*out++ = '"';
	return (size_t)(out - begin);
}

static void put_text(struct outfile *out, const char *text)
{
	size_t len = strlen(text);
	char *copy = malloc(6 * len + 2);

	if (!copy) {
		out->failed = -ENOMEM;
		return;
	}
	put(out, copy, quote(copy, text, len));
	free(copy);
}

/* Quoted text of a name id, made once. NULL = out of memory, which the file remembers. */
static const struct quoted *quoted(struct chrome *chrome, uint32_t id)
{
	struct quoted *name;
	const char *text;
	size_t len;

	if (id >= chrome->names_room) {
		uint32_t room = ev_name_count(chrome->base.session) + 1024;
		struct quoted *names = room > id ? realloc(chrome->names, room * sizeof(*names)) : NULL;

		if (!names)
			goto no_memory;
		memset(names + chrome->names_room, 0, (room - chrome->names_room) * sizeof(*names));
		chrome->names = names;
		chrome->names_room = room;
	}
	name = &chrome->names[id];
	if (name->text)
		return name;
	text = ev_text(chrome->base.session, id);
	len = ev_text_len(chrome->base.session, id);
	name->text = malloc(6 * len + 2);
	if (!name->text)
		goto no_memory;
	name->len = (uint32_t)quote(name->text, text, len);
	return name;
no_memory:
	chrome->base.out.failed = -ENOMEM;
	return NULL;
}

static inline void put_name(struct chrome *chrome, uint32_t id)
{
	const struct quoted *name = quoted(chrome, id);

	if (name)
		put(&chrome->base.out, name->text, name->len);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static inline void open_event(struct chrome *chrome)
{
	if (chrome->any)
		PUT(&chrome->base.out, ",\n{\"ph\":\"");
	else
		PUT(&chrome->base.out, "{\"ph\":\"");
	chrome->any = true;
}

static inline void put_ids(struct outfile *out, uint32_t pid, uint32_t tid)
{
	PUT(out, ",\"pid\":");
	put_u64(out, pid);
	PUT(out, ",\"tid\":");
	put_u64(out, tid);
}

/* Threads need numbers of their own: viewers take the same tid in two processes for one thread. */
static uint32_t tid_of(const struct tsink_track *track)
{
	return track->id;
}

static void put_arg(struct chrome *chrome, const struct ev_arg *arg)
{
	static const char hex[] = "0123456789abcdef";
	struct outfile *out = &chrome->base.out;
	uint64_t value = arg->u64;
	char text[32];
	int i;

	put_name(chrome, arg->key);
	PUT(out, ":");
	switch (arg->type) {
	case EV_ARG_I64:
		if (arg->i64 <= (int64_t)EXACT_MAX && arg->i64 >= -(int64_t)EXACT_MAX) {
			out->at = decimal_i64(outfile_room(out, DECIMAL_BYTES), arg->i64);
			return;
		}
		break;
	case EV_ARG_U64:
		if (value <= EXACT_MAX) {
			put_u64(out, value);
			return;
		}
		break;
	case EV_ARG_F64:
		i = snprintf(text, sizeof(text), "%.17g", arg->f64);
		if (arg->f64 - arg->f64 != 0) /* infinite or no number: no JSON */
			PUT(out, "null");
		else
			put(out, text, (size_t)i);
		return;
	case EV_ARG_NAME:
		put_name(chrome, arg->name);
		return;
	default:
		break;
	}
	memcpy(text, "\"0x", 3);
	for (i = 0; i < 16; i++)
		text[3 + i] = hex[value >> (60 - 4 * i) & 15];
	text[19] = '"';
	put(out, text, 20);
}

static void put_stack(struct chrome *chrome, uint32_t stack)
{
	const uint32_t *frames;
	size_t count = ev_stack_frames(chrome->base.session, stack, &frames), i;

	PUT(&chrome->base.out, "\"stack\":[");
	for (i = 0; i < count; i++) {
		if (i)
			PUT(&chrome->base.out, ",");
		put_name(chrome, frames[i]);
	}
	PUT(&chrome->base.out, "]");
}

static void put_args(struct chrome *chrome, const struct event *ev, uint64_t clamped_ns)
{
	struct outfile *out = &chrome->base.out;
	const char *quality = tsink_quality(ev->quality);
	bool comma = false;
	size_t i;

#define SEPARATE()                     \
	do {                           \
		if (comma)             \
			PUT(out, ","); \
		comma = true;          \
	} while (0)
	PUT(out, ",\"args\":{");
	if (ev->step) {
		SEPARATE();
		PUT(out, "\"step\":");
		put_u64(out, ev->step);
	}
	for (i = 0; i < ev->nargs; i++) {
		SEPARATE();
		put_arg(chrome, &ev->args[i]);
	}
	if (*quality) {
		SEPARATE();
		PUT(out, "\"quality\":");
		put_text(out, quality);
	}
	if (ev->stack) {
		SEPARATE();
		put_stack(chrome, ev->stack);
	}
	if (clamped_ns) {
		SEPARATE();
		PUT(out, "\"began_us_earlier\":");
		out->at = decimal_us(outfile_room(out, DECIMAL_BYTES), clamped_ns);
	}
	PUT(out, "}}");
#undef SEPARATE
}

/* name, cat, pid, tid, ts; the rest follows. Return: ns by which the begin lies before the base. */
static uint64_t put_common(struct chrome *chrome, const struct tsink_track *track, const struct tsink_slice *slice)
{
	struct outfile *out = &chrome->base.out;
	uint64_t ts_ns = slice->t_ns - chrome->base_ns, clamped_ns = 0;

	if (slice->t_ns < chrome->base_ns) {
		clamped_ns = chrome->base_ns - slice->t_ns;
		chrome->clamped++;
		ts_ns = 0;
	}
	PUT(out, ",\"name\":");
	put_name(chrome, slice->name);
	if (slice->number) {
		out->at[-1] = ' '; /* in place of the closing quote */
		put_u64(out, slice->number);
		PUT(out, "\"");
	}
	PUT(out, ",\"cat\":\"");
	put(out, slice->category, strlen(slice->category));
	PUT(out, "\"");
	put_ids(out, track->pid, tid_of(track));
	PUT(out, ",\"ts\":");
	out->at = decimal_us(outfile_room(out, DECIMAL_BYTES), ts_ns);
	return clamped_ns;
}

/*
 * Steps follow each other without a gap. Viewers add ts and dur as doubles, and a sum one bit too large makes them nest one
 * step in the next, and the next; a begin and an end carry the very same text for the same moment.
 */
static void put_step(struct chrome *chrome, const struct tsink_track *track, const struct tsink_slice *slice)
{
	struct tsink_slice end = *slice;
	end.t_ns += slice->dur_ns;
	open_event(chrome);
	PUT(&chrome->base.out, "B\"");
	put_common(chrome, track, slice);
	put_args(chrome, slice->ev, 0);
	open_event(chrome);
	PUT(&chrome->base.out, "E\"");
	put_common(chrome, track, &end);
	put_args(chrome, slice->ev, 0); /* speedscope tells slices apart by name and arguments */
}

static int chrome_slice(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice)
{
	struct chrome *chrome = (struct chrome *)sink;
	uint64_t clamped_ns;

	if (slice->ev->kind == EV_STEP && slice->dur_ns && slice->t_ns >= chrome->base_ns) {
		put_step(chrome, track, slice);
		return sink->out.failed;
	}
	open_event(chrome);
	PUT(&sink->out, "X\"");
	clamped_ns = put_common(chrome, track, slice);
	PUT(&sink->out, ",\"dur\":");
	sink->out.at = decimal_us(outfile_room(&sink->out, DECIMAL_BYTES),
				  slice->dur_ns > clamped_ns ? slice->dur_ns - clamped_ns : 0);
	put_args(chrome, slice->ev, clamped_ns);
	return sink->out.failed;
}

static int chrome_instant(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice)
{
	struct chrome *chrome = (struct chrome *)sink;
	uint64_t clamped_ns;

	open_event(chrome);
	PUT(&sink->out, "i\",\"s\":\"t\"");
	clamped_ns = put_common(chrome, track, slice);
	put_args(chrome, slice->ev, clamped_ns);
	return sink->out.failed;
}

/* One end of an arrow; it holds on to the slice around it. */
static void put_arrow_end(struct chrome *chrome, const struct tsink_track *track, const struct tsink_slice *slice,
			  bool begin, uint64_t id)
{
	struct outfile *out = &chrome->base.out;

	open_event(chrome);
	if (begin)
		PUT(out, "s\"");
	else
		PUT(out, "f\",\"bp\":\"e\"");
	PUT(out, ",\"id\":");
	put_u64(out, id);
	put_common(chrome, track, slice);
	PUT(out, "}");
}

static int chrome_arrow(struct tsink *sink, const struct tsink_track *from, const struct tsink_track *to,
			const struct tsink_slice *slice, uint64_t id)
{
	struct chrome *chrome = (struct chrome *)sink;

	if (slice->t_ns < chrome->base_ns)
		return 0;
	put_arrow_end(chrome, from, slice, true, id);
	put_arrow_end(chrome, to, slice, false, id);
	return sink->out.failed;
}

static void put_ms(struct outfile *out, uint64_t ns)
{
	uint64_t millionths = ns % 1000000;
	char text[8];
	int i;

	put_u64(out, ns / 1000000);
	for (i = 6; i > 0; i--, millionths /= 10)
		text[i] = (char)('0' + millionths % 10);
	text[0] = '.';
	put(out, text, 7);
}

static int chrome_counter(struct tsink *sink, const struct tsink_track *track, uint64_t t_ns, uint64_t value)
{
	struct chrome *chrome = (struct chrome *)sink;
	struct outfile *out = &sink->out;

	open_event(chrome);
	PUT(out, "C\",\"name\":");
	put_text(out, track->name);
	put_ids(out, track->pid, tid_of(track));
	PUT(out, ",\"ts\":");
	out->at = decimal_us(outfile_room(out, DECIMAL_BYTES), t_ns > chrome->base_ns ? t_ns - chrome->base_ns : 0);
	PUT(out, ",\"args\":{");
	put_text(out, track->unit ? track->unit : "ms");
	PUT(out, ":");
	if (track->unit)
		put_u64(out, value);
	else
		put_ms(out, value);
	PUT(out, "}}");
	return out->failed;
}

/* ---- what things are called --------------------------------------------------------------------------------------- */

static void put_meta(struct chrome *chrome, const char *what, uint32_t pid, uint32_t tid, const char *key)
{
	open_event(chrome);
	PUT(&chrome->base.out, "M\",\"name\":\"");
	put(&chrome->base.out, what, strlen(what));
	PUT(&chrome->base.out, "\"");
	put_ids(&chrome->base.out, pid, tid);
	PUT(&chrome->base.out, ",\"args\":{\"");
	put(&chrome->base.out, key, strlen(key));
	PUT(&chrome->base.out, "\":");
}

static void put_meta_text(struct chrome *chrome, const char *what, uint32_t pid, uint32_t tid, const char *key,
			  const char *value)
{
	put_meta(chrome, what, pid, tid, key);
	put_text(&chrome->base.out, value);
	PUT(&chrome->base.out, "}}");
}

static void put_meta_sort(struct chrome *chrome, const char *what, uint32_t pid, uint32_t tid, int32_t sort)
{
	struct outfile *out = &chrome->base.out;

	put_meta(chrome, what, pid, tid, "sort_index");
	out->at = decimal_i64(outfile_room(out, DECIMAL_BYTES), sort);
	PUT(out, "}}");
}

static int chrome_process(struct tsink *sink, const struct tsink_process *process)
{
	struct chrome *chrome = (struct chrome *)sink;

	put_meta_text(chrome, "process_name", process->pid, process->pid, "name", process->name);
	put_meta_sort(chrome, "process_sort_index", process->pid, process->pid, process->sort);
	if (process->labels)
		put_meta_text(chrome, "process_labels", process->pid, process->pid, "labels", process->labels);
	return sink->out.failed;
}

static int chrome_track(struct tsink *sink, const struct tsink_track *track)
{
	if (!track->counter)
		put_meta_sort((struct chrome *)sink, "thread_sort_index", track->pid, tid_of(track), track->sort);
	return sink->out.failed;
}

/* A name may be given once, anywhere in the file: timeline.c calls this for every track at the end. */
static int chrome_rename(struct tsink *sink, const struct tsink_track *track)
{
	if (!track->counter)
		put_meta_text((struct chrome *)sink, "thread_name", track->pid, tid_of(track), "name", track->name);
	return sink->out.failed;
}

static int chrome_head(struct tsink *sink, const struct tsink_head *head)
{
	struct chrome *chrome = (struct chrome *)sink;

	chrome->head = *head;
	chrome->base_ns = head->first_ns - head->first_ns % 1000000000u;
	PUT(&sink->out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
	return sink->out.failed;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------ */

static void chrome_free(struct chrome *chrome)
{
	uint32_t i;

	for (i = 0; i < chrome->names_room; i++)
		free(chrome->names[i].text);
	free(chrome->names);
	free(chrome);
}

static int chrome_finish(struct tsink *sink, const char *const *notes, uint64_t *bytes, struct st_err *err)
{
	struct chrome *chrome = (struct chrome *)sink;
	struct outfile *out = &sink->out;
	bool wall = chrome->head.axis == MERGE_WALL;
	size_t i;
	int ret;

	PUT(out, "\n],\"metadata\":{\"tool\":\"sysTrace " ST_VERSION "\",\"clock\":\"");
	put(out, wall ? "REALTIME" : "MONOTONIC", wall ? 8 : 9);
	PUT(out, "\",\"base_time_ns\":\""); /* text: it has more digits than a double */
	put_u64(out, chrome->base_ns);
	PUT(out, "\"");
	if (chrome->head.wall_minus_mono_ns) {
		PUT(out, ",\"base_wall_ns\":\"");
		put_u64(out, wall ? chrome->base_ns : chrome->base_ns + (uint64_t)chrome->head.wall_minus_mono_ns);
		PUT(out, "\"");
	}
	PUT(out, ",\"notes\":[");
	for (i = 0; notes && notes[i]; i++) {
		if (i)
			PUT(out, ",");
		put_text(out, notes[i]);
	}
	PUT(out, "]}}\n");
	ret = outfile_finish(out, err);
	*bytes = out->bytes;
	chrome_free(chrome);
	return ret;
}

static void chrome_discard(struct tsink *sink)
{
	if (!sink)
		return;
	outfile_discard(&sink->out);
	chrome_free((struct chrome *)sink);
}

static struct tsink *chrome_open(struct ev_session *session, const char *path, struct st_err *err)
{
	struct chrome *chrome = calloc(1, sizeof(*chrome));

	if (!chrome) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	chrome->base.ops = &tsink_chrome;
	chrome->base.session = session;
	if (outfile_open(&chrome->base.out, path, err) < 0) {
		free(chrome);
		return NULL;
	}
	return &chrome->base;
}

const struct tsink_ops tsink_chrome = {
	.name = "chrome",
	.suffix = ".json",
	.help = "Chrome Trace Event JSON",
	.open = chrome_open,
	.head = chrome_head,
	.process = chrome_process,
	.track = chrome_track,
	.rename = chrome_rename,
	.slice = chrome_slice,
	.instant = chrome_instant,
	.arrow = chrome_arrow,
	.counter = chrome_counter,
	.finish = chrome_finish,
	.discard = chrome_discard,
};
