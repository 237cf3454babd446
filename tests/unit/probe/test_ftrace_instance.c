/* SPDX-License-Identifier: MulanPSL-2.0 */
/* CPUs, masks and counters of an instance; removal of what killed recorders left; remembered state; failed starts. */
#include "fake_tracefs.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace/rec_owner.h"
#include "probe/ftrace/saved_state.h"
#include "systrace/ftrace.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <cmocka.h>

static const struct note silent;

static int choose(void **state, const char *list, uint32_t **cpus, size_t *count, struct st_err *err)
{
	struct fake *fake = *state;
	int have = openat(fake->fs.fd, "per_cpu", O_RDONLY | O_DIRECTORY), ret;

	ret = cpus_choose(have, list, cpus, count, &silent, err);
	close(have);
	return ret;
}

static void cpus_that_exist(void **state)
{
	struct st_err err = { 0 };
	uint32_t *cpus;
	size_t count;

	assert_int_equal(choose(state, NULL, &cpus, &count, NULL), 0);
	assert_int_equal(count, 3); /* 0, 1, 3 */
	assert_int_equal(cpus[2], 3);
	free(cpus);
	assert_int_equal(choose(state, "3,1-2,1-60000", &cpus, &count, NULL), 0);
	assert_int_equal(count, 2);
	assert_int_equal(cpus[0], 1);
	assert_int_equal(cpus[1], 3);
	free(cpus);
	assert_int_equal(choose(state, "2,9", &cpus, &count, &err), -ENOENT);
	assert_string_equal(err.text, "none of the CPUs 2,9 is in this machine: it has 0-3");
	free(cpus);
	assert_int_equal(choose(state, "1-", &cpus, &count, &err), -EINVAL);
	free(cpus);
}

static void masks(void **state)
{
	const struct {
		uint32_t cpus[3];
		size_t count;
		const char *mask;
	} rows[] = {
		{ { 0 }, 1, "00000001" },
		{ { 1, 31 }, 2, "80000002" },
		{ { 0, 32, 95 }, 3, "80000000,00000001,00000001" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *mask = cpus_mask(rows[i].cpus, rows[i].count);

		assert_string_equal(mask, rows[i].mask);
		free(mask);
	}
}

static void counters(void **state)
{
	struct cpu_stats stats;

	cpu_stats_parse("entries: 7\noverrun: 58943\ncommit overrun: 3\nbytes: 1\noldest event ts:   641.1\n"
			"now ts: 642.2\ndropped events: 2\nread events: 41\n",
			&stats);
	assert_int_equal(stats.entries, 7);
	assert_int_equal(stats.overrun, 58943);
	assert_int_equal(stats.commit_overrun, 3);
	assert_int_equal(stats.dropped, 2);
	assert_int_equal(stats.read, 41);
	assert_int_equal(cpu_stats_lost(&stats), 58948);
	cpu_stats_parse("", &stats);
	assert_int_equal(cpu_stats_lost(&stats), 0);
}

/* A name of a process of our namespace that has ended */
static void dead_name(char *name, size_t room)
{
	char own[128];
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	waitpid(pid, NULL, 0);
	rec_owner_name(0, own, sizeof(own));
	snprintf(name, room, "systrace-%d%s", (int)pid, strchr(own + strlen("systrace-"), '-'));
}

static void sweep_removes_the_dead_only(void **state)
{
	struct fake *fake = *state;
	char dead[128], alive[128], path[256];
	const char *const kept[] = { "systrace-1", "systrace-x-1-1-0", "mine", "systrace-1-1-1-0x" };

	dead_name(dead, sizeof(dead));
	rec_owner_name(1, alive, sizeof(alive));
	snprintf(path, sizeof(path), "instances/%s", dead);
	fake_dir(fake, path);
	snprintf(path, sizeof(path), "instances/%s", alive);
	fake_dir(fake, path);
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		snprintf(path, sizeof(path), "instances/%s", kept[i]);
		fake_dir(fake, path);
	}
	assert_int_equal(instance_sweep(&fake->fs, &silent), 1);
	snprintf(path, sizeof(path), "instances/%s", dead);
	assert_false(file_exists(fake->fs.fd, path));
	snprintf(path, sizeof(path), "instances/%s", alive);
	assert_true(file_exists(fake->fs.fd, path));
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		snprintf(path, sizeof(path), "instances/%s", kept[i]);
		assert_true(file_exists(fake->fs.fd, path));
	}
}

static void values_to_write_back(void **state)
{
	char value[32];

	assert_true(trace_clock_current("local global [mono_raw] boot", value, sizeof(value)));
	assert_string_equal(value, "mono_raw");
	assert_false(trace_clock_current("local global", value, sizeof(value)));
	assert_false(trace_clock_current("[a-clock-whose-name-has-no-room-here]", value, sizeof(value)));
	assert_true(buffer_kb_current("7 (expanded: 1408)", value, sizeof(value)));
	assert_string_equal(value, "1408");
	assert_true(buffer_kb_current("4099", value, sizeof(value)));
	assert_string_equal(value, "4099");
	assert_false(buffer_kb_current("X", value, sizeof(value)));
}

