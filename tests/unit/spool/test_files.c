/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names, segments and trouble of output files: no two processes write one file, nothing is overwritten (contract 1 and 2),
 * a full disk or a vanished directory loses nothing that the pool still holds.
 */
#include "helpers.h"

static char said[1024];

static void listen(void *ctx, const char *text)
{
	(void)ctx;
	snprintf(said, sizeof(said), "%s", text);
}

static struct drain *make_drain_at(struct spool *spool, struct pool *pool, const char *dump, bool json, bool keep_open)
{
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = dump,
		.lock_base = spool->base,
		.json = json,
		.keep_open = keep_open,
		.say = listen,
	};
	struct msg_origin origin = identity();
	struct drain *d = drain_new(&options, NULL);

	assert_non_null(d);
	assert_int_equal(drain_identify(d, &origin, NULL), 0);
	said[0] = 0;
	return d;
}

/* A process of its own that records @first..@last, stays alive until the pipe closes, and ends in order. */
static pid_t other_process(uint64_t first, uint64_t last, bool keep_open, int ready, int end)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	pid_t pid = fork();
	char byte;

	if (pid)
		return pid;
	make_spool(&spool, &pool, 0);
	d = make_drain_at(&spool, &pool, dump_path(), false, keep_open);
	for (; first <= last; first++)
		put_stage(&pool, first, 0);
	drain_step(d, true, NULL);
	if (write(ready, "x", 1) != 1 || read(end, &byte, 1) < 0)
		_exit(1);
	drain_free(d);
	spool_remove(&spool);
	_exit(0);
}

