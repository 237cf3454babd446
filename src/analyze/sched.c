/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums of a scheduling trace: spans in, sums grow; see sched.h. Sorting and grouping: sched_result.c. */
#include "analyze/sched_impl.h"

#include "base/cpulist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_PID 0
#define TOP_DEFAULT 10
#define MAX_CPU 65536 /* larger numbers, from damaged wake-ups, get no row of their own */

const char *sched_irq_word(enum sched_irq_type type)
{
	return type == SCHED_IRQ ? "irq" : "softirq";
}

const char *sched_wait_word(const struct sched_wait *wait)
{
	if (wait->flags & SPAN_PREEMPTED)
		return "preempted";
	if (wait->flags & SPAN_BEGIN_UNSEEN)
		return "unknown";
	return wait->flags & SPAN_NEW_TASK ? "new" : "woken";
}

const char *sched_wait_end_word(const struct sched_wait *wait)
{
	return wait->flags & SPAN_END_UNSEEN ? "open" : wait->flags & SPAN_CUT_LOST ? "lost" : "ran";
}

/* ---- tables ----------------------------------------------------------------------------------------------------------- */

void *sched_tally_at(struct sched_tally *tally, const struct keymap_key *key, size_t size, int *fresh)
{
	int64_t place;

	if (keymap_room(&tally->items, tally->map.used, &tally->room, size))
		return NULL;
	place = keymap_place(&tally->map, key, fresh);
	return place < 0 ? NULL : (char *)tally->items + (size_t)place * size;
}

static struct sched_row *row_of(struct sched_sum *sum, uint32_t comm, int32_t pid, int32_t cpu)
{
	struct keymap_key key = { { comm, (uint32_t)pid, (uint32_t)cpu, 0 } };
	int fresh;
	struct sched_row *row = sched_tally_at(&sum->rows, &key, sizeof(*row), &fresh);

	if (row && fresh) {
		row->comm = comm;
		row->pid = pid;
		row->cpu = cpu;
	}
	return row;
}

static struct sched_pending *pending_of(struct sched_sum *sum, int32_t pid)
{
	struct keymap_key key = { { (uint32_t)pid } };
	int fresh;

	return sched_tally_at(&sum->pending, &key, sizeof(struct sched_pending), &fresh);
}

static struct sched_cpu *cpu_of(struct sched_sum *sum, int32_t cpu)
{
	while ((size_t)cpu >= sum->cpu_room)
		if (keymap_room((void **)&sum->cpus, sum->cpu_room, &sum->cpu_room, sizeof(*sum->cpus)))
			return NULL;
	sum->cpus[cpu].cpu = cpu;
	sum->cpus[cpu].seen = true;
	return &sum->cpus[cpu];
}

/* ---- filters ---------------------------------------------------------------------------------------------------------- */

static bool in_list(const char *list, int32_t number)
{
	uint32_t first, last;

	if (!list)
		return true;
	while (cpulist_next(&list, &first, &last) > 0)
		if (number >= 0 && (uint32_t)number >= first && (uint32_t)number <= last)
			return true;
	return false;
}

static bool want_cpu(const struct sched_sum *sum, int32_t cpu)
{
	return in_list(sum->options.cpus, cpu);
}

static bool want_pid(const struct sched_sum *sum, int32_t pid)
{
	return in_list(sum->options.pids, pid);
}

/* The part of a span that lies in the window. */
static uint64_t inside(const struct sched_sum *sum, const struct sched_span *span)
{
	uint64_t begin = span->begin_ns > sum->begin_ns ? span->begin_ns : sum->begin_ns;
	uint64_t end = span->end_ns < sum->end_ns ? span->end_ns : sum->end_ns;

	return end > begin ? end - begin : 0;
}

static bool moment_inside(const struct sched_sum *sum, uint64_t t_ns)
{
	return t_ns >= sum->begin_ns && t_ns <= sum->end_ns;
}

/* ---- longest waits: a heap with the shortest on top ----------------------------------------------------------------- */

static uint64_t wait_ns(const struct sched_wait *wait)
{
	return wait->end_ns - wait->begin_ns;
}

