/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading of model_config.json: one row per key says its type and where its value goes. null and the text "null" both
 * mean "not configured", as the published files use them.
 */
#include "analyze/model_config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

static void set_defaults(struct model_config *config)
{
	*config = (struct model_config){ .max_num_normal_results = 16 };
	failslow_defaults(&config->failslow);
}

const char *model_config_input(const char *configured)
{
	const char *dump = getenv("SYSTRACE_DUMP_PATH");

	if (configured && access(configured, F_OK) == 0)
		return configured;
	dump = dump && *dump ? dump : "/home/sysTrace";
	return access(dump, F_OK) == 0 ? dump : configured;
}

void model_config_fini(struct model_config *config)
{
	free(config->training_log);
	free(config->fail_slow_perception_path);
	free(config->root_path);
	free(config->slow_node_detection_path);
	free(config->algorithm);
	free(config->loaded_from);
	*config = (struct model_config){ 0 };
}

#ifdef HAVE_JANSSON

enum key_type { KEY_TEXT, KEY_COUNT, KEY_REAL, KEY_LONG, KEY_KINDS, KEY_KNOWN };

#define AT(member) offsetof(struct model_config, member)

/* Keys of the guide that other parts of the diagnosis read are known here, so that one file serves all */
static const struct key {
	const char *name;
	enum key_type type;
	size_t at;
} keys[] = {
	{ "training_log", KEY_TEXT, AT(training_log) },
	{ "fail_slow_perception_path", KEY_TEXT, AT(fail_slow_perception_path) },
	{ "root_path", KEY_TEXT, AT(root_path) },
	{ "slow_node_detection_path", KEY_TEXT, AT(slow_node_detection_path) },
	{ "algorithm", KEY_TEXT, AT(algorithm) },
	{ "max_data_queue_steps", KEY_COUNT, AT(failslow.max_data_queue_steps) },
	{ "min_startup_detection_steps", KEY_COUNT, AT(failslow.min_startup_detection_steps) },
	{ "task_stable_step", KEY_COUNT, AT(failslow.task_stable_step) },
	{ "steps_window_size", KEY_COUNT, AT(failslow.steps_window_size) },
	{ "fail_slow_span_mins", KEY_REAL, AT(failslow.fail_slow_span_mins) },
	{ "hang_times_mins_thr", KEY_REAL, AT(failslow.hang_times_mins_thr) },
	{ "k_sigma", KEY_REAL, AT(failslow.k_sigma) },
	{ "anomaly_degree_thr", KEY_REAL, AT(failslow.anomaly_degree_thr) },
	{ "robust_spike_thr", KEY_REAL, AT(failslow.robust_spike_thr) },
	{ "robust_shift_thr", KEY_REAL, AT(failslow.robust_shift_thr) },
	{ "robust_detect_type", KEY_KINDS, AT(off_kinds) },
	{ "max_num_normal_results", KEY_LONG, AT(max_num_normal_results) },
	{ "with_fail_slow", KEY_KNOWN, 0 },
	{ "slow_node_detection_range_times", KEY_KNOWN, 0 },
	{ "slow_node_detection_time_span_hours", KEY_KNOWN, 0 },
	{ "data_type", KEY_KNOWN, 0 },
	{ "enable_detect_type", KEY_KNOWN, 0 },
	{ "fail_slow_ops", KEY_KNOWN, 0 },
	{ "save_image", KEY_KNOWN, 0 },
	{ "record_kpi", KEY_KNOWN, 0 },
	{ "use_plot", KEY_KNOWN, 0 },
	{ "look_back", KEY_KNOWN, 0 },
	{ "hccl_domain", KEY_KNOWN, 0 },
	{ "rank_table_json", KEY_KNOWN, 0 },
	{ "debug_data", KEY_KNOWN, 0 },
};

static bool is_unset(const json_t *value)
{
	return json_is_null(value) || (json_is_string(value) && !strcmp(json_string_value(value), "null"));
}

static int wrong(const struct key *key, const json_t *value, const char *want, struct st_err *err)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

	err_set(err, -EINVAL, "%s is %s: it must be %s", key->name, text ? text : "unreadable", want);
	free(text);
	return -EINVAL;
}

