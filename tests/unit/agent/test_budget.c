/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The overhead budget: what a window costs, and a plugin that backs off level by level until it is switched off. */
#include "agent/agent.h"
#include "agent/budget.h"
#include "agent/env.h"
#include "agent/io_thread.h"
#include "agent/plugin_frame.h"
#include "agent/threads.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#define SECOND 1000000000ull

/* ---- what the frame stands on, in the test's hands ------------------------------------------------------------------ */

struct agent agent;
struct env env;
static uint64_t clock_now, io_cpu_ns, process_cpu_ns, plugin_calls, io_records, io_bytes;
static unsigned started, stopped, backed_off, levels, flushes;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	uint64_t ns = id == CLOCK_PROCESS_CPUTIME_ID ? process_cpu_ns : clock_now;

	ts->tv_sec = (time_t)(ns / SECOND);
	ts->tv_nsec = (long)(ns % SECOND);
	return 0;
}

void agent_record(enum agent_reason reason)
{
}

uint32_t io_ask(unsigned wishes)
{
	flushes += wishes == IO_FLUSH;
	return 1;
}

void io_status(struct io_status *status)
{
	memset(status, 0, sizeof(*status));
	status->drain.records = io_records;
	status->drain.bytes = io_bytes;
}

uint64_t thread_cpu_ns(enum thread_id id)
{
	return id == THREAD_IO ? io_cpu_ns : 0;
}

static int fake_start(const struct plugin_args *args, struct st_err *err)
{
	started++;
	return 0;
}

static void fake_stop(void)
{
	stopped++;
}

static uint64_t fake_calls(void)
{
	return plugin_calls;
}

static int fake_back_off(unsigned int level, char *what, size_t room)
{
	if (level > levels)
		return -ERANGE;
	backed_off = level;
	snprintf(what, room, "level %u", level);
	return 0;
}

const struct plugin plugin_io = { .id = PLUGIN_IO }; /* rows of the table; not used here */
const struct plugin plugin_mutex = { .id = PLUGIN_MUTEX };
const struct plugin plugin_gil = { .id = PLUGIN_GIL };
const struct plugin plugin_memory = { .id = PLUGIN_MEMORY };

const struct plugin plugin_mspti = {
	.id = PLUGIN_MSPTI,
	.start = fake_start,
	.stop = fake_stop,
	.calls = fake_calls,
	.back_off = fake_back_off,
};

static int fresh(void **state)
{
	size_t bytes = pool_area_bytes(64);
	void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static struct pool_guard guard;
	struct st_err err = { 0 };

	if (area == MAP_FAILED)
		return -1;
	pool_format(area, 64);
	if (pool_attach(&agent.pool, area, bytes, &guard))
		return -1;
	clock_now = 1000 * SECOND;
	io_cpu_ns = process_cpu_ns = plugin_calls = io_records = io_bytes = 0;
	started = stopped = backed_off = flushes = 0;
	levels = 2;
	env.budget_pct = 1;
	return plugin_frame_enable(PLUGIN_MSPTI, NULL, 0, &err);
}

static struct plugin_frame_status second(uint64_t calls, uint64_t io_ns, uint64_t records);

/* Past the first second, which is not judged. */
static int settled(void **state)
{
	int ret = fresh(state);

	second(0, 0, 0);
	return ret;
}

static int end(void **state)
{
	plugin_frame_stop_all();
	return munmap(agent.pool.head, pool_area_bytes(64));
}

/* One second in which the plugin made @calls and the io thread took @io_ns for @records. */
static struct plugin_frame_status second(uint64_t calls, uint64_t io_ns, uint64_t records)
{
	struct plugin_frame_status status;

	clock_now += SECOND;
	plugin_calls += calls;
	io_cpu_ns += io_ns;
	io_records += records;
	io_bytes += records * 100;
	plugin_frame_tick(clock_now);
	plugin_frame_status(PLUGIN_MSPTI, &status);
	return status;
}

