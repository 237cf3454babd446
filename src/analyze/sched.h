/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Sums of a scheduling trace (`systrace analyze sched`): who ran, waited and slept how long and where, who was interrupted
 * by what, how long tasks waited after a wake-up, who preempted whom. Takes the spans of trace/sched_state.h, from events or
 * from a converted database, so that it tells the same story as the converters' pictures. Writers: sched_json, sched_xlsx,
 * sched_db here, the text in cli.
 *
 * Memory is bounded by the (comm, pid, cpu) keys, pairs of tasks and interrupts that occur, not by the trace's length.
 */
#ifndef ANALYZE_SCHED_H
#define ANALYZE_SCHED_H

#include "analyze/sched_hist.h"
#include "base/err.h"
#include "trace/sched_state.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** enum sched_time - what a task's time went into */
enum sched_time {
	SCHED_RUNNING,
	SCHED_RUNNABLE,
	SCHED_SLEEP_S, /* interruptible */
	SCHED_SLEEP_D, /* uninterruptible: disk, page faults, locks in the kernel */
	SCHED_SLEEP_OTHER, /* stopped, traced, parked, idle kernel threads, or a kind that the trace does not tell */
	SCHED_TIMES
};

enum sched_irq_type { SCHED_IRQ, SCHED_SOFTIRQ, SCHED_IRQ_TYPES };

/** sched_irq_word - "irq", "softirq" */
const char *sched_irq_word(enum sched_irq_type type);

/** struct sched_row - a task on a CPU, a task, a command, or all together; times are those inside the window */
struct sched_row {
	uint32_t comm; /* name id; of a task that renamed itself the last one */
	int32_t pid; /* as in the trace: a thread; -1 in rows of commands */
	int32_t cpu; /* -1 = unknown, or several */
	uint32_t members; /* per pid: names it had; per command: pids of that name */
	uint64_t ns[SCHED_TIMES];
	uint64_t preempted_ns; /* part of RUNNABLE: waiting after it had to leave the CPU */
	uint64_t accounted_ns; /* sum of sched_stat_runtime: what the kernel accounts to it (/proc/<pid>/schedstat) */
	uint64_t switches; /* switches away from it */
	uint64_t involuntary; /* of these, while it could have gone on: prev_state R or R+ */
	uint64_t preempted; /* of these, R+: inside the kernel, at an interrupt */
	uint64_t irq_count[SCHED_IRQ_TYPES], irq_ns[SCHED_IRQ_TYPES]; /* interrupts that hit it while it ran */
	struct sched_hist latency; /* from wake-up to running */
	uint64_t last_ns; /* when it was last heard of */
};

/** struct sched_cpu - one CPU; busy + idle + gap + unknown is the window's length */
struct sched_cpu {
	int32_t cpu;
	bool seen;
	uint64_t busy_ns, idle_ns;
	uint64_t gap_ns; /* events were lost: nothing is known */
	uint64_t unknown_ns; /* before the first event here told who runs */
	uint64_t waiting_ns; /* sum over tasks that waited for this CPU: may exceed the window */
	uint64_t irq_count[SCHED_IRQ_TYPES], irq_ns[SCHED_IRQ_TYPES];
	uint64_t switches;
	uint64_t gaps, lost; /* lost: events, as far as the trace says */
	uint64_t longest_gap_ns, longest_gap_at_ns;
};

/** struct sched_irq - an interrupt, summed per interrupted task and CPU, or over all */
struct sched_irq {
	enum sched_irq_type type;
	uint32_t label; /* irq name or softirq action */
	uint32_t comm; /* interrupted; 0 in sums over all tasks */
	int32_t pid;
	int32_t cpu; /* -1 in sums over all CPUs */
	uint64_t count, ns, max_ns;
};

/** struct sched_pair - who made whom leave a CPU; in sums over preempters or victims the other side's pid is -1 */
struct sched_pair {
	uint32_t victim_comm, by_comm;
	int32_t victim, by; /* by 0: nobody took the CPU, the victim used up a quota or was being moved */
	uint64_t count;
	uint64_t waited_ns, max_ns; /* until the victim ran again */
};

