/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The timeline: stages, garbage collections, steps, sums of collectives, notes. As protobuf one file of concatenated
 * Pytorch messages; as JSON two, because a JSON object can grow in place at its end only, that is in one array: the
 * documented file holds pytorch_stages, its companion <name>.ext.json an array of Pytorch messages with the rest
 * (docs/formats/timeline.md). Driven by spool/drain.c.
 */
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BIT(type) (1u << (type))
#define STAGE_TYPES (BIT(REC_STAGE) | BIT(REC_GC))
#define EXT_TYPES (BIT(REC_STEP) | BIT(REC_COMM_SUM) | BIT(REC_NOTE))

static uint64_t wall_us(const struct sink *s, uint64_t mono_ns)
{
	return (mono_ns + (uint64_t)s->out.wall_minus_mono_ns) / 1000;
}

/* pid and tid of an entry: 0 where Origin says it already */
static uint32_t other_pid(const struct sink *s, const struct sink_rec *rec)
{
	return rec->pid == s->env->origin->pid ? 0 : rec->pid;
}

static uint32_t other_tid(const struct sink *s, const struct sink_rec *rec)
{
	return rec->tid == s->env->origin->pid ? 0 : rec->tid;
}

/* --- records as messages -------------------------------------------------------------------------------------------- */

static struct msg_stage stage_of(const struct sink *s, const struct sink_rec *rec)
{
	const struct rec_stage *stage = (const struct rec_stage *)rec->head;

	return (struct msg_stage){
		.stage_id = stage->stage_id,
		.stage_type = sink_text(s->env->head, stage->name),
		.start_us = wall_us(s, stage->begin_ns),
		.end_us = wall_us(s, stage->begin_ns + stage->dur_ns),
		.start_ns = stage->begin_ns,
		.dur_ns = stage->dur_ns,
		.step = stage->head.step,
		.kind = stage->kind,
		.pid = other_pid(s, rec),
		.tid = other_tid(s, rec),
		.flags = stage->head.flags | (rec->worker ? STAGE_WORKER : 0),
	};
}

static struct msg_stage gc_of(const struct sink *s, const struct sink_rec *rec)
{
	const struct rec_gc *gc = (const struct rec_gc *)rec->head;

	return (struct msg_stage){
		.stage_id = gc->stage_id,
		.stage_type = msg_text("GC"),
		.start_us = wall_us(s, gc->begin_ns),
		.end_us = wall_us(s, gc->begin_ns + gc->dur_ns),
		.start_ns = gc->begin_ns,
		.dur_ns = gc->dur_ns,
		.step = gc->head.step,
		.kind = STAGE_GC,
		.pid = other_pid(s, rec),
		.tid = other_tid(s, rec),
		.flags = gc->head.flags | (rec->worker ? STAGE_WORKER : 0),
		.gen = gc->gen,
	};
}

static struct msg_gc_debug gc_debug_of(const struct rec_gc *gc)
{
	return (struct msg_gc_debug){ .collected = gc->collected, .uncollectable = gc->uncollectable };
}

static struct msg_step step_of(const struct rec_step *step)
{
	return (struct msg_step){
		.source = step->source,
		.microbatches = step->microbatches,
		.renumbered_from = step->renumbered_from,
		.start_ns = step->begin_ns,
		.dur_ns = step->dur_ns,
		.step = step->head.step,
	};
}

static struct msg_comm_sum comm_sum_of(const struct sink *s, const struct rec_comm_sum *sum)
{
	return (struct msg_comm_sum){
		.op = sink_text(s->env->head, sum->op),
		.group = sink_text(s->env->head, sum->group),
		.calls = sum->calls,
		.total_ns = sum->total_ns,
		.max_ns = sum->max_ns,
		.last_start_ns = sum->last_begin_ns,
		.elements = sum->elements,
		.last_seq = sum->last_seq,
		.start_ns = sum->begin_ns,
		.step = sum->head.step,
	};
}

static struct msg_note note_of(const struct sink *s, const struct rec_note *note)
{
	return (struct msg_note){
		.text = sink_text(s->env->head, note->text),
		.start_ns = note->at_ns,
		.step = note->head.step,
	};
}

static struct msg_thread thread_of(const struct sink_rec *rec)
{
	return (struct msg_thread){ .pid = rec->pid, .tid = rec->tid, .comm = msg_text(rec->comm) };
}

/* Next frame of a rendered stack "f@file:line;g@file:line"; false at its end. */
static bool next_frame(struct msg_text *rest, struct msg_text *frame)
{
	const char *end;

	if (!rest->bytes)
		return false;
	end = memchr(rest->at, ';', rest->bytes);
	frame->at = rest->at;
	frame->bytes = end ? (size_t)(end - rest->at) : rest->bytes;
	rest->at += frame->bytes + (end ? 1 : 0);
	rest->bytes -= frame->bytes + (end ? 1 : 0);
	return true;
}

