/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Exporter: Perfetto's protobuf trace. One packet sequence, names and texts interned at their first use, a track
 * descriptor for each process and lane, a clock snapshot that names the axis. Begin and end are packets of their own;
 * timeline.c calls slice_end() in order of time. Field numbers: perfetto/trace/trace_packet.proto and what it includes.
 */
#include "convert/sink.h"
#include "convert/utf8.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* message fields, as tag bytes: number << 3 | wire type (0 varint, 1 fixed64, 2 length) */
#define TAG(number, wire) ((number) << 3 | (wire))
enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };

enum { /* TracePacket */
       PACKET_CLOCK_SNAPSHOT = 6,
       PACKET_TIMESTAMP = 8,
       PACKET_SEQUENCE = 10,
       PACKET_TRACK_EVENT = 11,
       PACKET_INTERNED = 12,
       PACKET_FLAGS = 13,
       PACKET_DEFAULTS = 59,
       PACKET_DESCRIPTOR = 60,
       PACKET_FIRST = 87
};
enum { DEFAULTS_CLOCK = 58 };
enum { FLAG_CLEARED = 1, FLAG_NEEDS_STATE = 2 };
enum { CLOCK_ID_REALTIME = 1, CLOCK_ID_MONOTONIC = 3 };
enum { /* TrackEvent */
       EVENT_CATEGORY_IID = 3,
       EVENT_ANNOTATION = 4,
       EVENT_TYPE = 9,
       EVENT_NAME_IID = 10,
       EVENT_TRACK = 11,
       EVENT_NAME = 23,
       EVENT_COUNTER = 30,
       EVENT_FLOWS = 47
};
enum { TYPE_BEGIN = 1, TYPE_END, TYPE_INSTANT, TYPE_COUNTER };
enum { /* DebugAnnotation */
       NOTE_NAME_IID = 1,
       NOTE_UINT = 3,
       NOTE_INT = 4,
       NOTE_DOUBLE = 5,
       NOTE_TEXT = 6,
       NOTE_POINTER = 7,
       NOTE_NAME = 10,
       NOTE_ARRAY = 12,
       NOTE_TEXT_IID = 17
};
enum { /* InternedData */
       INTERNED_CATEGORIES = 1,
       INTERNED_NAMES = 2,
       INTERNED_NOTE_NAMES = 3,
       INTERNED_TEXTS = 29
};
enum { /* TrackDescriptor and inside */
       TRACK_UUID = 1,
       TRACK_NAME = 2,
       TRACK_PROCESS = 3,
       TRACK_PARENT = 5,
       TRACK_COUNTER = 8,
       TRACK_CHILD_ORDER = 11,
       TRACK_RANK = 12,
       TRACK_MERGING = 15,
       PROCESS_PID = 1,
       PROCESS_NAME = 6,
       PROCESS_LABELS = 8,
       COUNTER_UNIT = 3
};
enum { ORDER_EXPLICIT = 3, MERGING_NONE = 2, UNIT_TIME_NS = 1, UNIT_COUNT = 2, UNIT_SIZE_BYTES = 3 };

#define SEQUENCE_ID 1
#define PROCESS_UUID_BASE ((uint64_t)1 << 32) /* tracks have their ids, processes their pids above this */
#define BODY_BYTES 4096 /* a track event but for long texts */

/** enum intern_kind - bits in seen[]: in which table the name is known to the file already */
enum intern_kind { SEEN_NAME = 1, SEEN_NOTE = 2, SEEN_TEXT = 4 };

/** struct buffer - a message being built; grows */
struct buffer {
	char *data;
	size_t len, room;
};

struct perfetto {
	struct tsink base;
	uint8_t *seen; /* by name id */
	uint32_t seen_room;
	const char *categories[32]; /* iid - 1; compared by address: they are constants */
	uint32_t categories_count;
	uint32_t key_step, key_quality, key_stack;
	struct buffer interned, event, note, scratch;
};

/* ---- wire format -------------------------------------------------------------------------------------------------- */

static inline size_t varint_len(uint64_t value)
{
	return value < 128 ? 1 : (size_t)(64 - __builtin_clzll(value) + 6) / 7;
}

