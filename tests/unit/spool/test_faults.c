/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Every fault point of spool/ fails once, at each of its passes (base/fault.h): the program goes on, no descriptor stays
 * open, nothing is left behind, and once the fault is over each record is in the files exactly once.
 */
#include "helpers.h"

#include "base/fault.h"
#include "spool/collect.h"

#ifdef ST_FAULTS

#define NAMES 64
#define PASSES 6 /* of each point, spread over all of them */
#define RECORDS 900

static char local[96];

static int open_files(void)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while ((entry = readdir(dir)))
		n++;
	closedir(dir);
	return n;
}

static struct drain *patient_drain(struct spool *spool, struct pool *pool, const char *dump, bool json)
{
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = dump,
		.lock_base = spool->base,
		.json = json,
		.keep_open = !json, /* both ways of keeping files */
		.segment_bytes = 24 << 10,
	};
	struct msg_origin origin = identity();
	struct drain *d = NULL;
	int tries;

	for (tries = 0; !d && tries < 3; tries++)
		d = drain_new(&options, NULL);
	assert_non_null(d);
	assert_int_equal(drain_identify(d, &origin, NULL), 0);
	return d;
}

static void finish(struct drain *d, struct pool *pool)
{
	int tries;

	for (tries = 0; drain_pending(pool) && tries < 10; tries++) {
		drain_retry_now(d);
		drain_step(d, true, NULL);
	}
	assert_int_equal(drain_pending(pool), 0);
}

/* A pool that is filled, grown, emptied into segments and removed. */
static void record(bool json)
{
	struct spool_options options = { .size = sizeof(options), .place = root, .chunks = 32 };
	struct spool spool;
	struct pool pool = { 0 };
	struct drain *d;
	uint64_t n;

	if (spool_create(&spool, &pool, &options, NULL) < 0 && spool_create(&spool, &pool, &options, NULL) < 0)
		fail_msg("no pool, not even the second time");
	d = patient_drain(&spool, &pool, dump_path(), json);
	for (n = 1; n <= RECORDS; n++) {
		assert_true(put_stage(&pool, n, 0));
		if (n % 300 == 0) {
			put_comm(&pool, n);
			drain_retry_now(d);
			drain_step(d, true, NULL);
		}
	}
	spool_grow(&spool, 1 << 20, NULL);
	finish(d, &pool);
	drain_free(d);
	spool_remove(&spool);
	munmap(spool.area, spool.reserved_bytes);
	munmap(pool.guard, 4096);
	assert_int_equal(read_timeline(json), RECORDS);
	check_once(RECORDS);
}

static void record_pb(void)
{
	record(false);
}

static void record_json(void)
{
	record(true);
}

static void leave_killed(const char *dump, bool json, bool in_order)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	uint64_t n;
	pid_t child = fork();

	if (child) {
		assert_int_equal(waitpid(child, NULL, 0), child);
		return;
	}
	fault_arm("", 0, 0, 0);
	make_spool(&spool, &pool, 32);
	d = patient_drain(&spool, &pool, dump, json);
	for (n = 1; n <= RECORDS; n++) {
		put_stage(&pool, n, 0);
		if (n % 300 == 0 && n < RECORDS)
			drain_step(d, true, NULL);
	}
	put_comm(&pool, 1);
	if (in_order) {
		finish(d, &pool);
		drain_free(d);
		spool_remove(&spool);
		_exit(0);
	}
	kill(getpid(), SIGKILL);
}

/* A killed process's pool, recovered and recovered again. */
static void recover_killed(void)
{
	struct recover_options options = { .size = sizeof(options), .place = root, .uid = geteuid() };

	leave_killed(dump_path(), true, false);
	recover_run(&options, NULL);
	recover_run(&options, NULL);
	assert_int_equal(read_timeline(true), RECORDS);
	check_once(RECORDS);
}

