/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables of recorded I/O; see io_text.h. */
#include "convert/io_text.h"

#include "convert/latency.h"
#include "convert/table_json.h"
#include "trace/io.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INTERVALS 20

struct sum {
	uint32_t name; /* call, file or peer */
	uint64_t errors, bytes;
	struct latency time;
};

struct table {
	struct sum *rows; /* by name id */
	size_t room;
};

struct second {
	uint64_t bytes, calls;
};

struct tables {
	struct table calls, files, peers;
	struct second *seconds;
	size_t seconds_room;
	uint64_t first_ns, last_ns, all;
};

static struct sum *row_of(struct table *table, uint32_t name)
{
	if (name >= table->room) {
		size_t room = (size_t)name * 2 + 256;
		struct sum *rows = realloc(table->rows, room * sizeof(*rows));

		if (!rows)
			return NULL;
		memset(rows + table->room, 0, (room - table->room) * sizeof(*rows));
		table->rows = rows;
		table->room = room;
	}
	return &table->rows[name];
}

static int count(struct table *table, uint32_t name, const struct event *ev)
{
	struct sum *row = row_of(table, name);

	if (!row || latency_add(&row->time, ev->dur_ns) < 0)
		return -ENOMEM;
	row->name = name;
	row->bytes += ev->args[IO_ARG_BYTES].u64;
	row->errors += ev->args[IO_ARG_ERROR].u64 != 0;
	return 0;
}

/* By the second in which a call began. */
static int count_second(struct tables *t, const struct event *ev)
{
	uint64_t n;

	if (!t->all)
		t->first_ns = ev->t_ns;
	n = ev->t_ns > t->first_ns ? (ev->t_ns - t->first_ns) / 1000000000u : 0;
	if (n > 1000000)
		return 0; /* another clock, or damage */
	if (n >= t->seconds_room) {
		size_t room = (size_t)n * 2 + 64;
		struct second *seconds = realloc(t->seconds, room * sizeof(*seconds));

		if (!seconds)
			return -ENOMEM;
		memset(seconds + t->seconds_room, 0, (room - t->seconds_room) * sizeof(*seconds));
		t->seconds = seconds;
		t->seconds_room = room;
	}
	t->seconds[n].bytes += ev->args[IO_ARG_BYTES].u64;
	t->seconds[n].calls++;
	if (ev->t_ns + ev->dur_ns > t->last_ns)
		t->last_ns = ev->t_ns + ev->dur_ns;
	return 0;
}

static int take(struct tables *t, const struct event *ev)
{
	struct table *names = ev->kind == EV_SOCKET ? &t->peers : &t->files;
	int ret;

	if ((ev->kind != EV_IO && ev->kind != EV_SOCKET) || ev->nargs <= IO_ARG_ERROR)
		return 0;
	ret = count(&t->calls, ev->name, ev);
	if (ret == 0)
		ret = count(names, ev->args[IO_ARG_FILE].name, ev);
	if (ret == 0)
		ret = count_second(t, ev);
	t->all++;
	return ret;
}

/* --- printing -------------------------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
	const struct sum *x = a, *y = b;

	if (x->time.total_ns != y->time.total_ns)
		return x->time.total_ns < y->time.total_ns ? 1 : -1;
	return x->name < y->name ? -1 : x->name > y->name;
}

/* Those that were called, most time first, in front. Return: their number. */
static size_t sort_rows(struct table *table)
{
	size_t i, used = 0;

	for (i = 0; i < table->room; i++) {
		if (table->rows[i].time.count)
			table->rows[used++] = table->rows[i];
	}
	if (used)
		qsort(table->rows, used, sizeof(*table->rows), by_time);
	table->room = used; /* the rest of the rows was moved to the front */
	return used;
}

static void print_table(struct ev_session *session, struct table *table, FILE *out, const char *title, size_t most)
{
	size_t i, used = sort_rows(table);

	if (!used)
		return;
	fprintf(out, "\n%10s %8s %14s %12s %10s %10s %10s %10s  %s\n", "calls", "errors", "bytes", "total ms", "p50 us",
		"p90 us", "p99 us", "max us", title);
	for (i = 0; i < used && i < most; i++) {
		const struct sum *row = &table->rows[i];

		fprintf(out, "%10" PRIu64 " %8" PRIu64 " %14" PRIu64 " %12.3f %10.1f %10.1f %10.1f %10.1f  %s\n",
			row->time.count, row->errors, row->bytes, (double)row->time.total_ns / 1e6,
			latency_us(&row->time, 0.5), latency_us(&row->time, 0.9), latency_us(&row->time, 0.99),
			(double)row->time.max_ns / 1e3, ev_text(session, row->name));
	}
	if (used > most)
		fprintf(out, "%10s and %zu more with less time\n", "", used - most);
}

