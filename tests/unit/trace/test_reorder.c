/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The bounded sort of events that come nearly in order. */
#include "trace/reorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct reorder *order;

static int setup(void **state)
{
	order = calloc(1, sizeof(*order));
	return order ? 0 : -1;
}

static int teardown(void **state)
{
	free(order);
	return 0;
}

static void put(uint64_t t_ns, uint32_t name)
{
	*reorder_next(order) = (struct event){ .t_ns = t_ns, .name = name, .nargs = 1, .args[0].u64 = name };
	reorder_put(order);
}

/* Everything that is held, as "time:name time:name". */
static void all_is(const char *want)
{
	char got[256] = "";
	struct event ev;

	while (reorder_take(order, true, &ev)) {
		assert_int_equal(ev.args[0].u64, ev.name);
		snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%llu:%u", *got ? " " : "",
			 (unsigned long long)ev.t_ns, ev.name);
	}
	assert_string_equal(got, want);
}

static void late_ones_go_to_their_place(void **state)
{
	put(100, 1);
	put(300, 2);
	put(200, 3);
	put(300, 4);
	put(100, 5); /* same time: as they came */
	put(50, 6);
	all_is("50:6 100:1 100:5 200:3 300:2 300:4");
	assert_int_equal(order->moved, 3);
	assert_int_equal(order->late, 0);
}

static void they_are_held_for_a_millisecond(void **state)
{
	struct event ev;

	put(1000, 1);
	assert_false(reorder_take(order, false, &ev));
	put(1000 + REORDER_NS - 1, 2);
	assert_false(reorder_take(order, false, &ev));
	put(1000 + REORDER_NS, 3);
	assert_true(reorder_take(order, false, &ev));
	assert_int_equal(ev.name, 1);
	assert_false(reorder_take(order, false, &ev));
	put(900, 4); /* later than the one that went */
	assert_int_equal(order->late, 1);
	assert_int_equal(order->moved, 0);
	all_is("900:4 1000999:2 1001000:3");
}

static void a_gap_stands_before_the_event_that_it_ends_at(void **state)
{
	put(500, 1);
	*reorder_next(order) =
		(struct event){ .t_ns = 100, .dur_ns = 300, .kind = EV_LOST, .name = 2, .nargs = 1, .args[0].u64 = 2 };
	reorder_put(order);
	put(400, 3);
	put(399, 4);
	all_is("399:4 100:2 400:3 500:1");
}

static void the_ring_never_holds_more_than_it_can(void **state)
{
	struct event ev;
	uint64_t last = 0, got = 0;
	uint32_t i, seed = 1;

	for (i = 0; i < 100000; i++) {
		while (!reorder_room(order, 1)) {
			assert_true(reorder_take(order, true, &ev));
			assert_true(ev.t_ns >= last);
			last = ev.t_ns;
			got++;
		}
		seed = seed * 1664525u + 1013904223u;
		put(10 * i + (seed >> 24), i); /* up to 255 ns, 25 events, late */
	}
	while (reorder_take(order, true, &ev)) {
		assert_true(ev.t_ns >= last);
		last = ev.t_ns;
		got++;
	}
	assert_int_equal(got, 100000);
	assert_true(order->moved > 1000);
	assert_int_equal(order->late, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(late_ones_go_to_their_place, setup, teardown),
		cmocka_unit_test_setup_teardown(they_are_held_for_a_millisecond, setup, teardown),
		cmocka_unit_test_setup_teardown(a_gap_stands_before_the_event_that_it_ends_at, setup, teardown),
		cmocka_unit_test_setup_teardown(the_ring_never_holds_more_than_it_can, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
