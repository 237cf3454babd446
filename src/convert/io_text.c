/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables of recorded I/O; see io_text.h. */
#include "convert/io_text.h"

#include "trace/io.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SUB 8 /* buckets a factor of two */
#define BUCKETS (64 * SUB)
#define INTERVALS 20

struct sum {
	uint32_t name; /* call, file or peer */
	uint64_t calls, errors, bytes, total_ns, max_ns;
	uint32_t *hist; /* BUCKETS, made with the first call */
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

static unsigned int bucket_of(uint64_t ns)
{
	unsigned int log;

	if (ns < SUB)
		return (unsigned int)ns;
	log = 63 - (unsigned int)__builtin_clzll(ns);
	return (log - 2) * SUB + (unsigned int)(ns >> (log - 3) & (SUB - 1));
}

static uint64_t bucket_end(unsigned int bucket)
{
	unsigned int log = bucket / SUB + 2;

	return bucket < SUB ? bucket : ((uint64_t)(SUB + bucket % SUB + 1) << (log - 3)) - 1;
}

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

	if (row && !row->hist)
		row->hist = calloc(BUCKETS, sizeof(*row->hist));
	if (!row || !row->hist)
		return -ENOMEM;
	row->name = name;
	row->calls++;
	row->bytes += ev->args[IO_ARG_BYTES].u64;
	row->errors += ev->args[IO_ARG_ERROR].u64 != 0;
	row->total_ns += ev->dur_ns;
	row->max_ns = ev->dur_ns > row->max_ns ? ev->dur_ns : row->max_ns;
	row->hist[bucket_of(ev->dur_ns)]++;
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

static double percentile_us(const struct sum *row, double part)
{
	uint64_t want = (uint64_t)((double)row->calls * part), seen = 0;
	unsigned int i;

	for (i = 0; i < BUCKETS; i++) {
		seen += row->hist[i];
		if (seen > want)
			break;
	}
	return (double)(bucket_end(i) < row->max_ns ? bucket_end(i) : row->max_ns) / 1e3;
}

static int by_time(const void *a, const void *b)
{
	const struct sum *x = a, *y = b;

	if (x->total_ns != y->total_ns)
		return x->total_ns < y->total_ns ? 1 : -1;
	return x->name < y->name ? -1 : x->name > y->name;
}

static void print_table(struct ev_session *session, struct table *table, FILE *out, const char *title, size_t most)
{
	size_t i, used = 0;

	for (i = 0; i < table->room; i++) {
		if (table->rows[i].calls)
			table->rows[used++] = table->rows[i];
	}
	if (!used)
		return;
	qsort(table->rows, used, sizeof(*table->rows), by_time);
	fprintf(out, "\n%10s %8s %14s %12s %10s %10s %10s %10s  %s\n", "calls", "errors", "bytes", "total ms", "p50 us",
		"p90 us", "p99 us", "max us", title);
	for (i = 0; i < used && i < most; i++) {
		const struct sum *row = &table->rows[i];

		fprintf(out, "%10" PRIu64 " %8" PRIu64 " %14" PRIu64 " %12.3f %10.1f %10.1f %10.1f %10.1f  %s\n",
			row->calls, row->errors, row->bytes, (double)row->total_ns / 1e6, percentile_us(row, 0.5),
			percentile_us(row, 0.9), percentile_us(row, 0.99), (double)row->max_ns / 1e3,
			ev_text(session, row->name));
	}
	if (used > most)
		fprintf(out, "%10s and %zu more with less time\n", "", used - most);
	table->room = used; /* the rest of the rows was moved to the front */
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

static void table_free(struct table *table)
{
	size_t i;

	for (i = 0; i < table->room; i++)
		free(table->rows[i].hist);
	free(table->rows);
}

int64_t io_text_write(struct ev_session *session, struct merge *merge, FILE *out, size_t files, struct st_err *err)
{
	struct tables t = { 0 };
	struct merge_stats stats;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) != 0) {
		if (ret == -ENOMEM)
			break;
		if (ret > 0)
			ret = take(&t, &ev);
		if (ret == -ENOMEM) {
			err_set(err, ret, "out of memory");
			break;
		}
	}
	if (ret == 0 && t.all) {
		merge_stats(merge, &stats);
		fprintf(out, "%" PRIu64 " calls in %.3f s, %" PRIu64 " records lost while recording\n", t.all,
			(double)(t.last_ns - t.first_ns) / 1e9, stats.read.lost);
		print_table(session, &t.calls, out, "call", SIZE_MAX);
		print_table(session, &t.files, out, "file", files);
		print_table(session, &t.peers, out, "peer", files);
		print_seconds(&t, out);
	}
	table_free(&t.calls);
	table_free(&t.files);
	table_free(&t.peers);
	free(t.seconds);
	return ret < 0 ? ret : (int64_t)t.all;
}
