/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The join of findings with other records (evidence.h). A source is a sum of time per step of a rank; what counts is what the
 * accused has above the median of its peers in the same steps.
 */
#include "analyze/evidence.h"
#include "analyze/layers.h"
#include "analyze/localize_impl.h"
#include "analyze/stat.h"
#include "wire/record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_MAX 4 /* read for comparison */
#define FINDINGS_MAX 8 /* the costliest ones; the others share their causes as a rule */
#define MOST 0.5 /* share of the loss that a cause must explain */
#define WORTH_SAYING 0.1

/** struct source - stages of one kind; a cause, or just where in the step the time is */
static const struct source {
	const char *name;
	uint8_t stage;
	bool cause;
} sources[] = {
	{ "gc", STAGE_GC, true },
	{ "forward", STAGE_FORWARD, false },
	{ "backward", STAGE_BACKWARD, false },
	{ "optimizer", STAGE_OPTIMIZER, false },
};

#define SOURCES (sizeof(sources) / sizeof(sources[0]))

/** struct layer_source - a layer that is recorded on command, and how it is switched on */
static const struct layer_source {
	const char *name;
	bool alone; /* waiting of this kind is a loss by itself: peers need not be recorded to tell */
	const char *next;
} layer_sources[LAYERS] = {
	[LAYER_FILE_IO] = { "file I/O", true, "sysTrace_cli enable IO duration=10" },
	[LAYER_SOCKET_IO] = { "network I/O", false, "sysTrace_cli enable IO duration=10" },
	[LAYER_GIL] = { "waiting for the interpreter lock", true, "sysTrace_cli enable GIL duration=10" },
	[LAYER_LOCK] = { "waiting for locks", false, "sysTrace_cli enable Mutex duration=10" },
	[LAYER_CPU] = { "no CPU", true, "sysTrace_cli enable CPU duration=10" },
};

#define NO_LAYER LAYERS

/* What to switch on where nothing recorded explains it: the first of these that was not */
static const enum layer next_layers[LOC_KINDS][4] = {
	[LOC_COMPUTE] = { LAYER_CPU, LAYER_GIL, LAYER_LOCK, LAYER_FILE_IO },
	[LOC_LAUNCH] = { LAYER_GIL, LAYER_CPU, LAYER_LOCK, NO_LAYER },
	[LOC_DATALOADER] = { LAYER_FILE_IO, LAYER_CPU, LAYER_GIL, LAYER_LOCK },
	[LOC_CKPT] = { LAYER_FILE_IO, LAYER_CPU, LAYER_GIL, NO_LAYER },
	[LOC_COMM] = { NO_LAYER, NO_LAYER, NO_LAYER, NO_LAYER },
	[LOC_HANG] = { NO_LAYER, NO_LAYER, NO_LAYER, NO_LAYER },
};

/** struct sums - ms per step of each source; NAN = the rank recorded no such stage */
struct sums {
	double ms[SOURCES];
	struct layer_sum layers[LAYERS]; /* ms: per step of what was recorded */
};

static void add_event(const struct ev_reader *reader, const struct event *ev, uint32_t key_kind, int64_t from_ns,
		      int64_t to_ns, struct sums *sums)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	uint64_t kind;
	size_t i;

	if (ev->kind != EV_STAGE || ev->quality & EV_WORKER || begin < from_ns || begin >= to_ns)
		return;
	kind = records_number(ev, key_kind, STAGE_UNKNOWN);
	for (i = 0; i < SOURCES; i++)
		if (sources[i].stage == kind)
			sums->ms[i] = (isnan(sums->ms[i]) ? 0 : sums->ms[i]) + (double)ev->dur_ns / 1e6;
}

