/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The scheduler's state machine, fed event by event: every span that comes out is written down as one line of text. */
#include "trace/sched_state.h"

#include "trace/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct world {
	struct ev_session *session;
	struct known_keys keys;
	struct sched_state *machine;
	char text[8192]; /* the spans */
	size_t len;
};

static const char *flags_text(uint32_t flags)
{
	static char text[64];
	static const char *const names[] = { " unseen", " open", " cut", " preempted", " new", " exited" };
	size_t i;

	*text = 0;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (flags >> i & 1)
			strcat(text, names[i]);
	return text;
}

static int write_down(void *arg, const struct sched_span *span)
{
	static const char *const kinds[] = { "cpu", "state", "irq", "softirq", "switch", "wake", "gap", "futex" };
	static const char *const states[] = { "unknown", "Running", "Runnable", "Sleeping", "Exited" };
	struct world *w = arg;
	char *at = w->text + w->len;
	size_t room = sizeof(w->text) - w->len;
	int n;

	assert_true(span->begin_ns <= span->end_ns);
	n = snprintf(at, room, "%s %d:%s:%d %llu-%llu", kinds[span->kind], span->cpu, ev_text(w->session, span->comm),
		     span->pid, (unsigned long long)span->begin_ns, (unsigned long long)span->end_ns);
	if (span->kind == SPAN_STATE)
		n += snprintf(at + n, room - (size_t)n, " %s", states[span->state]);
	if (span->kind == SPAN_WAKE)
		n += snprintf(at + n, room - (size_t)n, " by %s:%d on %d", ev_text(w->session, span->waker_comm),
			      span->waker_pid, span->waker_cpu);
	if (span->end_state)
		n += snprintf(at + n, room - (size_t)n, " %s", ev_text(w->session, span->end_state));
	if (span->kind == SPAN_GAP)
		n += snprintf(at + n, room - (size_t)n, " %llu", (unsigned long long)span->count);
	if (span->runtime_ns)
		n += snprintf(at + n, room - (size_t)n, " ran %llu", (unsigned long long)span->runtime_ns);
	n += snprintf(at + n, room - (size_t)n, "%s\n", flags_text(span->flags));
	w->len += (size_t)n;
	assert_true(w->len < sizeof(w->text) - 1);
	return 0;
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->session = ev_session_new();
	assert_int_equal(known_keys_init(&w->keys, w->session), 0);
	w->machine = sched_state_new(w->session, write_down, w);
	assert_non_null(w->machine);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	sched_state_free(w->machine);
	ev_session_free(w->session);
	free(w);
	return 0;
}

/* What came out since the last look. */
static void expect(struct world *w, const char *text)
{
	assert_string_equal(w->text, text);
	w->len = 0;
	*w->text = 0;
}

static struct event begin(struct world *w, enum ftrace_known known, uint64_t t_ns, int32_t cpu, int32_t tid)
{
	struct event ev = { 0 };

	known_begin(&ev, &w->keys, known, t_ns, cpu, tid);
	ev.nargs = w->keys.nargs[known];
	return ev;
}

static void set_name(struct world *w, struct event *ev, int i, const char *text)
{
	ev->args[i].type = EV_ARG_NAME;
	ev->args[i].name = ev_namez(w->session, text);
}

static void set_number(struct event *ev, int i, int64_t value)
{
	ev->args[i].type = EV_ARG_I64;
	ev->args[i].i64 = value;
}

static void feed(struct world *w, const struct event *ev)
{
	assert_int_equal(sched_state_feed(w->machine, ev), 0);
}

static void do_switch(struct world *w, uint64_t t_ns, int32_t cpu, const char *prev, int32_t prev_pid,
		      const char *letters, const char *next, int32_t next_pid)
{
	struct event ev = begin(w, KNOWN_SWITCH, t_ns, cpu, prev_pid);

	set_name(w, &ev, SWITCH_PREV_COMM, prev);
	set_number(&ev, SWITCH_PREV_PID, prev_pid);
	set_number(&ev, SWITCH_PREV_PRIO, 120);
	set_name(w, &ev, SWITCH_PREV_STATE, letters);
	set_name(w, &ev, SWITCH_NEXT_COMM, next);
	set_number(&ev, SWITCH_NEXT_PID, next_pid);
	set_number(&ev, SWITCH_NEXT_PRIO, 120);
	feed(w, &ev);
}

