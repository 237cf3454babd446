/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Processes killed at random moments, sometimes with their recovery: afterwards every record that was put is in the files
 * exactly once, and JSON files are whole.
 */
#include "helpers.h"

/* A process that puts stages and drains them, and says in shared memory how far it got. */
static void busy_process(struct spool *spool, struct pool *pool, bool json, _Atomic uint64_t *done)
{
	struct drain *d;
	uint64_t n = 0;

	make_spool(spool, pool, 0);
	d = make_drain(spool, pool, json, 256 << 10, 0);
	for (;;) {
		int i;

		for (i = 0; i < 37; i++) {
			if (put_stage(pool, n + 1, 0))
				atomic_store(done, ++n);
			if (n + 1 >= MAX_STAGES)
				pause();
		}
		drain_step(d, n % 3 == 0, NULL);
	}
}

/* Kill at a random moment; sometimes kill the recovery as well; then every record that was put is there once. */
static void kill_and_recover(bool json, unsigned int seed)
{
	_Atomic uint64_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct spool spool;
	struct pool pool;
	pid_t child, second;
	uint64_t n;

	srand(seed);
	child = fork();
	if (!child)
		busy_process(&spool, &pool, json, done);
	while (!atomic_load(done))
		wait_us(100);
	wait_us(rand() % 30000);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	n = atomic_load(done);

	if (seed % 2) {
		second = fork();
		if (!second) {
			recover();
			_exit(0);
		}
		wait_us(rand() % 1500);
		kill(second, SIGKILL);
		waitpid(second, NULL, 0);
	}
	recover();
	assert_int_equal(recover(), 0); /* a second run finds nothing */

	n = n > atomic_load(done) ? n : atomic_load(done);
	assert_in_range(read_timeline(json), n, n + 1); /* the one being put may have made it */
	check_once(n);
	munmap(done, 4096);
	run("rm -rf %s", dump_path());
}

static void killed_anywhere_pb(void **state)
{
	unsigned int seed;

	(void)state;
	for (seed = 0; seed < 40; seed++)
		kill_and_recover(false, seed);
}

static void killed_anywhere_json(void **state)
{
	unsigned int seed;

	(void)state;
	for (seed = 100; seed < 120; seed++)
		kill_and_recover(true, seed);
}

