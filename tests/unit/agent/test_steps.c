/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Steps, stages and sums against a real pool in memory and a clock that the test turns: design §6, contract 20. */
#include "agent/agent.h"
#include "agent/flight.h"
#include "agent/python/comm.h"
#include "agent/stage.h"
#include "agent/steps.h"
#include "wire/plugin_spec.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define CHUNKS 128u
#define MS 1000000ull

/* ---- what steps.c stands on, in the test's hands -------------------------------------------------------------------- */

struct agent agent;
static unsigned records_asked;
static uint64_t clock_now;
static struct comm_call next_call;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	ts->tv_sec = (time_t)(clock_now / 1000000000u);
	ts->tv_nsec = (long)(clock_now % 1000000000u);
	return 0;
}

void agent_record(enum agent_reason reason)
{
	records_asked++;
}

void agent_rank_hint(uint32_t rank, uint32_t world_size)
{
}

void comm_hint_rank(void)
{
}

bool comm_knows(const char *op)
{
	return !strcmp(op, "all_reduce");
}

void comm_read(const struct stage_fn *fn, void *const *args, size_t nargsf, void *kwnames, struct comm_call *call)
{
	*call = next_call;
}

static struct stage_fn loader, optimizer, forward, backward, sync_fn, save, all_reduce, barrier_fn, model_call;

static void make_fn(struct stage_fn *fn, const char *spec, enum stage_type kind, enum stage_role role, const char *op)
{
	*fn = (struct stage_fn){
		.spec = spec,
		.name = pool_intern(&agent.pool, spec, strlen(spec)),
		.kind = kind,
		.role = role,
		.op = op,
		.op_name = op ? pool_intern(&agent.pool, op, strlen(op)) : 0,
	};
}

/* One area for all tests: a thread keeps its chunk, which is no longer its own once the area was emptied. */
static void *area, *guard;

static int fresh_pool(void **state)
{
	size_t bytes = pool_area_bytes(CHUNKS);

	if (!area) {
		area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		guard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (area == MAP_FAILED || guard == MAP_FAILED || madvise(guard, 4096, MADV_WIPEONFORK))
			return -1;
	}
	memset(area, 0, bytes);
	memset(guard, 0, 4096);
	pool_format(area, CHUNKS);
	if (pool_attach(&agent.pool, area, bytes, guard))
		return -1;
	pool_switch(&agent.pool, PLUGIN_BIT_STAGES | PLUGIN_BIT_COMM, true);
	atomic_store(&agent.state, AGENT_READY);
	records_asked = 0;
	clock_now = 1000000 * MS;
	next_call = (struct comm_call){ 0 };

	make_fn(&loader, "loader@next", STAGE_DATALOADER, ROLE_DATALOADER, NULL);
	make_fn(&optimizer, "optim@step", STAGE_OPTIMIZER, ROLE_OPTIMIZER_STEP, NULL);
	make_fn(&forward, "model@forward", STAGE_FORWARD, ROLE_PLAIN, NULL);
	make_fn(&backward, "torch@backward", STAGE_BACKWARD, ROLE_PLAIN, NULL);
	make_fn(&sync_fn, "cuda@synchronize", STAGE_SYNCHRONIZATION, ROLE_PLAIN, NULL);
	make_fn(&save, "torch@save", STAGE_CHECKPOINT, ROLE_PLAIN, NULL);
	make_fn(&all_reduce, "dist@all_reduce", STAGE_COMM, ROLE_COMM, "all_reduce");
	make_fn(&barrier_fn, "dist@barrier", STAGE_COMM, ROLE_COMM, "barrier");
	make_fn(&model_call, "vllm@execute_model", STAGE_FORWARD, ROLE_MODEL_CALL, NULL);
	return 0;
}

/* ---- helpers -------------------------------------------------------------------------------------------------------- */

static void advance(uint64_t ns)
{
	clock_now += ns;
}

/* One call of @dur_ns; @object is its first argument. */
static void call_on(const struct stage_fn *fn, void *object, uint64_t dur_ns, bool raised)
{
	void *const args[] = { object };
	struct stage_frame frame;

	stage_enter(fn, &frame, args, 1, NULL);
	advance(dur_ns);
	stage_leave(fn, &frame, raised);
}

