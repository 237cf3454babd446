/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Merging: order within the window, late events, several hosts and clocks on one axis, readers that fail. */
#include "trace_fixture.h"

#include "trace/merge.h"

#include <errno.h>

/** struct fake - a reader over a list of times */
struct fake {
	struct ev_reader base;
	const uint64_t *times; /* ends with 0 */
	enum ev_clock clock;
	bool fails; /* instead of ending */
};

static int fake_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct fake *fake = (struct fake *)reader;

	if (!*fake->times)
		return fake->fails ? fake->fails = false, err_set(err, -EIO, "broken") : 0;
	*ev = (struct event){
		.t_ns = *fake->times++, .clock = (uint8_t)fake->clock, .nargs = 1, .source = reader->source
	};
	ev->args[0].u64 = ev->t_ns;
	reader->stats.events++;
	return 1;
}

static void fake_close(struct ev_reader *reader)
{
	free(reader);
}

static const struct ev_reader_ops fake_ops = { .format = "fake", .next = fake_next, .close = fake_close };

static struct fake *add(struct merge *merge, const uint64_t *times, uint64_t window_ns)
{
	struct fake *fake = calloc(1, sizeof(*fake));

	assert_non_null(fake);
	fake->base.ops = &fake_ops;
	fake->base.window_ns = window_ns;
	fake->times = times;
	assert_int_equal(merge_add(merge, &fake->base), 0);
	return fake;
}

/* Times as the merge gives them, blank-separated. */
static void collect(struct merge *merge, char *out, size_t room)
{
	struct event ev;
	size_t used = 0;
	int ret;

	*out = 0;
	while ((ret = merge_next(merge, &ev, NULL)) != 0)
		used += ret < 0 ? (size_t)snprintf(out + used, room - used, "E ")
				: (size_t)snprintf(out + used, room - used, "%llu ", (unsigned long long)ev.t_ns);
}

static void order_within_the_window(void **state)
{
	static const uint64_t a[] = { 10, 30, 20, 50, 40, 60, 0 }, b[] = { 15, 25, 55, 45, 0 }, none[] = { 0 };
	struct merge *merge = merge_new(NULL);
	struct merge_stats stats;
	char got[256];

	add(merge, a, 10);
	add(merge, b, 10);
	add(merge, none, 10);
	collect(merge, got, sizeof(got));
	assert_string_equal(got, "10 15 20 25 30 40 45 50 55 60 ");
	merge_stats(merge, &stats);
	assert_int_equal(stats.late, 0);
	assert_int_equal(stats.read.events, 10);
	assert_true(stats.peak < 10);
	merge_free(merge);
}

static void late_events_come_at_once(void **state)
{
	static const uint64_t a[] = { 100, 200, 300, 400, 5, 500, 0 };
	struct merge *merge = merge_new(NULL);
	struct merge_stats stats;
	char got[256];

	add(merge, a, 10);
	collect(merge, got, sizeof(got));
	assert_string_equal(got, "100 200 300 5 400 500 ");
	merge_stats(merge, &stats);
	assert_int_equal(stats.late, 1);
	merge_free(merge);
}

static void longer_ones_first(void **state)
{
	static const char csv[] =
		"Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId,"
		"msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n"
		"2,1,1,outer,0,100,7,7,7,7\n2,2,1,inner,0,100,7,7,7,7\n4,2,1,,0,120,7,7,7,7\n4,1,1,,0,150,7,7,7,7\n";
	struct fixture *fx = *state;
	struct merge *merge = merge_new(fx->session);
	struct event ev;

	fx_write(fx, "a-1.csv", csv, sizeof(csv) - 1);
	assert_int_equal(merge_add(merge, ev_open(fx->session, fx->path, &fx->err)), 0);
	assert_int_equal(merge_next(merge, &ev, NULL), 1);
	assert_string_equal(ev_text(fx->session, ev.name), "outer");
	assert_int_equal(merge_next(merge, &ev, NULL), 1);
	assert_string_equal(ev_text(fx->session, ev.name), "inner");
	assert_int_equal(merge_next(merge, &ev, NULL), 0);
	merge_free(merge);
}

static void one_that_fails(void **state)
{
	static const uint64_t a[] = { 1, 3, 0 }, b[] = { 2, 4, 0 };
	struct merge *merge = merge_new(NULL);
	char got[64];

	add(merge, a, 0)->fails = true;
	add(merge, b, 0);
	collect(merge, got, sizeof(got));
	assert_string_equal(got, "1 2 3 E 4 ");
	merge_free(merge);
}

