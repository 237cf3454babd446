/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The search that all judges of the localiser share: windows of three lengths slide over each subject's excess; the
 * window's median must rise above a floor, above the spread of like subjects and above the subject's own noise, twice in
 * a row. Short windows give early verdicts on strong faults, long ones find weak faults that last.
 */
#include "analyze/localize_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPREADS 5.0 /* standard deviations between like subjects */
#define MEDIAN_NOISE 1.25 /* a median's standard deviation against a mean's */
#define MANY_SUBJECTS 10 /* enough that a fifth of them may be faulty and the upper side still be measured */
#define UPPER_SIGMAS 0.8416 /* standard deviations between the median and the 80 % quantile */
#define FEW_SUBJECTS 4 /* fewer tell nothing about their spread: the floor doubles */
#define STEPS_BEFORE 8 /* known ones before the onset, so that they tell what was usual */
#define PAIRS_EACH 16 /* neighbours of its team that a subject is compared with, for the variety of a team */
#define PAIRS_SHARE 0.35 /* quantile of the distances within teams: one faulty of four members does not reach it */
#define PAIRS_SIGMAS 0.642 /* where that quantile of the distance of two equal normal values lies */
#define FEW_PAIRS 2.5 /* a spread learnt from n values may be too small: this / sqrt(n) more of it is wanted */
#define BEYOND_MOST 2.5 /* standard deviations beyond where the largest of n healthy ones is expected */
#define USUAL_WINDOW 8 /* steps; a subject's usual level is a low quantile of the medians of such windows */
#define USUAL_SHARE 0.2

static const size_t scales[] = { 8, 24, 60 };

#define SCALES (sizeof(scales) / sizeof(scales[0]))

double **loc_grid_new(size_t subjects, size_t steps)
{
	double **grid = malloc(subjects * sizeof(*grid) + subjects * steps * sizeof(**grid) + 1);
	double *cells;
	size_t i;

	if (!grid)
		return NULL;
	cells = (double *)(grid + subjects);
	for (i = 0; i < subjects * steps; i++)
		cells[i] = NAN;
	for (i = 0; i < subjects; i++)
		grid[i] = cells + i * steps;
	return grid;
}

void loc_grid_free(double **grid)
{
	free(grid);
}

double loc_reference(double *values, size_t count)
{
	size_t i, known = 0;

	for (i = 0; i < count; i++)
		if (!isnan(values[i]))
			values[known++] = values[i];
	if (known < 2)
		return NAN;
	return known == 2 ? fmin(values[0], values[1]) : stat_quantile(values, known, 0.25);
}

static size_t gather(const double *values, size_t count, double *out)
{
	size_t i, known = 0;

	for (i = 0; i < count; i++)
		if (!isnan(values[i]))
			out[known++] = values[i];
	return known;
}

static double window_median(const double *excess, size_t window, double *scratch)
{
	size_t known = gather(excess, window, scratch);

	return 2 * known > window ? stat_median(scratch, known) : NAN;
}

/* Noise from step to step of one subject */
static double own_noise(const double *excess, size_t steps, double *scratch, double *scratch2)
{
	return stat_diff_sigma(scratch, gather(excess, steps, scratch), scratch2);
}

/* One window position of all subjects: medians[], and the limit that their spread sets */
static double judge_window(const struct loc_scan *scan, size_t begin, size_t window, double *medians, double *scratch)
{
	/* a few pauses in eight steps make a median, in longer windows they do not */
	double **excess = scan->steady && window == scales[0] ? scan->steady : scan->excess;
	double center, spread, upper = 0;
	size_t i, known;

	for (i = 0; i < scan->subjects; i++)
		medians[i] = window_median(excess[i] + begin, window, scratch);
	known = gather(medians, scan->subjects, scratch);
	if (known < FEW_SUBJECTS)
		return 2 * scan->floor;
	center = stat_median(scratch, known);
	if (known >= MANY_SUBJECTS)
		upper = (stat_quantile(scratch, known, 0.8) - center) / UPPER_SIGMAS;
	spread = fmax(upper, stat_sigma(scratch, known, center));
	return fmax(scan->floor, center + SPREADS * spread);
}

