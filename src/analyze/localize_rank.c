/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One rank's records become one cell per step: which step and place an operation has, how much time the rank spent on
 * its own between operations, and what it contributes to its groups. Places come from the rank's own numbering of its
 * calls where it has one, so that lost rows or a late start of the collector shift nothing.
 */
#include "analyze/localize.h"
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_STEP UINT32_MAX
#define SAMPLES 32 /* per place, for its usual way */
#define REGULAR_SHARE 0.7 /* of the steps must have the same number of calls for places to mean something */
#define SPIKE_PLACES 8 /* per step, so that one of them is not the work itself */
#define COMPLETE_SHARE 0.8 /* of a step's ways must have been seen */

/** struct placed - an op with its place */
struct placed {
	const struct loc_op *op;
	uint32_t cell; /* index of the step's cell */
	uint32_t place; /* in the step */
};

/** struct layout - what the steps of this rank look like */
struct layout {
	bool regular;
	uint64_t anchor; /* serial of place 0 of cell 0 (may wrap below 0) */
	uint32_t places; /* per step when regular */
	int32_t main_stream;
	double *usual; /* regular: usual way before each place of the main stream, NAN = not of it */
	bool *is_short; /* regular: among the shorter half */
	uint32_t *group; /* regular: of each place */
	uint32_t *group_place; /* regular: how many places before belong to the same group */
};

/* ---- feeding -------------------------------------------------------------------------------------------------------- */

static int cells_room(struct loc_rank *r, size_t count)
{
	size_t room = r->cells_room ? r->cells_room : 64;
	struct loc_cell *cells;
	int64_t *load_end;
	float *sums;

	if (count <= r->cells_room)
		return 0;
	while (room < count)
		room *= 2;
	cells = reallocarray(r->cells, room, sizeof(*cells));
	if (!cells)
		return -ENOMEM;
	r->cells = cells;
	load_end = reallocarray(r->load_end, room, sizeof(*load_end));
	if (!load_end)
		return -ENOMEM;
	r->load_end = load_end;
	if (r->sums) {
		sums = reallocarray(r->sums, room, sizeof(*sums));
		if (!sums)
			return -ENOMEM;
		r->sums = sums;
		memset(sums + r->cells_room, 0, (room - r->cells_room) * sizeof(*sums));
	}
	r->cells_room = room;
	return 0;
}

int loc_rank_step(struct loc_rank *r, const struct loc_step *step)
{
	uint32_t first = r->cells_count ? r->first_step : step->number;
	size_t i, index;

	/* a repeated or older number, or one that cannot be reached, is not a step of this run */
	if (r->cells_count && (step->number < first + r->cells_count || step->number - first > r->cells_count + 100000))
		return 0;
	index = step->number - first;
	if (cells_room(r, index + 1) < 0)
		return -ENOMEM;
	r->first_step = first;
	for (i = r->cells_count; i <= index; i++) {
		r->cells[i] = (struct loc_cell){
			.begin_ns = step->begin_ns, .own = NAN, .own_short = NAN, .load = NAN, .forward = NAN
		};
		r->load_end[i] = 0;
	}
	if (r->cells_count && index == r->cells_count && !(r->cells[index - 1].ms > 0))
		r->cells[index - 1].ms = (float)((double)(step->begin_ns - r->cells[index - 1].begin_ns) / 1e6);
	r->cells[index].ms = (float)step->ms;
	if (step->forward_ms > 0)
		r->cells[index].forward = (float)step->forward_ms;
	r->load_end[index] = step->load_end_ns;
	r->cells_count = index + 1;
	if (step->begin_ns > r->last_ns)
		r->last_ns = step->begin_ns;
	return 0;
}

int loc_rank_stage(struct loc_rank *r, uint32_t step, enum loc_kind kind, double ms)
{
	struct loc_cell *cell;
	float *value;

	if (step < r->first_step || step - r->first_step >= r->cells_count)
		return 0;
	cell = &r->cells[step - r->first_step];
	value = kind == LOC_CKPT ? &cell->ckpt : &cell->load;
	*value = isnan(*value) ? (float)ms : *value + (float)ms;
	return 0;
}

