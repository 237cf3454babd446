/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The part of FailSlow that all algorithms share: parameters, the findings kept, the verdict, and the hang test, which
 * runs on the time of the data so that recorded jobs can be judged as well as live ones.
 */
#include "analyze/failslow.h"
#include "analyze/failslow_impl.h"
#include "analyze/stat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct failslow_algorithm *const algorithms[] = { &failslow_robust, &failslow_documented };

#define ALGORITHMS (sizeof(algorithms) / sizeof(algorithms[0]))

struct failslow {
	struct failslow_params params;
	const struct failslow_algorithm *algorithm;
	void *state;
	struct failslow_anomaly
		*ring; /* newest max_data_queue_steps findings; twice as long, so that they lie in a row */
	size_t ring_count;
	double *degrees; /* of the same findings, scratch of the verdict */
	struct failslow_anomaly first;
	uint64_t count;
	double lost_ms;
	uint64_t steps;
	double longest_ms;
	int64_t last_end_us;
	uint32_t last_number;
};

void failslow_defaults(struct failslow_params *params)
{
	*params = (struct failslow_params){
		.algorithm = algorithms[0]->name,
		.max_data_queue_steps = 500,
		.min_startup_detection_steps = 10,
		.task_stable_step = 3,
		.fail_slow_span_mins = 30,
		.hang_times_mins_thr = 30,
		.steps_window_size = 5,
		.k_sigma = 3,
		.anomaly_degree_thr = 0.2,
		.robust_spike_thr = 0.15,
		.robust_shift_thr = 0.03,
	};
}

const char *const *failslow_algorithms(void)
{
	static const char *names[ALGORITHMS + 1];
	size_t i;

	for (i = 0; i < ALGORITHMS; i++)
		names[i] = algorithms[i]->name;
	return names;
}

static const struct failslow_algorithm *find_algorithm(const char *name)
{
	size_t i;

	for (i = 0; i < ALGORITHMS; i++)
		if (name && !strcmp(algorithms[i]->name, name))
			return algorithms[i];
	return NULL;
}

/* One row per parameter that can be out of range */
static int check_params(const struct failslow_params *p, struct st_err *err)
{
	const struct {
		const char *key;
		double value, low, high;
	} rows[] = {
		{ "max_data_queue_steps", p->max_data_queue_steps, 1, 10e6 },
		{ "steps_window_size", p->steps_window_size, 2, 10e6 },
		{ "min_startup_detection_steps", p->min_startup_detection_steps, 1, 10e6 },
		{ "task_stable_step", p->task_stable_step, 0, 10e6 },
		{ "fail_slow_span_mins", p->fail_slow_span_mins, 0, 1e9 },
		{ "hang_times_mins_thr", p->hang_times_mins_thr, 0, 1e9 },
		{ "k_sigma", p->k_sigma, 0, 1e6 },
		{ "anomaly_degree_thr", p->anomaly_degree_thr, 0, 1e6 },
		{ "robust_spike_thr", p->robust_spike_thr, 0.01, 1e6 },
		{ "robust_shift_thr", p->robust_shift_thr, 0.005, 1e6 },
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!(rows[i].value >= rows[i].low && rows[i].value <= rows[i].high))
			return err_set(err, -EINVAL, "%s is %g: it must lie between %g and %g", rows[i].key,
				       rows[i].value, rows[i].low, rows[i].high);
	return 0;
}

struct failslow *failslow_new(const struct failslow_params *params, struct st_err *err)
{
	const struct failslow_algorithm *algorithm = find_algorithm(params->algorithm);
	struct failslow *fs;
	int ret;

	if (!algorithm) {
		errno = -err_set(err, -EINVAL, "algorithm '%s' is not known: it is %s or %s",
				 params->algorithm ? params->algorithm : "", algorithms[0]->name, algorithms[1]->name);
		return NULL;
	}
	ret = check_params(params, err);
	if (ret < 0) {
		errno = -ret;
		return NULL;
	}

	fs = calloc(1, sizeof(*fs));
	if (!fs)
		goto no_memory;
	fs->params = *params;
	fs->algorithm = algorithm;
	fs->ring = calloc(2 * (size_t)params->max_data_queue_steps, sizeof(*fs->ring));
	fs->degrees = calloc(params->max_data_queue_steps, sizeof(*fs->degrees));
	fs->state = algorithm->start(&fs->params);
	if (fs->ring && fs->degrees && fs->state)
		return fs;
no_memory:
	failslow_free(fs);
	err_set(err, -ENOMEM, "out of memory");
	errno = ENOMEM;
	return NULL;
}

void failslow_free(struct failslow *fs)
{
	if (!fs)
		return;
	free(fs->state);
	free(fs->ring);
	free(fs->degrees);
	free(fs);
}

