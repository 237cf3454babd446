/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The localiser's containers: ranks, groups and their members, findings, and the order in which the judges of
 * localize_*.c are asked. What a rank's records mean is localize_rank.c's business.
 */
#include "analyze/localize.h"
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRIDE_START 4
#define EXPLAINED_SHARE 0.8
#define LEAD_STEPS 256 /* looked at before the first step that was asked for */
#define MIN_STEPS 8 /* fewer common steps are no basis */

const char *loc_kind_word(enum loc_kind kind)
{
	static const char *const words[LOC_KINDS] = { "compute", "launch", "comm", "dataloader", "ckpt", "hang" };

	return words[kind];
}

struct localize *localize_new(const struct loc_options *options)
{
	struct localize *loc = calloc(1, sizeof(*loc));

	if (loc)
		loc->options = *options;
	return loc;
}

static void rank_free(struct loc_rank *rank)
{
	free(rank->cells);
	free(rank->load_end);
	free(rank->sums);
	free(rank->ops);
	free(rank->links.ops);
	free(rank);
}

void localize_free(struct localize *loc)
{
	size_t i;

	if (!loc)
		return;
	for (i = 0; i < loc->ranks_count; i++)
		rank_free(loc->ranks[i]);
	for (i = 0; i < loc->groups_count; i++) {
		free(loc->groups[i].members);
		free(loc->groups[i].meets);
		free(loc->groups[i].transfer);
		free(loc->groups[i].seen);
	}
	free(loc->ranks);
	free(loc->groups);
	free(loc->group_slots);
	free(loc->findings);
	free(loc->scale);
	free(loc);
}

/* Make room for one more in an array that doubles at powers of two. Return: the array, NULL when out of memory. */
static void *room_for_one(void *array, size_t count, size_t size)
{
	if (count & (count - 1))
		return array;
	return reallocarray(array, count ? 2 * count : 1, size);
}

/* ---- ranks ---------------------------------------------------------------------------------------------------------- */

struct loc_rank *loc_rank_by_number(const struct localize *loc, int32_t rank)
{
	size_t i;

	/* ranks are mostly asked for in rising order without gaps */
	if (rank >= 0 && (size_t)rank < loc->ranks_count && loc->ranks[rank]->rank == rank)
		return loc->ranks[rank];
	for (i = 0; i < loc->ranks_count; i++)
		if (loc->ranks[i]->rank == rank)
			return loc->ranks[i];
	return NULL;
}

struct loc_rank *localize_rank(struct localize *loc, int32_t rank, uint32_t host, uint32_t ip)
{
	struct loc_rank *r = loc_rank_by_number(loc, rank);
	void *more;

	if (!r) {
		more = room_for_one(loc->ranks, loc->ranks_count, sizeof(struct loc_rank *));
		if (!more)
			return NULL;
		loc->ranks = more;
		r = calloc(1, sizeof(*r));
		if (!r)
			return NULL;
		*r = (struct loc_rank){ .loc = loc, .rank = rank };
		loc->ranks[loc->ranks_count++] = r;
	}
	if (host)
		r->host = host;
	if (ip)
		r->ip = ip;
	return r;
}

void localize_stacks(struct localize *loc, size_t finding, const struct loc_stacks *stacks)
{
	loc->findings[finding].stacks = *stacks;
}

bool localize_rank_at(const struct localize *loc, size_t index, int32_t *rank, uint32_t *host, uint32_t *ip)
{
	if (index >= loc->ranks_count)
		return false;
	*rank = loc->ranks[index]->rank;
	*host = loc->ranks[index]->host;
	*ip = loc->ranks[index]->ip;
	return true;
}

void localize_world(struct localize *loc, uint32_t world_size)
{
	if (world_size > loc->world)
		loc->world = world_size;
}

