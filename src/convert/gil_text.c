/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Tables of recorded interpreter locks; see gil_text.h. */
#include "convert/gil_text.h"

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

/** struct thr - a thread, with the lock of one interpreter */
struct thr {
	uint32_t process; /* row */
	int32_t tid;
	uint32_t name;
	uint64_t interpreter; /* 0 = the main one */
	struct latency hold, wait;
	uint64_t forced; /* holds that others ended by asking */
	uint64_t cost_ns; /* that others waited while it held */
};

/** struct span - of a thread: a wait that may still last, or the newest hold */
struct span {
	uint32_t thread; /* row */
	uint64_t interpreter;
	uint64_t begin_ns, end_ns;
};

struct process {
	int32_t rank, pid;
	uint64_t first_ns, last_ns;
	uint64_t held_ns;
	uint64_t any_waits_ns; /* at least one thread waited */
	uint64_t waits_until_ns; /* any_waits_ns is counted up to here */
	struct span *waits, *holds; /* those that may still overlap what comes */
	uint32_t waits_count, waits_room, holds_count, holds_room;
};

/** struct pair - the convoy: who held while who waited */
struct pair {
	uint64_t key; /* 1 + holder << 32 | 1 + waiter; 0 = free slot */
	uint64_t times, ns;
};

struct name {
	int32_t rank, pid, tid;
	uint32_t name;
};

struct gil {
	struct thr *threads;
	uint32_t threads_count, threads_room;
	uint32_t recent; /* thread looked up last */
	struct process *processes;
	uint32_t processes_count;
	struct pair *pairs; /* open addressing */
	uint32_t pairs_mask, pairs_count;
	struct name *names;
	uint32_t names_count, names_room;
	uint32_t key_interpreter, key_forced, name_hold, name_wait;
	uint64_t all;
};

/* ---- who ---------------------------------------------------------------------------------------------------------- */