/* Notes in the pool, as texts one behind the other. */
static const char *notes(void)
{
	static char text[1024];
	uint32_t id, used = atomic_load(&agent.pool.head->names_used);
	size_t len = 0;

	for (id = 1; id < used; id += (uint32_t)strlen(pool_name(agent.pool.head, id)) + 1)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s\n", pool_name(agent.pool.head, id));
	text[len] = 0;
	return text;
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

static void within_the_budget_nothing_happens(void **state)
{
	struct plugin_frame_status status;
	int i;

	for (i = 0; i < 10; i++)
		status = second(100, 9000000, 100); /* 0.9 % */
	assert_int_equal(status.state, FRAME_ON);
	assert_string_equal(status.backed_off, "");
	assert_int_equal(status.calls, 1000);
	assert_int_equal(status.bytes, 100000);
	assert_int_equal(status.cost_ns, 90000000 + 1000 * budget_call_ns());
	assert_true(status.cost_pct > 0.89 && status.cost_pct < 0.91);
	assert_int_equal(stopped, 0);
}

static void above_it_the_plugin_backs_off_and_stops_at_last(void **state)
{
	struct plugin_frame_status status = second(100, 20000000, 100);

	assert_int_equal(backed_off, 1);
	assert_string_equal(status.backed_off, "level 1");
	status = second(100, 5000000, 100); /* that helped */
	assert_int_equal(backed_off, 1);
	assert_int_equal(status.state, FRAME_ON);
	second(100, 20000000, 100);
	assert_int_equal(backed_off, 2);
	assert_int_equal(stopped, 0);
	flushes = 0;
	status = second(100, 20000000, 100);
	assert_int_equal(status.state, FRAME_OFF);
	assert_string_equal(status.backed_off, "switched off");
	assert_int_equal(stopped, 1);
	assert_int_equal(flushes, 1);
	second(100, 20000000, 100);
	assert_int_equal(stopped, 1);
	assert_non_null(strstr(notes(),
			       "MSPTI took 2.000 % of the process's time, more than SYSTRACE_BUDGET_PCT=1: level 1\n"));
	assert_non_null(strstr(notes(), ": level 2\n"));
	assert_non_null(strstr(notes(), ": switched off\n"));
}

/* Switching on costs the io thread something once: the pool grows. */
static void the_first_second_is_not_judged(void **state)
{
	struct plugin_frame_status status = second(100, 50000000, 100);

	assert_true(status.cost_pct > 4.9);
	assert_int_equal(backed_off, 0);
	second(100, 50000000, 100);
	assert_int_equal(backed_off, 1);
}

static void a_new_request_begins_at_the_top(void **state)
{
	struct plugin_frame_status status;
	struct st_err err = { 0 };

	second(100, 20000000, 100);
	assert_int_equal(plugin_frame_enable(PLUGIN_MSPTI, NULL, 0, &err), 0);
	plugin_frame_status(PLUGIN_MSPTI, &status);
	assert_string_equal(status.backed_off, "");
	backed_off = 0;
	second(100, 20000000, 100);
	assert_int_equal(backed_off, 1);
}

/* The io thread writes for others as well, and a process with many busy threads may spend more. */
static void only_its_own_part_counts(void **state)
{
	struct plugin_frame_status status = second(10, 20000000, 100); /* a tenth of 2 % */

	assert_true(status.cost_pct > 0.19 && status.cost_pct < 0.21);
	assert_int_equal(backed_off, 0);
	status = second(0, 500000000, 1000);
	assert_true(status.cost_pct < 0.001);
	process_cpu_ns += 8 * SECOND;
	status = second(100, 40000000, 100); /* 4 % of the second, 0.5 % of the processor time */
	assert_true(status.cost_pct > 0.49 && status.cost_pct < 0.51);
	assert_int_equal(backed_off, 0);
}

static void a_window_is_a_second(void **state)
{
	struct budget budget;
	struct budget_use use;

	budget_begin(&budget, 0);
	io_cpu_ns += SECOND;
	clock_now += SECOND - 1;
	assert_false(budget_window(&budget, 10, &use));
	clock_now += 1;
	assert_true(budget_window(&budget, 10, &use));
	assert_int_equal(use.calls, 10);
	assert_false(budget_window(&budget, 20, &use));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, settled, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_first_second_is_not_judged, fresh, end),
		TEST(within_the_budget_nothing_happens),
		TEST(above_it_the_plugin_backs_off_and_stops_at_last),
		TEST(a_new_request_begins_at_the_top),
		TEST(only_its_own_part_counts),
		TEST(a_window_is_a_second),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
