/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums of other layers' records; see layers.h. */
#include "analyze/layers.h"
#include "trace/locks.h"
#include "trace/os.h"

#include <math.h>
#include <string.h>

#define PARTS \
	256 /* names told apart per layer; what comes later is still summed up, but cannot have the largest part */

/** struct part - one name's share of a layer */
struct part {
	uint32_t name;
	double ms;
};

struct layer_parts {
	struct part list[PARTS];
	size_t count;
};

/** struct summing - one call of layers_sum() */
struct summing {
	const struct ev_session *session;
	int32_t rank;
	int64_t from_ns, to_ns;
	bool workers;
	struct layer_sum *sums;
	struct layer_parts parts[LAYERS];
	struct layer_parts threads; /* name: thread id; ms: time it held the interpreter's lock */
	struct layer_parts delays; /* name: thread id; ms: it could have run and did not */
	struct part names[PARTS]; /* of threads: name id by thread id (ms) */
	size_t names_count;
	uint32_t key_file, key_peer, key_delay, key_next, name_wait, name_forced, name_hold;
};

static void add_part(struct layer_parts *parts, uint32_t name, double ms)
{
	size_t i;

	for (i = 0; i < parts->count && parts->list[i].name != name; i++)
		;
	if (i == PARTS)
		return;
	if (i == parts->count)
		parts->list[parts->count++] = (struct part){ .name = name };
	parts->list[i].ms += ms;
}

static const struct part *largest(const struct layer_parts *parts)
{
	const struct part *most = NULL;
	size_t i;

	for (i = 0; i < parts->count; i++)
		if (!most || parts->list[i].ms > most->ms)
			most = &parts->list[i];
	return most;
}

/* The part of an event that lies in the interval, in ms; also notes that the layer was recorded then */
static double inside(const struct summing *s, struct layer_sum *sum, int64_t begin, int64_t end)
{
	if (end < s->from_ns || begin > s->to_ns)
		return 0;
	begin = begin < s->from_ns ? s->from_ns : begin;
	end = end > s->to_ns ? s->to_ns : end;
	if (isnan(sum->ms)) {
		*sum = (struct layer_sum){ .begin_ns = begin, .end_ns = end };
	} else {
		sum->begin_ns = begin < sum->begin_ns ? begin : sum->begin_ns;
		sum->end_ns = end > sum->end_ns ? end : sum->end_ns;
	}
	return (double)(end - begin) / 1e6;
}

static void add(struct summing *s, enum layer layer, const struct ev_reader *reader, const struct event *ev,
		uint32_t name, bool counts)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	double ms = inside(s, &s->sums[layer], begin, begin + (int64_t)ev->dur_ns);

	if (!counts || !(ms > 0))
		return;
	s->sums[layer].ms += ms;
	add_part(&s->parts[layer], name, ms);
}

static void take_gil(struct summing *s, const struct ev_reader *reader, const struct event *ev, bool main_thread)
{
	bool waits = ev->name == s->name_wait || ev->name == s->name_forced;
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);

	add(s, LAYER_GIL, reader, ev, 0, waits && main_thread);
	if (ev->name == s->name_hold && !main_thread && begin <= s->to_ns && begin + (int64_t)ev->dur_ns >= s->from_ns)
		add_part(&s->threads, (uint32_t)ev->track.tid, (double)ev->dur_ns / 1e6);
}

/* A thread that could have run: who ran instead. The thread that lost most counts, since it is what the others wait for. */
static void take_cpu(struct summing *s, const struct ev_reader *reader, const struct event *ev)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	double ms = (double)records_number(ev, s->key_delay, 0) / 1e6;

	add(s, LAYER_CPU, reader, ev, 0, false);
	if (!(ms > 0) || begin < s->from_ns || begin > s->to_ns)
		return;
	add_part(&s->delays, (uint32_t)ev->track.tid, ms);
	add_part(&s->parts[LAYER_CPU], records_name(ev, s->key_next), ms);
}