static void call(const struct stage_fn *fn, uint64_t dur_ns)
{
	static int object;

	call_on(fn, &object, dur_ns, false);
}

/* The @nth record of a type (from 0) into @rec; false: there are fewer. */
static bool record(enum rec_type type, unsigned nth, void *rec)
{
	uint64_t seq;
	uint32_t i, at;

	for (seq = 0; seq < atomic_load(&agent.pool.head->next_seq); seq++) {
		for (i = 0; i < CHUNKS; i++) {
			struct pool_chunk *chunk =
				(struct pool_chunk *)(agent.pool.chunks + (size_t)i * POOL_CHUNK_BYTES);

			if (chunk->seq != seq || !atomic_load(&chunk->used))
				continue;
			for (at = 0; at < atomic_load(&chunk->used);) {
				const struct rec_head *head = (const void *)(chunk->data + at);

				assert_true(head->bytes >= sizeof(*head) && head->bytes % 8 == 0);
				if (head->type == type && !nth--) {
					memcpy(rec, head, head->bytes);
					return true;
				}
				at += head->bytes;
			}
		}
	}
	return false;
}

static unsigned records(enum rec_type type)
{
	uint8_t rec[POOL_MAX_RECORD];
	unsigned n = 0;

	while (record(type, n, rec))
		n++;
	return n;
}

static uint64_t step_number(void)
{
	return atomic_load(&agent.pool.head->step);
}

static struct rec_step step_record(unsigned nth)
{
	struct rec_step rec;

