/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Tables of recorded scheduling; see os_text.h. Waiting time is laid over what ran on that CPU meanwhile (other tasks, and
 * the job's own threads), so that each taker gets exactly the time it had; what nobody is recorded for stays "not recorded".
 */
#include "convert/os_text.h"

#include "convert/latency.h"
#include "convert/rows.h"
#include "convert/table_json.h"
#include "trace/os.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CPUS 4096

/** struct taker - who ran on a CPU while a thread of the rank waited for it */
struct taker {
	uint32_t name; /* "hog 1234" */
	bool own; /* a thread of the job itself */
	uint64_t ns, times;
};

/** struct thread - what one thread did */
struct thread {
	int32_t pid, tid;
	uint32_t name;
	uint64_t run_ns, sleep_ns, unint_ns, irq_ns, softirq_ns, runs, preempted, migrations;
	struct latency wait;
};

/** struct span - a stretch of time on a CPU: somebody ran, or somebody waited */
struct span {
	uint64_t begin_ns, end_ns;
	uint32_t who; /* name id of one who ran */
	bool own;
};

struct spans {
	struct span *list;
	uint32_t count, room;
};

/** struct rank - a rank, or a process without one */
struct rank {
	int32_t rank, pid;
	struct thread *threads;
	uint32_t threads_count, threads_room;
	struct taker *takers;
	uint32_t takers_count, takers_room;
	struct spans *ran, *waits; /* by CPU, those that may still meet others */
	uint64_t first_ns, last_ns, wait_ns, taken_ns;
};

struct os_sum {
	struct rank *ranks;
	uint32_t ranks_count, ranks_room;
	uint64_t events, lost;
	uint32_t name_preempted, name_runnable, name_uninterruptible, key_irq, key_softirq, key_migrations;
};

/* ---- finding rows ----------------------------------------------------------------------------------------------------- */

static struct rank *rank_of(struct os_sum *sum, const struct event *ev)
{
	int32_t pid = ev->rank >= 0 ? -1 : ev->track.pid;
	struct rank *rank;

	for (uint32_t i = 0; i < sum->ranks_count; i++)
		if (sum->ranks[i].rank == ev->rank && sum->ranks[i].pid == pid)
			return &sum->ranks[i];
	if (rows_grow(&sum->ranks, sum->ranks_count, &sum->ranks_room, sizeof(*rank)) < 0)
		return NULL;
	rank = &sum->ranks[sum->ranks_count];
	*rank = (struct rank){ .rank = ev->rank,
			       .pid = pid,
			       .first_ns = ev->t_ns,
			       .ran = calloc(CPUS, sizeof(struct spans)),
			       .waits = calloc(CPUS, sizeof(struct spans)) };
	if (!rank->ran || !rank->waits) {
		free(rank->ran);
		free(rank->waits);
		return NULL;
	}
	sum->ranks_count++;
	return rank;
}

static struct thread *thread_of(struct rank *rank, const struct event *ev)
{
	struct thread *thread;

	for (uint32_t i = rank->threads_count; i-- > 0;)
		if (rank->threads[i].tid == ev->track.tid && rank->threads[i].pid == ev->track.pid)
			return &rank->threads[i];
	if (rows_grow(&rank->threads, rank->threads_count, &rank->threads_room, sizeof(*thread)) < 0)
		return NULL;
	thread = &rank->threads[rank->threads_count++];
	*thread = (struct thread){ .pid = ev->track.pid, .tid = ev->track.tid };
	return thread;
}

static int count_taker(struct rank *rank, const struct span *ran, uint64_t ns)
{
	struct taker *taker = NULL;

	for (uint32_t i = 0; i < rank->takers_count && !taker; i++)
		if (rank->takers[i].name == ran->who)
			taker = &rank->takers[i];
	if (!taker) {
		if (rows_grow(&rank->takers, rank->takers_count, &rank->takers_room, sizeof(*taker)) < 0)
			return -ENOMEM;
		taker = &rank->takers[rank->takers_count++];
		*taker = (struct taker){ .name = ran->who, .own = ran->own };
	}
	taker->ns += ns;
	taker->times++;
	rank->taken_ns += ns;
	return 0;
}

/* ---- laying waits over what ran --------------------------------------------------------------------------------------- */

static uint64_t overlap(const struct span *a, const struct span *b)
{
	uint64_t begin = a->begin_ns > b->begin_ns ? a->begin_ns : b->begin_ns;
	uint64_t end = a->end_ns < b->end_ns ? a->end_ns : b->end_ns;

	return end > begin ? end - begin : 0;
}

/*
 * Meet a new span with those of the other kind that it overlaps, and keep it for those that begin later. Spans come in
 * order of their begin, so one that is over by now meets nobody any more.
 */
static int meet(struct rank *rank, const struct span *span, bool ran, uint32_t cpu)
{
	struct spans *others = ran ? &rank->waits[cpu] : &rank->ran[cpu];
	struct spans *same = ran ? &rank->ran[cpu] : &rank->waits[cpu];
	uint32_t kept = 0;
	int ret = 0;

	for (uint32_t i = 0; i < others->count; i++) {
		struct span *other = &others->list[i];
		uint64_t ns = overlap(span, other);

		if (ns && ret == 0)
			ret = count_taker(rank, ran ? span : other, ns);
		if (other->end_ns > span->begin_ns)
			others->list[kept++] = *other;
	}
	others->count = kept;
	kept = 0;
	for (uint32_t i = 0; i < same->count; i++)
		if (same->list[i].end_ns > span->begin_ns)
			same->list[kept++] = same->list[i];
	same->count = kept;
	if (ret == 0)
		ret = rows_grow(&same->list, same->count, &same->room, sizeof(*span));
	if (ret == 0)
		same->list[same->count++] = *span;
	return ret;
}

/* ---- counting --------------------------------------------------------------------------------------------------------- */

static uint64_t number_of(const struct event *ev, uint32_t key)
{
	for (uint8_t i = 0; i < ev->nargs; i++)
		if (ev->args[i].key == key)
			return ev->args[i].u64;
	return 0;
}

static int count_off(struct os_sum *sum, struct rank *rank, struct thread *thread, const struct event *ev)
{
	struct span span = { ev->t_ns, ev->t_ns + ev->dur_ns, 0, false };

	if (ev->name != sum->name_preempted && ev->name != sum->name_runnable) {
		if (ev->name == sum->name_uninterruptible)
			thread->unint_ns += ev->dur_ns;
		else
			thread->sleep_ns += ev->dur_ns;
		return 0;
	}
	thread->preempted += ev->name == sum->name_preempted;
	thread->migrations += number_of(ev, sum->key_migrations);
	rank->wait_ns += ev->dur_ns;
	if (latency_add(&thread->wait, ev->dur_ns) < 0)
		return -ENOMEM;
	return ev->track.cpu >= 0 && ev->track.cpu < CPUS ? meet(rank, &span, false, (uint32_t)ev->track.cpu) : 0;
}

static int count_ran(struct rank *rank, const struct event *ev)
{
	struct span span = { ev->t_ns, ev->t_ns + ev->dur_ns, ev->nargs ? ev->args[OS_ARG_WHO].name : 0,
			     ev->kind == EV_ONCPU };

	return ev->track.cpu >= 0 && ev->track.cpu < CPUS ? meet(rank, &span, true, (uint32_t)ev->track.cpu) : 0;
}

static int count(struct os_sum *sum, const struct event *ev)
{
	struct rank *rank;
	struct thread *thread;

	if (ev->kind != EV_OFFCPU && ev->kind != EV_ONCPU && ev->kind != EV_TAKER)
		return 0;
	rank = rank_of(sum, ev);
	if (!rank)
		return -ENOMEM;
	sum->events++;
	if (ev->kind == EV_TAKER)
		return count_ran(rank, ev);
	if (ev->t_ns < rank->first_ns)
		rank->first_ns = ev->t_ns;
	if (ev->t_ns + ev->dur_ns > rank->last_ns)
		rank->last_ns = ev->t_ns + ev->dur_ns;
	thread = thread_of(rank, ev);
	if (!thread)
		return -ENOMEM;
	if (ev->kind == EV_OFFCPU)
		return count_off(sum, rank, thread, ev);
	thread->run_ns += ev->dur_ns;
	thread->runs++;
	thread->irq_ns += number_of(ev, sum->key_irq);
	thread->softirq_ns += number_of(ev, sum->key_softirq);
	if (ev->nargs)
		thread->name = ev->args[OS_ARG_WHO].name;
	return count_ran(rank, ev);
}

/* ---- printing --------------------------------------------------------------------------------------------------------- */

static int by_ns(const void *a, const void *b)
{
	const struct taker *left = a, *right = b;

	return (left->ns < right->ns) - (left->ns > right->ns);
}

static int by_wait(const void *a, const void *b)
{
	const struct thread *left = a, *right = b;

	if (left->wait.total_ns != right->wait.total_ns)
		return left->wait.total_ns < right->wait.total_ns ? 1 : -1;
	return (left->run_ns < right->run_ns) - (left->run_ns > right->run_ns);
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static double pct(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_takers(const struct ev_session *session, const struct rank *rank, FILE *out, size_t most)
{
	uint64_t rest = rank->wait_ns > rank->taken_ns ? rank->wait_ns - rank->taken_ns : 0;

	if (!rank->wait_ns)
		return;
	fprintf(out, "\n  who ran instead while its threads waited for a CPU (%.3f ms of waiting)\n",
		ms(rank->wait_ns));
	fprintf(out, "  %12s  %6s  %9s  %s\n", "ms", "%", "times", "task");
	for (uint32_t i = 0; i < rank->takers_count && i < most; i++)
		fprintf(out, "  %12.3f  %6.1f  %9" PRIu64 "  %s%s\n", ms(rank->takers[i].ns),
			pct(rank->takers[i].ns, rank->wait_ns), rank->takers[i].times,
			ev_text(session, rank->takers[i].name), rank->takers[i].own ? " (of the job itself)" : "");
	if (rank->takers_count > most)
		fprintf(out, "  ... and %u more (--json has all)\n", (unsigned int)(rank->takers_count - most));
	if (rest)
		fprintf(out, "  %12.3f  %6.1f  %9s  (nobody recorded: switching, idle CPU waking up, the host)\n",
			ms(rest), pct(rest, rank->wait_ns), "");
}

static void print_threads(const struct ev_session *session, const struct rank *rank, FILE *out, size_t most)
{
	fprintf(out, "\n  %10s %10s %10s %10s %9s %9s %8s %8s %8s  %s\n", "ran ms", "waited ms", "slept ms", "disk ms",
		"switches", "preempted", "p50 us", "p99 us", "max us", "thread");
	for (uint32_t i = 0; i < rank->threads_count && i < most; i++) {
		const struct thread *t = &rank->threads[i];

		fprintf(out, "  %10.1f %10.1f %10.1f %10.1f %9" PRIu64 " %9" PRIu64 " %8.0f %8.0f %8.0f  %s\n",
			ms(t->run_ns), ms(t->wait.total_ns), ms(t->sleep_ns), ms(t->unint_ns), t->runs, t->preempted,
			latency_us(&t->wait, 0.5), latency_us(&t->wait, 0.99), (double)t->wait.max_ns / 1e3,
			ev_text(session, t->name));
	}
	if (rank->threads_count > most)
		fprintf(out, "  ... and %u more (--json has all)\n", (unsigned int)(rank->threads_count - most));
}

static void print_words(const struct ev_session *session, const struct os_sum *sum, FILE *out, size_t most)
{
	for (uint32_t i = 0; i < sum->ranks_count; i++) {
		const struct rank *rank = &sum->ranks[i];

		if (rank->rank >= 0)
			fprintf(out, "%srank %d", i ? "\n" : "", rank->rank);
		else
			fprintf(out, "%sprocess %d", i ? "\n" : "", rank->pid);
		fprintf(out, ": %.3f s, %u threads\n", (double)(rank->last_ns - rank->first_ns) / 1e9,
			rank->threads_count);
		print_takers(session, rank, out, most);
		print_threads(session, rank, out, most);
	}
}

static void json_rank(const struct ev_session *session, const struct rank *rank, struct table_json *to, bool takers)
{
	for (uint32_t i = 0; takers && i < rank->takers_count; i++) {
		table_json_row(to);
		table_json_i64(to, "rank", rank->rank);
		if (rank->rank < 0)
			table_json_i64(to, "process", rank->pid);
		table_json_text(to, "task", ev_text(session, rank->takers[i].name));
		table_json_u64(to, "own", rank->takers[i].own);
		table_json_u64(to, "ns", rank->takers[i].ns);
		table_json_u64(to, "times", rank->takers[i].times);
		table_json_row_end(to);
	}
	for (uint32_t i = 0; !takers && i < rank->threads_count; i++) {
		const struct thread *t = &rank->threads[i];

		table_json_row(to);
		table_json_i64(to, "rank", rank->rank);
		if (rank->rank < 0)
			table_json_i64(to, "process", rank->pid);
		table_json_text(to, "thread", ev_text(session, t->name));
		table_json_i64(to, "pid", t->pid);
		table_json_i64(to, "tid", t->tid);
		table_json_u64(to, "run_ns", t->run_ns);
		table_json_u64(to, "sleep_ns", t->sleep_ns);
		table_json_u64(to, "uninterruptible_ns", t->unint_ns);
		table_json_u64(to, "switches", t->runs);
		table_json_u64(to, "preempted", t->preempted);
		table_json_u64(to, "migrations", t->migrations);
		table_json_u64(to, "irq_ns", t->irq_ns);
		table_json_u64(to, "softirq_ns", t->softirq_ns);
		table_json_u64(to, "waits", t->wait.count);
		table_json_u64(to, "wait_ns", t->wait.total_ns);
		table_json_latency(to, &t->wait);
		table_json_row_end(to);
	}
}

static int print_json(const struct ev_session *session, const struct os_sum *sum, FILE *out)
{
	struct table_json to;
	int ret = table_json_begin(&to, out);

	if (ret < 0)
		return ret;
	table_json_u64(&to, "spans", sum->events);
	table_json_u64(&to, "lost", sum->lost);
	table_json_list(&to, "ranks");
	for (uint32_t i = 0; i < sum->ranks_count; i++) {
		const struct rank *rank = &sum->ranks[i];

		table_json_row(&to);
		table_json_i64(&to, "rank", rank->rank);
		table_json_u64(&to, "span_ns", rank->last_ns - rank->first_ns);
		table_json_u64(&to, "wait_ns", rank->wait_ns);
		table_json_u64(&to, "taken_ns", rank->taken_ns);
		table_json_row_end(&to);
	}
	table_json_list_end(&to);
	table_json_list(&to, "takers");
	for (uint32_t i = 0; i < sum->ranks_count; i++)
		json_rank(session, &sum->ranks[i], &to, true);
	table_json_list_end(&to);
	table_json_list(&to, "threads");
	for (uint32_t i = 0; i < sum->ranks_count; i++)
		json_rank(session, &sum->ranks[i], &to, false);
	table_json_list_end(&to);
	return table_json_end(&to);
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

static void rank_fini(struct rank *rank)
{
	for (uint32_t i = 0; i < rank->threads_count; i++)
		latency_fini(&rank->threads[i].wait);
	for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
		free(rank->ran[cpu].list);
		free(rank->waits[cpu].list);
	}
	free(rank->ran);
	free(rank->waits);
	free(rank->threads);
	free(rank->takers);
}

int64_t os_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		      struct st_err *err)
{
	struct os_sum sum = {
		.name_preempted = ev_namez(session, "Preempted"),
		.name_runnable = ev_namez(session, "Runnable"),
		.name_uninterruptible = ev_namez(session, "Uninterruptible sleep"),
		.key_irq = ev_namez(session, "irq_ns"),
		.key_softirq = ev_namez(session, "softirq_ns"),
		.key_migrations = ev_namez(session, "migrations"),
	};
	struct merge_stats stats;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) > 0) {
		ret = count(&sum, &ev);
		if (ret < 0) {
			err_set(err, ret, "out of memory");
			break;
		}
	}
	merge_stats(merge, &stats);
	sum.lost = stats.read.lost;
	for (uint32_t i = 0; i < sum.ranks_count; i++) {
		struct rank *rank = &sum.ranks[i];

		if (rank->takers_count)
			qsort(rank->takers, rank->takers_count, sizeof(*rank->takers), by_ns);
		if (rank->threads_count)
			qsort(rank->threads, rank->threads_count, sizeof(*rank->threads), by_wait);
	}
	if (ret == 0 && sum.events && options->json)
		ret = print_json(session, &sum, out);
	else if (ret == 0 && sum.events)
		print_words(session, &sum, out, options->most);
	if (ret == 0 && sum.events && sum.lost && !options->json)
		fprintf(out, "\n%" PRIu64 " events were lost while recording: the sums are too small by them\n",
			sum.lost);
	if (ret < 0 && err && !err->code)
		err_set(err, ret, "cannot write the tables: %s", strerror(-ret));
	for (uint32_t i = 0; i < sum.ranks_count; i++)
		rank_fini(&sum.ranks[i]);
	free(sum.ranks);
	return ret < 0 ? ret : (int64_t)sum.events;
}
