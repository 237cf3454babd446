/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Ranks against ranks: own time within the group that a rank meets most often, whole groups against groups that do the
 * same work, loader and checkpoint stages against all ranks, and, when the job hangs, who waits for whom.
 */
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR_IN_GROUP 0.014 /* of the step */
#define FLOOR_GROUPS 0.025
#define FLOOR_STAGE 0.015
#define NOISE_IN_GROUP 6.0
#define NOISE_GROUPS 7.0
#define CKPT_RATIO 1.3
#define EVEN_SPLIT 0.5 /* share of a launch fault's excess that falls on the shorter half of the ops */
#define FORWARD_GROWTH 0.04 /* of the forward pass: so much more is noticed whatever else grew */
#define FORWARD_SHARE 0.1 /* of the own time, so that it can tell compute from launch */
#define HANG_MINUTES 30.0

static bool is_off(const struct localize *loc, enum loc_kind kind)
{
	return loc->options.off_kinds & (1u << kind);
}

/* ---- own time: in the group, and group against group ---------------------------------------------------------------- */

/** struct team - ranks with the same inner group */
struct team {
	uint32_t group;
	uint32_t class_of; /* smallest index of a team that does the same work */
	size_t *members; /* indices of ranks */
	size_t count;
};

struct teams {
	struct team *list;
	size_t count;
	size_t *places; /* memory of all members */
};

static void teams_fini(struct teams *teams)
{
	free(teams->list);
	free(teams->places);
}

static int teams_init(const struct localize *loc, struct teams *teams)
{
	size_t i, k, used = 0;

	*teams = (struct teams){ .list = calloc(loc->ranks_count, sizeof(struct team)),
				 .places = malloc(loc->ranks_count * sizeof(size_t)) };
	if (!teams->list || !teams->places) {
		teams_fini(teams);
		return -ENOMEM;
	}
	for (i = 0; i < loc->ranks_count; i++) {
		struct team *team = &teams->list[teams->count];

		if (!loc->ranks[i]->inner)
			continue;
		for (k = 0; k < teams->count && teams->list[k].group != loc->ranks[i]->inner; k++)
			;
		if (k < teams->count)
			continue;
		*team = (struct team){ .group = loc->ranks[i]->inner,
				       .class_of = (uint32_t)k,
				       .members = teams->places + used };
		teams->count++;
		for (k = i; k < loc->ranks_count; k++)
			if (loc->ranks[k]->inner == team->group)
				team->members[team->count++] = k;
		used += team->count;
	}
	return 0;
}

/* Teams that meet in other synchronous groups step after step do the same work */
static void link_classes(const struct localize *loc, struct teams *teams)
{
	size_t g, m, k, i;

	for (g = 0; g < loc->groups_count; g++) {
		const struct loc_group *group = &loc->groups[g];
		uint32_t low = UINT32_MAX;
		uint32_t found[64];
		size_t count = 0;

		if (group->pairwise || group->crosses || group->places == 0 || 2 * (group->steps) < loc->steps)
			continue;
		for (m = 0; m < group->members_count && count < 64; m++) {
			const struct loc_rank *r = loc_rank_by_number(loc, group->members[m]);

			for (k = 0; r && k < teams->count && teams->list[k].group != r->inner; k++)
				;
			if (!r || k == teams->count)
				continue;
			found[count++] = teams->list[k].class_of;
			low = found[count - 1] < low ? found[count - 1] : low;
		}
		for (i = 0; i < count; i++)
			for (k = 0; k < teams->count; k++)
				if (teams->list[k].class_of == found[i])
					teams->list[k].class_of = low;
	}
}

enum part { PART_OWN, PART_SHORT, PART_STEADY, PART_FORWARD };