/* Local segments, collected and collected again. */
static void collect_local(void)
{
	struct collect_options options = { .size = sizeof(options), .from = local, .to = dump_path(), .spool = root };

	leave_killed(local, false, true);
	collect_run(&options, NULL);
	collect_run(&options, NULL);
	run("test -z \"$(find %s -type f)\"", local);
	assert_int_equal(read_timeline(false), RECORDS);
	check_once(RECORDS);
}

static int error_of(const char *name)
{
	return strstr(name, "map") || strstr(name, "new") || strstr(name, "guard") || strstr(name, "reserve") ? ENOMEM
	       : strstr(name, "write")									      ? EDQUOT
	       : strstr(name, "fallocate")								      ? ENOSPC
													      : EIO;
}

static void clean_up(void)
{
	run("rm -rf %s/*", root);
}

/* Passes of the scenario without a fault, then one run for each point and pass. */
static void fail_everywhere(void (*scenario)(void), const char *const *must)
{
	const char *names[NAMES];
	uint64_t before[NAMES], total[NAMES], pass;
	int count, i, files = open_files();

	snprintf(local, sizeof(local), "%s/local", root);
	count = fault_names(names, NAMES);
	for (i = 0; i < NAMES; i++)
		before[i] = i < count ? fault_passes(names[i]) : 0;
	scenario();
	clean_up();
	count = fault_names(names, NAMES);
	for (i = 0; i < count; i++)
		total[i] = fault_passes(names[i]) - before[i];
	for (; *must; must++)
		assert_true(fault_passes(*must) > 0);
	for (i = 0; i < count; i++) {
		for (pass = 1; pass <= total[i]; pass += total[i] / PASSES + 1) {
			if (getenv("ST_VERBOSE"))
				print_message("%s, pass %d of %d\n", names[i], (int)pass, (int)total[i]);
			fault_arm(names[i], pass, 1, error_of(names[i]));
			scenario();
			fault_arm(names[i], 0, 0, 0);
			if (open_files() != files)
				fail_msg("%s, pass %d: %d files open, %d before", names[i], (int)pass, open_files(),
					 files);
			/* what can't be opened is not removed: recover does it later */
			if (strcmp(names[i], "dir.reopen") != 0)
				run("test -z \"$(find %s -path '*/locks' -prune -o -type f -print | grep -v /dump/)\"",
				    root);
			clean_up();
		}
	}
}

static void recording_survives_each_fault(void **state)
{
	static const char *const pb[] = {
		"dir.mkdir_base", "dir.open_base",   "dir.mkdir",   "dir.open",	  "dir.create", "dir.fallocate",
		"dir.map",	  "dir.guard",	     "dir.reserve", "dir.reopen", "drain.new",	"out.write",
		"name.create",	  "name.open",	     "name.rename", "lock.open",  "lock.write", "out.part",
		"out.part_write", "out.part_rename", NULL
	};
	static const char *const json[] = { "out.reopen", "out.fallocate", NULL };

	(void)state;
	fail_everywhere(record_pb, pb);
	fail_everywhere(record_json, json);
}

static void recovery_survives_each_fault(void **state)
{
	static const char *const must[] = {
		"recover.map", "recover.open", "out.adopt", "out.truncate", "out.tail", NULL
	};

	(void)state;
	fail_everywhere(recover_killed, must);
}

static void collecting_survives_each_fault(void **state)
{
	static const char *const must[] = { "collect.create", "collect.write", "collect.sidecar", "collect.unlink",
					    NULL };

	(void)state;
	fail_everywhere(collect_local, must);
}
#else
static void needs_fault_points(void **state)
{
	(void)state;
	print_message("skip: built without fault points (-DST_FAULTS=ON)\n");
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef ST_FAULTS
		cmocka_unit_test_setup_teardown(recording_survives_each_fault, setup, teardown),
		cmocka_unit_test_setup_teardown(recovery_survives_each_fault, setup, teardown),
		cmocka_unit_test_setup_teardown(collecting_survives_each_fault, setup, teardown),
#else
		cmocka_unit_test(needs_fault_points),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
