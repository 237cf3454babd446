/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading of metric_config.json (metric_config.h). One row per key says its type and place; nested objects are tables of
 * their own. Keys that are not known are errors here: a misspelt threshold must not silently become a default.
 */
#include "analyze/metric_config.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

static const struct metric_nsigma usual_nsigma = {
	.training_window_size = 20,
	.min_update_window_size = 10,
	.min_std_val = 0.1,
	.bias = 0.1,
	.abs_bias = 0,
	.nsigma_coefficient = 3,
	.detect_type = METRIC_UPPER,
	.min_expert_lower_bound = NAN,
	.max_expert_lower_bound = NAN,
	.min_expert_upper_bound = NAN,
	.max_expert_upper_bound = NAN,
};

static const struct metric_space_detector usual_space = {
	.eps = 0.5, .cv_threshold = 0.03, .min_samples = 2, .window_size = 5, .scaling = true
};

static const struct metric_time_detector usual_time = { .preprocess_eps = 0.05, .preprocess_min_samples = 3 };

/* what differs from the usual; time detectors are for jobs with nothing to compare, and off */
static const struct {
	const char *name;
	bool device;
	unsigned priority, filter, window;
	enum metric_space space;
	double cv_threshold;
	enum metric_time time;
	enum metric_func func;
} built_in[] = {
	{ "HcclAllGather", true, 1, 10, 5, METRIC_SPACE_DBSCAN, 0.4, METRIC_TIME_NONE, METRIC_MEAN },
	/* the smallest of a window: the call behind a wait of the host, before it runs ahead of the device again */
	{ "HcclAllGather_launch", false, 2, 10, 5, METRIC_SPACE_DBSCAN, 0.4, METRIC_TIME_NONE, METRIC_MIN },
	{ "HcclBatchSendRecv", true, 3, 10, 5, METRIC_SPACE_DBSCAN, 0.4, METRIC_TIME_NONE, METRIC_MEAN },
	{ "Dataloader", false, 4, 5, 1, METRIC_SPACE_OUTER, 0.5, METRIC_TIME_NONE, METRIC_MEAN },
	{ "SaveCkpt", false, 5, 1, 1, METRIC_SPACE_OUTER, 0.3, METRIC_TIME_NONE, METRIC_MEAN },
};

static void start_metric(struct metric *m, const char *name)
{
	*m = (struct metric){
		.during_s = 3,
		.funcs = { { METRIC_MEAN, 50 } },
		.funcs_count = 1,
		.priority = 10,
		.alarm_filter_window_size = 5,
		.space = usual_space,
		.time = usual_time,
	};
	m->time.nsigma = usual_nsigma;
	snprintf(m->name, sizeof(m->name), "%s", name);
}

void metric_config_defaults(struct metric_config *config)
{
	size_t i;

	config->count = sizeof(built_in) / sizeof(built_in[0]);
	for (i = 0; i < config->count; i++) {
		struct metric *m = &config->metrics[i];

		start_metric(m, built_in[i].name);
		m->device = built_in[i].device;
		m->priority = built_in[i].priority;
		m->alarm_filter_window_size = built_in[i].filter;
		m->space.type = built_in[i].space;
		m->space.window_size = built_in[i].window;
		m->space.cv_threshold = built_in[i].cv_threshold;
		m->time.type = built_in[i].time;
		m->funcs[0].func = built_in[i].func;
	}
}

const struct metric *metric_config_find(const struct metric_config *config, const char *name)
{
	size_t i;

	for (i = 0; i < config->count; i++)
		if (!strcasecmp(config->metrics[i].name, name))
			return &config->metrics[i];
	return NULL;
}

#ifdef HAVE_JANSSON

enum key_type { KEY_COUNT, KEY_REAL, KEY_BOUND, KEY_BOOL, KEY_WORD, KEY_OBJECT, KEY_FUNCS };

/** struct word - a text that a key may have, and its value */
struct word {
	const char *text;
	int value;
};

/** struct key - one row: what a key holds and where it goes */
struct key {
	const char *name;
	enum key_type type;
	size_t at;
	double low; /* smallest number */
	const void *more; /* words (KEY_WORD) or keys (KEY_OBJECT) */
	size_t type_at; /* KEY_OBJECT: enum to clear for null */
};

static const struct word types[] = { { "device", 1 }, { "host", 0 }, { NULL, 0 } };
static const struct word distances[] = { { "euclidean", METRIC_EUCLIDEAN },
					 { "manhattan", METRIC_MANHATTAN },
					 { "cityblock", METRIC_MANHATTAN },
					 { "chebyshev", METRIC_CHEBYSHEV },
					 { NULL, 0 } };
