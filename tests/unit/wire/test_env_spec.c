/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The environment table: each default passes its own check, values are accepted and refused as documented. */
#include "wire/env_spec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void test_table_is_whole(void **state)
{
	int id;

	for (id = 0; id < ENV_COUNT; id++) {
		const struct env_spec *spec = &env_specs[id];
		struct st_err err;

		assert_non_null(spec->name);
		assert_memory_equal(spec->name, "SYSTRACE_", 9);
		assert_true(strlen(spec->help) > 10);
		assert_int_equal(spec->type == ENV_TYPE_WORD, spec->words != NULL);
		if (spec->initial)
			assert_int_equal(env_check((enum env_id)id, spec->initial, &err), 0);
	}
}

static void refused(enum env_id id, const char *value)
{
	struct st_err err = { 0 };

	assert_int_equal(env_check(id, value, &err), -EINVAL);
	assert_non_null(strstr(err.text, env_specs[id].name));
	assert_non_null(strstr(err.text, value));
}

static void test_values(void **state)
{
	struct st_err err;

	assert_int_equal(env_check(ENV_LOG_LEVEL, "warn", &err), 0);
	assert_int_equal(env_check(ENV_BUDGET_PCT, "0.5", &err), 0);
	assert_int_equal(env_check(ENV_BUDGET_PCT, "100", &err), 0);
	assert_int_equal(env_check(ENV_MAX_MB, "1", &err), 0);
	assert_int_equal(env_check(ENV_RUN_ID, "any text at all", &err), 0);
	refused(ENV_DUMP_PATH, "relative/path");
	refused(ENV_LOG_LEVEL, "LOUD");
	refused(ENV_LOG_LEVEL, "INFO,WARN");
	refused(ENV_MAX_MB, "0");
	refused(ENV_MAX_MB, "12k");
	refused(ENV_MAX_MB, "-1");
	refused(ENV_BUDGET_PCT, "0");
	refused(ENV_BUDGET_PCT, "101");
	refused(ENV_BUDGET_PCT, "1%");
	refused(ENV_ENABLE, "maybe");
}

static void test_words(void **state)
{
	assert_int_equal(env_word(ENV_FORMAT, "pb"), 0);
	assert_int_equal(env_word(ENV_FORMAT, "JSON"), 1);
	assert_int_equal(env_word(ENV_FORMAT, "js"), -EINVAL);
	assert_int_equal(env_word(ENV_FORMAT, ""), -EINVAL);
	assert_int_equal(env_word(ENV_LOG_LEVEL, "FATAL"), 4);
	assert_int_equal(env_word(ENV_RUN_ID, "x"), -EINVAL);
	/* the agent takes words at even places for yes and at odd ones for no */
	assert_int_equal(env_word(ENV_ENABLE, "1") % 2, 0);
	assert_int_equal(env_word(ENV_ENABLE, "on") % 2, 0);
	assert_int_equal(env_word(ENV_ENABLE, "TRUE") % 2, 0);
	assert_int_equal(env_word(ENV_ENABLE, "0") % 2, 1);
	assert_int_equal(env_word(ENV_ENABLE, "off") % 2, 1);
	assert_int_equal(env_word(ENV_ENABLE, "false") % 2, 1);
	assert_int_equal(env_word(ENV_PYTHON_TRACING, "on") % 2, 0);
	assert_int_equal(env_word(ENV_PYTHON_TRACING, "off") % 2, 1);
	assert_int_equal(env_word(ENV_PYTHON_TRACING, "1") % 2, 0);
	assert_int_equal(env_word(ENV_PYTHON_TRACING, "false") % 2, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table_is_whole),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