static float value_at(const struct localize *loc, const struct loc_rank *r, size_t step, enum part part)
{
	const struct loc_cell *cell = loc_cell_at(r, loc->first + (uint32_t)step);

	if (!cell)
		return NAN;
	switch (part) {
	case PART_SHORT:
		return cell->own_short;
	case PART_STEADY:
		return cell->own - cell->spike;
	case PART_FORWARD:
		return cell->forward;
	default:
		return cell->own;
	}
}

/* Reference of a team in one step */
static double team_reference(const struct localize *loc, const struct team *team, size_t step, enum part part,
			     double *scratch)
{
	size_t i;

	for (i = 0; i < team->count; i++)
		scratch[i] = value_at(loc, loc->ranks[team->members[i]], step, part);
	return loc_reference(scratch, team->count);
}

/*
 * A job with few operations a step tells nothing by where they are late. But where the forward pass has none of them, slow
 * computing makes it longer as well, and late launching does not. (Where operations overlap with computing the own time
 * grows by more than what is lost, so that the forward pass is only asked whether it grew.)
 */
static enum loc_kind kind_by_forward(const struct localize *loc, const struct team *team, const struct loc_rank *r,
				     const double *excess, const struct loc_hit *hit, double *scratch)
{
	double extra = 0, extra_forward = 0, own = 0, forward = 0;
	size_t s, i, known;

	for (s = hit->onset; s <= hit->last; s++) {
		double ref = team_reference(loc, team, s, PART_OWN, scratch), mine = value_at(loc, r, s, PART_OWN);
		double mine_forward = value_at(loc, r, s, PART_FORWARD), ref_forward;

		/* the middle, not the low quantile: chance must not look like growth */
		for (i = known = 0; i < team->count; i++) {
			scratch[known] = value_at(loc, loc->ranks[team->members[i]], s, PART_FORWARD);
			known += !isnan(scratch[known]);
		}
		ref_forward = stat_median(scratch, known);

		if (!(excess[s] > hit->share / 2) || isnan(ref + mine + ref_forward + mine_forward))
			continue;
		extra += mine - ref;
		extra_forward += mine_forward - ref_forward;
		own += ref;
		forward += ref_forward;
	}
	if (!(extra > 0) || forward < FORWARD_SHARE * own)
		return LOC_COMPUTE;
	return extra_forward / forward < fmin(extra / own / 4, FORWARD_GROWTH) ? LOC_LAUNCH : LOC_COMPUTE;
}

/* Proportional to the work (compute) or the same before every operation (launch)? */
static enum loc_kind kind_of(const struct localize *loc, const struct team *team, const struct loc_rank *r,
			     const double *excess, const struct loc_hit *hit, double *scratch)
{
	double extra = 0, extra_short = 0, own = 0, own_short = 0, proportional;
	size_t s;

	for (s = hit->onset; s <= hit->last; s++) {
		double ref = team_reference(loc, team, s, PART_OWN, scratch);
		double ref_short = team_reference(loc, team, s, PART_SHORT, scratch);
		double mine = value_at(loc, r, s, PART_OWN), mine_short = value_at(loc, r, s, PART_SHORT);

		if (!(excess[s] > hit->share / 2) || isnan(ref_short + mine_short + ref + mine))
			continue;
		extra += mine - ref;
		extra_short += mine_short - ref_short;
		own += ref;
		own_short += ref_short;
	}
	if (!(own > 0) || !(extra > 0))
		return kind_by_forward(loc, team, r, excess, hit, scratch);
	proportional = own_short / own;
	/* ways of about one length cannot tell the two apart */
	if (proportional > 0.8 * EVEN_SPLIT)
		return LOC_COMPUTE;
	return extra_short / extra > (proportional + EVEN_SPLIT) / 2 ? LOC_LAUNCH : LOC_COMPUTE;
}