void loc_rank_own(struct loc_rank *r, uint32_t step, double ms)
{
	if (step >= r->first_step && step - r->first_step < r->cells_count)
		r->cells[step - r->first_step].own = (float)ms;
}

int loc_rank_sum(struct loc_rank *r, const struct loc_sum *sum)
{
	struct loc_group *group;

	if (sum->step < r->first_step || sum->step - r->first_step >= r->cells_count)
		return 0;
	if (!r->sums)
		r->sums = calloc(r->cells_room, sizeof(*r->sums));
	group = loc_group_get(r->loc, sum->group);
	if (!r->sums || !group)
		return -ENOMEM;
	r->sums[sum->step - r->first_step] += (float)sum->total_ms;
	group->op = sum->name;
	group->pairwise |= sum->pairwise;
	return loc_group_join(group, r->rank, 1);
}

int loc_rank_op(struct loc_rank *r, const struct loc_op *op)
{
	int64_t last = op->end_ns ? op->end_ns : op->begin_ns;

	if (r->ops_count == r->ops_room) {
		size_t room = r->ops_room ? 2 * r->ops_room : 1024;
		void *more = reallocarray(r->ops, room, sizeof(*r->ops));

		if (!more)
			return -ENOMEM;
		r->ops = more;
		r->ops_room = room;
	}
	r->ops[r->ops_count++] = *op;
	if (last > r->last_ns)
		r->last_ns = last;
	return 0;
}

void loc_rank_issued(struct loc_rank *r, uint64_t serial)
{
	if (serial > r->issued)
		r->issued = serial;
}

/* ---- steps and places ----------------------------------------------------------------------------------------------- */

static int by_serial(const void *a, const void *b)
{
	const struct loc_op *x = a, *y = b;

	if (x->serial != y->serial)
		return x->serial < y->serial ? -1 : 1;
	return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/* Index of the cell whose step holds this time, NO_STEP before the first */
static uint32_t cell_of_time(const struct loc_rank *r, int64_t ns)
{
	size_t low = 0, high = r->cells_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (r->cells[mid].begin_ns <= ns)
			low = mid + 1;
		else
			high = mid;
	}
	return low ? (uint32_t)(low - 1) : NO_STEP;
}

/* The most frequent number of calls per step, from the serials of each step's first call; 0 = no such thing */
static uint32_t regular_places(const uint64_t *first, size_t cells)
{
	double *counts = malloc((cells + 1) * sizeof(*counts));
	size_t i, count = 0, same = 0;
	double usual = 0;

	if (!counts)
		return 0;
	for (i = 0; i + 1 < cells; i++)
		if (first[i] && first[i + 1] > first[i])
			counts[count++] = (double)(first[i + 1] - first[i]);
	if (count >= 4) {
		usual = round(stat_median(counts, count));
		for (i = 0; i < count; i++)
			same += counts[i] == usual;
	}
	free(counts);
	return same > REGULAR_SHARE * (double)count && usual < 1e6 ? (uint32_t)usual : 0;
}

/* Find whether steps are regular and where they begin in the numbering. @first: scratch of cells_count. */
static void find_layout(const struct loc_rank *r, struct layout *lay, uint64_t *first)
{
	double *anchors;
	size_t i, count = 0;

	for (i = 0; i < r->ops_count; i++) {
		uint32_t cell = cell_of_time(r, r->ops[i].begin_ns);

		if (!r->ops[i].serial)
			return;
		if (cell != NO_STEP && (!first[cell] || r->ops[i].serial < first[cell]))
			first[cell] = r->ops[i].serial;
	}
	lay->places = regular_places(first, r->cells_count);
	anchors = lay->places ? malloc(r->cells_count * sizeof(*anchors)) : NULL;
	if (!anchors)
		return;
	for (i = 0; i < r->cells_count; i++)
		if (first[i])
			anchors[count++] = (double)first[i] - (double)lay->places * (double)i;
	lay->anchor = (uint64_t)(int64_t)floor(stat_median(anchors, count) + 0.5);
	lay->regular = true;
	free(anchors);
}