static inline char *put_varint(char *out, uint64_t value)
{
	while (value >= 128) {
		*out++ = (char)(value | 128);
		value >>= 7;
	}
	*out++ = (char)value;
	return out;
}

static bool buffer_grow(struct perfetto *perfetto, struct buffer *buffer, size_t bytes)
{
	char *data;

	data = realloc(buffer->data, buffer->len + bytes + BODY_BYTES);
	if (!data) {
		perfetto->base.out.failed = -ENOMEM;
		return false;
	}
	buffer->data = data;
	buffer->room = buffer->len + bytes + BODY_BYTES;
	return true;
}

static inline bool buffer_room(struct perfetto *perfetto, struct buffer *buffer, size_t bytes)
{
	return buffer->room - buffer->len >= bytes || buffer_grow(perfetto, buffer, bytes);
}

static inline void add_u64(struct perfetto *perfetto, struct buffer *buffer, uint32_t field, uint64_t value)
{
	char *at;

	if (!buffer_room(perfetto, buffer, 20))
		return;
	at = put_varint(buffer->data + buffer->len, TAG(field, VARINT));
	buffer->len = (size_t)(put_varint(at, value) - buffer->data);
}

static void add_bytes(struct perfetto *perfetto, struct buffer *buffer, uint32_t field, const void *data, size_t len)
{
	char *at;

	if (!buffer_room(perfetto, buffer, 20 + len))
		return;
	at = put_varint(buffer->data + buffer->len, TAG(field, BYTES));
	at = put_varint(at, len);
	if (len)
		memcpy(at, data, len);
	buffer->len = (size_t)(at + len - buffer->data);
}

static void add_fixed64(struct perfetto *perfetto, struct buffer *buffer, uint32_t field, uint64_t value)
{
	char *at;

	if (!buffer_room(perfetto, buffer, 20))
		return;
	at = put_varint(buffer->data + buffer->len, TAG(field, FIXED64));
	memcpy(at, &value, 8);
	buffer->len = (size_t)(at + 8 - buffer->data);
}

/* Any bytes as UTF-8. */
static void add_text(struct perfetto *perfetto, struct buffer *buffer, uint32_t field, const char *text, size_t len)
{
	const unsigned char *at = (const unsigned char *)text, *end = at + len;
	size_t used = 0, n;
	char *copy;

	while (at < end && (n = utf8_valid(at, (size_t)(end - at))) != 0)
		at += n;
	if (at == end) {
		add_bytes(perfetto, buffer, field, text, len);
		return;
	}
	copy = malloc(2 * len);
	if (!copy) {
		perfetto->base.out.failed = -ENOMEM;
		return;
	}
	for (at = (const unsigned char *)text; at < end; at += n) {
		n = utf8_valid(at, (size_t)(end - at));
		if (n) {
			memcpy(copy + used, at, n);
			used += n;
		} else {
			n = 1;
			used += utf8_put_byte(copy + used, *at);
		}
	}
	add_bytes(perfetto, buffer, field, copy, used);
	free(copy);
}

/* A packet: the given fields, then @body as field @field (0 = none), with interned data in front of it if there is any. */
static int put_packet(struct perfetto *perfetto, uint64_t t_ns, uint32_t flags, uint32_t field,
		      const struct buffer *body)
{
	struct outfile *out = &perfetto->base.out;
	const struct buffer *interned = &perfetto->interned;
	char head[64];
	char *at = head;
	size_t bytes;

	if (field == PACKET_TRACK_EVENT) {
		*at++ = TAG(PACKET_TIMESTAMP, VARINT);
		at = put_varint(at, t_ns);
	}
	*at++ = TAG(PACKET_SEQUENCE, VARINT);
	*at++ = SEQUENCE_ID;
	*at++ = TAG(PACKET_FLAGS, VARINT);
	*at++ = (char)flags;
	bytes = (size_t)(at - head);
	if (interned->len)
		bytes += 1 + varint_len(interned->len) + interned->len;
	if (field)
		bytes += varint_len(TAG(field, BYTES)) + varint_len(body->len) + body->len;

	outfile_room(out, 128);
	*out->at++ = TAG(1, BYTES); /* Trace.packet */
	out->at = put_varint(out->at, bytes);
	memcpy(out->at, head, (size_t)(at - head));
	out->at += at - head;
	if (interned->len) {
		*out->at++ = TAG(PACKET_INTERNED, BYTES);
		out->at = put_varint(out->at, interned->len);
		outfile_put(out, interned->data, interned->len);
		perfetto->interned.len = 0;
	}
	if (field) {
		outfile_room(out, 128 + BODY_BYTES);
		out->at = put_varint(out->at, TAG(field, BYTES));
		out->at = put_varint(out->at, body->len);
		if (body->len <= BODY_BYTES) {
			memcpy(out->at, body->data, body->len);
			out->at += body->len;
		} else {
			outfile_put(out, body->data, body->len);
		}
	}
	return out->failed;
}

