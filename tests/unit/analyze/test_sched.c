/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums of small scheduling traces against values worked out by hand, and the histogram against sorting. */
#include "analyze/keymap.h"
#include "analyze/sched.h"
#include "trace/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- histogram, keys ------------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* values over the whole range of 64 bits: each percentile is near the one found by sorting */
static void test_hist_equals_sorting(void **state)
{
	static const double shares[] = { 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1 };
	static uint64_t values[5000];
	struct sched_hist hist = { 0 };
	uint64_t seed = 1, want, got;
	size_t i, k;

	for (i = 0; i < 5000; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		values[i] = seed >> (seed >> 58);
		assert_int_equal(sched_hist_add(&hist, values[i]), 0);
	}
	qsort(values, 5000, sizeof(values[0]), by_value);
	for (i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		k = (size_t)(shares[i] * 5000);
		want = values[k ? k - 1 : 0];
		got = sched_hist_share(&hist, shares[i]);
		assert_true((double)got >= (double)want * (1 - SCHED_HIST_ERROR_PCT / 100) - 0.5);
		assert_true((double)got <= (double)want * (1 + SCHED_HIST_ERROR_PCT / 100) + 0.5);
	}
	assert_int_equal(hist.max_ns, values[4999]);
	assert_int_equal(hist.min_ns, values[0]);
	assert_int_equal(hist.count, 5000);
	sched_hist_fini(&hist);
}

static void test_hist_small_values_are_exact(void **state)
{
	struct sched_hist hist = { 0 };
	uint64_t i;

	assert_int_equal(sched_hist_share(&hist, 0.5), 0);
	for (i = 0; i < 128; i++)
		sched_hist_add(&hist, i);
	for (i = 1; i <= 128; i++)
		assert_int_equal(sched_hist_share(&hist, (double)i / 128), i - 1);
	sched_hist_fini(&hist);
}

static void test_hist_merge_is_adding_all(void **state)
{
	struct sched_hist one = { 0 }, two = { 0 }, all = { 0 };
	uint64_t i;

	for (i = 0; i < 1000; i++) {
		sched_hist_add(i % 3 ? &one : &two, i * i * 77);
		sched_hist_add(&all, i * i * 77);
	}
	assert_int_equal(sched_hist_merge(&one, &two), 0);
	assert_int_equal(one.count, all.count);
	assert_int_equal(one.sum_ns, all.sum_ns);
	assert_int_equal(one.min_ns, all.min_ns);
	assert_int_equal(one.max_ns, all.max_ns);
	for (i = 0; i <= 100; i++)
		assert_int_equal(sched_hist_share(&one, (double)i / 100), sched_hist_share(&all, (double)i / 100));
	sched_hist_fini(&one);
	sched_hist_fini(&two);
	sched_hist_fini(&all);
}

static void test_keymap_counts_up(void **state)
{
	struct keymap map = { 0 };
	struct keymap_key key = { { 0 } };
	int fresh;
	uint32_t i;

	assert_int_equal(keymap_find(&map, &key), -1);
	for (i = 0; i < 20000; i++) {
		key = (struct keymap_key){ { i % 7, i, ~i, 3 } };
		assert_int_equal(keymap_place(&map, &key, &fresh), i);
		assert_int_equal(fresh, 1);
	}
	for (i = 0; i < 20000; i++) {
		key = (struct keymap_key){ { i % 7, i, ~i, 3 } };
		assert_int_equal(keymap_place(&map, &key, &fresh), i);
		assert_int_equal(fresh, 0);
	}
	key.part[3] = 4;
	assert_int_equal(keymap_find(&map, &key), -1);
	keymap_fini(&map);
}

/* ---- traces ----------------------------------------------------------------------------------------------------------- */

struct fixture {
	char path[64];
	struct ev_session *session;
	struct sched_sum *sum;
	const struct sched_result *result;
};

