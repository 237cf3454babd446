/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Records put from signal handlers that interrupt pool_put at any instruction: in a storm of timer signals, at a chosen
 * point (the record to copy lies on a page that faults), and in handlers that fork and return in both processes.
 */
#include "safe/pool.h"
#include "wire/record.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

#define CHUNKS 512u
#define PUTS 20000u
#define FROM_HANDLER 0x8000000000000000ull

static struct pool pool;
static uint8_t *seen; /* by number, how often a record was read back */
static uint8_t most_seen; /* how often it may be */
static _Atomic uint32_t handler_numbers, from_handler, handler_errors;
static struct rec_gc *faulting; /* on a page of its own */

static struct rec_gc record_of(uint64_t number)
{
	struct rec_gc rec = { .head = { .bytes = sizeof(rec), .type = REC_GC } };

	/* the same number in several places: a record mixed from two shows */
	rec.begin_ns = number;
	rec.dur_ns = ~number;
	rec.collected = (uint32_t)number;
	rec.uncollectable = ~(uint32_t)number;
	return rec;
}

static bool put(uint64_t number)
{
	struct rec_gc rec = record_of(number);

	return pool_put(&pool, &rec, sizeof(rec), POOL_SRC_OTHER);
}

/* Count each whole record; fails the test on anything else. */
static uint32_t read_back(void)
{
	uint32_t i, at, count = 0;

	for (i = 0; i < CHUNKS; i++) {
		struct pool_chunk *chunk = (struct pool_chunk *)(pool.chunks + (size_t)i * POOL_CHUNK_BYTES);
		uint32_t used = atomic_load(&chunk->used);

		assert_true(used <= POOL_CHUNK_DATA);
		assert_int_not_equal(CHUNK_STATE(atomic_load(&chunk->state)), CHUNK_BUSY);
		for (at = 0; at < used; at += sizeof(struct rec_gc)) {
			struct rec_gc rec, want;
			uint64_t n;

			memcpy(&rec, chunk->data + at, sizeof(rec));
			want = record_of(rec.begin_ns);
			assert_memory_equal(&rec, &want, sizeof(rec));
			n = (rec.begin_ns & ~FROM_HANDLER) + (rec.begin_ns & FROM_HANDLER ? PUTS : 0);
			assert_true(n < 2 * PUTS);
			assert_true(++seen[n] <= most_seen);
			count++;
		}
		assert_int_equal(at, used);
	}
	return count;
}

static uint64_t dropped(void)
{
	return atomic_load(&pool.head->dropped[POOL_SRC_OTHER]);
}

static int fresh_pool(void **state)
{
	size_t bytes = pool_area_bytes(CHUNKS);
	void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct pool_guard *guard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED || guard == MAP_FAILED)
		return -1;
	/* where it can't be wiped (emulators) the tests here enter the child themselves, as the agent's handler does */
	(void)!madvise(guard, 4096, 18 /* MADV_WIPEONFORK */);
	pool_format(area, CHUNKS);
	seen = calloc(2 * PUTS, 1);
	faulting = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	most_seen = 1;
	atomic_store(&handler_numbers, 0);
	atomic_store(&from_handler, 0);
	atomic_store(&handler_errors, 0);
	return !seen || faulting == MAP_FAILED ? -1 : pool_attach(&pool, area, bytes, guard);
}

static int end_pool(void **state)
{
	free(seen);
	munmap(pool.head, pool_area_bytes(CHUNKS));
	munmap(pool.guard, 4096);
	munmap(faulting, 4096);
	return 0;
}

static void on_signal(int sig, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_NODEFER };

	assert_int_equal(sigaction(sig, &action, NULL), 0);
}

/* ---- a storm -------------------------------------------------------------------------------------------------------- */

static void put_in_handler(int sig)
{
	uint32_t n = atomic_fetch_add(&handler_numbers, 1); /* handlers interrupt each other, too */
	int saved = errno;

	errno = ENOTTY;
	if (n < PUTS && put(FROM_HANDLER | n))
		atomic_fetch_add(&from_handler, 1);
	if (errno != ENOTTY)
		atomic_fetch_add(&handler_errors, 1);
	errno = saved;
}