static int process_of(struct gil *g, const struct event *ev)
{
	struct process *rows;
	uint32_t i;

	for (i = g->processes_count; i-- > 0;)
		if (g->processes[i].pid == ev->track.pid && g->processes[i].rank == ev->rank)
			return (int)i;
	rows = realloc(g->processes, (g->processes_count + 1) * sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	g->processes = rows;
	rows[g->processes_count] = (struct process){ .rank = ev->rank, .pid = ev->track.pid, .first_ns = ev->t_ns };
	return (int)g->processes_count++;
}

static bool is_thread(const struct gil *g, uint32_t i, uint32_t process, int32_t tid, uint64_t interpreter)
{
	const struct thr *t = &g->threads[i];

	return t->process == process && t->tid == tid && t->interpreter == interpreter;
}

static int thread_of(struct gil *g, uint32_t process, int32_t tid, uint64_t interpreter)
{
	uint32_t i;

	if (g->recent < g->threads_count && is_thread(g, g->recent, process, tid, interpreter))
		return (int)g->recent;
	for (i = g->threads_count; i-- > 0;) /* the newest are the likeliest */
		if (is_thread(g, i, process, tid, interpreter))
			return (int)(g->recent = i);
	if (rows_grow(&g->threads, g->threads_count, &g->threads_room, sizeof(*g->threads)) < 0)
		return -ENOMEM;
	g->threads[g->threads_count] = (struct thr){ .process = process, .tid = tid, .interpreter = interpreter };
	return (int)(g->recent = g->threads_count++);
}

static int take_name(struct gil *g, const struct event *ev)
{
	if (rows_grow(&g->names, g->names_count, &g->names_room, sizeof(*g->names)) < 0)
		return -ENOMEM;
	g->names[g->names_count++] = (struct name){ ev->rank, ev->track.pid, ev->track.tid, ev->name };
	return 0;
}

static void name_threads(struct gil *g)
{
	uint32_t i, k;

	for (i = 0; i < g->threads_count; i++) {
		const struct process *process = &g->processes[g->threads[i].process];

		for (k = 0; k < g->names_count && !g->threads[i].name; k++)
			if (g->names[k].tid == g->threads[i].tid && g->names[k].pid == process->pid &&
			    g->names[k].rank == process->rank)
				g->threads[i].name = g->names[k].name;
	}
}

/* ---- the convoy --------------------------------------------------------------------------------------------------- */

static struct pair *pair_slot(struct pair *pairs, uint32_t mask, uint64_t key)
{
	uint32_t at = (uint32_t)hash64_mix(key, 0x9e3779b97f4a7c15u) & mask;

	while (pairs[at].key && pairs[at].key != key)
		at = (at + 1) & mask;
	return &pairs[at];
}

static int pairs_grow(struct gil *g)
{
	uint32_t mask = g->pairs ? g->pairs_mask * 2 + 1 : 255, i;
	struct pair *pairs = calloc((size_t)mask + 1, sizeof(*pairs));

	if (!pairs)
		return -ENOMEM;
	for (i = 0; g->pairs && i <= g->pairs_mask; i++)
		if (g->pairs[i].key)
			*pair_slot(pairs, mask, g->pairs[i].key) = g->pairs[i];
	free(g->pairs);
	g->pairs = pairs;
	g->pairs_mask = mask;
	return 0;
}

/* One holds while the other waits: as long as both last. */
static int overlap(struct gil *g, const struct span *hold, const struct span *wait)
{
	uint64_t begin_ns = hold->begin_ns > wait->begin_ns ? hold->begin_ns : wait->begin_ns;
	uint64_t end_ns = hold->end_ns < wait->end_ns ? hold->end_ns : wait->end_ns;
	uint64_t key = ((uint64_t)hold->thread + 1) << 32 | (wait->thread + 1);
	struct pair *pair;

	if (end_ns <= begin_ns || hold->interpreter != wait->interpreter || hold->thread == wait->thread)
		return 0;
	if ((!g->pairs || g->pairs_count > g->pairs_mask / 2) && pairs_grow(g) < 0)
		return -ENOMEM;
	pair = pair_slot(g->pairs, g->pairs_mask, key);
	g->pairs_count += !pair->key;
	pair->key = key;
	pair->times++;
	pair->ns += end_ns - begin_ns;
	g->threads[hold->thread].cost_ns += end_ns - begin_ns;
	return 0;
}

/* Drop spans that are over at @t_ns: what comes begins later. */
static void forget(struct span *spans, uint32_t *count, uint64_t t_ns)
{
	uint32_t i = 0;

	while (i < *count) {
		if (spans[i].end_ns <= t_ns)
			spans[i] = spans[--*count];
		else
			i++;
	}
}

static int take_hold(struct gil *g, struct process *process, const struct span *hold)
{
	uint32_t i;
	int ret = 0;

	for (i = 0; i < process->waits_count && ret == 0; i++)
		ret = overlap(g, hold, &process->waits[i]);
	if (ret == 0)
		ret = rows_grow(&process->holds, process->holds_count, &process->holds_room, sizeof(*process->holds));
	if (ret < 0)
		return ret;
	process->holds[process->holds_count++] = *hold;
	process->held_ns += hold->end_ns - hold->begin_ns;
	return latency_add(&g->threads[hold->thread].hold, hold->end_ns - hold->begin_ns);
}

static int take_wait(struct gil *g, struct process *process, const struct span *wait)
{
	uint64_t from_ns = wait->begin_ns > process->waits_until_ns ? wait->begin_ns : process->waits_until_ns;
	uint32_t i;
	int ret = 0;

	for (i = 0; i < process->holds_count && ret == 0; i++)
		ret = overlap(g, &process->holds[i], wait);
	if (ret == 0)
		ret = rows_grow(&process->waits, process->waits_count, &process->waits_room, sizeof(*process->waits));
	if (ret < 0)
		return ret;
	process->waits[process->waits_count++] = *wait;
	if (wait->end_ns > from_ns) {
		process->any_waits_ns += wait->end_ns - from_ns;
		process->waits_until_ns = wait->end_ns;
	}
	return latency_add(&g->threads[wait->thread].wait, wait->end_ns - wait->begin_ns);
}

static int take(struct gil *g, const struct event *ev)
{
	const struct ev_arg *interpreter = locks_arg(ev, g->key_interpreter);
	struct span span = { .interpreter = interpreter ? interpreter->u64 : 0,
			     .begin_ns = ev->t_ns,
			     .end_ns = ev->t_ns + ev->dur_ns };
	struct process *process;
	int row, thread;

	if (ev->kind == EV_TASK)
		return take_name(g, ev);
	if (ev->kind != EV_GIL || (ev->name != g->name_hold && ev->name != g->name_wait))
		return 0;
	row = process_of(g, ev);
	thread = row < 0 ? row : thread_of(g, (uint32_t)row, ev->track.tid, span.interpreter);
	if (thread < 0)
		return thread;
	span.thread = (uint32_t)thread;
	process = &g->processes[row];
	if (span.end_ns > process->last_ns)
		process->last_ns = span.end_ns;
	g->all++;
	forget(process->waits, &process->waits_count, span.begin_ns);
	forget(process->holds, &process->holds_count, span.begin_ns);
	if (ev->name == g->name_wait)
		return take_wait(g, process, &span);
	g->threads[thread].forced += locks_arg(ev, g->key_forced) != NULL;
	return take_hold(g, process, &span);
}

/* ---- printing ----------------------------------------------------------------------------------------------------- */

static uint64_t span_ns(const struct process *process)
{
	return process->last_ns > process->first_ns ? process->last_ns - process->first_ns : 0;
}

static double pct(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

static uint64_t waited_ns(const struct gil *g, uint32_t process)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < g->threads_count; i++)
		sum += g->threads[i].process == process ? g->threads[i].wait.total_ns : 0;
	return sum;
}