static void sift_down(struct sched_wait *heap, size_t count)
{
	size_t at = 0, child;

	while ((child = 2 * at + 1) < count) {
		struct sched_wait swap = heap[at];

		if (child + 1 < count && wait_ns(&heap[child + 1]) < wait_ns(&heap[child]))
			child++;
		if (wait_ns(&heap[child]) >= wait_ns(&heap[at]))
			return;
		heap[at] = heap[child];
		heap[child] = swap;
		at = child;
	}
}

static void sift_up(struct sched_wait *heap, size_t at)
{
	while (at && wait_ns(&heap[at]) < wait_ns(&heap[(at - 1) / 2])) {
		struct sched_wait swap = heap[at];

		heap[at] = heap[(at - 1) / 2];
		heap[(at - 1) / 2] = swap;
		at = (at - 1) / 2;
	}
}

static void keep_wait(struct sched_sum *sum, const struct sched_wait *wait)
{
	if (sum->wait_count < sum->options.top) {
		sum->waits[sum->wait_count] = *wait;
		sift_up(sum->waits, sum->wait_count++);
	} else if (wait_ns(wait) > wait_ns(&sum->waits[0])) {
		sum->waits[0] = *wait;
		sift_down(sum->waits, sum->wait_count);
	}
}

static bool long_enough(const struct sched_sum *sum, const struct sched_span *span)
{
	return sum->wait_count < sum->options.top || span->end_ns - span->begin_ns > wait_ns(&sum->waits[0]);
}

/* ---- spans ------------------------------------------------------------------------------------------------------------ */

static enum sched_time sleep_kind(const struct sched_sum *sum, uint32_t end_state)
{
	switch (ev_text(sum->session, end_state)[0]) {
	case 'S':
		return SCHED_SLEEP_S;
	case 'D':
		return SCHED_SLEEP_D;
	default:
		return SCHED_SLEEP_OTHER;
	}
}

static void offer_wait(struct sched_sum *sum, const struct sched_span *span, const struct sched_pending *pending)
{
	bool switched = !(span->flags & (SPAN_END_UNSEEN | SPAN_CUT_LOST)) && sum->last.t_ns == span->end_ns &&
			sum->last.next == span->pid;
	struct sched_wait wait = {
		.begin_ns = span->begin_ns,
		.end_ns = span->end_ns,
		.comm = span->comm,
		.flags = span->flags,
		.pid = span->pid,
		.cpu = span->cpu,
		.ran_cpu = switched ? sum->last.cpu : -1,
		.by = -1,
		.before = switched ? sum->last.prev : -1,
		.before_comm = switched ? sum->last.prev_comm : 0,
	};

	if ((span->flags & SPAN_PREEMPTED) && pending->preempted_ns == span->begin_ns) {
		wait.by = pending->by;
		wait.by_comm = pending->by_comm;
	} else if (!(span->flags & SPAN_PREEMPTED) && pending->woken_ns == span->begin_ns) {
		wait.by = pending->waker;
		wait.by_comm = pending->waker_comm;
	}
	keep_wait(sum, &wait);
}

static int add_runnable(struct sched_sum *sum, struct sched_row *row, const struct sched_span *span, uint64_t ns)
{
	struct sched_pending *pending = pending_of(sum, span->pid);
	bool real = span->cpu >= 0 && span->cpu < MAX_CPU;
	struct sched_cpu *cpu = real ? cpu_of(sum, span->cpu) : NULL;
	struct sched_pair *pair;

	if (!pending || (real && !cpu))
		return -ENOMEM;
	if (cpu)
		cpu->waiting_ns += ns;
	if (row && (span->flags & SPAN_PREEMPTED))
		row->preempted_ns += ns;
	if ((span->flags & SPAN_PREEMPTED) && pending->pair && pending->preempted_ns == span->begin_ns) {
		pair = (struct sched_pair *)sum->pairs.items + (pending->pair - 1);
		pair->waited_ns += ns;
		if (ns > pair->max_ns)
			pair->max_ns = ns;
	}
	if (row && long_enough(sum, span))
		offer_wait(sum, span, pending);
	if (pending->preempted_ns == span->begin_ns)
		pending->pair = 0;
	return 0;
}

