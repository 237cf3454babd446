/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The network: transfer times of groups and of pipeline links, without any waiting for a late member. A group's transfer
 * is the shortest duration among its members; a link's is the end minus the last arrival, for which the clocks of
 * neighbours are aligned by two-way bounds as NTP does.
 */
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR_COMM 0.012 /* of the step */
#define RATIO_COMM 0.6 /* of the reference */
#define NOISE_COMM 6.0
#define MIN_PEERS 3
#define OWN_QUANTILE 0.2
#define CLOCK_TOLERANCE_NS 2000000 /* bounds this near to the offset confirm it */
#define CLOCK_WINDOW \
	4 /* steps judged with one clock offset: fewer than make a window's median, should a clock be set in them */

/** struct line - a group or a link, and its transfer per step */
struct line {
	uint32_t group, op;
	int32_t a, b; /* link: its two ranks; group: -1 */
	uint64_t likeness; /* equal for lines that should be equally fast */
	double *ms; /* per step of the grid */
};

static bool is_off(const struct localize *loc)
{
	return loc->options.off_kinds & (1u << LOC_COMM);
}

/* Excess over the peers where there are enough of them, else over the line's own quick steps */
static void fill_excess(const struct localize *loc, const struct line *lines, size_t count, size_t at, double *excess,
			double *scratch)
{
	size_t peers = 0, k, s, known;
	double own;

	for (k = 0; k < count; k++)
		peers += lines[k].likeness == lines[at].likeness;
	for (s = known = 0; s < loc->steps; s++)
		if (!isnan(lines[at].ms[s]))
			scratch[known++] = lines[at].ms[s];
	own = known ? stat_quantile(scratch, known, OWN_QUANTILE) : NAN;

	for (s = 0; s < loc->steps; s++) {
		double ref = own, extra;

		for (k = known = 0; k < count && peers > MIN_PEERS; k++)
			if (lines[k].likeness == lines[at].likeness && !isnan(lines[k].ms[s]))
				scratch[known++] = lines[k].ms[s];
		if (known > MIN_PEERS)
			ref = stat_median(scratch, known);
		extra = lines[at].ms[s] - ref;
		excess[s] = extra > RATIO_COMM * ref || isnan(extra) ? extra / loc->step_ms
								     : fmin(0, extra) / loc->step_ms;
	}
}

static int accuse(struct localize *loc, const struct line *line, const struct loc_hit *hit)
{
	struct loc_finding f = {
		.kind = LOC_COMM,
		.onset_step = loc->first + (uint32_t)hit->onset,
		.detected_step = loc->first + (uint32_t)hit->detected,
		.last_step = loc->first + (uint32_t)hit->last,
		.lost_ms = hit->share * loc->step_ms,
		.share = hit->share,
		.group = line->group,
		.op = line->op,
	};
	const struct loc_group *group = loc_group_find(loc, line->group);
	int32_t pair[2] = { line->a, line->b };
	const int32_t *members = line->a >= 0 ? pair : group->members;
	size_t count = line->a >= 0 ? 2 : group->members_count;
	size_t i;
	int ret = 0;

	for (i = 0; i < count && !ret; i++) {
		f.rank = members[i];
		ret = loc_find(loc, &f);
	}
	return ret;
}

