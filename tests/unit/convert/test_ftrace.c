/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Parts of convert ftrace that files do not reach easily: the external sort in all its passes, axes, escaping, locks. */
#include "convert/ftrace_sink.h"
#include "convert/ftrace_sort.h"
#include "trace/ftrace_known.h"
#include "trace/mmap_lock.h"
#include "trace/session.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- sort ----------------------------------------------------------------------------------------------------------- */

static void check_sort(size_t rows, size_t run_rows, size_t max_runs)
{
	struct frow_sort *sort = frow_sort_new("/tmp/st-sort-test", NULL);
	struct frow row = { 0 }, before = { 0 };
	uint32_t seed = 7;
	uint64_t sum = 0, got_sum = 0;
	size_t i, got = 0;

	assert_non_null(sort);
	frow_sort_limit(sort, run_rows, max_runs);
	for (i = 0; i < rows; i++) {
		seed = seed * 1664525u + 1013904223u;
		row.begin_ns = seed >> 20; /* many are equal */
		row.end_ns = row.begin_ns + (seed >> 8 & 3);
		row.track = (uint32_t)i;
		sum += row.begin_ns * (i + 1);
		assert_int_equal(frow_sort_put(sort, &row), 0);
	}
	assert_int_equal(frow_sort_done(sort), 0);
	while (frow_sort_next(sort, &row) == 1) {
		if (got) {
			assert_true(row.begin_ns >= before.begin_ns);
			if (row.begin_ns == before.begin_ns) {
				assert_true(row.end_ns <= before.end_ns);
				if (row.end_ns == before.end_ns)
					assert_true(row.track > before.track); /* as they were put */
			}
		}
		before = row;
		got_sum += row.begin_ns * (row.track + 1);
		got++;
	}
	assert_int_equal(got, rows);
	assert_int_equal(sum, got_sum);
	assert_int_equal(frow_sort_next(sort, &row), 0);
	frow_sort_free(sort);
}

static void sorts_in_memory_in_runs_and_in_passes(void **state)
{
	check_sort(0, 0, 0);
	check_sort(1, 0, 0);
	check_sort(5000, 0, 0);
	check_sort(5000, 100, 0); /* 50 runs */
	check_sort(5000, 5000, 0); /* just full */
	check_sort(5001, 5000, 0);
	check_sort(5000, 10, 4); /* runs are joined again and again */
	check_sort(5000, 1, 2);
}

static void a_directory_that_is_not_there_is_named(void **state)
{
	struct st_err err = { 0 };

	assert_null(frow_sort_new("/nonexistent/x.db", &err));
	assert_non_null(strstr(err.text, "/nonexistent/x.db"));
	assert_int_equal(err.code, -ENOENT);
}

/* ---- axis ----------------------------------------------------------------------------------------------------------- */

static void axes_keep_nanoseconds(void **state)
{
	struct ftrace_axis axis = { 0 };

	assert_int_equal(ftrace_axis_map(&axis, 12345), 12345);
	axis.points = 1;
	axis.at[0].trace_ns = 8719641548578;
	axis.at[0].wall_ns = 1700902984041176000;
	assert_int_equal(ftrace_axis_map(&axis, 8719641548579), 1700902984041176001);
	assert_int_equal(ftrace_axis_map(&axis, 8719641548577), 1700902984041175999);
	axis.points = 2;
	axis.at[1].trace_ns = axis.at[0].trace_ns + 1000000000;
	axis.at[1].wall_ns = axis.at[0].wall_ns + 1000010000; /* 10 ppm */
	assert_int_equal(ftrace_axis_map(&axis, axis.at[0].trace_ns), axis.at[0].wall_ns);
	assert_int_equal(ftrace_axis_map(&axis, axis.at[0].trace_ns + 500000000), axis.at[0].wall_ns + 500005000);
	assert_int_equal(ftrace_axis_map(&axis, axis.at[1].trace_ns), axis.at[1].wall_ns);
	assert_int_equal(ftrace_axis_map(&axis, axis.at[1].trace_ns + 7), axis.at[1].wall_ns + 7);
	assert_int_equal(ftrace_axis_map(&axis, axis.at[0].trace_ns - 7), axis.at[0].wall_ns - 7);
}

/* ---- texts ---------------------------------------------------------------------------------------------------------- */