int failslow_step(struct failslow *fs, const struct failslow_step *step)
{
	if (!(step->ms > 0))
		return 0;
	fs->steps++;
	fs->last_end_us = step->begin_us + (int64_t)(step->ms * 1000);
	fs->last_number = step->number;
	if (step->ms > fs->longest_ms)
		fs->longest_ms = step->ms;
	if (fs->steps <= fs->params.task_stable_step)
		return 0;
	return fs->algorithm->step(fs, fs->state, step);
}

static double lost_of(const struct failslow_anomaly *anomaly)
{
	return anomaly->ms - anomaly->normal_ms;
}

int failslow_report(struct failslow *fs, const struct failslow_anomaly *anomaly)
{
	size_t keep = fs->params.max_data_queue_steps;

	if (!fs->count)
		fs->first = *anomaly;
	fs->count++;
	fs->lost_ms += lost_of(anomaly);
	if (fs->ring_count == 2 * keep) {
		memmove(fs->ring, fs->ring + keep, keep * sizeof(*fs->ring));
		fs->ring_count = keep;
	}
	fs->ring[fs->ring_count++] = *anomaly;
	return 0;
}

/*
 * The finding that began what the verdict is about. Slight disturbances may come before: findings at the beginning that
 * lost less than half of what the typical one did, taken together, are not the onset.
 */
static const struct failslow_anomaly *onset_of(struct failslow *fs, const struct failslow_result *result)
{
	const struct failslow_anomaly *onset = &fs->first;
	double typical, sum = 0, lowest = 0;
	size_t i;

	if (result->count > result->anomalies_count) /* the beginning is not kept any more */
		return onset;
	for (i = 0; i < result->anomalies_count; i++)
		fs->degrees[i] = lost_of(&result->anomalies[i]);
	typical = stat_median(fs->degrees, result->anomalies_count);
	for (i = 0; i + 1 < result->anomalies_count; i++) {
		sum += lost_of(&result->anomalies[i]) - typical / 2;
		if (sum < lowest) {
			lowest = sum;
			onset = &result->anomalies[i + 1];
		}
	}
	return onset;
}

static void fill_slow(struct failslow *fs, struct failslow_result *result)
{
	const struct failslow_anomaly *onset;

	size_t keep = fs->params.max_data_queue_steps;
	size_t count = fs->ring_count < keep ? fs->ring_count : keep;
	size_t i;

	result->type = FAILSLOW_SLOW;
	result->anomalies = fs->ring + fs->ring_count - count;
	result->anomalies_count = count;
	result->count = fs->count;
	onset = onset_of(fs, result);
	result->onset_step = onset->step;
	result->onset_us = onset->at_us;
	result->detected_step = onset->detected_step;
	result->last_step = fs->ring[fs->ring_count - 1].step;
	result->lost_ms = fs->lost_ms;
	result->recovered = fs->algorithm->is_quiet(fs->state);
	for (i = 0; i < count; i++)
		fs->degrees[i] = result->anomalies[i].degree;
	result->slowdown = 1 + stat_median(fs->degrees, count);
}

/* A hang is one finding of its own: the step that never ended */
static void fill_hang(struct failslow *fs, struct failslow_result *result)
{
	double normal = result->normal_ms > 0 ? result->normal_ms : result->silent_ms;
	struct failslow_anomaly hang = {
		.step = fs->last_number + 1,
		.detected_step = fs->last_number + 1,
		.at_us = fs->last_end_us,
		.ms = result->silent_ms,
		.normal_ms = normal,
		.degree = (result->silent_ms - normal) / normal,
	};

	if (!fs->count) {
		result->onset_step = hang.step;
		result->detected_step = hang.step;
	}
	failslow_report(fs, &hang);
	result->type = FAILSLOW_HANG;
	result->anomalies = fs->ring + fs->ring_count - 1;
	result->anomalies_count = 1;
	result->count = 1;
	result->last_step = hang.step;
	result->recovered = false;
	result->lost_ms = hang.ms - hang.normal_ms;
}

int failslow_finish(struct failslow *fs, int64_t until_us, struct failslow_result *result)
{
	*result = (struct failslow_result){ .slowdown = 1, .steps = fs->steps, .longest_ms = fs->longest_ms };
	if (!fs->steps)
		return 0;
	result->normal_ms = fs->algorithm->normal_ms(fs->state);
	if (fs->count)
		fill_slow(fs, result);

	result->silent_ms = until_us > fs->last_end_us ? (double)(until_us - fs->last_end_us) / 1000 : 0;
	if (result->silent_ms > fs->params.hang_times_mins_thr * 60e3) {
		fill_hang(fs, result);
		return 1;
	}
	return fs->steps >= fs->params.min_startup_detection_steps;
}

void failslow_hang(struct failslow *fs, struct failslow_result *result)
{
	fill_hang(fs, result);
}
