/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * metric_config.json of the user guide (5.3.2.2): how the documented localiser aggregates and judges each metric. Read by
 * cmd_localize and the service for `algorithm: documented`. An absent file means the built-in metrics, which are also
 * installed as a file; a broken one is an error that names the key, its value and what it may be.
 */
#ifndef ANALYZE_METRIC_CONFIG_H
#define ANALYZE_METRIC_CONFIG_H

#include "analyze/model_config.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define METRIC_CONFIG_PATH "/etc/systrace/config/metric_config.json"
#define METRIC_MAX 16
#define METRIC_MAX_FUNCS 4

enum metric_func {
	METRIC_MEAN,
	METRIC_MIN,
	METRIC_MAX_OF,
	METRIC_MEDIAN,
	METRIC_SUM,
	METRIC_STD,
	METRIC_COUNT,
	METRIC_PERCENTILE,
};

enum metric_distance { METRIC_EUCLIDEAN, METRIC_MANHATTAN, METRIC_CHEBYSHEV };

enum metric_space { METRIC_SPACE_NONE, METRIC_SPACE_DBSCAN, METRIC_SPACE_OUTER };

enum metric_time { METRIC_TIME_NONE, METRIC_TIME_DBSCAN, METRIC_TIME_KSIGMA };

enum metric_bound { METRIC_LOWER = 1, METRIC_UPPER = 2, METRIC_BOTH = 3 };

struct metric_aggregate {
	enum metric_func func;
	double percentile; /* 0..100, of METRIC_PERCENTILE */
};

struct metric_space_detector {
	enum metric_space type;
	enum metric_distance dist_metric;
	double eps; /* ms, or of the scaled values */
	double cv_threshold; /* |value - normal| / normal */
	unsigned min_samples;
	unsigned window_size; /* points of one judgement; windows do not overlap */
	bool scaling; /* values of a window are scaled to 0..1 first */
};

struct metric_nsigma {
	unsigned training_window_size;
	unsigned min_update_window_size;
	double min_std_val;
	double bias; /* bounds are moved outwards by this share ... */
	double abs_bias; /* ... and by this much */
	double nsigma_coefficient;
	enum metric_bound detect_type;
	double min_expert_lower_bound, max_expert_lower_bound; /* NAN = not set */
	double min_expert_upper_bound, max_expert_upper_bound;
};

struct metric_time_detector {
	enum metric_time type;
	double preprocess_eps; /* share of the series' median */
	unsigned preprocess_min_samples;
	struct metric_nsigma nsigma; /* of METRIC_TIME_KSIGMA */
};

struct metric {
	char name[64];
	bool device; /* metric_type; else host */
	double during_s; /* seconds of one point */
	struct metric_aggregate funcs[METRIC_MAX_FUNCS];
	size_t funcs_count;
	unsigned priority; /* lower ones are judged first */
	unsigned alarm_filter_window_size; /* points in a row before somebody is accused */
	struct metric_space_detector space;
	struct metric_time_detector time;
};

struct metric_config {
	struct metric metrics[METRIC_MAX];
	size_t count;
};

/** metric_config_defaults - the built-in metrics: one for each of the documented five kinds of slowness */
void metric_config_defaults(struct metric_config *config);

/**
 * metric_config_load - read the configuration
 * @path: file; NULL = METRIC_CONFIG_PATH, which may be absent
 *
 * A metric that the file names starts from the built-in one of that name where there is one. Context: tool. Return: 0,
 * -errno with @err.
 */
int metric_config_load(struct metric_config *config, const char *path, struct st_err *err);

/**
 * config_load_both - model_config.json and metric_config.json
 * @path: the first, or the directory of both; NULL = their usual places
 *
 * The second one is taken from the same directory if it is there. Return: 0, -errno with @err; model_config_fini() in any
 * case.
 */
int config_load_both(struct model_config *model, struct metric_config *metrics, const char *path, struct st_err *err);

/** metric_config_find - by name, upper and lower case alike. Return: NULL if there is none. */
const struct metric *metric_config_find(const struct metric_config *config, const char *name);

#endif
