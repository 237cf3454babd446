/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reader of trace.dat: the same events come out of every form of the file, and any cut or damage ends in words. */
#include "dat_maker.h"
#include "trace/ftrace_known.h"
#include "trace/ring_page.h"
#include "trace/tracedat.h"
#include "trace_fixture.h"

#include <errno.h>

/* All events of a file as text; the reader's own lines about gaps and names included. */
static const char *events_of(struct fixture *fx, char *out, size_t room)
{
	struct event ev;
	size_t len = 0;
	int ret, i;

	*out = 0;
	while ((ret = ev_next(fx->reader, &ev, &fx->err)) == 1) {
		len += (size_t)snprintf(out + len, room - len, "%d %d %llu+%llu %s", ev.track.cpu, ev.track.tid,
					(unsigned long long)ev.t_ns, (unsigned long long)ev.dur_ns,
					ev_text(fx->session, ev.name));
		for (i = 0; i < ev.nargs; i++) {
			const struct ev_arg *arg = &ev.args[i];

			if (arg->type == EV_ARG_NAME)
				len += (size_t)snprintf(out + len, room - len, " %s", ev_text(fx->session, arg->name));
			else if (arg->type == EV_ARG_PTR || arg->type == EV_ARG_U64)
				len += (size_t)snprintf(out + len, room - len, " %llx", (unsigned long long)arg->u64);
			else
				len += (size_t)snprintf(out + len, room - len, " %lld", (long long)arg->i64);
		}
		len += (size_t)snprintf(out + len, room - len, "\n");
		assert_true(len < room);
	}
	assert_int_equal(ret, 0);
	return out;
}

/* times: 1000000 + 10; + (1 << 27) + 5 + 20; the discarded event's 3 and 4 more; 3 << 27 | 77 */
static const char expected[] = "-1 10 1000010+0 task_comm a b 10\n"
			       "-1 20 1000010+0 task_comm b 20\n"
			       "-1 30 1000010+0 task_comm mover 30\n"
			       "0 0 1000010+0 sched_switch swapper/0 0 120 R a b 10 120\n"
			       "1 -1 1000012+0  0\n"
			       "1 30 1000012+0 sched_migrate_task mover 30 100 0 1\n"
			       "0 10 135217763+0 sched_switch a b 10 120 S b 20 120\n"
			       "0 7 135217770+0 odd_event fedcba9876543210 ffff800000001000 -5\n"
			       "0 -1 135217770+267435491  e63f\n"
			       "0 20 402653261+0 sched_switch b 20 120 R+ a b 10 120\n";

static void check_form(struct dm *m, const char *what)
{
	static char text[16384];
	struct fixture fx;

	fx_init(&fx);
	dm_make(m);
	fx_write(&fx, "t.dat", m->data, m->len);
	fx.reader = ev_open(fx.session, fx.path, &fx.err);
	if (!fx.reader)
		fail_msg("%s: %s", what, fx.err.text);
	events_of(&fx, text, sizeof(text));
	if (strcmp(text, expected))
		fail_msg("%s: %s", what, text);
	assert_string_equal(tracedat_release(fx.reader), "5.10.0-60");
	assert_int_equal(fx.reader->stats.lost, 58943);
	ev_close(fx.reader);
	ev_session_free(fx.session);
	unlink(fx.path);
	rmdir(fx.dir);
}

static void every_form_gives_the_same_events(void **state)
{
	static const char *const packings[] = {
		"none",
#ifdef HAVE_ZSTD
		"zstd",
#endif
#ifdef HAVE_ZLIB
		"zlib",
#endif
	};
	size_t i;
	int form;

	for (i = 0; i < sizeof(packings) / sizeof(packings[0]); i++)
		for (form = 0; form < 8; form++) {
			struct dm m = { .version = form & 1 ? 7 : 6,
					.big = form & 2,
					.long_bytes = form & 4 ? 4 : 8,
					.packing = packings[i] };
			char what[64];

			if (m.version == 6 && i)
				continue; /* only version 7 is packed */
			snprintf(what, sizeof(what), "v%d %s-endian long %d %s", m.version, m.big ? "big" : "little",
				 m.long_bytes, m.packing);
			check_form(&m, what);
			free(m.data);
		}
}

