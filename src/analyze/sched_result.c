/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums of a scheduling trace: grouping by pid and command, sorting; see sched.h. Called once, at the end. */
#include "analyze/sched_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int less_more(uint64_t a, uint64_t b)
{
	return (a < b) - (a > b);
}

static int by_number(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

/* Longest running first; what follows makes the order the same each time. */
static int order_rows(const void *a, const void *b)
{
	const struct sched_row *x = a, *y = b;
	int order = less_more(x->ns[SCHED_RUNNING], y->ns[SCHED_RUNNING]);

	if (!order)
		order = less_more(x->ns[SCHED_RUNNABLE], y->ns[SCHED_RUNNABLE]);
	if (!order)
		order = by_number(x->pid, y->pid);
	if (!order)
		order = by_number(x->comm, y->comm);
	return order ? order : by_number(x->cpu, y->cpu);
}

static int order_irqs(const void *a, const void *b)
{
	const struct sched_irq *x = a, *y = b;
	int order = less_more(x->ns, y->ns);

	if (!order)
		order = less_more(x->count, y->count);
	if (!order)
		order = by_number(x->pid, y->pid);
	if (!order)
		order = by_number(x->label, y->label);
	return order ? order : by_number(x->cpu, y->cpu);
}

static int order_pairs(const void *a, const void *b)
{
	const struct sched_pair *x = a, *y = b;
	int order = less_more(x->waited_ns, y->waited_ns);

	if (!order)
		order = less_more(x->count, y->count);
	if (!order)
		order = by_number(x->victim, y->victim);
	if (!order)
		order = by_number(x->by, y->by);
	if (!order)
		order = by_number(x->victim_comm, y->victim_comm);
	return order ? order : by_number(x->by_comm, y->by_comm);
}

static int order_waits(const void *a, const void *b)
{
	const struct sched_wait *x = a, *y = b;
	int order = less_more(x->end_ns - x->begin_ns, y->end_ns - y->begin_ns);

	return order ? order : by_number((int64_t)x->begin_ns, (int64_t)y->begin_ns);
}

static void sort(void *items, size_t count, size_t size, int (*order)(const void *, const void *))
{
	if (count > 1)
		qsort(items, count, size, order);
}

int sched_row_add(struct sched_row *to, const struct sched_row *from)
{
	int i;

	for (i = 0; i < SCHED_TIMES; i++)
		to->ns[i] += from->ns[i];
	for (i = 0; i < SCHED_IRQ_TYPES; i++) {
		to->irq_count[i] += from->irq_count[i];
		to->irq_ns[i] += from->irq_ns[i];
	}
	to->accounted_ns += from->accounted_ns;
	to->preempted_ns += from->preempted_ns;
	to->switches += from->switches;
	to->involuntary += from->involuntary;
	to->preempted += from->preempted;
	return sched_hist_merge(&to->latency, &from->latency);
}

/* Rows of the same pid (or command) become one; @members: table of (group, member) pairs seen. */
static int group(const struct sched_sum *sum, bool by_comm, struct sched_row **groups, size_t *count)
{
	struct sched_tally tally = { 0 };
	struct keymap members = { 0 };
	const struct sched_row *row = sum->rows.items, *end = row + sum->rows.map.used;
	int ret = 0, fresh;

	for (; !ret && row < end; row++) {
		struct keymap_key key = { { by_comm ? row->comm : (uint32_t)row->pid } };
		struct keymap_key member = { { key.part[0], by_comm ? (uint32_t)row->pid : row->comm } };
		struct sched_row *to = sched_tally_at(&tally, &key, sizeof(*to), &fresh);

		ret = to ? 0 : -ENOMEM;
		if (ret)
			break;
		if (fresh) {
			to->comm = row->comm;
			to->pid = by_comm ? -1 : row->pid;
			to->cpu = row->cpu;
		}
		if (row->cpu != to->cpu)
			to->cpu = -1;
		if (row->last_ns > to->last_ns) {
			to->last_ns = row->last_ns;
			to->comm = row->comm; /* the newest name */
		}
		*count = tally.map.used;
		ret = keymap_place(&members, &member, &fresh) < 0 ? -ENOMEM : sched_row_add(to, row);
		to->members += fresh != 0;
	}
	keymap_fini(&members);
	keymap_fini(&tally.map);
	*groups = tally.items;
	sort(*groups, *count, sizeof(**groups), order_rows);
	return ret;
}

/* Pairs with the same preempter (or victim) become one. */
static int one_side(const struct sched_sum *sum, bool victims, struct sched_pair **sides, size_t *count)
{
	struct sched_tally tally = { 0 };
	const struct sched_pair *pair = sum->pairs.items, *end = pair + sum->pairs.map.used;
	int fresh;

	for (; pair < end; pair++) {
		struct keymap_key key = { { (uint32_t)(victims ? pair->victim : pair->by),
					    victims ? pair->victim_comm : pair->by_comm } };
		struct sched_pair *to = sched_tally_at(&tally, &key, sizeof(*to), &fresh);

		if (!to)
			break;
		if (fresh)
			*to = (struct sched_pair){ .victim = victims ? pair->victim : -1,
						   .victim_comm = victims ? pair->victim_comm : 0,
						   .by = victims ? -1 : pair->by,
						   .by_comm = victims ? 0 : pair->by_comm };
		to->count += pair->count;
		to->waited_ns += pair->waited_ns;
		if (pair->max_ns > to->max_ns)
			to->max_ns = pair->max_ns;
	}
	*count = tally.map.used;
	*sides = tally.items;
	keymap_fini(&tally.map);
	sort(*sides, *count, sizeof(**sides), order_pairs);
	return pair < end ? -ENOMEM : 0;
}

static void cpus(struct sched_sum *sum)
{
	struct sched_result *result = &sum->result;
	uint64_t window = result->end_ns > result->begin_ns ? result->end_ns - result->begin_ns : 0, known;
	size_t i;

	for (i = 0; i < sum->cpu_room; i++) {
		struct sched_cpu *cpu = &sum->cpus[i];

		if (!cpu->seen)
			continue;
		known = cpu->busy_ns + cpu->idle_ns + cpu->gap_ns;
		cpu->unknown_ns = window > known ? window - known : 0;
		sum->cpus[result->cpu_count++] = *cpu;
	}
	result->cpus = sum->cpus;
}

int sched_results(struct sched_sum *sum)
{
	struct sched_result *result = &sum->result;
	size_t i;

	result->all.pid = -1;
	result->all.cpu = -1;
	result->tasks = sum->rows.items;
	result->task_count = sum->rows.map.used;
	for (i = 0; i < result->task_count; i++)
		if (sched_row_add(&result->all, &result->tasks[i]))
			return -ENOMEM;
	if (group(sum, false, &result->pids, &result->pid_count) ||
	    group(sum, true, &result->comms, &result->comm_count) ||
	    one_side(sum, false, &result->preempters, &result->preempter_count) ||
	    one_side(sum, true, &result->victims, &result->victim_count))
		return -ENOMEM;
	result->irqs = sum->irqs.items;
	result->irq_count = sum->irqs.map.used;
	result->irq_names = sum->irq_names.items;
	result->irq_name_count = sum->irq_names.map.used;
	result->pairs = sum->pairs.items;
	result->pair_count = sum->pairs.map.used;
	result->waits = sum->waits;
	result->wait_count = sum->wait_count;
	cpus(sum);
	sort(result->tasks, result->task_count, sizeof(*result->tasks), order_rows);
	sort(result->irqs, result->irq_count, sizeof(*result->irqs), order_irqs);
	sort(result->irq_names, result->irq_name_count, sizeof(*result->irq_names), order_irqs);
	sort(result->pairs, result->pair_count, sizeof(*result->pairs), order_pairs);
	sort(result->waits, result->wait_count, sizeof(*result->waits), order_waits);
	return 0;
}