const struct loc_cell *loc_cell_at(const struct loc_rank *rank, uint32_t step)
{
	if (step < rank->first_step || step - rank->first_step >= rank->cells_count)
		return NULL;
	return &rank->cells[step - rank->first_step];
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static size_t slot_of(const struct localize *loc, uint32_t name)
{
	size_t mask = loc->group_slots_count - 1;
	size_t slot = (name * 2654435761u) & mask;

	while (loc->group_slots[slot] && loc->groups[loc->group_slots[slot] - 1].name != name)
		slot = (slot + 1) & mask;
	return slot;
}

struct loc_group *loc_group_find(const struct localize *loc, uint32_t name)
{
	uint32_t index = loc->group_slots_count ? loc->group_slots[slot_of(loc, name)] : 0;

	return index ? &loc->groups[index - 1] : NULL;
}

static int grow_slots(struct localize *loc)
{
	size_t count = loc->group_slots_count ? 2 * loc->group_slots_count : 64;
	uint32_t *slots = calloc(count, sizeof(*slots));
	size_t i;

	if (!slots)
		return -ENOMEM;
	free(loc->group_slots);
	loc->group_slots = slots;
	loc->group_slots_count = count;
	for (i = 0; i < loc->groups_count; i++)
		slots[slot_of(loc, loc->groups[i].name)] = (uint32_t)i + 1;
	return 0;
}

struct loc_group *loc_group_get(struct localize *loc, uint32_t name)
{
	struct loc_group *group = loc_group_find(loc, name);
	void *more;

	if (group)
		return group;
	if (2 * (loc->groups_count + 1) > loc->group_slots_count && grow_slots(loc) < 0)
		return NULL;
	more = room_for_one(loc->groups, loc->groups_count, sizeof(*group));
	if (!more)
		return NULL;
	loc->groups = more;
	group = &loc->groups[loc->groups_count++];
	*group = (struct loc_group){ .name = name };
	loc->group_slots[slot_of(loc, name)] = (uint32_t)loc->groups_count;
	return group;
}

int loc_group_join(struct loc_group *group, int32_t rank, uint64_t calls)
{
	size_t i;
	void *more;

	for (i = group->members_count; i > 0; i--) {
		if (group->members[i - 1] == rank) {
			group->meets[i - 1] += calls;
			return 0;
		}
	}
	more = room_for_one(group->members, group->members_count, sizeof(*group->members));
	if (!more)
		return -ENOMEM;
	group->members = more;
	more = room_for_one(group->meets, group->members_count, sizeof(*group->meets));
	if (!more)
		return -ENOMEM;
	group->meets = more;
	group->members[group->members_count] = rank;
	group->meets[group->members_count++] = calls;
	return 0;
}

/* Give the group's table of transfers room for this step and place */
static int transfer_room(struct loc_group *group, uint32_t step, size_t place)
{
	size_t stride = group->stride ? group->stride : STRIDE_START;
	size_t low = group->steps ? group->base : step;
	size_t steps, old_step, i;
	uint16_t *seen;
	float *table;

	while (place >= stride)
		stride *= 2;
	if (step < low)
		low = step;
	steps = (group->steps ? group->base + group->steps : low) - low;
	if (step - low >= steps)
		steps = (step - low + 1) + (step - low + 1) / 2 + 16;
	if (stride == group->stride && low == group->base && steps == group->steps)
		return 0;

	table = malloc(steps * stride * sizeof(*table));
	seen = calloc(steps * stride, sizeof(*seen));
	if (!table || !seen) {
		free(table);
		free(seen);
		return -ENOMEM;
	}
	for (i = 0; i < steps * stride; i++)
		table[i] = NAN;
	for (old_step = 0; old_step < group->steps; old_step++) {
		size_t to = (group->base - low + old_step) * stride, from = old_step * group->stride;

		memcpy(table + to, group->transfer + from, group->stride * sizeof(*table));
		memcpy(seen + to, group->seen + from, group->stride * sizeof(*seen));
	}
	free(group->transfer);
	free(group->seen);
	group->transfer = table;
	group->seen = seen;
	group->stride = stride;
	group->steps = steps;
	group->base = (uint32_t)low;
	return 0;
}

int loc_group_transfer(struct loc_group *group, uint32_t step, size_t place, float ms)
{
	float *value;
	size_t at;

	if (place >= LOC_PLACES)
		return 0;
	if (transfer_room(group, step, place) < 0)
		return -ENOMEM;
	at = (step - group->base) * group->stride + place;
	value = &group->transfer[at];
	group->seen[at]++;
	if (!(*value <= ms))
		*value = ms;
	if (place + 1 > group->places)
		group->places = (uint32_t)place + 1;
	return 0;
}

size_t localize_peers(const struct localize *loc, uint32_t name, const int32_t **ranks)
{
	struct loc_group *group = name ? loc_group_find(loc, name) : NULL;

	*ranks = group ? group->members : NULL;
	return group ? group->members_count : 0;
}

/* ---- verdict -------------------------------------------------------------------------------------------------------- */

int loc_find(struct localize *loc, const struct loc_finding *finding)
{
	void *more = room_for_one(loc->findings, loc->findings_count, sizeof(*finding));

	if (!more)
		return -ENOMEM;
	loc->findings = more;
	loc->findings[loc->findings_count] = *finding;
	loc->findings[loc->findings_count++].onset_ns = 0;
	return 0;
}

static int by_rank(const void *a, const void *b)
{
	const struct loc_rank *const *x = a, *const *y = b;

	return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

static int by_number(const void *a, const void *b)
{
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return (x > y) - (x < y);
}

static void sort_all(struct localize *loc)
{
	size_t i;

	if (loc->ranks_count)
		qsort(loc->ranks, loc->ranks_count, sizeof(loc->ranks[0]), by_rank);
	/* meets are of no use once each rank knows its inner group: only the members' order matters from here on */
	for (i = 0; i < loc->groups_count; i++)
		if (loc->groups[i].members_count)
			qsort(loc->groups[i].members, loc->groups[i].members_count, sizeof(int32_t), by_number);
}

/* The grid: all steps that any rank has and the options ask for; step_ms: median over ranks and steps */
static int lay_grid(struct localize *loc)
{
	uint32_t low = UINT32_MAX, high = 0, lead;
	size_t i, k, count = 0, total = 0;
	double *values;

	for (i = 0; i < loc->ranks_count; i++) {
		const struct loc_rank *r = loc->ranks[i];

		if (r->last_ns > loc->end_ns)
			loc->end_ns = r->last_ns;
		if (!r->cells_count)
			continue;
		low = r->first_step < low ? r->first_step : low;
		k = r->first_step + r->cells_count - 1;
		high = k > high ? (uint32_t)k : high;
		total += r->cells_count < 256 ? r->cells_count : 256;
	}
	if (low > high)
		return 0;
	/* what was usual before helps our own judges */
	lead = loc->options.judge ? 0 : LEAD_STEPS;
	if (loc->options.from_step > low)
		low = loc->options.from_step - low > lead ? loc->options.from_step - lead : low;
	if (loc->options.to_step && loc->options.to_step < high)
		high = loc->options.to_step;
	loc->first = low;
	loc->steps = low <= high ? high - low + 1 : 0;

	values = malloc((total + 1) * sizeof(*values));
	if (!values)
		return -ENOMEM;
	for (i = 0; i < loc->ranks_count; i++) {
		const struct loc_rank *r = loc->ranks[i];
		size_t hop = r->cells_count / 256 + 1;

		for (k = 0; k < r->cells_count && count < total; k += hop)
			if (r->cells[k].ms > 0)
				values[count++] = r->cells[k].ms;
	}
	loc->step_ms = count ? stat_median(values, count) : 0;
	free(values);
	return 0;
}

/* Times of range options are per rank: cells outside of them become unknown */
static void apply_times(struct localize *loc)
{
	const struct loc_options *o = &loc->options;
	size_t i, k;

	if (!o->from_ns && !o->to_ns)
		return;
	for (i = 0; i < loc->ranks_count; i++) {
		struct loc_rank *r = loc->ranks[i];

		for (k = 0; k < r->cells_count; k++) {
			struct loc_cell *c = &r->cells[k];

			if (c->begin_ns < o->from_ns || (o->to_ns && c->begin_ns > o->to_ns))
				c->own = c->own_short = c->load = c->ckpt = NAN;
		}
	}
}

static int by_finding(const void *a, const void *b)
{
	const struct loc_finding *x = a, *y = b;

	if (x->rank != y->rank)
		return (x->rank > y->rank) - (x->rank < y->rank);
	return (int)x->kind - (int)y->kind;
}

/* A late loader makes the first operation late as well: what it explains is not said twice */
static bool is_explained(const struct localize *loc, const struct loc_finding *f)
{
	size_t i;

	for (i = 0; f->kind == LOC_COMPUTE || f->kind == LOC_LAUNCH ? i < loc->findings_count : 0; i++) {
		const struct loc_finding *other = &loc->findings[i];

		if (other->kind == LOC_DATALOADER && other->rank == f->rank &&
		    other->lost_ms >= EXPLAINED_SHARE * f->lost_ms && other->onset_step <= f->last_step &&
		    f->onset_step <= other->last_step)
			return true;
	}
	return false;
}

static void drop_explained(struct localize *loc)
{
	size_t i, kept = 0;

	for (i = 0; i < loc->findings_count; i++)
		if (!is_explained(loc, &loc->findings[i]))
			loc->findings[kept++] = loc->findings[i];
	loc->findings_count = kept;
}

/* Median time of a rank's steps while it was slow, the whole run's if that is not known */
static double slow_step_ms(const struct localize *loc, const struct loc_rank *r, const struct loc_finding *f)
{
	double values[256];
	size_t known = 0;
	uint32_t step, hop = (f->last_step - f->onset_step) / 256 + 1;

	for (step = f->onset_step; step <= f->last_step && known < 256; step += hop) {
		const struct loc_cell *c = loc_cell_at(r, step);

		if (c && c->ms > 0)
			values[known++] = c->ms;
	}
	return known ? stat_median(values, known) : loc->step_ms;
}

/* What had ended before the steps that were asked for */
static void drop_early(struct localize *loc)
{
	size_t i, kept = 0;

	for (i = 0; i < loc->findings_count; i++)
		if (loc->findings[i].last_step >= loc->options.from_step)
			loc->findings[kept++] = loc->findings[i];
	loc->findings_count = kept;
}

static void stamp_findings(struct localize *loc)
{
	size_t i;

	for (i = 0; i < loc->findings_count; i++) {
		struct loc_finding *f = &loc->findings[i];
		const struct loc_rank *r = loc_rank_by_number(loc, f->rank);
		const struct loc_cell *c = r ? loc_cell_at(r, f->onset_step) : NULL;

		f->onset_ns = c ? c->begin_ns : r ? r->last_ns : loc->end_ns;
		if (r && f->kind != LOC_HANG && slow_step_ms(loc, r, f) > 0)
			f->share = fmin(1, f->lost_ms / slow_step_ms(loc, r, f));
	}
	/* another localiser's order is that of its metrics' priorities */
	if (loc->findings_count && !loc->options.judge)
		qsort(loc->findings, loc->findings_count, sizeof(loc->findings[0]), by_finding);
}

size_t loc_comparable(const struct localize *loc)
{
	size_t i, count = 0;

	for (i = 0; i < loc->ranks_count; i++)
		count += loc->ranks[i]->inner != 0;
	return count;
}

static void say_missing(const struct localize *loc, struct loc_result *result)
{
	bool compared = loc_comparable(loc) > 0;
	size_t used = 0, missing = 0;
	uint32_t n;

	for (n = 0; n < loc->world; n++) {
		const struct loc_rank *r = loc_rank_by_number(loc, (int32_t)n);

		if (r && (r->inner || !compared))
			continue;
		if (missing++ < 16 && used < sizeof(result->reason) - 16)
			used += (size_t)snprintf(result->reason + used, sizeof(result->reason) - used, "%s%u",
						 missing == 1 ? "no data of rank " : ", ", n);
	}
	if (missing > 16 && used < sizeof(result->reason))
		snprintf(result->reason + used, sizeof(result->reason) - used, " and %zu more of %u", missing - 16,
			 loc->world);
}

static int decide(struct localize *loc, struct loc_result *result)
{
	size_t i, accused = 0, groups;
	int ret = 0;

	say_missing(loc, result);
	groups = loc_comparable(loc);
	/* a network fault names all members of a group, which may be the whole job */
	for (i = 0; i < loc->findings_count; i++)
		accused += loc->findings[i].kind != LOC_COMM &&
			   (!i || loc->findings[i].rank != loc->findings[i - 1].rank);
	if (loc->findings_count && (2 * accused <= loc->ranks_count || loc->findings[0].kind == LOC_HANG)) {
		result->verdict = LOC_FOUND;
	} else if (loc->findings_count) {
		result->verdict = LOC_CANNOT_TELL;
		snprintf(result->reason, sizeof(result->reason), "several candidates: %zu of %zu ranks look slow",
			 accused, loc->ranks_count);
		loc->findings_count = 0;
	} else if (loc->ranks_count < 2) {
		result->verdict = LOC_CANNOT_TELL;
		snprintf(result->reason, sizeof(result->reason),
			 "there is data of one rank only, and nobody to compare it with");
	} else if (!groups) {
		result->verdict = LOC_CANNOT_TELL;
		snprintf(result->reason, sizeof(result->reason),
			 "no collectives that ranks have in common were recorded");
	} else if (loc->steps < MIN_STEPS) {
		result->verdict = LOC_CANNOT_TELL;
		snprintf(result->reason, sizeof(result->reason), "only %zu steps: at least %d are needed", loc->steps,
			 MIN_STEPS);
	} else if (loc->options.off_kinds) {
		result->verdict = LOC_HEALTHY; /* what was not looked for is not missed */
	} else {
		ret = loc_judge_whole(loc, result->reason, sizeof(result->reason));
		result->verdict = ret > 0 ? LOC_CANNOT_TELL : LOC_HEALTHY;
	}
	return ret < 0 ? ret : 0;
}

/* The value of a cell that a kind is judged by; NAN for none */
static double cell_value(const struct loc_cell *c, enum loc_kind kind)
{
	switch (kind) {
	case LOC_COMPUTE:
	case LOC_LAUNCH:
		return c->own;
	case LOC_COMM:
		return c->ms > 0 && !isnan(c->own) ? c->ms - c->own - (isnan(c->load) ? 0 : c->load) - c->ckpt : NAN;
	case LOC_DATALOADER:
		return c->load;
	case LOC_CKPT:
		return c->ckpt > 0 ? c->ckpt : NAN;
	default:
		return NAN;
	}
}

static size_t own_series(const struct localize *loc, int32_t rank, enum loc_kind kind, struct loc_point **points)
{
	const struct loc_rank *r = loc_rank_by_number(loc, rank);
	size_t i, count = 0;

	*points = r ? malloc((r->cells_count + 1) * sizeof(**points)) : NULL;
	for (i = 0; *points && i < r->cells_count; i++) {
		double value = cell_value(&r->cells[i], kind);

		if (!isnan(value) && r->first_step + i >= loc->first && r->first_step + i < loc->first + loc->steps)
			(*points)[count++] = (struct loc_point){ r->cells[i].begin_ns, value };
	}
	return count;
}

size_t localize_series(const struct localize *loc, int32_t rank, enum loc_kind kind, struct loc_point **points)
{
	const struct loc_point *kept = NULL;
	size_t count;

	if (!loc->options.series)
		return own_series(loc, rank, kind, points);
	count = loc->options.series(loc->options.judge_arg, rank, kind, &kept);
	*points = count ? malloc(count * sizeof(**points)) : NULL;
	if (!*points)
		return 0;
	memcpy(*points, kept, count * sizeof(**points));
	return count;
}

/* The robust localiser's judges, one after the other. Return: 0 or -ENOMEM */
static int ask_judges(struct localize *loc)
{
	static int (*const judges[])(struct localize *) = { loc_judge_hang, loc_judge_stages, loc_judge_compute,
							    loc_judge_groups, loc_judge_links };
	size_t i;
	int ret = 0;

	for (i = 0; i < sizeof(judges) / sizeof(judges[0]) && !ret; i++) {
		ret = judges[i](loc);
		if (!i && loc->findings_count)
			break; /* a job that hangs is not searched for slow ranks */
	}
	drop_explained(loc);
	drop_early(loc);
	return ret;
}

/* Another localiser's findings stand as they are */
static int ask_other(struct localize *loc, struct loc_result *result)
{
	int ret = loc->options.judge(loc, loc->options.judge_arg);

	if (ret < 0)
		return ret;
	say_missing(loc, result);
	result->verdict = loc->findings_count ? LOC_FOUND : ret ? LOC_HEALTHY : LOC_NO_DATA;
	if (result->verdict == LOC_NO_DATA)
		snprintf(result->reason, sizeof(result->reason),
			 "none of the operations that fail_slow_ops names, loader calls or checkpoints was recorded");
	return 0;
}

int localize_judge(struct localize *loc, struct loc_result *result)
{
	int ret;

	*result = (struct loc_result){ .verdict = LOC_NO_DATA };
	ret = loc_find_teams(loc);
	if (ret < 0)
		return ret;
	sort_all(loc);
	ret = lay_grid(loc);
	if (ret < 0)
		return ret;
	if (loc->options.span_ns)
		loc->options.from_ns = loc->end_ns - loc->options.span_ns;
	apply_times(loc);
	if (!loc->ranks_count) {
		snprintf(result->reason, sizeof(result->reason), "no records of any rank");
		return 0;
	}
	loc->findings_count = 0;
	ret = loc->options.judge ? ask_other(loc, result) : ask_judges(loc);
	if (ret < 0)
		return ret;
	stamp_findings(loc);
	ret = loc->options.judge ? 0 : decide(loc, result);
	if (!ret)
		ret = loc_what_if(loc);
	if (ret < 0)
		return ret;
	result->findings = loc->findings;
	result->findings_count = loc->findings_count;
	result->ranks = loc->ranks_count;
	result->first_step = loc->options.from_step > loc->first ? loc->options.from_step : loc->first;
	result->last_step = loc->steps ? loc->first + (uint32_t)loc->steps - 1 : loc->first;
	result->step_ms = loc->step_ms;
	result->end_ns = loc->end_ns;
	return 0;
}
