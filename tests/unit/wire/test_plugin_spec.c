/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The plugin table: complete, consistent with itself, and its checks name what is valid. */
#include "wire/plugin_spec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_documented_plugin_is_there(void **state)
{
	/* user guide 7.3 */
	static const char *const names[] = { "HBM", "IO",	 "MSPTI", "CPU",    "Memory",
					     "GIL", "CacheMiss", "Mutex", "Ftrace", "Trace" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int id = plugin_find(names[i], NULL);

		assert_true(id >= 0);
		assert_string_equal(plugin_specs[id].name, names[i]);
	}
	assert_int_equal(sizeof(names) / sizeof(names[0]), PLUGIN_COUNT);
	assert_int_equal(plugin_find("cachemiss", NULL), PLUGIN_CACHEMISS);
}

static void every_documented_parameter_is_there(void **state)
{
	/* user guide 7.2.3 and 7.4.9 */
	static const struct {
		enum plugin_id id;
		const char *key;
	} rows[] = {
		{ PLUGIN_MSPTI, "event" },
		{ PLUGIN_CACHEMISS, "args" },
		{ PLUGIN_GIL, "pid" },
		{ PLUGIN_MUTEX, "pid" },
		{ PLUGIN_FTRACE, "cpu_list" },
		{ PLUGIN_FTRACE, "events" },
		{ PLUGIN_FTRACE, "func" },
		{ PLUGIN_FTRACE, "set_event_pid" },
		{ PLUGIN_FTRACE, "set_ftrace_pid" },
		{ PLUGIN_FTRACE, "buffer_size_kb" },
		{ PLUGIN_FTRACE, "event_stack_trace" },
		{ PLUGIN_FTRACE, "func_stack_trace" },
		{ PLUGIN_FTRACE, "function_tracer" },
		{ PLUGIN_TRACE, "args" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct param_spec *row = plugin_param_find(rows[i].id, rows[i].key);

		assert_non_null(row);
		assert_string_equal(row->key, rows[i].key);
	}
	for (int id = 0; id < PLUGIN_COUNT; id++)
		for (const char *const *key = (const char *const[]){ "duration", "start_step", "steps", "at", NULL };
		     *key; key++)
			assert_non_null(plugin_param_find((enum plugin_id)id, *key));
}

static void check_rows(enum plugin_id id, const struct param_spec *row)
{
	struct st_err err = { 0 };

	for (; row->type != PARAM_END; row++) {
		assert_non_null(row->help);
		assert_int_equal(strncmp(row->syntax, row->key, strlen(row->key)), 0);
		assert_int_equal(row->syntax[strlen(row->key)], '=');
		assert_int_equal(row->words != NULL, row->type == PARAM_WORDS || row->type == PARAM_WORD);
		if (row->initial && plugin_check_param(id, row->key, row->initial, &err) != 0)
			fail_msg("default of %s: %s", row->key, err.text);
	}
}

static void the_table_obeys_its_own_rules(void **state)
{
	for (int id = 0; id < PLUGIN_COUNT; id++) {
		const struct plugin_spec *spec = &plugin_specs[id];

		assert_non_null(spec->name);
		assert_non_null(spec->help);
		assert_in_range(spec->where, 1, 3);
		check_rows((enum plugin_id)id, spec->params);
		for (const struct param_spec *row = spec->params; row->type != PARAM_END; row++)
			for (const struct param_spec *common = common_params; common->type != PARAM_END; common++)
				assert_string_not_equal(row->key, common->key);
		if (spec->required)
			assert_non_null(plugin_param_find((enum plugin_id)id, spec->required));
	}
	check_rows(PLUGIN_IO, common_params);
}

static void values_are_checked(void **state)
{
	static const struct {
		enum plugin_id id;
		const char *key, *good, *bad; /* texts separated by | */
	} rows[] = {
		{ PLUGIN_IO, "duration", "0|10|2.5|0.000001", "|-1|1e3|10s| 10|10 |.5|1.|0x10|nan" },
		{ PLUGIN_IO, "start_step", "0|18446744073709551615", "|-1|1.5|18446744073709551616|1k" },
		{ PLUGIN_IO, "at", "1769740952|1769740952.25", "|tomorrow|-1" },
		{ PLUGIN_IO, "sync", "1|0|true|false|on|off|TRUE", "|2|y" },
		{ PLUGIN_MSPTI, "event", "marker|kernel,api|marker,kernel,api",
		  "|markers|marker,|,marker|marker, api|Marker" },
		{ PLUGIN_GIL, "pid", "1|1907448,213123", "|0|1,|,1|1 2|-5|99999999" },
		{ PLUGIN_FTRACE, "cpu_list", "0|0-15|0-3,5|0-31,64-95", "|-|3-1|1,|,1|0-|a|0x1|0--1" },
		{ PLUGIN_FTRACE, "events", "irq|sched/sched_switch|irq/irq_handler_entry,sched|sched/*",
		  "|/|sched/|/x|a,|,a|a//b|a b" },
		{ PLUGIN_FTRACE, "function_tracer", "nop|function|function_graph", "|blk|function,nop" },
		{ PLUGIN_FTRACE, "event_stack_trace", "1|true|0|false", "|maybe" },
		{ PLUGIN_MEMORY, "space", "host|device|all", "|gpu|host,device" },
		{ PLUGIN_TRACE, "args", "record -e sched sleep 5", "| " },
	};
	char copy[160], *save, *word;
	struct st_err err;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		strcpy(copy, rows[i].good);
		for (word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
			if (plugin_check_param(rows[i].id, rows[i].key, word, &err) != 0)
				fail_msg("%s=%s refused: %s", rows[i].key, word, err.text);
		assert_int_equal(plugin_check_param(rows[i].id, rows[i].key, "", &err), -EINVAL);
		assert_non_null(strstr(err.text, "has no value"));
		strcpy(copy, rows[i].bad);
		for (word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save)) {
			memset(&err, 0, sizeof(err));
			if (plugin_check_param(rows[i].id, rows[i].key, word, &err) != -EINVAL)
				fail_msg("%s=%s accepted", rows[i].key, word);
			assert_non_null(strstr(err.text, "it must be"));
		}
	}
}

