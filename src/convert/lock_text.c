/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables of recorded lock waits; see lock_text.h. */
#include "convert/lock_text.h"

#include "base/hash64.h"
#include "convert/latency.h"
#include "convert/rows.h"
#include "convert/table_json.h"
#include "trace/locks.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CALLER_FRAMES 4 /* of a stack that are shown in tables */
#define TOP 8 /* owners and callers of a lock that are kept apart */

/** struct top - who or what took part in the waits of a lock */
struct top {
	uint64_t id; /* tid of an owner, name id of a caller; 0 = free */
	uint64_t times, ns;
};

/** struct sum - a function, or a lock of a process */
struct sum {
	uint64_t key; /* 0 = free slot */
	uint32_t name; /* function; address of the lock */
	uint32_t call; /* a lock's: the function that waited for it first */
	int32_t rank, pid;
	uint64_t calls; /* a function's, also those that did not wait */
	uint64_t failures; /* that did not get it */
	struct latency wait;
	struct top owners[TOP], callers[TOP];
};

struct table {
	struct sum **slots; /* open addressing */
	uint32_t mask, count;
};

struct name {
	int32_t rank, pid, tid;
	uint32_t name;
};

struct locks_sum {
	struct ev_session *session;
	struct table functions, locks;
	struct name *names;
	uint32_t names_count, names_room;
	uint32_t key_lock, key_caller, key_owner, key_errno, key_failures, key_calls;
	uint64_t all, first_ns, last_ns;
};

/* ---- counting ----------------------------------------------------------------------------------------------------- */

static int table_grow(struct table *table)
{
	uint32_t mask = table->slots ? table->mask * 2 + 1 : 63, i, at;
	struct sum **slots = calloc((size_t)mask + 1, sizeof(struct sum *));

	if (!slots)
		return -ENOMEM;
	for (i = 0; table->slots && i <= table->mask; i++) {
		if (!table->slots[i])
			continue;
		at = (uint32_t)table->slots[i]->key & mask;
		while (slots[at])
			at = (at + 1) & mask;
		slots[at] = table->slots[i];
	}
	free(table->slots);
	table->slots = slots;
	table->mask = mask;
	return 0;
}

/* Row of a name, of one process or (pid -1) of all. */
static struct sum *row_of(struct table *table, uint32_t name, int32_t rank, int32_t pid)
{
	uint64_t key = hash64_mix((uint64_t)name << 32 | (uint32_t)pid, 0x9e3779b97f4a7c15u);
	struct sum *row;
	uint32_t at;

	key = hash64_mix(key ^ (uint32_t)rank, 0xd6e8feb86659fd93u) | 1;
	if ((!table->slots || table->count > table->mask / 2) && table_grow(table) < 0)
		return NULL;
	for (at = (uint32_t)key & table->mask; (row = table->slots[at]) != NULL; at = (at + 1) & table->mask)
		if (row->name == name && row->rank == rank && row->pid == pid)
			return row;
	row = calloc(1, sizeof(*row));
	if (!row)
		return NULL;
	row->key = key;
	row->name = name;
	row->rank = rank;
	row->pid = pid;
	table->slots[at] = row;
	table->count++;
	return row;
}

/* The first ones that come have places; the rest is left out of this list, not of the sums. */
static void count_top(struct top *tops, uint64_t id, uint64_t ns)
{
	int i;

	if (!id)
		return;
	for (i = 0; i < TOP && tops[i].id && tops[i].id != id; i++)
		;
	if (i == TOP)
		return;
	tops[i].id = id;
	tops[i].times++;
	tops[i].ns += ns;
}

static uint64_t arg_u64(const struct event *ev, uint32_t key)
{
	const struct ev_arg *arg = locks_arg(ev, key);

	return arg && arg->type == EV_ARG_U64 ? arg->u64 : 0;
}

static uint32_t arg_name(const struct event *ev, uint32_t key)
{
	const struct ev_arg *arg = locks_arg(ev, key);

	return arg && arg->type == EV_ARG_NAME ? arg->name : 0;
}

