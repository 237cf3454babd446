/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What sched.c (taking spans in) and sched_result.c (sorting the sums) share. Private to analyze/sched. */
#ifndef ANALYZE_SCHED_IMPL_H
#define ANALYZE_SCHED_IMPL_H

#include "analyze/keymap.h"
#include "analyze/sched.h"

/** struct sched_tally - a growing array and how to find its elements */
struct sched_tally {
	struct keymap map;
	void *items;
	size_t room;
};

/** what is pending for a task: why it waits */
struct sched_pending {
	uint64_t preempted_ns; /* when it had to leave; the wait that begins then belongs to .pair */
	size_t pair; /* + 1; 0 = none */
	uint64_t woken_ns; /* when the wait began that ended with the last wake-up arrow */
	int32_t waker, by;
	uint32_t waker_comm, by_comm;
};

struct sched_sum {
	struct ev_session *session;
	struct sched_options options;
	struct sched_state *machine; /* NULL when spans come from elsewhere */
	bool begun;
	uint64_t begin_ns, end_ns; /* window */
	struct sched_tally rows; /* struct sched_row by comm, pid, cpu */
	struct sched_tally irqs; /* struct sched_irq by row and label */
	struct sched_tally irq_names; /* struct sched_irq by type and label */
	struct sched_tally pairs; /* struct sched_pair by both comms and pids */
	struct sched_tally pending; /* struct sched_pending by pid */
	struct sched_cpu *cpus; /* by number */
	size_t cpu_room;
	struct sched_wait *waits; /* heap, the shortest first */
	size_t wait_count;
	struct { /* the last switch */
		uint64_t t_ns;
		int32_t cpu, prev, next;
		uint32_t prev_comm;
	} last;
	struct sched_result result;
};

/** sched_tally_at - element of a key, zeroed when new. @fresh: gets whether it is. NULL when out of memory. */
void *sched_tally_at(struct sched_tally *tally, const struct keymap_key *key, size_t size, int *fresh);

/** sched_row_add - times, counts and latencies of @from on top of @to. Return: 0 or -ENOMEM. */
int sched_row_add(struct sched_row *to, const struct sched_row *from);

/** sched_results - fill sum->result. Return: 0 or -ENOMEM. */
int sched_results(struct sched_sum *sum);

#endif