/* ---- interning ---------------------------------------------------------------------------------------------------- */

static void intern_text(struct perfetto *perfetto, uint32_t table, uint32_t iid, const char *text, size_t len)
{
	struct buffer *entry = &perfetto->scratch;

	entry->len = 0;
	add_u64(perfetto, entry, 1, iid);
	add_text(perfetto, entry, 2, text, len);
	add_bytes(perfetto, &perfetto->interned, table, entry->data, entry->len);
}

/* Make a name id usable as iid of a table: its text goes into the next packet if the file does not have it yet. */
static inline void use_name(struct perfetto *perfetto, uint32_t id, enum intern_kind kind)
{
	if (id < perfetto->seen_room && (perfetto->seen[id] & kind))
		return;
	if (id >= perfetto->seen_room) {
		uint32_t room = ev_name_count(perfetto->base.session) + 1024;
		uint8_t *seen = room > id ? realloc(perfetto->seen, room) : NULL;

		if (!seen) {
			perfetto->base.out.failed = -ENOMEM;
			return;
		}
		memset(seen + perfetto->seen_room, 0, room - perfetto->seen_room);
		perfetto->seen = seen;
		perfetto->seen_room = room;
	}
	perfetto->seen[id] |= (uint8_t)kind;
	intern_text(perfetto,
		    kind == SEEN_NAME	? INTERNED_NAMES
		    : kind == SEEN_NOTE ? INTERNED_NOTE_NAMES
					: INTERNED_TEXTS,
		    id, ev_text(perfetto->base.session, id), ev_text_len(perfetto->base.session, id));
}

static uint32_t category_iid(struct perfetto *perfetto, const char *category)
{
	uint32_t i;

	for (i = 0; i < perfetto->categories_count; i++)
		if (perfetto->categories[i] == category)
			return i + 1;
	if (i == sizeof(perfetto->categories) / sizeof(perfetto->categories[0]))
		return 1;
	perfetto->categories[perfetto->categories_count++] = category;
	intern_text(perfetto, INTERNED_CATEGORIES, i + 1, category, strlen(category));
	return i + 1;
}

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

static void end_note(struct perfetto *perfetto)
{
	add_bytes(perfetto, &perfetto->event, EVENT_ANNOTATION, perfetto->note.data, perfetto->note.len);
}

static void begin_note(struct perfetto *perfetto, uint32_t key)
{
	use_name(perfetto, key, SEEN_NOTE);
	perfetto->note.len = 0;
	add_u64(perfetto, &perfetto->note, NOTE_NAME_IID, key);
}

/* An argument that is a number: written in place, as its length is easily told. */
static inline void add_number(struct perfetto *perfetto, uint32_t key, uint32_t field, uint64_t value)
{
	struct buffer *event = &perfetto->event;
	size_t len = 1 + varint_len(key) + varint_len(TAG(field, VARINT)) + varint_len(value);
	char *at;

	if (!buffer_room(perfetto, event, len + 16))
		return;
	at = event->data + event->len;
	*at++ = TAG(EVENT_ANNOTATION, BYTES);
	at = put_varint(at, len);
	*at++ = TAG(NOTE_NAME_IID, VARINT);
	at = put_varint(at, key);
	at = put_varint(at, TAG(field, VARINT));
	at = put_varint(at, value);
	event->len = (size_t)(at - event->data);
}