/* Where a lock was waited for: by the stack where there is one, else the address behind the call. */
static uint32_t caller_of(struct locks_sum *l, const struct event *ev)
{
	const uint32_t *frames;
	size_t count = ev_stack_frames(l->session, ev->stack, &frames), i, used = 0;
	char text[1024] = "";

	for (i = 0; i < count && i < CALLER_FRAMES && used < sizeof(text) - 8; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? " < " : "",
					 ev_text(l->session, frames[i]));
	return count ? ev_namez(l->session, text) : arg_name(ev, l->key_caller);
}

static int count_wait(struct sum *row, const struct event *ev, uint64_t failures)
{
	row->failures += failures;
	return latency_add(&row->wait, ev->dur_ns);
}

static int take_wait(struct locks_sum *l, const struct event *ev)
{
	uint64_t failures = arg_u64(ev, l->key_failures);
	uint32_t address = arg_name(ev, l->key_lock);
	struct sum *function = row_of(&l->functions, ev->name, EV_NO_RANK, -1), *lock;
	int ret;

	if (!failures)
		failures = locks_arg(ev, l->key_errno) != NULL;
	ret = function ? count_wait(function, ev, failures) : -ENOMEM;
	if (!l->all++)
		l->first_ns = ev->t_ns;
	if (ev->t_ns + ev->dur_ns > l->last_ns)
		l->last_ns = ev->t_ns + ev->dur_ns;
	if (ret < 0 || !address)
		return ret;
	lock = row_of(&l->locks, address, ev->rank, ev->track.pid);
	if (!lock)
		return -ENOMEM;
	if (!lock->call)
		lock->call = ev->name;
	count_top(lock->owners, arg_u64(ev, l->key_owner), ev->dur_ns);
	count_top(lock->callers, caller_of(l, ev), ev->dur_ns);
	return count_wait(lock, ev, failures);
}

static int take(struct locks_sum *l, const struct event *ev)
{
	struct sum *function;

	switch (ev->kind) {
	case EV_LOCK:
		return take_wait(l, ev);
	case EV_COUNTER:
		function = row_of(&l->functions, ev->name, EV_NO_RANK, -1);
		if (!function)
			return -ENOMEM;
		function->calls += arg_u64(ev, l->key_calls);
		l->all++;
		return 0;
	case EV_TASK:
		if (rows_grow(&l->names, l->names_count, &l->names_room, sizeof(*l->names)) < 0)
			return -ENOMEM;
		l->names[l->names_count++] = (struct name){ ev->rank, ev->track.pid, ev->track.tid, ev->name };
		return 0;
	default:
		return 0;
	}
}

/* ---- printing ----------------------------------------------------------------------------------------------------- */

static int by_wait(const void *a, const void *b)
{
	const struct sum *const *x = a, *const *y = b;

	if ((*x)->wait.total_ns != (*y)->wait.total_ns)
		return (*x)->wait.total_ns < (*y)->wait.total_ns ? 1 : -1;
	if ((*x)->wait.count != (*y)->wait.count)
		return (*x)->wait.count < (*y)->wait.count ? 1 : -1;
	return (*x)->name < (*y)->name ? -1 : (*x)->name > (*y)->name;
}

static int by_ns(const void *a, const void *b)
{
	const struct top *x = a, *y = b;

	if (x->ns != y->ns)
		return x->ns < y->ns ? 1 : -1;
	return x->times < y->times ? 1 : x->times > y->times ? -1 : 0;
}

/* Rows to the front, most wait first; the table is a plain list from here on. */
static void sort_rows(struct table *table)
{
	uint32_t i, used = 0;

	for (i = 0; table->slots && i <= table->mask; i++)
		if (table->slots[i])
			table->slots[used++] = table->slots[i];
	for (i = 0; i < used; i++) {
		qsort(table->slots[i]->owners, TOP, sizeof(struct top), by_ns);
		qsort(table->slots[i]->callers, TOP, sizeof(struct top), by_ns);
	}
	if (used)
		qsort(table->slots, used, sizeof(struct sum *), by_wait);
}

