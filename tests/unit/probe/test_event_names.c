/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lists of events in which every name must exist, and the advice about those that do not. */
#include "fake_tracefs.h"
#include "probe/ftrace/events.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static int named(void **state, const char *text, struct event_list *list, struct st_err *err)
{
	struct fake *fake = *state;
	int dir = openat(fake->fs.fd, "events", O_RDONLY | O_DIRECTORY), ret;

	ret = events_named(list, dir, text, err);
	close(dir);
	return ret;
}

static void groups_patterns_and_names(void **state)
{
	static const struct {
		const char *text;
		size_t count;
	} rows[] = {
		{ "sched/sched_switch", 1 }, { "sched:sched_switch,sched", 2 },
		{ "sched,irq", 3 },	     { "*/soft*", 1 },
		{ "s*/sched_*", 2 },	     { "sched/sched_switch,sched/sched_switch", 1 },
	};
	struct event_list list;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(named(state, rows[i].text, &list, NULL), 0);
		assert_int_equal(list.count, rows[i].count);
		events_free(&list);
	}
}

static void the_nearest_is_told(void **state)
{
	static const struct {
		const char *text, *want;
	} rows[] = {
		{ "sched/sched_swich", "sched/sched_swich (did you mean sched/sched_switch?)" },
		{ "shed/sched_switch", "shed/sched_switch (did you mean sched/sched_switch?)" },
		{ "sched_waking", "sched_waking (did you mean sched/sched_waking?)" },
		{ "irqs", "irqs (did you mean irq?)" },
		{ "irq/nothing", "irq/nothing (irq has softirq_entry)" },
		{ "irq/softirq_entry,irqs,sched/x", "irqs (did you mean irq?), sched/x (sched has" },
		{ "zebra", "no event zebra" },
		{ "sched/zz*", "no event sched/zz*" },
	};
	struct event_list list;
	struct st_err err;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		memset(&err, 0, sizeof(err));
		assert_int_equal(named(state, rows[i].text, &list, &err), -ENOENT);
		if (!strstr(err.text, rows[i].want))
			fail_msg("%s: %s", rows[i].text, err.text);
		events_free(&list);
	}
}

static void names_stay_below_tracefs(void **state)
{
	static const char *const bad[] = { "../sched", "sched/../irq", "/sched", ",", "sched,,irq", "a b", "sched/" };
	struct event_list list;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(named(state, bad[i], &list, NULL), -EINVAL);
		events_free(&list);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(groups_patterns_and_names, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(the_nearest_is_told, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(names_stay_below_tracefs, fake_setup, fake_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