	assert_true(record(REC_STEP, nth, &rec));
	return rec;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static void optimizer_steps_are_steps(void **state)
{
	uint64_t began = clock_now;
	struct rec_step rec;

	call(&loader, 2 * MS);
	advance(5 * MS);
	call(&optimizer, 3 * MS);
	assert_int_equal(step_number(), 1);
	advance(10 * MS);
	call(&loader, MS);
	call(&optimizer, MS);

	assert_int_equal(step_number(), 2);
	rec = step_record(0);
	assert_int_equal(rec.head.step, 1);
	assert_int_equal(rec.begin_ns, began);
	assert_int_equal(rec.dur_ns, 10 * MS);
	assert_int_equal(rec.source, STEP_BY_OPTIMIZER);
	assert_int_equal(rec.microbatches, 1);
	assert_int_equal(rec.renumbered_from, 0);
	rec = step_record(1);
	assert_int_equal(rec.head.step, 2);
	assert_int_equal(rec.begin_ns, began + 10 * MS);
	assert_int_equal(rec.dur_ns, 12 * MS);
	assert_true(records_asked > 0);
}

static void microbatches_are_counted_not_steps(void **state)
{
	int step, micro;

	for (step = 0; step < 3; step++) {
		for (micro = 0; micro < 4; micro++)
			call(&loader, MS);
		call(&optimizer, MS);
	}
	/* three dataloader intervals had passed as steps before the first optimizer step took over */
	assert_int_equal(step_number(), 3);
	assert_int_equal(records(REC_STEP), 6);
	assert_int_equal(step_record(2).source, STEP_BY_DATALOADER);
	assert_int_equal(step_record(2).head.step, 3);
	assert_int_equal(step_record(3).source, STEP_BY_OPTIMIZER);
	assert_int_equal(step_record(3).renumbered_from, 3);
	assert_int_equal(step_record(3).head.step, 1);
	assert_int_equal(step_record(4).renumbered_from, 0);
	assert_int_equal(step_record(4).microbatches, 4);
	assert_int_equal(step_record(5).head.step, 3);
	/* the documented rule is kept beside it */
	assert_int_equal(atomic_load(&agent.pool.head->stage_id), 12);
}

static void dataloader_counts_until_an_optimizer_comes(void **state)
{
	call(&loader, MS);
	assert_int_equal(step_number(), 0);
	advance(9 * MS);
	call(&loader, MS);
	assert_int_equal(step_number(), 1);
	assert_int_equal(step_record(0).source, STEP_BY_DATALOADER);
	assert_int_equal(step_record(0).dur_ns, 10 * MS);
	assert_int_equal(step_record(0).microbatches, 1);

	call_on(&loader, NULL, MS, true); /* StopIteration: the end of the epoch gives no data */
	assert_int_equal(step_number(), 2);
	call(&loader, MS);
	assert_int_equal(step_number(), 2);
	assert_int_equal(atomic_load(&agent.pool.head->stage_id), 4);
}

static void ranks_without_dataloader_count_steps(void **state)
{
	int i;

	call(&forward, 5 * MS);
	for (i = 0; i < 5; i++) {
		call(&backward, 5 * MS);
		call(&optimizer, MS);
	}
	assert_int_equal(step_number(), 5);
	assert_int_equal(step_record(4).head.step, 5);
	assert_int_equal(step_record(4).microbatches, 0);
	assert_int_equal(step_record(0).dur_ns, 11 * MS); /* from the first thing that was seen */
	assert_int_equal(atomic_load(&agent.pool.head->stage_id), 0);
}

static void raised_and_inner_optimizer_calls_are_no_steps(void **state)
{
	struct stage_frame outer;
	int object, inner;
	void *const args[] = { &object };

	call_on(&optimizer, &object, MS, true);
	assert_int_equal(step_number(), 0);

	stage_enter(&optimizer, &outer, args, 1, NULL); /* a mixed-precision wrapper around the real one */
	call_on(&optimizer, &inner, MS, false);
	assert_int_equal(step_number(), 0);
	stage_leave(&optimizer, &outer, false);
	assert_int_equal(step_number(), 1);

	call_on(&optimizer, &object, MS, false); /* the wrapper skipped: gradients are being accumulated */
	assert_int_equal(step_number(), 1);
	stage_enter(&optimizer, &outer, args, 1, NULL);
	call_on(&optimizer, &inner, MS, false);
	stage_leave(&optimizer, &outer, false);
	assert_int_equal(step_number(), 2);
}

static void two_optimizers_make_one_step(void **state)
{
	int discriminator, generator, i;

	for (i = 0; i < 5; i++) {
		call_on(&optimizer, &discriminator, MS, false);
		call_on(&optimizer, &generator, MS, false);
	}
	assert_int_equal(step_number(), 5);
	/* the first is given up (training goes on with the other): steps go on too */
	for (i = 0; i < 3; i++)
		call_on(&optimizer, &generator, MS, false);
	assert_int_equal(step_number(), 8);
}

static void model_calls_are_steps_of_inference(void **state)
{
	struct stage_frame outer;

	stage_enter(&model_call, &outer, NULL, 0, NULL);
	call(&model_call, MS); /* the runner's call within the worker's */
	stage_leave(&model_call, &outer, false);
	assert_int_equal(step_number(), 1);
	call(&model_call, MS);
	assert_int_equal(step_number(), 2);
	assert_int_equal(step_record(1).source, STEP_BY_MODEL_CALL);

	call(&optimizer, MS); /* reinforcement learning: training begins */
	assert_int_equal(step_number(), 1);
	assert_int_equal(step_record(2).renumbered_from, 2);
	call(&model_call, MS);
	assert_int_equal(step_number(), 1);
}

/* ---- stages --------------------------------------------------------------------------------------------------------- */

static void stage_of_the_loop_is_in_the_header(void **state)
{
	struct stage_frame outer, inner;

	call(&loader, MS);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_UNKNOWN);
	stage_enter(&backward, &outer, NULL, 0, NULL);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_BACKWARD);
	stage_enter(&sync_fn, &inner, NULL, 0, NULL);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_SYNCHRONIZATION);
	stage_leave(&sync_fn, &inner, false);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_BACKWARD);
	stage_leave(&backward, &outer, false);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_UNKNOWN);
}

static void *call_from_thread(void *fn)
{
	struct stage_frame frame;
	void *seen;

	stage_enter(fn, &frame, NULL, 0, NULL);
	seen = (void *)(uintptr_t)atomic_load(&agent.pool.head->stage);
	stage_leave(fn, &frame, false);
	return seen;
}

