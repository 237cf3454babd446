/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What calls of condition variables inside _PyRuntime say about the interpreter lock. */
#include "probe/gil_track.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define COND 0x7000u
#define MUTEX (COND + sizeof(pthread_cond_t))
#define SWITCH (MUTEX + sizeof(pthread_mutex_t))

struct told {
	int count;
	struct {
		uint32_t tid, what, timeouts, flags;
		uint64_t begin_ns, dur_ns;
	} rows[16];
};

static void put(void *ctx, const struct gil_event *event, const struct rec_gil *rec)
{
	struct told *told = ctx;

	assert_true(told->count < 16);
	told->rows[told->count].tid = event->tid;
	told->rows[told->count].what = rec->what;
	told->rows[told->count].flags = rec->head.flags;
	told->rows[told->count].timeouts = rec->timeouts;
	told->rows[told->count].begin_ns = rec->begin_ns;
	told->rows[told->count++].dur_ns = rec->dur_ns;
}

static void say(struct gil_track *track, struct told *told, uint64_t at_ns, uint32_t tid, enum gil_call call,
		uint64_t cond, int result)
{
	struct gil_event event = { .at_ns = at_ns,
				   .tid = tid,
				   .call = call,
				   .cond = cond,
				   .mutex = cond + sizeof(pthread_cond_t),
				   .result = result };

	assert_int_equal(gil_track_event(track, &event, put, told), 0);
}

static void check_row(const struct told *told, int at, uint32_t tid, enum gil_what what, uint64_t begin_ns,
		      uint64_t dur_ns)
{
	assert_true(at < told->count);
	assert_int_equal(told->rows[at].tid, tid);
	assert_int_equal(told->rows[at].what, what);
	assert_int_equal(told->rows[at].begin_ns, begin_ns);
	assert_int_equal(told->rows[at].dur_ns, dur_ns);
}

/* One thread holds, another waits with two time-outs, the first is made to drop it and waits for the successor. */
static void hold_wait_and_forced_drop(void **state)
{
	struct gil_track track = { 0 };
	struct told told = { 0 };

	say(&track, &told, 1, 7, GIL_TIMED_BEGIN, COND, 0); /* tells where the lock is */
	say(&track, &told, 2, 7, GIL_TIMED_END, COND, 0);
	say(&track, &told, 3, 7, GIL_SIGNAL, SWITCH, 0);
	check_row(&told, 0, 7, GIL_WAIT, 1, 2);
	say(&track, &told, 10, 8, GIL_TIMED_BEGIN, COND, 0);
	say(&track, &told, 20, 8, GIL_TIMED_END, COND, ETIMEDOUT);
	say(&track, &told, 21, 8, GIL_TIMED_BEGIN, COND, 0);
	say(&track, &told, 31, 8, GIL_TIMED_END, COND, ETIMEDOUT);
	say(&track, &told, 32, 8, GIL_TIMED_BEGIN, COND, 0);
	say(&track, &told, 40, 7, GIL_SIGNAL, COND, 0);
	check_row(&told, 1, 7, GIL_HOLD, 3, 37);
	say(&track, &told, 41, 7, GIL_WAIT_BEGIN, SWITCH, 0);
	say(&track, &told, 42, 8, GIL_TIMED_END, COND, 0);
	say(&track, &told, 43, 8, GIL_SIGNAL, SWITCH, 0);
	check_row(&told, 2, 8, GIL_WAIT, 10, 33);
	assert_int_equal(told.rows[2].timeouts, 2);
	say(&track, &told, 44, 7, GIL_WAIT_END, SWITCH, 0);
	check_row(&told, 3, 7, GIL_FORCED, 41, 3);
	say(&track, &told, 50, 8, GIL_SIGNAL, COND, 0);
	check_row(&told, 4, 8, GIL_HOLD, 43, 7);
	assert_int_equal(told.count, 5);
	gil_track_fini(&track);
}

