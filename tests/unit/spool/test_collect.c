/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Local segments on their way to the dump path: nothing is lost, doubled or overwritten, whoever is interrupted or at it
 * twice; what a live process still writes stays.
 */
#include "helpers.h"

#include "spool/collect.h"

static int counts[4]; /* by verdict */

static void count(void *ctx, const struct collect_report *report)
{
	(void)ctx;
	counts[report->verdict]++;
	if (report->verdict == COLLECT_FAILED)
		print_message("%s: %s\n", report->from, report->text);
}

static int collect_files(bool dry_run)
{
	static char from[96];
	struct collect_options options = {
		.size = sizeof(options),
		.from = from,
		.to = dump_path(),
		.spool = root,
		.dry_run = dry_run,
		.report = count,
	};
	struct st_err err;
	int ret;

	memset(counts, 0, sizeof(counts));
	snprintf(from, sizeof(from), "%s/local", root);
	ret = collect_run(&options, &err);
	if (ret < 0)
		fail_msg("%s", err.text);
	assert_int_equal(counts[COLLECT_FAILED], 0);
	return ret;
}

static struct drain *local_drain(struct spool *spool, struct pool *pool, bool json, uint64_t segment)
{
	static char local[96];
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = local,
		.lock_base = spool->base,
		.json = json,
		.keep_open = true,
		.segment_bytes = segment,
	};
	struct msg_origin origin = identity();
	struct drain *d;

	snprintf(local, sizeof(local), "%s/local", root);
	d = drain_new(&options, NULL);
	assert_non_null(d);
	assert_int_equal(drain_identify(d, &origin, NULL), 0);
	return d;
}

/* A process that leaves the dump path after @first records, writes up to @last locally in segments, and ends. */
static void slow_path(uint64_t first, uint64_t last, bool json, int *ready, int *end)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	char local[96], byte;
	uint64_t n;

	snprintf(local, sizeof(local), "%s/local", root);
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, json, 64 << 10, 0);
	for (n = 1; n <= first; n++)
		put_stage(&pool, n, 0);
	put_comm(&pool, 1);
	drain_step(d, true, NULL);
	drain_redirect(d, local, NULL);
	for (; n <= last; n++) {
		put_stage(&pool, n, 0);
		if (n % 200 == 0)
			drain_step(d, true, NULL);
	}
	put_comm(&pool, 2);
	drain_step(d, true, NULL);
	if (write(ready[1], "x", 1) != 1 || read(end[0], &byte, 1) != 1)
		_exit(1);
	drain_free(d);
	spool_remove(&spool);
	_exit(0);
}

static void segments_come_home(bool json)
{
	int ready[2], end[2], status;
	pid_t child;
	char byte;

	assert_int_equal(pipe(ready) | pipe(end), 0);
	child = fork();
	if (!child)
		slow_path(500, 4000, json, ready, end);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_true(collect_files(true) > 0);
	run("! ls %s/timeline | grep -q part", dump_path());
	assert_true(collect_files(false) > 0); /* closed segments, of a live process */
	assert_int_equal(counts[COLLECT_LIVE] > 0, 1);
	assert_int_equal(collect_files(false), 0);
	assert_int_equal(write(end[1], "x", 1), 1);
	waitpid(child, &status, 0);
	assert_int_equal(status, 0);
	assert_true(collect_files(false) > 0);
	run("test -z \"$(find %s/local -type f)\"", root);
	assert_int_equal(read_timeline(json), 4000);
	check_once(4000);
	run("test $(cat %s/mspti/*.csv* | grep -c all_reduce) = 2", dump_path());
	/* in order: the live name holds the last record, as readers expect */
	if (!json)
		run("ls %s/timeline/box--00003.timeline.1 %s/timeline/box--00003.timeline.2 >/dev/null", dump_path(),
		    dump_path());
	run("rm -rf %s %s/local", dump_path(), root);
}

static void segments_come_home_pb(void **state)
{
	(void)state;
	segments_come_home(false);
}