static void place_by_serial(const struct loc_rank *r, const struct layout *lay, struct placed *p)
{
	int64_t at = (int64_t)(p->op->serial - lay->anchor);

	p->cell = at < 0 || (uint64_t)at / lay->places >= r->cells_count ? NO_STEP : (uint32_t)(at / lay->places);
	p->place = at < 0 ? 0 : (uint32_t)(at % lay->places);
}

static void place_all(const struct loc_rank *r, const struct layout *lay, struct placed *placed)
{
	uint32_t last = NO_STEP, count = 0;
	size_t i;

	for (i = 0; i < r->ops_count; i++) {
		struct placed *p = &placed[i];

		*p = (struct placed){ .op = &r->ops[i] };
		if (lay->regular) {
			place_by_serial(r, lay, p);
			continue;
		}
		p->cell = cell_of_time(r, p->op->begin_ns);
		count = p->cell == last ? count + 1 : 0;
		p->place = count;
		last = p->cell;
	}
}

static int32_t busiest_stream(const struct loc_rank *r)
{
	struct {
		int32_t stream;
		uint64_t count;
	} streams[16] = { { 0, 0 } };
	size_t i, k, used = 0, best = 0;

	for (i = 0; i < r->ops_count; i++) {
		for (k = 0; k < used && streams[k].stream != r->ops[i].stream; k++)
			;
		if (k == used && used < 16)
			streams[used++].stream = r->ops[i].stream;
		if (k < 16)
			streams[k].count++;
	}
	for (k = 1; k < used; k++)
		if (streams[k].count > streams[best].count)
			best = k;
	return streams[best].stream;
}

/* ---- own time ------------------------------------------------------------------------------------------------------- */

/* Way before each op of the main stream: its begin minus the end of the one before, or of the loader; NAN = unknown.
 * @next_place: the place that must have come just before, per place; NULL when not regular. */
static void measure_ways(const struct loc_rank *r, const struct layout *lay, const struct placed *placed,
			 const uint32_t *before, float *ways)
{
	const struct placed *prev = NULL;
	bool loads = false;
	size_t i;

	for (i = 0; i < r->cells_count && !loads; i++)
		loads = r->load_end[i] != 0;
	for (i = 0; i < r->ops_count; i++) {
		const struct placed *p = &placed[i];
		bool leads;

		ways[i] = NAN;
		if (p->cell == NO_STEP || p->op->stream != lay->main_stream)
			continue;
		leads = !prev || prev->cell != p->cell;
		if (before)
			leads = before[p->place] == NO_STEP;
		if (leads && r->load_end[p->cell])
			ways[i] = (float)((double)(p->op->begin_ns - r->load_end[p->cell]) / 1e6);
		else if (leads && prev && prev->op->end_ns && (!before || (!loads && prev->cell + 1 == p->cell)))
			ways[i] = (float)((double)(p->op->begin_ns - prev->op->end_ns) / 1e6);
		else if (!leads && prev && prev->op->end_ns && prev->cell == p->cell &&
			 (!before || before[p->place] == prev->place))
			ways[i] = (float)((double)(p->op->begin_ns - prev->op->end_ns) / 1e6);
		if (ways[i] < 0)
			ways[i] = 0;
		prev = p;
	}
}