/* From the first window that showed the excess: where it begins, ends, and how large it is in the slow steps */
static void refine(const struct loc_scan *scan, const double *excess, size_t begin, size_t window, double level,
		   struct loc_hit *hit)
{
	double half = level / 2, sum = 0;
	size_t from = begin > window ? begin - window : 0;
	size_t i, slow = 0;

	for (i = from; i < begin + window; i++) {
		int agree = 0;
		size_t k;

		for (k = i; k < i + 3 && k < scan->steps; k++)
			agree += excess[k] > half;
		if (excess[i] > half && agree >= 2)
			break;
	}
	hit->onset = hit->last = i < begin + window ? i : begin;
	for (i = hit->onset; i < scan->steps; i++) {
		if (!(excess[i] > half))
			continue;
		hit->last = i;
		sum += excess[i];
		slow++;
	}
	hit->share = slow ? sum / (double)slow : level;
}

/*
 * Chips are not all alike, and a rank that was slower than its peers from the first step on may just have the slowest of
 * healthy ones. The low quantile of the distances within teams, which one faulty member of four does not reach, says
 * how much healthy ones differ. Return: the smallest excess that needs no onset to be believed, INFINITY when out of memory.
 */
static double lasting_limit(const struct loc_scan *scan, double *scratch)
{
	double *levels = malloc((scan->subjects + 1) * sizeof(*levels));
	double *apart = malloc((scan->subjects * PAIRS_EACH + 1) * sizeof(*apart));
	size_t i, k, near, count = 0, degrees = 0;
	double limit = INFINITY;

	if (!levels || !apart)
		goto out;
	for (i = 0; i < scan->subjects; i++) {
		size_t before = count;

		levels[i] = stat_median(scratch, gather(scan->excess[i], scan->steps, scratch));
		for (k = i, near = 0; k > 0 && near < PAIRS_EACH; k--) {
			if (scan->team && scan->team[k - 1] != scan->team[i])
				continue;
			near++;
			if (!isnan(levels[i]) && !isnan(levels[k - 1]))
				apart[count++] = fabs(levels[i] - levels[k - 1]);
		}
		degrees += count > before;
	}
	limit = 2 * scan->floor;
	if (degrees)
		limit = (sqrt(2 * log((double)scan->subjects)) + BEYOND_MOST) *
			(1 + FEW_PAIRS / sqrt((double)degrees)) * stat_quantile(apart, count, PAIRS_SHARE) /
			PAIRS_SIGMAS;
out:
	free(levels);
	free(apart);
	return fmax(limit, scan->floor);
}

/* Did the excess begin while it was watched, or else: is it too much to have been there from the start? @lasting INFINITY:
 * only what began is believed. */
static bool is_believed(const double *excess, const struct loc_hit *hit, double lasting, double *scratch)
{
	size_t known = gather(excess, hit->onset, scratch);

	if (known >= STEPS_BEFORE && hit->share - stat_median(scratch, known) > hit->share / 2)
		return true;
	known = gather(excess + hit->onset, hit->last - hit->onset + 1, scratch);
	return known && stat_median(scratch, known) > lasting;
}

static void scan_scale(const struct loc_scan *scan, size_t window, const double *noise, double lasting, double *medians,
		       double *scratch, unsigned *agreeing, struct loc_hit *hits)
{
	struct loc_hit found = { 0 };
	size_t hop = window / 4;
	size_t begin, i;

	memset(agreeing, 0, scan->subjects * sizeof(*agreeing));
	for (begin = 0; begin + window <= scan->steps; begin += hop) {
		double limit = judge_window(scan, begin, window, medians, scratch);

		for (i = 0; i < scan->subjects; i++) {
			double own = scan->noise_factor * MEDIAN_NOISE * noise[i] / sqrt((double)window);

			if (!(medians[i] > fmax(limit, own))) {
				agreeing[i] = 0;
				continue;
			}
			if (++agreeing[i] < 2 || (hits[i].hit && hits[i].detected <= begin + window - 1))
				continue;
			refine(scan, scan->excess[i], begin - hop, window, medians[i], &found);
			if (found.share < scan->floor || !is_believed(scan->excess[i], &found, lasting, scratch))
				continue;
			hits[i] = found;
			hits[i].hit = true;
			hits[i].detected = begin + window - 1;
		}
	}
}