static const struct word spaces[] = { { "SlidingWindowDBSCAN", METRIC_SPACE_DBSCAN },
				      { "OuterDataDetector", METRIC_SPACE_OUTER },
				      { NULL, 0 } };
static const struct word times[] = { { "TSDBSCANDetector", METRIC_TIME_DBSCAN },
				     { "SlidingWindowKSigmaDetector", METRIC_TIME_KSIGMA },
				     { NULL, 0 } };
static const struct word sigmas[] = { { "SlidingWindowNSigma", 0 }, { NULL, 0 } };
static const struct word bounds[] = {
	{ "lower_bound", METRIC_LOWER }, { "upper_bound", METRIC_UPPER }, { "bi_bound", METRIC_BOTH }, { NULL, 0 }
};
static const struct word funcs[] = { { "mean", METRIC_MEAN },
				     { "min", METRIC_MIN },
				     { "max", METRIC_MAX_OF },
				     { "median", METRIC_MEDIAN },
				     { "sum", METRIC_SUM },
				     { "std", METRIC_STD },
				     { "count", METRIC_COUNT },
				     { "percentile", METRIC_PERCENTILE },
				     { NULL, 0 } };

#define AT(member) offsetof(struct metric, member)
#define NO_PLACE SIZE_MAX

static const struct key nsigma_keys[] = {
	{ "type", KEY_WORD, NO_PLACE, 0, sigmas, 0 },
	{ "training_window_size", KEY_COUNT, AT(time.nsigma.training_window_size), 2, NULL, 0 },
	{ "min_update_window_size", KEY_COUNT, AT(time.nsigma.min_update_window_size), 2, NULL, 0 },
	{ "min_std_val", KEY_REAL, AT(time.nsigma.min_std_val), 0, NULL, 0 },
	{ "bias", KEY_REAL, AT(time.nsigma.bias), -INFINITY, NULL, 0 },
	{ "abs_bias", KEY_REAL, AT(time.nsigma.abs_bias), -INFINITY, NULL, 0 },
	{ "nsigma_coefficient", KEY_REAL, AT(time.nsigma.nsigma_coefficient), 0, NULL, 0 },
	{ "detect_type", KEY_WORD, AT(time.nsigma.detect_type), 0, bounds, 0 },
	{ "min_expert_lower_bound", KEY_BOUND, AT(time.nsigma.min_expert_lower_bound), 0, NULL, 0 },
	{ "max_expert_lower_bound", KEY_BOUND, AT(time.nsigma.max_expert_lower_bound), 0, NULL, 0 },
	{ "min_expert_upper_bound", KEY_BOUND, AT(time.nsigma.min_expert_upper_bound), 0, NULL, 0 },
	{ "max_expert_upper_bound", KEY_BOUND, AT(time.nsigma.max_expert_upper_bound), 0, NULL, 0 },
	{ NULL, 0, 0, 0, NULL, 0 },
};

static const struct key space_keys[] = {
	{ "dist_metric", KEY_WORD, AT(space.dist_metric), 0, distances, 0 },
	{ "eps", KEY_REAL, AT(space.eps), 0, NULL, 0 },
	{ "cv_threshold", KEY_REAL, AT(space.cv_threshold), 0, NULL, 0 },
	{ "min_samples", KEY_COUNT, AT(space.min_samples), 1, NULL, 0 },
	{ "window_size", KEY_COUNT, AT(space.window_size), 1, NULL, 0 },
	{ "scaling", KEY_BOOL, AT(space.scaling), 0, NULL, 0 },
	{ "type", KEY_WORD, AT(space.type), 0, spaces, 0 },
	{ NULL, 0, 0, 0, NULL, 0 },
};

/* preprocess_min_samplesES is how the guide prints it */
static const struct key time_keys[] = {
	{ "preprocess_eps", KEY_REAL, AT(time.preprocess_eps), 0, NULL, 0 },
	{ "preprocess_min_samples", KEY_COUNT, AT(time.preprocess_min_samples), 1, NULL, 0 },
	{ "preprocess_min_samplesES", KEY_COUNT, AT(time.preprocess_min_samples), 1, NULL, 0 },
	{ "type", KEY_WORD, AT(time.type), 0, times, 0 },
	{ "n_sigma_method", KEY_OBJECT, 0, 0, nsigma_keys, NO_PLACE },
	{ NULL, 0, 0, 0, NULL, 0 },
};

static const struct key aggregation_keys[] = {
	{ "during_s", KEY_REAL, AT(during_s), 0.001, NULL, 0 },
	{ "funcs", KEY_FUNCS, 0, 0, NULL, 0 },
	{ NULL, 0, 0, 0, NULL, 0 },
};

