/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The pool into files: what threads and children put is there once, in both formats, under the right writer, with drops,
 * notes and the flight recorder's markers.
 */
#include "helpers.h"

#include <sys/prctl.h>

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
		in_child(&pool);
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

/* --- what else the timeline says ------------------------------------------------------------------------------------ */

struct told {
	uint64_t dropped, drops, notes, threads, steps, comm_sums;
	char note[256], comm[32], source[32];
	uint32_t step_id;
};

static void tell_field(struct told *told, const struct pb_field *f)
{
	struct msg_thread thread;
	struct msg_note note;
	struct msg_drop drop;

	switch (f->number) {
	case 3:
		told->step_id = (uint32_t)f->value;
		break;
	case MSG_PYTORCH_drops:
		msg_drop_read(&drop, f->data, f->bytes);
		assert_true(drop.from_ns <= drop.to_ns);
		snprintf(told->source, sizeof(told->source), "%.*s", (int)drop.source.bytes, drop.source.at);
		told->dropped += drop.count;
		told->drops++;
		break;
	case MSG_PYTORCH_notes:
		msg_note_read(&note, f->data, f->bytes);
		snprintf(told->note, sizeof(told->note), "%.*s", (int)note.text.bytes, note.text.at);
		told->notes++;
		break;
	case MSG_PYTORCH_threads:
		msg_thread_read(&thread, f->data, f->bytes);
		assert_int_equal(thread.pid, getpid());
		snprintf(told->comm, sizeof(told->comm), "%.*s", (int)thread.comm.bytes, thread.comm.at);
		told->threads++;
		break;
	case MSG_PYTORCH_steps:
		told->steps++;
		break;
	case MSG_PYTORCH_comm_sums:
		told->comm_sums++;
		break;
	}
}

static struct told read_told(void)
{
	struct told told = { 0 };
	struct pb_reader reader;
	struct pb_field field;
	char path[160], *data;
	size_t bytes;

	snprintf(path, sizeof(path), "%s/timeline/box--00003.timeline", dump_path());
	data = slurp(path, &bytes);
	pb_read(&reader, data, bytes);
	while (pb_next(&reader, &field) > 0)
		tell_field(&told, &field);
	free(data);
	return told;
}

static void drops_are_told_once(void **state)
{
	uint64_t put = 0, lost = 0, n;
	struct spool spool;
	struct pool pool;
	struct drain *d;
	struct told told;

	(void)state;
	make_spool(&spool, &pool, 16);
	d = make_drain(&spool, &pool, false, 0, 0);
	for (n = 1; n <= 10000; n++) { /* 16 chunks hold fewer */
		if (put_stage(&pool, n, 0))
			put++;
		else
			lost++;
	}
	assert_true(lost > 0);
	assert_int_equal(drain_step(d, true, NULL), put);
	assert_int_equal(drain_step(d, true, NULL), 0);
	assert_true(put_stage(&pool, 1, 0));
	assert_int_equal(drain_step(d, true, NULL), 1);
	told = read_told();
	assert_int_equal(told.dropped, lost);
	assert_int_equal(told.drops, 1);
	assert_string_equal(told.source, "stage");
	drain_free(d);
	spool_remove(&spool);
}

