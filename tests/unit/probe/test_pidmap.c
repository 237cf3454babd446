/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The pid map of this process: threads included, ended tasks kept, replaced as a whole, errors said. */
#include "probe/pidmap.h"
#include "probe/ftrace/tracefs.h"
#include "probe/proc_tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char directory[] = "/tmp/st-pidmap-XXXXXX";
static char path[64];

static int make_directory(void **state)
{
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/map.json", directory);
	return 0;
}

static int remove_directory(void **state)
{
	unlink(path);
	return rmdir(directory); /* fails if a .part is left */
}

static char *content(void)
{
	char *text = NULL;

	assert_int_equal(file_read(AT_FDCWD, path, &text, NULL), 0);
	return text;
}

static void this_process_is_in_it(void **state)
{
	struct pidmap *map = pidmap_new();
	char want[128], *text;

	prctl(PR_SET_NAME, "a\"b\\\xff");
	assert_true(pidmap_write(map, path, NULL) > 0);
	text = content();
	snprintf(want, sizeof(want), "\n\"%d\":{\"NSpid\":\"", (int)getpid());
	assert_non_null(strstr(text, want));
	snprintf(want, sizeof(want), "\"name\":\"a\\\"b\\\\\\\\\\u00ff\",\"Tgid\":\"%d\",\"PPid\":\"%d\"}",
		 (int)getpid(), (int)getppid());
	assert_non_null(strstr(text, want));
	assert_int_equal(text[0], '{');
	assert_string_equal(text + strlen(text) - 4, "}\n}\n");
	free(text);
	pidmap_free(map);
	prctl(PR_SET_NAME, "test");
}

static void ended_tasks_are_kept(void **state)
{
	struct pidmap *map = pidmap_new();
	char want[32], *text;
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	assert_true(pidmap_write(map, path, NULL) > 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(pidmap_write(map, path, NULL) > 0);
	text = content();
	snprintf(want, sizeof(want), "\n\"%d\":{", (int)pid);
	assert_non_null(strstr(text, want));
	free(text);
	pidmap_free(map);
}

static void refreshed_by_a_thread(void **state)
{
	struct pidmap_thread *thread = pidmap_start(path, 1, NULL);
	struct stat first, now;
	int tries;

	assert_non_null(thread);
	assert_int_equal(stat(path, &first), 0);
	for (tries = 0; tries < 1000; tries++) {
		assert_int_equal(stat(path, &now), 0); /* there is one all the time */
		if (now.st_ino != first.st_ino)
			break;
		usleep(20000);
	}
	assert_true(tries < 1000);
	unlink(path);
	assert_int_equal(pidmap_stop(thread, NULL), 0);
	assert_int_equal(access(path, F_OK), 0); /* written a last time */
	assert_int_equal(pidmap_stop(NULL, NULL), 0);
}

static void errors_are_said(void **state)
{
	struct st_err err = { 0 };

	assert_null(pidmap_start("/no/such/directory/map.json", 0, &err));
	assert_int_equal(errno, ENOENT);
	assert_non_null(strstr(err.text, "/no/such/directory/map.json"));
}

static int stop_at_once(void *ctx, int32_t pid, int32_t tid)
{
	++*(int *)ctx;
	return -ECANCELED;
}

static void walk_can_be_ended(void **state)
{
	int calls = 0;

	assert_int_equal(proc_tasks(stop_at_once, &calls), -ECANCELED);
	assert_int_equal(calls, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(this_process_is_in_it), cmocka_unit_test(ended_tasks_are_kept),
		cmocka_unit_test(refreshed_by_a_thread), cmocka_unit_test(errors_are_said),
		cmocka_unit_test(walk_can_be_ended),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