static int add_state(struct sched_sum *sum, const struct sched_span *span)
{
	uint64_t ns = inside(sum, span);
	struct sched_row *row = NULL;
	enum sched_time time;

	if (!ns || span->pid == IDLE_PID || !want_cpu(sum, span->cpu))
		return 0;
	if (want_pid(sum, span->pid)) {
		time = span->state == TASK_RUNNING    ? SCHED_RUNNING
		       : span->state == TASK_RUNNABLE ? SCHED_RUNNABLE
						      : sleep_kind(sum, span->end_state);
		row = row_of(sum, span->comm, span->pid, span->cpu);
		if (!row)
			return -ENOMEM;
		row->ns[time] += ns;
		row->last_ns = span->end_ns;
	}
	return span->state == TASK_RUNNABLE ? add_runnable(sum, row, span, ns) : 0;
}

static int add_accounted(struct sched_sum *sum, const struct sched_span *span)
{
	struct sched_row *row;

	if (!want_pid(sum, span->pid) || !moment_inside(sum, span->end_ns))
		return 0;
	row = row_of(sum, span->comm, span->pid, span->cpu);
	if (!row)
		return -ENOMEM;
	row->accounted_ns += span->runtime_ns;
	return 0;
}

static int add_on_cpu(struct sched_sum *sum, const struct sched_span *span)
{
	uint64_t ns = inside(sum, span);
	struct sched_cpu *cpu;

	if (span->cpu < 0 || !want_cpu(sum, span->cpu))
		return 0;
	cpu = cpu_of(sum, span->cpu);
	if (!cpu)
		return -ENOMEM;
	*(span->pid == IDLE_PID ? &cpu->idle_ns : &cpu->busy_ns) += ns;
	return span->runtime_ns && span->pid > IDLE_PID ? add_accounted(sum, span) : 0;
}

static int add_gap(struct sched_sum *sum, const struct sched_span *span)
{
	uint64_t ns = inside(sum, span);
	struct sched_cpu *cpu;

	if (span->cpu < 0 || !want_cpu(sum, span->cpu) || !moment_inside(sum, span->end_ns))
		return 0;
	cpu = cpu_of(sum, span->cpu);
	if (!cpu)
		return -ENOMEM;
	cpu->gap_ns += ns;
	cpu->lost += span->count;
	if (!cpu->gaps++ || ns > cpu->longest_gap_ns) {
		cpu->longest_gap_ns = ns;
		cpu->longest_gap_at_ns = span->begin_ns;
	}
	return 0;
}

static int count_irq(struct sched_tally *tally, const struct keymap_key *key, const struct sched_irq *like, uint64_t ns)
{
	int fresh;
	struct sched_irq *irq = sched_tally_at(tally, key, sizeof(*irq), &fresh);

	if (!irq)
		return -ENOMEM;
	if (fresh)
		*irq = *like;
	irq->count++;
	irq->ns += ns;
	if (ns > irq->max_ns)
		irq->max_ns = ns;
	return 0;
}

static int add_irq(struct sched_sum *sum, const struct sched_span *span)
{
	enum sched_irq_type type = span->kind == SPAN_IRQ ? SCHED_IRQ : SCHED_SOFTIRQ;
	struct sched_irq irq = { .type = type, .label = span->label, .pid = -1, .cpu = -1 };
	struct keymap_key key = { { type, span->label } };
	uint64_t ns = inside(sum, span);
	struct sched_cpu *cpu;
	struct sched_row *row;

	if (!moment_inside(sum, span->end_ns) || span->cpu < 0 || !want_cpu(sum, span->cpu))
		return 0;
	cpu = cpu_of(sum, span->cpu);
	if (!cpu)
		return -ENOMEM;
	cpu->irq_count[type]++;
	cpu->irq_ns[type] += ns;
	if (sum->options.pids && !want_pid(sum, span->pid))
		return 0;
	if (count_irq(&sum->irq_names, &key, &irq, ns))
		return -ENOMEM;
	if (span->pid <= IDLE_PID)
		return 0;
	row = row_of(sum, span->comm, span->pid, span->cpu);
	if (!row)
		return -ENOMEM;
	row->irq_count[type]++;
	row->irq_ns[type] += ns;
	irq.comm = span->comm;
	irq.pid = span->pid;
	irq.cpu = span->cpu;
	key.part[2] = (uint32_t)(row - (struct sched_row *)sum->rows.items);
	return count_irq(&sum->irqs, &key, &irq, ns);
}

