/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Steps found in sequences of operations: periods within periods, lost ones, rotations, and alignment between ranks. */
#include "analyze/marker_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define MS 1000000ll

static uint32_t seed = 5;

static uint32_t draw(uint32_t below)
{
	seed = seed * 1664525 + 1013904223;
	return (uint32_t)(((uint64_t)seed * below) >> 32);
}

/* A step: eight micro-batches of gather and scatter, then three reductions of different size */
static size_t step_codes(uint64_t *to)
{
	size_t n = 0, i;

	for (i = 0; i < 8; i++) {
		to[n++] = 11;
		to[n++] = 12;
	}
	to[n++] = 30;
	to[n++] = 31;
	to[n++] = 30;
	return n;
}

static size_t sequence(uint64_t *codes, size_t steps, size_t skip)
{
	uint64_t all[4096];
	size_t n = 0, i;

	for (i = 0; i < steps; i++)
		n += step_codes(all + n);
	for (i = skip; i < n; i++)
		codes[i - skip] = all[i];
	return n - skip;
}

static void the_step_is_the_whole_period(void **state)
{
	uint64_t codes[4096];
	size_t count = sequence(codes, 40, 0), start;

	assert_int_equal(marker_steps_find(codes, count, &start), 19);
}

/* Wherever the collector began, all ranks begin their steps at the same operation */
static void the_start_is_the_same_operation(void **state)
{
	uint64_t codes[4096];
	size_t first, start, skip;

	sequence(codes, 40, 0);
	assert_int_equal(marker_steps_find(codes, 40 * 19, &first), 19);
	for (skip = 1; skip < 40; skip++) {
		size_t count = sequence(codes, 40, skip);

		assert_int_equal(marker_steps_find(codes, count, &start), 19);
		assert_int_equal((start + skip) % 19, first);
	}
}

static void lone_strangers_do_not_matter(void **state)
{
	uint64_t codes[4096];
	size_t count = sequence(codes, 60, 3), start, other, i;

	assert_int_equal(marker_steps_find(codes, count, &start), 19);
	for (i = 0; i < 10; i++)
		codes[draw((uint32_t)count)] = 99;
	assert_int_equal(marker_steps_find(codes, count, &other), 19);
	assert_int_equal(other, start);
}

static void no_period_is_no_step(void **state)
{
	uint64_t codes[1000];
	size_t start, i;

	for (i = 0; i < 1000; i++)
		codes[i] = draw(5);
	assert_int_equal(marker_steps_find(codes, 1000, &start), 0);
	assert_int_equal(marker_steps_find(codes, 0, &start), 0);
	assert_int_equal(marker_steps_find(codes, 3, &start), 0);
	/* three repetitions are too few to be sure */
	assert_int_equal(marker_steps_find(codes, sequence(codes, 3, 0), &start), 0);
}

/* A clock four minutes off, a collector that came 37 steps late, and jitter that both ranks share */
static void shifts_are_found_whatever_the_clock(void **state)
{
	int64_t reference[300], late[263];
	int64_t now = 1760000000000 * MS;
	size_t i;

	for (i = 0; i < 300; i++) {
		reference[i] = now;
		if (i >= 37)
			late[i - 37] = now + 240000 * MS + (int64_t)draw(20) * 1000;
		now += 1000 * MS + (int64_t)draw(30) * MS;
	}
	assert_int_equal(marker_steps_shift(late, 263, reference, 300), 37);
	assert_int_equal(marker_steps_shift(reference, 300, late, 263), -37);
	assert_int_equal(marker_steps_shift(reference, 300, reference, 300), 0);
	assert_int_equal(marker_steps_shift(late, 0, reference, 300), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_step_is_the_whole_period),
		cmocka_unit_test(the_start_is_the_same_operation),
		cmocka_unit_test(lone_strangers_do_not_matter),
		cmocka_unit_test(no_period_is_no_step),
		cmocka_unit_test(shifts_are_found_whatever_the_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