/* A subject's level when nothing is wrong with it: low quantile of window medians; NAN for too few windows */
static double usual_level(const double *excess, size_t steps, double *medians, double *scratch)
{
	size_t begin, count = 0;

	for (begin = 0; begin + USUAL_WINDOW <= steps; begin += USUAL_WINDOW) {
		medians[count] = window_median(excess + begin, USUAL_WINDOW, scratch);
		count += !isnan(medians[count]);
	}
	return count >= 3 ? stat_quantile(medians, count, USUAL_SHARE) : NAN;
}

/* A copy of the excess in which each subject is measured against its own usual level; NULL when out of memory */
static double **against_usual(const struct loc_scan *scan, double **excess, double *medians, double *scratch)
{
	double **grid = loc_grid_new(scan->subjects, scan->steps);
	size_t i, k;

	for (i = 0; grid && i < scan->subjects; i++) {
		double usual = usual_level(scan->excess[i], scan->steps, medians, scratch);

		for (k = 0; k < scan->steps; k++)
			grid[i][k] = excess[i][k] - usual;
	}
	return grid;
}

/** struct searching - arrays of one search */
struct searching {
	double *scratch, *scratch2; /* steps or subjects, whichever are more */
	double *medians, *noise; /* per subject */
	unsigned *agreeing;
};

static void search(const struct loc_scan *scan, const struct searching *s, double lasting, size_t first_scale,
		   struct loc_hit *hits)
{
	size_t i;

	for (i = 0; i < scan->subjects; i++)
		s->noise[i] = scan->step_noise > 0 ? scan->step_noise
						   : own_noise(scan->excess[i], scan->steps, s->scratch, s->scratch2);
	for (i = first_scale; i < SCALES; i++)
		scan_scale(scan, scales[i], s->noise, lasting, s->medians, s->scratch, s->agreeing, hits);
}

/* Ranks whose chips differ hide a weak fault among each other, but not against their own past */
static int search_changes(const struct loc_scan *scan, const struct searching *s, struct loc_hit *hits)
{
	struct loc_scan changes = *scan;
	struct loc_hit *found = calloc(scan->subjects + 1, sizeof(*found));
	size_t i;
	int ret = -ENOMEM;

	changes.excess = against_usual(scan, scan->excess, s->scratch2, s->scratch);
	changes.steady = scan->steady ? against_usual(scan, scan->steady, s->scratch2, s->scratch) : NULL;
	if (!found || !changes.excess || (scan->steady && !changes.steady))
		goto out;
	search(&changes, s, INFINITY, 1, found); /* what is weak shows in long windows only */
	for (i = 0; i < scan->subjects; i++)
		if (found[i].hit && !hits[i].hit)
			hits[i] = found[i];
	ret = 0;
out:
	free(found);
	loc_grid_free(changes.excess);
	loc_grid_free(changes.steady);
	return ret;
}

int loc_scan_run(const struct loc_scan *scan, struct loc_hit *hits)
{
	size_t longest = (scan->steps > scan->subjects ? scan->steps : scan->subjects) + 1;
	struct searching s = {
		.scratch = malloc(longest * sizeof(double)),
		.scratch2 = malloc(longest * sizeof(double)),
		.medians = malloc(longest * sizeof(double)),
		.noise = malloc(longest * sizeof(double)),
		.agreeing = malloc(longest * sizeof(unsigned)),
	};
	int ret = -ENOMEM;

	if (!s.scratch || !s.scratch2 || !s.medians || !s.noise || !s.agreeing)
		goto out;
	memset(hits, 0, scan->subjects * sizeof(*hits));
	search(scan, &s, lasting_limit(scan, s.scratch), 0, hits);
	ret = scan->changes ? search_changes(scan, &s, hits) : 0;
out:
	free(s.scratch);
	free(s.scratch2);
	free(s.medians);
	free(s.noise);
	free(s.agreeing);
	return ret;
}