/* The stages in all timelines of a rank, ms per step */
static void measure_stages(const struct loc_finding *f, const struct records *records, int32_t rank, int64_t from_ns,
			   int64_t to_ns, struct sums *sums)
{
	uint32_t key_kind = ev_name(records->session, "kind", 4);
	size_t i, k;

	for (i = 0; i < records->count; i++) {
		const struct record_file *file = &records->files[i];
		struct ev_reader *reader;
		struct event ev;

		if (file->rank != rank || !(file->format & RECORD_TIMELINE))
			continue;
		reader = ev_open(records->session, file->path, NULL);
		while (reader && ev_next(reader, &ev, NULL) > 0)
			add_event(reader, &ev, key_kind, from_ns, to_ns, sums);
		ev_close(reader);
	}
	for (k = 0; k < SOURCES; k++)
		sums->ms[k] /= f->last_step - f->onset_step + 1;
}

/* Layers are recorded for a while only: what counts is the time per step of what was recorded, one step at least */
static void measure_layers(const struct localize *loc, const struct loc_finding *f, const struct records *records,
			   int32_t rank, int64_t from_ns, int64_t to_ns, struct sums *sums)
{
	const int64_t step_ns = (int64_t)((f->share > 0 ? f->lost_ms / f->share : loc->step_ms) * 1e6);
	size_t i;

	/* a fault that lasts may be recorded after the last step that was judged */
	if (f->last_step + 2 >= loc->first + loc->steps)
		to_ns = INT64_MAX;
	layers_sum(records, rank, from_ns, to_ns, f->kind == LOC_DATALOADER, sums->layers);
	for (i = 0; i < LAYERS; i++) {
		int64_t covered = sums->layers[i].end_ns - sums->layers[i].begin_ns;

		if (!isnan(sums->layers[i].ms) && step_ns > 0)
			sums->layers[i].ms /= covered > step_ns ? (double)covered / (double)step_ns : 1;
	}
}

/* Within the finding's steps, as that rank's own clock tells them */
static void measure(const struct localize *loc, const struct loc_finding *f, const struct records *records,
		    int32_t rank, struct sums *sums)
{
	const struct loc_rank *r = loc_rank_by_number(loc, rank);
	const struct loc_cell *from = r ? loc_cell_at(r, f->onset_step) : NULL;
	const struct loc_cell *to = r ? loc_cell_at(r, f->last_step) : NULL;
	int64_t end_ns = to ? to->begin_ns + (int64_t)((double)to->ms * 1e6) : 0;
	size_t i;

	for (i = 0; i < SOURCES; i++)
		sums->ms[i] = NAN;
	for (i = 0; i < LAYERS; i++)
		sums->layers[i] = (struct layer_sum){ .ms = NAN };
	if (!from || !to)
		return;
	measure_stages(f, records, rank, from->begin_ns, end_ns, sums);
	measure_layers(loc, f, records, rank, from->begin_ns, end_ns, sums);
}

static bool is_accused(const struct loc_result *result, int32_t rank)
{
	size_t i;

	for (i = 0; i < result->findings_count; i++)
		if (result->findings[i].rank == rank)
			return true;
	return false;
}

/* A few ranks that nobody accuses: of the group where there is one, else of all. Return: their number. */
static size_t choose_peers(const struct localize *loc, const struct loc_result *result, const struct loc_finding *f,
			   int32_t *peers)
{
	const int32_t *members;
	size_t count = localize_peers(loc, f->group, &members), used = 0, i;

	for (i = 0; i < count && used < PEERS_MAX; i++)
		if (!is_accused(result, members[i]))
			peers[used++] = members[i];
	for (i = 0; !count && i < loc->ranks_count && used < PEERS_MAX; i++)
		if (!is_accused(result, loc->ranks[i]->rank))
			peers[used++] = loc->ranks[i]->rank;
	return used;
}

static void put_source(struct loc_finding *f, const char *name, double more, bool cause, const struct layer_sum *layer)
{
	struct loc_source *source = &f->sources[f->sources_count];

	if (isnan(more) || !(f->lost_ms > 0) || more < WORTH_SAYING * f->lost_ms || f->sources_count == LOC_SOURCES)
		return;
	*source = (struct loc_source){ .name = name, .ms = more, .share = fmin(1, more / f->lost_ms) };
	if (layer && layer->detail && layer->detail_ms > 0)
		source->detail = layer->detail;
	f->sources_count++;
	if (cause && more >= MOST * f->lost_ms && (!f->cause || more > f->cause_ms)) {
		f->cause = name;
		f->cause_ms = more;
		f->cause_detail = source->detail;
	}
}