/* Which place of the main stream comes before each: NO_STEP for the first of a step. Majority of the steps decides. */
static int find_before(const struct loc_rank *r, struct layout *lay, const struct placed *placed, uint32_t *before)
{
	uint32_t *votes = calloc(2 * (size_t)lay->places, sizeof(*votes));
	uint32_t place, last = NO_STEP, earlier;
	size_t i;

	if (!votes)
		return -ENOMEM;
	for (i = 0; i < r->ops_count; i++) {
		if (placed[i].cell == NO_STEP)
			continue;
		votes[2 * placed[i].place + (placed[i].op->stream == lay->main_stream)]++;
		lay->group[placed[i].place] = placed[i].op->group;
	}
	for (place = 0; place < lay->places; place++) {
		before[place] = last;
		lay->usual[place] = NAN;
		if (votes[2 * place + 1] > votes[2 * place]) {
			last = place;
			lay->usual[place] = 0;
		}
		lay->group_place[place] = 0;
		for (earlier = 0; earlier < place && lay->group_place[place] < LOC_PLACES; earlier++)
			lay->group_place[place] += lay->group[earlier] == lay->group[place];
	}
	free(votes);
	return 0;
}

static int by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Usual way per place, and which places have the shorter half of them */
static int find_usual(const struct loc_rank *r, struct layout *lay, const struct placed *placed, const float *ways)
{
	double *samples = malloc((size_t)lay->places * SAMPLES * sizeof(*samples));
	uint32_t *counts = calloc(lay->places, sizeof(*counts));
	double *sorted = malloc(lay->places * sizeof(*sorted));
	size_t i, n = 0;
	int ret = -ENOMEM;

	if (!samples || !counts || !sorted)
		goto out;
	for (i = 0; i < r->ops_count; i++) {
		uint32_t place = placed[i].place;

		if (!isnan(ways[i]) && counts[place] < SAMPLES)
			samples[place * SAMPLES + counts[place]++] = ways[i];
	}
	for (i = 0; i < lay->places; i++) {
		if (isnan(lay->usual[i]))
			continue;
		lay->usual[i] = stat_median(samples + i * SAMPLES, counts[i]);
		if (!isnan(lay->usual[i]))
			sorted[n++] = lay->usual[i];
	}
	qsort(sorted, n, sizeof(*sorted), by_double);
	for (i = 0; i < lay->places && n; i++)
		lay->is_short[i] = n >= SPIKE_PLACES && lay->usual[i] < sorted[n / 2];
	ret = 0;
out:
	free(samples);
	free(counts);
	free(sorted);
	return ret;
}

static void sum_ways(struct loc_rank *r, const struct layout *lay, const struct placed *placed, const float *ways)
{
	double usual = 0, usual_short = 0;
	float *seen = calloc(r->cells_count, sizeof(*seen));
	float *seen_short = calloc(r->cells_count, sizeof(*seen_short));
	float *longest = calloc(r->cells_count, sizeof(*longest));
	float *second = calloc(r->cells_count, sizeof(*second));
	size_t i;

	if (!seen || !seen_short || !longest || !second)
		goto out;
	for (i = 0; lay->regular && i < lay->places; i++) {
		usual += isnan(lay->usual[i]) ? 0 : lay->usual[i];
		usual_short += lay->is_short[i] && !isnan(lay->usual[i]) ? lay->usual[i] : 0;
	}
	for (i = 0; i < r->ops_count; i++) {
		struct loc_cell *cell;
		float above;

		if (isnan(ways[i]))
			continue;
		cell = &r->cells[placed[i].cell];
		cell->own = isnan(cell->own) ? ways[i] : cell->own + ways[i];
		if (!lay->regular)
			continue;
		above = ways[i] - (float)lay->usual[placed[i].place];
		if (above > longest[placed[i].cell]) {
			second[placed[i].cell] = longest[placed[i].cell];
			longest[placed[i].cell] = above;
		} else if (above > second[placed[i].cell]) {
			second[placed[i].cell] = above;
		}
		seen[placed[i].cell] += (float)lay->usual[placed[i].place];
		if (!lay->is_short[placed[i].place])
			continue;
		cell->own_short = isnan(cell->own_short) ? ways[i] : cell->own_short + ways[i];
		seen_short[placed[i].cell] += (float)lay->usual[placed[i].place];
	}
	/* what was lost is taken as usual; a step of which much is missing is unknown */
	for (i = 0; lay->regular && i < r->cells_count; i++) {
		if (seen[i] < COMPLETE_SHARE * usual)
			r->cells[i].own = r->cells[i].own_short = NAN;
		else
			r->cells[i].own += (float)(usual - seen[i]);
		r->cells[i].own_short = usual_short > 0 ? r->cells[i].own_short + (float)(usual_short - seen_short[i])
							: NAN;
		if (lay->places >= SPIKE_PLACES)
			r->cells[i].spike = longest[i] - second[i];
	}
out:
	free(longest);
	free(second);
	free(seen);
	free(seen_short);
}

