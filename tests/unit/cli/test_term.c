/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Output for people and programs: tables, JSON texts, texts of strangers. */
#include "cli/term.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *captured;
static size_t captured_size;

static FILE *capture(void)
{
	free(captured);
	captured = NULL;
	return open_memstream(&captured, &captured_size);
}

static int tidy(void **state)
{
	free(captured);
	captured = NULL;
	return 0;
}

static const char *json(const char *text)
{
	FILE *out = capture();

	term_json_string(out, text);
	fclose(out);
	return captured;
}

static void json_strings_are_valid(void **state)
{
	assert_string_equal(json(""), "\"\"");
	assert_string_equal(json("a\"b\\c"), "\"a\\\"b\\\\c\"");
	assert_string_equal(json("\n\x1b\x7f"), "\"\\u000a\\u001b\\u007f\"");
	assert_string_equal(json("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
	/* not UTF-8: a lone continuation byte, a cut sequence, an overlong one, a surrogate, beyond U+10FFFF */
	assert_string_equal(json("\x80"), "\"\xef\xbf\xbd\"");
	assert_string_equal(json("a\xc3"), "\"a\xef\xbf\xbd\"");
	assert_string_equal(json("\xc0\xafx"), "\"\xef\xbf\xbd\xef\xbf\xbdx\"");
	assert_null(strstr(json("\xed\xa0\x80"), "\xed"));
	assert_null(strstr(json("\xf4\x90\x80\x80"), "\xf4"));
}

static void strangers_texts_cannot_steer_a_terminal(void **state)
{
	char text[] = "ok\x1b[31m\r\n\x7f\xc2\x9b";
	char fine[] = "caf\xc3\xa9 \xc2\xb5s";

	assert_string_equal(term_clean(text), "ok?[31m? ???");
	assert_string_equal(term_clean(fine), "caf\xc3\xa9 \xc2\xb5s");
}

static void tables_are_aligned(void **state)
{
	struct table table;
	FILE *out = capture();

	table_init(&table, 3, "><<");
	table_cell(&table, "PID");
	table_cell(&table, "NAME");
	table_cell(&table, "LAST");
	table_cell(&table, "%d", 5);
	table_cell(&table, "caf\xc3\xa9");
	table_cell(&table, "x");
	table_cell(&table, "%d", 12345);
	table_cell(&table, "a long name");
	table_cell(&table, "y");
	table_print(&table, out, 2);
	fclose(out);
	assert_string_equal(captured, "    PID  NAME         LAST\n"
				      "      5  caf\xc3\xa9         x\n"
				      "  12345  a long name  y\n");
	assert_int_equal(table.count, 0);
}

static void colours_stay_off_outside_terminals(void **state)
{
	FILE *file = tmpfile();

	setenv("TERM", "xterm", 1);
	assert_string_equal(term_on(file, TERM_RED), "");
	assert_string_equal(term_off(file), "");
	fclose(file);
}

static void progress_is_silent_outside_terminals(void **state)
{
	struct progress progress;
	int saved = dup(STDERR_FILENO); /* stderr of this program may be a terminal */
	FILE *file = tmpfile();

	dup2(fileno(file), STDERR_FILENO);
	progress_begin(&progress, "reading", 100);
	progress.begin_ns -= 10000000000ull; /* as if it had begun ten seconds ago */
	progress_at(&progress, 50);
	progress_end(&progress);
	dup2(saved, STDERR_FILENO);
	close(saved);
	assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
	fclose(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(json_strings_are_valid, tidy),
		cmocka_unit_test(strangers_texts_cannot_steer_a_terminal),
		cmocka_unit_test_teardown(tables_are_aligned, tidy),
		cmocka_unit_test(colours_stay_off_outside_terminals),
		cmocka_unit_test(progress_is_silent_outside_terminals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