/* Read a trace given as ftrace text. */
static void read_trace(struct fixture *fx, const char *text, const struct sched_options *options)
{
	struct st_err err = { 0 };
	struct ev_reader *reader;
	struct event ev;
	int fd;

	strcpy(fx->path, "/tmp/st-sched-XXXXXX");
	fd = mkstemp(fx->path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	fx->session = ev_session_new();
	fx->sum = sched_new(fx->session, options);
	reader = ev_open(fx->session, fx->path, &err);
	assert_non_null(reader);
	while (ev_next(reader, &ev, &err) > 0)
		if (sched_event(fx->sum, &ev))
			break;
	ev_close(reader);
	unlink(fx->path);
	fx->result = sched_finish(fx->sum);
	assert_non_null(fx->result);
}

static void drop(struct fixture *fx)
{
	sched_free(fx->sum);
	ev_session_free(fx->session);
}

static const struct sched_row *row_of(const struct sched_row *rows, size_t count, int32_t pid, int32_t cpu)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (rows[i].pid == pid && (cpu == -2 || rows[i].cpu == cpu))
			return &rows[i];
	fail_msg("no row of pid %d", pid);
	return NULL;
}

static const struct sched_row *pid_row(const struct fixture *fx, int32_t pid)
{
	return row_of(fx->result->pids, fx->result->pid_count, pid, -2);
}

/*
 * CPU 0: idle 10 us, a, preempted inside the kernel by c, which sleeps; a goes to D; idle; woken by b on CPU 1 it waits
 * 100 us; leaves for d without a kernel preemption; ends asleep. An irq and a softirq hit c.
 */
static const char story[] =
	"# tracer: nop\n"
	"          <idle>-0       [000] d..2.   100.000000: sched_wakeup: comm=a pid=10 prio=120 target_cpu=000\n"
	"          <idle>-0       [000] d..2.   100.000010: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 "
	"prev_state=R ==> next_comm=a next_pid=10 next_prio=120\n"
	"          <idle>-0       [001] d..2.   100.000020: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 "
	"prev_state=R ==> next_comm=b next_pid=20 next_prio=120\n"
	"               a-10      [000] d..2.   100.000100: sched_switch: prev_comm=a prev_pid=10 prev_prio=120 "
	"prev_state=R+ ==> next_comm=c next_pid=30 next_prio=120\n"
	"               c-30      [000] d.h1.   100.000150: irq_handler_entry: irq=7 name=eth0\n"
	"               c-30      [000] d.h1.   100.000160: irq_handler_exit: irq=7 ret=handled\n"
	"               c-30      [000] ..s1.   100.000170: softirq_entry: vec=3 [action=NET_RX]\n"
	"               c-30      [000] ..s1.   100.000200: softirq_exit: vec=3 [action=NET_RX]\n"
	"               c-30      [000] d..2.   100.000300: sched_switch: prev_comm=c prev_pid=30 prev_prio=120 "
	"prev_state=S ==> next_comm=a next_pid=10 next_prio=120\n"
	"               a-10      [000] d..2.   100.000400: sched_switch: prev_comm=a prev_pid=10 prev_prio=120 "
	"prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
	"               b-20      [001] d..3.   100.000500: sched_waking: comm=a pid=10 prio=120 target_cpu=000\n"
	"               b-20      [001] d..3.   100.000500: sched_wakeup: comm=a pid=10 prio=120 target_cpu=000\n"
	"          <idle>-0       [000] d..2.   100.000600: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 "
	"prev_state=R ==> next_comm=a next_pid=10 next_prio=120\n"
	"               a-10      [000] d..2.   100.000700: sched_switch: prev_comm=a prev_pid=10 prev_prio=120 "
	"prev_state=R ==> next_comm=d next_pid=40 next_prio=120\n"
	"               d-40      [000] d..2.   100.000900: sched_switch: prev_comm=d prev_pid=40 prev_prio=120 "
	"prev_state=S ==> next_comm=a next_pid=10 next_prio=120\n"
	"               a-10      [000] d..2.   100.001000: sched_switch: prev_comm=a prev_pid=10 prev_prio=120 "
	"prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
	"               b-20      [001] d..2.   100.001100: sched_switch: prev_comm=b prev_pid=20 prev_prio=120 "
	"prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n";

