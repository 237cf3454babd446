/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lines of ftrace text in every form that kernels and trace-cmd print. */
#include "trace/ftrace_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The line's columns as one text, so that a row of a table is one expectation. */
static const char *columns(const char *text)
{
	static char out[512];
	struct ftrace_line line = { 0 };
	enum ftrace_line_kind kind = ftrace_line_parse(text, strlen(text), &line);

	if (kind == FLINE_LOST)
		snprintf(out, sizeof(out), "lost cpu=%d n=%llu", line.cpu, (unsigned long long)line.lost);
	else if (kind == FLINE_EVENT)
		snprintf(out, sizeof(out), "'%.*s' %d/%d [%d] %llu %.*s|%.*s", (int)line.comm_len, line.comm, line.pid,
			 line.tgid, line.cpu, (unsigned long long)line.t_ns, (int)line.event_len, line.event,
			 (int)line.text_len, line.text);
	else
		snprintf(out, sizeof(out), "kind %d", kind);
	return out;
}

static void event_lines(void **state)
{
	static const struct {
		const char *text, *want;
	} rows[] = {
		{ "          <idle>-0       [000] d.h1.   719.012490: softirq_raise: vec=9 [action=RCU]",
		  "'<idle>' 0/-1 [0] 719012490000 softirq_raise|vec=9 [action=RCU]" },
		{ "            bash-11018   (  11018) [000] d..2.   641.282503: sched_switch: a",
		  "'bash' 11018/11018 [0] 641282503000 sched_switch|a" },
		{ "          <idle>-0       (-------) [000] ..s1.   719.096511: softirq_entry: b",
		  "'<idle>' 0/-1 [0] 719096511000 softirq_entry|b" },
		/* flags column switched off */
		{ "         python3-12808   [001]    719.184472: softirq_raise: c",
		  "'python3' 12808/-1 [1] 719184472000 softirq_raise|c" },
		/* short uptime: padded time stamp behind the flags */
		{ "          <idle>-0       [000] d.h3.     5.746997: irq_handler_entry: d",
		  "'<idle>' 0/-1 [0] 5746997000 irq_handler_entry|d" },
		/* four flags, as kernels before 5.15 print */
		{ "            bash-1     [128] d..2   641.282503: sched_waking: e",
		  "'bash' 1/-1 [128] 641282503000 sched_waking|e" },
		/* names that look like columns */
		{ " a-b: c-12 [001]-14307   [001] d..2.   792.430932: sched_switch: f",
		  "'a-b: c-12 [001]' 14307/-1 [1] 792430932000 sched_switch|f" },
		{ "          tail--14312   [001] d..2.   792.430932: sched_switch: g",
		  "'tail-' 14312/-1 [1] 792430932000 sched_switch|g" },
		{ "  pt main thread-77      [001] d..2.   792.430932: sched_switch: h",
		  "'pt main thread' 77/-1 [1] 792430932000 sched_switch|h" },
		{ "           <...>-123     [001] .....   792.430932: sched_switch: i",
		  "'<...>' 123/-1 [1] 792430932000 sched_switch|i" },
		/* nanoseconds, whole numbers, and a clock that touches the bracket */
		{ "            bash-11018 [000]   641.282503123: sched_switch:         j",
		  "'bash' 11018/-1 [0] 641282503123 sched_switch|j" },
		{ "            bash-11018 [000]641282447279: sched_switch:         k",
		  "'bash' 11018/-1 [0] 641282447279 sched_switch|k" },
		{ "            bash-11018 [000] d..2. 1509556434262: sched_wakeup_new: l",
		  "'bash' 11018/-1 [0] 1509556434262 sched_wakeup_new|l" },
		/* an instance's prefix, a difference of times, pids above 2^22 */
		{ "inst:             bash-4294967 [000]   641.282503: sched_switch: m",
		  "'inst:             bash' 4294967/-1 [0] 641282503000 sched_switch|m" },
		{ "            bash-11018 [000]   641.282503: (+56)   sched_switch: n",
		  "'bash' 11018/-1 [0] 641282503000 sched_switch|n" },
		{ "            bash-11018 [000] .....   641.282503: sys_futex(uaddr: 7f, op: 80)",
		  "'bash' 11018/-1 [0] 641282503000 sys_futex|(uaddr: 7f, op: 80)" },
		{ "            bash-11018 [000] .....   641.282503: sys_futex -> 0x0",
		  "'bash' 11018/-1 [0] 641282503000 sys_futex| -> 0x0" },
		{ "            bash-11018 [000] .....   641.282503: tracing_mark_write: a: b",
		  "'bash' 11018/-1 [0] 641282503000 tracing_mark_write|a: b" },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_string_equal(columns(rows[i].text), rows[i].want);
}

static void other_lines(void **state)
{
	static const struct {
		const char *text;
		enum ftrace_line_kind kind;
	} rows[] = {
		{ "# tracer: nop", FLINE_HEADER },
		{ "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION", FLINE_HEADER },
		{ "cpus=2", FLINE_HEADER },
		{ "", FLINE_EMPTY },
		{ " => __schedule", FLINE_STACK },
		{ "           <...>-1     [001] d..2.   792.430932: <stack trace>", FLINE_STACK },
		{ "##### CPU 2 buffer started ####", FLINE_MARK },
		{ "CPU:0 [SUBBUFFER START]", FLINE_MARK },
		{ "  <idle>-0         0d..2. 17449us+: sched_switch: x", FLINE_LATENCY },
		{ "12809 0 719514066015 type: 372", FLINE_RAW },
		{ "            bash-11018 [000] .....   641.282503: schedule <-do_wait", FLINE_FUNCTION },
		{ " 0)   1.234 us    |  schedule();", FLINE_FUNCTION },
		{ "hello", FLINE_UNKNOWN },
		{ "sched_waking: comm=x pid=1 prio=120 target_cpu=000", FLINE_UNKNOWN },
	};
	struct ftrace_line line;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(ftrace_line_parse(rows[i].text, strlen(rows[i].text), &line), rows[i].kind);
	assert_string_equal(columns("CPU:1 [LOST 59108 EVENTS]"), "lost cpu=1 n=59108");
	assert_string_equal(columns("CPU:1 [LOST EVENTS]"), "lost cpu=1 n=0");
	assert_string_equal(columns("CPU:12 [58943 EVENTS DROPPED]"), "lost cpu=12 n=58943");
	assert_string_equal(columns("CPU:0 [EVENTS DROPPED]"), "lost cpu=0 n=0");
}

static void keys_from_the_right(void **state)
{
	static const char text[] = "comm=a pid=9 x pid=12 prio=120 target_cpu=003";
	size_t len = sizeof(text) - 1, value_len;
	const char *value;

	(void)state;
	assert_true(ftrace_key(text, &len, "target_cpu", &value, &value_len));
	assert_int_equal(ftrace_number(value, value_len, NULL), 3);
	assert_true(ftrace_key(text, &len, "prio", &value, &value_len));
	assert_int_equal(ftrace_number(value, value_len, NULL), 120);
	assert_true(ftrace_key(text, &len, "pid", &value, &value_len));
	assert_int_equal(ftrace_number(value, value_len, NULL), 12);
	assert_true(ftrace_key(text, &len, "comm", &value, &value_len));
	assert_int_equal(value_len, strlen("a pid=9 x"));
	assert_memory_equal(value, "a pid=9 x", value_len);
	assert_false(ftrace_key(text, &len, "comm", &value, &value_len));
	assert_int_equal(ftrace_number("-12 x", 5, NULL), -12);
	assert_int_equal(ftrace_number("0x1F", 4, NULL), 31);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(event_lines),
		cmocka_unit_test(other_lines),
		cmocka_unit_test(keys_from_the_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
