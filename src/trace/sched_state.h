/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The scheduler's state machine: takes ftrace events in time order and gives spans: which task ran on which CPU, what
 * state each task was in, which interrupts ran where, who woke whom. Converters draw the spans, the analyser sums them;
 * both therefore tell the same story. Memory is bounded by the tasks alive in the trace.
 *
 * Nothing is invented: a span whose begin or end was not seen is marked, and where a CPU lost events, what ran or waited
 * there ends at the last event before the gap and is unknown until the next one says so.
 */
#ifndef TRACE_SCHED_STATE_H
#define TRACE_SCHED_STATE_H

#include "trace/event.h"
#include "trace/ftrace_known.h"

#include <stdbool.h>
#include <stdint.h>

enum sched_span_kind {
	SPAN_ON_CPU, /* lane of a CPU: a task from switch-in to switch-out */
	SPAN_STATE, /* lane of a task: .state from .begin_ns to .end_ns */
	SPAN_IRQ, /* lane of a CPU: hard interrupt, entry to exit */
	SPAN_SOFTIRQ,
	SPAN_SWITCH, /* instant: the switch itself, with the event */
	SPAN_WAKE, /* arrow: from the waker at begin_ns to the woken task's run at end_ns */
	SPAN_GAP, /* lane of a CPU: events were lost here; .count = how many, 0 = unknown */
	SPAN_FUTEX, /* lane of a task: inside the futex system call */
	SPAN_LOCK_WAIT, /* lane of a task: waits for its mmap_lock (trace/mmap_lock.h gives these two) */
	SPAN_LOCK_HOLD
};

enum sched_task_state { TASK_UNKNOWN, TASK_RUNNING, TASK_RUNNABLE, TASK_SLEEPING, TASK_EXITED };

/** bits of sched_span.flags */
#define SPAN_BEGIN_UNSEEN 1u /* was so already when the trace (of that CPU) began */
#define SPAN_END_UNSEEN 2u /* still so when the trace ended */
#define SPAN_CUT_LOST 4u /* begin or end is the edge of a gap of lost events */
#define SPAN_PREEMPTED 8u /* on CPU: left while it could have gone on; Runnable: begun by that */
#define SPAN_NEW_TASK 16u /* woken for the first time */
#define SPAN_EXITED 32u /* Running: ended by the task's exit */
#define SPAN_WRITE 64u /* mmap_lock: for writing */
#define SPAN_FAILED 128u /* mmap_lock: the wait ended without the lock */

struct sched_span {
	enum sched_span_kind kind;
	uint64_t begin_ns;
	uint64_t end_ns;
	int32_t cpu; /* -1 = unknown */
	int32_t pid; /* the task: on CPU, in state, interrupted, woken */
	uint32_t comm; /* its name then; name id */
	int32_t tgid; /* -1 = unknown */
	enum sched_task_state state;
	uint32_t flags;
	uint32_t end_state; /* on CPU: prev_state it left with; Sleeping: kind of sleep; name id, 0 = unknown */
	int32_t prio; /* -1 = unknown */
	uint64_t runtime_ns; /* on CPU: sum of sched_stat_runtime */
	int64_t vruntime; /* last of it, 0 = none */
	int32_t waker_pid; /* wake: -1 = unknown */
	uint32_t waker_comm;
	int32_t waker_cpu; /* where the waker was */
	int64_t number; /* irq number, softirq vector */
	uint32_t label; /* irq name, softirq action; name id */
	uint32_t result; /* irq: handled, unhandled; name id */
	uint64_t count; /* gap */
	const struct event *event; /* switch: the event; valid during the call */
};

/** sched_emit - receives spans as they end; ascending end_ns, not begin_ns. Return: 0, or -errno to stop. */
typedef int (*sched_emit)(void *arg, const struct sched_span *span);

struct sched_stats {
	uint64_t events; /* fed */
	uint64_t first_ns, last_ns; /* of all events, 0 = none */
	uint64_t switch_mismatch; /* an event of another task than the last switch put on the CPU: switches are missing */
	uint64_t bad_cpu; /* events with a CPU number that cannot be: left out */
	uint64_t irq_unpaired; /* entries without exit or exits without entry */
	uint64_t gaps;
	uint64_t lost;
	uint64_t renamed; /* tasks that changed their name */
	uint64_t backwards; /* events before the one fed before: taken as of then */
};

struct sched_state;

/**
 * sched_state_new - a machine that calls @emit(@arg, span)
 *
 * Context: tool. Return: NULL with errno when out of memory.
 */
struct sched_state *sched_state_new(struct ev_session *session, sched_emit emit, void *arg);

/** sched_state_feed - one event, in time order. Events of other kinds are ignored. Return: 0, -ENOMEM, or emit's error. */
int sched_state_feed(struct sched_state *machine, const struct event *ev);

/** sched_state_finish - the trace is over: open spans end at its last time stamp, marked. Return: as feed. */
int sched_state_finish(struct sched_state *machine);

const struct sched_stats *sched_state_stats(const struct sched_state *machine);

/** sched_state_comm - current name of a task, 0 = unknown */
uint32_t sched_state_comm(const struct sched_state *machine, int32_t pid);

void sched_state_free(struct sched_state *machine);

#endif