static int by_hold(const void *a, const void *b)
{
	const struct thr *const *x = a, *const *y = b;

	if ((*x)->process != (*y)->process)
		return (*x)->process < (*y)->process ? -1 : 1;
	if ((*x)->hold.total_ns != (*y)->hold.total_ns)
		return (*x)->hold.total_ns < (*y)->hold.total_ns ? 1 : -1;
	return (*x)->tid < (*y)->tid ? -1 : (*x)->tid > (*y)->tid;
}

static int by_ns(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	if (x->ns != y->ns)
		return x->ns < y->ns ? 1 : -1;
	return x->key < y->key ? -1 : x->key > y->key;
}

/* Return: rows in front of the table, most time first. */
static uint32_t sort_pairs(struct gil *g)
{
	uint32_t i, used = 0;

	for (i = 0; g->pairs && i <= g->pairs_mask; i++)
		if (g->pairs[i].key)
			g->pairs[used++] = g->pairs[i];
	if (used)
		qsort(g->pairs, used, sizeof(*g->pairs), by_ns);
	return used;
}

static const struct thr *holder_of(const struct gil *g, const struct pair *pair)
{
	return &g->threads[(pair->key >> 32) - 1];
}

static const struct thr *waiter_of(const struct gil *g, const struct pair *pair)
{
	return &g->threads[(pair->key & UINT32_MAX) - 1];
}

static void thread_text(const struct gil *g, const struct ev_session *session, const struct thr *t, char *text,
			size_t room)
{
	const char *name = ev_text(session, t->name);
	size_t used;

	used = (size_t)snprintf(text, room, "%d", t->tid);
	if (*name)
		used += (size_t)snprintf(text + used, room - used, " %.40s", name);
	if (t->tid == g->processes[t->process].pid)
		used += (size_t)snprintf(text + used, room - used, " (main)");
	if (t->interpreter)
		snprintf(text + used, room - used, " [interpreter %" PRIu64 "]", t->interpreter);
}

