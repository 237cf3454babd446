/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Both configuration files: the installed copies are the built-in defaults, every key is read, mistakes name the key. */
#include "analyze/metric_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *write_text(const char *text)
{
	static char path[64];
	int fd;

	strcpy(path, "/tmp/systrace-config-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	return path;
}

static int load_metrics(const char *text, struct metric_config *config, struct st_err *err)
{
	const char *path = write_text(text);
	int ret = metric_config_load(config, path, err);

	unlink(path);
	return ret;
}

static int load_model(const char *text, struct model_config *config, struct st_err *err)
{
	const char *path = write_text(text);
	int ret = model_config_load(config, path, err);

	unlink(path);
	return ret;
}

static void installed_metrics_are_the_defaults(void **state)
{
	struct metric_config file, built;
	struct st_err err = { 0 };
	size_t i;

	metric_config_defaults(&built);
	assert_int_equal(metric_config_load(&file, ST_SOURCE_DIR "/config/metric_config.json", &err), 0);
	assert_int_equal(file.count, built.count);
	for (i = 0; i < built.count; i++) {
		const struct metric *a = &file.metrics[i], *b = &built.metrics[i];

		assert_string_equal(a->name, b->name);
		assert_int_equal(a->device, b->device);
		assert_true(a->during_s == b->during_s);
		assert_int_equal(a->funcs_count, b->funcs_count);
		assert_int_equal(a->funcs[0].func, b->funcs[0].func);
		assert_int_equal(a->priority, b->priority);
		assert_int_equal(a->alarm_filter_window_size, b->alarm_filter_window_size);
		assert_int_equal(a->space.type, b->space.type);
		assert_true(a->space.eps == b->space.eps && a->space.cv_threshold == b->space.cv_threshold);
		assert_int_equal(a->space.min_samples, b->space.min_samples);
		assert_int_equal(a->space.window_size, b->space.window_size);
		assert_int_equal(a->space.scaling, b->space.scaling);
		assert_int_equal(a->time.type, b->time.type);
	}
}

static void installed_model_is_the_default(void **state)
{
	struct model_config file, built;
	struct st_err err = { 0 };

	assert_int_equal(load_model("{}", &built, &err), 0);
	assert_int_equal(model_config_load(&file, ST_SOURCE_DIR "/config/model_config.json", &err), 0);
	assert_string_equal(file.unknown, "");
	assert_int_equal(file.failslow.max_data_queue_steps, built.failslow.max_data_queue_steps);
	assert_int_equal(file.failslow.steps_window_size, built.failslow.steps_window_size);
	assert_true(file.failslow.k_sigma == built.failslow.k_sigma);
	assert_int_equal(file.with_fail_slow, built.with_fail_slow);
	assert_memory_equal(file.detect, built.detect, sizeof(file.detect));
	assert_string_equal(model_config_op(&file, LOC_LAUNCH), model_config_op(&built, LOC_LAUNCH));
	assert_int_equal(file.look_back, built.look_back);
	assert_int_equal(file.max_num_normal_results, built.max_num_normal_results);
	assert_int_equal(file.domains_count, 0);
	model_config_fini(&file);
	model_config_fini(&built);
}

static void every_metric_key_is_read(void **state)
{
	struct metric_config config;
	struct st_err err = { 0 };
	const struct metric *m;
	const char *text =
		"{\"hcclallgather\": {\"metric_type\": \"host\", \"aggregation\": {\"during_s\": 7, \"funcs\": [{\"func\": "
		"\"percentile\", \"func_params\": {\"q\": 90}}, {\"func\": \"max\", \"func_params\": {}}]}, \"priority\": 4, "
		"\"alarm_filter_window_size\": 6, \"space_detector\": \"null\", \"time_detector\": {\"preprocess_eps\": "
		"0.2, \"preprocess_min_samplesES\": 9, \"type\": \"SlidingWindowKSigmaDetector\", \"n_sigma_method\": "
		"{\"type\": \"SlidingWindowNSigma\", \"training_window_size\": 30, \"min_update_window_size\": 12, "
		"\"min_std_val\": 0.5, \"bias\": 0.3, \"abs_bias\": 2, \"nsigma_coefficient\": 4, \"detect_type\": "
		"\"bi_bound\", \"min_expert_lower_bound\": 1, \"max_expert_lower_bound\": null, "
		"\"min_expert_upper_bound\": null, \"max_expert_upper_bound\": 99}}}}";

	assert_int_equal(load_metrics(text, &config, &err), 0);
	m = metric_config_find(&config, "HcclAllGather");
	assert_false(m->device);
	assert_true(m->during_s == 7);
	assert_int_equal(m->funcs_count, 2);
	assert_true(m->funcs[0].func == METRIC_PERCENTILE && m->funcs[0].percentile == 90);
	assert_int_equal(m->funcs[1].func, METRIC_MAX_OF);
	assert_int_equal(m->priority, 4);
	assert_int_equal(m->alarm_filter_window_size, 6);
	assert_int_equal(m->space.type, METRIC_SPACE_NONE);
	assert_int_equal(m->time.type, METRIC_TIME_KSIGMA);
	assert_true(m->time.preprocess_eps == 0.2 && m->time.preprocess_min_samples == 9);
	assert_int_equal(m->time.nsigma.training_window_size, 30);
	assert_int_equal(m->time.nsigma.min_update_window_size, 12);
	assert_true(m->time.nsigma.min_std_val == 0.5 && m->time.nsigma.bias == 0.3 && m->time.nsigma.abs_bias == 2);
	assert_true(m->time.nsigma.nsigma_coefficient == 4 && m->time.nsigma.detect_type == METRIC_BOTH);
	assert_true(m->time.nsigma.min_expert_lower_bound == 1 && isnan(m->time.nsigma.max_expert_lower_bound));
	assert_true(isnan(m->time.nsigma.min_expert_upper_bound) && m->time.nsigma.max_expert_upper_bound == 99);
}

static void mistakes_name_the_key(void **state)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{ "{\"M\": {\"space_detector\": {\"eps\": \"x\"}}}", "M.space_detector.eps is \"x\"" },
		{ "{\"M\": {\"space_detector\": {\"type\": \"KMeans\"}}}", "SlidingWindowDBSCAN, OuterDataDetector" },
		{ "{\"M\": {\"space_detectors\": {}}}", "known keys are metric_type, aggregation" },
		{ "{\"M\": {\"aggregation\": {\"funcs\": []}}}", "M.aggregation.funcs is []" },
		{ "{\"M\": {\"aggregation\": {\"funcs\": [{\"func\": \"average\"}]}}}", "mean, min, max" },
		{ "{\"M\": {\"time_detector\": {\"n_sigma_method\": {\"detect_type\": 1}}}}", "lower_bound" },
		{ "{\"M\": {\"priority\": 1.5}}", "M.priority is 1.5" },
		{ "{\"M\": 1}", "M is 1" },
		{ "[]", "one JSON object" },
		{ "{\"M\": ", "1:" },
	};
	struct metric_config config;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct st_err err = { 0 };

		assert_true(load_metrics(cases[i].text, &config, &err) < 0);
		assert_non_null(strstr(err.text, cases[i].says));
	}
}