static void timeline_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	const struct msg_origin *origin = s->env->origin;
	char of_worker[SINK_WORKER];

	snprintf(stem, room, "timeline/%.*s--%05u%s", (int)origin->host.bytes, origin->host.at, origin->rank,
		 sink_of_worker(s, of_worker));
	*suffix = s->ops->kind == SINK_TIMELINE_EXT ? ".timeline.ext.json" : ".timeline";
}

/* --- protobuf -------------------------------------------------------------------------------------------------------- */

static void pb_origin(struct pb_writer *w, const struct msg_origin *origin, const struct clock_snapshot *clocks)
{
	struct msg_clock clock = sink_clock(clocks);
	size_t mark = pb_begin(w, MSG_PYTORCH_origin);

	msg_origin_pb(w, origin);
	msg_clock_put(w, MSG_ORIGIN_clocks, &clock);
	pb_end(w, mark);
}

static int pb_start(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);
	struct msg_pytorch top = { .rank = origin.rank, .comm = origin.job };
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	pb_origin(&w, &origin, clocks);
	msg_pytorch_pb(&w, &top);
	return sink_put_pb(s, &w);
}

static int pb_clocks(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = { .wall_minus_mono_ns = s->out.wall_minus_mono_ns, .segment = s->out.segment };
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	pb_origin(&w, &origin, clocks);
	return sink_put_pb(s, &w);
}

static void pb_stage(struct sink *s, struct pb_writer *w, const struct sink_rec *rec)
{
	struct msg_stage stage = stage_of(s, rec);
	struct msg_text rest = sink_text(s->env->head, ((const struct rec_stage *)rec->head)->stack), frame;
	size_t mark = pb_begin(w, MSG_PYTORCH_pytorch_stages);

	msg_stage_pb(w, &stage);
	while (next_frame(&rest, &frame))
		pb_bytes(w, MSG_STAGE_stack_frames, frame.at, frame.bytes);
	pb_end(w, mark);
}

static void pb_gc(struct sink *s, struct pb_writer *w, const struct sink_rec *rec)
{
	struct msg_stage stage = gc_of(s, rec);
	struct msg_gc_debug debug = gc_debug_of((const struct rec_gc *)rec->head);
	size_t mark = pb_begin(w, MSG_PYTORCH_pytorch_stages);

	msg_stage_pb(w, &stage);
	msg_gc_debug_put(w, MSG_STAGE_gc_debug, &debug);
	pb_end(w, mark);
}

static void pb_step(struct pb_writer *w, const struct rec_step *rec)
{
	struct msg_step step = step_of(rec);
	struct msg_pytorch top = { .step_id = step.step };

	msg_step_put(w, MSG_PYTORCH_steps, &step);
	msg_pytorch_pb(w, &top);
}

static int pb_put(struct sink *s, const struct sink_rec *rec)
{
	struct msg_comm_sum sum;
	struct msg_note note;
	struct pb_writer w;

	pb_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	switch (rec->head->type) {
	case REC_STAGE:
		pb_stage(s, &w, rec);
		break;
	case REC_GC:
		pb_gc(s, &w, rec);
		break;
	case REC_STEP:
		pb_step(&w, (const struct rec_step *)rec->head);
		break;
	case REC_COMM_SUM:
		sum = comm_sum_of(s, (const struct rec_comm_sum *)rec->head);
		msg_comm_sum_put(&w, MSG_PYTORCH_comm_sums, &sum);
		break;
	case REC_NOTE:
		note = note_of(s, (const struct rec_note *)rec->head);
		msg_note_put(&w, MSG_PYTORCH_notes, &note);
		break;
	}
	return sink_put_pb(s, &w);
}

static int pb_thread(struct sink *s, const struct sink_rec *rec)
{
	struct msg_thread thread = thread_of(rec);
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_thread_put(&w, MSG_PYTORCH_threads, &thread);
	return sink_put_pb(s, &w);
}

static int pb_drop(struct sink *s, const struct msg_drop *drop)
{
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_drop_put(&w, MSG_PYTORCH_drops, drop);
	return sink_put_pb(s, &w);
}

const struct sink_ops sink_timeline_pb = {
	.kind = SINK_TIMELINE,
	.name = "timeline",
	.for_pb = true,
	.types = STAGE_TYPES | EXT_TYPES,
	.file_name = timeline_name,
	.begin = pb_start,
	.put = pb_put,
	.thread = pb_thread,
	.clocks = pb_clocks,
	.drop = pb_drop,
};

/* --- JSON, the documented file ----------------------------------------------------------------------------------------- */