/** struct sched_wait - one wait for a CPU */
struct sched_wait {
	uint64_t begin_ns, end_ns; /* trace clock */
	uint32_t comm, flags; /* SPAN_* of sched_state.h */
	int32_t pid;
	int32_t cpu; /* whose queue it was put into */
	int32_t ran_cpu; /* where it ran then; -1 = unknown */
	uint32_t by_comm; /* who woke or preempted it; by -1 = unknown */
	int32_t by;
	uint32_t before_comm; /* who left the CPU for it; before -1 = unknown */
	int32_t before;
};

/** struct sched_result - all sums; valid until sched_free() */
struct sched_result {
	uint64_t trace_first_ns, trace_last_ns; /* the whole trace */
	uint64_t begin_ns, end_ns; /* the window, trace clock */
	bool from_events; /* else from spans: what the recording lost is not known */
	struct sched_stats machine; /* zero without events */
	struct sched_row *tasks, *pids, *comms; /* by running time, longest first */
	size_t task_count, pid_count, comm_count;
	struct sched_row all;
	struct sched_cpu *cpus; /* ascending */
	size_t cpu_count;
	struct sched_irq *irqs, *irq_names; /* per task and CPU; per name. By time, longest first */
	size_t irq_count, irq_name_count;
	struct sched_pair *pairs, *preempters, *victims; /* by waiting time, longest first */
	size_t pair_count, preempter_count, victim_count;
	struct sched_wait *waits; /* longest first */
	size_t wait_count;
};

/** sched_sleeping - all kinds of sleep together, ns */
static inline uint64_t sched_sleeping(const struct sched_row *row)
{
	return row->ns[SCHED_SLEEP_S] + row->ns[SCHED_SLEEP_D] + row->ns[SCHED_SLEEP_OTHER];
}

/** sched_wait_word - why it waited: "woken", "new" (first run), "preempted", "unknown" */
const char *sched_wait_word(const struct sched_wait *wait);

/** sched_wait_end_word - how it ended: "ran", "lost" (a gap of lost events), "open" (the trace ended) */
const char *sched_wait_end_word(const struct sched_wait *wait);

/** struct sched_options - what to look at; zero = everything */
struct sched_options {
	size_t size; /* sizeof(struct sched_options) */
	const char *cpus; /* list like `0-3,8`, NULL = all */
	const char *pids; /* likewise */
	uint64_t from_ns, to_ns; /* after the trace's first event; to_ns UINT64_MAX or 0 = to its end */
	size_t top; /* longest waits kept; 0 = 10 */
};

struct sched_sum;

/** sched_new - @session must outlive it; texts of @options are kept. Context: tool. NULL with errno on failure. */
struct sched_sum *sched_new(struct ev_session *session, const struct sched_options *options);

/** sched_event - one event of the trace, in time order. Return: 1 = the window is over, no more are needed; 0; -ENOMEM. */
int sched_event(struct sched_sum *sum, const struct event *ev);

/** sched_begin - sources of spans: begin and end of the trace, before the first sched_span_add() */
void sched_begin(struct sched_sum *sum, uint64_t first_ns, uint64_t last_ns);

/** sched_span_add - one span, in order of its end; a sched_emit. @arg: struct sched_sum. Return: 0 or -ENOMEM. */
int sched_span_add(void *arg, const struct sched_span *span);

/** sched_finish - the trace is over: sort the sums. Return: them, NULL when out of memory. */
const struct sched_result *sched_finish(struct sched_sum *sum);

void sched_free(struct sched_sum *sum);

/** sched_json - everything as one JSON object. @input: shown as it is. */
void sched_json(FILE *out, const struct sched_result *result, const struct ev_session *session, const char *input);

/**
 * sched_xlsx - the report as a workbook: sheets task_summary_by_comm, task_summary_by_pid, task_summary,
 *              proc_irq_detail, each with bar charts of the first ten; times in microseconds
 * @path: file to make; whoever calls renames it
 *
 * Return: 0 or -errno with @err (-ENOTSUP: built without libxlsxwriter). Rows beyond Excel's limit are left out: *@left_out.
 */
int sched_xlsx(const char *path, const struct sched_result *result, const struct ev_session *session, size_t *left_out,
	       struct st_err *err);

/**
 * sched_db_write - put the tables trace_task_summary and trace_irq_detail into a database, in one transaction
 * @path: made when it is not there; other tables stay as they are
 *
 * Return: 0 or -errno with @err (-ENOTSUP: built without SQLite).
 */
int sched_db_write(const char *path, const struct sched_result *result, const struct ev_session *session,
		   struct st_err *err);

#endif
