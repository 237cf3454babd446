/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * FailSlow as the user guide describes it: a step is slow when it lies k_sigma deviations above the mean of the window
 * of steps before it, and anomaly_degree_thr above that mean. The window holds normal steps only, so that a fault that
 * lasts does not become the normal.
 */
#include "analyze/failslow_impl.h"
#include "analyze/stat.h"

#include <stdlib.h>
#include <string.h>

struct documented {
	struct failslow_params params;
	uint64_t seen; /* steps after the dropped ones */
	size_t count;
	bool last_slow;
	double window[]; /* steps_window_size normal steps, oldest first */
};

static void *documented_start(const struct failslow_params *params)
{
	struct documented *d = calloc(1, sizeof(*d) + params->steps_window_size * sizeof(d->window[0]));

	if (d)
		d->params = *params;
	return d;
}

static void push(struct documented *d, double ms)
{
	size_t size = d->params.steps_window_size;

	if (d->count == size) {
		memmove(d->window, d->window + 1, (size - 1) * sizeof(d->window[0]));
		d->count--;
	}
	d->window[d->count++] = ms;
}

static int documented_step(struct failslow *fs, void *state, const struct failslow_step *step)
{
	struct documented *d = state;
	const struct failslow_params *p = &d->params;
	double mean = 0, std = 0, degree;

	d->seen++;
	d->last_slow = false;
	if (d->count < p->steps_window_size) {
		push(d, step->ms);
		return 0;
	}
	stat_mean_std(d->window, d->count, &mean, &std);
	degree = (step->ms - mean) / mean;
	if (d->seen + p->task_stable_step < p->min_startup_detection_steps || step->ms <= mean + p->k_sigma * std ||
	    degree <= p->anomaly_degree_thr) {
		push(d, step->ms);
		return 0;
	}
	d->last_slow = true;
	return failslow_report(fs, &(struct failslow_anomaly){
					   .step = step->number,
					   .detected_step = step->number,
					   .at_us = step->begin_us,
					   .ms = step->ms,
					   .normal_ms = mean,
					   .degree = degree,
				   });
}

static double documented_normal_ms(const void *state)
{
	const struct documented *d = state;
	double mean = 0, std = 0;

	stat_mean_std(d->window, d->count, &mean, &std);
	return mean;
}

static bool documented_is_quiet(const void *state)
{
	return !((const struct documented *)state)->last_slow;
}

const struct failslow_algorithm failslow_documented = {
	.name = "documented",
	.start = documented_start,
	.step = documented_step,
	.normal_ms = documented_normal_ms,
	.is_quiet = documented_is_quiet,
};