/* Share of the slow steps in which nobody of the team had more own time */
static double last_share(const struct localize *loc, const struct team *team, const struct loc_rank *r,
			 const double *excess, const struct loc_hit *hit)
{
	size_t s, i, slow = 0, last = 0;

	for (s = hit->onset; s <= hit->last; s++) {
		float mine = value_at(loc, r, s, PART_OWN);
		bool most = true;

		if (!(excess[s] > hit->share / 2) || isnan(mine))
			continue;
		for (i = 0; i < team->count; i++)
			most &= !(value_at(loc, loc->ranks[team->members[i]], s, PART_OWN) > mine);
		slow++;
		last += most;
	}
	return slow ? (double)last / (double)slow : 0;
}

static struct loc_finding finding_of(const struct localize *loc, const struct loc_hit *hit, enum loc_kind kind)
{
	return (struct loc_finding){
		.kind = kind,
		.onset_step = loc->first + (uint32_t)hit->onset,
		.detected_step = loc->first + (uint32_t)hit->detected,
		.last_step = loc->first + (uint32_t)hit->last,
		.lost_ms = hit->share * loc->step_ms,
		.share = hit->share,
	};
}

static void fill_excess(const struct localize *loc, const struct team *team, enum part part, double **excess,
			double *scratch)
{
	size_t s, i;

	for (s = 0; s < loc->steps; s++) {
		double ref = team_reference(loc, team, s, part, scratch);

		for (i = 0; i < team->count; i++)
			excess[team->members[i]][s] =
				(value_at(loc, loc->ranks[team->members[i]], s, part) - ref) / loc->scale[s];
	}
}

static int judge_in_groups(struct localize *loc, const struct teams *teams)
{
	struct loc_scan scan = { .subjects = loc->ranks_count,
				 .steps = loc->steps,
				 .floor = FLOOR_IN_GROUP,
				 .noise_factor = NOISE_IN_GROUP,
				 .changes = true };
	struct loc_hit *hits = calloc(loc->ranks_count, sizeof(*hits));
	double *scratch = malloc(loc->ranks_count * sizeof(*scratch));
	uint32_t *team_of = calloc(loc->ranks_count, sizeof(*team_of));
	size_t t, i;
	int ret = -ENOMEM;

	scan.excess = loc_grid_new(scan.subjects, scan.steps);
	scan.steady = loc_grid_new(scan.subjects, scan.steps);
	scan.team = team_of;
	if (!hits || !scratch || !team_of || !scan.excess || !scan.steady)
		goto out;
	for (t = 0; t < teams->count; t++) {
		for (i = 0; i < teams->list[t].count; i++)
			team_of[teams->list[t].members[i]] = (uint32_t)t + 1;
		fill_excess(loc, &teams->list[t], PART_OWN, scan.excess, scratch);
		fill_excess(loc, &teams->list[t], PART_STEADY, scan.steady, scratch);
	}
	ret = loc_scan_run(&scan, hits);
	for (t = 0; t < teams->count && !ret; t++) {
		const struct team *team = &teams->list[t];

		for (i = 0; i < team->count && !ret; i++) {
			size_t at = team->members[i];
			const struct loc_rank *r = loc->ranks[at];
			struct loc_finding f;

			if (!hits[at].hit)
				continue;
			f = finding_of(loc, &hits[at], kind_of(loc, team, r, scan.excess[at], &hits[at], scratch));
			f.rank = r->rank;
			f.level = 1;
			f.group = team->group;
			f.op = r->inner_op;
			f.last_share = last_share(loc, team, r, scan.excess[at], &hits[at]);
			ret = is_off(loc, f.kind) ? 0 : loc_find(loc, &f);
		}
	}
out:
	loc_grid_free(scan.excess);
	loc_grid_free(scan.steady);
	free(hits);
	free(scratch);
	free(team_of);
	return ret;
}