static const struct key metric_keys[] = {
	{ "metric_type", KEY_WORD, NO_PLACE, 0, types, 0 }, /* a bool: see take_word() */
	{ "aggregation", KEY_OBJECT, 0, 0, aggregation_keys, NO_PLACE },
	{ "priority", KEY_COUNT, AT(priority), 0, NULL, 0 },
	{ "alarm_filter_window_size", KEY_COUNT, AT(alarm_filter_window_size), 1, NULL, 0 },
	{ "space_detector", KEY_OBJECT, 0, 0, space_keys, AT(space.type) },
	{ "time_detector", KEY_OBJECT, 0, 0, time_keys, AT(time.type) },
	{ NULL, 0, 0, 0, NULL, 0 },
};

static bool is_unset(const json_t *value)
{
	return json_is_null(value) || (json_is_string(value) && !strcmp(json_string_value(value), "null"));
}

static int wrong(const char *where, const json_t *value, const char *want, struct st_err *err)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

	err_set(err, -EINVAL, "%s is %.100s: it must be %s", where, text ? text : "unreadable", want);
	free(text);
	return -EINVAL;
}

static int find_word(const char *where, const struct word *words, const json_t *value, int *out, struct st_err *err)
{
	const char *text = json_string_value(value);
	char want[256] = "one of";
	size_t i;

	for (i = 0; words[i].text; i++) {
		if (text && !strcasecmp(words[i].text, text)) {
			*out = words[i].value;
			return 0;
		}
		snprintf(want + strlen(want), sizeof(want) - strlen(want), "%s %s", i ? "," : "", words[i].text);
	}
	return wrong(where, value, want, err);
}

static int take_word(struct metric *m, const struct key *key, const char *where, const json_t *value,
		     struct st_err *err)
{
	int found = 0;
	int ret = find_word(where, key->more, value, &found, err);

	if (ret < 0)
		return ret;
	if (key->more == types)
		m->device = found;
	else if (key->at != NO_PLACE)
		*(int *)((char *)m + key->at) = found;
	return 0;
}

/* [{ "func": "percentile", "func_params": { "q": 90 } }]; the share may also be called percentile */
static int take_func(struct metric *m, const char *where, const json_t *entry, struct st_err *err)
{
	struct metric_aggregate *to = &m->funcs[m->funcs_count];
	const json_t *params = json_object_get(entry, "func_params");
	const json_t *share = json_object_get(params, "q");
	char at[224];
	int func = 0, ret;

	if (!json_is_object(entry) || !json_object_get(entry, "func"))
		return wrong(where, entry, "an object with func and func_params", err);
	snprintf(at, sizeof(at), "%s.func", where);
	ret = find_word(at, funcs, json_object_get(entry, "func"), &func, err);
	if (ret < 0)
		return ret;
	share = share ? share : json_object_get(params, "percentile");
	if (share && (!json_is_number(share) || json_number_value(share) < 0 || json_number_value(share) > 100)) {
		snprintf(at, sizeof(at), "%s.func_params", where);
		return wrong(at, params, "{\"q\": a number from 0 to 100}", err);
	}
	*to = (struct metric_aggregate){ (enum metric_func)func, share ? json_number_value(share) : 50 };
	m->funcs_count++;
	return 0;
}

static int take_funcs(struct metric *m, const char *where, const json_t *value, struct st_err *err)
{
	size_t i;
	int ret = 0;

	if (!json_is_array(value) || !json_array_size(value) || json_array_size(value) > METRIC_MAX_FUNCS)
		return wrong(where, value, "a list of one to four functions", err);
	m->funcs_count = 0;
	for (i = 0; i < json_array_size(value) && !ret; i++)
		ret = take_func(m, where, json_array_get(value, i), err);
	return ret;
}

static int take_keys(struct metric *m, const struct key *table, const char *where, const json_t *object,
		     struct st_err *err);

static int take_number(struct metric *m, const struct key *key, const char *where, const json_t *value,
		       struct st_err *err)
{
	double number = json_number_value(value);
	char want[96];

	if (key->type == KEY_COUNT) {
		snprintf(want, sizeof(want), "a whole number from %g to 1000000", key->low);
		if (!json_is_number(value) || number != floor(number) || number < key->low || number > 1e6)
			return wrong(where, value, want, err);
		*(unsigned *)((char *)m + key->at) = (unsigned)number;
		return 0;
	}
	snprintf(want, sizeof(want), key->type == KEY_BOUND ? "a number or null" : "a number from %g", key->low);
	if (!json_is_number(value) || (key->type == KEY_REAL && number < key->low))
		return wrong(where, value, want, err);
	*(double *)((char *)m + key->at) = number;
	return 0;
}

