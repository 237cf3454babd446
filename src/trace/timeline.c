/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables and meaning of the records of timeline files; see timeline.h. */
#include "trace/timeline.h"

#include "trace/session.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ROW(record, number, type, name, json) { number, TL_##type, offsetof(struct record, name), json },

#define STAGE_ROW(number, type, name, json) ROW(msg_stage, number, type, name, json)
static const struct tl_field stage_fields[] = { FIELDS_STAGE(STAGE_ROW) };
#define COMM_SUM_ROW(number, type, name, json) ROW(msg_comm_sum, number, type, name, json)
static const struct tl_field comm_sum_fields[] = { FIELDS_COMM_SUM(COMM_SUM_ROW) };
#define STEP_ROW(number, type, name, json) ROW(msg_step, number, type, name, json)
static const struct tl_field step_fields[] = { FIELDS_STEP(STEP_ROW) };
#define NOTE_ROW(number, type, name, json) ROW(msg_note, number, type, name, json)
static const struct tl_field note_fields[] = { FIELDS_NOTE(NOTE_ROW) };
#define THREAD_ROW(number, type, name, json) ROW(msg_thread, number, type, name, json)
static const struct tl_field thread_fields[] = { FIELDS_THREAD(THREAD_ROW) };
#define ORIGIN_ROW(number, type, name, json) ROW(msg_origin, number, type, name, json)
static const struct tl_field origin_fields[] = { FIELDS_ORIGIN(ORIGIN_ROW) };
#define DROP_ROW(number, type, name, json) ROW(msg_drop, number, type, name, json)
static const struct tl_field drop_fields[] = { FIELDS_DROP(DROP_ROW) };
#define CLOCK_ROW(number, type, name, json) ROW(msg_clock, number, type, name, json)
static const struct tl_field clock_fields[] = { FIELDS_CLOCK(CLOCK_ROW) };
#define GC_ROW(number, type, name, json) ROW(msg_gc_debug, number, type, name, json)
static const struct tl_field gc_fields[] = { FIELDS_GC_DEBUG(GC_ROW) };
#define PYTORCH_ROW(number, type, name, json) ROW(msg_pytorch, number, type, name, json)
static const struct tl_field pytorch_fields[] = { FIELDS_PYTORCH(PYTORCH_ROW) };
#define IO_ROW(number, type, name, json) ROW(msg_io, number, type, name, json)
static const struct tl_field io_fields[] = { FIELDS_IO(IO_ROW) };
#define MEM_ALLOC_ROW(number, type, name, json) ROW(msg_mem_alloc, number, type, name, json)
static const struct tl_field mem_alloc_fields[] = { FIELDS_MEM_ALLOC(MEM_ALLOC_ROW) };
#define MEM_FREE_ROW(number, type, name, json) ROW(msg_mem_free, number, type, name, json)
static const struct tl_field mem_free_fields[] = { FIELDS_MEM_FREE(MEM_FREE_ROW) };
#define MEM_SITE_ROW(number, type, name, json) ROW(msg_mem_site, number, type, name, json)
static const struct tl_field mem_site_fields[] = { FIELDS_MEM_SITE(MEM_SITE_ROW) };
#define MEM_STATE_ROW(number, type, name, json) ROW(msg_mem_state, number, type, name, json)
static const struct tl_field mem_state_fields[] = { FIELDS_MEM_STATE(MEM_STATE_ROW) };
#define PROC_MEM_ROW(number, type, name, json) ROW(msg_proc_mem, number, type, name, json)
static const struct tl_field proc_mem_fields[] = { FIELDS_PROC_MEM(PROC_MEM_ROW) };
#define FRAME_ROW(number, type, name, json) ROW(msg_frame, number, type, name, json)
static const struct tl_field frame_fields[] = { FIELDS_FRAME(FRAME_ROW) };
#define OS_ROW(number, type, name, json) ROW(msg_os, number, type, name, json)
static const struct tl_field os_fields[] = { FIELDS_OS(OS_ROW) };

/* number and JSON name at the top level, from the list of the writers */
#define TOP_NUMBER(no, message, name) TOP_NO_##message = no,
enum { REPEATED_PYTORCH(TOP_NUMBER) };
#define TOP_NAME(no, message, name) static const char top_name_##message[] = #name;
REPEATED_PYTORCH(TOP_NAME)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TOP(message, table)                                               \
	{                                                                 \
		top_name_##message, TOP_NO_##message, COUNT(table), table \
	}
