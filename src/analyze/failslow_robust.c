/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * FailSlow against robust statistics. The normal step is the median of the last clean steps; single steps are suspects
 * from robust_spike_thr up, three of six raise the alarm; so do the newest 12, 24 or 48 steps when a rank test is sure that
 * they are slower than those before and their median lies robust_shift_thr higher. Slow steps never become part of the
 * normal. Step times are taken without checkpoint time and per unit of work where the source knows it, so that a longer
 * sequence or a checkpoint accuses nobody.
 */
#include "analyze/failslow_impl.h"
#include "analyze/stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	WARM_STEPS = 8, /* so many in a row must agree before anything is judged */
	WARM_PATIENCE = 40, /* then the last WARM_STEPS are taken as they are */
	CLEAN_STEPS = 50,
	RECENT_STEPS = 52, /* a step becomes part of the normal when it is this old */
	SPIKE_WINDOW = 6,
	SPIKE_COUNT = 3,
	QUIET_STEPS = 8, /* clean steps that end an alarm */
	CHECKPOINTS = 8,
	CHECKPOINTS_KNOWN = 2,
};

#define WARM_SPREAD 0.12
#define SPIKE_SIGMAS 4.5
#define SHIFT_SCORE 4.5 /* of the rank test, in standard deviations: one false alarm in 300 000 tests of steady noise */
#define MIN_SIGMA 0.01 /* of the normal step */
#define QUANTILE_SIGMAS 2.563 /* standard deviations between the 10 % and the 90 % quantile */
#define CHECKPOINT_RATIO 1.3

struct judged {
	struct failslow_step step;
	double x; /* ms without checkpoint, per unit of work */
	bool suspect;
};

struct robust {
	struct failslow_params params;
	uint64_t seen;
	double unit; /* workload of the first step that told one */
	double clean[CLEAN_STEPS]; /* ring */
	size_t clean_count; /* ever put */
	bool warm;
	struct judged recent[RECENT_STEPS]; /* oldest first */
	size_t recent_count;
	bool alarm;
	double limit; /* x above this is slow while the alarm lasts */
	unsigned quiet;
	double normal; /* x */
	double sigma;
	double checkpoints[CHECKPOINTS]; /* normal ones, ms */
	size_t checkpoints_count;
	struct judged slow_checkpoint; /* one that waits for a second */
};

static void *robust_start(const struct failslow_params *params)
{
	struct robust *r = calloc(1, sizeof(*r));

	if (r)
		r->params = *params;
	return r;
}

static double scale_of(const struct robust *r, const struct failslow_step *step)
{
	return r->unit > 0 && step->workload > 0 ? step->workload / r->unit : 1;
}

static void learn(struct robust *r)
{
	double values[CLEAN_STEPS], wide;
	size_t count = r->clean_count < CLEAN_STEPS ? r->clean_count : CLEAN_STEPS;

	memcpy(values, r->clean, count * sizeof(values[0]));
	r->normal = stat_median(values, count);
	/* pauses in some of the steps make two heaps of values, which the median deviation does not see */
	wide = (stat_quantile(values, count, 0.9) - stat_quantile(values, count, 0.1)) / QUANTILE_SIGMAS;
	r->sigma = fmax(fmax(stat_sigma(values, count, r->normal), wide), MIN_SIGMA * r->normal);
}

static void put_clean(struct robust *r, double x)
{
	r->clean[r->clean_count++ % CLEAN_STEPS] = x;
	learn(r);
}

static int report(struct failslow *fs, const struct robust *r, const struct judged *j, uint32_t detected)
{
	double normal = r->normal * scale_of(r, &j->step) + j->step.checkpoint_ms;

	return failslow_report(fs, &(struct failslow_anomaly){
					   .step = j->step.number,
					   .detected_step = detected,
					   .at_us = j->step.begin_us,
					   .ms = j->step.ms,
					   .normal_ms = normal,
					   .degree = (j->step.ms - normal) / normal,
				   });
}

