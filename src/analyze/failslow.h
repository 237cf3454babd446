/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * FailSlow: watches the times of a job's steps, one after the other, and says from which step on it was slow, by how
 * much, and whether it hangs. Called with step times by analyze/failslow_input (recorded files); the algorithms are
 * rows of a table in failslow.c. Which rank is to blame is analyze/localize's question.
 */
#ifndef ANALYZE_FAILSLOW_H
#define ANALYZE_FAILSLOW_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct failslow_params - user guide 5.2.2; failslow_defaults() fills it in */
struct failslow_params {
	const char *algorithm; /* a name of failslow_algorithms() */
	unsigned max_data_queue_steps; /* newest findings kept in the result */
	unsigned min_startup_detection_steps; /* no verdict before this many steps */
	unsigned task_stable_step; /* first steps that are not looked at */
	double fail_slow_span_mins; /* period of the service; one pass over recorded data has none */
	double hang_times_mins_thr;
	unsigned steps_window_size;
	double k_sigma;
	double anomaly_degree_thr;
	double robust_spike_thr; /* robust: single steps count from this degree on */
	double robust_shift_thr; /* robust: lasting shifts are reported from this degree on */
};

/** struct failslow_step - one finished step of the job */
struct failslow_step {
	uint32_t number; /* as in the source's own counting */
	int64_t begin_us; /* wall clock */
	double ms; /* whole step */
	double checkpoint_ms; /* part of it that saved a checkpoint */
	double workload; /* size of the step's work in any unit, 0 = unknown */
};

enum failslow_type { FAILSLOW_NORMAL, FAILSLOW_SLOW, FAILSLOW_HANG };

/** struct failslow_anomaly - one slow step */
struct failslow_anomaly {
	uint32_t step;
	uint32_t detected_step; /* the step with which the decision fell */
	int64_t at_us; /* wall clock of its begin */
	double ms;
	double normal_ms;
	double degree; /* (ms - normal_ms) / normal_ms */
};

struct failslow_result {
	enum failslow_type type;
	uint64_t count; /* slow steps found; the newest of them are in anomalies */
	const struct failslow_anomaly *anomalies; /* oldest first; valid until failslow_free() */
	size_t anomalies_count;
	uint32_t onset_step; /* first slow step (slight disturbances before it apart), detected with detected_step */
	int64_t onset_us; /* wall clock of its begin; not of a hang */
	uint32_t detected_step;
	uint32_t last_step; /* last slow step */
	bool recovered; /* steps were normal again at the end of the data */
	double slowdown; /* median of the slow steps / normal, 1 = none */
	double lost_ms; /* time above normal, all slow steps together */
	uint64_t steps; /* looked at */
	double normal_ms; /* last known normal step time */
	double silent_ms; /* time since the last finished step until the end of observation */
	double longest_ms; /* longest step seen, checkpoints included */
};

struct failslow;

/** failslow_defaults - the documented defaults */
void failslow_defaults(struct failslow_params *params);

/** failslow_algorithms - names, in the order of preference, ended by NULL */
const char *const *failslow_algorithms(void);

/**
 * failslow_new - a detector without data
 * @params: copied
 *
 * Context: tool. Return: NULL with errno and @err (unknown algorithm, senseless value; it names the key).
 */
struct failslow *failslow_new(const struct failslow_params *params, struct st_err *err);
void failslow_free(struct failslow *fs);

/** failslow_step - the next step; a time that is not above 0 is ignored. Return: 0 or -ENOMEM. */
int failslow_step(struct failslow *fs, const struct failslow_step *step);

/**
 * failslow_finish - judge the end of the data
 * @until_us: wall clock up to which the job was observed, 0 = not beyond its last step
 *
 * Return: 1 with a verdict in @result, 0 when there were too few steps for one (@result->steps says how many; a hang is
 * found with any number of steps from 1).
 */
int failslow_finish(struct failslow *fs, int64_t until_us, struct failslow_result *result);

/** failslow_hang - behind failslow_finish(): the job hangs, as others than its steps have shown; @result is changed to that */
void failslow_hang(struct failslow *fs, struct failslow_result *result);

#endif
