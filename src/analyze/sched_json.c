/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums of a scheduling trace as one JSON object (docs/commands/systrace-analyze.md), a row at a time; see sched.h. */
#include "analyze/sched.h"
#include "trace/session.h"
#include "wire/json.h"

#include <string.h>

#define MAX_TEXT 1024 /* bytes of a name shown; the kernel's are shorter */

struct writer {
	FILE *out;
	const struct ev_session *session;
	struct json_writer w;
	char buf[16384]; /* a row, longest texts included, fits */
};

static void put_out(struct writer *to)
{
	fwrite(to->w.data, 1, to->w.used, to->out);
	to->w.used = 0;
}

static void text(struct writer *to, const char *key, uint32_t id)
{
	size_t len = ev_text_len(to->session, id);

	json_key(&to->w, key);
	json_text(&to->w, ev_text(to->session, id), len < MAX_TEXT ? len : MAX_TEXT);
}

static void u64(struct writer *to, const char *key, uint64_t value)
{
	json_key(&to->w, key);
	json_u64(&to->w, value);
}

static void i64(struct writer *to, const char *key, int64_t value)
{
	json_key(&to->w, key);
	json_i64(&to->w, value);
}

/* A number that may be unknown: null then. */
static void known(struct writer *to, const char *key, int64_t value)
{
	if (value >= 0) {
		i64(to, key, value);
		return;
	}
	json_key(&to->w, key);
	json_raw(&to->w, "null");
	to->w.comma = true;
}

static void begin_row(struct writer *to)
{
	json_open(&to->w, '{');
}

static void end_row(struct writer *to)
{
	json_close(&to->w, '}');
	put_out(to);
}

static void begin_list(struct writer *to, const char *key)
{
	json_key(&to->w, key);
	json_open(&to->w, '[');
}

static void end_list(struct writer *to)
{
	json_close(&to->w, ']');
	put_out(to);
}

static void latency(struct writer *to, const struct sched_hist *hist)
{
	json_key(&to->w, "wakeup_latency");
	json_open(&to->w, '{');
	u64(to, "count", hist->count);
	u64(to, "p50_ns", sched_hist_share(hist, 0.5));
	u64(to, "p99_ns", sched_hist_share(hist, 0.99));
	u64(to, "max_ns", hist->max_ns);
	u64(to, "sum_ns", hist->sum_ns);
	json_close(&to->w, '}');
}

static void sums(struct writer *to, const struct sched_row *row)
{
	u64(to, "running_ns", row->ns[SCHED_RUNNING]);
	u64(to, "accounted_ns", row->accounted_ns);
	u64(to, "runnable_ns", row->ns[SCHED_RUNNABLE]);
	u64(to, "runnable_preempted_ns", row->preempted_ns);
	u64(to, "sleeping_ns", sched_sleeping(row));
	u64(to, "sleeping_S_ns", row->ns[SCHED_SLEEP_S]);
	u64(to, "sleeping_D_ns", row->ns[SCHED_SLEEP_D]);
	u64(to, "sleeping_other_ns", row->ns[SCHED_SLEEP_OTHER]);
	u64(to, "switches", row->switches);
	u64(to, "involuntary", row->involuntary);
	u64(to, "preempted_in_kernel", row->preempted);
	u64(to, "irq_count", row->irq_count[SCHED_IRQ]);
	u64(to, "irq_ns", row->irq_ns[SCHED_IRQ]);
	u64(to, "softirq_count", row->irq_count[SCHED_SOFTIRQ]);
	u64(to, "softirq_ns", row->irq_ns[SCHED_SOFTIRQ]);
	latency(to, &row->latency);
}

static void put_rows(struct writer *to, const char *key, const struct sched_row *rows, size_t count)
{
	size_t i;

	begin_list(to, key);
	for (i = 0; i < count; i++) {
		begin_row(to);
		text(to, "comm", rows[i].comm);
		if (rows[i].pid >= 0)
			i64(to, "pid", rows[i].pid);
		if (!rows[i].members)
			known(to, "cpu", rows[i].cpu);
		else
			u64(to, rows[i].pid >= 0 ? "names" : "pids", rows[i].members);
		sums(to, &rows[i]);
		end_row(to);
	}
	end_list(to);
}

static void put_cpus(struct writer *to, const struct sched_result *result)
{
	size_t i;

	begin_list(to, "cpus");
	for (i = 0; i < result->cpu_count; i++) {
		const struct sched_cpu *cpu = &result->cpus[i];

		begin_row(to);
		i64(to, "cpu", cpu->cpu);
		u64(to, "busy_ns", cpu->busy_ns);
		u64(to, "idle_ns", cpu->idle_ns);
		u64(to, "gap_ns", cpu->gap_ns);
		u64(to, "unknown_ns", cpu->unknown_ns);
		u64(to, "waiting_ns", cpu->waiting_ns);
		u64(to, "switches", cpu->switches);
		u64(to, "irq_count", cpu->irq_count[SCHED_IRQ]);
		u64(to, "irq_ns", cpu->irq_ns[SCHED_IRQ]);
		u64(to, "softirq_count", cpu->irq_count[SCHED_SOFTIRQ]);
		u64(to, "softirq_ns", cpu->irq_ns[SCHED_SOFTIRQ]);
		u64(to, "gaps", cpu->gaps);
		u64(to, "lost_events", cpu->lost);
		u64(to, "longest_gap_ns", cpu->longest_gap_ns);
		u64(to, "longest_gap_at_ns", cpu->longest_gap_at_ns);
		end_row(to);
	}
	end_list(to);
}