static void do_wake(struct world *w, enum ftrace_known known, uint64_t t_ns, int32_t cpu, int32_t by, const char *comm,
		    int32_t pid, int32_t target)
{
	struct event ev = begin(w, known, t_ns, cpu, by);

	set_name(w, &ev, WAKE_COMM, comm);
	set_number(&ev, WAKE_PID, pid);
	set_number(&ev, WAKE_PRIO, 120);
	set_number(&ev, WAKE_CPU, target);
	feed(w, &ev);
}

static void do_irq(struct world *w, enum ftrace_known known, uint64_t t_ns, int32_t cpu, int32_t tid, int64_t number)
{
	struct event ev = begin(w, known, t_ns, cpu, tid);

	set_number(&ev, 0, number);
	set_name(w, &ev, 1, "x");
	feed(w, &ev);
}

static void do_lost(struct world *w, uint64_t t_ns, uint64_t until_ns, int32_t cpu, uint64_t count)
{
	struct event ev = begin(w, KNOWN_NONE, t_ns, cpu, -1);

	ev.kind = EV_LOST;
	ev.phase = EV_COMPLETE;
	ev.dur_ns = until_ns - t_ns;
	ev.nargs = 1;
	set_number(&ev, 0, (int64_t)count);
	feed(w, &ev);
}

static void preemption_keeps_a_task_runnable(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	do_switch(w, 200, 0, "a", 10, "R+", "b", 20);
	do_switch(w, 260, 0, "b", 20, "S", "a", 10);
	expect(w, "switch 0:a:10 100-100\n"
		  "cpu 0:a:10 100-200 R+ preempted\n"
		  "state 0:a:10 100-200 Running\n"
		  "switch 0:b:20 200-200\n"
		  "cpu 0:b:20 200-260 S\n"
		  "state 0:b:20 200-260 Running\n"
		  "switch 0:a:10 260-260\n"
		  "state 0:a:10 200-260 Runnable preempted\n");
}

static void each_kind_of_sleep_is_told(void **state)
{
	static const char *const letters[] = { "S", "D", "T", "t", "I", "P", "D|K" };
	struct world *w = *state;
	size_t i;

	for (i = 0; i < sizeof(letters) / sizeof(letters[0]); i++) {
		uint64_t t_ns = 1000 * (i + 1);
		char text[512];

		do_switch(w, t_ns, 1, "swapper/1", 0, "R", "a", 10);
		w->len = 0;
		do_switch(w, t_ns + 100, 1, "a", 10, letters[i], "swapper/1", 0);
		do_wake(w, KNOWN_WAKEUP, t_ns + 300, 1, 0, "a", 10, 1);
		snprintf(text, sizeof(text),
			 "cpu 1:a:10 %zu-%zu %s\nstate 1:a:10 %zu-%zu Running\nswitch 1:swapper/1:0 %zu-%zu\n"
			 "state 1:a:10 %zu-%zu Sleeping %s\n",
			 t_ns, t_ns + 100, letters[i], t_ns, t_ns + 100, t_ns + 100, t_ns + 100, t_ns + 100, t_ns + 300,
			 letters[i]);
		expect(w, text);
	}
}

static void an_arrow_goes_from_the_waker_to_the_run(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "waker", 5);
	do_switch(w, 100, 1, "a", 10, "S", "swapper/1", 0);
	w->len = 0;
	/* sched_waking on the waker's CPU, the wakeup itself in an interrupt of the target's */
	do_wake(w, KNOWN_WAKING, 200, 0, 5, "a", 10, 1);
	do_wake(w, KNOWN_WAKEUP, 205, 1, 0, "a", 10, 1);
	do_switch(w, 230, 1, "swapper/1", 0, "R", "a", 10);
	expect(w, "state 1:a:10 100-205 Sleeping S\n"
		  "cpu 1:swapper/1:0 100-230 R preempted\n"
		  "switch 1:a:10 230-230\n"
		  "wake 1:a:10 205-230 by waker:5 on 0\n"
		  "state 1:a:10 205-230 Runnable\n");
}

