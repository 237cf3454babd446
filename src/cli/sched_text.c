/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The report of `systrace analyze sched` for people; see sched_text.h. */
#include "cli/sched_text.h"

#include "cli/term.h"
#include "trace/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct report {
	FILE *out;
	const struct sched_result *result;
	const struct ev_session *session;
	size_t top;
};

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

static double pct(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

static uint64_t window_ns(const struct sched_result *result)
{
	return result->end_ns > result->begin_ns ? result->end_ns - result->begin_ns : 0;
}

/* A name as a cell: names come from other users' processes. */
static void name_cell(struct table *table, const struct report *report, uint32_t id)
{
	char name[64];

	snprintf(name, sizeof(name), "%s", id ? ev_text(report->session, id) : "?");
	table_cell(table, "%s", term_clean(name));
}

/* comm:pid, "-" for nobody known, <idle> for pid 0 */
static void task_cell(struct table *table, const struct report *report, uint32_t comm, int32_t pid)
{
	char name[64];

	if (pid < 0) {
		table_cell(table, "-");
	} else if (pid == 0) {
		table_cell(table, "<idle>");
	} else {
		snprintf(name, sizeof(name), "%s", comm ? ev_text(report->session, comm) : "?");
		table_cell(table, "%s:%" PRId32, term_clean(name), pid);
	}
}

static void cpu_cell(struct table *table, int32_t cpu)
{
	if (cpu >= 0)
		table_cell(table, "%" PRId32, cpu);
	else
		table_cell(table, "-");
}

static void heads(struct table *table, const char *const *names)
{
	for (; *names; names++)
		table_cell(table, "%s", *names);
}

/* Heading of a section: "Tasks by running time (10 of 234)" */
static void section(const struct report *report, const char *title, size_t shown, size_t count)
{
	fprintf(report->out, "\n%s%s%s", term_on(report->out, TERM_BOLD), title, term_off(report->out));
	if (shown < count)
		fprintf(report->out, " (%zu of %zu)", shown, count);
	fputc('\n', report->out);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static void print_head(const struct report *report, const char *input)
{
	const struct sched_result *result = report->result;

	fprintf(report->out, "%s: %.6f s on %zu CPUs, %" PRIu64 " switches of tasks, %zu tasks, %zu commands\n", input,
		(double)window_ns(result) / 1e9, result->cpu_count, result->all.switches, result->pid_count,
		result->comm_count);
	fprintf(report->out, "Trace clock %.9f s to %.9f s", (double)result->begin_ns / 1e9,
		(double)result->end_ns / 1e9);
	if (result->begin_ns != result->trace_first_ns || result->end_ns != result->trace_last_ns)
		fprintf(report->out, ", of a trace from %.9f s", (double)result->trace_first_ns / 1e9);
	fputs("; moments below count from the trace's first event\n", report->out);
}

static void print_cpus(const struct report *report)
{
	static const char *const names[] = { "CPU",	   "BUSY ms",  "BUSY %", "IDLE ms", "GAPS ms",
					     "UNKNOWN ms", "WAIT ms",  "IRQS",	 "IRQ ms",  "SOFTIRQS",
					     "SOFT ms",	   "SWITCHES", NULL };
	const struct sched_result *result = report->result;
	struct table table;
	size_t i;

	section(report, "CPUs", 1, 1);
	table_init(&table, 12, ">>>>>>>>>>>>");
	heads(&table, names);
	for (i = 0; i < result->cpu_count; i++) {
		const struct sched_cpu *cpu = &result->cpus[i];

		cpu_cell(&table, cpu->cpu);
		table_cell(&table, "%.3f", ms(cpu->busy_ns));
		table_cell(&table, "%.1f", pct(cpu->busy_ns, window_ns(result)));
		table_cell(&table, "%.3f", ms(cpu->idle_ns));
		table_cell(&table, "%.3f", ms(cpu->gap_ns));
		table_cell(&table, "%.3f", ms(cpu->unknown_ns));
		table_cell(&table, "%.3f", ms(cpu->waiting_ns));
		table_cell(&table, "%" PRIu64, cpu->irq_count[SCHED_IRQ]);
		table_cell(&table, "%.3f", ms(cpu->irq_ns[SCHED_IRQ]));
		table_cell(&table, "%" PRIu64, cpu->irq_count[SCHED_SOFTIRQ]);
		table_cell(&table, "%.3f", ms(cpu->irq_ns[SCHED_SOFTIRQ]));
		table_cell(&table, "%" PRIu64, cpu->switches);
	}
	table_print(&table, report->out, 2);
}

enum row_kind { ROW_COMM, ROW_PID, ROW_TASK };

/* Microseconds, "-" for a task that was never woken. */
static void latency_cell(struct table *table, const struct sched_row *row, uint64_t ns)
{
	if (row->latency.count)
		table_cell(table, "%.1f", us(ns));
	else
		table_cell(table, "-");
}

static void row_cells(struct table *table, const struct report *report, const struct sched_row *row, enum row_kind kind)
{
	name_cell(table, report, row->comm);
	if (kind == ROW_COMM)
		table_cell(table, "%" PRIu32, row->members);
	else
		table_cell(table, "%" PRId32, row->pid);
	if (kind == ROW_TASK)
		cpu_cell(table, row->cpu);
	table_cell(table, "%.3f", ms(row->ns[SCHED_RUNNING]));
	table_cell(table, "%.1f", pct(row->ns[SCHED_RUNNING], window_ns(report->result)));
	table_cell(table, "%.3f", ms(row->ns[SCHED_RUNNABLE]));
	table_cell(table, "%.3f", ms(row->ns[SCHED_SLEEP_S]));
	table_cell(table, "%.3f", ms(row->ns[SCHED_SLEEP_D]));
	table_cell(table, "%.3f", ms(row->ns[SCHED_SLEEP_OTHER]));
	table_cell(table, "%" PRIu64, row->switches);
	table_cell(table, "%" PRIu64, row->involuntary);
	table_cell(table, "%" PRIu64, row->latency.count);
	latency_cell(table, row, sched_hist_share(&row->latency, 0.5));
	latency_cell(table, row, sched_hist_share(&row->latency, 0.99));
	latency_cell(table, row, row->latency.max_ns);
}

static void print_rows(const struct report *report, const char *title, const struct sched_row *const *rows,
		       size_t shown, size_t count, enum row_kind kind)
{
	static const char *const names[] = { "RUN ms",	 "RUN %",    "WAIT ms", "SLEEP S ms", "SLEEP D ms",
					     "OTHER ms", "SWITCHES", "INVOL",	"WAKES",      "p50 us",
					     "p99 us",	 "max us",   NULL };
	struct table table;
	size_t i;

	section(report, title, shown, count);
	table_init(&table, kind == ROW_TASK ? 15 : 14, "<>>>>>>>>>>>>>>");
	table_cell(&table, "COMM");
	table_cell(&table, kind == ROW_COMM ? "PIDS" : "PID");
	if (kind == ROW_TASK)
		table_cell(&table, "CPU");
	heads(&table, names);
	for (i = 0; i < shown; i++)
		row_cells(&table, report, rows[i], kind);
	table_print(&table, report->out, 2);
}

static int by_waiting(const void *a, const void *b)
{
	const struct sched_row *x = *(const struct sched_row *const *)a, *y = *(const struct sched_row *const *)b;

	return (x->ns[SCHED_RUNNABLE] < y->ns[SCHED_RUNNABLE]) - (x->ns[SCHED_RUNNABLE] > y->ns[SCHED_RUNNABLE]);
}

static int by_interrupts(const void *a, const void *b)
{
	const struct sched_row *x = *(const struct sched_row *const *)a, *y = *(const struct sched_row *const *)b;
	uint64_t xs = x->irq_ns[SCHED_IRQ] + x->irq_ns[SCHED_SOFTIRQ];
	uint64_t ys = y->irq_ns[SCHED_IRQ] + y->irq_ns[SCHED_SOFTIRQ];

	return (xs < ys) - (xs > ys);
}

/* Pointers to rows, in another order when @order is not NULL. Return: to be freed, NULL when there are none. */
static const struct sched_row **pick(const struct sched_row *rows, size_t count,
				     int (*order)(const void *, const void *))
{
	const struct sched_row **list = count ? malloc(count * sizeof(*list)) : NULL;
	size_t i;

	for (i = 0; list && i < count; i++)
		list[i] = &rows[i];
	if (list && order)
		qsort(list, count, sizeof(*list), order);
	return list;
}

static void print_table(const struct report *report, const char *title, const struct sched_row *rows, size_t count,
			int (*order)(const void *, const void *), enum row_kind kind)
{
	const struct sched_row **list = pick(rows, count, order);

	if (list)
		print_rows(report, title, list, least(count, report->top), count, kind);
	free(list);
}

static void print_waits(const struct report *report)
{
	static const char *const names[] = { "WAIT ms", "FROM s", "TASK",	    "CPU", "RAN ON",
					     "WHY",	"BY",	  "THEN RAN AFTER", NULL };
	const struct sched_result *result = report->result;
	size_t count = least(result->wait_count, report->top), i;
	struct table table;

	if (!count)
		return;
	section(report, "Longest waits for a CPU", 1, 1);
	table_init(&table, 8, ">><>><<<");
	heads(&table, names);
	for (i = 0; i < count; i++) {
		const struct sched_wait *wait = &result->waits[i];
		bool ran = !(wait->flags & (SPAN_END_UNSEEN | SPAN_CUT_LOST));

		table_cell(&table, "%.3f", ms(wait->end_ns - wait->begin_ns));
		table_cell(&table, "%.6f", (double)(int64_t)(wait->begin_ns - result->trace_first_ns) / 1e9);
		task_cell(&table, report, wait->comm, wait->pid);
		cpu_cell(&table, wait->cpu);
		cpu_cell(&table, wait->ran_cpu);
		table_cell(&table, "%s", sched_wait_word(wait));
		task_cell(&table, report, wait->by_comm, wait->by);
		if (ran)
			task_cell(&table, report, wait->before_comm, wait->before);
		else
			table_cell(&table, wait->flags & SPAN_END_UNSEEN ? "(trace ended)" : "(events lost)");
	}
	table_print(&table, report->out, 2);
}

static void print_pairs(const struct report *report, const char *title, const struct sched_pair *pairs, size_t count)
{
	bool victims = count && pairs[0].victim >= 0, by = count && pairs[0].by >= 0;
	size_t shown = least(count, report->top), i;
	struct table table;

	if (!count)
		return;
	section(report, title, shown, count);
	table_init(&table, 4 + victims + by, ">>>><<");
	table_cell(&table, "TIMES");
	table_cell(&table, "WAITED ms");
	table_cell(&table, "MEAN us");
	table_cell(&table, "MAX us");
	if (victims)
		table_cell(&table, "VICTIM");
	if (by)
		table_cell(&table, "PREEMPTER");
	for (i = 0; i < shown; i++) {
		table_cell(&table, "%" PRIu64, pairs[i].count);
		table_cell(&table, "%.3f", ms(pairs[i].waited_ns));
		table_cell(&table, "%.1f", us(pairs[i].waited_ns) / (double)pairs[i].count);
		table_cell(&table, "%.1f", us(pairs[i].max_ns));
		if (victims)
			task_cell(&table, report, pairs[i].victim_comm, pairs[i].victim);
		if (by)
			task_cell(&table, report, pairs[i].by_comm, pairs[i].by);
	}
	table_print(&table, report->out, 2);
}

static void print_irqs(const struct report *report, const char *title, const struct sched_irq *irqs, size_t count)
{
	size_t shown = least(count, report->top), i;
	bool tasks = count && irqs[0].pid >= 0;
	struct table table;

	if (!count)
		return;
	section(report, title, shown, count);
	table_init(&table, tasks ? 8 : 6, "<<>>>>><");
	table_cell(&table, "TYPE");
	table_cell(&table, "NAME");
	table_cell(&table, "COUNT");
	table_cell(&table, "TIME ms");
	table_cell(&table, "MEAN us");
	table_cell(&table, "MAX us");
	if (tasks) {
		table_cell(&table, "CPU");
		table_cell(&table, "TASK");
	}
	for (i = 0; i < shown; i++) {
		table_cell(&table, "%s", sched_irq_word(irqs[i].type));
		name_cell(&table, report, irqs[i].label);
		table_cell(&table, "%" PRIu64, irqs[i].count);
		table_cell(&table, "%.3f", ms(irqs[i].ns));
		table_cell(&table, "%.1f", us(irqs[i].ns) / (double)irqs[i].count);
		table_cell(&table, "%.1f", us(irqs[i].max_ns));
		if (tasks) {
			cpu_cell(&table, irqs[i].cpu);
			task_cell(&table, report, irqs[i].comm, irqs[i].pid);
		}
	}
	table_print(&table, report->out, 2);
}

static void print_hit_tasks(const struct report *report)
{
	static const char *const names[] = { "COMM", "PID", "IRQS", "IRQ ms", "SOFTIRQS", "SOFT ms", "OF RUN %", NULL };
	const struct sched_result *result = report->result;
	const struct sched_row **list = pick(result->pids, result->pid_count, by_interrupts);
	size_t shown = least(result->pid_count, report->top), i;
	struct table table;

	if (!list || !(list[0]->irq_count[SCHED_IRQ] + list[0]->irq_count[SCHED_SOFTIRQ])) {
		free(list);
		return;
	}
	section(report, "Tasks interrupted longest", shown, result->pid_count);
	table_init(&table, 7, "<>>>>>>");
	heads(&table, names);
	for (i = 0; i < shown; i++) {
		const struct sched_row *row = list[i];

		name_cell(&table, report, row->comm);
		table_cell(&table, "%" PRId32, row->pid);
		table_cell(&table, "%" PRIu64, row->irq_count[SCHED_IRQ]);
		table_cell(&table, "%.3f", ms(row->irq_ns[SCHED_IRQ]));
		table_cell(&table, "%" PRIu64, row->irq_count[SCHED_SOFTIRQ]);
		table_cell(&table, "%.3f", ms(row->irq_ns[SCHED_SOFTIRQ]));
		table_cell(&table, "%.1f",
			   pct(row->irq_ns[SCHED_IRQ] + row->irq_ns[SCHED_SOFTIRQ], row->ns[SCHED_RUNNING]));
	}
	table_print(&table, report->out, 2);
	free(list);
}

/* Time on a CPU that the kernel does not account to the task: the hypervisor had the CPU, or interrupts did. */
static void print_stolen(const struct report *report)
{
	const struct sched_result *result = report->result;
	uint64_t ran = 0, accounted = 0;
	size_t i;

	for (i = 0; i < result->task_count; i++) {
		if (!result->tasks[i].accounted_ns)
			continue; /* some classes of tasks have no such events */
		ran += result->tasks[i].ns[SCHED_RUNNING];
		accounted += result->tasks[i].accounted_ns;
	}
	if (accounted && ran > accounted && (ran - accounted) * 200 > ran)
		fprintf(report->out,
			"  tasks were on CPUs for %.3f ms (%.1f %%) more than the kernel accounts to them: a hypervisor "
			"took the CPU, or interrupts did\n",
			ms(ran - accounted), pct(ran - accounted, ran));
}

static void print_quality(const struct report *report)
{
	const struct sched_stats *stats = &report->result->machine;
	const struct {
		uint64_t count;
		const char *what;
	} rows[] = {
		{ stats->gaps, "gaps where the kernel's buffer lost events; nothing is counted there" },
		{ stats->lost, "events lost in them, as far as the trace tells" },
		{ stats->switch_mismatch,
		  "switches missing: an event came from another task than the last switch said" },
		{ stats->irq_unpaired, "interrupts without their begin or end" },
		{ stats->bad_cpu, "events with a CPU number that cannot be: left out" },
		{ stats->backwards, "events out of time order: taken as of the one before" },
	};
	const struct sched_result *result = report->result;
	size_t i, bad = 0;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		bad += rows[i].count != 0;
	section(report, "Trace quality", 1, 1);
	if (!result->from_events)
		fputs("  read from a database, which does not tell what the recording lost\n", report->out);
	else if (!bad)
		fputs("  no events lost, no contradictions\n", report->out);
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].count)
			fprintf(report->out, "  %" PRIu64 " %s\n", rows[i].count, rows[i].what);
	for (i = 0; i < result->cpu_count; i++) {
		const struct sched_cpu *cpu = &result->cpus[i];

		if (cpu->gaps)
			fprintf(report->out,
				"  CPU %" PRId32 ": %" PRIu64 " gaps, %.3f ms; the longest, %.3f ms, at %.6f s\n",
				cpu->cpu, cpu->gaps, ms(cpu->gap_ns), ms(cpu->longest_gap_ns),
				(double)(int64_t)(cpu->longest_gap_at_ns - result->trace_first_ns) / 1e9);
	}
	print_stolen(report);
	fprintf(report->out, "  p50 and p99 are at most %.2f %% off; all else is exact\n", SCHED_HIST_ERROR_PCT);
}

void sched_text(FILE *out, const struct sched_result *result, const struct ev_session *session, const char *input,
		size_t top)
{
	const struct report report = { .out = out, .result = result, .session = session, .top = top };

	print_head(&report, input);
	print_cpus(&report);
	print_table(&report, "Commands by running time", result->comms, result->comm_count, NULL, ROW_COMM);
	print_table(&report, "Tasks by running time", result->pids, result->pid_count, NULL, ROW_PID);
	print_table(&report, "Tasks by time waiting for a CPU", result->pids, result->pid_count, by_waiting, ROW_PID);
	print_table(&report, "Tasks per CPU by running time", result->tasks, result->task_count, NULL, ROW_TASK);
	print_waits(&report);
	print_pairs(&report, "Preemptions", result->pairs, result->pair_count);
	print_pairs(&report, "Top preempters", result->preempters, result->preempter_count);
	print_pairs(&report, "Top victims", result->victims, result->victim_count);
	print_irqs(&report, "Interrupts", result->irq_names, result->irq_name_count);
	print_hit_tasks(&report);
	print_irqs(&report, "Interrupts by task", result->irqs, result->irq_count);
	print_quality(&report);
}
