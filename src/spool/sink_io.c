/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * I/O calls as the documented io_trace files: concatenated IO messages, or one JSON object whose IO_entries grow. Driven by
 * spool/drain.c. Thread names and drops are in it too (protobuf), so that the file can be read alone.
 */
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void io_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	const struct msg_origin *origin = s->env->origin;

	snprintf(stem, room, "io_trace/io_trace_rank%u_%u", origin->rank, origin->pid);
	*suffix = s->env->json ? ".json" : ".pb";
}

static struct msg_io entry_of(const struct sink *s, const struct sink_rec *rec)
{
	const struct rec_io *io = (const struct rec_io *)rec->head;
	size_t room = rec->head->bytes - sizeof(*io);
	struct msg_text text = { io->text, io->text_bytes < room ? io->text_bytes : room };
	bool socket = io->flags & IO_SOCKET;

	return (struct msg_io){
		.start_us = (io->begin_ns + (uint64_t)s->out.wall_minus_mono_ns) / 1000,
		.dur = io->dur_ns / 1000,
		.stage_id = io->stage_id,
		.stage_type = io->stage,
		.io_type = io->type,
		.rank = s->env->origin->rank,
		.file_name = socket ? (struct msg_text){ 0 } : text,
		.start_ns = io->begin_ns,
		.dur_ns = io->dur_ns,
		.step = io->head.step,
		.bytes = io->bytes,
		.offset = io->offset > 0 ? (uint64_t)io->offset : 0,
		.peer = socket ? text : (struct msg_text){ 0 },
		.pid = rec->pid == s->env->origin->pid ? 0 : rec->pid,
		.tid = rec->tid == s->env->origin->pid ? 0 : rec->tid,
		.fd = (uint32_t)(io->fd + 1),
		.worker = rec->worker || rec->head->flags & STAGE_WORKER,
		.is_socket = socket,
	};
}

/* --- protobuf -------------------------------------------------------------------------------------------------------- */

static int put_origin(struct sink *s, const struct msg_origin *origin, const struct clock_snapshot *clocks)
{
	struct msg_clock clock = sink_clock(clocks);
	struct pb_writer w;
	size_t mark;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	mark = pb_begin(&w, MSG_IO_origin);
	msg_origin_pb(&w, origin);
	msg_clock_put(&w, MSG_ORIGIN_clocks, &clock);
	pb_end(&w, mark);
	return sink_put_pb(s, &w);
}

static int pb_start(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);

	return put_origin(s, &origin, clocks);
}

static int pb_clocks(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = { .wall_minus_mono_ns = s->out.wall_minus_mono_ns, .segment = s->out.segment };

	return put_origin(s, &origin, clocks);
}

static bool io_concerns(const struct sink *s, const struct sink_rec *rec)
{
	return rec->head->type != REC_NOTE || sink_note_of(s, rec, "IO");
}

/* What the plugin has given up, and when. */
static int pb_note(struct sink *s, const struct rec_note *rec)
{
	struct msg_note note = {
		.text = sink_text(s->env->head, rec->text),
		.start_ns = rec->at_ns,
		.step = rec->head.step,
	};
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_note_put(&w, MSG_IO_notes, &note);
	return sink_put_pb(s, &w);
}

static int pb_put(struct sink *s, const struct sink_rec *rec)
{
	struct msg_io entry;
	struct pb_writer w;

	if (rec->head->type == REC_NOTE)
		return pb_note(s, (const struct rec_note *)rec->head);
	entry = entry_of(s, rec);

	pb_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	msg_io_put(&w, MSG_IO_IO_entries, &entry);
	return sink_put_pb(s, &w);
}

static int pb_thread(struct sink *s, const struct sink_rec *rec)
{
	struct msg_thread thread = { .pid = rec->pid, .tid = rec->tid, .comm = msg_text(rec->comm) };
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_thread_put(&w, MSG_IO_threads, &thread);
	return sink_put_pb(s, &w);
}

static int pb_drop(struct sink *s, const struct msg_drop *drop)
{
	struct pb_writer w;

	pb_init(&w, s->env->scratch, SINK_SCRATCH);
	msg_drop_put(&w, MSG_IO_drops, drop);
	return sink_put_pb(s, &w);
}

const struct sink_ops sink_io_pb = {
	.kind = SINK_IO,
	.name = "I/O",
	.for_pb = true,
	.types = 1u << REC_IO | 1u << REC_NOTE,
	.concerns = io_concerns,
	.sources = 1u << POOL_SRC_IO,
	.file_name = io_name,
	.begin = pb_start,
	.put = pb_put,
	.own_thread = pb_thread,
	.clocks = pb_clocks,
	.own_drop = pb_drop,
};

/* --- JSON ------------------------------------------------------------------------------------------------------------ */

/* What earlier segments have told of lost records. */
struct told {
	uint64_t lost;
};

static int json_start(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);
	struct told *told = s->state;
	struct json_writer w;

	if (s->out.segment)
		told->lost = s->env->dropped[POOL_SRC_IO];
	json_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_open(&w, '{');
	sink_origin_json(&w, &origin, clocks, 1);
	json_key(&w, "IO_entries");
	json_open(&w, '[');
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

/* The one place in a file that grows in place at its end only: the count of its lost records, always as long. */
static size_t json_tail(const struct sink *s, char *text)
{
	const struct told *told = s->state;

	return (size_t)snprintf(text, OUT_TAIL, "\n],\"dropped\":%-20llu}\n",
				(unsigned long long)(s->env->dropped[POOL_SRC_IO] - told->lost));
}

static int json_put(struct sink *s, const struct sink_rec *rec)
{
	struct msg_io entry = entry_of(s, rec);
	struct json_writer w;

	sink_json(s, &w);
	json_open(&w, '{');
	msg_io_json(&w, &entry);
	json_close(&w, '}');
	return sink_put_json(s, &w);
}

const struct sink_ops sink_io_json = {
	.kind = SINK_IO,
	.name = "I/O",
	.for_json = true,
	.types = 1u << REC_IO,
	.file_name = io_name,
	.begin = json_start,
	.tail = json_tail,
	.put = json_put,
	.state_bytes = sizeof(struct told),
};
