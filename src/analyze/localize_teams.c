/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Who does the same work (localize_impl.h): ranks that meet in synchronous collectives step after step, but not stages of one
 * pipeline. Those meet, too, to add up a norm or the gradients of shared embeddings, and are unequal by design: a group
 * with two members of one pipeline makes nobody comparable.
 */
#include "analyze/localize_impl.h"

#include <errno.h>
#include <stdlib.h>

static size_t root_of(size_t *parent, size_t i)
{
	while (parent[i] != i) {
		parent[i] = parent[parent[i]];
		i = parent[i];
	}
	return i;
}

static size_t index_of(const struct localize *loc, int32_t number)
{
	size_t i;

	/* as loc_rank_by_number(), for the place in the list */
	if (number >= 0 && (size_t)number < loc->ranks_count && loc->ranks[number]->rank == number)
		return (size_t)number;
	for (i = 0; i < loc->ranks_count && loc->ranks[i]->rank != number; i++)
		;
	return i;
}

/* Ranks that exchange in pairs become one pipeline */
static void join_pipelines(struct localize *loc, size_t *parent)
{
	size_t g, m, i;

	for (i = 0; i < loc->ranks_count; i++)
		parent[i] = i;
	for (g = 0; g < loc->groups_count; g++) {
		const struct loc_group *group = &loc->groups[g];
		size_t first;

		if (!group->pairwise || group->members_count < 2)
			continue;
		first = index_of(loc, group->members[0]);
		for (m = 1; m < group->members_count; m++) {
			i = index_of(loc, group->members[m]);
			if (i < loc->ranks_count && first < loc->ranks_count)
				parent[root_of(parent, i)] = root_of(parent, first);
		}
		for (m = 0; m < group->members_count; m++) {
			i = index_of(loc, group->members[m]);
			if (i < loc->ranks_count)
				loc->ranks[i]->pipeline = 1;
		}
	}
	for (i = 0; i < loc->ranks_count; i++)
		if (loc->ranks[i]->pipeline)
			loc->ranks[i]->pipeline = (uint32_t)root_of(parent, i) + 1;
}

/* @seen: per pipeline, the last group that had a member of it */
static bool crosses(const struct localize *loc, size_t g, size_t *seen)
{
	const struct loc_group *group = &loc->groups[g];
	size_t m;

	for (m = 0; m < group->members_count; m++) {
		const struct loc_rank *r = loc_rank_by_number(loc, group->members[m]);

		if (!r || !r->pipeline)
			continue;
		if (seen[r->pipeline] == g + 1)
			return true;
		seen[r->pipeline] = g + 1;
	}
	return false;
}

/* A group that a member meets in at least every other step, and more often than any before */
static void offer_inner(const struct localize *loc, const struct loc_group *group)
{
	size_t m;

	for (m = 0; m < group->members_count; m++) {
		struct loc_rank *r = loc_rank_by_number(loc, group->members[m]);

		if (!r || 2 * group->meets[m] < r->cells_count || group->meets[m] <= r->inner_meets)
			continue;
		r->inner = group->name;
		r->inner_op = group->op;
		r->inner_meets = group->meets[m];
	}
}

int loc_find_teams(struct localize *loc)
{
	size_t *parent, *seen, g;

	if (loc->grouped)
		return 0;
	parent = calloc(loc->ranks_count + 1, sizeof(*parent));
	seen = calloc(loc->ranks_count + 2, sizeof(*seen));
	if (parent && seen) {
		join_pipelines(loc, parent);
		for (g = 0; g < loc->groups_count; g++) {
			loc->groups[g].crosses = !loc->groups[g].pairwise && crosses(loc, g, seen);
			if (!loc->groups[g].pairwise && !loc->groups[g].crosses)
				offer_inner(loc, &loc->groups[g]);
		}
		loc->grouped = true;
	}
	free(parent);
	free(seen);
	return loc->grouped ? 0 : -ENOMEM;
}