static void weigh(struct loc_finding *f, const struct sums *own, const struct sums *peers, size_t count)
{
	double values[PEERS_MAX];
	size_t i, k, known;

	for (i = 0; i < SOURCES; i++) {
		for (k = known = 0; k < count; k++)
			if (!isnan(peers[k].ms[i]))
				values[known++] = peers[k].ms[i];
		/* a rank that collected garbage where no peer did has all of it more */
		put_source(f, sources[i].name,
			   own->ms[i] - (known		    ? stat_median(values, known)
					 : sources[i].cause ? 0
							    : NAN),
			   sources[i].cause, NULL);
	}
	for (i = 0; i < LAYERS; i++) {
		for (k = known = 0; k < count; k++)
			if (!isnan(peers[k].layers[i].ms))
				values[known++] = peers[k].layers[i].ms;
		put_source(f, layer_sources[i].name,
			   own->layers[i].ms - (known			 ? stat_median(values, known)
						: layer_sources[i].alone ? 0
									 : NAN),
			   true, &own->layers[i]);
	}
}

/* The first layer of the kind that was not recorded; NULL = all were */
static const char *next_of(const struct loc_finding *f, const struct sums *own)
{
	size_t i;

	for (i = 0; i < 4 && next_layers[f->kind][i] != NO_LAYER; i++)
		if (isnan(own->layers[next_layers[f->kind][i]].ms))
			return layer_sources[next_layers[f->kind][i]].next;
	return f->kind == LOC_COMM ? "sysTrace_cli enable MSPTI event=marker duration=10" : NULL;
}

static int by_share(const void *a, const void *b)
{
	const struct loc_source *x = a, *y = b;

	return (x->share < y->share) - (x->share > y->share);
}

/* The last stage that ended on a rank that hangs. A collection happens within others and says nothing of where it is. */
static void find_last_stage(struct loc_finding *f, const struct records *records)
{
	uint32_t key_kind = ev_name(records->session, "kind", 4);
	size_t i;

	for (i = 0; i < records->count; i++) {
		const struct record_file *file = &records->files[i];
		struct ev_reader *reader;
		struct event ev;

		if (file->rank != f->rank || !(file->format & RECORD_TIMELINE))
			continue;
		reader = ev_open(records->session, file->path, NULL);
		while (reader && ev_next(reader, &ev, NULL) > 0) {
			int64_t end = records_wall_ns(reader, &ev, ev.t_ns + ev.dur_ns);

			if (ev.kind != EV_STAGE || ev.phase != EV_COMPLETE || ev.quality & EV_WORKER ||
			    end <= f->last_stage_ns || records_number(&ev, key_kind, STAGE_UNKNOWN) == STAGE_GC)
				continue;
			f->last_stage = ev.name;
			f->last_stage_step = ev.step;
			f->last_stage_ns = end;
		}
		ev_close(reader);
	}
}

int evidence_find(struct localize *loc, const struct loc_result *result, const struct records *records)
{
	size_t i, k, count;

	for (i = 0; i < loc->findings_count; i++) {
		struct loc_finding *f = &loc->findings[i];
		struct sums own, sums[PEERS_MAX];
		int32_t peers[PEERS_MAX];

		if (f->kind == LOC_HANG) {
			find_last_stage(f, records);
			continue;
		}
		f->judged = true;
		for (k = 0; k < LAYERS; k++)
			own.layers[k].ms = NAN;
		if (i < FINDINGS_MAX && f->kind != LOC_COMM) {
			count = choose_peers(loc, result, f, peers);
			measure(loc, f, records, f->rank, &own);
			for (k = 0; k < count; k++)
				measure(loc, f, records, peers[k], &sums[k]);
			weigh(f, &own, sums, count);
			qsort(f->sources, f->sources_count, sizeof(f->sources[0]), by_share);
		}
		f->next = next_of(f, &own);
	}
	return 0;
}