static void take_event(struct summing *s, const struct ev_reader *reader, const struct event *ev)
{
	bool worker = ev->quality & EV_WORKER, main_thread = !worker && ev->track.tid == ev->track.pid;

	if (ev->rank != s->rank)
		return;
	switch (ev->kind) {
	case EV_IO:
		add(s, LAYER_FILE_IO, reader, ev, records_name(ev, s->key_file), main_thread || (worker && s->workers));
		break;
	case EV_SOCKET:
		add(s, LAYER_SOCKET_IO, reader, ev, records_name(ev, s->key_peer),
		    main_thread || (worker && s->workers));
		break;
	case EV_GIL:
		take_gil(s, reader, ev, main_thread);
		break;
	case EV_OFFCPU:
		if (!worker || s->workers)
			take_cpu(s, reader, ev);
		break;
	case EV_LOCK:
		add(s, LAYER_LOCK, reader, ev, ev->name, main_thread);
		break;
	case EV_TASK:
		if (ev->track.tid > 0 && s->names_count < PARTS)
			s->names[s->names_count++] = (struct part){ ev->name, ev->track.tid };
		break;
	default:
		break;
	}
}

static void read_file(struct summing *s, const struct records *records, const char *path)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &err);
	struct event ev;
	int more = 0;

	while (reader && (more = ev_next(reader, &ev, &err)) > 0)
		take_event(s, reader, &ev);
	if (!reader || more < 0)
		records_note(records, "%s", err.text);
	ev_close(reader);
}

/* Who held the interpreter's lock longest while it was not the main thread */
static uint32_t holder(const struct summing *s, double *ms)
{
	const struct part *most = largest(&s->threads);
	size_t i;

	for (i = 0; most && i < s->names_count; i++) {
		if (s->names[i].ms != most->name)
			continue;
		*ms = most->ms;
		return s->names[i].name;
	}
	return 0;
}

void layers_sum(const struct records *records, int32_t rank, int64_t from_ns, int64_t to_ns, bool workers,
		struct layer_sum *sums)
{
	struct ev_session *session = records->session;
	static struct summing s; /* large */
	size_t i;

	s = (struct summing){
		.session = session,
		.rank = rank,
		.from_ns = from_ns,
		.to_ns = to_ns,
		.workers = workers,
		.sums = sums,
		.key_file = ev_name(session, "file", 4),
		.key_peer = ev_name(session, "peer", 4),
		.key_delay = ev_name(session, OS_KEY_DELAY, strlen(OS_KEY_DELAY)),
		.key_next = ev_name(session, OS_KEY_TAKEN_BY, strlen(OS_KEY_TAKEN_BY)),
		.name_wait = ev_name(session, GIL_NAME_WAIT, strlen(GIL_NAME_WAIT)),
		.name_forced = ev_name(session, GIL_NAME_FORCED, strlen(GIL_NAME_FORCED)),
		.name_hold = ev_name(session, GIL_NAME_HOLD, strlen(GIL_NAME_HOLD)),
	};
	for (i = 0; i < LAYERS; i++)
		sums[i] = (struct layer_sum){ .ms = NAN };
	for (i = 0; i < records->layers_count; i++)
		if (records->layers[i].rank == rank || records->layers[i].shared)
			read_file(&s, records, records->layers[i].path);
	for (i = 0; i < LAYERS; i++) {
		const struct part *most = largest(&s.parts[i]);

		if (!most)
			continue;
		sums[i].detail = most->name;
		sums[i].detail_ms = most->ms;
	}
	if (!isnan(sums[LAYER_CPU].ms) && largest(&s.delays))
		sums[LAYER_CPU].ms = largest(&s.delays)->ms;
	sums[LAYER_GIL].detail = holder(&s, &sums[LAYER_GIL].detail_ms);
}