static void waking_alone_is_enough(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "a", 10, "S", "b", 20);
	w->len = 0;
	do_wake(w, KNOWN_WAKING, 150, 0, 20, "a", 10, 0);
	do_switch(w, 200, 0, "b", 20, "R", "a", 10);
	expect(w, "cpu 0:b:20 100-200 R preempted\n"
		  "state 0:b:20 100-200 Running\n"
		  "switch 0:a:10 200-200\n"
		  "state 0:a:10 100-150 Sleeping S\n"
		  "wake 0:a:10 150-200 by b:20 on 0\n"
		  "state 0:a:10 150-200 Runnable\n");
}

static void a_new_task_is_marked(void **state)
{
	struct world *w = *state;
	struct event fork = begin(w, KNOWN_FORK, 100, 0, 1);

	set_name(w, &fork, FORK_PARENT_COMM, "sh");
	set_number(&fork, FORK_PARENT_PID, 1);
	set_name(w, &fork, FORK_CHILD_COMM, "sh");
	set_number(&fork, FORK_CHILD_PID, 50);
	feed(w, &fork);
	do_wake(w, KNOWN_WAKEUP_NEW, 110, 0, 1, "sh", 50, 1);
	do_switch(w, 120, 1, "swapper/1", 0, "R", "sh", 50);
	expect(w, "switch 1:sh:50 120-120\n"
		  "wake 1:sh:50 110-120 by :1 on 0 new\n"
		  "state 1:sh:50 110-120 Runnable new\n");
}

static void a_gap_cuts_what_went_on_there_and_nothing_else(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	do_switch(w, 100, 1, "swapper/1", 0, "R", "b", 20);
	do_irq(w, KNOWN_IRQ_ENTRY, 150, 0, 10, 7);
	do_wake(w, KNOWN_WAKING, 160, 0, 10, "x", 99, 0);
	w->len = 0;
	do_lost(w, 160, 400, 0, 12);
	expect(w, "irq 0:a:10 150-160 cut\n"
		  "cpu 0:a:10 100-160 cut\n"
		  "state 0:a:10 100-160 Running cut\n"
		  "gap 0::-1 160-400 12\n");
	do_switch(w, 400, 0, "c", 30, "S", "a", 10);
	do_switch(w, 450, 1, "b", 20, "S", "swapper/1", 0);
	expect(w, "switch 0:a:10 400-400\n"
		  "cpu 1:b:20 100-450 S\n"
		  "state 1:b:20 100-450 Running\n"
		  "switch 1:swapper/1:0 450-450\n");
	assert_int_equal(sched_state_stats(w->machine)->gaps, 1);
	assert_int_equal(sched_state_stats(w->machine)->lost, 12);
}

static void a_missing_switch_is_a_gap_too(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	do_wake(w, KNOWN_WAKING, 120, 0, 10, "x", 99, 0);
	w->len = 0;
	do_wake(w, KNOWN_WAKING, 200, 0, 30, "x", 98, 0); /* another task is on the CPU */
	expect(w, "cpu 0:a:10 100-120 cut\n"
		  "state 0:a:10 100-120 Running cut\n"
		  "gap 0::-1 120-200 0\n");
	assert_int_equal(sched_state_stats(w->machine)->switch_mismatch, 1);
}