/* "robust_detect_type": { "compute": true, "comm": false, ... } */
static int take_kinds(const struct key *key, const json_t *value, unsigned *off, struct st_err *err)
{
	unsigned kind;
	const char *name;
	json_t *on;

	if (!json_is_object(value))
		return wrong(key, value, "an object of switches", err);
	json_object_foreach((json_t *)value, name, on)
	{
		for (kind = 0; kind < LOC_KINDS && strcmp(loc_kind_word((enum loc_kind)kind), name); kind++)
			;
		if (kind == LOC_KINDS || !json_is_boolean(on))
			return wrong(key, value, "true or false for compute, launch, comm, dataloader, ckpt, hang",
				     err);
		if (json_is_false(on))
			*off |= 1u << kind;
	}
	return 0;
}

static int take_key(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	void *at = (char *)config + key->at;
	double number = json_number_value(value);
	char *text;

	if (is_unset(value) || key->type == KEY_KNOWN)
		return 0;
	switch (key->type) {
	case KEY_TEXT:
		if (!json_is_string(value))
			return wrong(key, value, "a text", err);
		text = strdup(json_string_value(value));
		if (!text)
			return err_set(err, -ENOMEM, "out of memory");
		free(*(char **)at);
		*(char **)at = text;
		return 0;
	case KEY_COUNT:
		if (!json_is_number(value) || number != floor(number) || number < 0 || number > 10e6)
			return wrong(key, value, "a whole number between 0 and 10000000", err);
		*(unsigned *)at = (unsigned)number;
		return 0;
	case KEY_LONG:
		if (!json_is_number(value) || number != floor(number) || number < 0 || number > 1e9)
			return wrong(key, value, "a whole number from 0", err);
		*(long *)at = (long)number;
		return 0;
	case KEY_REAL:
		if (!json_is_number(value) || number < 0)
			return wrong(key, value, "a number from 0", err);
		*(double *)at = number;
		return 0;
	case KEY_KINDS:
		return take_kinds(key, value, at, err);
	case KEY_KNOWN:
		break;
	}
	return 0;
}

static int take_all(struct model_config *config, json_t *root, struct st_err *err)
{
	const size_t count = sizeof(keys) / sizeof(keys[0]);
	const char *name;
	json_t *value;
	size_t i;
	int ret;

	json_object_foreach(root, name, value)
	{
		for (i = 0; i < count && strcmp(keys[i].name, name); i++)
			;
		if (i == count) {
			size_t used = strlen(config->unknown);

			if (used + strlen(name) + 2 < sizeof(config->unknown)) {
				strcat(config->unknown, used ? " " : "");
				strcat(config->unknown, name);
			}
			continue;
		}
		ret = take_key(config, &keys[i], value, err);
		if (ret < 0)
			return ret;
	}
	if (config->algorithm)
		config->failslow.algorithm = config->algorithm;
	return 0;
}

int model_config_load(struct model_config *config, const char *path, struct st_err *err)
{
	json_error_t where;
	struct st_err inner = { 0 };
	json_t *root;
	int ret;

	set_defaults(config);
	if (!path && access(MODEL_CONFIG_PATH, F_OK) < 0)
		return 0;
	path = path ? path : MODEL_CONFIG_PATH;
	root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
	if (!root) {
		if (access(path, R_OK) < 0)
			return err_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
		return err_set(err, -EINVAL, "%s:%d:%d: %s", path, where.line, where.column, where.text);
	}
	if (!json_is_object(root)) {
		json_decref(root);
		return err_set(err, -EINVAL, "%s: it must be one JSON object", path);
	}
	ret = take_all(config, root, &inner);
	json_decref(root);
	if (ret < 0)
		return err_set(err, ret, "%s: %s", path, inner.text);
	config->loaded_from = strdup(path);
	return config->loaded_from ? 0 : err_set(err, -ENOMEM, "out of memory");
}

#else

int model_config_load(struct model_config *config, const char *path, struct st_err *err)
{
	set_defaults(config);
	if (path || access(MODEL_CONFIG_PATH, F_OK) == 0)
		return err_set(err, -ENOTSUP, "this build has no jansson and cannot read %s",
			       path ? path : MODEL_CONFIG_PATH);
	return 0;
}

#endif