static void add_arg(struct perfetto *perfetto, const struct ev_arg *arg)
{
	uint64_t bits;

	if (arg->type == EV_ARG_U64 || (arg->type == EV_ARG_NAME && arg->name)) {
		bool text = arg->type == EV_ARG_NAME;

		use_name(perfetto, arg->key, SEEN_NOTE);
		if (text)
			use_name(perfetto, arg->name, SEEN_TEXT);
		add_number(perfetto, arg->key, text ? NOTE_TEXT_IID : NOTE_UINT, text ? arg->name : arg->u64);
		return;
	}
	begin_note(perfetto, arg->key);
	switch (arg->type) {
	case EV_ARG_NAME: /* the empty one */
		add_bytes(perfetto, &perfetto->note, NOTE_TEXT, "", 0);
		break;
	case EV_ARG_I64:
		add_u64(perfetto, &perfetto->note, NOTE_INT, (uint64_t)arg->i64);
		break;
	case EV_ARG_F64:
		memcpy(&bits, &arg->f64, 8);
		add_fixed64(perfetto, &perfetto->note, NOTE_DOUBLE, bits);
		break;
	case EV_ARG_PTR:
		add_u64(perfetto, &perfetto->note, NOTE_POINTER, arg->u64);
		break;
	default:
		add_u64(perfetto, &perfetto->note, NOTE_UINT, arg->u64);
	}
	end_note(perfetto);
}

static void add_stack(struct perfetto *perfetto, uint32_t stack)
{
	const uint32_t *frames;
	size_t count = ev_stack_frames(perfetto->base.session, stack, &frames), i;

	begin_note(perfetto, perfetto->key_stack);
	for (i = 0; i < count; i++) {
		use_name(perfetto, frames[i], SEEN_TEXT);
		perfetto->scratch.len = 0;
		add_u64(perfetto, &perfetto->scratch, NOTE_TEXT_IID, frames[i]);
		add_bytes(perfetto, &perfetto->note, NOTE_ARRAY, perfetto->scratch.data, perfetto->scratch.len);
	}
	end_note(perfetto);
}

static void add_args(struct perfetto *perfetto, const struct event *ev)
{
	const char *quality = tsink_quality(ev->quality);
	size_t i;

	if (ev->step)
		add_arg(perfetto, &(struct ev_arg){ .key = perfetto->key_step, .type = EV_ARG_U64, .u64 = ev->step });
	for (i = 0; i < ev->nargs; i++)
		add_arg(perfetto, &ev->args[i]);
	if (*quality) {
		begin_note(perfetto, perfetto->key_quality);
		add_bytes(perfetto, &perfetto->note, NOTE_TEXT, quality, strlen(quality));
		end_note(perfetto);
	}
	if (ev->stack)
		add_stack(perfetto, ev->stack);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static void add_name(struct perfetto *perfetto, const struct tsink_slice *slice)
{
	char text[512];
	int len;

	if (!slice->number) {
		use_name(perfetto, slice->name, SEEN_NAME);
		add_u64(perfetto, &perfetto->event, EVENT_NAME_IID, slice->name);
		return;
	}
	/* numbered names are used once each: not interned */
	len = snprintf(text, sizeof(text), "%.400s %u", ev_text(perfetto->base.session, slice->name), slice->number);
	add_text(perfetto, &perfetto->event, EVENT_NAME, text, (size_t)len);
}

static int put_named(struct perfetto *perfetto, const struct tsink_track *track, const struct tsink_slice *slice,
		     int type)
{
	struct buffer *event = &perfetto->event;

	event->len = 0;
	add_u64(perfetto, event, EVENT_TYPE, (uint64_t)type);
	add_u64(perfetto, event, EVENT_TRACK, track->id);
	add_name(perfetto, slice);
	add_u64(perfetto, event, EVENT_CATEGORY_IID, category_iid(perfetto, slice->category));
	add_args(perfetto, slice->ev);
	return put_packet(perfetto, slice->t_ns, FLAG_NEEDS_STATE, PACKET_TRACK_EVENT, event);
}

static int perfetto_slice(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice)
{
	return put_named((struct perfetto *)sink, track, slice, TYPE_BEGIN);
}

static int perfetto_instant(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice)
{
	return put_named((struct perfetto *)sink, track, slice, TYPE_INSTANT);
}

/* Arrows go from event to event: an instant on either track carries the arrow's id. */
static int perfetto_arrow(struct tsink *sink, const struct tsink_track *from, const struct tsink_track *to,
			  const struct tsink_slice *slice, uint64_t id)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	struct buffer *event = &perfetto->event;
	int ret = 0;

	for (int end = 0; end < 2 && ret == 0; end++) {
		event->len = 0;
		add_u64(perfetto, event, EVENT_TYPE, TYPE_INSTANT);
		add_u64(perfetto, event, EVENT_TRACK, end ? to->id : from->id);
		add_name(perfetto, slice);
		add_u64(perfetto, event, EVENT_CATEGORY_IID, category_iid(perfetto, slice->category));
		add_fixed64(perfetto, event, EVENT_FLOWS, id);
		ret = put_packet(perfetto, slice->t_ns, FLAG_NEEDS_STATE, PACKET_TRACK_EVENT, event);
	}
	return ret;
}