static int judge_lines(struct localize *loc, const struct line *lines, size_t count)
{
	struct loc_scan scan = {
		.subjects = count, .steps = loc->steps, .floor = FLOOR_COMM, .noise_factor = NOISE_COMM
	};
	size_t longest = count > loc->steps ? count : loc->steps;
	struct loc_hit *hits = calloc(count + 1, sizeof(*hits));
	double *scratch = malloc((longest + 1) * sizeof(*scratch));
	size_t i;
	int ret = -ENOMEM;

	scan.excess = loc_grid_new(count, loc->steps);
	if (!hits || !scratch || !scan.excess)
		goto out;
	for (i = 0; i < count; i++)
		fill_excess(loc, lines, count, i, scan.excess[i], scratch);
	ret = loc_scan_run(&scan, hits);
	for (i = 0; i < count && !ret; i++)
		if (hits[i].hit)
			ret = accuse(loc, &lines[i], &hits[i]);
out:
	loc_grid_free(scan.excess);
	free(hits);
	free(scratch);
	return ret;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

/* A step's transfers: the mean of those that every member was seen in, times the places there are. Where one is missing,
 * the shortest duration may hold the waiting for that very member. */
static double transfer_of(const struct loc_group *group, uint32_t step)
{
	double sum = 0;
	size_t k, at, known = 0;

	if (step < group->base || step - group->base >= group->steps)
		return NAN;
	at = (step - group->base) * group->stride;
	for (k = 0; k < group->places && k < group->stride; k++, at++) {
		if (isnan(group->transfer[at]) || group->seen[at] < group->members_count)
			continue;
		sum += group->transfer[at];
		known++;
	}
	return 4 * known > group->places ? sum / (double)known * group->places : NAN;
}

/* Ranks are missing, and no like group shows that this one is whole: one that was not recorded may be the one waited for */
static bool is_incomplete(const struct localize *loc, const struct loc_group *group)
{
	bool missing = loc_comparable(loc) < loc->ranks_count || loc->ranks_count < loc->world;
	size_t i, equal = 0;

	for (i = 0; missing && i < loc->groups_count; i++) {
		const struct loc_group *other = &loc->groups[i];

		if (other->op != group->op || other->places != group->places)
			continue;
		if (other->members_count > group->members_count)
			return true;
		equal += other->members_count == group->members_count;
	}
	return missing && equal < 2;
}

static bool is_line(const struct localize *loc, const struct loc_group *group)
{
	if (group->members_count < 2 || !group->places || 2 * group->steps < loc->steps || is_incomplete(loc, group))
		return false;
	/* pairwise groups of more than two are looked at link by link */
	return !group->pairwise || group->members_count == 2;
}

/* Ranks of one host share its clock; a rank whose host is not known has a clock of its own */
static uint32_t host_of(const struct loc_rank *r)
{
	return r->ip ? r->ip : r->host ? r->host : UINT32_MAX - (uint32_t)r->rank;
}

/* How often the next member lies on another host: groups within a host and across hosts are not equally fast */
static uint64_t host_changes(const struct localize *loc, const struct loc_group *group)
{
	const struct loc_rank *last = loc_rank_by_number(loc, group->members[0]);
	uint64_t changes = 0;
	size_t i;

	for (i = 1; i < group->members_count; i++) {
		const struct loc_rank *r = loc_rank_by_number(loc, group->members[i]);

		changes += r && last && host_of(r) != host_of(last);
		last = r;
	}
	return changes;
}

int loc_judge_groups(struct localize *loc)
{
	double **grid = loc_grid_new(loc->groups_count, loc->steps);
	struct line *lines = calloc(loc->groups_count + 1, sizeof(*lines));
	size_t i, s, count = 0;
	int ret = grid && lines ? 0 : -ENOMEM;

	for (i = 0; !ret && i < loc->groups_count; i++) {
		const struct loc_group *g = &loc->groups[i];

		if (is_off(loc) || !(loc->step_ms > 0) || !is_line(loc, g))
			continue;
		lines[count] = (struct line){
			.group = g->name,
			.op = g->op,
			.a = -1,
			.b = -1,
			.likeness = (host_changes(loc, g) << 56) ^ ((uint64_t)g->members_count << 40) ^
				    ((uint64_t)g->places << 32) ^ g->op,
			.ms = grid[count],
		};
		if (g->pairwise) {
			lines[count].a = g->members[0];
			lines[count].b = g->members[1];
		}
		for (s = 0; s < loc->steps; s++)
			grid[count][s] = transfer_of(g, loc->first + (uint32_t)s);
		count++;
	}
	if (!ret)
		ret = judge_lines(loc, lines, count);
	loc_grid_free(grid);
	free(lines);
	return ret;
}

/* ---- links ---------------------------------------------------------------------------------------------------------- */

static const struct loc_link_op *op_at(const struct loc_links *links, uint32_t index, size_t *hint)
{
	while (*hint < links->count && links->ops[*hint].index < index)
		++*hint;
	while (*hint > 0 && (*hint == links->count || links->ops[*hint].index > index))
		--*hint;
	return *hint < links->count && links->ops[*hint].index == index ? &links->ops[*hint] : NULL;
}

/** struct host_pair - two hosts and what the exchanges of all links between them say of their clocks */
struct host_pair {
	uint32_t left, right;
	int64_t ahead, behind; /* shortest end on the right minus begin on the left, and the other way round */
	int64_t offset; /* clock of the right one minus clock of the left, as last known */
	int64_t low, high; /* now it lies between these */
	int64_t slack_ahead, slack_behind; /* transfer alone: what the closest bounds were beyond the offset */
	bool known;
};

struct host_pairs {
	struct host_pair *list;
	size_t count;
};

/** struct chain - the ranks of one pipeline group in order; neighbours exchange */
struct chain {
	const struct loc_group *group;
	const struct loc_rank **ranks;
	size_t count; /* 0 = unusable: a gap would make neighbours of strangers */
	size_t *pair; /* [neighbours]: their hosts in host_pairs */
	double **transfer; /* [neighbours]: per step of the grid */
	size_t *hints; /* per rank: where the last exchange was found */
	double *ms; /* scratch */
};

static size_t find_pair(struct host_pairs *pairs, uint32_t left, uint32_t right)
{
	size_t i;

	for (i = 0; i < pairs->count; i++)
		if (pairs->list[i].left == left && pairs->list[i].right == right)
			return i;
	pairs->list[pairs->count++] = (struct host_pair){ .left = left, .right = right };
	return i;
}

static size_t first_from(const struct loc_links *links, uint32_t index)
{
	size_t low = 0, high = links->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (links->ops[mid].index < index)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Each end lies behind the other's begin: the closest of these bound the offset of the two clocks */
static void bound_clocks(const struct chain *c, size_t at, uint32_t from, uint32_t to, struct host_pair *pair)
{
	const struct loc_links *left = &c->ranks[at]->links, *right = &c->ranks[at + 1]->links;
	size_t i, hint = 0;

	for (i = first_from(left, from); i < left->count && left->ops[i].index < to; i++) {
		const struct loc_link_op *x = &left->ops[i], *y = op_at(right, x->index, &hint);

		if (!y)
			continue;
		if (y->end_ns - x->begin_ns < pair->ahead)
			pair->ahead = y->end_ns - x->begin_ns;
		if (x->end_ns - y->begin_ns < pair->behind)
			pair->behind = x->end_ns - y->begin_ns;
	}
}

/*
 * The bounds lie beyond the offset by the transfer alone as long as each side sometimes arrives last, and by the waiting
 * too once one side always does. While one of them is where it usually is, the offset is known and follows it. Where none
 * is, one side may be waiting or a clock may have been set: then all between the bounds is possible.
 */
static void settle_pair(struct host_pair *p)
{
	int64_t low = p->slack_behind - p->behind, high = p->ahead - p->slack_ahead;

	if (!p->known || low > high) {
		p->offset = !p->known ? (p->ahead - p->behind) / 2 : (low + high) / 2;
		p->slack_ahead = p->ahead - p->offset;
		p->slack_behind = p->behind + p->offset;
	} else if (llabs(p->offset - low) <= CLOCK_TOLERANCE_NS || llabs(p->offset - high) <= CLOCK_TOLERANCE_NS) {
		p->offset = p->offset < low ? low : p->offset > high ? high : p->offset;
		if (p->ahead - p->offset < p->slack_ahead)
			p->slack_ahead = p->ahead - p->offset;
		if (p->behind + p->offset < p->slack_behind)
			p->slack_behind = p->behind + p->offset;
	} else {
		p->low = low;
		p->high = high;
		return;
	}
	p->low = p->high = p->offset;
	p->known = true;
}

static void settle_clocks(struct host_pairs *pairs)
{
	size_t i;

	for (i = 0; i < pairs->count; i++)
		if (pairs->list[i].left != pairs->list[i].right && pairs->list[i].ahead != INT64_MAX)
			settle_pair(&pairs->list[i]);
}

/* One exchange on a rank: its end minus the last arrival among it and its neighbours, NAN if one is missing. Where the
 * clocks are not known exactly an arrival counts as late as it can have been: nobody is accused for that. */
static double exchange_ms(const struct chain *c, const struct host_pairs *pairs, size_t at, uint32_t index)
{
	const struct loc_link_op *mine = op_at(&c->ranks[at]->links, index, &c->hints[at]), *other;
	int64_t last, begin;

	if (!mine)
		return NAN;
	last = mine->begin_ns;
	if (at > 0) {
		other = op_at(&c->ranks[at - 1]->links, index, &c->hints[at - 1]);
		if (!other)
			return NAN;
		begin = other->begin_ns + pairs->list[c->pair[at - 1]].high;
		last = begin > last ? begin : last;
	}
	if (at + 1 < c->count) {
		other = op_at(&c->ranks[at + 1]->links, index, &c->hints[at + 1]);
		if (!other)
			return NAN;
		begin = other->begin_ns - pairs->list[c->pair[at]].low;
		last = begin > last ? begin : last;
	}
	return (double)(mine->end_ns - last) / 1e6;
}

/* A link's transfer is what both its ends saw */
static void add_exchange(const struct localize *loc, const struct chain *c, const struct host_pairs *pairs,
			 uint32_t index)
{
	size_t step = index / LOC_PLACES - loc->first;
	size_t i;

	for (i = 0; i < c->count; i++)
		c->ms[i] = exchange_ms(c, pairs, i, index);
	for (i = 0; i + 1 < c->count; i++) {
		double x = fmin(c->ms[i], c->ms[i + 1]);

		if (isnan(c->ms[i]) || isnan(c->ms[i + 1]))
			continue;
		c->transfer[i][step] = isnan(c->transfer[i][step]) ? x : c->transfer[i][step] + x;
	}
}

static void measure_window(const struct localize *loc, struct chain *chains, size_t count, struct host_pairs *pairs,
			   uint32_t from, uint32_t to)
{
	size_t k, i;

	for (i = 0; i < pairs->count; i++)
		pairs->list[i].ahead = pairs->list[i].behind = INT64_MAX;
	for (k = 0; k < count; k++)
		for (i = 0; i + 1 < chains[k].count; i++)
			bound_clocks(&chains[k], i, from, to, &pairs->list[chains[k].pair[i]]);
	settle_clocks(pairs);
	for (k = 0; k < count; k++) {
		const struct loc_links *lead = chains[k].count ? &chains[k].ranks[0]->links : NULL;

		for (i = lead ? first_from(lead, from) : 0; lead && i < lead->count && lead->ops[i].index < to; i++)
			add_exchange(loc, &chains[k], pairs, lead->ops[i].index);
	}
}

static void chain_fini(struct chain *c)
{
	free(c->ranks);
	free(c->pair);
	free(c->hints);
	free(c->ms);
}

static int chain_init(const struct localize *loc, struct chain *c, const struct loc_group *group, double **transfer,
		      struct host_pairs *pairs)
{
	size_t n = group->members_count, i;

	*c = (struct chain){ .group = group, .transfer = transfer };
	c->ranks = calloc(n, sizeof(struct loc_rank *));
	c->pair = calloc(n, sizeof(*c->pair));
	c->hints = calloc(n, sizeof(*c->hints));
	c->ms = calloc(n, sizeof(*c->ms));
	if (!c->ranks || !c->pair || !c->hints || !c->ms)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		c->ranks[i] = loc_rank_by_number(loc, group->members[i]);
		if (!c->ranks[i] || c->ranks[i]->links.group != group->name)
			return 0;
	}
	for (i = 0; i + 1 < n; i++)
		c->pair[i] = find_pair(pairs, host_of(c->ranks[i]), host_of(c->ranks[i + 1]));
	c->count = n;
	return 0;
}

static int judge_chains(struct localize *loc, struct chain *chains, size_t count, struct host_pairs *pairs,
			struct line *lines)
{
	size_t s, k, i, used = 0;

	for (s = 0; s < loc->steps; s += CLOCK_WINDOW) {
		size_t end = s + CLOCK_WINDOW < loc->steps ? s + CLOCK_WINDOW : loc->steps;

		measure_window(loc, chains, count, pairs, (uint32_t)(loc->first + s) * LOC_PLACES,
			       (uint32_t)(loc->first + end) * LOC_PLACES);
	}
	for (k = 0; k < count; k++)
		for (i = 0; i + 1 < chains[k].count; i++)
			lines[used++] = (struct line){
				.group = chains[k].group->name,
				.op = chains[k].group->op,
				.a = chains[k].ranks[i]->rank,
				.b = chains[k].ranks[i + 1]->rank,
				.likeness = ((uint64_t)(host_of(chains[k].ranks[i]) != host_of(chains[k].ranks[i + 1]))
					     << 32) ^
					    chains[k].group->op,
				.ms = chains[k].transfer[i],
			};
	return judge_lines(loc, lines, used);
}

int loc_judge_links(struct localize *loc)
{
	struct host_pairs pairs = { 0 };
	struct chain *chains;
	struct line *lines;
	double **grid = NULL;
	size_t i, total = 0, count = 0, used = 0;
	int ret = 0;

	for (i = 0; i < loc->groups_count; i++)
		if (loc->groups[i].pairwise && loc->groups[i].members_count > 2)
			total += loc->groups[i].members_count - 1;
	if (is_off(loc) || !total || !(loc->step_ms > 0))
		return 0;
	chains = calloc(loc->groups_count, sizeof(*chains));
	lines = calloc(total, sizeof(*lines));
	pairs.list = calloc(total, sizeof(*pairs.list));
	grid = loc_grid_new(total, loc->steps);
	if (!lines || !grid || !pairs.list || !chains)
		ret = -ENOMEM;
	for (i = 0; !ret && i < loc->groups_count; i++) {
		if (!loc->groups[i].pairwise || loc->groups[i].members_count <= 2)
			continue;
		ret = chain_init(loc, &chains[count++], &loc->groups[i], grid + used, &pairs);
		used += loc->groups[i].members_count - 1;
	}
	if (!ret)
		ret = judge_chains(loc, chains, count, &pairs, lines);
	for (i = 0; i < count; i++)
		chain_fini(&chains[i]);
	free(chains);
	free(lines);
	free(pairs.list);
	loc_grid_free(grid);
	return ret;
}