static void messages_name_what_is_valid(void **state)
{
	struct st_err err;

	assert_int_equal(plugin_find("Mutx", &err), -ENOENT);
	assert_non_null(strstr(err.text, "did you mean Mutex?"));
	assert_non_null(strstr(err.text, "CacheMiss"));
	assert_int_equal(plugin_find("Network", &err), -ENOENT);
	assert_null(strstr(err.text, "did you mean"));
	assert_non_null(strstr(err.text, "HBM"));
	assert_int_equal(plugin_check_param(PLUGIN_IO, "min_uss", "1", &err), -ENOENT);
	assert_non_null(strstr(err.text, "did you mean min_us?"));
	assert_non_null(strstr(err.text, "duration"));
	assert_int_equal(plugin_check_param(PLUGIN_IO, "cpu_list", "1", &err), -ENOENT);
	assert_int_equal(plugin_check_param(PLUGIN_MSPTI, "event", "markr", &err), -EINVAL);
	assert_non_null(strstr(err.text, "marker, kernel, api"));
}

static int check(enum plugin_id id, struct st_err *err, const char *pairs)
{
	struct plugin_pair list[8];
	char copy[256], *save, *word;
	size_t count = 0;

	strcpy(copy, pairs);
	for (word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save)) {
		char *value = strchr(word, '=');

		*value = '\0';
		list[count++] = (struct plugin_pair){ word, value + 1 };
	}
	return plugin_check_enable(id, list, count, err);
}

static void requests_are_checked_as_a_whole(void **state)
{
	struct st_err err;

	assert_int_equal(check(PLUGIN_IO, &err, ""), 0);
	assert_int_equal(check(PLUGIN_IO, &err, "duration=1|duration=2"), -EINVAL);
	assert_non_null(strstr(err.text, "twice"));
	assert_int_equal(check(PLUGIN_TRACE, &err, "duration=1"), -EINVAL);
	assert_non_null(strstr(err.text, "args="));

	/* contract 14 */
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args=-p 12345 --timeout 100"), -EINVAL);
	assert_non_null(strstr(err.text, "-e"));
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args=-e cache-misses"), -EINVAL);
	assert_non_null(strstr(err.text, "duration"));
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args=-e cache-misses|duration=0"), -EINVAL);
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args=-e cache-misses|duration=10"), 0);
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args= -e branch-misses,cache-misses --timeout 5000"), 0);
	assert_int_equal(check(PLUGIN_CACHEMISS, &err, "args=--pid-e 1 --timeout 5"), -EINVAL);

	/* contract 15 */
	assert_int_equal(check(PLUGIN_FTRACE, &err, "events=irq"), -EINVAL);
	assert_non_null(strstr(err.text, "cpu_list"));
	assert_int_equal(check(PLUGIN_FTRACE, &err, "cpu_list=0-31"), -EINVAL);
	assert_int_equal(check(PLUGIN_FTRACE, &err, "cpu_list=0-31|events=irq"), 0);
	assert_int_equal(check(PLUGIN_FTRACE, &err, "cpu_list=0|function_tracer=function"), 0);
}

static void timing_is_taken(void **state)
{
	struct plugin_timing timing = { 0 };

	assert_int_equal(plugin_timing_take(&timing, "duration", "2.5"), 1);
	assert_int_equal(plugin_timing_take(&timing, "start_step", "100"), 1);
	assert_int_equal(plugin_timing_take(&timing, "steps", "5"), 1);
	assert_int_equal(plugin_timing_take(&timing, "at", "1769740952.25"), 1);
	assert_int_equal(plugin_timing_take(&timing, "sync", "on"), 1);
	assert_int_equal(plugin_timing_take(&timing, "min_us", "5"), 0);
	assert_int_equal(plugin_timing_take(&timing, "duration", "x"), -EINVAL);
	assert_int_equal(timing.duration_ns, 2500000000ull);
	assert_int_equal(timing.start_step, 100);
	assert_int_equal(timing.steps, 5);
	assert_int_equal(timing.at_unix_ns, 1769740952250000000ull);
	assert_true(timing.sync);
	for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
		assert_int_equal(plugin_timing_take(&timing, row->key, "1"), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_documented_plugin_is_there),
		cmocka_unit_test(every_documented_parameter_is_there),
		cmocka_unit_test(the_table_obeys_its_own_rules),
		cmocka_unit_test(values_are_checked),
		cmocka_unit_test(messages_name_what_is_valid),
		cmocka_unit_test(requests_are_checked_as_a_whole),
		cmocka_unit_test(timing_is_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