static void put_irqs(struct writer *to, const char *key, const struct sched_irq *irqs, size_t count)
{
	size_t i;

	begin_list(to, key);
	for (i = 0; i < count; i++) {
		begin_row(to);
		json_key(&to->w, "type");
		json_text(&to->w, sched_irq_word(irqs[i].type), irqs[i].type == SCHED_IRQ ? 3 : 7);
		text(to, "name", irqs[i].label);
		if (irqs[i].pid >= 0) {
			text(to, "comm", irqs[i].comm);
			i64(to, "pid", irqs[i].pid);
			known(to, "cpu", irqs[i].cpu);
		}
		u64(to, "count", irqs[i].count);
		u64(to, "ns", irqs[i].ns);
		u64(to, "max_ns", irqs[i].max_ns);
		end_row(to);
	}
	end_list(to);
}

static void put_pairs(struct writer *to, const char *key, const struct sched_pair *pairs, size_t count)
{
	size_t i;

	begin_list(to, key);
	for (i = 0; i < count; i++) {
		begin_row(to);
		if (pairs[i].victim >= 0) {
			text(to, "victim_comm", pairs[i].victim_comm);
			i64(to, "victim_pid", pairs[i].victim);
		}
		if (pairs[i].by >= 0) {
			text(to, "preempter_comm", pairs[i].by_comm);
			i64(to, "preempter_pid", pairs[i].by);
		}
		u64(to, "count", pairs[i].count);
		u64(to, "waited_ns", pairs[i].waited_ns);
		u64(to, "max_wait_ns", pairs[i].max_ns);
		end_row(to);
	}
	end_list(to);
}

static void put_waits(struct writer *to, const struct sched_result *result)
{
	size_t i;

	begin_list(to, "longest_waits");
	for (i = 0; i < result->wait_count; i++) {
		const struct sched_wait *wait = &result->waits[i];
		const char *why = sched_wait_word(wait), *end = sched_wait_end_word(wait);

		begin_row(to);
		text(to, "comm", wait->comm);
		i64(to, "pid", wait->pid);
		known(to, "cpu", wait->cpu);
		u64(to, "begin_ns", wait->begin_ns);
		u64(to, "wait_ns", wait->end_ns - wait->begin_ns);
		json_key(&to->w, "began_by");
		json_text(&to->w, why, strlen(why));
		text(to, "by_comm", wait->by_comm);
		known(to, "by_pid", wait->by);
		json_key(&to->w, "ended_by");
		json_text(&to->w, end, strlen(end));
		known(to, "ran_on_cpu", wait->ran_cpu);
		text(to, "ran_before_comm", wait->before_comm);
		known(to, "ran_before_pid", wait->before);
		end_row(to);
	}
	end_list(to);
}

static void put_losses(struct writer *to, const struct sched_result *result)
{
	const struct sched_stats *stats = &result->machine;

	if (!result->from_events) {
		known(to, "trace_quality", -1);
		return;
	}
	json_key(&to->w, "trace_quality");
	json_open(&to->w, '{');
	u64(to, "gaps", stats->gaps);
	u64(to, "lost_events", stats->lost);
	u64(to, "switch_mismatches", stats->switch_mismatch);
	u64(to, "irqs_unpaired", stats->irq_unpaired);
	u64(to, "bad_cpu_events", stats->bad_cpu);
	u64(to, "out_of_order_events", stats->backwards);
	u64(to, "renamed_tasks", stats->renamed);
	json_close(&to->w, '}');
}

void sched_json(FILE *out, const struct sched_result *result, const struct ev_session *session, const char *input)
{
	struct writer to = { .out = out, .session = session };

	json_init(&to.w, to.buf, sizeof(to.buf));
	json_open(&to.w, '{');
	json_key(&to.w, "input");
	json_text(&to.w, input, strnlen(input, 4 * MAX_TEXT));
	json_key(&to.w, "source");
	json_text(&to.w, result->from_events ? "events" : "database", result->from_events ? 6 : 8);
	u64(&to, "trace_begin_ns", result->trace_first_ns);
	u64(&to, "trace_end_ns", result->trace_last_ns);
	u64(&to, "begin_ns", result->begin_ns);
	u64(&to, "end_ns", result->end_ns);
	u64(&to, "events", result->machine.events);
	json_key(&to.w, "latency_error_pct");
	json_raw(&to.w, "0.79");
	to.w.comma = true;
	put_losses(&to, result);
	json_key(&to.w, "all");
	json_open(&to.w, '{');
	sums(&to, &result->all);
	json_close(&to.w, '}');
	put_out(&to);
	put_cpus(&to, result);
	put_rows(&to, "by_comm", result->comms, result->comm_count);
	put_rows(&to, "by_pid", result->pids, result->pid_count);
	put_rows(&to, "tasks", result->tasks, result->task_count);
	put_irqs(&to, "irqs_by_name", result->irq_names, result->irq_name_count);
	put_irqs(&to, "irqs", result->irqs, result->irq_count);
	put_pairs(&to, "preemptions", result->pairs, result->pair_count);
	put_pairs(&to, "preempters", result->preempters, result->preempter_count);
	put_pairs(&to, "victims", result->victims, result->victim_count);
	put_waits(&to, result);
	json_close(&to.w, '}');
	json_raw(&to.w, "\n");
	put_out(&to);
}
