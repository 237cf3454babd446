/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The tables of live blocks and mappings against plain arrays: nothing is lost or invented, full tables say so, threads do
 * not disturb each other, and a forked child begins with none.
 */
#include "safe/blocks.h"
#include "safe/regions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCKS 20000
#define PAGE 4096u

static uintptr_t address_of(unsigned int i)
{
	return 0x7f0000000000u + (uintptr_t)i * 48;
}

static struct block block_of(unsigned int i)
{
	return (struct block){ .bytes = i, .usable = i + 1, .weight = i * 7ull, .begin_ns = i * 3ull, .stack = i };
}

static int reserve(void **state)
{
	assert_int_equal(blocks_reserve(), 0);
	assert_int_equal(regions_reserve(), 0);
	return 0;
}

static void come_and_go(void **state)
{
	static bool alive[BLOCKS];
	unsigned int i, at, seed = 1;
	struct block block;

	assert_int_equal(blocks_clear(BLOCKS * 2), 65536);
	memset(alive, 0, sizeof(alive));
	for (i = 0; i < 500000; i++) {
		seed = seed * 1103515245u + 12345u;
		at = (seed >> 8) % BLOCKS;
		block = block_of(at);
		if (!alive[at]) {
			assert_false(blocks_maybe(address_of(at)) && blocks_take(address_of(at), &block));
			assert_true(blocks_put(address_of(at), &block));
		} else {
			assert_true(blocks_maybe(address_of(at)));
			assert_true(blocks_take(address_of(at), &block));
			assert_int_equal(block.weight, at * 7ull);
		}
		alive[at] = !alive[at];
	}
	for (i = 0; i < BLOCKS; i++)
		assert_int_equal(blocks_take(address_of(i), &block), alive[i]);
	for (i = 0; i < BLOCKS; i++)
		assert_false(blocks_maybe(address_of(i)));
}

static void forgotten_ends_are_replaced(void **state)
{
	struct block first = block_of(1), second = block_of(2), got;

	blocks_clear(64);
	assert_true(blocks_put(address_of(5), &first));
	assert_true(blocks_put(address_of(5), &second));
	assert_true(blocks_take(address_of(5), &got));
	assert_int_equal(got.bytes, 2);
	assert_false(blocks_take(address_of(5), &got));
	assert_false(blocks_maybe(address_of(5)));
}

static void null_is_no_block(void **state)
{
	struct block block = block_of(3), got;

	blocks_clear(64);
	assert_true(blocks_put(address_of(3), &block));
	assert_true(blocks_take(address_of(3), &got));
	assert_false(blocks_take(0, &got)); /* the mark of a free slot */
	assert_false(blocks_take(1, &got));
	assert_false(blocks_put(0, &block));
}

static void count_one(void *arg, uintptr_t address, const struct block *block)
{
	(*(unsigned int *)arg)++;
	assert_int_equal(block->bytes * 48, address - 0x7f0000000000u);
}

static void full_is_said(void **state)
{
	unsigned int i, kept = 0, seen = 0;
	struct block block;

	assert_int_equal(blocks_clear(1), 64);
	for (i = 1; i < 1000; i++) {
		block = block_of(i);
		kept += blocks_put(address_of(i), &block);
	}
	assert_in_range(kept, 48, 64);
	blocks_each(count_one, &seen);
	assert_int_equal(seen, kept);
	for (i = 1; i < 1000; i++)
		kept -= blocks_take(address_of(i), &block);
	assert_int_equal(kept, 0);
}

static void *work_alone(void *arg)
{
	unsigned int first = (unsigned int)(uintptr_t)arg * 5000, i, round;
	struct block block;

	for (round = 0; round < 20; round++) {
		for (i = first; i < first + 5000; i++) {
			block = block_of(i);
			if (!blocks_put(address_of(i), &block))
				return "no room";
		}
		for (i = first; i < first + 5000; i++) {
			if (!blocks_maybe(address_of(i)) || !blocks_take(address_of(i), &block))
				return "lost";
			if (block.bytes != i || block.weight != i * 7ull)
				return "another's";
		}
	}
	return NULL;
}

