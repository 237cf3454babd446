/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Choice of events: groups against what the kernel has, names of users, what is said about those that are missing. */
#include "fake_tracefs.h"
#include "probe/ftrace/events.h"
#include "systrace/ftrace.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct said {
	int count, level;
	char text[1024];
};

static void hear(void *ctx, int level, const char *text)
{
	struct said *said = ctx;

	said->count++;
	said->level = level;
	snprintf(said->text, sizeof(said->text), "%s", text);
}

static int choose(void **state, struct event_list *list, uint32_t groups, const char *const *names, struct said *said,
		  struct st_err *err)
{
	struct fake *fake = *state;
	struct note note = { .say = hear, .ctx = said };
	int dir = openat(fake->fs.fd, "events", O_RDONLY | O_DIRECTORY), ret;

	ret = events_choose(list, dir, groups, names, &note, err);
	close(dir);
	return ret;
}

static void group_takes_what_there_is(void **state)
{
	struct event_list list;
	struct said said = { 0 };

	assert_int_equal(choose(state, &list, SYSTRACE_FTRACE_SCHED | SYSTRACE_FTRACE_IRQ, NULL, &said, NULL), 0);
	assert_int_equal(list.count, 3);
	assert_string_equal(list.names[0], "sched/sched_switch");
	assert_string_equal(list.names[1], "sched/sched_waking");
	assert_string_equal(list.names[2], "irq/softirq_entry");
	assert_int_equal(said.count, 1); /* one line for all that are missing */
	assert_int_equal(said.level, SYSTRACE_FTRACE_INFO);
	assert_non_null(strstr(said.text, "sched_wakeup, sched_wakeup_new, sched_migrate_task"));
	events_free(&list);
}

static void names_are_added_once(void **state)
{
	static const char *const names[] = { "sched:sched_switch", "sched", "irq/softirq_entry", NULL };
	struct event_list list;
	struct said said = { 0 };

	assert_int_equal(choose(state, &list, 0, names, &said, NULL), 0);
	assert_int_equal(list.count, 3);
	assert_string_equal(list.names[0], "sched/sched_switch");
	assert_int_equal(said.count, 0);
	events_free(&list);
}

static void missing_names_are_said(void **state)
{
	static const char *const names[] = { "sched/none", "sched/sched_switch", "nogroup", NULL };
	struct event_list list;
	struct said said = { 0 };

	assert_int_equal(choose(state, &list, 0, names, &said, NULL), 0);
	assert_int_equal(list.count, 1);
	assert_int_equal(said.count, 2);
	assert_int_equal(said.level, SYSTRACE_FTRACE_WARNING);
	assert_string_equal(said.text, "event nogroup skipped: this kernel does not have it");
	events_free(&list);
}

static void nothing_left_is_an_error(void **state)
{
	struct event_list list;
	struct said said = { 0 };
	struct st_err err = { 0 };

	assert_int_equal(choose(state, &list, SYSTRACE_FTRACE_FUTEX, NULL, &said, &err), -ENOENT);
	assert_string_equal(err.text, "no events to record: this kernel has none of those asked for");
	events_free(&list);
}

static void names_stay_below_tracefs(void **state)
{
	static const char *const bad[] = { "../../etc/passwd", "/sched/sched_switch", "", "sched/sched_switch;x",
					   "a b" };
	struct event_list list;
	struct said said = { 0 };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *const names[] = { bad[i], NULL };

		assert_int_equal(choose(state, &list, 0, names, &said, NULL), -EINVAL);
		events_free(&list);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(group_takes_what_there_is, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(names_are_added_once, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(missing_names_are_said, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(nothing_left_is_an_error, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(names_stay_below_tracefs, fake_setup, fake_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