static void print_seconds(const struct tables *t, FILE *out)
{
	uint64_t all = (t->last_ns - t->first_ns) / 1000000000u + 1;
	uint64_t wide = (all + INTERVALS - 1) / INTERVALS, n, i;

	fprintf(out, "\n%10s %12s %14s %12s\n", "from s", "calls/s", "bytes", "MB/s");
	for (n = 0; n < all && n < t->seconds_room; n += wide) {
		struct second sum = { 0 };

		for (i = n; i < n + wide && i < t->seconds_room; i++) {
			sum.bytes += t->seconds[i].bytes;
			sum.calls += t->seconds[i].calls;
		}
		fprintf(out, "%10" PRIu64 " %12.1f %14" PRIu64 " %12.3f\n", n, (double)sum.calls / (double)wide,
			sum.bytes, (double)sum.bytes / 1e6 / (double)wide);
	}
}

/* --- JSON ------------------------------------------------------------------------------------------------------------ */

static void json_table(struct table_json *to, struct ev_session *session, struct table *table, const char *key)
{
	size_t i, used = sort_rows(table);

	table_json_list(to, key);
	for (i = 0; i < used; i++) {
		const struct sum *row = &table->rows[i];

		table_json_row(to);
		table_json_text(to, "name", ev_text(session, row->name));
		table_json_u64(to, "calls", row->time.count);
		table_json_u64(to, "errors", row->errors);
		table_json_u64(to, "bytes", row->bytes);
		table_json_latency(to, &row->time);
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static void json_seconds(struct table_json *to, const struct tables *t)
{
	uint64_t all = (t->last_ns - t->first_ns) / 1000000000u + 1, n;

	table_json_list(to, "seconds");
	for (n = 0; n < all && n < t->seconds_room; n++) {
		table_json_row(to);
		table_json_u64(to, "second", n);
		table_json_u64(to, "calls", t->seconds[n].calls);
		table_json_u64(to, "bytes", t->seconds[n].bytes);
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static int print_json(struct ev_session *session, struct tables *t, uint64_t lost, FILE *out)
{
	struct table_json to;

	if (table_json_begin(&to, out) < 0)
		return -ENOMEM;
	table_json_u64(&to, "calls", t->all);
	table_json_u64(&to, "span_ns", t->last_ns - t->first_ns);
	table_json_u64(&to, "lost", lost);
	json_table(&to, session, &t->calls, "by_call");
	json_table(&to, session, &t->files, "by_file");
	json_table(&to, session, &t->peers, "by_peer");
	json_seconds(&to, t);
	return table_json_end(&to);
}

static void print_words(struct ev_session *session, struct tables *t, uint64_t lost, FILE *out, size_t files)
{
	fprintf(out, "%" PRIu64 " calls in %.3f s, %" PRIu64 " records lost while recording\n", t->all,
		(double)(t->last_ns - t->first_ns) / 1e9, lost);
	print_table(session, &t->calls, out, "call", SIZE_MAX);
	print_table(session, &t->files, out, "file", files);
	print_table(session, &t->peers, out, "peer", files);
	print_seconds(t, out);
}

static void table_free(struct table *table)
{
	size_t i;

	for (i = 0; i < table->room; i++)
		latency_fini(&table->rows[i].time);
	free(table->rows);
}

int64_t io_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		      struct st_err *err)
{
	struct tables t = { 0 };
	struct merge_stats stats;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) != 0) {
		if (ret == -ENOMEM)
			break;
		if (ret > 0) {
			text_note(options, session, &ev);
			ret = take(&t, &ev);
		}
		if (ret == -ENOMEM) {
			err_set(err, ret, "out of memory");
			break;
		}
	}
	if (ret == 0 && t.all) {
		merge_stats(merge, &stats);
		if (!options->json)
			print_words(session, &t, stats.read.lost, out, options->most);
		else
			ret = print_json(session, &t, stats.read.lost, out);
		if (ret < 0)
			err_set(err, ret, "cannot print the tables: %s", strerror(-ret));
	}
	table_free(&t.calls);
	table_free(&t.files);
	table_free(&t.peers);
	free(t.seconds);
	return ret < 0 ? ret : (int64_t)t.all;
}