static void renamed_between_switches_without_overlap(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "sh", 10);
	do_switch(w, 200, 0, "python3", 10, "S", "swapper/0", 0); /* exec in between */
	do_wake(w, KNOWN_WAKEUP, 250, 0, 0, "python3", 10, 0);
	do_switch(w, 260, 0, "swapper/0", 0, "R", "python3", 10);
	expect(w, "switch 0:sh:10 100-100\n"
		  "cpu 0:sh:10 100-200 S\n"
		  "state 0:sh:10 100-200 Running\n"
		  "switch 0:swapper/0:0 200-200\n"
		  "state 0:python3:10 200-250 Sleeping S\n"
		  "cpu 0:swapper/0:0 200-260 R preempted\n"
		  "switch 0:python3:10 260-260\n"
		  "wake 0:python3:10 250-260 by :0 on 0\n"
		  "state 0:python3:10 250-260 Runnable\n");
	assert_int_equal(sched_state_stats(w->machine)->renamed, 1);
}

static void a_pid_used_again_is_another_task(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "old", 10);
	do_switch(w, 200, 0, "old", 10, "X", "swapper/0", 0);
	expect(w, "switch 0:old:10 100-100\n"
		  "cpu 0:old:10 100-200 X\n"
		  "state 0:old:10 100-200 Running exited\n"
		  "switch 0:swapper/0:0 200-200\n");
	do_wake(w, KNOWN_WAKEUP_NEW, 300, 0, 0, "new", 10, 0);
	do_switch(w, 310, 0, "swapper/0", 0, "R", "new", 10);
	/* it did not sleep from 200 to 300: it was not there */
	expect(w, "cpu 0:swapper/0:0 200-310 R preempted\n"
		  "switch 0:new:10 310-310\n"
		  "wake 0:new:10 300-310 by :0 on 0 new\n"
		  "state 0:new:10 300-310 Runnable new\n");
}

static void interrupts_nest(void **state)
{
	struct world *w = *state;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	w->len = 0;
	do_irq(w, KNOWN_SOFTIRQ_ENTRY, 110, 0, 10, 3);
	do_irq(w, KNOWN_IRQ_ENTRY, 120, 0, 10, 40);
	do_irq(w, KNOWN_IRQ_EXIT, 130, 0, 10, 40);
	do_irq(w, KNOWN_SOFTIRQ_EXIT, 140, 0, 10, 3);
	expect(w, "irq 0:a:10 120-130\n"
		  "softirq 0:a:10 110-140\n");
	do_irq(w, KNOWN_IRQ_EXIT, 150, 0, 10, 40); /* its entry is missing */
	do_irq(w, KNOWN_SOFTIRQ_ENTRY, 160, 0, 10, 1);
	do_irq(w, KNOWN_IRQ_EXIT, 170, 0, 10, 41);
	do_irq(w, KNOWN_SOFTIRQ_EXIT, 180, 0, 10, 1);
	expect(w, "softirq 0:a:10 160-180\n");
	assert_int_equal(sched_state_stats(w->machine)->irq_unpaired, 2);
}

static void what_is_open_ends_with_the_trace(void **state)
{
	struct world *w = *state;

	do_wake(w, KNOWN_WAKING, 100, 0, 10, "x", 99, 0); /* 10 runs since before */
	do_switch(w, 200, 0, "a", 10, "S", "b", 20);
	do_irq(w, KNOWN_IRQ_ENTRY, 300, 0, 20, 7);
	do_wake(w, KNOWN_WAKING, 400, 0, 20, "x", 99, 0);
	w->len = 0;
	assert_int_equal(sched_state_finish(w->machine), 0);
	expect(w, "irq 0:b:20 300-400 open\n"
		  "cpu 0:b:20 200-400 open\n"
		  "state 0:a:10 200-400 Sleeping S open\n"
		  "state 0:b:20 200-400 Running open\n");
}

static void a_task_seen_in_the_middle_has_no_invented_begin(void **state)
{
	struct world *w = *state;

	do_wake(w, KNOWN_WAKING, 100, 0, 10, "x", 99, 0);
	do_switch(w, 200, 0, "a", 10, "S", "swapper/0", 0);
	expect(w, "cpu 0:a:10 100-200 S unseen\n"
		  "state 0:a:10 100-200 Running unseen\n"
		  "switch 0:swapper/0:0 200-200\n");
}