static void other_threads_leave_the_stage_alone(void **state)
{
	struct stage_frame frame;
	pthread_t thread;
	void *seen;

	call(&optimizer, MS);
	stage_enter(&backward, &frame, NULL, 0, NULL);
	assert_int_equal(pthread_create(&thread, NULL, call_from_thread, &sync_fn), 0);
	pthread_join(thread, &seen);
	assert_int_equal((uintptr_t)seen, STAGE_BACKWARD);
	stage_leave(&backward, &frame, false);
}

static void *step_from_thread(void *unused)
{
	struct stage_frame frame;

	call(&optimizer, MS); /* takes the loop over */
	stage_enter(&optimizer, &frame, NULL, 0, NULL);
	return (void *)(uintptr_t)atomic_load(&agent.pool.head->stage);
}

static void a_loop_that_moves_to_another_thread_leaves_no_stage_behind(void **state)
{
	struct stage_frame frame;
	pthread_t thread;
	void *seen;

	call(&loader, MS);
	stage_enter(&backward, &frame, NULL, 0, NULL);
	assert_int_equal(pthread_create(&thread, NULL, step_from_thread, NULL), 0);
	pthread_join(thread, &seen);
	assert_int_equal((uintptr_t)seen, STAGE_OPTIMIZER);
	stage_leave(&backward, &frame, false);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_OPTIMIZER);

	steps_reset();
	atomic_store(&agent.pool.head->stage, STAGE_UNKNOWN);
	stage_enter(&backward, &frame, NULL, 0, NULL);
	assert_int_equal(pthread_create(&thread, NULL, call_from_thread, &optimizer), 0);
	pthread_join(thread, &seen);
	stage_leave(&backward, &frame, false);
	assert_int_equal(atomic_load(&agent.pool.head->stage), STAGE_UNKNOWN);
}

static void stages_carry_step_name_and_how_they_ended(void **state)
{
	struct rec_stage rec;

	call(&loader, 2 * MS);
	call(&optimizer, MS);
	call_on(&backward, NULL, 3 * MS, true);
	assert_true(record(REC_STAGE, 0, &rec));
	assert_string_equal(pool_name(agent.pool.head, rec.name), "loader@next");
	assert_int_equal(rec.kind, STAGE_DATALOADER);
	assert_int_equal(rec.stage_id, 1);
	assert_int_equal(rec.dur_ns, 2 * MS);
	assert_int_equal(rec.head.step, 1);
	assert_true(record(REC_STAGE, 2, &rec));
	assert_int_equal(rec.head.step, 2);
	assert_int_equal(rec.head.flags, STAGE_RAISED);
	assert_int_equal(records(REC_STAGE), 3);
}

static void switched_off_nothing_is_recorded_and_depths_hold(void **state)
{
	struct stage_frame frame, inner;

	pool_switch(&agent.pool, PLUGIN_BIT_STAGES, false);
	stage_enter(&optimizer, &frame, NULL, 0, NULL);
	pool_switch(&agent.pool, PLUGIN_BIT_STAGES, true); /* switched on within the call */
	stage_enter(&backward, &inner, NULL, 0, NULL);
	stage_leave(&backward, &inner, false);
	stage_leave(&optimizer, &frame, false);
	assert_int_equal(step_number(), 0);
	call(&optimizer, MS);
	assert_int_equal(step_number(), 1);
	stage_enter(&optimizer, &frame, NULL, 0, NULL);
	pool_switch(&agent.pool, PLUGIN_BIT_STAGES, false);
	stage_leave(&optimizer, &frame, false); /* begun while on: its end counts */
	assert_int_equal(step_number(), 2);
	call(&optimizer, MS);
	assert_int_equal(step_number(), 2);
}

/* ---- collectives ---------------------------------------------------------------------------------------------------- */

static void comm_call(const struct stage_fn *fn, const char *group, uint64_t count, uint32_t seq, uint64_t dur_ns)
{
	next_call = (struct comm_call){
		.group = pool_intern(&agent.pool, group, strlen(group)),
		.count = count,
		.dtype = pool_intern(&agent.pool, "float32", 7),
		.seq = seq,
	};
	call(fn, dur_ns);
}

