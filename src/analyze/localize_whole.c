/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * When nobody can be named: did the job as a whole become slow, and did it spend the time in the ranks themselves or in
 * the collectives? A slowdown that all ranks share is no healthy job, and saying where the time went is the next step.
 */
#include "analyze/failslow.h"
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Median over the ranks of a step's time without checkpoints, and of the part of it that is the rank's own */
static double step_of(const struct localize *loc, uint32_t step, double *own, double *scratch)
{
	size_t i, known = 0, owned = 0;
	double ms;

	for (i = 0; i < loc->ranks_count; i++) {
		const struct loc_cell *c = loc_cell_at(loc->ranks[i], step);

		if (c && c->ms > 0)
			scratch[known++] = c->ms - c->ckpt;
	}
	ms = stat_median(scratch, known);
	for (i = 0; i < loc->ranks_count; i++) {
		const struct loc_cell *c = loc_cell_at(loc->ranks[i], step);

		if (c && !isnan(c->own))
			scratch[owned++] = c->own;
	}
	*own = stat_median(scratch, owned);
	return ms;
}

static double median_known(const double *values, size_t from, size_t to, double *scratch)
{
	size_t i, known = 0;

	for (i = from; i < to; i++)
		if (!isnan(values[i]))
			scratch[known++] = values[i];
	return stat_median(scratch, known);
}

static void describe(const struct localize *loc, const struct failslow_result *slow, const double *ms,
		     const double *own, double *scratch, char *reason, size_t room)
{
	size_t onset = slow->onset_step - loc->first, end = slow->last_step - loc->first + 1;
	double more = median_known(ms, onset, end, scratch) - median_known(ms, 0, onset, scratch);
	double more_own = median_known(own, onset, end, scratch) - median_known(own, 0, onset, scratch);
	const char *where = "how much of it in collectives is not known";

	if (more_own > more / 2)
		where = "it is the ranks' own time: more work per step, or something that all of them share";
	else if (!isnan(more_own))
		where = "it is spent in collectives: the network, or a rank whose communication threads get no CPU";
	snprintf(
		reason, room,
		"the job became slow at step %u (%.2f times the time), but on all ranks alike; of %.1f ms more per step "
		"%.1f ms are the ranks' own; %s",
		slow->onset_step, slow->slowdown, more, isnan(more_own) ? 0 : more_own, where);
}

int loc_judge_whole(const struct localize *loc, char *reason, size_t room)
{
	struct failslow_params params;
	struct failslow_result slow;
	struct failslow *fs;
	double *ms = malloc((loc->steps + 1) * sizeof(*ms));
	double *own = malloc((loc->steps + 1) * sizeof(*own));
	double *scratch = malloc((loc->steps + loc->ranks_count + 1) * sizeof(*scratch));
	size_t s;
	int ret = -ENOMEM;

	failslow_defaults(&params);
	fs = failslow_new(&params, NULL);
	if (!ms || !own || !scratch || !fs)
		goto out;
	for (s = 0, ret = 0; s < loc->steps && !ret; s++) {
		ms[s] = step_of(loc, loc->first + (uint32_t)s, &own[s], scratch);
		ret = failslow_step(fs, &(struct failslow_step){ .number = loc->first + (uint32_t)s, .ms = ms[s] });
	}
	if (!ret && failslow_finish(fs, 0, &slow) && slow.type == FAILSLOW_SLOW) {
		describe(loc, &slow, ms, own, scratch, reason, room);
		ret = 1;
	}
out:
	failslow_free(fs);
	free(ms);
	free(own);
	free(scratch);
	return ret;
}