static void runtime_is_summed_per_run(void **state)
{
	struct world *w = *state;
	struct event ev;
	int i;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	for (i = 0; i < 2; i++) {
		ev = begin(w, KNOWN_STAT_RUNTIME, 150 + (uint64_t)i * 40, 0, 10);
		set_name(w, &ev, RUNTIME_COMM, "a");
		set_number(&ev, RUNTIME_PID, 10);
		set_number(&ev, RUNTIME_NS, 45);
		set_number(&ev, RUNTIME_VRUNTIME, 0);
		feed(w, &ev);
	}
	w->len = 0;
	do_switch(w, 200, 0, "a", 10, "S", "swapper/0", 0);
	expect(w, "cpu 0:a:10 100-200 S ran 90\n"
		  "state 0:a:10 100-200 Running\n"
		  "switch 0:swapper/0:0 200-200\n");
}

static void times_that_go_backwards_make_no_backward_span(void **state)
{
	struct world *w = *state;

	do_switch(w, 500, 0, "swapper/0", 0, "R", "a", 10);
	do_switch(w, 300, 0, "a", 10, "S", "b", 20);
	do_switch(w, 600, 0, "b", 20, "S", "swapper/0", 0);
	assert_int_equal(sched_state_stats(w->machine)->backwards, 1);
	assert_int_equal(sched_state_finish(w->machine), 0);
}

static void impossible_cpus_are_left_out(void **state)
{
	struct world *w = *state;

	do_switch(w, 500, 1 << 20, "swapper/0", 0, "R", "a", 10);
	do_switch(w, 600, -1, "swapper/0", 0, "R", "a", 10);
	assert_int_equal(sched_state_stats(w->machine)->bad_cpu, 2);
}

static void futex_calls_are_spans_of_the_task(void **state)
{
	struct world *w = *state;
	struct event ev;

	do_switch(w, 100, 0, "swapper/0", 0, "R", "a", 10);
	w->len = 0;
	ev = begin(w, KNOWN_FUTEX_EXIT, 110, 0, 10); /* entered before */
	feed(w, &ev);
	ev = begin(w, KNOWN_FUTEX_ENTER, 120, 0, 10);
	feed(w, &ev);
	ev = begin(w, KNOWN_FUTEX_EXIT, 170, 0, 10);
	feed(w, &ev);
	expect(w, "futex 0:a:10 120-170\n");
}

static void memory_does_not_grow_with_tasks_that_ended(void **state)
{
	struct world *w = *state;
	int32_t pid;

	for (pid = 1; pid < 20000; pid++) {
		uint64_t t_ns = (uint64_t)pid * 100;

		do_switch(w, t_ns, 0, "swapper/0", 0, "R", "a", pid);
		do_switch(w, t_ns + 50, 0, "a", pid, "Z", "swapper/0", 0);
		w->len = 0;
		*w->text = 0;
	}
	assert_int_equal(sched_state_finish(w->machine), 0);
	expect(w, ""); /* the last one ran idle for no time, and no task is left */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(preemption_keeps_a_task_runnable),
		TEST(each_kind_of_sleep_is_told),
		TEST(an_arrow_goes_from_the_waker_to_the_run),
		TEST(waking_alone_is_enough),
		TEST(a_new_task_is_marked),
		TEST(a_gap_cuts_what_went_on_there_and_nothing_else),
		TEST(a_missing_switch_is_a_gap_too),
		TEST(renamed_between_switches_without_overlap),
		TEST(a_pid_used_again_is_another_task),
		TEST(interrupts_nest),
		TEST(what_is_open_ends_with_the_trace),
		TEST(a_task_seen_in_the_middle_has_no_invented_begin),
		TEST(runtime_is_summed_per_run),
		TEST(times_that_go_backwards_make_no_backward_span),
		TEST(impossible_cpus_are_left_out),
		TEST(futex_calls_are_spans_of_the_task),
		TEST(memory_does_not_grow_with_tasks_that_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
