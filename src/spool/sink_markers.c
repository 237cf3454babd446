/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Host markers of collectives as the documented CSV: two rows a call, start and end, under one Id. The columns are
 * exactly the documented ones, so identity, clocks and drops go into a sidecar <file>.meta.json, rewritten whole.
 * Driven by spool/drain.c.
 */
#include "safe/rawio.h"
#include "spool/sink.h"
#include "wire/csv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SNAPSHOTS 128u /* kept for the sidecar; when full, every second one goes: an hour or a month, evenly spread */
#define SIDECAR_BYTES (64u * 1024u)

/* struct sidecar - what it will say */
struct sidecar {
	struct clock_snapshot clocks[SNAPSHOTS];
	size_t count;
	bool begun; /* this drain began the file: the sidecar is all ours, else only its drops change */
	uint64_t dropped; /* as it says now */
	bool stale; /* it is to be written */
};

static void markers_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	const struct msg_origin *origin = s->env->origin;
	char of_worker[SINK_WORKER];

	snprintf(stem, room, "mspti/mspti-marker-%.*s-%u%s", (int)origin->ip.bytes, origin->ip.at, origin->rank,
		 sink_of_worker(s, of_worker));
	*suffix = ".csv";
}

static int markers_clocks(struct sink *s, const struct clock_snapshot *clocks)
{
	struct sidecar *side = s->state;
	size_t i;

	if (side->count == SNAPSHOTS) {
		for (i = 0; i < SNAPSHOTS / 2; i++)
			side->clocks[i] = side->clocks[2 * i];
		side->count = SNAPSHOTS / 2;
	}
	side->clocks[side->count++] = *clocks;
	side->stale = side->begun;
	return 0;
}

static int markers_begin(struct sink *s, const struct clock_snapshot *clocks)
{
	struct sidecar *side = s->state;

	side->begun = true;
	side->count = 0; /* a new segment has clocks of its own */
	markers_clocks(s, clocks);
	return out_put(&s->out, CSV_MARKER_HEADER, sizeof(CSV_MARKER_HEADER) - 1);
}

/* Name of the start row. */
static size_t marker_name(const struct sink *s, const struct rec_comm *comm, char *text, size_t room)
{
	struct msg_text op = sink_text(s->env->head, comm->op);
	struct msg_text group = sink_text(s->env->head, comm->group);
	struct msg_text dtype = sink_text(s->env->head, comm->dtype);

	return csv_comm_name(text, room, op, group, dtype.bytes ? dtype : msg_text("na"), comm->count);
}

static int markers_put(struct sink *s, const struct sink_rec *rec)
{
	const struct rec_comm *comm = (const struct rec_comm *)rec->head;
	struct csv_writer w = { .data = (char *)s->env->scratch, .room = OUT_WRITE - OUT_TAIL };
	struct csv_marker row = {
		.flag = CSV_MARKER_START,
		.source = CSV_SOURCE_HOST,
		.id = ++s->env->next_id,
		.wall_ns = comm->begin_ns + (uint64_t)s->out.wall_minus_mono_ns,
		.first = rec->pid,
		.second = rec->tid,
	};
	char name[1024];

	row.name = name;
	row.name_bytes = marker_name(s, comm, name, sizeof(name));
	csv_marker_put(&w, &row);
	if (!(comm->head.flags & STAGE_CUT)) { /* still running: a start row is all there is */
		row.flag = CSV_MARKER_END;
		row.wall_ns += comm->dur_ns;
		row.name_bytes = 0;
		csv_marker_put(&w, &row);
	}
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

static uint64_t all_dropped(const struct sink_env *env)
{
	uint64_t sum = 0;
	int i;

	for (i = 0; i < POOL_SRC_COUNT; i++)
		sum += env->dropped[i];
	return sum;
}

static void sidecar_drops(struct json_writer *w, const struct sink_env *env)
{
	int i;

	json_key(w, "drops");
	json_open(w, '[');
	for (i = 0; i < POOL_SRC_COUNT; i++) {
		struct msg_drop drop = {
			.source = msg_text(sink_source_name((enum pool_source)i)),
			.count = env->dropped[i],
		};

		if (!drop.count)
			continue;
		json_open(w, '{');
		msg_drop_json(w, &drop);
		json_close(w, '}');
	}
	json_close(w, ']');
}

/* The sidecar of a file that was begun by someone else: as it was, up to its drops. */
static bool old_sidecar(struct json_writer *w, const char *path)
{
	char *drops;
	ssize_t n = sys_read_file(path, w->data, w->room);

	drops = n > 0 ? strstr(w->data, ",\"drops\":[") : NULL;
	if (!drops)
		return false;
	w->used = (size_t)(drops - w->data);
	w->comma = true;
	return true;
}

static int markers_settled(struct sink *s)
{
	static char text[SIDECAR_BYTES]; /* the drain's thread alone comes here */
	struct sidecar *side = s->state;
	struct msg_origin origin = sink_origin(s);
	uint64_t dropped = all_dropped(s->env);
	char path[POOL_PATH + 16];
	struct json_writer w;
	int ret;

	if (!s->out.live || (!side->stale && dropped == side->dropped))
		return 0;
	snprintf(path, sizeof(path), "%s.meta.json", s->out.path);
	json_init(&w, text, sizeof(text));
	if (side->begun || !old_sidecar(&w, path)) {
		json_open(&w, '{');
		sink_origin_json(&w, &origin, side->clocks, side->count);
	}
	sidecar_drops(&w, s->env);
	json_close(&w, '}');
	json_raw(&w, "\n");
	if (w.full)
		return -EMSGSIZE;
	ret = out_replace(path, w.data, w.used);
	if (ret == 0) {
		side->stale = false;
		side->dropped = dropped;
	}
	return ret;
}

const struct sink_ops sink_markers = {
	.kind = SINK_MARKERS,
	.name = "markers",
	.for_pb = true,
	.for_json = true,
	.types = 1u << REC_COMM,
	.file_name = markers_name,
	.begin = markers_begin,
	.put = markers_put,
	.clocks = markers_clocks,
	.settled = markers_settled,
	.state_bytes = sizeof(struct sidecar),
};