/* ---- what the rank gives to its groups ------------------------------------------------------------------------------ */

static int add_link(struct loc_rank *r, const struct loc_op *op, uint32_t step, size_t place)
{
	struct loc_links *links = &r->links;

	if (!op->end_ns || place >= LOC_PLACES || (links->group && links->group != op->group))
		return 0;
	if (links->count == links->room) {
		size_t room = links->room ? 2 * links->room : 256;
		void *more = reallocarray(links->ops, room, sizeof(*links->ops));

		if (!more)
			return -ENOMEM;
		links->ops = more;
		links->room = room;
	}
	links->group = op->group;
	links->name = op->name;
	links->ops[links->count++] = (struct loc_link_op){
		.index = step * LOC_PLACES + (uint32_t)place,
		.begin_ns = op->begin_ns,
		.end_ns = op->end_ns,
	};
	return 0;
}

static int give_to_groups(struct loc_rank *r, const struct layout *lay, const struct placed *placed)
{
	struct {
		uint32_t group;
		uint32_t place;
	} counts[64];
	size_t used = 0, i, k, place;
	uint32_t cell = NO_STEP;
	int ret = 0;

	for (i = 0; i < r->ops_count && !ret; i++) {
		const struct placed *p = &placed[i];
		const struct loc_op *op = p->op;
		struct loc_group *group = loc_group_get(r->loc, op->group);

		if (!group)
			return -ENOMEM;
		ret = loc_group_join(group, r->rank, p->cell != NO_STEP);
		group->op = op->name;
		group->count = op->count;
		group->pairwise |= op->pairwise;
		if (ret || p->cell == NO_STEP)
			continue;
		if (p->cell != cell)
			used = 0;
		cell = p->cell;
		for (k = 0; k < used && counts[k].group != op->group; k++)
			;
		if (k == used && used < 64) {
			counts[used].group = op->group;
			counts[used++].place = 0;
		}
		place = k < 64 ? counts[k].place++ : LOC_PLACES;
		if (lay->regular)
			place = lay->group_place[p->place];
		if (op->end_ns)
			ret = loc_group_transfer(group, r->first_step + p->cell, place,
						 (float)((double)(op->end_ns - op->begin_ns) / 1e6));
		if (!ret && op->pairwise)
			ret = add_link(r, op, r->first_step + p->cell, place);
	}
	return ret;
}

static uint32_t group_at(const struct loc_rank *r, const struct layout *lay, uint64_t at, bool *main_stream)
{
	size_t place = (at - (uint64_t)r->first_step * lay->places - 1) % lay->places;

	*main_stream = !isnan(lay->usual[place]);
	return lay->group[place];
}

/* How far the rank came on the device, and which ops the host issued beyond: where their begin was lost, or has not been
 * written yet, those are what it waits in. A step that hangs has no cell yet, but its operations are counted on. */
