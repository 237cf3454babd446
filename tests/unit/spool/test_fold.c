/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Files of ranks become one; what somebody writes meanwhile, a cut file and a foreign one stay. */
#include "spool/fold.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* behind the headers it needs */
#include <cmocka.h>

static char dir[64];

static const char *path_of(const char *name)
{
	static char paths[4][128];
	static int next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

static void write_text(const char *name, const char *text)
{
	FILE *file = fopen(path_of(name), "w");

	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static void check_text(const char *name, const char *want)
{
	char text[4096] = "";
	FILE *file = fopen(path_of(name), "r");

	assert_non_null(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	fclose(file);
	assert_string_equal(text, want);
}

#define FILE_OF(n, events) "{\"origin\":[{\"pid\":" #n ",\"clocks\":[{}]}],\"traceEvents\":[\n" events "\n]}\n"

static int set_up(void **state)
{
	strcpy(dir, "/tmp/st-fold-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

static int fold3(const char *a, const char *b, const char *c, struct st_err *err)
{
	const char *paths[] = { path_of(a), path_of(b), path_of(c) };

	return fold_files(paths, 3, err);
}

static void becomes_one(void **state)
{
	struct st_err err = { 0 };

	write_text("a", FILE_OF(1, "{\"x\":1}"));
	write_text("b", FILE_OF(2, "{\"x\":2},\n{\"x\":3}"));
	write_text("c", FILE_OF(3, "{\"x\":4}") "\n\n");
	assert_int_equal(fold3("a", "b", "c", &err), 2);
	check_text("a",
		   "{\"origin\":[{\"pid\":1,\"clocks\":[{}]},{\"pid\":2,\"clocks\":[{}]},{\"pid\":3,\"clocks\":[{}]}],"
		   "\"folded\":[\"b\",\"c\"],\"traceEvents\":[\n{\"x\":1},\n{\"x\":2},\n{\"x\":3},\n{\"x\":4}\n]}\n");
	assert_int_equal(access(path_of("b"), F_OK), -1);
	assert_int_equal(access(path_of("c"), F_OK), -1);
	/* again, with a new one */
	write_text("b", FILE_OF(2, "{\"x\":5}"));
	assert_int_equal(fold3("a", "b", "c", &err), 1);
	check_text("a",
		   "{\"origin\":[{\"pid\":1,\"clocks\":[{}]},{\"pid\":2,\"clocks\":[{}]},{\"pid\":3,\"clocks\":[{}]},"
		   "{\"pid\":2,\"clocks\":[{}]}],\"folded\":[\"b\",\"c\",\"b\"],\"traceEvents\":[\n"
		   "{\"x\":1},\n{\"x\":2},\n{\"x\":3},\n{\"x\":4},\n{\"x\":5}\n]}\n");
}

static void others_stay(void **state)
{
	struct st_err err = { 0 };

	write_text("a", FILE_OF(1, "{\"x\":1}"));
	write_text("b", "{\"origin\":[{\"pid\":2}],\"traceEvents\":[\n{\"x\":2},\n{\"x\"");
	write_text("c", "something else");
	assert_int_equal(fold3("a", "b", "c", &err), 0);
	check_text("a", FILE_OF(1, "{\"x\":1}"));
	assert_int_equal(access(path_of("b"), F_OK), 0);
	assert_int_equal(fold3("b", "a", "c", &err), -EBADMSG);
	assert_non_null(strstr(err.text, "no whole file of ours"));
	assert_int_equal(fold3("none", "a", "c", &err), -ENOENT);
	assert_int_equal(access(path_of("a.fold.part"), F_OK), -1);
}

/* As an agent would that holds its file open: into the file that has no name any more. */
static void *write_late(void *arg)
{
	static const char more[] = ",\n{\"x\":9}\n]}\n";
	int fd = *(int *)arg, i;
	struct stat st = { .st_nlink = 1 };

	for (i = 0; i < 100000 && st.st_nlink; i++) {
		fstat(fd, &st);
		usleep(100);
	}
	return st.st_nlink || pwrite(fd, more, sizeof(more) - 1, st.st_size - 4) != sizeof(more) - 1 ? arg : NULL;
}

/* The writer has half a second, as an agent would take a few milliseconds: again where the machine gave it none. */
static void what_comes_late_is_kept(void **state)
{
	struct st_err err = { 0 };
	pthread_t thread;
	void *failed;
	int fd, i;

	for (i = 0; i < 20 && access(path_of("b"), F_OK); i++) {
		write_text("a", FILE_OF(1, "{\"x\":1}"));
		write_text("b", FILE_OF(2, "{\"x\":2}"));
		fd = open(path_of("b"), O_RDWR);
		assert_true(fd >= 0);
		assert_int_equal(pthread_create(&thread, NULL, write_late, &fd), 0);
		assert_int_equal(fold3("a", "b", "c", &err), 1);
		pthread_join(thread, &failed);
		assert_null(failed);
		close(fd);
	}
	check_text("b", FILE_OF(2, "\n{\"x\":9}"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(becomes_one, set_up, tear_down),
		cmocka_unit_test_setup_teardown(others_stay, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_comes_late_is_kept, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