/* Without contention nobody waits: two signals tell which address is which, in either order. */
static void learned_from_signals(void **state)
{
	for (int first = 0; first < 2; first++) {
		struct gil_track track = { 0 };
		struct told told = { 0 };

		say(&track, &told, 1, 7, GIL_SIGNAL, first ? COND : SWITCH, 0);
		say(&track, &told, 2, 7, GIL_SIGNAL, first ? COND : SWITCH, 0);
		say(&track, &told, 3, 7, GIL_SIGNAL, first ? SWITCH : COND, 0);
		assert_int_equal(track.cond, COND);
		say(&track, &told, 4, 7, GIL_SIGNAL, SWITCH, 0);
		say(&track, &told, 9, 7, GIL_SIGNAL, COND, 0);
		check_row(&told, 0, 7, GIL_HOLD, 4, 5);
		assert_int_equal(told.count, 1);
		gil_track_fini(&track);
	}
}

/* The event of a drop is missing: the hold is not drawn over its successor's. */
static void holds_never_overlap(void **state)
{
	struct gil_track track = { .cond = COND };
	struct told told = { 0 };

	say(&track, &told, 1, 7, GIL_SIGNAL, SWITCH, 0);
	say(&track, &told, 5, 8, GIL_SIGNAL, SWITCH, 0);
	say(&track, &told, 7, 8, GIL_SIGNAL, COND, 0);
	check_row(&told, 0, 8, GIL_HOLD, 5, 2);
	say(&track, &told, 8, 7, GIL_SIGNAL, COND, 0);
	assert_int_equal(told.count, 1);
	say(&track, &told, 9, 8, GIL_SIGNAL, SWITCH, 0);
	gil_track_lost(&track);
	say(&track, &told, 12, 8, GIL_SIGNAL, COND, 0);
	assert_int_equal(told.count, 1);
	gil_track_fini(&track);
}

/* What had begun before, and what has not ended; a drop that was asked for. */
static void cut_at_both_ends(void **state)
{
	struct gil_track track = { .begin_ns = 100, .cond = COND };
	struct told told = { 0 };

	say(&track, &told, 110, 8, GIL_TIMED_BEGIN, COND, 0);
	say(&track, &told, 115, 8, GIL_TIMED_END, COND, ETIMEDOUT);
	say(&track, &told, 120, 7, GIL_SIGNAL, COND, 0);
	check_row(&told, 0, 7, GIL_HOLD, 100, 20);
	assert_int_equal(told.rows[0].flags, GIL_CUT_BEGIN | GIL_ASKED);
	say(&track, &told, 121, 8, GIL_SIGNAL, SWITCH, 0);
	assert_int_equal(told.rows[1].flags, 0);
	say(&track, &told, 130, 7, GIL_TIMED_BEGIN, COND, 0);
	gil_track_end(&track, 150, put, &told);
	assert_int_equal(told.count, 4);
	for (int i = 2; i < 4; i++) {
		assert_int_equal(told.rows[i].flags, GIL_CUT_END);
		if (told.rows[i].tid == 8)
			check_row(&told, i, 8, GIL_HOLD, 121, 29);
		else
			check_row(&told, i, 7, GIL_WAIT, 130, 20);
	}
	gil_track_fini(&track);
}

static void many_threads(void **state)
{
	struct gil_track track = { .cond = COND };
	struct told told = { 0 };

	for (uint32_t tid = 1; tid <= 10000; tid++) {
		say(&track, &told, tid * 10, tid, GIL_SIGNAL, SWITCH, 0);
		say(&track, &told, tid * 10 + 5, tid, GIL_SIGNAL, COND, 0);
		check_row(&told, 0, tid, GIL_HOLD, tid * 10, 5);
		told.count = 0;
	}
	assert_int_equal(track.holds, 10000);
	gil_track_fini(&track);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hold_wait_and_forced_drop),
		cmocka_unit_test(learned_from_signals),
		cmocka_unit_test(holds_never_overlap),
		cmocka_unit_test(cut_at_both_ends),
		cmocka_unit_test(many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
