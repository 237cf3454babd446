/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The list of functions to trace: its grammar, its mistakes, and the built-in one. */
#include "agent/python/func_list.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int parse(struct func_list *list, const char *text, struct st_err *err)
{
	*list = (struct func_list){ 0 };
	return func_list_parse(list, text, strlen(text), err);
}

static void test_grammar(void **state)
{
	struct func_list list;

	assert_int_equal(parse(&list,
			       "# comment\n\n  \t\r\nGC\na.b@C@m  \r\na@f backward # why\n"
			       "\tb@g\tCOMM\nb@g COMM\n\xc3\xa9@\xc3\xa9 GC#x\nlast@line",
			       NULL),
			 0);
	assert_int_equal(list.count, 6);
	assert_string_equal(list.rows[0].spec, "GC");
	assert_int_equal(list.rows[0].kind, STAGE_GC);
	assert_string_equal(list.rows[1].spec, "a.b@C@m");
	assert_int_equal(list.rows[1].kind, STAGE_UNKNOWN);
	assert_false(list.rows[1].kind_given);
	assert_string_equal(list.rows[2].spec, "a@f");
	assert_int_equal(list.rows[2].kind, STAGE_BACKWARD);
	assert_true(list.rows[2].kind_given);
	assert_int_equal(list.rows[3].kind, STAGE_COMM); /* the second b@g is the same row */
	assert_string_equal(list.rows[4].spec, "\xc3\xa9@\xc3\xa9");
	assert_string_equal(list.rows[5].spec, "last@line");
	func_list_fini(&list);
	assert_null(list.rows);
}

static void test_bad_lines_are_named_and_left_out(void **state)
{
	static const char *const bad[] = { "torch.save", "@f",	 "a@",	  "a@@b",    "a..b@c",
					   ".a@b",	 "a@b.", "a-b@c", "a@b c@d", "a@b COMM extra" };
	struct func_list list;
	struct st_err err;
	char text[64];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bool kept = i >= 8; /* only the second word is wrong, or there are more */

		snprintf(text, sizeof(text), "good@one\n%s\ngood@two\n", bad[i]);
		assert_int_equal(parse(&list, text, &err), -EINVAL);
		assert_int_equal(err.code, -EINVAL);
		assert_memory_equal(err.text, "line 2: ", 8);
		assert_int_equal(list.bad_lines, 1);
		assert_int_equal(list.count, kept ? 3 : 2);
		assert_string_equal(list.rows[list.count - 1].spec, "good@two");
		func_list_fini(&list);
	}
}

static void test_only_the_first_mistake_is_told(void **state)
{
	struct func_list list;
	struct st_err err;

	assert_int_equal(parse(&list, "x\na@b WRONG\ny\n", &err), -EINVAL);
	assert_memory_equal(err.text, "line 1: ", 8);
	assert_int_equal(list.bad_lines, 3);
	assert_int_equal(list.rows[0].kind, STAGE_UNKNOWN);
	func_list_fini(&list);
}

static void test_long_line(void **state)
{
	char text[2048];
	struct func_list list;

	memset(text, 'a', sizeof(text));
	text[3] = '@';
	text[513] = '\0'; /* one more than a spec may have */
	assert_int_equal(parse(&list, text, NULL), -EINVAL);
	func_list_fini(&list);
	text[512] = '\0';
	assert_int_equal(parse(&list, text, NULL), 0);
	func_list_fini(&list);
}

static void test_binary_text(void **state)
{
	static const char bytes[] = "a@b\0c@d\n\xff\xfe@x\n\x01@y\nok@z";
	struct func_list list = { 0 };

	assert_int_equal(func_list_parse(&list, bytes, sizeof(bytes) - 1, NULL), -EINVAL);
	assert_string_equal(list.rows[list.count - 1].spec, "ok@z");
	func_list_fini(&list);
}

static void test_kinds(void **state)
{
	assert_int_equal(func_list_kind("OPTIMIZER", 9), STAGE_OPTIMIZER);
	assert_int_equal(func_list_kind("checkpoint", 10), STAGE_CHECKPOINT);
	assert_int_equal(func_list_kind("OPTIMIZE", 8), STAGE_COUNT);
	assert_int_equal(func_list_kind("", 0), STAGE_COUNT);
}

static void test_builtin(void **state)
{
	struct func_list list = { 0 }, mine = { 0 };
	unsigned int by_kind[STAGE_COUNT] = { 0 };
	struct st_err err = { 0 };

	assert_int_equal(func_list_builtin[func_list_builtin_len], 0);
	assert_int_equal(func_list_builtin_len, strlen(func_list_builtin));
	if (func_list_parse(&list, func_list_builtin, func_list_builtin_len, &err) < 0)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < list.count; i++)
		by_kind[list.rows[i].kind]++;
	assert_int_equal(by_kind[STAGE_GC], 1);
	for (int kind = 0; kind < STAGE_COUNT; kind++)
		assert_true(by_kind[kind] > 0);
	/* a user's row without a kind has the one of the built-in row */
	assert_int_equal(parse(&mine, "torch.optim@Optimizer@step\nmy@own\ntorch@autograd@backward FORWARD\n", NULL),
			 0);
	func_list_adopt(&mine, &list);
	assert_int_equal(mine.rows[0].kind, STAGE_OPTIMIZER);
	assert_int_equal(mine.rows[1].kind, STAGE_UNKNOWN);
	assert_int_equal(mine.rows[2].kind, STAGE_FORWARD);
	func_list_fini(&mine);
	func_list_fini(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_grammar),	  cmocka_unit_test(test_bad_lines_are_named_and_left_out),
		cmocka_unit_test(test_long_line), cmocka_unit_test(test_only_the_first_mistake_is_told),
		cmocka_unit_test(test_kinds),	  cmocka_unit_test(test_binary_text),
		cmocka_unit_test(test_builtin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