/* Raise the alarm: the recent steps from @from on that lie above the limit are slow, the ones before are normal */
static int raise_alarm(struct failslow *fs, struct robust *r, size_t from, double limit)
{
	uint32_t now = r->recent[r->recent_count - 1].step.number;
	size_t i;
	int ret = 0;

	r->alarm = true;
	r->limit = limit;
	r->quiet = 0;
	for (i = from; i < r->recent_count && !ret; i++)
		if (r->recent[i].x > limit)
			ret = report(fs, r, &r->recent[i], now);
	for (i = 0; i < from; i++)
		if (!r->recent[i].suspect)
			put_clean(r, r->recent[i].x);
	r->recent_count = 0;
	return ret;
}

/* Three suspects in six: where the first of them is, or recent_count */
static size_t find_spikes(const struct robust *r)
{
	size_t begin = r->recent_count > SPIKE_WINDOW ? r->recent_count - SPIKE_WINDOW : 0;
	size_t first = r->recent_count;
	unsigned count = 0;
	size_t i;

	for (i = begin; i < r->recent_count; i++) {
		if (!r->recent[i].suspect)
			continue;
		if (!count++)
			first = i;
	}
	return count >= SPIKE_COUNT ? first : r->recent_count;
}

/* How surely the newer steps are slower than the older ones, whatever the noise looks like: score of Mann and Whitney */
static double rank_score(const double *older, size_t n, const double *newer, size_t m)
{
	double wins = 0, pairs = (double)n * (double)m;
	size_t i, k;

	for (i = 0; i < m; i++)
		for (k = 0; k < n; k++)
			wins += newer[i] > older[k] ? 1 : newer[i] == older[k] ? 0.5 : 0;
	return (wins - pairs / 2) / sqrt(pairs * (double)(n + m + 1) / 12);
}

/* The step from which on the recent ones are best explained by the new level */
static size_t onset_of(const struct robust *r, double middle)
{
	double sum = 0, best = 0;
	size_t i, onset = r->recent_count;

	for (i = r->recent_count; i > 0; i--) {
		sum += r->recent[i - 1].x - middle;
		if (sum > best) {
			best = sum;
			onset = i - 1;
		}
	}
	return onset;
}

/* A lasting shift: where it began, or recent_count; *middle lies halfway between the old and the new level */
static size_t find_shift(const struct robust *r, double *middle)
{
	static const size_t windows[] = { 12, 24, 48 };
	double older[CLEAN_STEPS + RECENT_STEPS], newer[RECENT_STEPS];
	size_t clean = r->clean_count < CLEAN_STEPS ? r->clean_count : CLEAN_STEPS;
	size_t w, i, n, m;

	for (w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
		double before, now;

		if (r->recent_count < windows[w])
			continue;
		memcpy(older, r->clean, clean * sizeof(older[0]));
		for (i = m = 0, n = clean; i < r->recent_count; i++) {
			if (i + windows[w] < r->recent_count)
				older[n++] = r->recent[i].x;
			else
				newer[m++] = r->recent[i].x;
		}
		if (rank_score(older, n, newer, m) < SHIFT_SCORE)
			continue;
		before = stat_median(older, n);
		now = stat_median(newer, m);
		if (now <= before * (1 + r->params.robust_shift_thr))
			continue;
		*middle = (before + now) / 2;
		return onset_of(r, *middle);
	}
	return r->recent_count;
}

/* Steps before the job runs evenly are not judged: compilation, caches, learning of the allocator */
static void warm_up(struct robust *r, const struct judged *j)
{
	double values[WARM_STEPS], median;
	size_t i;

	if (r->recent_count == WARM_STEPS) {
		memmove(r->recent, r->recent + 1, (WARM_STEPS - 1) * sizeof(r->recent[0]));
		r->recent_count--;
	}
	r->recent[r->recent_count++] = *j;
	if (r->recent_count < WARM_STEPS)
		return;
	for (i = 0; i < WARM_STEPS; i++)
		values[i] = r->recent[i].x;
	median = stat_median(values, WARM_STEPS);
	for (i = 0; i < WARM_STEPS && r->seen < WARM_PATIENCE; i++)
		if (fabs(r->recent[i].x - median) > WARM_SPREAD * median)
			return;
	for (i = 0; i < WARM_STEPS; i++)
		put_clean(r, r->recent[i].x);
	r->recent_count = 0;
	r->warm = true;
}