static void test_times_and_switches(void **state)
{
	struct fixture fx;
	const struct sched_row *a;

	read_trace(&fx, story, &(struct sched_options){ .top = 3 });
	a = pid_row(&fx, 10);
	assert_string_equal(ev_text(fx.session, a->comm), "a");
	assert_int_equal(a->ns[SCHED_RUNNING], 390000);
	assert_int_equal(a->ns[SCHED_RUNNABLE], 510000);
	assert_int_equal(a->preempted_ns, 400000);
	assert_int_equal(a->ns[SCHED_SLEEP_D], 100000);
	assert_int_equal(a->ns[SCHED_SLEEP_S], 100000);
	assert_int_equal(a->ns[SCHED_SLEEP_OTHER], 0);
	assert_int_equal(a->switches, 4);
	assert_int_equal(a->involuntary, 2);
	assert_int_equal(a->preempted, 1);
	assert_int_equal(a->latency.count, 2);
	assert_in_range(sched_hist_share(&a->latency, 0.5), 9921, 10079);
	assert_int_equal(a->latency.max_ns, 100000);
	assert_int_equal(fx.result->pid_count, 4);
	assert_int_equal(fx.result->all.switches, 7);
	drop(&fx);
}

static void test_cpu_totals_are_the_span(void **state)
{
	struct fixture fx;
	const struct sched_cpu *cpus;

	read_trace(&fx, story, &(struct sched_options){ 0 });
	cpus = fx.result->cpus;
	assert_int_equal(fx.result->cpu_count, 2);
	assert_int_equal(fx.result->end_ns - fx.result->begin_ns, 1100000);
	assert_int_equal(cpus[0].busy_ns, 790000);
	assert_int_equal(cpus[0].idle_ns, 310000);
	assert_int_equal(cpus[0].unknown_ns, 0);
	assert_int_equal(cpus[0].waiting_ns, 510000);
	assert_int_equal(cpus[1].busy_ns, 1080000);
	assert_int_equal(cpus[1].unknown_ns, 20000);
	assert_int_equal(cpus[0].irq_count[SCHED_IRQ], 1);
	assert_int_equal(cpus[0].irq_ns[SCHED_SOFTIRQ], 30000);
	drop(&fx);
}

static void test_interrupts_by_name_and_task(void **state)
{
	struct fixture fx;
	const struct sched_row *c;

	read_trace(&fx, story, &(struct sched_options){ 0 });
	c = pid_row(&fx, 30);
	assert_int_equal(c->irq_count[SCHED_IRQ], 1);
	assert_int_equal(c->irq_ns[SCHED_IRQ], 10000);
	assert_int_equal(c->irq_ns[SCHED_SOFTIRQ], 30000);
	assert_int_equal(fx.result->irq_count, 2);
	assert_string_equal(ev_text(fx.session, fx.result->irqs[0].label), "NET_RX");
	assert_int_equal(fx.result->irqs[0].pid, 30);
	assert_int_equal(fx.result->irqs[0].ns, 30000);
	assert_string_equal(ev_text(fx.session, fx.result->irqs[1].label), "eth0");
	assert_int_equal(fx.result->irqs[1].cpu, 0);
	assert_int_equal(fx.result->irq_name_count, 2);
	drop(&fx);
}