static void texts_are_escaped_as_python_does(void **state)
{
	static const struct {
		const char *in, *out;
	} rows[] = {
		{ "plain", "plain" },
		{ "a\"b\\c", "a\\\"b\\\\c" },
		{ "\b\f\n\r\t", "\\b\\f\\n\\r\\t" },
		{ "\x01\x1f", "\\u0001\\u001f" },
		{ "\x7f", "\x7f" },
		{ "\xc3\xa9", "\xc3\xa9" },
		{ "\xff", "\xc3\xbf" }, /* no UTF-8: the code point of its value */
	};
	char out[256];
	size_t i, len;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		len = frow_escape(out, rows[i].in, strlen(rows[i].in));
		out[len] = 0;
		assert_string_equal(out, rows[i].out);
	}
}

/* ---- mmap_lock ------------------------------------------------------------------------------------------------------ */

static int write_down(void *arg, const struct sched_span *span)
{
	char *text = arg;

	sprintf(text + strlen(text), "%s %d %llx %llu-%llu%s%s%s%s\n", span->kind == SPAN_LOCK_WAIT ? "wait" : "hold",
		span->pid, (unsigned long long)span->number, (unsigned long long)span->begin_ns,
		(unsigned long long)span->end_ns, span->flags & SPAN_WRITE ? " write" : "",
		span->flags & SPAN_FAILED ? " failed" : "", span->flags & SPAN_CUT_LOST ? " cut" : "",
		span->flags & SPAN_END_UNSEEN ? " open" : "");
	return 0;
}

static void locks(void **state)
{
	static const struct {
		enum ftrace_known known;
		uint64_t t_ns, mm;
		int32_t tid;
		bool write, success;
	} events[] = {
		{ KNOWN_MMAP_LOCK_START, 10, 1, 5, true, false },
		{ KNOWN_MMAP_LOCK_START, 12, 1, 6, false, false },
		{ KNOWN_MMAP_LOCK_ACQUIRED, 15, 1, 5, true, true },
		{ KNOWN_MMAP_LOCK_START, 16, 2, 5, true, false },
		{ KNOWN_MMAP_LOCK_ACQUIRED, 18, 2, 5, true, true },
		{ KNOWN_MMAP_LOCK_RELEASED, 20, 2, 5, true, false },
		{ KNOWN_MMAP_LOCK_RELEASED, 25, 1, 5, true, false },
		{ KNOWN_MMAP_LOCK_ACQUIRED, 26, 1, 6, false, false }, /* a trylock that failed */
		{ KNOWN_MMAP_LOCK_RELEASED, 27, 3, 7, false, false }, /* taken before the trace */
		{ KNOWN_MMAP_LOCK_ACQUIRED, 28, 4, 8, false, true },
		{ KNOWN_MMAP_LOCK_START, 29, 5, 9, true, false },
	};
	struct ev_session *session = ev_session_new();
	char text[4096] = "";
	struct mmap_lock *machine = mmap_lock_new(session, write_down, text);
	struct known_keys keys;
	size_t i;

	assert_int_equal(known_keys_init(&keys, session), 0);
	for (i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		struct event ev = { 0 };

		known_begin(&ev, &keys, events[i].known, events[i].t_ns, 0, events[i].tid);
		ev.nargs = keys.nargs[events[i].known];
		ev.args[0].u64 = events[i].mm;
		ev.args[1].i64 = events[i].write;
		ev.args[2].i64 = events[i].success;
		assert_int_equal(mmap_lock_feed(machine, &ev), 0);
	}
	assert_int_equal(mmap_lock_finish(machine), 0);
	assert_string_equal(text, "wait 5 1 10-15 write\n"
				  "wait 5 2 16-18 write\n"
				  "hold 5 2 18-20 write\n"
				  "hold 5 1 15-25 write\n"
				  "wait 6 1 12-26 failed\n"
				  "wait 9 5 29-29 write open\n"
				  "hold 8 4 28-29 open\n");
	mmap_lock_free(machine);
	ev_session_free(session);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sorts_in_memory_in_runs_and_in_passes),
		cmocka_unit_test(a_directory_that_is_not_there_is_named),
		cmocka_unit_test(axes_keep_nanoseconds),
		cmocka_unit_test(texts_are_escaped_as_python_does),
		cmocka_unit_test(locks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
