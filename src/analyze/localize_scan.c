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

static void scan_scale(const struct loc_scan *scan, size_t window, const double *noise, double *medians,
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
			if (found.share < scan->floor)
				continue;
			hits[i] = found;
			hits[i].hit = true;
			hits[i].detected = begin + window - 1;
		}
	}
}

int loc_scan_run(const struct loc_scan *scan, struct loc_hit *hits)
{
	size_t longest = scan->steps > scan->subjects ? scan->steps : scan->subjects;
	double *scratch = malloc((longest + 1) * sizeof(*scratch));
	double *scratch2 = malloc((longest + 1) * sizeof(*scratch2));
	double *medians = malloc((scan->subjects + 1) * sizeof(*medians));
	double *noise = malloc((scan->subjects + 1) * sizeof(*noise));
	unsigned *agreeing = malloc((scan->subjects + 1) * sizeof(*agreeing));
	size_t i;
	int ret = -ENOMEM;

	if (!scratch || !scratch2 || !medians || !noise || !agreeing)
		goto out;
	memset(hits, 0, scan->subjects * sizeof(*hits));
	for (i = 0; i < scan->subjects; i++)
		noise[i] = scan->step_noise > 0 ? scan->step_noise
						: own_noise(scan->excess[i], scan->steps, scratch, scratch2);
	for (i = 0; i < SCALES; i++)
		scan_scale(scan, scales[i], noise, medians, scratch, agreeing, hits);
	ret = 0;
out:
	free(scratch);
	free(scratch2);
	free(medians);
	free(noise);
	free(agreeing);
	return ret;
}