static void test_preemptions_and_waits(void **state)
{
	struct fixture fx;
	const struct sched_pair *pairs;
	const struct sched_wait *waits;

	read_trace(&fx, story, &(struct sched_options){ .top = 3 });
	pairs = fx.result->pairs;
	assert_int_equal(fx.result->pair_count, 2);
	assert_int_equal(pairs[0].victim, 10);
	assert_int_equal(pairs[0].by, 30);
	assert_int_equal(pairs[0].waited_ns, 200000);
	assert_int_equal(pairs[1].by, 40);
	assert_int_equal(pairs[1].waited_ns, 200000);
	assert_int_equal(fx.result->victim_count, 1);
	assert_int_equal(fx.result->victims[0].count, 2);
	assert_int_equal(fx.result->victims[0].waited_ns, 400000);
	assert_int_equal(fx.result->preempter_count, 2);
	waits = fx.result->waits;
	assert_int_equal(fx.result->wait_count, 3); /* the fourth, 10 us, is the shortest */
	assert_int_equal(waits[0].begin_ns, 100000100000);
	assert_int_equal(waits[0].end_ns, 100000300000);
	assert_string_equal(sched_wait_word(&waits[0]), "preempted");
	assert_string_equal(sched_wait_end_word(&waits[0]), "ran");
	assert_int_equal(waits[0].by, 30);
	assert_int_equal(waits[0].before, 30);
	assert_int_equal(waits[1].by, 40);
	assert_string_equal(sched_wait_word(&waits[2]), "woken");
	assert_int_equal(waits[2].end_ns - waits[2].begin_ns, 100000);
	assert_int_equal(waits[2].by, 20);
	assert_int_equal(waits[2].before, 0);
	assert_int_equal(waits[2].ran_cpu, 0);
	drop(&fx);
}

/* from the middle of a's first run to the middle of its second */
static void test_window(void **state)
{
	struct fixture fx;
	const struct sched_row *a;

	read_trace(&fx, story, &(struct sched_options){ .from_ns = 50000, .to_ns = 350000 });
	a = pid_row(&fx, 10);
	assert_int_equal(a->ns[SCHED_RUNNING], 100000);
	assert_int_equal(a->ns[SCHED_RUNNABLE], 200000);
	assert_int_equal(a->switches, 1);
	assert_int_equal(a->latency.count, 0);
	assert_int_equal(fx.result->cpus[0].busy_ns, 300000);
	assert_int_equal(fx.result->cpus[0].idle_ns, 0);
	assert_int_equal(fx.result->cpus[1].busy_ns, 300000);
	assert_int_equal(fx.result->irq_names[0].count, 1);
	drop(&fx);
}

static void test_window_behind_the_end(void **state)
{
	struct fixture fx;

	read_trace(&fx, story, &(struct sched_options){ .from_ns = 2000000 });
	assert_true(fx.result->begin_ns > fx.result->end_ns);
	assert_int_equal(fx.result->task_count, 0);
	drop(&fx);
}

static void test_filters(void **state)
{
	struct fixture fx;

	read_trace(&fx, story, &(struct sched_options){ .pids = "30,40", .cpus = "0" });
	assert_int_equal(fx.result->pid_count, 2);
	assert_int_equal(fx.result->cpu_count, 1);
	assert_int_equal(fx.result->cpus[0].busy_ns, 790000);
	assert_int_equal(pid_row(&fx, 30)->ns[SCHED_RUNNING], 200000);
	assert_int_equal(fx.result->pair_count, 2); /* they are the preempters */
	assert_int_equal(fx.result->wait_count, 0);
	drop(&fx);
	read_trace(&fx, story, &(struct sched_options){ .cpus = "1" });
	assert_int_equal(fx.result->cpu_count, 1);
	assert_int_equal(fx.result->pid_count, 1);
	assert_int_equal(fx.result->pids[0].pid, 20);
	drop(&fx);
}