static void model_keys_of_the_localiser(void **state)
{
	struct model_config config;
	struct st_err err = { 0 };

	assert_int_equal(
		load_model("{\"with_fail_slow\": true, \"slow_node_detection_range_times\": [1760000000, "
			   "1760000060000], \"enable_detect_type\": {\"enable_ckpt\": true, \"enable_cal\": false}, "
			   "\"fail_slow_ops\": {\"cal_slow\": \"HcclAllReduce\"}, \"hccl_domain\": {\"tp\": [[0, 1], "
			   "[2, 3]]}, \"record_kpi\": true, \"look_back\": 5, \"save_image\": \"null\", "
			   "\"on_finding\": \"logger\"}",
			   &config, &err),
		0);
	assert_int_equal(config.with_fail_slow, 1);
	assert_true(config.range_from_ns == 1760000000000000000 && config.range_to_ns == 1760000060000000000);
	assert_true(!config.detect[LOC_COMPUTE] && config.detect[LOC_CKPT] && !config.detect[LOC_COMM]);
	assert_string_equal(model_config_op(&config, LOC_COMPUTE), "HcclAllReduce");
	assert_string_equal(model_config_op(&config, LOC_CKPT), "SaveCkpt");
	assert_int_equal(config.domains_count, 2);
	assert_string_equal(config.domains[1].name, "tp:1");
	assert_int_equal(config.domains[1].ranks[0], 2);
	assert_true(config.record_kpi && config.look_back == 5 && !config.save_image && config.domains_given);
	assert_string_equal(config.on_finding, "logger");
	model_config_fini(&config);
}