/* Whole teams against the teams of their class */
static int judge_groups_of_class(struct localize *loc, const struct teams *teams)
{
	struct loc_scan scan = {
		.subjects = teams->count, .steps = loc->steps, .floor = FLOOR_GROUPS, .noise_factor = NOISE_GROUPS
	};
	struct loc_hit *hits = calloc(teams->count + 1, sizeof(*hits));
	double *scratch = malloc((loc->ranks_count + 1) * sizeof(*scratch));
	double *refs = malloc((teams->count + 1) * sizeof(*refs));
	uint32_t *class_of = malloc((teams->count + 1) * sizeof(*class_of));
	size_t t, k, s, i, count;
	int ret = -ENOMEM;

	scan.excess = loc_grid_new(scan.subjects, scan.steps);
	scan.team = class_of;
	if (!hits || !scratch || !refs || !class_of || !scan.excess)
		goto out;
	for (t = 0; t < teams->count; t++)
		class_of[t] = teams->list[t].class_of;
	for (s = 0; s < loc->steps; s++) {
		for (t = 0; t < teams->count; t++)
			refs[t] = team_reference(loc, &teams->list[t], s, PART_OWN, scratch);
		for (t = 0; t < teams->count; t++) {
			for (k = count = 0; k < teams->count; k++)
				if (teams->list[k].class_of == teams->list[t].class_of)
					scratch[count++] = refs[k];
			scan.excess[t][s] = (refs[t] - loc_reference(scratch, count)) / loc->scale[s];
		}
	}
	ret = loc_scan_run(&scan, hits);
	for (t = 0; t < teams->count && !ret; t++) {
		for (i = 0; hits[t].hit && i < teams->list[t].count && !ret; i++) {
			struct loc_finding f = finding_of(loc, &hits[t], LOC_COMPUTE);

			f.rank = loc->ranks[teams->list[t].members[i]]->rank;
			f.level = 2;
			f.group = teams->list[t].group;
			f.op = loc->ranks[teams->list[t].members[i]]->inner_op;
			ret = is_off(loc, f.kind) ? 0 : loc_find(loc, &f);
		}
	}
out:
	loc_grid_free(scan.excess);
	free(hits);
	free(scratch);
	free(refs);
	free(class_of);
	return ret;
}

/* Time of a step in proportion to the work that is in it, from the ranks' median own time: steps of a job that warms up
 * or changes its sequence length are longer for everybody, and so is what differs between ranks */
static int lay_scale(struct localize *loc)
{
	size_t longest = loc->ranks_count > loc->steps ? loc->ranks_count : loc->steps;
	double *scratch = malloc((longest + 1) * sizeof(*scratch));
	size_t s, i, known;
	double usual;

	free(loc->scale);
	loc->scale = malloc((loc->steps + 1) * sizeof(*loc->scale));
	if (!scratch || !loc->scale) {
		free(scratch);
		return -ENOMEM;
	}
	for (s = 0; s < loc->steps; s++) {
		for (i = known = 0; i < loc->ranks_count; i++) {
			scratch[known] = value_at(loc, loc->ranks[i], s, PART_OWN);
			known += !isnan(scratch[known]);
		}
		loc->scale[s] = stat_median(scratch, known);
	}
	for (s = known = 0; s < loc->steps; s++)
		if (loc->scale[s] > 0)
			scratch[known++] = loc->scale[s];
	usual = stat_median(scratch, known);
	for (s = 0; s < loc->steps; s++)
		loc->scale[s] = loc->scale[s] > 0 ? loc->step_ms * loc->scale[s] / usual : loc->step_ms;
	free(scratch);
	return 0;
}

/* For what comes after the judges */
static void keep_classes(const struct localize *loc, const struct teams *teams)
{
	size_t k, m;

	for (k = 0; k < teams->count; k++)
		for (m = 0; m < teams->list[k].count; m++)
			loc->ranks[teams->list[k].members[m]]->class_root = teams->list[k].class_of;
}