static void two_live_processes_write_two_files(void **state)
{
	int keep_open;

	(void)state;
	for (keep_open = 0; keep_open < 2; keep_open++) {
		int ready[2], end[2], status;
		pid_t a, b;
		char byte;

		assert_int_equal(pipe(ready) | pipe(end), 0);
		a = other_process(1, 10, keep_open, ready[1], end[0]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		b = other_process(11, 20, keep_open, ready[1], end[0]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		assert_int_equal(write(end[1], "xx", 2), 2);
		waitpid(a, &status, 0);
		assert_int_equal(status, 0);
		waitpid(b, &status, 0);
		assert_int_equal(status, 0);
		run("test -e %s/timeline/box--00003.timeline -a -e %s/timeline/box--00003-%d.timeline", dump_path(),
		    dump_path(), (int)b);
		assert_int_equal(read_timeline(false), 20);
		check_once(20);
		run("rm -rf %s", dump_path());
	}
}

/* A container with a spool of its own writes this name: no lock tells, the file does. */
static void write_as_container(const char *boot_id, bool seen_from_here, const char *age)
{
	struct owner self;
	char path[192];
	FILE *f;

	owner_self(&self);
	snprintf(path, sizeof(path), "%s/timeline/box--00003.timeline", dump_path());
	run("mkdir -p %s/timeline", dump_path());
	f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f,
		"{\"rank\":3,\"comm\":\"j\",\"origin\":[{\"host\":\"box\",\"boot_id\":\"%s\",\"proc_start\":5,"
		"\"wall_minus_mono_ns\":1,\"pid\":1,\"pid_namespace\":%llu}],\"pytorch_stages\":[\n]}\n",
		boot_id ? boot_id : self.boot_id,
		(unsigned long long)(seen_from_here ? self.pidns : 0)); /* root would see any real one */
	fclose(f);
	run("touch -d '%s' %s", age, path);
}

static void a_live_containers_file_is_left_alone(void **state)
{
	static const struct {
		const char *boot_id;
		bool seen_from_here;
		const char *age;
		bool lives;
	} cases[] = {
		{ NULL, false, "now", true }, /* another container of this host, writing */
		{ NULL, false, "now -10 minutes", false }, /* long silent */
		{ NULL, true, "now", false }, /* this namespace: pid 1 did not start then, so it is dead */
		{ "another-boot", false, "now", true }, /* another host of the same name */
		{ "another-boot", true, "now -10 minutes", false }, /* this host before it was booted */
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct spool spool;
		struct pool pool;
		struct drain *d;

		write_as_container(cases[i].boot_id, cases[i].seen_from_here, cases[i].age);
		make_spool(&spool, &pool, 0);
		d = make_drain(&spool, &pool, true, 0, 0);
		put_stage(&pool, 1, 0);
		assert_int_equal(drain_step(d, true, NULL), 1);
		drain_free(d);
		spool_remove(&spool);
		if (cases[i].lives)
			run("grep -q '\"pid\":1,' %s/timeline/box--00003.timeline && test -s "
			    "%s/timeline/box--00003-%d.timeline",
			    dump_path(), dump_path(), (int)getpid());
		else
			run("! grep -q '\"pid\":1,' %s/timeline/box--00003.timeline && ls %s/timeline | grep -q 'timeline[.][0-9]'",
			    dump_path(), dump_path());
		run("rm -rf %s", dump_path());
	}
}

static void an_earlier_file_is_renamed_first(void **state)
{
	int ready[2], end[2];
	struct spool spool;
	struct pool pool;
	struct drain *d;
	char byte;
	pid_t a;

	(void)state;
	assert_int_equal(pipe(ready) | pipe(end), 0);
	a = other_process(1, 10, true, ready[1], end[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(write(end[1], "x", 1), 1);
	waitpid(a, NULL, 0);
	run("touch -d @1700000000 %s/timeline/box--00003.timeline", dump_path());
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	put_stage(&pool, 11, 0);
	assert_int_equal(drain_step(d, true, NULL), 1);
	/* a later capture of the same process appends */
	drain_free(d);
	d = make_drain(&spool, &pool, false, 0, 0);
	put_stage(&pool, 12, 0);
	assert_int_equal(drain_step(d, true, NULL), 1);
	drain_free(d);
	spool_remove(&spool);
	run("test $(ls %s/timeline | wc -l) = 2 -a -s %s/timeline/box--00003.timeline.1700000000", dump_path(),
	    dump_path());
	assert_int_equal(read_timeline(false), 12);
	check_once(12);
}

static void another_hosts_file_is_left_alone(void **state)
{
	static const char foreign[] =
		"{\"rank\":3,\"comm\":\"j\",\"origin\":[{\"host\":\"other\",\"boot_id\":\"b\",\"proc_start\":5,"
		"\"wall_minus_mono_ns\":1,\"pid\":9}],\"pytorch_stages\":[\n]}\n";
	struct spool spool;
	struct pool pool;
	struct drain *d;
	char path[200], *text;
	size_t bytes;
	FILE *f;

	(void)state;
	run("mkdir -p %s/timeline", dump_path());
	snprintf(path, sizeof(path), "%s/timeline/box--00003.timeline", dump_path());
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(foreign, f);
	fclose(f);
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, true, 0, 0);
	put_stage(&pool, 1, 0);
	assert_int_equal(drain_step(d, true, NULL), 1);
	drain_free(d);
	spool_remove(&spool);
	text = slurp(path, &bytes);
	assert_string_equal(text, foreign);
	free(text);
	run("test -s %s/timeline/box--00003-box.timeline", dump_path());
}

static void segments_are_closed_whole(void **state)
{
	int json;

	(void)state;
	for (json = 0; json < 2; json++) {
		struct spool spool;
		struct pool pool;
		struct drain *d;
		uint64_t n = 0;

		make_spool(&spool, &pool, 0);
		d = make_drain(&spool, &pool, json, 512 << 10, 0);
		while (n < 20000) {
			for (int i = 0; i < 500; i++)
				assert_true(put_stage(&pool, ++n, 0));
			assert_true(drain_step(d, true, NULL) > 0);
		}
		drain_free(d);
		spool_remove(&spool);
		run("test -s %s/timeline/box--00003.timeline.1 -a -s %s/timeline/box--00003.timeline", dump_path(),
		    dump_path());
		run("test -z \"$(find %s -size +512k)\"", dump_path());
		assert_int_equal(read_timeline(json), 20000);
		check_once(20000);
		run("rm -rf %s", dump_path());
	}
}

static void oldest_segments_go_at_the_limit(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	uint64_t n = 0;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 128 << 10, 512 << 10);
	while (n < 40000) {
		for (int i = 0; i < 500; i++)
			put_stage(&pool, ++n, 0);
		assert_true(drain_step(d, true, NULL) > 0);
	}
	drain_free(d);
	spool_remove(&spool);
	run("test $(du -sb %s/timeline | cut -f1) -lt 550000", dump_path());
	run("test ! -e %s/timeline/box--00003.timeline.1", dump_path());
	run("cat %s/timeline/* | grep -aq 'SYSTRACE_MAX_MB reached'", dump_path());
	assert_in_range(read_timeline(false), 1, 39999);
	assert_int_equal(seen[40000], 1); /* the newest are there */
}

static void a_vanished_directory_is_made_again(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	int keep_open;

	(void)state;
	for (keep_open = 0; keep_open < 2; keep_open++) {
		make_spool(&spool, &pool, 0);
		d = make_drain_at(&spool, &pool, dump_path(), false, keep_open);
		put_stage(&pool, 1, 0);
		assert_int_equal(drain_step(d, true, NULL), 1);
		run("rm -rf %s", dump_path());
		put_stage(&pool, 2, 0);
		assert_int_equal(drain_step(d, true, NULL), 1);
		assert_non_null(strstr(said, "is gone"));
		assert_int_equal(read_timeline(false), 1);
		assert_int_equal(seen[2], 1);
		drain_free(d);
		spool_remove(&spool);
		run("rm -rf %s", dump_path());
	}
}

static void a_full_disk_loses_nothing(void **state)
{
	char mount_point[96], dump[128];
	int json;

	(void)state;
	snprintf(mount_point, sizeof(mount_point), "%s/small", root);
	snprintf(dump, sizeof(dump), "%s/small/dump", root);
	mkdir(mount_point, 0755);
	if (geteuid() != 0 || mount("none", mount_point, "tmpfs", 0, "size=256k")) {
		print_message("skip: needs root to mount a small tmpfs\n");
		skip();
	}
	for (json = 0; json < 2; json++) {
		struct drain_stats stats;
		struct spool spool;
		struct pool pool;
		struct drain *d;
		uint64_t n = 0, m;
		int ret = 0;

		make_spool(&spool, &pool, 0);
		d = make_drain_at(&spool, &pool, dump, json, true);
		while (ret >= 0 && n < 20000) {
			for (int i = 0; i < 100; i++)
				put_stage(&pool, ++n, 0);
			ret = drain_step(d, true, NULL);
		}
		assert_int_equal(ret, -ENOSPC);
		assert_non_null(strstr(said, strerror(ENOSPC)));
		assert_int_equal(drain_step(d, true, NULL), -EAGAIN); /* no hammering */
		if (json) {
			char pattern[256];

			snprintf(pattern, sizeof(pattern), "%s/timeline/*", dump);
			check_json(pattern);
		}
		drain_stats(d, &stats);
		assert_int_equal(stats.failures, 1);
		assert_int_equal(mount("none", mount_point, "tmpfs", MS_REMOUNT, "size=8m"), 0);
		drain_retry_now(d);
		assert_true(drain_step(d, true, NULL) > 0);
		assert_non_null(strstr(said, "written again"));
		drain_free(d);
		spool_remove(&spool);
		run("mkdir -p %s && cp -r %s/timeline %s/", dump_path(), dump, dump_path());
		assert_int_equal(read_timeline(json), n);
		for (m = 1; m <= n; m++)
			assert_int_equal(seen[m], 1);
		run("rm -rf %s %s", dump, dump_path());
		assert_int_equal(mount("none", mount_point, "tmpfs", MS_REMOUNT, "size=256k"), 0);
	}
	umount(mount_point);
}

static int teardown_mount(void **state)
{
	char mount_point[96];

	snprintf(mount_point, sizeof(mount_point), "%s/small", root);
	umount2(mount_point, MNT_DETACH);
	return teardown(state);
}

static void a_small_or_foreign_place_means_private_memory(void **state)
{
	struct spool_options options = { .size = sizeof(options), .place = "/proc/nowhere" };
	struct spool spool;
	struct pool pool;

	(void)state;
	assert_int_equal(spool_create(&spool, &pool, &options, NULL), 0);
	assert_false(pool.shared_file);
	assert_memory_equal(spool.note, "not crash-safe: ", 16);
	assert_true(put_stage(&pool, 1, 0));
	assert_int_equal(spool_grow(&spool, 2 << 20, NULL), 2 << 20);
	assert_int_equal(drain_pending(&pool), sizeof(struct rec_stage));

	/* so small that not even the smallest pool may be had there */
	if (geteuid() == 0) {
		char small[96];

		snprintf(small, sizeof(small), "%s/small", root);
		run("mkdir %s && mount -t tmpfs -o size=1m none %s", small, small);
		options.place = small;
		assert_int_equal(spool_create(&spool, &pool, &options, NULL), 0);
		run("umount %s", small);
		assert_false(pool.shared_file);
		assert_non_null(strstr(spool.note, "may be used"));
		assert_int_equal(atomic_load(&pool.mapped_chunks), SPOOL_SMALL_CHUNKS);
		assert_true(put_stage(&pool, 1, 0));
	}

	/* a base directory that others may enter */
	run("mkdir -m 755 %s/sysTrace.%u", root, (unsigned int)geteuid());
	options.place = root;
	assert_int_equal(spool_create(&spool, &pool, &options, NULL), 0);
	assert_false(pool.shared_file);
	assert_non_null(strstr(spool.note, "mode 755"));
}

static void a_pool_grows_on_disk_and_in_memory(void **state)
{
	struct spool spool;
	struct pool pool;
	struct stat st;
	char path[SPOOL_PATH_BYTES + 8];
	uint64_t n = 0;

	(void)state;
	make_spool(&spool, &pool, 0);
	while (put_stage(&pool, n + 1, 0))
		n++;
	assert_int_equal(spool_grow(&spool, 64 << 20, NULL), 8 << 20); /* SYSTRACE_SPOOL_MB's default is the limit */
	snprintf(path, sizeof(path), "%s/pool", spool.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, pool_area_bytes(1024));
	assert_true((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size); /* never sparse */
	while (put_stage(&pool, n + 1, 0))
		n++;
	assert_int_equal(drain_pending(&pool), n * sizeof(struct rec_stage));
	assert_true(n > 1000 * 100);
	spool_remove(&spool);
	assert_int_equal(access(path, F_OK), -1);
}

static void say_nothing(void *ctx, const char *text)
{
	(void)ctx;
	(void)text;
}

static void fill(struct out *o, const char *stem, size_t bytes)
{
	static char data[1000];
	struct st_err err;

	memset(data, 'x', sizeof(data));
	assert_int_equal(out_open(o, stem, ".txt", false, &err), OUT_NEW);
	assert_int_equal(out_put(o, data, bytes), 0);
	assert_int_equal(out_write(o), 0);
	out_commit(o);
	out_rest(o);
}

/* Files named by the hour: those that are over count, and go first, a closed segment before the file itself. */
static void files_of_other_names_count_and_go_first(void **state)
{
	static struct pool_header head;
	static struct out o;
	struct out_place place = { .segment_bytes = 1 << 20, .say = say_nothing };
	char name[POOL_PATH];
	struct st_err err;

	(void)state;
	snprintf(place.dump_path, sizeof(place.dump_path), "%s", dump_path());
	memset(&head, 0, sizeof(head));
	out_init(&o, &place, &head, 1, NULL, NULL);
	fill(&o, "hour/one", 100);
	assert_int_equal(out_rotate(&o, &err), 0);
	fill(&o, "hour/one", 200);
	out_retire(&o);
	fill(&o, "hour/two", 300);
	assert_int_equal(out_size(&o), 600);
	assert_true(out_oldest_time(&o) > 0);
	assert_int_equal(out_drop_oldest(&o, name, sizeof(name)), 100);
	assert_non_null(strstr(name, "hour/one.txt.1"));
	assert_int_equal(access(name, F_OK), -1);
	assert_int_equal(out_drop_oldest(&o, name, sizeof(name)), 200);
	assert_non_null(strstr(name, "hour/one.txt"));
	assert_int_equal(out_size(&o), 300);
	assert_int_equal(out_drop_oldest(&o, name, sizeof(name)), 0); /* the live one stays */
	out_close(&o);
	out_free(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(two_live_processes_write_two_files, setup, teardown),
		cmocka_unit_test_setup_teardown(a_live_containers_file_is_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(an_earlier_file_is_renamed_first, setup, teardown),
		cmocka_unit_test_setup_teardown(another_hosts_file_is_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(segments_are_closed_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(oldest_segments_go_at_the_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(files_of_other_names_count_and_go_first, setup, teardown),
		cmocka_unit_test_setup_teardown(a_vanished_directory_is_made_again, setup, teardown),
		cmocka_unit_test_setup_teardown(a_full_disk_loses_nothing, setup, teardown_mount),
		cmocka_unit_test_setup_teardown(a_small_or_foreign_place_means_private_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(a_pool_grows_on_disk_and_in_memory, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