static const char *event_text(const struct sched_sum *sum, const struct event *ev, int arg)
{
	return ev_text(sum->session, ev->args[arg].name);
}

/* The task that left could have gone on: who took its CPU? */
static int add_preemption(struct sched_sum *sum, const struct sched_span *span)
{
	const struct event *ev = span->event;
	int32_t victim = (int32_t)ev->args[SWITCH_PREV_PID].i64, by = span->pid;
	uint32_t comm = ev->args[SWITCH_PREV_COMM].name;
	uint32_t by_comm = by == IDLE_PID ? 0 : span->comm;
	struct keymap_key key = { { (uint32_t)victim, (uint32_t)by, comm, by_comm } };
	struct sched_pending *pending = pending_of(sum, victim);
	struct sched_pair *pair;
	int fresh;

	if (!pending)
		return -ENOMEM;
	pending->pair = 0;
	pending->preempted_ns = span->begin_ns;
	pending->by = by;
	pending->by_comm = by_comm;
	if (!want_pid(sum, victim) && !want_pid(sum, by))
		return 0;
	pair = sched_tally_at(&sum->pairs, &key, sizeof(*pair), &fresh);
	if (!pair)
		return -ENOMEM;
	if (fresh)
		*pair = (struct sched_pair){ .victim_comm = comm, .by_comm = by_comm, .victim = victim, .by = by };
	pair->count++;
	pending->pair = (size_t)(pair - (struct sched_pair *)sum->pairs.items) + 1;
	return 0;
}

static int add_switch(struct sched_sum *sum, const struct sched_span *span)
{
	const struct event *ev = span->event;
	int32_t prev = (int32_t)ev->args[SWITCH_PREV_PID].i64;
	uint32_t comm = ev->args[SWITCH_PREV_COMM].name;
	const char *state = event_text(sum, ev, SWITCH_PREV_STATE);
	struct sched_cpu *cpu;
	struct sched_row *row;

	sum->last.t_ns = span->begin_ns;
	sum->last.cpu = span->cpu;
	sum->last.prev = prev;
	sum->last.prev_comm = comm;
	sum->last.next = span->pid;
	if (!moment_inside(sum, span->begin_ns) || span->cpu < 0 || !want_cpu(sum, span->cpu))
		return 0;
	cpu = cpu_of(sum, span->cpu);
	if (!cpu)
		return -ENOMEM;
	cpu->switches++;
	if (prev == IDLE_PID)
		return 0;
	if (want_pid(sum, prev)) {
		row = row_of(sum, comm, prev, span->cpu);
		if (!row)
			return -ENOMEM;
		row->switches++;
		row->involuntary += state[0] == 'R';
		row->preempted += state[0] == 'R' && state[1] == '+';
		row->last_ns = span->begin_ns;
	}
	return state[0] == 'R' ? add_preemption(sum, span) : 0;
}

static int add_wake(struct sched_sum *sum, const struct sched_span *span)
{
	struct sched_pending *pending;
	struct sched_row *row;

	if (!want_pid(sum, span->pid))
		return 0;
	pending = pending_of(sum, span->pid);
	if (!pending)
		return -ENOMEM;
	pending->woken_ns = span->begin_ns;
	pending->waker = span->waker_pid;
	pending->waker_comm = span->waker_comm;
	if (!moment_inside(sum, span->end_ns) || !want_cpu(sum, span->cpu))
		return 0;
	row = row_of(sum, span->comm, span->pid, span->cpu);
	return row ? sched_hist_add(&row->latency, span->end_ns - span->begin_ns) : -ENOMEM;
}

