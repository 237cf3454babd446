/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The agent's log: what reaches the file, in which order, and that nothing is made when there is nothing to say. */
#include "safe/siglog.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/st-siglog-XXXXXX";
static char path[128];
static char text[1 << 16];

static const char *content(void)
{
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f)
		fclose(f);
	text[n] = 0;
	return text;
}

static int set_up(void **state)
{
	static int nth;

	snprintf(path, sizeof(path), "%s/deep/er%d/log", dir, nth++);
	siglog_setup(path, NULL, SIGLOG_INFO);
	siglog_direct(true);
	return 0;
}

static void test_level_and_file(void **state)
{
	errno = EAGAIN;
	siglog(SIGLOG_DEBUG, "t", "not this");
	assert_int_equal(access(path, F_OK), -1);
	assert_string_equal(siglog_path(), "");
	errno = EAGAIN;
	siglog(SIGLOG_WARN, "tag", "%s is %d", "this", 7);
	assert_int_equal(errno, EAGAIN);
	assert_non_null(strstr(content(), " WARN "));
	assert_non_null(strstr(content(), " tag: this is 7\n"));
	assert_string_equal(siglog_path(), path);
	/* 2026-01-31T12:34:56.789Z */
	assert_int_equal(content()[4], '-');
	assert_int_equal(content()[10], 'T');
	assert_int_equal(content()[23], 'Z');
}

static void test_ring_keeps_order(void **state)
{
	int i, at = -1;
	char *p;

	siglog_direct(false);
	for (i = 0; i < 60; i++)
		siglog(SIGLOG_INFO, "t", "number %d.", i);
	assert_int_equal(access(path, F_OK), -1);
	siglog_drain();
	content();
	for (i = 0, p = text; (p = strstr(p, "number ")); i++, p++) {
		assert_true(atoi(p + 7) > at);
		at = atoi(p + 7);
	}
	assert_int_equal(i, 60);
}

static void test_overflow_is_counted(void **state)
{
	int i;

	siglog_direct(false);
	for (i = 0; i < 100; i++)
		siglog(SIGLOG_INFO, "t", "number %d.", i);
	siglog_drain();
	assert_non_null(strstr(content(), " log: 36 messages lost\n"));
	siglog(SIGLOG_INFO, "t", "later");
	siglog_drain();
	assert_non_null(strstr(content(), "later"));
}

static void test_long_message_is_cut(void **state)
{
	char longer[2000];

	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = 0;
	siglog(SIGLOG_ERROR, "t", "%s", longer);
	siglog(SIGLOG_ERROR, "t", "next");
	content();
	assert_true(strchr(text, '\n') - text < 450);
	assert_non_null(strstr(text, "t: next\n"));
}

static void test_fallback(void **state)
{
	char other[160];

	snprintf(other, sizeof(other), "%s", path);
	siglog_setup("/proc/no/such/place/log", other, SIGLOG_INFO);
	siglog(SIGLOG_INFO, "t", "here");
	assert_non_null(strstr(content(), "here"));
	siglog_setup("/proc/no/such/place/log", "/proc/nor/here", SIGLOG_INFO);
	siglog(SIGLOG_INFO, "t", "nowhere");
	assert_string_equal(siglog_path(), "");
}

static void test_endless_log_is_bounded(void **state)
{
	static char big[8 << 20];
	FILE *f;
	size_t n;
	int i;

	for (i = 0; i < 30000; i++)
		siglog(SIGLOG_INFO, "t", "%0300d", i);
	f = fopen(path, "r");
	n = fread(big, 1, sizeof(big), f);
	fclose(f);
	assert_true(n > 3u << 20);
	assert_true(n <= (4u << 20) + 448);
}

static void *writer(void *arg)
{
	int i;

	for (i = 0; i < 500; i++)
		siglog(SIGLOG_INFO, "t", "%s", (const char *)arg);
	return NULL;
}

static void test_many_writers(void **state)
{
	static const char *const words[] = { "aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd" };
	pthread_t threads[4];
	char *line;
	int i;

	siglog_direct(false);
	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, writer, (void *)words[i]);
	for (i = 0; i < 200; i++)
		siglog_drain();
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	siglog_drain();
	content();
	/* whole lines of one writer each, or the count of lost ones */
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		const char *word = strstr(line, "t: ");

		if (!word || strstr(line, "messages lost"))
			continue;
		assert_int_equal(strlen(word + 3), 8);
		assert_int_equal(strspn(word + 3, (char[]){ word[3], 0 }), 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_level_and_file, set_up),
		cmocka_unit_test_setup(test_ring_keeps_order, set_up),
		cmocka_unit_test_setup(test_overflow_is_counted, set_up),
		cmocka_unit_test_setup(test_long_message_is_cut, set_up),
		cmocka_unit_test_setup(test_fallback, set_up),
		cmocka_unit_test_setup(test_endless_log_is_bounded, set_up),
		cmocka_unit_test_setup(test_many_writers, set_up),
	};
	char command[160];
	int ret;

	if (!mkdtemp(dir))
		return 1;
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) ? 1 : ret;
}