#define INNER(table)                         \
	{                                    \
		NULL, 0, COUNT(table), table \
	}

/* a message: the JSON name and number of its field at the top level (NULL: it stands inside others), its table */
static const struct {
	const char *json;
	uint16_t number;
	uint16_t count;
	const struct tl_field *fields;
} descs[TL_MESSAGES] = {
	[TL_STAGE] = TOP(stage, stage_fields),
	[TL_COMM_SUM] = TOP(comm_sum, comm_sum_fields),
	[TL_STEP] = TOP(step, step_fields),
	[TL_NOTE] = TOP(note, note_fields),
	[TL_THREAD] = TOP(thread, thread_fields),
	[TL_ORIGIN] = TOP(origin, origin_fields),
	[TL_DROP] = TOP(drop, drop_fields),
	[TL_CLOCK] = INNER(clock_fields),
	[TL_GC_DEBUG] = INNER(gc_fields),
	[TL_PYTORCH] = INNER(pytorch_fields),
	[TL_MEM_ALLOC] = INNER(mem_alloc_fields),
	[TL_MEM_FREE] = INNER(mem_free_fields),
	[TL_MEM_SITE] = INNER(mem_site_fields),
	[TL_MEM_STATE] = INNER(mem_state_fields),
	[TL_PROC_MEM] = INNER(proc_mem_fields),
	[TL_FRAME] = INNER(frame_fields),
	[TL_IO] = { "IO_entries", 0, COUNT(io_fields), io_fields }, /* by number it is a stage, in files of stages */
	[TL_OS] = { "OSprobe_entries", 0, COUNT(os_fields), os_fields },
};

bool tl_same_name(const char *name, size_t len, const char *want)
{
	const char *end = name + len;

	/* most names differ in their first letter, and many are compared */
	if (len && ((*name ^ *want) & ~0x20) && *name != '_' && *want != '_')
		return false;
	for (;; name++, want++) {
		while (name < end && *name == '_')
			name++;
		while (*want == '_')
			want++;
		if (name == end || !*want)
			return name == end && !*want;
		if (tolower((unsigned char)*name) != tolower((unsigned char)*want))
			return false;
	}
}

const struct tl_field *tl_find_json(enum tl_message message, const char *name, size_t len)
{
	size_t i;

	for (i = 0; i < descs[message].count; i++)
		if (tl_same_name(name, len, descs[message].fields[i].json))
			return &descs[message].fields[i];
	return NULL;
}

enum tl_message tl_by_number(uint32_t number)
{
	unsigned int i;

	for (i = TL_NONE + 1; i < TL_MESSAGES; i++)
		if (descs[i].json && descs[i].number == number)
			return (enum tl_message)i;
	return TL_NONE;
}

enum tl_message tl_by_json(const char *name, size_t len)
{
	unsigned int i;

	for (i = TL_NONE + 1; i < TL_MESSAGES; i++)
		if (descs[i].json && tl_same_name(name, len, descs[i].json))
			return (enum tl_message)i;
	return TL_NONE;
}

void tl_clear(struct tl_record *record)
{
	memset(record, 0, offsetof(struct tl_record, frames));
}

bool tl_set_number(const struct tl_field *field, void *message, uint64_t value)
{
	char *at = (char *)message + field->offset;

	switch (field->type) {
	case TL_u32:
	case TL_stage_name:
	case TL_io_name:
		*(uint32_t *)(void *)at = (uint32_t)value;
		return true;
	case TL_u64:
	case TL_i64:
	case TL_s64:
		*(uint64_t *)(void *)at = value;
		return true;
	case TL_boolean:
		*(bool *)(void *)at = value != 0;
		return true;
	}
	return false;
}

bool tl_set_text(const struct tl_field *field, void *message, const char *text, size_t len)
{
	uint32_t count = field->type == TL_stage_name ? STAGE_COUNT : field->type == TL_io_name ? IO_TYPE_COUNT : 0, i;

	for (i = 0; i < count; i++) {
		const char *name = field->type == TL_io_name ? io_type_name(i) : stage_type_name(i);

		if (strlen(name) == len && memcmp(name, text, len) == 0)
			return tl_set_number(field, message, i);
	}
	return false;
}

