/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The pool into files: what threads and children put is there once, in both formats; and once as well when the process
 * is killed at any moment and recovered, when the disk was full, when the directory vanished, across segments.
 */
#include "safe/clock.h"
#include "spool/dir.h"
#include "spool/drain.h"
#include "spool/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STAGES 400000

static char root[64]; /* of one test: dump and spool below it */

/* --- places ---------------------------------------------------------------------------------------------------------- */

static int setup(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/st-spool-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static void run(const char *format, ...)
{
	char command[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(command, sizeof(command), format, ap);
	va_end(ap);
	assert_int_equal(system(command), 0);
}

static int teardown(void **state)
{
	(void)state;
	run("rm -rf %s", root);
	return 0;
}

static const char *dump_path(void)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/dump", root);
	return path;
}

static void make_spool(struct spool *spool, struct pool *pool, uint32_t chunks)
{
	struct spool_options options = { .size = sizeof(options), .place = root, .chunks = chunks };
	struct st_err err = { 0 };
	int ret = spool_create(spool, pool, &options, &err);

	if (ret < 0 || !spool->dir[0])
		fail_msg("no spool: %s %s", err.text, spool->note);
}

static struct msg_origin identity(void)
{
	static char boot_id[OWNER_BOOT_ID];
	struct owner self;

	owner_self(&self);
	memcpy(boot_id, self.boot_id, sizeof(boot_id));
	return (struct msg_origin){
		.run = msg_text("r1"),
		.host = msg_text("box"),
		.boot_id = msg_text(boot_id),
		.rank = 3,
		.rank_known = true,
		.world_size = 8,
		.job = msg_text("train \"x\".py"),
		.version = msg_text("0.1.0"),
		.format = 1,
		.author = msg_text("agent"),
		.ip = msg_text("10.1.2.3"),
		.pid = self.pid,
		.proc_start = self.start,
	};
}

static struct drain *make_drain(struct spool *spool, struct pool *pool, bool json, uint64_t segment, uint64_t max)
{
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = dump_path(),
		.lock_base = spool->base,
		.json = json,
		.keep_open = true,
		.segment_bytes = segment,
		.max_bytes = max,
	};
	struct msg_origin origin = identity();
	struct drain *d = drain_new(&options, NULL);

	assert_non_null(d);
	assert_int_equal(drain_identify(d, &origin, NULL), 0);
	return d;
}

/* --- records --------------------------------------------------------------------------------------------------------- */

/* Number n as a stage: what is read back must be 1..n once each. */
static bool put_stage(struct pool *pool, uint64_t n, uint32_t name)
{
	struct rec_stage rec = {
		.head = { .bytes = sizeof(rec), .type = REC_STAGE, .step = (uint32_t)n },
		.begin_ns = n * 1000,
		.dur_ns = 500,
		.name = name,
		.stage_id = 1,
		.kind = STAGE_FORWARD,
	};

	return pool_put(pool, &rec, sizeof(rec), POOL_SRC_STAGE);
}

static void put_comm(struct pool *pool, uint64_t n)
{
	struct rec_comm rec = {
		.head = { .bytes = sizeof(rec), .type = REC_COMM },
		.begin_ns = n * 1000,
		.dur_ns = 70,
		.count = 4096,
		.op = pool_intern(pool, "all_reduce", 10),
		.group = pool_intern(pool, "dp,0", 4),
		.dtype = pool_intern(pool, "float32", 7),
		.seq = (uint32_t)n,
	};

	pool_put(pool, &rec, sizeof(rec), POOL_SRC_COMM);
}

/* --- reading back ---------------------------------------------------------------------------------------------------- */

static char *slurp(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "rb");
	char *text;

	if (!f)
		fail_msg("%s is not there", path);
	fseek(f, 0, SEEK_END);
	*bytes = (size_t)ftell(f);
	rewind(f);
	text = malloc(*bytes + 1);
	assert_int_equal(fread(text, 1, *bytes, f), *bytes);
	text[*bytes] = 0;
	fclose(f);
	return text;
}

static uint8_t seen[MAX_STAGES];

static void see(uint64_t n)
{
	assert_true(n < MAX_STAGES);
	seen[n]++;
}