int loc_judge_compute(struct localize *loc)
{
	struct teams teams;
	int ret;

	if (!(loc->step_ms > 0) || !loc->steps)
		return 0;
	ret = teams_init(loc, &teams);
	if (ret < 0)
		return ret;
	link_classes(loc, &teams);
	keep_classes(loc, &teams);
	ret = lay_scale(loc);
	if (!ret)
		ret = judge_in_groups(loc, &teams);
	if (!ret && teams.count > 1)
		ret = judge_groups_of_class(loc, &teams);
	teams_fini(&teams);
	return ret;
}

/* ---- stages --------------------------------------------------------------------------------------------------------- */

static float stage_at(const struct localize *loc, size_t rank, size_t step, enum loc_kind kind)
{
	const struct loc_cell *cell = loc_cell_at(loc->ranks[rank], loc->first + (uint32_t)step);

	if (!cell)
		return NAN;
	if (kind == LOC_CKPT)
		return cell->ckpt > 0 ? cell->ckpt : NAN;
	return cell->load;
}

static int judge_loader(struct localize *loc, double *scratch)
{
	struct loc_scan scan = {
		.subjects = loc->ranks_count, .steps = loc->steps, .floor = FLOOR_STAGE, .noise_factor = NOISE_IN_GROUP
	};
	struct loc_hit *hits = calloc(loc->ranks_count, sizeof(*hits));
	size_t s, i;
	int ret = -ENOMEM;

	scan.excess = loc_grid_new(scan.subjects, scan.steps);
	if (!hits || !scan.excess)
		goto out;
	for (s = 0; s < loc->steps; s++) {
		double ref;

		for (i = 0; i < loc->ranks_count; i++)
			scratch[i] = stage_at(loc, i, s, LOC_DATALOADER);
		ref = loc_reference(scratch, loc->ranks_count);
		for (i = 0; i < loc->ranks_count; i++)
			scan.excess[i][s] = (stage_at(loc, i, s, LOC_DATALOADER) - ref) / loc->step_ms;
	}
	ret = loc_scan_run(&scan, hits);
	for (i = 0; i < loc->ranks_count && !ret; i++) {
		struct loc_finding f = finding_of(loc, &hits[i], LOC_DATALOADER);

		f.rank = loc->ranks[i]->rank;
		ret = hits[i].hit ? loc_find(loc, &f) : 0;
	}
out:
	loc_grid_free(scan.excess);
	free(hits);
	return ret;
}

/* Two checkpoints in a row that took a rank much longer than the others */
static int judge_checkpoints(struct localize *loc, double *scratch)
{
	size_t *slow = calloc(2 * loc->ranks_count + 1, sizeof(*slow)); /* step of the last slow one, count */
	size_t s, i;
	int ret = slow ? 0 : -ENOMEM;

	for (s = 0; s < loc->steps && !ret; s++) {
		double ref;

		for (i = 0; i < loc->ranks_count; i++)
			scratch[i] = stage_at(loc, i, s, LOC_CKPT);
		ref = loc_reference(scratch, loc->ranks_count);
		for (i = 0; i < loc->ranks_count && !isnan(ref) && !ret; i++) {
			double mine = stage_at(loc, i, s, LOC_CKPT);
			struct loc_hit hit = { true, slow[2 * i], s, s, (mine - ref) / loc->step_ms };
			struct loc_finding f = finding_of(loc, &hit, LOC_CKPT);

			if (isnan(mine))
				continue;
			if (mine < CKPT_RATIO * ref || mine - ref < FLOOR_STAGE * loc->step_ms) {
				slow[2 * i + 1] = 0;
				continue;
			}
			if (!slow[2 * i + 1]++)
				slow[2 * i] = s;
			f.rank = loc->ranks[i]->rank;
			if (slow[2 * i + 1] == 2)
				ret = loc_find(loc, &f);
		}
	}
	free(slow);
	return ret;
}