int32_t tl_rank_of_name(const char *path)
{
	const char *base = strrchr(path, '/');
	const char *dash;
	char *end;
	long rank;

	base = base ? base + 1 : path;
	for (dash = base; (dash = strstr(dash, "--")) != NULL; dash += 2) {
		if (!isdigit((unsigned char)dash[2]))
			continue;
		rank = strtol(dash + 2, &end, 10);
		if ((!*end || *end == '.' || *end == '-') && rank < INT32_MAX)
			return (int32_t)rank;
	}
	return EV_NO_RANK;
}

int tl_state_init(struct tl_state *state, struct ev_reader *reader)
{
	static const struct {
		size_t offset;
		const char *text;
	} keys[] = {
#define KEY(member, text) { offsetof(struct tl_state, member), text }
		KEY(key_kind, "kind"),
		KEY(key_stage_id, "stage_id"),
		KEY(key_gen, "generation"),
		KEY(key_collected, "collected"),
		KEY(key_uncollectable, "uncollectable"),
		KEY(key_source, "source"),
		KEY(key_microbatches, "microbatches"),
		KEY(key_renumbered, "renumbered_from"),
		KEY(key_calls, "calls"),
		KEY(key_total, "total_ns"),
		KEY(key_max, "max_ns"),
		KEY(key_last_start, "last_start_ns"),
		KEY(key_elements, "elements"),
		KEY(key_last_seq, "last_seq"),
		KEY(key_group, "group"),
		KEY(key_count, "count"),
		KEY(name_step, "step"),
		KEY(name_thread, "thread"),
		KEY(key_what, "what"),
		KEY(name_lost, "records"),
		KEY(name_unnamed, "(unnamed)"),
		KEY(step_sources[STEP_BY_UNKNOWN], "unknown"),
		KEY(step_sources[STEP_BY_OPTIMIZER], "optimizer"),
		KEY(step_sources[STEP_BY_DATALOADER], "dataloader"),
		KEY(step_sources[STEP_BY_MODEL_CALL], "model call"),
#undef KEY
	};
	size_t i;

	*state = (struct tl_state){ .reader = reader };
	for (i = 0; i < COUNT(keys); i++) {
		uint32_t id = ev_namez(reader->session, keys[i].text);

		if (!id)
			return -ENOMEM;
		*(uint32_t *)(void *)((char *)state + keys[i].offset) = id;
	}
	reader->origin.rank = tl_rank_of_name(reader->path);
	reader->origin.local_rank = -1;
	return 0;
}

static uint32_t text_id(struct tl_state *state, struct msg_text text)
{
	return text.bytes ? ev_name(state->reader->session, text.at, text.bytes) : 0;
}

static void add_u64(struct event *ev, uint32_t key, uint64_t value)
{
	ev->args[ev->nargs++] = (struct ev_arg){ .key = key, .type = EV_ARG_U64, .u64 = value };
}

static void add_name(struct event *ev, uint32_t key, uint32_t name)
{
	ev->args[ev->nargs++] = (struct ev_arg){ .key = key, .type = EV_ARG_NAME, .name = name };
}

/* Kinds of files that do not say them: the function's name tells, as people read it. */
static uint32_t guess_kind(struct msg_text name)
{
	static const struct {
		const char *part;
		uint32_t kind;
	} parts[] = {
		{ "dataloader", STAGE_DATALOADER }, { "__next__", STAGE_DATALOADER },
		{ "next_data", STAGE_DATALOADER },  { "backward", STAGE_BACKWARD },
		{ "forward", STAGE_FORWARD },	    { "synchron", STAGE_SYNCHRONIZATION },
		{ "ckpt", STAGE_CHECKPOINT },	    { "checkpoint", STAGE_CHECKPOINT },
		{ "optim", STAGE_OPTIMIZER },
	};
	char text[128];
	size_t i;

	if (name.bytes == 2 && memcmp(name.at, "GC", 2) == 0)
		return STAGE_GC;
	if (!name.bytes)
		return STAGE_UNKNOWN;
	i = name.bytes < sizeof(text) - 1 ? name.bytes : sizeof(text) - 1;
	memcpy(text, name.at, i);
	text[i] = 0;
	for (i = 0; i < COUNT(parts); i++)
		if (strcasestr(text, parts[i].part))
			return parts[i].kind;
	return STAGE_UNKNOWN;
}