static int take_key(struct metric *m, const struct key *key, const char *where, const json_t *value, struct st_err *err)
{
	if (is_unset(value)) {
		if (key->type == KEY_OBJECT && key->type_at != NO_PLACE)
			*(int *)((char *)m + key->type_at) = 0;
		else if (key->type == KEY_BOUND)
			*(double *)((char *)m + key->at) = NAN;
		return 0;
	}
	switch (key->type) {
	case KEY_COUNT:
	case KEY_REAL:
	case KEY_BOUND:
		return take_number(m, key, where, value, err);
	case KEY_BOOL:
		if (!json_is_boolean(value))
			return wrong(where, value, "true or false", err);
		*(bool *)((char *)m + key->at) = json_is_true(value);
		return 0;
	case KEY_WORD:
		return take_word(m, key, where, value, err);
	case KEY_FUNCS:
		return take_funcs(m, where, value, err);
	case KEY_OBJECT:
		return take_keys(m, key->more, where, value, err);
	}
	return 0;
}

static int unknown_key(const struct key *table, const char *where, const json_t *value, struct st_err *err)
{
	char want[512] = "left out; known keys are";
	size_t i;

	for (i = 0; table[i].name; i++)
		snprintf(want + strlen(want), sizeof(want) - strlen(want), "%s %s", i ? "," : "", table[i].name);
	return wrong(where, value, want, err);
}

static int take_keys(struct metric *m, const struct key *table, const char *where, const json_t *object,
		     struct st_err *err)
{
	char inner[192];
	const char *name;
	json_t *value;
	size_t i;
	int ret;

	if (!json_is_object(object))
		return wrong(where, object, "an object, or null for none", err);
	json_object_foreach((json_t *)object, name, value)
	{
		snprintf(inner, sizeof(inner), "%s.%.60s", where, name);
		for (i = 0; table[i].name && strcmp(table[i].name, name); i++)
			;
		ret = table[i].name ? take_key(m, &table[i], inner, value, err) : unknown_key(table, inner, value, err);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* A detector that is configured needs a type: without one the built-in type of the metric holds, or none */
static int take_metric(struct metric_config *config, const char *name, const json_t *value, struct st_err *err)
{
	struct metric *m = (struct metric *)metric_config_find(config, name);

	if (strlen(name) >= sizeof(m->name))
		return err_set(err, -EINVAL, "%.80s: the name is longer than %zu bytes", name, sizeof(m->name) - 1);
	if (!m && config->count == METRIC_MAX)
		return err_set(err, -EINVAL, "%s: more than %d metrics", name, METRIC_MAX);
	if (!m) {
		m = &config->metrics[config->count++];
		start_metric(m, name);
		m->device = true;
	}
	return take_keys(m, metric_keys, name, value, err);
}

int metric_config_load(struct metric_config *config, const char *path, struct st_err *err)
{
	struct st_err inner = { 0 };
	json_error_t where;
	const char *name;
	json_t *root, *value;
	int ret = 0;

	metric_config_defaults(config);
	if (!path && access(METRIC_CONFIG_PATH, F_OK) < 0)
		return 0;
	path = path ? path : METRIC_CONFIG_PATH;
	root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
	if (!root) {
		if (access(path, R_OK) < 0)
			return err_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
		return err_set(err, -EINVAL, "%s:%d:%d: %s", path, where.line, where.column, where.text);
	}
	if (!json_is_object(root))
		ret = err_set(&inner, -EINVAL, "it must be one JSON object");
	json_object_foreach(root, name, value)
	{
		if (!ret)
			ret = take_metric(config, name, value, &inner);
	}
	json_decref(root);
	return ret < 0 ? err_set(err, ret, "%s: %s", path, inner.text) : 0;
}

#else

int metric_config_load(struct metric_config *config, const char *path, struct st_err *err)
{
	metric_config_defaults(config);
	if (path || access(METRIC_CONFIG_PATH, F_OK) == 0)
		return err_set(err, -ENOTSUP, "this build has no jansson and cannot read %s",
			       path ? path : METRIC_CONFIG_PATH);
	return 0;
}

#endif

int config_load_both(struct model_config *model, struct metric_config *metrics, const char *path, struct st_err *err)
{
	char first[PATH_MAX], second[PATH_MAX];
	const char *slash = path ? strrchr(path, '/') : NULL;
	int length = slash ? (int)(slash - path) : 1;
	struct stat st;
	bool is_dir = path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	int ret;

	if (is_dir)
		length = (int)strlen(path);
	snprintf(first, sizeof(first), "%s%s", path ? path : "", is_dir ? "/model_config.json" : "");
	snprintf(second, sizeof(second), "%.*s/metric_config.json", length, slash || is_dir ? path : ".");
	ret = model_config_load(model, path && (!is_dir || access(first, F_OK) == 0) ? first : NULL, err);
	return ret < 0 ? ret : metric_config_load(metrics, path && access(second, F_OK) == 0 ? second : NULL, err);
}