static void notes_and_threads_are_told(void **state)
{
	struct rec_step step = { .head = { .bytes = sizeof(step), .type = REC_STEP, .step = 12 } };
	struct rec_comm_sum sum = { .head = { .bytes = sizeof(sum), .type = REC_COMM_SUM, .step = 12 } };
	struct spool spool;
	struct pool pool;
	struct drain *d;
	struct told told;
	int i;

	(void)state;
	prctl(PR_SET_NAME, "spool-test_drain"); /* cut by the kernel; an emulator's process has the emulator's name */
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	for (i = 0; i < 3; i++) {
		drain_note(&pool, "note %d", i);
		assert_int_equal(drain_step(d, true, NULL), 1);
	}
	pool_put(&pool, &step, sizeof(step), POOL_SRC_STEP);
	pool_put(&pool, &sum, sizeof(sum), POOL_SRC_COMM);
	assert_int_equal(drain_step(d, true, NULL), 2);
	told = read_told();
	assert_int_equal(told.notes, 3);
	assert_string_equal(told.note, "note 2");
	assert_int_equal(told.threads, 1); /* once a file, whatever the number of chunks */
	assert_string_equal(told.comm, "spool-test_drai");
	assert_int_equal(told.steps, 1);
	assert_int_equal(told.step_id, 12);
	assert_int_equal(told.comm_sums, 1);
	drain_free(d);
	spool_remove(&spool);
}