/* A reader for the storm: hand every chunk that is not being written back, as the io thread does at a flush. */
static void take_chunks(void)
{
	uint32_t i;

	for (i = 0; i < CHUNKS; i++) {
		struct pool_chunk *chunk = (struct pool_chunk *)(pool.chunks + (size_t)i * POOL_CHUNK_BYTES);
		uint64_t word = atomic_load(&chunk->state);

		if (CHUNK_STATE(word) == CHUNK_OWNED)
			atomic_compare_exchange_strong(&chunk->state, &word,
						       CHUNK_WORD(CHUNK_TICKET(word), CHUNK_DRAIN));
	}
}

static void a_storm_of_signals_loses_and_repeats_nothing(void **state)
{
	/* once by SIGPROF and once by SIGALRM: one counts the processor's time, the other interrupts sleeps as well */
	static const struct {
		int timer, sig;
	} kinds[] = { { ITIMER_PROF, SIGPROF }, { ITIMER_REAL, SIGALRM } };
	const struct itimerval off = { 0 };
	uint64_t put_ok = 0;
	uint32_t n = 0;
	size_t kind;

	for (kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
		const struct itimerval storm = { .it_interval = { .tv_usec = 50 }, .it_value = { .tv_usec = 50 } };
		uint32_t stop = PUTS / 2 * ((uint32_t)kind + 1);

		on_signal(kinds[kind].sig, put_in_handler);
		assert_int_equal(setitimer(kinds[kind].timer, &storm, NULL), 0);
		for (; n < stop; n++) {
			put_ok += put(n);
			if (n % 4096 == 0)
				take_chunks();
			if (n % 16 == 0)
				raise(kinds[kind].sig); /* also where timers are coarse */
		}
		assert_int_equal(setitimer(kinds[kind].timer, &off, NULL), 0);
		on_signal(kinds[kind].sig, SIG_IGN);
	}
	take_chunks();
	assert_int_equal(read_back(), put_ok + atomic_load(&from_handler));
	assert_true(put_ok + dropped() >= PUTS);
	assert_true(atomic_load(&from_handler) > 1000);
	assert_int_equal(atomic_load(&handler_errors), 0);
}

/* ---- inside the copy ------------------------------------------------------------------------------------------------ */

static void put_and_let_go(int sig)
{
	mprotect(faulting, 4096, PROT_READ | PROT_WRITE);
	put_in_handler(sig);
	put_in_handler(sig);
}

/* ASan reads the source of memcpy before the copy: the handler runs all the same, within pool_put. */
static void put_faulting(uint64_t number, void (*handler)(int))
{
	*faulting = record_of(number);
	on_signal(SIGSEGV, handler);
	assert_int_equal(mprotect(faulting, 4096, PROT_NONE), 0);
	assert_true(pool_put(&pool, faulting, sizeof(*faulting), POOL_SRC_OTHER));
	on_signal(SIGSEGV, SIG_DFL);
}

static void a_put_inside_a_put(void **state)
{
	uint32_t i;

	for (i = 0; i < 100; i++) {
		assert_true(put(2 * i));
		put_faulting(2 * i + 1, put_and_let_go);
	}
	assert_int_equal(atomic_load(&from_handler), 200);
	assert_int_equal(read_back(), 400);
	assert_int_equal(dropped(), 0);
}

static int go[2]; /* the child may go on */
static pid_t child;

static void fork_and_return(int sig)
{
	char byte;

	mprotect(faulting, 4096, PROT_READ | PROT_WRITE);
	child = fork();
	if (child)
		return;
	atomic_store(&pool.guard->alive, 0);
	pool_child_enter(&pool);
	while (read(go[0], &byte, 1) != 1)
		;
}

static void a_fork_inside_a_put(void **state)
{
	int status;

	if (UNDER_TSAN) {
		print_message("skip: the thread sanitizer's own fork allocates, which it then complains about\n");
		skip();
	}
	assert_int_equal(pipe(go), 0);
	put_faulting(1, fork_and_return);
	if (!child)
		_exit(put(7) ? 0 : 1); /* the interrupted record is complete as well: one of its own */
	assert_true(put(2));
	assert_true(put(3));
	assert_int_equal(write(go[1], "", 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(put(4));
	take_chunks();
	most_seen = 2;
	assert_int_equal(read_back(), 6);
	assert_int_equal(seen[1], 2); /* the child completes the put it was born in, in a chunk of its own */
	assert_int_equal(seen[2] + seen[3] + seen[4], 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_storm_of_signals_loses_and_repeats_nothing, fresh_pool, end_pool),
		cmocka_unit_test_setup_teardown(a_put_inside_a_put, fresh_pool, end_pool),
		cmocka_unit_test_setup_teardown(a_fork_inside_a_put, fresh_pool, end_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