static size_t read_pb(const char *data, size_t bytes)
{
	struct pb_reader reader;
	struct pb_field field;
	bool first = true;
	size_t count = 0;
	int ret;

	pb_read(&reader, data, bytes);
	while ((ret = pb_next(&reader, &field)) > 0) {
		struct msg_stage stage;

		if (first)
			assert_int_equal(field.number, MSG_PYTORCH_origin);
		first = false;
		if (field.number != MSG_PYTORCH_pytorch_stages)
			continue;
		assert_int_equal(msg_stage_read(&stage, field.data, field.bytes), 0);
		see(stage.start_ns / 1000);
		count++;
	}
	assert_int_equal(ret, 0);
	return count;
}

/* The whole of the file must be one JSON object: python says so. */
static void check_json(const char *path)
{
	run("python3 -c \"import json,sys; d=json.load(open('%s')); assert isinstance(d, dict)\"", path);
}

static size_t read_json(const char *text)
{
	const char *at = text;
	size_t count = 0;

	while ((at = strstr(at, "\"start_ns\":"))) {
		at += strlen("\"start_ns\":");
		see(strtoull(at, NULL, 10) / 1000);
		count++;
	}
	return count;
}

/* All files of the timeline directory; segments and files moved aside too. */
static size_t read_timeline(bool json)
{
	char dir[128], path[512];
	struct dirent *entry;
	size_t count = 0, bytes;
	char *text;
	DIR *list;

	memset(seen, 0, sizeof(seen));
	snprintf(dir, sizeof(dir), "%s/timeline", dump_path());
	list = opendir(dir);
	assert_non_null(list);
	while ((entry = readdir(list))) {
		if (entry->d_name[0] == '.' || strstr(entry->d_name, ".ext.json"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		text = slurp(path, &bytes);
		if (json)
			check_json(path);
		count += json ? read_json(text) : read_pb(text, bytes);
		free(text);
	}
	closedir(list);
	return count;
}

static void check_once(uint64_t upto)
{
	uint64_t n;

	for (n = 1; n <= upto; n++) {
		if (seen[n] != 1)
			fail_msg("record %llu is there %d times", (unsigned long long)n, seen[n]);
	}
}

/* --- tests ----------------------------------------------------------------------------------------------------------- */

static void formats_hold_what_was_put(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	int json;

	(void)state;
	for (json = 0; json < 2; json++) {
		make_spool(&spool, &pool, 0);
		d = make_drain(&spool, &pool, json, 0, 0);
		assert_int_equal(drain_step(d, true, NULL), 0);
		for (uint64_t n = 1; n <= 1000; n++)
			assert_true(put_stage(&pool, n, pool_intern(&pool, "torch@fwd", 9)));
		assert_int_equal(drain_step(d, true, NULL), 1000);
		assert_true(put_stage(&pool, 1001, 0));
		assert_int_equal(drain_step(d, true, NULL), 1);
		assert_int_equal(drain_pending(&pool), 0);
		drain_free(d);
		spool_remove(&spool);
		assert_int_equal(read_timeline(json), 1001);
		check_once(1001);
		run("rm -rf %s", dump_path());
	}
}

struct writer {
	struct pool *pool;
	uint64_t first, count;
	uint64_t put;
};

static void *write_stages(void *arg)
{
	struct writer *w = arg;
	uint64_t n;

	for (n = w->first; n < w->first + w->count; n++) {
		while (!put_stage(w->pool, n, 0))
			sched_yield();
	}
	return NULL;
}

static void many_threads_lose_nothing(void **state)
{
	enum { THREADS = 8, EACH = 20000 };
	struct writer writers[THREADS];
	pthread_t thread[THREADS];
	struct spool spool;
	struct pool pool;
	struct drain *d;
	int i, left;

	(void)state;
	make_spool(&spool, &pool, 16);
	d = make_drain(&spool, &pool, false, 0, 0);
	for (i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){ .pool = &pool, .first = 1 + (uint64_t)i * EACH, .count = EACH };
		assert_int_equal(pthread_create(&thread[i], NULL, write_stages, &writers[i]), 0);
	}
	for (left = THREADS; left;) {
		assert_true(drain_step(d, left % 2 == 0, NULL) >= 0);
		if (!pthread_tryjoin_np(thread[left - 1], NULL))
			left--;
		else
			assert_true(drain_step(d, true, NULL) >= 0);
	}
	assert_true(drain_step(d, true, NULL) >= 0);
	drain_free(d);
	spool_remove(&spool);
	assert_int_equal(read_timeline(false), THREADS * EACH);
	check_once(THREADS * EACH);
}

static void children_write_into_the_parents_pool(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	pid_t child;
	size_t bytes;
	char path[160], *text;
	int status;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	assert_true(put_stage(&pool, 1, 0));
	child = fork();
	if (!child) {
		put_stage(&pool, 2, 0);
		_exit(pool.guard->generation == 2 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(drain_step(d, true, NULL), 2);
	drain_free(d);
	spool_remove(&spool);
	assert_int_equal(read_timeline(false), 2);
	check_once(2);

	snprintf(path, sizeof(path), "%s/timeline/box--00003.timeline", dump_path());
	text = slurp(path, &bytes);
	struct pb_reader reader;
	struct pb_field field;
	struct msg_stage stage;
	int workers = 0;
	pb_read(&reader, text, bytes);
	while (pb_next(&reader, &field) > 0) {
		if (field.number != MSG_PYTORCH_pytorch_stages)
			continue;
		msg_stage_read(&stage, field.data, field.bytes);
		if (stage.start_ns == 2000) {
			assert_int_equal(stage.pid, child);
			assert_int_equal(stage.flags & STAGE_WORKER, STAGE_WORKER);
			workers++;
		} else {
			assert_int_equal(stage.pid, 0);
			assert_int_equal(stage.flags, 0);
		}
	}
	assert_int_equal(workers, 1);
	free(text);
}

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

static void count_done(void *ctx, const struct recover_report *report)
{
	if (report->verdict == RECOVER_FAILED)
		print_message("%s: %s\n", report->dir, report->text);
	*(int *)ctx += report->verdict == RECOVER_DONE;
}

static int recover(void)
{
	int done = 0;
	struct recover_options options = {
		.size = sizeof(options),
		.place = root,
		.uid = geteuid(),
		.report = count_done,
		.ctx = &done,
	};

	assert_true(recover_run(&options, NULL) >= 0);
	return done;
}

static void wait_us(long us)
{
	struct timespec ts = { 0, us * 1000 };

	nanosleep(&ts, NULL);
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

static void markers_have_the_documented_columns(void **state)
{
	static const char header[] = "Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,"
				     "msptiObjectId_Ds_StreamId,msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n";
	char want[512], path[200], *text;
	struct spool spool;
	struct pool pool;
	struct drain *d;
	size_t bytes;
	int64_t offset;
	unsigned int pid = (unsigned int)getpid();

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	put_comm(&pool, 7);
	put_comm(&pool, 8);
	assert_int_equal(drain_step(d, true, NULL), 2);
	offset = pool.head->files[SINK_MARKERS].wall_minus_mono_ns;
	drain_free(d);
	spool_remove(&spool);

	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv", dump_path());
	text = slurp(path, &bytes);
	assert_memory_equal(text, header, sizeof(header) - 1);
	snprintf(want, sizeof(want),
		 "2,1,1,comm:all_reduce!dp!0!float32!4096,0,%lld,%u,%u,%u,%u\n4,1,1,,0,%lld,%u,%u,%u,%u\n"
		 "2,2,1,comm:all_reduce!dp!0!float32!4096,0,%lld,%u,%u,%u,%u\n4,2,1,,0,%lld,%u,%u,%u,%u\n",
		 (long long)(7000 + offset), pid, pid, pid, pid, (long long)(7070 + offset), pid, pid, pid, pid,
		 (long long)(8000 + offset), pid, pid, pid, pid, (long long)(8070 + offset), pid, pid, pid, pid);
	assert_string_equal(text + sizeof(header) - 1, want);
	free(text);
	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv.meta.json", dump_path());
	check_json(path);
	text = slurp(path, &bytes);
	assert_non_null(strstr(text, "\"rank\":3"));
	assert_non_null(strstr(text, "\"clocks\":[{\"mono_ns\":"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(formats_hold_what_was_put, setup, teardown),
		cmocka_unit_test_setup_teardown(many_threads_lose_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(children_write_into_the_parents_pool, setup, teardown),
		cmocka_unit_test_setup_teardown(markers_have_the_documented_columns, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_anywhere_pb, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_anywhere_json, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