/* one task on two CPUs under two names: a row each, one row by pid, two commands */
static void test_groups(void **state)
{
	static const char text[] =
		"           <...>-5       [000] d..2.     1.000000: sched_switch: prev_comm=x prev_pid=5 prev_prio=120 "
		"prev_state=R ==> next_comm=z next_pid=9 next_prio=120\n"
		"          <idle>-0       [001] d..2.     1.000100: sched_switch: prev_comm=swapper/1 prev_pid=0 "
		"prev_prio=120 prev_state=R ==> next_comm=x next_pid=5 next_prio=120\n"
		"               x-5       [001] d..2.     1.000200: sched_switch: prev_comm=y prev_pid=5 prev_prio=120 "
		"prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n"
		"          <idle>-0       [001] d..2.     1.000300: sched_wakeup: comm=y pid=5 prio=120 target_cpu=001\n"
		"          <idle>-0       [001] d..2.     1.000300: sched_switch: prev_comm=swapper/1 prev_pid=0 "
		"prev_prio=120 prev_state=R ==> next_comm=y next_pid=5 next_prio=120\n"
		"               y-5       [001] d..2.     1.000450: sched_switch: prev_comm=y prev_pid=5 prev_prio=120 "
		"prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n";
	struct fixture fx;
	const struct sched_row *five;
	size_t i;

	read_trace(&fx, text, &(struct sched_options){ 0 });
	five = pid_row(&fx, 5);
	assert_string_equal(ev_text(fx.session, five->comm), "y");
	assert_int_equal(five->members, 2);
	assert_int_equal(five->cpu, -1);
	assert_int_equal(five->ns[SCHED_RUNNING], 250000);
	assert_int_equal(five->switches, 3); /* the trace's first event counts */
	assert_int_equal(five->involuntary, 1);
	assert_int_equal(fx.result->pair_count, 1);
	assert_int_equal(five->latency.max_ns, 0);
	assert_int_equal(five->latency.count, 1);
	assert_int_equal(fx.result->comm_count, 3); /* x, y, z */
	for (i = 0; i < fx.result->comm_count; i++)
		assert_int_equal(fx.result->comms[i].members, 1);
	drop(&fx);
}

/* what happened in a gap is not counted for anybody */
static void test_lost_events(void **state)
{
	static const char text[] =
		"          <idle>-0       [000] d..2.     1.000000: sched_switch: prev_comm=swapper/0 prev_pid=0 "
		"prev_prio=120 prev_state=R ==> next_comm=x next_pid=5 next_prio=120\n"
		"               x-5       [000] d..2.     1.000100: sched_stat_runtime: comm=x pid=5 runtime=100000 [ns]\n"
		"CPU:0 [LOST 12 EVENTS]\n"
		"               x-5       [000] d..2.     1.000300: sched_switch: prev_comm=x prev_pid=5 prev_prio=120 "
		"prev_state=S ==> next_comm=y next_pid=6 next_prio=120\n"
		"               y-6       [000] d..2.     1.000400: sched_switch: prev_comm=y prev_pid=6 prev_prio=120 "
		"prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n";
	struct fixture fx;
	const struct sched_cpu *cpu;

	read_trace(&fx, text, &(struct sched_options){ 0 });
	cpu = &fx.result->cpus[0];
	assert_int_equal(pid_row(&fx, 5)->ns[SCHED_RUNNING], 100000);
	assert_int_equal(cpu->gaps, 1);
	assert_int_equal(cpu->lost, 12);
	assert_int_equal(cpu->gap_ns, 200000);
	assert_int_equal(cpu->longest_gap_at_ns, 1000100000);
	assert_int_equal(cpu->busy_ns + cpu->idle_ns + cpu->gap_ns + cpu->unknown_ns, 400000);
	assert_int_equal(fx.result->machine.lost, 12);
	drop(&fx);
}

/* what the kernel accounts stands beside what the switches say */
static void test_accounted(void **state)
{
	static const char text[] =
		"          <idle>-0       [000] d..2.     1.000000: sched_switch: prev_comm=swapper/0 prev_pid=0 "
		"prev_prio=120 prev_state=R ==> next_comm=x next_pid=5 next_prio=120\n"
		"               x-5       [000] d..2.     1.000100: sched_stat_runtime: comm=x pid=5 runtime=90000 [ns]\n"
		"               x-5       [000] d..2.     1.000300: sched_stat_runtime: comm=x pid=5 runtime=180000 [ns]\n"
		"               x-5       [000] d..2.     1.000301: sched_switch: prev_comm=x prev_pid=5 prev_prio=120 "
		"prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n";
	struct fixture fx;

	read_trace(&fx, text, &(struct sched_options){ 0 });
	assert_int_equal(pid_row(&fx, 5)->accounted_ns, 270000);
	assert_int_equal(pid_row(&fx, 5)->ns[SCHED_RUNNING], 301000);
	assert_int_equal(fx.result->all.accounted_ns, 270000);
	drop(&fx);
}