static void collectives_are_summed_per_operation_and_group(void **state)
{
	uint64_t first = clock_now, last;
	struct rec_comm_sum sum;
	unsigned i, found = 0;

	comm_call(&all_reduce, "0", 100, 1, 2 * MS);
	comm_call(&all_reduce, "1", 7, 1, MS);
	last = clock_now;
	comm_call(&all_reduce, "0", 50, 2, 5 * MS);
	comm_call(&barrier_fn, "0", 0, 3, MS);
	assert_int_equal(records(REC_COMM_SUM), 0); /* the step is not over */
	assert_int_equal(records(REC_STAGE), 0);
	assert_int_equal(records(REC_COMM), 0); /* markers are off */
	call(&optimizer, MS);

	assert_int_equal(records(REC_COMM_SUM), 3);
	for (i = 0; record(REC_COMM_SUM, i, &sum); i++) {
		if (strcmp(pool_name(agent.pool.head, sum.op), "all_reduce") ||
		    strcmp(pool_name(agent.pool.head, sum.group), "0"))
			continue;
		found++;
		assert_int_equal(sum.calls, 2);
		assert_int_equal(sum.total_ns, 7 * MS);
		assert_int_equal(sum.max_ns, 5 * MS);
		assert_int_equal(sum.elements, 150);
		assert_int_equal(sum.begin_ns, first);
		assert_int_equal(sum.last_begin_ns, last);
		assert_int_equal(sum.last_seq, 2);
		assert_int_equal(sum.head.step, 1);
	}
	assert_int_equal(found, 1);
	call(&optimizer, MS);
	assert_int_equal(records(REC_COMM_SUM), 3); /* and begin anew */
}

static void inner_collectives_and_strangers_are_not_counted(void **state)
{
	struct stage_frame outer;
	struct rec_comm_sum sum;

	stage_enter(&barrier_fn, &outer, NULL, 0, NULL); /* all_gather_object calls all_gather, and waits for it */
	comm_call(&all_reduce, "0", 1, 1, MS);
	call(&sync_fn, 5 * MS);
	stage_leave(&barrier_fn, &outer, false);
	next_call.outside = true;
	call(&all_reduce, MS);
	call(&optimizer, MS);
	assert_int_equal(records(REC_COMM_SUM), 1);
	assert_true(record(REC_COMM_SUM, 0, &sum));
	assert_string_equal(pool_name(agent.pool.head, sum.op), "barrier");
	assert_int_equal(sum.total_ns, 6 * MS);
	assert_int_equal(records(REC_STAGE), 1); /* the optimizer's */
}

static void a_full_table_of_sums_counts_what_it_loses(void **state)
{
	char group[16];
	int i;

	for (i = 0; i < 70; i++) {
		snprintf(group, sizeof(group), "g%d", i);
		comm_call(&all_reduce, group, 1, 1, MS);
	}
	assert_int_equal(atomic_load(&agent.pool.head->dropped[POOL_SRC_COMM]), 6);
	call(&optimizer, MS);
	assert_int_equal(records(REC_COMM_SUM), 64);
	comm_call(&all_reduce, "g69", 1, 2, MS); /* there is room again */
	call(&optimizer, MS);
	assert_int_equal(records(REC_COMM_SUM), 65);
}

static void markers_are_written_when_they_are_on(void **state)
{
	struct comm_flight flight;
	struct rec_comm rec;

	comm_call(&all_reduce, "0", 10, 1, MS);
	pool_switch(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI), true);
	comm_call(&all_reduce, "0", 11, 2, 2 * MS);
	assert_int_equal(records(REC_COMM), 1);
	assert_true(record(REC_COMM, 0, &rec));
	assert_int_equal(rec.count, 11);
	assert_int_equal(rec.seq, 2);
	assert_int_equal(rec.dur_ns, 2 * MS);
	assert_string_equal(pool_name(agent.pool.head, rec.dtype), "float32");
	/* both are in the ring; the second one is known to be written */
	assert_true(pool_flight_get(agent.pool.head, 0, &flight));
	assert_int_equal(flight.flags, 0);
	assert_int_equal(flight.tid, gettid());
	assert_int_equal(flight.pid, getpid());
	assert_true(pool_flight_get(agent.pool.head, 1, &flight));
	assert_int_equal(flight.flags, FLIGHT_WRITTEN);
	assert_int_equal(flight.count, 11);
}