static const char *thread_name(const struct locks_sum *l, const struct ev_session *session, const struct sum *lock,
			       uint64_t tid)
{
	uint32_t i;

	for (i = 0; i < l->names_count; i++)
		if (l->names[i].tid == (int64_t)tid && l->names[i].pid == lock->pid && l->names[i].rank == lock->rank)
			return ev_text(session, l->names[i].name);
	return "";
}

static void print_functions(const struct locks_sum *l, const struct ev_session *session, FILE *out)
{
	const struct table *table = &l->functions;
	uint32_t i;

	fprintf(out, "\n%12s %10s %10s %12s %10s %10s %10s  %s\n", "calls", "recorded", "failed", "waited ms", "p50 us",
		"p99 us", "max us", "function");
	for (i = 0; i < table->count; i++) {
		const struct sum *row = table->slots[i];

		if (row->calls)
			fprintf(out, "%12" PRIu64, row->calls);
		else
			fprintf(out, "%12s", "?"); /* cut: the file ends before the counts */
		fprintf(out, " %10" PRIu64 " %10" PRIu64 " %12.3f %10.1f %10.1f %10.1f  %s\n", row->wait.count,
			row->failures, (double)row->wait.total_ns / 1e6, latency_us(&row->wait, 0.5),
			latency_us(&row->wait, 0.99), (double)row->wait.max_ns / 1e3, ev_text(session, row->name));
	}
}

static void print_lock(const struct locks_sum *l, const struct ev_session *session, const struct sum *row, FILE *out)
{
	int i;

	fprintf(out, "%10" PRIu64 " %10" PRIu64 " %12.3f %10.1f %10.1f %10.1f  %s, %s", row->wait.count, row->failures,
		(double)row->wait.total_ns / 1e6, latency_us(&row->wait, 0.5), latency_us(&row->wait, 0.99),
		(double)row->wait.max_ns / 1e3, ev_text(session, row->name), ev_text(session, row->call));
	if (row->rank >= 0)
		fprintf(out, ", rank %d", row->rank);
	fprintf(out, ", process %d\n", row->pid);
	for (i = 0; i < 3 && row->owners[i].id; i++)
		fprintf(out, "%*s held by %" PRIu64 " %s: %" PRIu64 " waits, %.3f ms\n", 67, "", row->owners[i].id,
			thread_name(l, session, row, row->owners[i].id), row->owners[i].times,
			(double)row->owners[i].ns / 1e6);
	for (i = 0; i < 2 && row->callers[i].id; i++)
		fprintf(out, "%*s called from %s: %" PRIu64 " waits, %.3f ms\n", 67, "",
			ev_text(session, (uint32_t)row->callers[i].id), row->callers[i].times,
			(double)row->callers[i].ns / 1e6);
}

static void print_words(const struct locks_sum *l, const struct ev_session *session, uint64_t lost, FILE *out,
			size_t most)
{
	uint32_t i;

	fprintf(out,
		"%u functions, %u locks that were waited for, in %.3f s, %" PRIu64 " records lost while recording\n",
		l->functions.count, l->locks.count,
		(double)(l->last_ns > l->first_ns ? l->last_ns - l->first_ns : 0) / 1e9, lost);
	print_functions(l, session, out);
	if (l->locks.count)
		fprintf(out, "\n%10s %10s %12s %10s %10s %10s  %s\n", "recorded", "failed", "waited ms", "p50 us",
			"p99 us", "max us", "lock");
	for (i = 0; i < l->locks.count && i < most; i++)
		print_lock(l, session, l->locks.slots[i], out);
	if (l->locks.count > most)
		fprintf(out, "%10s and %u locks more with less time\n", "", l->locks.count - (uint32_t)most);
}

static void json_sum(struct table_json *to, const struct ev_session *session, const struct sum *row)
{
	table_json_u64(to, "recorded", row->wait.count);
	table_json_u64(to, "failed", row->failures);
	table_json_latency(to, &row->wait);
}

/* An address, and behind a blank what lies there. */
static void json_place(struct table_json *to, const char *text)
{
	size_t len = strcspn(text, " ");

	json_key(&to->w, "address");
	json_text(&to->w, text, len);
	if (text[len])
		table_json_text(to, "place", text + len + 1);
}