static void event_base(struct tl_state *state, struct event *ev, enum ev_kind kind, uint64_t t_ns, uint64_t dur_ns)
{
	const struct ev_origin *origin = &state->reader->origin;

	/* not the whole struct: args beyond nargs are never read */
	memset(ev, 0, offsetof(struct event, args));
	ev->t_ns = t_ns;
	ev->dur_ns = dur_ns;
	ev->kind = (uint16_t)kind;
	ev->clock = EV_CLOCK_MONO;
	ev->rank = origin->rank;
	ev->source = state->reader->source;
	ev->track = (struct ev_track){ origin->host, origin->pid ? (int32_t)origin->pid : -1, -1, -1, -1, -1 };
	ev->track.tid = ev->track.pid;
	if (t_ns > state->last_ns)
		state->last_ns = t_ns;
}

static int stage_event(struct tl_state *state, const struct tl_record *record, struct event *ev)
{
	const struct msg_stage *stage = &record->stage;
	uint32_t frames[TL_MAX_FRAMES];
	uint64_t start_ns = stage->start_ns, dur_ns = stage->dur_ns;
	uint32_t i;

	if (!start_ns) { /* written by a tool that knows the published fields only: wall clock, microseconds */
		start_ns = stage->start_us * 1000;
		dur_ns = stage->end_us > stage->start_us ? (stage->end_us - stage->start_us) * 1000 : 0;
	}
	event_base(state, ev, EV_STAGE, start_ns, dur_ns);
	if (!stage->start_ns)
		ev->clock = EV_CLOCK_REAL;
	ev->name = text_id(state, stage->stage_type);
	if (!ev->name)
		ev->name = state->name_unnamed;
	ev->step = stage->step;
	if (stage->pid)
		ev->track.pid = ev->track.tid = (int32_t)stage->pid;
	if (stage->tid)
		ev->track.tid = (int32_t)stage->tid;
	ev->quality = (stage->flags & STAGE_RAISED ? EV_RAISED : 0) | (stage->flags & STAGE_CUT ? EV_CUT_END : 0) |
		      (stage->flags & STAGE_WORKER ? EV_WORKER : 0);
	add_u64(ev, state->key_kind, stage->kind ? stage->kind : guess_kind(stage->stage_type));
	add_u64(ev, state->key_stage_id, stage->stage_id);
	if (ev->args[0].u64 == STAGE_GC) {
		add_u64(ev, state->key_gen, stage->gen);
		add_u64(ev, state->key_collected, record->gc_debug.collected);
		add_u64(ev, state->key_uncollectable, record->gc_debug.uncollectable);
	}
	for (i = 0; i < record->nframes; i++)
		frames[i] = text_id(state, record->frames[i]);
	ev->stack = record->nframes ? ev_stack(state->reader->session, frames, record->nframes) : 0;
	return 1;
}

static int step_event(struct tl_state *state, const struct msg_step *step, struct event *ev)
{
	event_base(state, ev, EV_STEP, step->start_ns, step->dur_ns);
	ev->name = state->name_step;
	ev->step = step->step;
	add_name(ev, state->key_source, state->step_sources[step->source < 4 ? step->source : 0]);
	add_u64(ev, state->key_microbatches, step->microbatches);
	if (step->renumbered_from)
		add_u64(ev, state->key_renumbered, step->renumbered_from);
	return 1;
}

static int comm_sum_event(struct tl_state *state, const struct msg_comm_sum *sum, struct event *ev)
{
	uint64_t dur_ns = sum->last_start_ns > sum->start_ns ? sum->last_start_ns - sum->start_ns : 0;

	/* from the first call's begin to the last one's; only of a single call is the end known */
	event_base(state, ev, EV_COMM_SUM, sum->start_ns, sum->calls == 1 ? sum->total_ns : dur_ns);
	ev->name = text_id(state, sum->op);
	if (!ev->name)
		ev->name = state->name_unnamed;
	ev->step = sum->step;
	add_u64(ev, state->key_calls, sum->calls);
	add_u64(ev, state->key_total, sum->total_ns);
	add_u64(ev, state->key_max, sum->max_ns);
	add_u64(ev, state->key_last_start, sum->last_start_ns);
	add_u64(ev, state->key_elements, sum->elements);
	add_u64(ev, state->key_last_seq, sum->last_seq);
	add_name(ev, state->key_group, text_id(state, sum->group));
	return 1;
}