static void one_host_stays_on_its_clock(void **state)
{
	static const uint64_t mono[] = { 100, 300, 0 }, wall[] = { 5200, 0 }, later[] = { 400, 0 };
	struct merge *merge = merge_new(NULL);
	struct fake *fake;
	char got[64];

	fake = add(merge, mono, 0);
	fake->clock = EV_CLOCK_MONO;
	fake->base.origin = (struct ev_origin){ .known = true, .host = 1, .wall_minus_mono_ns = 5000 };
	add(merge, wall, 0)->clock = EV_CLOCK_REAL; /* says nothing of its host */
	/* the wall clock was set in between: the host keeps the first offset, and its order */
	fake = add(merge, later, 0);
	fake->base.origin = (struct ev_origin){ .known = true, .host = 1, .wall_minus_mono_ns = 4000 };
	collect(merge, got, sizeof(got));
	assert_int_equal(merge_axis(merge), MERGE_MONO);
	assert_int_equal(merge_wall_minus_mono(merge), 5000);
	assert_string_equal(got, "100 200 300 400 ");
	merge_free(merge);
}

static void several_hosts_meet_on_the_wall_clock(void **state)
{
	static const uint64_t a[] = { 100, 300, 0 }, b[] = { 9000100, 0 };
	struct merge *merge = merge_new(NULL);
	struct fake *fake;
	char got[64];

	fake = add(merge, a, 0);
	fake->base.origin = (struct ev_origin){ .known = true, .host = 1, .wall_minus_mono_ns = 10000000 };
	fake = add(merge, b, 0);
	fake->base.origin = (struct ev_origin){ .known = true, .host = 2, .wall_minus_mono_ns = 1000000 };
	collect(merge, got, sizeof(got));
	assert_int_equal(merge_axis(merge), MERGE_WALL);
	assert_string_equal(got, "10000100 10000100 10000300 ");
	merge_free(merge);
}

static void nothing_to_merge(void **state)
{
	struct merge *merge = merge_new(NULL);
	struct event ev;

	assert_int_equal(merge_next(merge, &ev, NULL), 0);
	assert_int_equal(merge_count(merge), 0);
	merge_free(merge);
	merge_free(NULL);
}

/* In reverse order, further than a run shifts: still sorted. */
static void reverse_order(void **state)
{
	static uint64_t times[5001];
	struct merge *merge = merge_new(NULL);
	struct merge_stats stats;
	struct event ev;
	uint64_t want = 0;
	size_t i;

	for (i = 0; i < 5000; i++)
		times[i] = 5000 - i;
	add(merge, times, 1000000);
	while (merge_next(merge, &ev, NULL) == 1)
		assert_int_equal(ev.t_ns, ++want);
	assert_int_equal(want, 5000);
	merge_stats(merge, &stats);
	assert_int_equal(stats.peak, 5000);
	assert_int_equal(stats.late, 0);
	merge_free(merge);
}

/* What still waits is freed with the merge. */
static void given_up_in_the_middle(void **state)
{
	static const uint64_t a[] = { 10, 20, 30, 0 }, b[] = { 15, 25, 0 };
	struct merge *merge = merge_new(NULL);
	struct event ev;

	add(merge, a, 100);
	add(merge, b, 100);
	assert_int_equal(merge_next(merge, &ev, NULL), 1);
	assert_int_equal(ev.t_ns, 10);
	merge_free(merge);
}

/* Random disorder below the window: always sorted, nothing lost. */
static void random_disorder(void **state)
{
	static uint64_t times[3][2001];
	struct merge *merge = merge_new(NULL);
	uint64_t seed = 88172645463325252u, last = 0, sum = 0, got = 0;
	struct event ev;
	size_t i, k;

	for (k = 0; k < 3; k++) {
		for (i = 0; i < 2000; i++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			times[k][i] = 1000 + i * 10 + seed % 500;
			sum += times[k][i];
		}
		add(merge, times[k], 500);
	}
	while (merge_next(merge, &ev, NULL) == 1) {
		assert_true(ev.t_ns >= last);
		assert_int_equal(ev.args[0].u64, ev.t_ns);
		last = ev.t_ns;
		got += ev.t_ns;
	}
	assert_int_equal(got, sum);
	merge_free(merge);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_within_the_window),
		cmocka_unit_test(late_events_come_at_once),
		cmocka_unit_test_setup_teardown(longer_ones_first, fx_setup, fx_teardown),
		cmocka_unit_test(one_that_fails),
		cmocka_unit_test(one_host_stays_on_its_clock),
		cmocka_unit_test(several_hosts_meet_on_the_wall_clock),
		cmocka_unit_test(nothing_to_merge),
		cmocka_unit_test(reverse_order),
		cmocka_unit_test(given_up_in_the_middle),
		cmocka_unit_test(random_disorder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