/* The ones of a lock that were waited for, or called, longest. */
static void json_top(struct table_json *to, const char *key, const struct locks_sum *l,
		     const struct ev_session *session, const struct sum *lock, const struct top *tops, bool owners)
{
	int i;

	json_key(&to->w, key);
	json_open(&to->w, '[');
	for (i = 0; i < TOP && tops[i].id; i++) {
		json_open(&to->w, '{');
		if (owners) {
			table_json_u64(to, "tid", tops[i].id);
			table_json_text(to, "name", thread_name(l, session, lock, tops[i].id));
		} else {
			json_place(to, ev_text(session, (uint32_t)tops[i].id));
		}
		table_json_u64(to, "waits", tops[i].times);
		table_json_u64(to, "ns", tops[i].ns);
		json_close(&to->w, '}');
	}
	json_close(&to->w, ']');
}

static int print_json(const struct locks_sum *l, const struct ev_session *session, uint64_t lost, FILE *out)
{
	struct table_json to;
	uint32_t i;

	if (table_json_begin(&to, out) < 0)
		return -ENOMEM;
	table_json_u64(&to, "lost", lost);
	table_json_list(&to, "functions");
	for (i = 0; i < l->functions.count; i++) {
		table_json_row(&to);
		table_json_text(&to, "name", ev_text(session, l->functions.slots[i]->name));
		table_json_u64(&to, "calls", l->functions.slots[i]->calls);
		json_sum(&to, session, l->functions.slots[i]);
		table_json_row_end(&to);
	}
	table_json_list_end(&to);
	table_json_list(&to, "locks");
	for (i = 0; i < l->locks.count; i++) {
		const struct sum *row = l->locks.slots[i];

		table_json_row(&to);
		json_place(&to, ev_text(session, row->name));
		table_json_text(&to, "function", ev_text(session, row->call));
		table_json_i64(&to, "rank", row->rank);
		table_json_i64(&to, "pid", row->pid);
		json_sum(&to, session, row);
		json_top(&to, "owners", l, session, row, row->owners, true);
		json_top(&to, "callers", l, session, row, row->callers, false);
		table_json_row_end(&to);
	}
	table_json_list_end(&to);
	return table_json_end(&to);
}

static void table_free(struct table *table, bool sorted)
{
	uint32_t i, end = sorted ? table->count : table->mask + 1;

	for (i = 0; table->slots && i < end; i++) {
		if (!table->slots[i])
			continue;
		latency_fini(&table->slots[i]->wait);
		free(table->slots[i]);
	}
	free(table->slots);
}

int64_t lock_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
			struct st_err *err)
{
	struct locks_sum l = {
		.session = session,
		.key_lock = ev_namez(session, LOCK_KEY_LOCK),
		.key_caller = ev_namez(session, LOCK_KEY_CALLER),
		.key_owner = ev_namez(session, LOCK_KEY_OWNER),
		.key_errno = ev_namez(session, LOCK_KEY_ERRNO),
		.key_failures = ev_namez(session, LOCK_KEY_FAILURES),
		.key_calls = ev_namez(session, LOCK_KEY_CALLS),
	};
	struct merge_stats stats;
	bool sorted = false;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) != 0) {
		if (ret > 0) {
			text_note(options, session, &ev);
			ret = take(&l, &ev);
		}
		if (ret == -ENOMEM)
			break; /* one file that fails: the others go on */
	}
	if (ret == 0 && l.all) {
		merge_stats(merge, &stats);
		sort_rows(&l.functions);
		sort_rows(&l.locks);
		sorted = true;
		if (options->json)
			ret = print_json(&l, session, stats.read.lost, out);
		else
			print_words(&l, session, stats.read.lost, out, options->most);
	}
	if (ret < 0)
		err_set(err, ret, "cannot print the tables: %s", strerror(-ret));
	table_free(&l.functions, sorted);
	table_free(&l.locks, sorted);
	free(l.names);
	return ret < 0 ? ret : (int64_t)l.all;
}