static void sums_come_without_steps_too(void **state)
{
	comm_call(&all_reduce, "0", 1, 1, MS);
	advance(11000 * MS);
	comm_call(&all_reduce, "0", 1, 2, MS);
	assert_int_equal(records(REC_COMM_SUM), 1);
}

static void a_running_collective_shows_in_a_dump(void **state)
{
	struct comm_flight flight;
	struct stage_frame frame;

	next_call = (struct comm_call){ .seq = 9 };
	stage_enter(&all_reduce, &frame, NULL, 0, NULL);
	advance(40 * MS);
	assert_int_equal(flight_put_open(), 1);
	assert_true(pool_flight_get(agent.pool.head, 0, &flight));
	assert_int_equal(flight.flags, FLIGHT_OPEN);
	assert_int_equal(flight.seq, 9);
	assert_int_equal(flight.dur_ns, 40 * MS);
	stage_leave(&all_reduce, &frame, false);
	assert_int_equal(flight_put_open(), 0);
}

/* ---- the size budget ------------------------------------------------------------------------------------------------ */

static void young_collections_and_short_waits_are_summed(void **state)
{
	struct rec_comm_sum sum;
	struct rec_gc gc;
	int i;

	for (i = 0; i < 1000; i++) {
		stage_gc(clock_now, clock_now + 20000, 0, 3, 0);
		advance(20000);
	}
	stage_gc(clock_now, clock_now + 2 * MS, 1, 5, 1);
	advance(2 * MS);
	stage_gc(clock_now, clock_now + 1000, 2, 0, 0);
	for (i = 0; i < 500; i++)
		call(&sync_fn, 10000);
	call(&sync_fn, MS);
	call(&optimizer, MS);

	assert_int_equal(records(REC_GC), 2);
	assert_true(record(REC_GC, 0, &gc));
	assert_int_equal(gc.gen, 1);
	assert_int_equal(gc.collected, 5);
	assert_int_equal(gc.uncollectable, 1);
	assert_int_equal(records(REC_STAGE), 2); /* the long wait and the optimizer */
	assert_int_equal(records(REC_COMM_SUM), 2);
	for (i = 0; i < 2; i++) {
		assert_true(record(REC_COMM_SUM, (unsigned)i, &sum));
		assert_int_equal(sum.group, 0);
		if (!strcmp(pool_name(agent.pool.head, sum.op), "GC")) {
			assert_int_equal(sum.calls, 1000);
			assert_int_equal(sum.elements, 3000);
		} else {
			assert_int_equal(sum.calls, 500);
			assert_int_equal(sum.total_ns, 5 * MS);
		}
	}
}

/* An hour of @steps_per_s steps of twelve stages: bytes put, as the pacing counts them. */
static uint64_t hour_bytes(unsigned steps_per_s, struct steps_stats *stats)
{
	struct rec_head *head;
	uint64_t bytes = 0;
	unsigned step, i, at;

	for (step = 0; step < 3600 * steps_per_s; step++) {
		uint64_t end = clock_now + 1000 * MS / steps_per_s;

		call(&loader, MS / 4);
		for (i = 0; i < 10; i++)
			call(&backward, MS / 4);
		comm_call(&all_reduce, "0", 1, step, MS / 4);
		call(&optimizer, MS / 4);
		clock_now = end;
		/* the reader's part: empty the chunks */
		for (i = 0; i < CHUNKS; i++) {
			struct pool_chunk *chunk =
				(struct pool_chunk *)(agent.pool.chunks + (size_t)i * POOL_CHUNK_BYTES);

			for (at = 0; at < atomic_load(&chunk->used); at += head->bytes) {
				head = (void *)(chunk->data + at);
				bytes += head->type == REC_STAGE ? 90 : head->type == REC_STEP ? 26 : 56;
			}
			atomic_store(&chunk->used, 0);
			atomic_store(&chunk->state, CHUNK_WORD(0, CHUNK_FREE));
		}
	}
	steps_stats(stats);
	return bytes;
}