static int perfetto_slice_end(struct tsink *sink, const struct tsink_track *track, uint64_t t_ns)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	struct buffer *event = &perfetto->event;

	event->len = 0;
	add_u64(perfetto, event, EVENT_TYPE, TYPE_END);
	add_u64(perfetto, event, EVENT_TRACK, track->id);
	return put_packet(perfetto, t_ns, FLAG_NEEDS_STATE, PACKET_TRACK_EVENT, event);
}

static int perfetto_counter(struct tsink *sink, const struct tsink_track *track, uint64_t t_ns, uint64_t value)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	struct buffer *event = &perfetto->event;

	event->len = 0;
	add_u64(perfetto, event, EVENT_TYPE, TYPE_COUNTER);
	add_u64(perfetto, event, EVENT_TRACK, track->id);
	add_u64(perfetto, event, EVENT_COUNTER, value);
	return put_packet(perfetto, t_ns, FLAG_NEEDS_STATE, PACKET_TRACK_EVENT, event);
}

static uint64_t unit_of(const char *unit)
{
	if (!unit)
		return UNIT_TIME_NS;
	return strcmp(unit, "bytes") == 0 ? UNIT_SIZE_BYTES : UNIT_COUNT;
}

/* ---- tracks ------------------------------------------------------------------------------------------------------- */

static int perfetto_process(struct tsink *sink, const struct tsink_process *process)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	struct buffer *inner = &perfetto->note, *track = &perfetto->event;

	inner->len = track->len = 0;
	add_u64(perfetto, inner, PROCESS_PID, process->pid);
	add_text(perfetto, inner, PROCESS_NAME, process->name, strlen(process->name));
	if (process->labels)
		add_text(perfetto, inner, PROCESS_LABELS, process->labels, strlen(process->labels));
	add_u64(perfetto, track, TRACK_UUID, PROCESS_UUID_BASE + process->pid);
	add_bytes(perfetto, track, TRACK_PROCESS, inner->data, inner->len);
	add_u64(perfetto, track, TRACK_CHILD_ORDER, ORDER_EXPLICIT);
	add_u64(perfetto, track, TRACK_RANK, (uint64_t)(int64_t)process->sort);
	return put_packet(perfetto, 0, FLAG_NEEDS_STATE, PACKET_DESCRIPTOR, track);
}

static int perfetto_track(struct tsink *sink, const struct tsink_track *from)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	struct buffer *inner = &perfetto->note, *track = &perfetto->event;

	inner->len = track->len = 0;
	add_u64(perfetto, track, TRACK_UUID, from->id);
	add_u64(perfetto, track, TRACK_PARENT, PROCESS_UUID_BASE + from->pid);
	add_text(perfetto, track, TRACK_NAME, from->name, strlen(from->name));
	if (from->counter) {
		add_u64(perfetto, inner, COUNTER_UNIT, unit_of(from->unit));
		add_bytes(perfetto, track, TRACK_COUNTER, inner->data, inner->len);
	}
	add_u64(perfetto, track, TRACK_RANK, (uint64_t)(int64_t)from->sort);
	add_u64(perfetto, track, TRACK_MERGING, MERGING_NONE);
	return put_packet(perfetto, 0, FLAG_NEEDS_STATE, PACKET_DESCRIPTOR, track);
}