int loc_judge_stages(struct localize *loc)
{
	double *scratch;
	int ret = 0;

	if (!(loc->step_ms > 0) || !loc->steps)
		return 0;
	scratch = malloc((loc->ranks_count + 1) * sizeof(*scratch));
	if (!scratch)
		return -ENOMEM;
	if (!is_off(loc, LOC_DATALOADER))
		ret = judge_loader(loc, scratch);
	if (!ret && !is_off(loc, LOC_CKPT))
		ret = judge_checkpoints(loc, scratch);
	free(scratch);
	return ret;
}

/* ---- hang ----------------------------------------------------------------------------------------------------------- */

static bool is_member(const struct localize *loc, uint32_t name, int32_t rank)
{
	const struct loc_group *group = name ? loc_group_find(loc, name) : NULL;
	size_t m;

	for (m = 0; group && m < group->members_count; m++)
		if (group->members[m] == rank)
			return true;
	return false;
}

/* Is a rank, of which is known what its host issued, not yet at an operation? */
static bool is_before(const struct loc_rank *r, uint64_t at)
{
	return r->issued_at && r->progress < at && r->issued_at < at;
}

/* Does one rank wait for another: is the other behind in the group of its pending operation, or has not even issued one
 * that this one has? */
static bool waits_for(const struct localize *loc, const struct loc_rank *r, const struct loc_rank *other)
{
	size_t i;

	if (other->progress < r->progress && is_member(loc, r->pending, other->rank))
		return true;
	for (i = 0; i < 2; i++)
		if (r->issue[i].group && is_before(other, r->issue[i].at) &&
		    is_member(loc, r->issue[i].group, other->rank))
			return true;
	return false;
}

/* How many ranks wait for this one */
static uint32_t waiting_for(const struct localize *loc, const struct loc_rank *r)
{
	uint32_t count = 0;
	size_t i;

	for (i = 0; i < loc->ranks_count; i++)
		count += loc->ranks[i] != r && waits_for(loc, loc->ranks[i], r);
	return count;
}

static bool waits(const struct localize *loc, const struct loc_rank *r)
{
	size_t i;

	for (i = 0; i < loc->ranks_count; i++)
		if (loc->ranks[i] != r && waits_for(loc, r, loc->ranks[i]))
			return true;
	return false;
}

static uint32_t last_step_of(const struct loc_rank *r)
{
	return r->cells_count ? r->first_step + (uint32_t)r->cells_count - 1 : 0;
}

int loc_judge_hang(struct localize *loc)
{
	double minutes = loc->options.hang_mins > 0 ? loc->options.hang_mins : HANG_MINUTES;
	uint32_t first = UINT32_MAX;
	bool *culprit;
	size_t i;
	int ret = 0;

	if (is_off(loc, LOC_HANG) || loc->options.until_ns - loc->end_ns < (int64_t)(minutes * 60e9) || !loc->end_ns)
		return 0;
	culprit = calloc(loc->ranks_count + 1, sizeof(*culprit));
	if (!culprit)
		return -ENOMEM;
	for (i = 0; i < loc->ranks_count; i++) {
		culprit[i] = waiting_for(loc, loc->ranks[i]) && !waits(loc, loc->ranks[i]);
		if (culprit[i] && last_step_of(loc->ranks[i]) < first)
			first = last_step_of(loc->ranks[i]);
	}
	for (i = 0; i < loc->ranks_count && !ret; i++) {
		const struct loc_rank *r = loc->ranks[i];
		uint32_t step = last_step_of(r);
		struct loc_finding f = {
			.rank = r->rank,
			.kind = LOC_HANG,
			.onset_step = step,
			.detected_step = step,
			.last_step = step,
			.lost_ms = (double)(loc->options.until_ns - loc->end_ns) / 1e6,
			.group = r->inner,
			.op = r->inner_op,
			.last_op = r->last_op,
			.last_serial = r->last_serial,
			.waiting = culprit[i] ? waiting_for(loc, r) : 0,
		};

		/* one that came further than the step behind the first culprit's was not held up by itself */
		if (culprit[i] && step <= first + 1)
			ret = loc_find(loc, &f);
	}
	free(culprit);
	return ret;
}