int sched_span_add(void *arg, const struct sched_span *span)
{
	struct sched_sum *sum = arg;

	switch (span->kind) {
	case SPAN_ON_CPU:
		return add_on_cpu(sum, span);
	case SPAN_STATE:
		return add_state(sum, span);
	case SPAN_IRQ:
	case SPAN_SOFTIRQ:
		return add_irq(sum, span);
	case SPAN_SWITCH:
		return add_switch(sum, span);
	case SPAN_WAKE:
		return add_wake(sum, span);
	case SPAN_GAP:
		return add_gap(sum, span);
	default:
		return 0; /* the time inside the futex call is part of running and sleeping */
	}
}

/* ---- whole runs --------------------------------------------------------------------------------------------------------- */

struct sched_sum *sched_new(struct ev_session *session, const struct sched_options *options)
{
	struct sched_sum *sum = calloc(1, sizeof(*sum));

	if (!sum)
		return NULL;
	sum->session = session;
	sum->options = *options;
	if (!sum->options.top)
		sum->options.top = TOP_DEFAULT;
	if (!sum->options.to_ns)
		sum->options.to_ns = UINT64_MAX;
	sum->last.next = -1;
	sum->waits = calloc(sum->options.top, sizeof(*sum->waits));
	if (!sum->waits) {
		free(sum);
		errno = ENOMEM;
		return NULL;
	}
	return sum;
}

void sched_begin(struct sched_sum *sum, uint64_t first_ns, uint64_t last_ns)
{
	const struct sched_options *options = &sum->options;

	sum->begun = true;
	sum->result.trace_first_ns = first_ns;
	sum->result.trace_last_ns = last_ns;
	sum->begin_ns = options->from_ns < UINT64_MAX - first_ns ? first_ns + options->from_ns : UINT64_MAX;
	sum->end_ns = options->to_ns < UINT64_MAX - first_ns ? first_ns + options->to_ns : UINT64_MAX;
}

int sched_event(struct sched_sum *sum, const struct event *ev)
{
	int ret;

	if (!sum->machine) {
		sum->machine = sched_state_new(sum->session, sched_span_add, sum);
		if (!sum->machine)
			return -ENOMEM;
	}
	if (!sum->begun)
		sched_begin(sum, ev->t_ns, UINT64_MAX);
	ret = sched_state_feed(sum->machine, ev);
	return ret ? ret : ev->t_ns > sum->end_ns;
}

const struct sched_result *sched_finish(struct sched_sum *sum)
{
	struct sched_result *result = &sum->result;

	if (sum->machine) {
		result->from_events = true;
		result->machine = *sched_state_stats(sum->machine);
		if (sched_state_finish(sum->machine))
			return NULL;
		result->trace_last_ns = result->machine.last_ns;
	}
	if (sum->end_ns > result->trace_last_ns)
		sum->end_ns = result->trace_last_ns;
	result->begin_ns = sum->begin_ns;
	result->end_ns = sum->end_ns;
	return sched_results(sum) ? NULL : result;
}

static void free_rows(struct sched_row *rows, size_t count)
{
	size_t i;

	for (i = 0; rows && i < count; i++)
		sched_hist_fini(&rows[i].latency);
	free(rows);
}

static void tally_fini(struct sched_tally *tally)
{
	keymap_fini(&tally->map);
	free(tally->items);
}

void sched_free(struct sched_sum *sum)
{
	struct sched_result *result;

	if (!sum)
		return;
	result = &sum->result;
	/* the arrays per task, interrupt and pair are lent from the tables */
	free_rows(result->pids, result->pid_count);
	free_rows(result->comms, result->comm_count);
	sched_hist_fini(&result->all.latency);
	free(result->preempters);
	free(result->victims);
	free_rows(sum->rows.items, sum->rows.map.used);
	sum->rows.items = NULL;
	tally_fini(&sum->rows);
	tally_fini(&sum->irqs);
	tally_fini(&sum->irq_names);
	tally_fini(&sum->pairs);
	tally_fini(&sum->pending);
	sched_state_free(sum->machine);
	free(sum->cpus);
	free(sum->waits);
	free(sum);
}