static void an_hour_stays_within_the_budget(void **state)
{
	struct steps_stats stats;
	uint64_t bytes = hour_bytes(20, &stats);

	assert_true(bytes <= 8u << 20);
	assert_true(bytes > 5u << 20); /* and uses it */
	assert_int_equal(step_number(), 72000); /* steps are never left out */
	assert_true(stats.paced_steps > 0);
}

static void what_lasts_long_is_written_whatever_the_budget(void **state)
{
	struct rec_gc gc;
	int i;

	for (i = 0; i < 8000; i++)
		call(&save, MS / 5); /* a data set of one file for each sample */
	assert_true(records(REC_STAGE) < 8000);
	i = (int)records(REC_STAGE);
	call(&save, MS / 5);
	assert_int_equal(records(REC_STAGE), i);
	call(&save, 2000 * MS);
	assert_int_equal(records(REC_STAGE), i + 1);
	stage_gc(clock_now, clock_now + 5 * MS, 2, 0, 0);
	assert_int_equal(records(REC_GC), 0);
	stage_gc(clock_now, clock_now + 150 * MS, 2, 7, 0);
	assert_true(record(REC_GC, 0, &gc));
	assert_int_equal(gc.collected, 7);
}

static void slow_jobs_are_recorded_in_full(void **state)
{
	struct steps_stats stats;

	hour_bytes(1, &stats);
	assert_int_equal(stats.paced_steps, 0);
	assert_int_equal(stats.summed, 0);
}

/* ---- children ------------------------------------------------------------------------------------------------------- */

/* Emulators of other processors know fork, but not MADV_WIPEONFORK; there the agent's atfork handler does its work. */
static void need_wiped_guard(void)
{
	volatile uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t child;
	int status;

	assert_true(page != MAP_FAILED);
	*page = 1;
	(void)!madvise((void *)page, 4096, MADV_WIPEONFORK);
	child = fork();
	if (!child)
		_exit(*page ? 1 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	munmap((void *)page, 4096);
	if (!status)
		return;
	print_message("skip: a page is not wiped at fork here (emulated?)\n");
	skip();
}

static void errno_is_kept(void **state)
{
	struct steps_stats stats;
	struct stage_frame frame;
	unsigned i;

	/* with room, and without: the pool is full long before the end */
	for (i = 0; i < 20000; i++) {
		errno = ENOTTY;
		stage_enter(&backward, &frame, NULL, 0, NULL);
		assert_int_equal(errno, ENOTTY);
		advance(MS);
		stage_leave(&backward, &frame, i % 2);
		assert_int_equal(errno, ENOTTY);
	}
	steps_stats(&stats);
	assert_true(atomic_load(&agent.pool.head->dropped[POOL_SRC_STAGE]) || stats.summed);
	call(&all_reduce, MS);
	errno = ENOTTY;
	stage_enter(&optimizer, &frame, NULL, 0, NULL);
	stage_leave(&optimizer, &frame, false);
	stage_gc(clock_now - MS, clock_now, 2, 0, 0);
	assert_int_equal(errno, ENOTTY);
}

static void only_every_nth_marker(void **state)
{
	struct steps_stats stats;
	unsigned i;

	pool_switch(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI), true);
	steps_markers_every(4);
	for (i = 1; i <= 40; i++) {
		next_call = (struct comm_call){ .seq = i };
		call(&all_reduce, MS);
	}
	steps_markers_every(1);
	steps_stats(&stats);
	assert_int_equal(stats.collectives, 40);
	assert_int_equal(stats.markers, 10);
	assert_int_equal(stats.left_out, 30);
	for (i = 0; i < 10; i++) {
		struct rec_comm rec;

		assert_true(record(REC_COMM, i, &rec));
		assert_int_equal(rec.seq, 4 * (i + 1)); /* the same calls on every rank */
	}
	pool_switch(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI), false);
}