static void remember(struct robust *r, const struct judged *j)
{
	if (r->recent_count == RECENT_STEPS) {
		if (!r->recent[0].suspect)
			put_clean(r, r->recent[0].x);
		memmove(r->recent, r->recent + 1, (RECENT_STEPS - 1) * sizeof(r->recent[0]));
		r->recent_count--;
	}
	r->recent[r->recent_count++] = *j;
}

static int judge_quiet(struct failslow *fs, struct robust *r, struct judged *j)
{
	const struct failslow_params *p = &r->params;
	double middle = 0;
	size_t from;

	j->suspect = j->x > r->normal * (1 + p->robust_spike_thr) && j->x > r->normal + SPIKE_SIGMAS * r->sigma;
	remember(r, j);
	if (r->seen + p->task_stable_step < p->min_startup_detection_steps)
		return 0;
	from = find_spikes(r);
	if (from < r->recent_count)
		return raise_alarm(fs, r, from, r->normal * (1 + p->robust_spike_thr));
	from = find_shift(r, &middle);
	if (from < r->recent_count)
		return raise_alarm(fs, r, from, middle);
	return 0;
}

static int judge_alarmed(struct failslow *fs, struct robust *r, const struct judged *j)
{
	if (j->x > r->limit) {
		r->quiet = 0;
		return report(fs, r, j, j->step.number);
	}
	/* not part of the normal: it may be a slow step that noise made look quick */
	if (++r->quiet >= QUIET_STEPS)
		r->alarm = false;
	return 0;
}

/* Checkpoints have a baseline of their own; two slow ones in a row are a finding, counted in whole steps */
static int judge_checkpoint(struct failslow *fs, struct robust *r, const struct judged *j)
{
	size_t count = r->checkpoints_count < CHECKPOINTS ? r->checkpoints_count : CHECKPOINTS;
	double values[CHECKPOINTS];
	struct judged pair[2];
	double normal;
	int i, ret;

	memcpy(values, r->checkpoints, count * sizeof(values[0]));
	normal = stat_median(values, count);
	if (count < CHECKPOINTS_KNOWN || j->step.checkpoint_ms < CHECKPOINT_RATIO * normal) {
		r->checkpoints[r->checkpoints_count++ % CHECKPOINTS] = j->step.checkpoint_ms;
		r->slow_checkpoint.step.ms = 0;
		return 0;
	}
	pair[0] = r->slow_checkpoint;
	pair[1] = *j;
	r->slow_checkpoint = *j;
	if (!(pair[0].step.ms > 0))
		return 0;
	for (i = 0; i < 2; i++) {
		pair[i].step.ms = pair[i].step.ms - pair[i].step.checkpoint_ms + normal;
		ret = failslow_report(fs, &(struct failslow_anomaly){
						  .step = pair[i].step.number,
						  .detected_step = j->step.number,
						  .at_us = pair[i].step.begin_us,
						  .ms = pair[i].step.ms - normal + pair[i].step.checkpoint_ms,
						  .normal_ms = pair[i].step.ms,
						  .degree = (pair[i].step.checkpoint_ms - normal) / pair[i].step.ms,
					  });
		if (ret < 0)
			return ret;
	}
	r->slow_checkpoint.step.ms = 0;
	return 0;
}

static int robust_step(struct failslow *fs, void *state, const struct failslow_step *step)
{
	struct robust *r = state;
	struct judged j = { .step = *step };
	int ret;

	r->seen++;
	if (!(r->unit > 0))
		r->unit = step->workload;
	j.x = (step->ms - fmin(step->checkpoint_ms, step->ms)) / scale_of(r, step);
	if (!r->warm) {
		warm_up(r, &j);
		return 0;
	}
	ret = r->alarm ? judge_alarmed(fs, r, &j) : judge_quiet(fs, r, &j);
	if (!ret && step->checkpoint_ms > 0)
		ret = judge_checkpoint(fs, r, &j);
	return ret;
}

static double robust_normal_ms(const void *state)
{
	return ((const struct robust *)state)->normal;
}

static bool robust_is_quiet(const void *state)
{
	return !((const struct robust *)state)->alarm;
}

const struct failslow_algorithm failslow_robust = {
	.name = "robust",
	.start = robust_start,
	.step = robust_step,
	.normal_ms = robust_normal_ms,
	.is_quiet = robust_is_quiet,
};