static void segments_come_home_json(void **state)
{
	(void)state;
	segments_come_home(true);
}

static void others_files_are_left_alone(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	size_t bytes;
	char path[200], *text;
	pid_t child;

	(void)state;
	/* the name is taken by somebody else; links are not followed */
	run("mkdir -p %s/timeline %s/local/timeline && echo theirs > %s/timeline/box--00003.timeline && "
	    "ln -s /etc/passwd %s/local/timeline/link && ln -s /etc %s/local/dir",
	    dump_path(), root, dump_path(), root, root);
	child = fork();
	if (!child) {
		make_spool(&spool, &pool, 0);
		d = local_drain(&spool, &pool, false, 0);
		put_stage(&pool, 1, 0);
		drain_step(d, true, NULL);
		drain_free(d);
		spool_remove(&spool);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	assert_int_equal(collect_files(false), 1);
	snprintf(path, sizeof(path), "%s/timeline/box--00003.timeline", dump_path());
	text = slurp(path, &bytes);
	assert_string_equal(text, "theirs\n");
	free(text);
	snprintf(path, sizeof(path), "%s/timeline/box--00003-%d.timeline", dump_path(), (int)child);
	text = slurp(path, &bytes);
	memset(seen, 0, sizeof(seen));
	assert_int_equal(read_pb(text, bytes), 1);
	free(text);
	run("test ! -e %s/timeline/link -a ! -e %s/dir/passwd -a -L %s/local/timeline/link", dump_path(), dump_path(),
	    root);
}

static void the_killed_are_recovered_first(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	pid_t child = fork();

	(void)state;
	if (!child) {
		make_spool(&spool, &pool, 0);
		d = local_drain(&spool, &pool, true, 0);
		put_stage(&pool, 1, 0);
		drain_step(d, true, NULL);
		put_stage(&pool, 2, 0);
		kill(getpid(), SIGKILL);
	}
	waitpid(child, NULL, 0);
	assert_int_equal(collect_files(false), 0);
	assert_true(counts[COLLECT_WAITS] > 0);
	assert_int_equal(recover(), 1);
	assert_true(collect_files(false) > 0);
	assert_int_equal(read_timeline(true), 2);
	check_once(2);
}

/* Killed at random moments, and two at once: each record is there once. */
static void interrupted_and_twice_at_once(void **state)
{
	unsigned int seed;

	(void)state;
	for (seed = 0; seed < 12; seed++) {
		struct spool spool;
		struct pool pool;
		struct drain *d;
		uint64_t n;
		pid_t child = fork(), first, second;

		if (!child) {
			make_spool(&spool, &pool, 0);
			d = local_drain(&spool, &pool, false, 32 << 10);
			for (n = 1; n <= 3000; n++) {
				put_stage(&pool, n, 0);
				if (n % 100 == 0)
					drain_step(d, true, NULL);
			}
			drain_step(d, true, NULL);
			drain_free(d);
			spool_remove(&spool);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		first = fork();
		if (!first) {
			collect_files(false);
			_exit(0);
		}
		second = seed % 2 ? fork() : -1;
		if (!second) {
			collect_files(false);
			_exit(0);
		}
		if (second < 0) {
			srand(seed);
			wait_us(rand() % 8000);
			kill(first, SIGKILL);
		} else {
			waitpid(second, NULL, 0);
		}
		waitpid(first, NULL, 0);
		collect_files(false);
		run("find %s -name '*.part' -delete; test -z \"$(find %s/local -type f)\"", dump_path(), root);
		assert_int_equal(read_timeline(false), 3000);
		check_once(3000);
		run("rm -rf %s %s/local", dump_path(), root);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(segments_come_home_pb, setup, teardown),
		cmocka_unit_test_setup_teardown(segments_come_home_json, setup, teardown),
		cmocka_unit_test_setup_teardown(others_files_are_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(the_killed_are_recovered_first, setup, teardown),
		cmocka_unit_test_setup_teardown(interrupted_and_twice_at_once, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