static void workers_record_and_do_not_count(void **state)
{
	struct rec_stage rec;
	pid_t child;
	int status;

	need_wiped_guard();
	call(&loader, MS);
	call(&optimizer, MS);
	records_asked = 0;
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		bool good;

		call(&loader, 3 * MS);
		good = step_number() == 1 && atomic_load(&agent.pool.head->stage_id) == 1 && !records_asked;
		call(&optimizer, MS); /* a rank of its own: the agent is told, which promotes it */
		good = good && step_number() == 1 && records_asked == 1;
		good = good && record(REC_STAGE, 2, &rec) && rec.head.flags == STAGE_WORKER && rec.head.step == 2;
		_exit(good ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void a_promoted_child_begins_at_step_one(void **state)
{
	pid_t child;
	int status;

	need_wiped_guard();
	call(&optimizer, MS);
	call(&optimizer, MS);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		call(&optimizer, MS); /* as a worker */
		area = NULL; /* promoted: a pool of its own */
		if (fresh_pool(state))
			_exit(1);
		call(&optimizer, MS);
		_exit(step_number() == 1 && step_record(0).renumbered_from == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(step_number(), 2);
}

static void roles_come_from_name_and_kind(void **state)
{
	assert_int_equal(stage_role_of("torch.utils.data.dataloader@_BaseDataLoaderIter@__next__", STAGE_DATALOADER),
			 ROLE_DATALOADER);
	assert_int_equal(stage_role_of("torch.optim@Optimizer@step", STAGE_OPTIMIZER), ROLE_OPTIMIZER_STEP);
	assert_int_equal(stage_role_of("torch.optim@Optimizer@zero_grad", STAGE_OPTIMIZER), ROLE_PLAIN);
	assert_int_equal(stage_role_of("torch.distributed@all_reduce", STAGE_COMM), ROLE_COMM);
	assert_int_equal(stage_role_of("torch.distributed@unheard_of", STAGE_COMM), ROLE_PLAIN);
	assert_int_equal(stage_role_of("vllm.worker.worker@Worker@execute_model", STAGE_FORWARD), ROLE_MODEL_CALL);
	assert_int_equal(stage_role_of("mindspore.nn.TrainOneStepCell@__call__", STAGE_UNKNOWN), ROLE_MODEL_CALL);
	assert_int_equal(stage_role_of("torch@autograd@backward", STAGE_BACKWARD), ROLE_PLAIN);
}

static int fresh(void **state)
{
	steps_reset();
	return fresh_pool(state);
}

#define TEST(f) cmocka_unit_test_setup(f, fresh)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(optimizer_steps_are_steps),
		TEST(microbatches_are_counted_not_steps),
		TEST(dataloader_counts_until_an_optimizer_comes),
		TEST(ranks_without_dataloader_count_steps),
		TEST(raised_and_inner_optimizer_calls_are_no_steps),
		TEST(two_optimizers_make_one_step),
		TEST(model_calls_are_steps_of_inference),
		TEST(stage_of_the_loop_is_in_the_header),
		TEST(other_threads_leave_the_stage_alone),
		TEST(a_loop_that_moves_to_another_thread_leaves_no_stage_behind),
		TEST(stages_carry_step_name_and_how_they_ended),
		TEST(switched_off_nothing_is_recorded_and_depths_hold),
		TEST(collectives_are_summed_per_operation_and_group),
		TEST(inner_collectives_and_strangers_are_not_counted),
		TEST(a_full_table_of_sums_counts_what_it_loses),
		TEST(markers_are_written_when_they_are_on),
		TEST(sums_come_without_steps_too),
		TEST(a_running_collective_shows_in_a_dump),
		TEST(young_collections_and_short_waits_are_summed),
		TEST(an_hour_stays_within_the_budget),
		TEST(what_lasts_long_is_written_whatever_the_budget),
		TEST(slow_jobs_are_recorded_in_full),
		TEST(errno_is_kept),
		TEST(only_every_nth_marker),
		TEST(workers_record_and_do_not_count),
		TEST(a_promoted_child_begins_at_step_one),
		TEST(roles_come_from_name_and_kind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