static int drop_event(struct tl_state *state, const struct msg_drop *drop, struct event *ev)
{
	uint64_t from_ns = drop->from_ns ? drop->from_ns : state->last_ns;

	event_base(state, ev, EV_LOST, from_ns, drop->to_ns > from_ns ? drop->to_ns - from_ns : 0);
	ev->name = text_id(state, drop->source);
	if (!ev->name)
		ev->name = state->name_lost;
	add_u64(ev, state->key_count, drop->count);
	state->reader->stats.lost += drop->count;
	return 1;
}

static int note_event(struct tl_state *state, const struct msg_note *note, struct event *ev)
{
	event_base(state, ev, EV_NOTE, note->start_ns ? note->start_ns : state->last_ns, 0);
	ev->phase = EV_INSTANT;
	ev->name = text_id(state, note->text);
	if (!ev->name)
		ev->name = state->name_unnamed;
	ev->step = note->step;
	return 1;
}

static int thread_event(struct tl_state *state, const struct msg_thread *thread, struct event *ev)
{
	if (!thread->comm.bytes)
		return 0;
	event_base(state, ev, EV_TASK, state->last_ns, 0);
	ev->phase = EV_INSTANT;
	ev->name = text_id(state, thread->comm);
	if (thread->pid)
		ev->track.pid = ev->track.tid = (int32_t)thread->pid;
	if (thread->tid)
		ev->track.tid = (int32_t)thread->tid;
	add_name(ev, state->key_what, state->name_thread);
	return 1;
}

static void apply_origin(struct tl_state *state, const struct tl_record *record)
{
	const struct msg_origin *from = &record->origin;
	struct ev_origin *to = &state->reader->origin;

	if (record->clock.mono_ns > state->last_ns)
		state->last_ns = record->clock.mono_ns;
	/* only a clock snapshot of the segment being written: who writes is known */
	if (to->known && !from->run.bytes && !from->host.bytes && !from->pid) {
		to->segment = from->segment;
		return;
	}
	*to = (struct ev_origin){
		.run = text_id(state, from->run),
		.host = text_id(state, from->host),
		.boot_id = text_id(state, from->boot_id),
		.job = text_id(state, from->job),
		.author = text_id(state, from->author),
		.ip = text_id(state, from->ip),
		.rank = from->rank_known ? (int32_t)from->rank : EV_NO_RANK,
		.local_rank = from->rank_known ? (int32_t)from->local_rank : -1,
		.world_size = from->world_size,
		.pid = from->pid,
		.segment = from->segment,
		.proc_start = from->proc_start,
		.run_start_us = from->run_start_us,
		.wall_minus_mono_ns = from->wall_minus_mono_ns,
		.known = true,
	};
	if (!to->wall_minus_mono_ns && record->clock.realtime_ns)
		to->wall_minus_mono_ns = (int64_t)(record->clock.realtime_ns - record->clock.mono_ns);
}

void tl_rank(struct tl_state *state, uint64_t rank)
{
	if (!state->reader->origin.known && rank <= INT32_MAX)
		state->reader->origin.rank = (int32_t)rank;
}

void tl_job(struct tl_state *state, struct msg_text job)
{
	if (!state->reader->origin.known && job.bytes)
		state->reader->origin.job = text_id(state, job);
}

int tl_event(struct tl_state *state, enum tl_message message, const struct tl_record *record, struct event *ev)
{
	switch (message) {
	case TL_STAGE:
		return stage_event(state, record, ev);
	case TL_COMM_SUM:
		return comm_sum_event(state, &record->comm_sum, ev);
	case TL_STEP:
		return step_event(state, &record->step, ev);
	case TL_NOTE:
		return note_event(state, &record->note, ev);
	case TL_THREAD:
		return thread_event(state, &record->thread, ev);
	case TL_DROP:
		return drop_event(state, &record->drop, ev);
	case TL_ORIGIN:
		apply_origin(state, record);
		return 0;
	default:
		return 0;
	}
}
