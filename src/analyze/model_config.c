/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading of model_config.json: one row per key says its type and where its value goes. null and the text "null" both
 * mean "not configured", as the published files use them.
 */
#include "analyze/model_config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

static const char *const built_in_ops[MODEL_KINDS] = { "HcclAllGather", "HcclAllGather_launch", "HcclBatchSendRecv",
						       "Dataloader", "SaveCkpt" };

static void set_defaults(struct model_config *config)
{
	*config = (struct model_config){
		.max_num_normal_results = 16,
		.with_fail_slow = -1,
		.slow_node_detection_time_span_hours = 0.5,
		.detect = { [LOC_COMPUTE] = true },
		.look_back = 20,
	};
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

const char *model_config_op(const struct model_config *config, enum loc_kind kind)
{
	return config->ops[kind] ? config->ops[kind] : built_in_ops[kind];
}

uint32_t model_config_domain(const struct model_config *config, struct ev_session *session, int32_t rank)
{
	size_t i, k;

	for (i = 0; i < config->domains_count; i++) {
		const struct model_domain *d = &config->domains[i];

		for (k = 0; k < d->count && d->ranks[k] != rank; k++)
			;
		if (k < d->count && d->count > 1)
			return ev_name(session, d->name, strlen(d->name));
	}
	return 0;
}

const char *model_config_ip(const struct model_config *config, int32_t rank)
{
	size_t i;

	for (i = 0; i < config->table_count; i++)
		if (config->table[i].rank == rank)
			return config->table[i].ip;
	return NULL;
}

void model_config_fini(struct model_config *config)
{
	size_t i;

	for (i = 0; i < config->domains_count; i++) {
		free(config->domains[i].name);
		free(config->domains[i].ranks);
	}
	for (i = 0; i < MODEL_KINDS; i++)
		free(config->ops[i]);
	free(config->domains);
	free(config->table);
	free(config->data_type);
	free(config->save_image);
	free(config->rank_table_json);
	free(config->on_finding);
	free(config->training_log);
	free(config->fail_slow_perception_path);
	free(config->root_path);
	free(config->slow_node_detection_path);
	free(config->algorithm);
	free(config->loaded_from);
	*config = (struct model_config){ 0 };
}

#ifdef HAVE_JANSSON

enum key_type { KEY_TEXT, KEY_COUNT, KEY_REAL, KEY_LONG, KEY_BOOL, KEY_OWN };

/* keys of KEY_OWN are read by a function of their own: 0 or -errno with @err */
struct key;
typedef int take_own(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err);
static take_own take_kinds, take_with, take_range, take_detect, take_ops, take_domains;

#define AT(member) offsetof(struct model_config, member)

static const struct key {
	const char *name;
	enum key_type type;
	size_t at;
	take_own *own;
} keys[] = {
	{ "training_log", KEY_TEXT, AT(training_log), NULL },
	{ "fail_slow_perception_path", KEY_TEXT, AT(fail_slow_perception_path), NULL },
	{ "root_path", KEY_TEXT, AT(root_path), NULL },
	{ "slow_node_detection_path", KEY_TEXT, AT(slow_node_detection_path), NULL },
	{ "algorithm", KEY_TEXT, AT(algorithm), NULL },
	{ "max_data_queue_steps", KEY_COUNT, AT(failslow.max_data_queue_steps), NULL },
	{ "min_startup_detection_steps", KEY_COUNT, AT(failslow.min_startup_detection_steps), NULL },
	{ "task_stable_step", KEY_COUNT, AT(failslow.task_stable_step), NULL },
	{ "steps_window_size", KEY_COUNT, AT(failslow.steps_window_size), NULL },
	{ "fail_slow_span_mins", KEY_REAL, AT(failslow.fail_slow_span_mins), NULL },
	{ "hang_times_mins_thr", KEY_REAL, AT(failslow.hang_times_mins_thr), NULL },
	{ "k_sigma", KEY_REAL, AT(failslow.k_sigma), NULL },
	{ "anomaly_degree_thr", KEY_REAL, AT(failslow.anomaly_degree_thr), NULL },
	{ "robust_spike_thr", KEY_REAL, AT(failslow.robust_spike_thr), NULL },
	{ "robust_shift_thr", KEY_REAL, AT(failslow.robust_shift_thr), NULL },
	{ "robust_detect_type", KEY_OWN, 0, take_kinds },
	{ "max_num_normal_results", KEY_LONG, AT(max_num_normal_results), NULL },
	{ "with_fail_slow", KEY_OWN, 0, take_with },
	{ "slow_node_detection_range_times", KEY_OWN, 0, take_range },
	{ "slow_node_detection_time_span_hours", KEY_REAL, AT(slow_node_detection_time_span_hours), NULL },
	{ "data_type", KEY_TEXT, AT(data_type), NULL },
	{ "enable_detect_type", KEY_OWN, 0, take_detect },
	{ "fail_slow_ops", KEY_OWN, 0, take_ops },
	{ "save_image", KEY_TEXT, AT(save_image), NULL },
	{ "record_kpi", KEY_BOOL, AT(record_kpi), NULL },
	{ "use_plot", KEY_BOOL, AT(use_plot), NULL },
	{ "look_back", KEY_COUNT, AT(look_back), NULL },
	{ "hccl_domain", KEY_OWN, 0, take_domains },
	{ "rank_table_json", KEY_TEXT, AT(rank_table_json), NULL },
	{ "debug_data", KEY_BOOL, AT(debug_data), NULL },
	{ "auto_collect", KEY_BOOL, AT(auto_collect), NULL },
	{ "on_finding", KEY_TEXT, AT(on_finding), NULL },
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
static int take_kinds(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
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
			config->off_kinds |= 1u << kind;
	}
	return 0;
}

static int take_with(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	if (!json_is_boolean(value))
		return wrong(key, value, "true or false", err);
	config->with_fail_slow = json_is_true(value);
	return 0;
}

/* Unix seconds, Unix milliseconds, or a local time. Return: false for anything else. */
static bool take_time(const json_t *value, int64_t *ns)
{
	struct tm tm = { .tm_isdst = -1 };
	double number = json_number_value(value);
	const char *end;

	if (json_is_number(value)) {
		*ns = number > 1e11 ? (int64_t)number * 1000000 : (int64_t)(number * 1e3) * 1000000;
		return number > 0 && number < 1e14;
	}
	end = json_is_string(value) ? strptime(json_string_value(value), "%Y-%m-%d %H:%M:%S", &tm) : NULL;
	if (!end || *end)
		return false;
	*ns = (int64_t)mktime(&tm) * 1000000000;
	return true;
}

static int take_range(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	size_t count = json_array_size(value);

	if (json_is_array(value) && !count)
		return 0;
	if (count != 2 || !take_time(json_array_get(value, 0), &config->range_from_ns) ||
	    !take_time(json_array_get(value, 1), &config->range_to_ns) || config->range_from_ns > config->range_to_ns)
		return wrong(key, value,
			     "[] or [begin, end] as Unix seconds, Unix milliseconds or 'YYYY-mm-dd HH:MM:SS'", err);
	return 0;
}

/* Index of a name in a list of MODEL_KINDS, or -1 */
static int kind_of(const char *const *names, const char *name)
{
	int kind;

	for (kind = 0; kind < MODEL_KINDS; kind++)
		if (!strcmp(names[kind], name))
			return kind;
	return -1;
}

static int take_detect(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	static const char *const names[MODEL_KINDS] = { "enable_cal", "enable_op_launch", "enable_comm",
							"enable_dataloader", "enable_ckpt" };
	const char *name;
	json_t *on;

	if (!json_is_object(value))
		return wrong(key, value, "an object of switches", err);
	json_object_foreach((json_t *)value, name, on)
	{
		int kind = kind_of(names, name);

		if (kind < 0 || !json_is_boolean(on))
			return wrong(key, value,
				     "true or false for enable_cal, enable_op_launch, enable_comm, enable_dataloader, "
				     "enable_ckpt",
				     err);
		config->detect[kind] = json_is_true(on);
	}
	return 0;
}

static int take_ops(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	static const char *const names[MODEL_KINDS] = { "cal_slow", "op_launch_slow", "comm_slow", "dataloader_slow",
							"ckpt_slow" };
	const char *name;
	json_t *op;

	if (!json_is_object(value))
		return wrong(key, value, "an object of metric names", err);
	json_object_foreach((json_t *)value, name, op)
	{
		int kind = kind_of(names, name);

		if (kind < 0 || !json_is_string(op) || !json_string_length(op))
			return wrong(key, value,
				     "a metric's name for cal_slow, op_launch_slow, comm_slow, dataloader_slow, "
				     "ckpt_slow",
				     err);
		free(config->ops[kind]);
		config->ops[kind] = strdup(json_string_value(op));
		if (!config->ops[kind])
			return err_set(err, -ENOMEM, "out of memory");
	}
	return 0;
}

/* A domain of the given ranks. Return: 0, -ENOMEM, -EINVAL for anything but a list of ranks. */
static int add_domain(struct model_config *config, const char *name, size_t number, const json_t *ranks)
{
	struct model_domain *d = reallocarray(config->domains, config->domains_count + 1, sizeof(*d));
	size_t i;

	if (!d)
		return -ENOMEM;
	config->domains = d;
	d += config->domains_count++;
	*d = (struct model_domain){ .ranks = calloc(json_array_size(ranks) + 1, sizeof(*d->ranks)) };
	if (asprintf(&d->name, "%s:%zu", name, number) < 0)
		d->name = NULL;
	if (!d->name || !d->ranks)
		return -ENOMEM;
	for (i = 0; i < json_array_size(ranks); i++) {
		const json_t *rank = json_array_get(ranks, i);
		json_int_t value = json_integer_value(rank);

		if (!json_is_integer(rank) || value < 0 || value > INT32_MAX)
			return -EINVAL;
		d->ranks[d->count++] = (int32_t)value;
	}
	return json_is_array(ranks) ? 0 : -EINVAL;
}

/* "hccl_domain": { "tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]] } */
static int take_domains(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	const char *want = "an object of lists of lists of ranks: {\"tp\": [[0, 1], [2, 3]]}";
	const char *name;
	json_t *lists;
	size_t i;
	int ret = 0;

	if (!json_is_object(value))
		return wrong(key, value, want, err);
	json_object_foreach((json_t *)value, name, lists)
	{
		if (!json_is_array(lists))
			return wrong(key, value, want, err);
		for (i = 0; i < json_array_size(lists) && !ret; i++)
			ret = add_domain(config, name, i, json_array_get(lists, i));
	}
	config->domains_given = config->domains_count > 0;
	if (ret == -EINVAL)
		return wrong(key, value, want, err);
	return ret < 0 ? err_set(err, ret, "out of memory") : 0;
}

/* ---- rank table ----------------------------------------------------------------------------------------------------- */

static int add_table_rank(struct model_config *config, const json_t *device, const char *ip, json_t *ranks)
{
	const json_t *id = json_object_get(device, "rank_id");
	char *end = NULL;
	long rank = json_is_integer(id)	 ? (long)json_integer_value(id)
		    : json_is_string(id) ? strtol(json_string_value(id), &end, 10)
					 : -1;
	struct model_rank *more;

	if (rank < 0 || rank > INT32_MAX || (end && (*end || end == json_string_value(id))))
		return -EINVAL;
	more = reallocarray(config->table, config->table_count + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	config->table = more;
	more += config->table_count++;
	more->rank = (int32_t)rank;
	snprintf(more->ip, sizeof(more->ip), "%s", ip ? ip : "");
	return json_array_append_new(ranks, json_integer(rank)) < 0 ? -ENOMEM : 0;
}

/* { "server_list": [ { "server_id": "10.0.0.1", "device": [ { "rank_id": "0", ... } ] } ] } */
static int take_servers(struct model_config *config, const json_t *root)
{
	const json_t *servers = json_object_get(root, "server_list");
	bool domains = !config->domains_count;
	size_t i, k;
	int ret = json_is_array(servers) ? 0 : -EINVAL;

	for (i = 0; i < json_array_size(servers) && !ret; i++) {
		const json_t *server = json_array_get(servers, i);
		const json_t *devices = json_object_get(server, "device");
		const char *ip = json_string_value(json_object_get(server, "server_id"));
		json_t *ranks = json_array();

		ret = json_is_array(devices) && ranks ? 0 : -EINVAL;
		for (k = 0; k < json_array_size(devices) && !ret; k++)
			ret = add_table_rank(config, json_array_get(devices, k), ip, ranks);
		if (!ret && domains)
			ret = add_domain(config, "server", i, ranks);
		json_decref(ranks);
	}
	return ret;
}

/* A table that is not there is none; a broken one is an error, since results would name wrong servers */
static int read_rank_table(struct model_config *config, struct st_err *err)
{
	const char *path = config->rank_table_json ? config->rank_table_json : "./rank_table.json";
	json_error_t where;
	json_t *root;
	int ret;

	if (access(path, F_OK) < 0)
		return 0;
	root = json_load_file(path, 0, &where);
	if (!root)
		return err_set(err, -EINVAL, "rank_table_json: %s:%d:%d: %s", path, where.line, where.column,
			       where.text);
	ret = take_servers(config, root);
	json_decref(root);
	if (ret == -EINVAL)
		return err_set(err, ret,
			       "rank_table_json: %s: it must be {\"server_list\": [{\"server_id\": ..., \"device\": "
			       "[{\"rank_id\": ...}]}]}",
			       path);
	return ret < 0 ? err_set(err, ret, "out of memory") : 0;
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static int take_key(struct model_config *config, const struct key *key, const json_t *value, struct st_err *err)
{
	void *at = (char *)config + key->at;
	double number = json_number_value(value);
	char *text;

	if (is_unset(value))
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
	case KEY_BOOL:
		if (!json_is_boolean(value))
			return wrong(key, value, "true or false", err);
		*(bool *)at = json_is_true(value);
		return 0;
	case KEY_OWN:
		return key->own(config, key, value, err);
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
	return read_rank_table(config, err);
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
