/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The join of findings with other records (evidence.h). A source is a sum of time per step of a rank; what counts is what the
 * accused has above the median of its peers in the same steps.
 */
#include "analyze/evidence.h"
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

/* What to switch on where nothing recorded explains it */
static const char *const next_line[LOC_KINDS] = {
	[LOC_COMPUTE] = "sysTrace_cli enable CPU duration=10",
	[LOC_LAUNCH] = "sysTrace_cli enable GIL duration=10",
	[LOC_COMM] = "sysTrace_cli enable MSPTI event=marker duration=10",
	[LOC_DATALOADER] = "sysTrace_cli enable IO duration=10",
	[LOC_CKPT] = "sysTrace_cli enable IO duration=10",
};

/** struct sums - ms per step of each source; NAN = the rank recorded no such stage */
struct sums {
	double ms[SOURCES];
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

/* All timelines of a rank within the finding's steps, as that rank's own clock tells them */
static void measure(const struct localize *loc, const struct loc_finding *f, const struct records *records,
		    int32_t rank, struct sums *sums)
{
	const struct loc_rank *r = loc_rank_by_number(loc, rank);
	const struct loc_cell *from = r ? loc_cell_at(r, f->onset_step) : NULL;
	const struct loc_cell *to = r ? loc_cell_at(r, f->last_step) : NULL;
	uint32_t key_kind = ev_name(records->session, "kind", 4);
	size_t i, k;

	for (i = 0; i < SOURCES; i++)
		sums->ms[i] = NAN;
	for (i = 0; from && to && i < records->count; i++) {
		const struct record_file *file = &records->files[i];
		struct ev_reader *reader;
		struct event ev;

		if (file->rank != rank || !(file->format & RECORD_TIMELINE))
			continue;
		reader = ev_open(records->session, file->path, NULL);
		while (reader && ev_next(reader, &ev, NULL) > 0)
			add_event(reader, &ev, key_kind, from->begin_ns, to->begin_ns + (int64_t)((double)to->ms * 1e6),
				  sums);
		ev_close(reader);
	}
	for (k = 0; k < SOURCES; k++)
		sums->ms[k] /= f->last_step - f->onset_step + 1;
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

static void weigh(struct loc_finding *f, const struct sums *own, const struct sums *peers, size_t count)
{
	double values[PEERS_MAX];
	size_t i, k, known;

	for (i = 0; i < SOURCES; i++) {
		double more;

		for (k = known = 0; k < count; k++)
			if (!isnan(peers[k].ms[i]))
				values[known++] = peers[k].ms[i];
		/* a rank that collected garbage where no peer did has all of it more */
		more = own->ms[i] - (known ? stat_median(values, known) : sources[i].cause ? 0 : NAN);
		if (isnan(more) || !(f->lost_ms > 0) || more < WORTH_SAYING * f->lost_ms)
			continue;
		f->sources[f->sources_count++] =
			(struct loc_source){ sources[i].name, more, fmin(1, more / f->lost_ms) };
		if (sources[i].cause && more >= MOST * f->lost_ms)
			f->cause = sources[i].name;
	}
}

static int by_share(const void *a, const void *b)
{
	const struct loc_source *x = a, *y = b;

	return (x->share < y->share) - (x->share > y->share);
}

int evidence_find(struct localize *loc, const struct loc_result *result, const struct records *records)
{
	size_t i, k, count;

	for (i = 0; i < loc->findings_count; i++) {
		struct loc_finding *f = &loc->findings[i];
		struct sums own, sums[PEERS_MAX];
		int32_t peers[PEERS_MAX];

		f->next = next_line[f->kind];
		if (i >= FINDINGS_MAX || (f->kind != LOC_COMPUTE && f->kind != LOC_LAUNCH))
			continue;
		count = choose_peers(loc, result, f, peers);
		measure(loc, f, records, f->rank, &own);
		for (k = 0; k < count; k++)
			measure(loc, f, records, peers[k], &sums[k]);
		weigh(f, &own, sums, count);
		qsort(f->sources, f->sources_count, sizeof(f->sources[0]), by_share);
	}
	return 0;
}