static void print_threads(const struct gil *g, const struct ev_session *session, struct thr **rows, FILE *out)
{
	uint32_t i, last = UINT32_MAX;
	char text[128];

	for (i = 0; i < g->threads_count; i++) {
		const struct thr *t = rows[i];
		const struct process *process = &g->processes[t->process];

		if (t->process != last) {
			last = t->process;
			fputc('\n', out);
			if (process->rank >= 0)
				fprintf(out, "rank %d, ", process->rank);
			fprintf(out,
				"process %d: held %.1f %% of %.3f s; somebody waited %.1f %% of it, %.2f threads on average\n",
				process->pid, pct(process->held_ns, span_ns(process)), (double)span_ns(process) / 1e9,
				pct(process->any_waits_ns, span_ns(process)),
				pct(waited_ns(g, t->process), span_ns(process)) / 100);
			fprintf(out, "%12s %7s %9s %9s %11s | %12s %9s %10s %11s | %14s  %s\n", "held ms", "held %",
				"holds", "forced", "longest ms", "waited ms", "waits", "p99 ms", "longest ms",
				"others waited", "thread");
		}
		thread_text(g, session, t, text, sizeof(text));
		fprintf(out,
			"%12.3f %7.1f %9" PRIu64 " %9" PRIu64 " %11.3f | %12.3f %9" PRIu64
			" %10.3f %11.3f | %11.3f ms  %s\n",
			(double)t->hold.total_ns / 1e6, pct(t->hold.total_ns, span_ns(process)), t->hold.count,
			t->forced, (double)t->hold.max_ns / 1e6, (double)t->wait.total_ns / 1e6, t->wait.count,
			latency_us(&t->wait, 0.99) / 1e3, (double)t->wait.max_ns / 1e6, (double)t->cost_ns / 1e6, text);
	}
}

static void print_pairs(struct gil *g, const struct ev_session *session, FILE *out, size_t most)
{
	uint32_t used = sort_pairs(g), i;
	char holder[128], waiter[128];

	if (!used)
		return;
	fprintf(out, "\n%12s %9s  %-36s %s\n", "waited ms", "times", "for the holder", "waiting thread");
	for (i = 0; i < used && i < most; i++) {
		thread_text(g, session, holder_of(g, &g->pairs[i]), holder, sizeof(holder));
		thread_text(g, session, waiter_of(g, &g->pairs[i]), waiter, sizeof(waiter));
		fprintf(out, "%12.3f %9" PRIu64 "  %-36s %s\n", (double)g->pairs[i].ns / 1e6, g->pairs[i].times, holder,
			waiter);
	}
	if (used > most)
		fprintf(out, "%12s and %u pairs more with less time\n", "", used - (uint32_t)most);
}

static void json_threads(struct table_json *to, const struct gil *g, const struct ev_session *session,
			 struct thr **rows)
{
	uint32_t i;