static void further_buffers_are_read_too(void **state)
{
	static char text[32768];
	int version;

	for (version = 6; version <= 7; version++) {
		struct dm m = { .version = version, .long_bytes = 8, .packing = "none", .extra_buffer = true };
		struct fixture fx;
		size_t lines = 0;
		char *at;

		fx_init(&fx);
		dm_make(&m);
		fx_write(&fx, "t.dat", m.data, m.len);
		fx.reader = ev_open(fx.session, fx.path, &fx.err);
		assert_non_null(fx.reader);
		events_of(&fx, text, sizeof(text));
		for (at = text; *at; at++)
			lines += *at == '\n';
		assert_int_equal(lines, 3 + 2 * 7);
		ev_close(fx.reader);
		ev_session_free(fx.session);
		unlink(fx.path);
		rmdir(fx.dir);
		free(m.data);
	}
}

static void an_offset_moves_all_times(void **state)
{
	static char text[16384];
	struct dm m = { .version = 7, .long_bytes = 8, .packing = "none", .options = "1000000000" };
	struct fixture fx;

	fx_init(&fx);
	dm_make(&m);
	fx_write(&fx, "t.dat", m.data, m.len);
	fx.reader = ev_open(fx.session, fx.path, &fx.err);
	assert_non_null(fx.reader);
	events_of(&fx, text, sizeof(text));
	assert_non_null(strstr(text, "\n0 0 1001000010+0 sched_switch"));
	ev_close(fx.reader);
	ev_session_free(fx.session);
	unlink(fx.path);
	rmdir(fx.dir);
	free(m.data);
}

/* A file cut at @len: it opens with the events before the cut, or it does not and says why; nothing else. */
static void check_cut(struct fixture *fx, const struct dm *m, size_t len)
{
	struct event ev;
	int ret;

	fx_write(fx, "t.dat", m->data, len);
	fx->err = (struct st_err){ 0 };
	fx->reader = ev_open(fx->session, fx->path, &fx->err);
	if (!fx->reader) {
		assert_non_null(strstr(fx->err.text, fx->path));
		assert_true(fx->err.code < 0);
		return;
	}
	while ((ret = ev_next(fx->reader, &ev, &fx->err)) == 1)
		;
	if (ret < 0)
		assert_true(strlen(fx->err.text) > 0);
	ev_close(fx->reader);
	fx->reader = NULL;
}

static void cuts_at_every_boundary_end_in_words(void **state)
{
	int form;
	size_t i;

	for (form = 0; form < 3; form++) {
		struct dm m = { .version = form ? 7 : 6,
				.long_bytes = 8,
#ifdef HAVE_ZSTD
				.packing = form == 2 ? "zstd" : "none",
#else
				.packing = "none",
#endif
				.extra_buffer = true };
		struct fixture fx;

		fx_init(&fx);
		dm_make(&m);
		for (i = 0; i < m.cut_count; i++) {
			check_cut(&fx, &m, m.cuts[i]);
			check_cut(&fx, &m, m.cuts[i] - 1);
			if (m.cuts[i] < m.len)
				check_cut(&fx, &m, m.cuts[i] + 1);
		}
		for (i = 0; i < m.len; i += i < 4096 ? 13 : 509)
			check_cut(&fx, &m, i);
		ev_session_free(fx.session);
		unlink(fx.path);
		rmdir(fx.dir);
		free(m.data);
	}
}