static void model_mistakes_name_the_key(void **state)
{
	static const char *const cases[][2] = {
		{ "{\"with_fail_slow\": 1}", "with_fail_slow is 1" },
		{ "{\"slow_node_detection_range_times\": [5]}", "slow_node_detection_range_times" },
		{ "{\"slow_node_detection_range_times\": [20, 10]}", "slow_node_detection_range_times" },
		{ "{\"enable_detect_type\": {\"enable_all\": true}}", "enable_op_launch" },
		{ "{\"fail_slow_ops\": {\"cal_slow\": 3}}", "fail_slow_ops" },
		{ "{\"hccl_domain\": {\"tp\": [0, 1]}}", "hccl_domain" },
		{ "{\"hccl_domain\": {\"tp\": [[0, \"1\"]]}}", "hccl_domain" },
		{ "{\"record_kpi\": \"yes\"}", "record_kpi" },
		{ "{\"look_back\": -1}", "look_back" },
	};
	struct model_config config;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct st_err err = { 0 };

		assert_true(load_model(cases[i][0], &config, &err) < 0);
		assert_non_null(strstr(err.text, cases[i][1]));
		model_config_fini(&config);
	}
}

static void rank_table_gives_servers(void **state)
{
	char table[64], text[160];
	struct model_config config;
	struct ev_session *session = ev_session_new();
	struct st_err err = { 0 };

	strcpy(table,
	       write_text("{\"server_list\": [{\"server_id\": \"10.0.0.1\", \"device\": [{\"rank_id\": \"0\"}, "
			  "{\"rank_id\": 1}]}, {\"server_id\": \"10.0.0.2\", \"device\": [{\"rank_id\": \"2\"}]}]}"));
	snprintf(text, sizeof(text), "{\"rank_table_json\": \"%s\"}", table);
	assert_int_equal(load_model(text, &config, &err), 0);
	assert_string_equal(model_config_ip(&config, 2), "10.0.0.2");
	assert_null(model_config_ip(&config, 3));
	assert_string_equal(ev_text(session, model_config_domain(&config, session, 1)), "server:0");
	assert_int_equal(model_config_domain(&config, session, 2), 0); /* alone on its server */
	assert_false(config.domains_given);
	model_config_fini(&config);
	unlink(table);
	strcpy(table, write_text("{\"server_list\": [{\"device\": [{\"rank_id\": \"x\"}]}]}"));
	snprintf(text, sizeof(text), "{\"rank_table_json\": \"%s\"}", table);
	assert_true(load_model(text, &config, &err) < 0);
	assert_non_null(strstr(err.text, "rank_table_json"));
	model_config_fini(&config);
	unlink(table);
	ev_session_free(session);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(installed_metrics_are_the_defaults), cmocka_unit_test(installed_model_is_the_default),
		cmocka_unit_test(every_metric_key_is_read),	      cmocka_unit_test(mistakes_name_the_key),
		cmocka_unit_test(model_keys_of_the_localiser),	      cmocka_unit_test(model_mistakes_name_the_key),
		cmocka_unit_test(rank_table_gives_servers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