static void threads_do_not_disturb(void **state)
{
	pthread_t thread[4];
	void *problem;
	uintptr_t i;

	blocks_clear(65536);
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, work_alone, (void *)i), 0);
	for (i = 0; i < 4; i++) {
		pthread_join(thread[i], &problem);
		assert_null(problem);
	}
}

static void children_begin_with_none(void **state)
{
	struct block block = block_of(9), got;
	uintptr_t at;
	int status;
	pid_t pid;

	if (getenv("ST_EMULATED"))
		skip(); /* qemu knows no MADV_WIPEONFORK: there a child begins with what its parent had */
	blocks_clear(64);
	regions_clear();
	block.bytes = PAGE;
	assert_true(blocks_put(address_of(9), &block));
	assert_true(regions_put(PAGE, &block));
	pid = fork();
	if (!pid)
		_exit(blocks_maybe(address_of(9)) || regions_take(PAGE, PAGE, &at, &got));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(blocks_take(address_of(9), &got));
	assert_true(regions_take(PAGE, PAGE, &at, &got));
}

/* Pages of a small address space, mapped and unmapped at random; an array of pages is the witness. */
static void regions_cover_what_is_mapped(void **state)
{
	enum { PAGES = 512 };
	static bool mapped[PAGES];
	unsigned int seed = 7, i, k, sum;
	struct block block, piece;
	uintptr_t at;

	regions_clear();
	memset(mapped, 0, sizeof(mapped));
	for (i = 0; i < 20000; i++) {
		unsigned int from, count;

		seed = seed * 1103515245u + 12345u;
		from = (seed >> 8) % PAGES;
		count = 1 + (seed >> 20) % 32;
		if (from + count > PAGES)
			count = PAGES - from;
		while (regions_take((1 + from) * PAGE, count * PAGE, &at, &block)) {
			piece = block;
			piece.bytes = (1 + from) * PAGE - at;
			if (at < (1 + from) * PAGE)
				assert_true(regions_put(at, &piece));
			piece.bytes = at + block.bytes - (1 + from + count) * PAGE;
			if (at + block.bytes > (1 + from + count) * PAGE)
				assert_true(regions_put((1 + from + count) * PAGE, &piece));
		}
		memset(mapped + from, seed & 1u << 7, count);
		block = (struct block){ .bytes = count * PAGE };
		if (seed & 1u << 7) {
			memset(mapped + from, 1, count);
			assert_true(regions_put((1 + from) * PAGE, &block));
		}
	}
	for (i = sum = 0; i < PAGES; i++)
		sum += mapped[i];
	while (regions_take(0, (PAGES + 2) * (uint64_t)PAGE, &at, &block)) {
		for (k = 0; k < block.bytes / PAGE; k++)
			assert_true(mapped[at / PAGE - 1 + k]);
		sum -= (unsigned int)(block.bytes / PAGE);
	}
	assert_int_equal(sum, 0);
}

static void full_regions_are_said(void **state)
{
	struct block block = { .bytes = PAGE };
	unsigned int i, kept = 0;

	regions_clear();
	for (i = 1; i <= REGIONS_MAX + 10; i++)
		kept += regions_put((uintptr_t)i * PAGE, &block);
	assert_int_equal(kept, REGIONS_MAX);
	regions_clear();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(come_and_go),
		cmocka_unit_test(forgotten_ends_are_replaced),
		cmocka_unit_test(null_is_no_block),
		cmocka_unit_test(full_is_said),
		cmocka_unit_test(threads_do_not_disturb),
		cmocka_unit_test(children_begin_with_none),
		cmocka_unit_test(regions_cover_what_is_mapped),
		cmocka_unit_test(full_regions_are_said),
	};

	return cmocka_run_group_tests(tests, reserve, NULL);
}