/* Also of a packed file, whose sections may then not unpack. */
static void damage_is_survived(void **state)
{
	int packed, round;
	uint32_t seed = 12345;

	for (packed = 0; packed < 2; packed++) {
		struct dm m = { .version = 7, .long_bytes = 8, .packing = "none" };
		struct fixture fx;

#ifdef HAVE_ZSTD
		if (packed)
			m.packing = "zstd";
#endif
		fx_init(&fx);
		dm_make(&m);
		for (round = 0; round < 300; round++) {
			size_t at;
			uint8_t old;

			seed = seed * 1664525u + 1013904223u;
			at = seed % m.len;
			old = m.data[at];
			m.data[at] ^= (uint8_t)(seed >> 24 | 1);
			check_cut(&fx, &m, m.len);
			m.data[at] = old;
		}
		ev_session_free(fx.session);
		unlink(fx.path);
		rmdir(fx.dir);
		free(m.data);
	}
}

static void unknown_packing_says_how_to_convert(void **state)
{
	struct dm m = { .version = 7, .long_bytes = 8, .packing = "none" };
	struct fixture fx;

	fx_init(&fx);
	dm_make(&m);
	memcpy(m.data + 18, "lzxx", 4); /* where "none" stands */
	fx_write(&fx, "t.dat", m.data, m.len);
	assert_null(ev_open(fx.session, fx.path, &fx.err));
	assert_int_equal(fx.err.code, -ENOTSUP);
	assert_non_null(strstr(fx.err.text, "lzxx"));
	ev_session_free(fx.session);
	unlink(fx.path);
	rmdir(fx.dir);
	free(m.data);
}

/* ---- pages ---------------------------------------------------------------------------------------------------------- */

static struct ring_layout layout_of(struct dm *m)
{
	struct ring_layout layout = { .endian = { .swap = m->big, .big = m->big } };
	char text[1024];
	size_t len = dm_header_page(m, text);

	assert_int_equal(ring_layout_parse(&layout, text, len, NULL), 0);
	return layout;
}

static void a_page_longer_than_it_is_gives_what_is_there(void **state)
{
	struct dm m = { .version = 6, .long_bytes = 8, .packing = "none" };
	struct ring_layout layout = layout_of(&m);
	struct ring_event ev;
	struct ring_page page;

	dm_pages(&m);
	dm_number(false, m.pages[0][0] + 8, 0xfffff, 8);
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[0][0], DM_PAGE), -EINVAL);
	assert_true(page.broken);
	assert_true(ring_page_next(&page, &layout, &ev));
	assert_int_equal(ev.t_ns, 1000010);
}

static void an_event_beyond_the_page_breaks_it(void **state)
{
	struct dm m = { .version = 6, .long_bytes = 8, .packing = "none" };
	struct ring_layout layout = layout_of(&m);
	struct ring_event ev;
	struct ring_page page;

	dm_pages(&m);
	dm_number(false, m.pages[1][0] + 8, 20, 8); /* in the middle of its one event */
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[1][0], DM_PAGE), 0);
	assert_false(ring_page_next(&page, &layout, &ev));
	assert_true(page.broken);
}

static void lost_events_are_counted_where_told(void **state)
{
	struct dm m = { .version = 6, .long_bytes = 8, .packing = "none" };
	struct ring_layout layout = layout_of(&m);
	struct ring_page page;

	dm_pages(&m);
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[0][1], DM_PAGE), 0);
	assert_true(page.lost_before && page.lost_known);
	assert_int_equal(page.lost, 58943);
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[1][0], DM_PAGE), 0);
	assert_true(page.lost_before && !page.lost_known);
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[0][0], DM_PAGE), 0);
	assert_false(page.lost_before);
	assert_int_equal(ring_page_begin(&page, &layout, m.pages[0][0], 16), -EINVAL); /* no room for data */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_form_gives_the_same_events),
		cmocka_unit_test(further_buffers_are_read_too),
		cmocka_unit_test(an_offset_moves_all_times),
		cmocka_unit_test(cuts_at_every_boundary_end_in_words),
		cmocka_unit_test(damage_is_survived),
		cmocka_unit_test(unknown_packing_says_how_to_convert),
		cmocka_unit_test(a_page_longer_than_it_is_gives_what_is_there),
		cmocka_unit_test(an_event_beyond_the_page_breaks_it),
		cmocka_unit_test(lost_events_are_counted_where_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