static void check_file(const struct fake *fake, const char *name, const char *want)
{
	char line[64];

	assert_int_equal(file_read_line(fake->fs.fd, name, line, sizeof(line)), 0);
	assert_string_equal(line, want);
}

static void state_is_put_back(void **state)
{
	struct fake *fake = *state;
	struct saved_state saved;
	struct st_err err = { 0 };
	int ret;

	fake_file(fake, "trace_clock", "[local] mono_raw\n");
	fake_file(fake, "buffer_size_kb", "7 (expanded: 1408)\n");
	fake_file(fake, "tracing_cpumask", "3\n");
	fake_file(fake, "tracing_on", "1\n");
	fake_file(fake, "current_tracer", "nop\n");
	fake_file(fake, "set_event", "");
	ret = saved_state_take(&saved, &fake->fs, NULL, &err);
	if (ret == -EACCES || ret == -ENOENT)
		skip(); /* /run cannot be written to */
	assert_int_equal(ret, 0);
	assert_false(saved.in_use);
	fake_file(fake, "trace_clock", "local [mono_raw]\n");
	fake_file(fake, "tracing_on", "0\n");
	fake_file(fake, "tracing_cpumask", "1\n");
	fake_file(fake, "set_event", "sched:sched_switch\n");
	assert_int_equal(saved_state_restore(&saved, &err), 0);
	check_file(fake, "trace_clock", "local");
	check_file(fake, "buffer_size_kb", "1408");
	check_file(fake, "tracing_cpumask", "3");
	check_file(fake, "tracing_on", "1");
	check_file(fake, "set_event", "");
	assert_int_equal(saved_state_restore(&saved, &err), 0); /* nothing more to do */
}

static void top_level_in_use_is_seen(void **state)
{
	struct fake *fake = *state;
	struct saved_state saved;

	fake_file(fake, "trace_clock", "[local]\n");
	fake_file(fake, "buffer_size_kb", "1408\n");
	fake_file(fake, "tracing_cpumask", "3\n");
	fake_file(fake, "tracing_on", "1\n");
	fake_file(fake, "current_tracer", "function\n");
	fake_file(fake, "set_event", "");
	if (saved_state_take(&saved, &fake->fs, NULL, NULL) < 0)
		skip();
	assert_true(saved.in_use);
	assert_int_equal(strncmp(saved.instance, "systrace-", 9), 0);
	assert_int_equal(saved_state_restore(&saved, NULL), 0);
	check_file(fake, "tracing_on", "1");
}

/* The instance of the fake has no files: every back end fails there, and must leave nothing. */
static void failed_start_leaves_nothing(void **state)
{
	struct fake *fake = *state;
	char output[128], error[512] = "", path[128];
	struct systrace_ftrace_options opts = { .size = sizeof(opts), .tracefs = fake->path, .output = output };

	fake_path(fake, "out.dat", output, sizeof(output));
	opts.backend = SYSTRACE_FTRACE_NATIVE;
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	assert_int_equal(errno, ENOENT);
	assert_non_null(strstr(error, "tracing_on"));
	opts.backend = SYSTRACE_FTRACE_DEBUGFS;
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	fake_path(fake, "instances", path, sizeof(path));
	assert_int_equal(rmdir(path), 0); /* it is empty */
	assert_int_equal(access(output, F_OK), -1);
}

static void options_are_checked(void **state)
{
	struct fake *fake = *state;
	struct systrace_ftrace_options opts = { .size = sizeof(opts), .tracefs = fake->path };
	char error[512];

	opts.backend = 99;
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	assert_string_equal(error, "options: there is no back end 99");
	opts.backend = 0;
	opts.compress = 7;
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	opts.size = 3;
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(error, "size is 3"));
	opts = (struct systrace_ftrace_options){ .size = sizeof(opts), .tracefs = fake->path, .instance = "a/b" };
	opts.backend = SYSTRACE_FTRACE_NATIVE;
	opts.output = "/tmp/st-never";
	assert_null(systrace_ftrace_start(&opts, error, sizeof(error)));
	assert_non_null(strstr(error, "cannot be the name of a tracing instance"));
	opts.tracefs = "/no/such/tracefs";
	assert_null(systrace_ftrace_start(&opts, NULL, 0));
	assert_int_equal(errno, ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cpus_that_exist, fake_setup, fake_teardown),
		cmocka_unit_test(masks),
		cmocka_unit_test(counters),
		cmocka_unit_test_setup_teardown(sweep_removes_the_dead_only, fake_setup, fake_teardown),
		cmocka_unit_test(values_to_write_back),
		cmocka_unit_test_setup_teardown(state_is_put_back, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(top_level_in_use_is_seen, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(failed_start_leaves_nothing, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(options_are_checked, fake_setup, fake_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