	table_json_list(to, "threads");
	for (i = 0; i < g->threads_count; i++) {
		const struct thr *t = rows[i];

		table_json_row(to);
		table_json_i64(to, "rank", g->processes[t->process].rank);
		table_json_i64(to, "pid", g->processes[t->process].pid);
		table_json_i64(to, "tid", t->tid);
		table_json_text(to, "name", ev_text(session, t->name));
		table_json_u64(to, "interpreter", t->interpreter);
		table_json_u64(to, "holds", t->hold.count);
		table_json_u64(to, "hold_ns", t->hold.total_ns);
		table_json_u64(to, "longest_hold_ns", t->hold.max_ns);
		table_json_u64(to, "forced", t->forced);
		table_json_u64(to, "waits", t->wait.count);
		table_json_u64(to, "wait_ns", t->wait.total_ns);
		table_json_u64(to, "longest_wait_ns", t->wait.max_ns);
		table_json_u64(to, "others_waited_ns", t->cost_ns);
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static void json_processes(struct table_json *to, const struct gil *g)
{
	uint32_t i;

	table_json_list(to, "processes");
	for (i = 0; i < g->processes_count; i++) {
		const struct process *process = &g->processes[i];

		table_json_row(to);
		table_json_i64(to, "rank", process->rank);
		table_json_i64(to, "pid", process->pid);
		table_json_u64(to, "span_ns", span_ns(process));
		table_json_u64(to, "held_ns", process->held_ns);
		table_json_u64(to, "somebody_waited_ns", process->any_waits_ns);
		table_json_u64(to, "waited_ns", waited_ns(g, i));
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static void json_pairs(struct table_json *to, struct gil *g)
{
	uint32_t used = sort_pairs(g), i;

	table_json_list(to, "convoy");
	for (i = 0; i < used; i++) {
		const struct thr *holder = holder_of(g, &g->pairs[i]);

		table_json_row(to);
		table_json_i64(to, "pid", g->processes[holder->process].pid);
		table_json_i64(to, "holder_tid", holder->tid);
		table_json_i64(to, "waiter_tid", waiter_of(g, &g->pairs[i])->tid);
		table_json_u64(to, "times", g->pairs[i].times);
		table_json_u64(to, "waited_ns", g->pairs[i].ns);
		table_json_row_end(to);
	}
	table_json_list_end(to);
}

static int print(struct gil *g, const struct ev_session *session, uint64_t lost, FILE *out,
		 const struct text_options *options)
{
	struct thr **rows = malloc(((size_t)g->threads_count + 1) * sizeof(struct thr *));
	struct table_json to;
	uint32_t i;
	int ret = rows ? 0 : -ENOMEM;

	if (ret < 0)
		return ret;
	name_threads(g);
	for (i = 0; i < g->threads_count; i++)
		rows[i] = &g->threads[i];
	qsort(rows, g->threads_count, sizeof(struct thr *), by_hold);
	if (!options->json) {
		fprintf(out,
			"%u processes, %u threads, %" PRIu64 " holds and waits, %" PRIu64
			" records lost while recording\n",
			g->processes_count, g->threads_count, g->all, lost);
		print_threads(g, session, rows, out);
		print_pairs(g, session, out, options->most);
	} else if ((ret = table_json_begin(&to, out)) == 0) {
		table_json_u64(&to, "lost", lost);
		json_processes(&to, g);
		json_threads(&to, g, session, rows);
		json_pairs(&to, g);
		ret = table_json_end(&to);
	}
	free(rows);
	return ret;
}

static void gil_free(struct gil *g)
{
	uint32_t i;

	for (i = 0; i < g->threads_count; i++) {
		latency_fini(&g->threads[i].hold);
		latency_fini(&g->threads[i].wait);
	}
	for (i = 0; i < g->processes_count; i++) {
		free(g->processes[i].waits);
		free(g->processes[i].holds);
	}
	free(g->threads);
	free(g->processes);
	free(g->pairs);
	free(g->names);
}

int64_t gil_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		       struct st_err *err)
{
	struct gil g = {
		.key_interpreter = ev_namez(session, GIL_KEY_INTERPRETER),
		.key_forced = ev_namez(session, GIL_KEY_FORCED),
		.name_hold = ev_namez(session, GIL_NAME_HOLD),
		.name_wait = ev_namez(session, GIL_NAME_WAIT),
	};
	struct merge_stats stats;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) != 0) {
		if (ret > 0) {
			text_note(options, session, &ev);
			ret = take(&g, &ev);
		}
		if (ret == -ENOMEM)
			break; /* one file that fails: the others go on */
	}
	if (ret == 0 && g.all) {
		merge_stats(merge, &stats);
		ret = print(&g, session, stats.read.lost, out, options);
	}
	if (ret < 0)
		err_set(err, ret, "cannot print the tables: %s", strerror(-ret));
	gil_free(&g);
	return ret < 0 ? ret : (int64_t)g.all;
}