static int count_lines(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void flight_markers_are_dumped_once(void **state)
{
	struct rec_comm comm = { .dur_ns = 5 };
	struct spool spool;
	struct pool pool;
	struct drain *d;
	char path[200], *text;
	size_t bytes;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	for (comm.begin_ns = 1; comm.begin_ns <= 20000; comm.begin_ns++)
		pool_flight_put(&pool, &comm.begin_ns, sizeof(comm) - sizeof(comm.head));
	/* the ring holds the last 8192; of these, markers that began at 15001 or later */
	assert_int_equal(drain_dump_flight(d, 15001, NULL), 5000);
	assert_int_equal(drain_dump_flight(d, 0, NULL), 0);
	pool_flight_put(&pool, &comm.begin_ns, sizeof(comm) - sizeof(comm.head));
	assert_int_equal(drain_dump_flight(d, 0, NULL), 1);
	drain_free(d);
	spool_remove(&spool);
	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv", dump_path());
	text = slurp(path, &bytes);
	assert_int_equal(count_lines(text), 1 + 2 * 5001);
	free(text);
}

static void an_unknown_record_is_counted(void **state)
{
	struct rec_head later = { .bytes = 8, .type = REC_TYPES + 3 };
	struct rec_head cut = { .bytes = 8, .type = REC_STAGE };
	struct drain_stats stats;
	struct spool spool;
	struct pool pool;
	struct drain *d;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	pool_put(&pool, &later, sizeof(later), POOL_SRC_OTHER);
	pool_put(&pool, &cut, sizeof(cut), POOL_SRC_OTHER);
	put_stage(&pool, 1, 0);
	assert_int_equal(drain_step(d, true, NULL), 1);
	drain_stats(d, &stats);
	assert_int_equal(stats.unknown, 2);
	assert_int_equal(stats.records, 1);
	drain_free(d);
	spool_remove(&spool);
}

/* A child that dies between taking a chunk and its first record: the chunk comes back, a live one's does not. */
static void a_chunk_of_a_dead_writer_comes_back(void **state)
{
	struct pool_chunk *dead, *live;
	struct spool spool;
	struct pool pool;
	struct drain *d;
	pid_t child;
	int tries;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	dead = (struct pool_chunk *)pool.chunks;
	live = (struct pool_chunk *)(pool.chunks + POOL_CHUNK_BYTES);
	child = fork();
	if (!child)
		_exit(0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	/* as take_chunk() leaves them: nothing else filled in */
	atomic_store(&dead->state, CHUNK_WORD(TICKET_WORD(1, child), CHUNK_BUSY));
	atomic_store(&live->state, CHUNK_WORD(TICKET_WORD(2, getpid()), CHUNK_BUSY));
	for (tries = 0; CHUNK_STATE(atomic_load(&dead->state)) != CHUNK_FREE && tries < 600; tries++) {
		assert_int_equal(drain_step(d, true, NULL), 0);
		wait_us(20000);
	}
	assert_int_equal(CHUNK_STATE(atomic_load(&dead->state)), CHUNK_FREE);
	assert_int_equal(CHUNK_STATE(atomic_load(&live->state)), CHUNK_BUSY);
	drain_free(d);
	spool_remove(&spool);
}

/* One file that can't be written costs its own records, not the others'; afterwards it goes on. */
static void a_failing_file_is_set_aside(void **state)
{
	char path[192];
	struct drain_stats stats;
	struct spool spool;
	struct pool pool;
	struct drain *d;
	size_t bytes;
	int tries;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	run("mkdir -p %s && touch %s/mspti", dump_path(), dump_path());
	put_comm(&pool, 1);
	assert_int_equal(drain_step(d, true, NULL), -ENOTDIR);
	put_stage(&pool, 1, 0);
	for (tries = 1; tries < 20; tries++) {
		drain_retry_now(d);
		if (drain_step(d, true, NULL) >= 0)
			break;
	}
	assert_int_equal(tries, 3); /* the fourth failure is its last */
	assert_int_equal(read_timeline(false), 1);
	drain_stats(d, &stats);
	assert_int_equal(atomic_load(&pool.head->dropped[POOL_SRC_COMM]), 1);
	assert_int_equal(stats.records, 1);
	assert_non_null(strstr(stats.given_up, "mspti"));
	put_comm(&pool, 2); /* while it is set aside nobody waits for it */
	put_stage(&pool, 2, 0);
	assert_true(drain_step(d, true, NULL) == 1);

	run("rm %s/mspti", dump_path());
	drain_retry_now(d);
	put_comm(&pool, 3);
	put_stage(&pool, 3, 0);
	assert_int_equal(drain_step(d, true, NULL), 2);
	drain_stats(d, &stats);
	assert_string_equal(stats.given_up, "");
	drain_free(d);
	spool_remove(&spool);
	assert_int_equal(read_timeline(false), 3);
	check_once(3);
	snprintf(path, sizeof(path), "%s/mspti/mspti-marker-10.1.2.3-3.csv", dump_path());
	free(slurp(path, &bytes));
	assert_int_equal(atomic_load(&pool.head->dropped[POOL_SRC_COMM]), 2);
}

/* Where nothing at all can be written, nothing is given up. */
static void a_failing_disk_keeps_the_pool(void **state)
{
	struct spool spool;
	struct pool pool;
	struct drain *d;
	int tries;

	(void)state;
	make_spool(&spool, &pool, 0);
	d = make_drain(&spool, &pool, false, 0, 0);
	run("touch %s", dump_path());
	put_comm(&pool, 1);
	put_stage(&pool, 1, 0);
	for (tries = 0; tries < 12; tries++) {
		drain_retry_now(d);
		assert_int_equal(drain_step(d, true, NULL), -ENOTDIR);
	}
	assert_int_equal(atomic_load(&pool.head->dropped[POOL_SRC_COMM]), 0);
	run("rm %s", dump_path());
	drain_retry_now(d);
	assert_int_equal(drain_step(d, true, NULL), 2);
	drain_free(d);
	spool_remove(&spool);
	assert_int_equal(read_timeline(false), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(formats_hold_what_was_put, setup, teardown),
		cmocka_unit_test_setup_teardown(many_threads_lose_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(children_write_into_the_parents_pool, setup, teardown),
		cmocka_unit_test_setup_teardown(markers_have_the_documented_columns, setup, teardown),
		cmocka_unit_test_setup_teardown(drops_are_told_once, setup, teardown),
		cmocka_unit_test_setup_teardown(notes_and_threads_are_told, setup, teardown),
		cmocka_unit_test_setup_teardown(flight_markers_are_dumped_once, setup, teardown),
		cmocka_unit_test_setup_teardown(a_chunk_of_a_dead_writer_comes_back, setup, teardown),
		cmocka_unit_test_setup_teardown(a_failing_file_is_set_aside, setup, teardown),
		cmocka_unit_test_setup_teardown(a_failing_disk_keeps_the_pool, setup, teardown),
		cmocka_unit_test_setup_teardown(an_unknown_record_is_counted, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