static void note_progress(struct loc_rank *r, const struct layout *lay, const struct placed *placed)
{
	uint64_t base = (uint64_t)r->first_step * lay->places - lay->anchor + 1, next;
	bool main_stream = false, ended = false;
	size_t i;

	for (i = 0; i < r->ops_count; i++) {
		const struct placed *p = &placed[i];
		uint64_t at = lay->regular ? base + p->op->serial : i + 1;

		ended |= p->op->serial == r->issued && p->op->end_ns;
		if ((int64_t)at < (int64_t)r->progress || p->op->stream != lay->main_stream)
			continue;
		r->progress = at;
		r->last_op = p->op->name;
		r->last_serial = p->op->serial;
		r->pending = p->op->end_ns ? 0 : p->op->group;
	}
	if (!lay->regular || !r->issued)
		return;
	r->issued_at = base + r->issued;
	for (next = r->progress + 1; !main_stream && (int64_t)next <= (int64_t)r->issued_at; next++)
		r->issue[0] = (struct loc_issue){ next, group_at(r, lay, next, &main_stream) };
	if (!main_stream) /* all of them are of other streams */
		r->issue[0].group = 0;
	if (!ended)
		r->issue[1] = (struct loc_issue){ r->issued_at, group_at(r, lay, r->issued_at, &main_stream) };
}

/* A rank without single calls: own time is what its sums of collectives leave over */
static void own_from_sums(struct loc_rank *r)
{
	size_t i;

	for (i = 0; i < r->cells_count; i++) {
		struct loc_cell *c = &r->cells[i];
		float load = isnan(c->load) ? 0 : c->load;

		if (isnan(c->own) && c->ms > 0 && r->sums[i] > 0)
			c->own = fmaxf(0, c->ms - r->sums[i] - load - c->ckpt);
	}
}

static int digest_ops(struct loc_rank *r)
{
	struct layout lay = { .main_stream = busiest_stream(r) };
	struct placed *placed = malloc(r->ops_count * sizeof(*placed));
	uint64_t *first = calloc(r->cells_count + 1, sizeof(*first));
	float *ways = malloc(r->ops_count * sizeof(*ways));
	uint32_t *before = NULL;
	size_t sorted;
	int ret = -ENOMEM;

	if (!placed || !first || !ways)
		goto out;
	for (sorted = 1; sorted < r->ops_count && by_serial(&r->ops[sorted - 1], &r->ops[sorted]) <= 0; sorted++)
		;
	if (sorted < r->ops_count)
		qsort(r->ops, r->ops_count, sizeof(r->ops[0]), by_serial);
	find_layout(r, &lay, first);
	place_all(r, &lay, placed);
	if (lay.regular) {
		lay.usual = calloc(lay.places, sizeof(*lay.usual));
		lay.is_short = calloc(lay.places, sizeof(*lay.is_short));
		lay.group_place = calloc(lay.places, sizeof(*lay.group_place));
		lay.group = calloc(lay.places, sizeof(*lay.group));
		before = calloc(lay.places, sizeof(*before));
		if (!lay.usual || !lay.is_short || !lay.group_place || !lay.group || !before)
			goto out;
		ret = find_before(r, &lay, placed, before);
		if (ret < 0)
			goto out;
	}
	measure_ways(r, &lay, placed, before, ways);
	ret = lay.regular ? find_usual(r, &lay, placed, ways) : 0;
	if (ret < 0)
		goto out;
	sum_ways(r, &lay, placed, ways);
	ret = give_to_groups(r, &lay, placed);
	note_progress(r, &lay, placed);
out:
	free(placed);
	free(first);
	free(ways);
	free(before);
	free(lay.usual);
	free(lay.is_short);
	free(lay.group);
	free(lay.group_place);
	return ret;
}

int loc_rank_done(struct loc_rank *r)
{
	int ret = 0;

	if (r->done)
		return 0;
	r->done = true;
	if (r->ops_count && r->cells_count)
		ret = digest_ops(r);
	if (!ret && r->sums)
		own_from_sums(r);
	free(r->ops);
	free(r->load_end);
	free(r->sums);
	r->ops = NULL;
	r->load_end = NULL;
	r->sums = NULL;
	r->ops_count = r->ops_room = 0;
	return ret;
}
