/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Programs that the probe runs: words of a text, output, ends. */
#include "probe/child.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void text_becomes_words(void **state)
{
	static const struct {
		const char *text;
		const char *words[6];
	} rows[] = {
		{ "-e a,b --timeout 5", { "-e", "a,b", "--timeout", "5" } },
		{ "  x\t'a b'  \"c d\" ", { "x", "a b", "c d" } },
		{ "a\\ b 'c\\d' \"e\\\"f\"", { "a b", "c\\d", "e\"f" } },
		{ "'' x", { "", "x" } },
		{ "$HOME `id` ;ls", { "$HOME", "`id`", ";ls" } }, /* no shell sees it */
		{ "", { NULL } },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct child_words words = { 0 };
		size_t n = 0;

		assert_int_equal(child_words_split(&words, rows[i].text, NULL), 0);
		for (; rows[i].words[n]; n++) {
			assert_true(n < words.count);
			assert_string_equal(words.list[n], rows[i].words[n]);
		}
		assert_int_equal(words.count, n);
		child_words_free(&words);
	}
}

static void open_quotes_are_refused(void **state)
{
	struct child_words words = { 0 };
	struct st_err err = { 0 };

	assert_int_equal(child_words_split(&words, "a 'b c", &err), -EINVAL);
	assert_non_null(strstr(err.text, "a quote is not closed"));
	child_words_free(&words);
}

static struct child_words shell(const char *script)
{
	struct child_words words = { 0 };

	assert_int_equal(child_words_add(&words, "/bin/sh"), 0);
	assert_int_equal(child_words_add(&words, "-c"), 0);
	assert_int_equal(child_words_add(&words, script), 0);
	return words;
}

static void output_and_status(void **state)
{
	struct child_words words = shell("echo one; echo two >&2; exit 3");
	int fd = memfd_create("said", MFD_CLOEXEC);
	struct child child;
	char said[64];

	assert_int_equal(child_start(&child, &words, -1, -1, fd, SIGKILL, NULL), 0);
	assert_true(child_wait(&child, 20000));
	assert_int_equal(WEXITSTATUS(child.status), 3);
	assert_string_equal(child_said(fd, 0, said, sizeof(said)), "two ");
	child_words_free(&words);
	close(fd);
}

static void the_deaf_are_killed(void **state)
{
	struct child_words words = shell("trap '' INT; echo up; while :; do sleep 0.01; done");
	int fd = memfd_create("said", MFD_CLOEXEC);
	struct child child;
	char said[64];

	assert_int_equal(child_start(&child, &words, -1, fd, fd, SIGKILL, NULL), 0);
	for (int i = 0; i < 2000 && strcmp(child_said(fd, 0, said, sizeof(said)), "up ") != 0; i++)
		usleep(10000);
	assert_false(child_wait(&child, 0));
	assert_false(child_end(&child, SIGINT, 100));
	assert_int_equal(WTERMSIG(child.status), SIGKILL);
	assert_true(child_end(&child, SIGINT, 100)); /* again does nothing */
	child_words_free(&words);
	close(fd);
}

static void what_cannot_run_is_told(void **state)
{
	struct child_words words = { 0 };
	struct st_err err = { 0 };
	struct child child;

	assert_int_equal(child_words_add(&words, "/nonexistent/program"), 0);
	assert_int_equal(child_start(&child, &words, -1, -1, -1, SIGKILL, &err), -ENOENT);
	assert_non_null(strstr(err.text, "/nonexistent/program"));
	child_words_free(&words);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_becomes_words),	   cmocka_unit_test(open_quotes_are_refused),
		cmocka_unit_test(output_and_status),	   cmocka_unit_test(the_deaf_are_killed),
		cmocka_unit_test(what_cannot_run_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