/* {"rank":0,"comm":"job","origin":[{...}],"<array>":[ and later elements, then tail() */
static int json_begin(struct sink *s, const struct clock_snapshot *clocks, const char *array)
{
	struct msg_origin origin = sink_origin(s);
	struct json_writer w;

	json_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_open(&w, '{');
	json_key(&w, "rank");
	json_u64(&w, origin.rank);
	json_key(&w, "comm");
	json_text(&w, origin.job.at, origin.job.bytes);
	sink_origin_json(&w, &origin, clocks, 1);
	json_key(&w, array);
	json_open(&w, '[');
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

static int json_start(struct sink *s, const struct clock_snapshot *clocks)
{
	return json_begin(s, clocks, "pytorch_stages");
}

static size_t json_tail(const struct sink *s, char *text)
{
	uint64_t step = atomic_load_explicit(&s->env->head->step, memory_order_relaxed);

	/* always as long: a shorter tail than the last one would leave its end behind */
	return (size_t)snprintf(text, OUT_TAIL, "\n],\"step_id\":%-10u}\n", (uint32_t)step);
}

static void json_frames(struct sink *s, struct json_writer *w, uint32_t stack)
{
	struct msg_text rest = sink_text(s->env->head, stack), frame;

	json_key(w, "stack_frames");
	json_open(w, '[');
	while (next_frame(&rest, &frame))
		json_text(w, frame.at, frame.bytes);
	json_close(w, ']');
}

static int json_put(struct sink *s, const struct sink_rec *rec)
{
	struct msg_gc_debug debug;
	struct msg_stage stage;
	struct json_writer w;

	sink_json(s, &w);
	json_open(&w, '{');
	if (rec->head->type == REC_GC) {
		stage = gc_of(s, rec);
		debug = gc_debug_of((const struct rec_gc *)rec->head);
		msg_stage_json(&w, &stage);
		json_frames(s, &w, 0);
		json_key(&w, "gc_debug");
		json_open(&w, '{');
		msg_gc_debug_json(&w, &debug);
		json_close(&w, '}');
	} else {
		stage = stage_of(s, rec);
		msg_stage_json(&w, &stage);
		json_frames(s, &w, ((const struct rec_stage *)rec->head)->stack);
	}
	json_close(&w, '}');
	return sink_put_json(s, &w);
}

const struct sink_ops sink_timeline_json = {
	.kind = SINK_TIMELINE,
	.name = "timeline",
	.for_json = true,
	.types = STAGE_TYPES,
	.file_name = timeline_name,
	.begin = json_start,
	.tail = json_tail,
	.put = json_put,
};

/* --- JSON, the companion: "ext" is an array of Pytorch messages, to be merged like concatenated protobuf --------------- */

static int ext_start(struct sink *s, const struct clock_snapshot *clocks)
{
	return json_begin(s, clocks, "ext");
}

static size_t ext_tail(const struct sink *s, char *text)
{
	(void)s;
	memcpy(text, "\n]}\n", 4);
	return 4;
}

/* {"<array>":[{ ... }]} */
static void ext_open(struct sink *s, struct json_writer *w, const char *array)
{
	sink_json(s, w);
	json_open(w, '{');
	json_key(w, array);
	json_open(w, '[');
	json_open(w, '{');
}

static int ext_close(struct sink *s, struct json_writer *w)
{
	json_close(w, '}');
	json_close(w, ']');
	json_close(w, '}');
	return sink_put_json(s, w);
}

static int ext_put(struct sink *s, const struct sink_rec *rec)
{
	struct msg_comm_sum sum;
	struct msg_step step;
	struct msg_note note;
	struct json_writer w;

	switch (rec->head->type) {
	case REC_STEP:
		step = step_of((const struct rec_step *)rec->head);
		ext_open(s, &w, "steps");
		msg_step_json(&w, &step);
		break;
	case REC_COMM_SUM:
		sum = comm_sum_of(s, (const struct rec_comm_sum *)rec->head);
		ext_open(s, &w, "comm_sums");
		msg_comm_sum_json(&w, &sum);
		break;
	default:
		note = note_of(s, (const struct rec_note *)rec->head);
		ext_open(s, &w, "notes");
		msg_note_json(&w, &note);
		break;
	}
	return ext_close(s, &w);
}

static int ext_thread(struct sink *s, const struct sink_rec *rec)
{
	struct msg_thread thread = thread_of(rec);
	struct json_writer w;

	ext_open(s, &w, "threads");
	msg_thread_json(&w, &thread);
	return ext_close(s, &w);
}

static int ext_clocks(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_clock clock = sink_clock(clocks);
	struct json_writer w;

	ext_open(s, &w, "origin");
	json_key(&w, "segment");
	json_u64(&w, s->out.segment);
	json_key(&w, "clocks");
	json_open(&w, '[');
	json_open(&w, '{');
	msg_clock_json(&w, &clock);
	json_close(&w, '}');
	json_close(&w, ']');
	return ext_close(s, &w);
}

static int ext_drop(struct sink *s, const struct msg_drop *drop)
{
	struct json_writer w;

	ext_open(s, &w, "drops");
	msg_drop_json(&w, drop);
	return ext_close(s, &w);
}

const struct sink_ops sink_timeline_ext = {
	.kind = SINK_TIMELINE_EXT,
	.name = "timeline (extension)",
	.for_json = true,
	.types = EXT_TYPES,
	.file_name = timeline_name,
	.begin = ext_start,
	.tail = ext_tail,
	.put = ext_put,
	.thread = ext_thread,
	.clocks = ext_clocks,
	.drop = ext_drop,
};