/* First packets: the state is fresh, times count this clock. */
static int perfetto_head(struct tsink *sink, const struct tsink_head *head)
{
	struct perfetto *perfetto = (struct perfetto *)sink;
	bool wall = head->axis == MERGE_WALL;
	uint32_t axis = wall ? CLOCK_ID_REALTIME : CLOCK_ID_MONOTONIC;
	struct buffer *clock = &perfetto->note, *body = &perfetto->event;

	body->len = clock->len = 0;
	add_u64(perfetto, body, DEFAULTS_CLOCK, axis);
	put_packet(perfetto, 0, FLAG_CLEARED, PACKET_DEFAULTS, body);

	body->len = 0;
	add_u64(perfetto, clock, 1, axis);
	add_u64(perfetto, clock, 2, head->first_ns);
	add_bytes(perfetto, body, 1, clock->data, clock->len);
	if (head->wall_minus_mono_ns) {
		int64_t by_ns = wall ? -head->wall_minus_mono_ns : head->wall_minus_mono_ns;

		clock->len = 0;
		add_u64(perfetto, clock, 1, wall ? CLOCK_ID_MONOTONIC : CLOCK_ID_REALTIME);
		add_u64(perfetto, clock, 2, head->first_ns + (uint64_t)by_ns);
		add_bytes(perfetto, body, 1, clock->data, clock->len);
	}
	add_u64(perfetto, body, 2, axis); /* primary_trace_clock */
	return put_packet(perfetto, 0, FLAG_NEEDS_STATE, PACKET_CLOCK_SNAPSHOT, body);
}

/* ---- begin and end ------------------------------------------------------------------------------------------------ */

static void perfetto_free(struct perfetto *perfetto)
{
	free(perfetto->seen);
	free(perfetto->interned.data);
	free(perfetto->event.data);
	free(perfetto->note.data);
	free(perfetto->scratch.data);
	free(perfetto);
}

/* The notes are shown as instants already (timeline.c): this format has no place of its own for them. */
static int perfetto_finish(struct tsink *sink, const char *const *notes, uint64_t *bytes, struct st_err *err)
{
	int ret = outfile_finish(&sink->out, err);

	*bytes = sink->out.bytes;
	perfetto_free((struct perfetto *)sink);
	return ret;
}

static void perfetto_discard(struct tsink *sink)
{
	if (!sink)
		return;
	outfile_discard(&sink->out);
	perfetto_free((struct perfetto *)sink);
}

static struct tsink *perfetto_open(struct ev_session *session, const char *path, struct st_err *err)
{
	struct perfetto *perfetto = calloc(1, sizeof(*perfetto));

	if (!perfetto) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	perfetto->base.ops = &tsink_perfetto;
	perfetto->base.session = session;
	perfetto->key_step = ev_namez(session, "step");
	perfetto->key_quality = ev_namez(session, "quality");
	perfetto->key_stack = ev_namez(session, "stack");
	if (outfile_open(&perfetto->base.out, path, err) < 0) {
		perfetto_free(perfetto);
		return NULL;
	}
	return &perfetto->base;
}

const struct tsink_ops tsink_perfetto = {
	.name = "perfetto",
	.suffix = ".pftrace",
	.help = "Perfetto protobuf trace",
	.open = perfetto_open,
	.head = perfetto_head,
	.process = perfetto_process,
	.track = perfetto_track,
	.rename = perfetto_track, /* a second descriptor replaces the name */
	.slice = perfetto_slice,
	.slice_end = perfetto_slice_end,
	.instant = perfetto_instant,
	.arrow = perfetto_arrow,
	.counter = perfetto_counter,
	.finish = perfetto_finish,
	.discard = perfetto_discard,
};