/* Fork a process that puts 1..@count, drains the first half, and dies. */
static void half_drained(uint64_t count, bool json)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	uint64_t n;
	pid_t child = fork();

	if (!child) {
		make_spool(&spool, &pool, 0);
		d = make_drain(&spool, &pool, json, 0, 0);
		for (n = 1; n <= count / 2; n++)
			put_stage(&pool, n, 0);
		drain_step(d, true, NULL);
		for (; n <= count; n++)
			put_stage(&pool, n, 0);
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* Killed after it was announced and before anything was drained: only what was recorded is written. */
static void killed_before_its_first_pass(void **state)
{
	int records;

	(void)state;
	for (records = 0; records < 2; records++) {
		struct msg_origin origin;
		struct spool spool;
		struct pool pool;
		pid_t child = fork();

		if (!child) {
			make_spool(&spool, &pool, 0);
			origin = identity();
			origin.rank = 0;
			drain_announce(&pool, &origin, "/nonexistent", false, NULL);
			origin.rank = 3; /* told again, better */
			drain_announce(&pool, &origin, dump_path(), false, NULL);
			put_stage(&pool, 1, 0);
			put_stage(&pool, 2, 0);
			if (records)
				atomic_store(&pool.head->recording, POOL_RECORDS);
			kill(getpid(), SIGKILL);
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		assert_int_equal(recover(), 1);
		if (!records) {
			assert_int_equal(access(dump_path(), F_OK), -1);
			continue;
		}
		assert_int_equal(read_timeline(false), 2);
		check_once(2);
	}
}

static void moved_files_are_found_again(void **state)
{
	int json;

	(void)state;
	for (json = 0; json < 2; json++) {
		half_drained(200, json);
		/* what a restarted rank does with the file of its predecessor */
		run("mv %s/timeline/box--00003.timeline %s/timeline/box--00003.timeline.1760000000", dump_path(),
		    dump_path());
		assert_int_equal(recover(), 1);
		assert_int_equal(read_timeline(json), 200);
		check_once(200);
		run("test ! -e %s/timeline/box--00003.timeline", dump_path());
		run("rm -rf %s", dump_path());
	}
}

static void live_and_strange_ones_are_left_alone(void **state)
{
	struct spool spool;
	struct pool pool;
	struct owner self;

	(void)state;
	make_spool(&spool, &pool, 0);
	put_stage(&pool, 1, 0);
	owner_self(&self);
	/* a name that is none of ours; an empty directory of a dead process */
	run("mkdir %s/notes %s/%llu-4194000-1", spool.base, spool.base, (unsigned long long)self.pidns);
	assert_int_equal(recover(), 1);
	run("test -e %s/pool", spool.dir);
	run("test -d %s/notes -a ! -e %s/%llu-4194000-1", spool.base, spool.base, (unsigned long long)self.pidns);
	assert_int_equal(drain_pending(&pool), sizeof(struct rec_stage));
	spool_remove(&spool);
	assert_int_equal(access(spool.base, F_OK), 0);
}

static void a_pool_in_use_by_children_stays(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	int told[2], go[2];
	pid_t parent, worker;
	char byte;

	(void)state;
	assert_int_equal(pipe(told) | pipe(go), 0);
	parent = fork();
	if (!parent) {
		make_spool(&spool, &pool, 0);
		d = make_drain(&spool, &pool, false, 0, 0);
		put_stage(&pool, 1, 0);
		drain_step(d, true, NULL);
		worker = fork();
		if (!worker) {
			close(go[1]); /* the end of a failed test is its end too */
			in_child(&pool);
			put_stage(&pool, 2, 0);
			write(told[1], "x", 1);
			read(go[0], &byte, 1);
			put_stage(&pool, 3, 0);
			_exit(0);
		}
		write(told[1], &worker, sizeof(worker));
		pause();
	}
	/* the worker's byte and its pid, in either order: wait for both */
	{
		char both[1 + sizeof(worker)];
		size_t have = 0;

		while (have < sizeof(both))
			have += (size_t)read(told[0], both + have, sizeof(both) - have);
	}
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	assert_int_equal(recover(), 0); /* drained, but it stays */
	assert_int_equal(read_timeline(false), 2);
	write(go[1], "x", 1);
	while (recover() != 1)
		wait_us(2000);
	assert_int_equal(read_timeline(false), 3);
	check_once(3);
}

/* Ids go on where the dead process stopped, rows are whole, and the sidecar keeps its clocks while its drops rise. */
static void markers_go_on_after_a_kill(void **state)
{
	pid_t child = fork();
	char path[200], want[64], *text, *at;
	size_t bytes;
	uint64_t id;

	(void)state;
	if (!child) {
		struct spool spool;
		struct pool pool;
		struct drain *d;
		uint64_t n;

		make_spool(&spool, &pool, 16);
		d = make_drain(&spool, &pool, true, 0, 0);
		for (n = 1; n <= 50; n++)
			put_comm(&pool, n);
		drain_step(d, true, NULL);
		for (; n <= 100; n++)
			put_comm(&pool, n);
		atomic_fetch_add(&pool.head->dropped[POOL_SRC_COMM], 7);
		kill(getpid(), SIGKILL);
	}
	waitpid(child, NULL, 0);
	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv", dump_path());
	run("printf '2,51,1,comm:torn' >>%s", path); /* what a batch cut by the kill leaves */
	assert_int_equal(recover(), 1);
	text = slurp(path, &bytes);
	at = strchr(text, '\n') + 1;
	for (id = 1; id <= 100; id++) {
		int n = snprintf(want, sizeof(want), "2,%llu,1,comm:all_reduce!", (unsigned long long)id);

		assert_memory_equal(at, want, (size_t)n);
		at = strchr(at, '\n') + 1;
		n = snprintf(want, sizeof(want), "4,%llu,1,,0,", (unsigned long long)id);
		assert_memory_equal(at, want, (size_t)n);
		at = strchr(at, '\n') + 1;
	}
	assert_int_equal(*at, 0);
	free(text);
	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv.meta.json", dump_path());
	check_json(path);
	text = slurp(path, &bytes);
	assert_non_null(strstr(text, "\"clocks\":[{\"mono_ns\":"));
	assert_non_null(strstr(text, "{\"source\":\"comm\",\"count\":7,"));
	free(text);
}

/* A pool whose bytes were damaged: recover says something or does something, but it ends. */
static void damaged_pools_do_no_harm(void **state)
{
	unsigned int seed;

	(void)state;
	for (seed = 0; seed < 60; seed++) {
		int status, i, fd;
		pid_t child;
		char path[200];

		half_drained(100, seed % 2);
		srand(seed);
		snprintf(path, sizeof(path), "ls %s/sysTrace.*/*/pool >%s/list", root, root);
		run("%s", path);
		snprintf(path, sizeof(path), "%s/list", root);
		{
			FILE *list = fopen(path, "r");

			assert_non_null(list);
			assert_non_null(fgets(path, sizeof(path), list));
			fclose(list);
			path[strcspn(path, "\n")] = 0;
		}
		fd = open(path, O_RDWR);
		assert_true(fd >= 0);
		for (i = 0; i < 200; i++) {
			/* mostly the header and the first chunks, where the meaning is */
			off_t at = rand() % 4 ? rand() % (off_t)sizeof(struct pool_header)
					      : (off_t)pool_area_bytes(0) + rand() % 16384;
			uint32_t word = (uint32_t)rand() << (rand() % 16);

			/* not magic, version and sizes, which are checked first of all; not the path, for the test must
			 * not write outside its directory */
			if (at >= 64 && (at + 4 <= (off_t)offsetof(struct pool_header, dump_path) ||
					 at >= (off_t)sizeof(struct pool_header)))
				assert_int_equal(pwrite(fd, &word, sizeof(word), at), sizeof(word));
		}
		close(fd);
		child = fork();
		if (!child) {
			struct recover_options options = { .size = sizeof(options), .place = root, .uid = geteuid() };

			alarm(20);
			recover_run(&options, NULL);
			_exit(0);
		}
		waitpid(child, &status, 0);
		if (status)
			fail_msg("seed %u: status 0x%x", seed, (unsigned int)status);
		run("rm -rf %s/*", root);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(killed_anywhere_pb, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_anywhere_json, setup, teardown),
		cmocka_unit_test_setup_teardown(markers_go_on_after_a_kill, setup, teardown),
		cmocka_unit_test_setup_teardown(damaged_pools_do_no_harm, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_before_its_first_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(moved_files_are_found_again, setup, teardown),
		cmocka_unit_test_setup_teardown(live_and_strange_ones_are_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(a_pool_in_use_by_children_stays, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