/* a damaged wake-up names a CPU that cannot be: no table grows to it */
static void test_impossible_cpu(void **state)
{
	static const char text[] =
		"          <idle>-0       [000] d..2.     1.000000: sched_wakeup: comm=x pid=5 prio=120 "
		"target_cpu=2147483647\n"
		"          <idle>-0       [000] d..2.     1.000100: sched_switch: prev_comm=swapper/0 prev_pid=0 "
		"prev_prio=120 prev_state=R ==> next_comm=x next_pid=5 next_prio=120\n";
	struct fixture fx;

	read_trace(&fx, text, &(struct sched_options){ 0 });
	assert_int_equal(fx.result->cpu_count, 1);
	assert_int_equal(pid_row(&fx, 5)->ns[SCHED_RUNNABLE], 100000);
	drop(&fx);
}

/* the heap keeps the longest of many waits, in order */
static void test_longest_waits(void **state)
{
	struct ev_session *session = ev_session_new();
	struct sched_sum *sum = sched_new(session, &(struct sched_options){ .top = 7 });
	struct sched_span span = { .kind = SPAN_STATE, .state = TASK_RUNNABLE, .pid = 1, .cpu = 0, .comm = 1 };
	const struct sched_result *result;
	uint64_t i;

	sched_begin(sum, 0, 1u << 30);
	for (i = 0; i < 1000; i++) {
		span.begin_ns = i * 100000;
		span.end_ns = span.begin_ns + 1 + i * 7919 % 1000;
		assert_int_equal(sched_span_add(sum, &span), 0);
	}
	result = sched_finish(sum);
	assert_int_equal(result->wait_count, 7);
	for (i = 0; i < 7; i++)
		assert_int_equal(result->waits[i].end_ns - result->waits[i].begin_ns, 1000 - i);
	sched_free(sum);
	ev_session_free(session);
}

static void test_json_of_odd_names(void **state)
{
	struct fixture fx;
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	read_trace(&fx,
		   "          <idle>-0       [000] d..2.     1.000000: sched_switch: prev_comm=swapper/0 prev_pid=0 "
		   "prev_prio=120 prev_state=R ==> next_comm=a\"b\\ c next_pid=5 next_prio=120\n"
		   "               a-5       [000] d..2.     1.000100: sched_switch: prev_comm=a\"b\\ c prev_pid=5 "
		   "prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n",
		   &(struct sched_options){ 0 });
	sched_json(out, fx.result, fx.session, "in\"put");
	fclose(out);
	assert_non_null(strstr(text, "\"comm\":\"a\\\"b\\\\ c\",\"pid\":5"));
	assert_non_null(strstr(text, "{\"input\":\"in\\\"put\""));
	assert_string_equal(text + len - 3, "]}\n");
	free(text);
	drop(&fx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hist_equals_sorting),
		cmocka_unit_test(test_hist_small_values_are_exact),
		cmocka_unit_test(test_hist_merge_is_adding_all),
		cmocka_unit_test(test_keymap_counts_up),
		cmocka_unit_test(test_times_and_switches),
		cmocka_unit_test(test_cpu_totals_are_the_span),
		cmocka_unit_test(test_interrupts_by_name_and_task),
		cmocka_unit_test(test_preemptions_and_waits),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_window_behind_the_end),
		cmocka_unit_test(test_filters),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_lost_events),
		cmocka_unit_test(test_accounted),
		cmocka_unit_test(test_impossible_cpu),
		cmocka_unit_test(test_longest_waits),
		cmocka_unit_test(test_json_of_odd_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
