/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The report as a workbook: four sheets, each a table (filter, fixed heading, microseconds) with bar charts of its first ten
 * rows; see sched.h. Sheets are described by tables of columns.
 */
#include "analyze/sched.h"

#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#ifdef HAVE_XLSX
#include <xlsxwriter.h>

#define EXCEL_ROWS 1048576
#define TOP 10
#define MEMORY_ROWS 20000

/* What a cell holds. */
struct cell {
	const char *text;
	double number;
	char room[640]; /* for texts made of several */
};

/* A column: text, whole number or microseconds. */
struct column {
	const char *name;
	enum { COL_TEXT, COL_COUNT, COL_US } type;
	double width;
	void (*get)(const void *row, const struct ev_session *session, struct cell *cell);
};

struct chart {
	const char *title;
	int first, count; /* columns, stacked */
};

struct sheet {
	const char *name;
	const struct column *columns;
	int column_count;
	int key_columns; /* that name the row: they stay in view */
	int label; /* column that names a row in the charts */
	const struct chart *charts;
	int chart_count;
};

struct book {
	lxw_workbook *workbook;
	lxw_format *head, *us, *count;
	const struct ev_session *session;
	size_t left_out;
};

#define GET(name, expression)                                                                         \
	static void get_##name(const void *item, const struct ev_session *session, struct cell *cell) \
	{                                                                                             \
		const struct sched_row *row = item;                                                   \
                                                                                                      \
		cell->number = (double)(expression);                                                  \
	}

#define US(ns) ((double)(ns) / 1e3)

GET(pid, row->pid)
GET(members, row->members)
GET(cpu, row->cpu)
GET(running, US(row->ns[SCHED_RUNNING]))
GET(runnable, US(row->ns[SCHED_RUNNABLE]))
GET(preempted_wait, US(row->preempted_ns))
GET(sleeping, US(sched_sleeping(row)))
GET(sleep_s, US(row->ns[SCHED_SLEEP_S]))
GET(sleep_d, US(row->ns[SCHED_SLEEP_D]))
GET(sleep_other, US(row->ns[SCHED_SLEEP_OTHER]))
GET(accounted, US(row->accounted_ns))
GET(switches, row->switches)
GET(involuntary, row->involuntary)
GET(hard_count, row->irq_count[SCHED_IRQ])
GET(hard_time, US(row->irq_ns[SCHED_IRQ]))
GET(soft_count, row->irq_count[SCHED_SOFTIRQ])
GET(soft_time, US(row->irq_ns[SCHED_SOFTIRQ]))
GET(wakes, row->latency.count)
GET(p50, US(sched_hist_share(&row->latency, 0.5)))
GET(p99, US(sched_hist_share(&row->latency, 0.99)))
GET(max, US(row->latency.max_ns))

static void get_comm(const void *item, const struct ev_session *session, struct cell *cell)
{
	cell->text = ev_text(session, ((const struct sched_row *)item)->comm);
}

static void get_task(const void *item, const struct ev_session *session, struct cell *cell)
{
	const struct sched_row *row = item;

	snprintf(cell->room, sizeof(cell->room), "%s:%d", ev_text(session, row->comm), row->pid);
	cell->text = cell->room;
}

static void get_task_cpu(const void *item, const struct ev_session *session, struct cell *cell)
{
	const struct sched_row *row = item;

	snprintf(cell->room, sizeof(cell->room), "%s:%d on %d", ev_text(session, row->comm), row->pid, row->cpu);
	cell->text = cell->room;
}

static void get_irq_label(const void *item, const struct ev_session *session, struct cell *cell)
{
	const struct sched_irq *irq = item;

	snprintf(cell->room, sizeof(cell->room), "%.300s of %.300s:%d on %d", ev_text(session, irq->label),
		 ev_text(session, irq->comm), irq->pid, irq->cpu);
	cell->text = cell->room;
}

#define GET_IRQ(name, expression)                                                                         \
	static void get_irq_##name(const void *item, const struct ev_session *session, struct cell *cell) \
	{                                                                                                 \
		const struct sched_irq *irq = item;                                                       \
                                                                                                          \
		expression;                                                                               \
	}

GET_IRQ(comm, cell->text = ev_text(session, irq->comm))
GET_IRQ(pid, cell->number = irq->pid)
GET_IRQ(cpu, cell->number = irq->cpu)
GET_IRQ(type, cell->text = sched_irq_word(irq->type))
GET_IRQ(name, cell->text = ev_text(session, irq->label))
GET_IRQ(count, cell->number = (double)irq->count)
GET_IRQ(time, cell->number = US(irq->ns))
GET_IRQ(mean, cell->number = US(irq->ns) / (double)irq->count)
GET_IRQ(max, cell->number = US(irq->max_ns))

#define SUM_COLUMNS                                                                                             \
	{ "running (us)", COL_US, 16, get_running }, { "runnable (us)", COL_US, 16, get_runnable },             \
		{ "sleeping (us)", COL_US, 16, get_sleeping }, { "sleeping S (us)", COL_US, 16, get_sleep_s },  \
		{ "sleeping D (us)", COL_US, 16, get_sleep_d },                                                 \
		{ "sleeping other (us)", COL_US, 18, get_sleep_other },                                         \
		{ "runnable after preemption (us)", COL_US, 28, get_preempted_wait },                           \
		{ "accounted by the kernel (us)", COL_US, 26, get_accounted },                                  \
		{ "switches", COL_COUNT, 11, get_switches },                                                    \
		{ "involuntary switches", COL_COUNT, 18, get_involuntary },                                     \
		{ "irq count", COL_COUNT, 11, get_hard_count }, { "irq time (us)", COL_US, 14, get_hard_time }, \
		{ "softirq count", COL_COUNT, 13, get_soft_count },                                             \
		{ "softirq time (us)", COL_US, 16, get_soft_time }, { "wake-ups", COL_COUNT, 11, get_wakes },   \
		{ "wake-up latency p50 (us)", COL_US, 22, get_p50 },                                            \
		{ "wake-up latency p99 (us)", COL_US, 22, get_p99 },                                            \
		{ "wake-up latency max (us)", COL_US, 22, get_max },

static const struct column comm_columns[] = { { "comm", COL_TEXT, 20, get_comm },
					      { "pids", COL_COUNT, 8, get_members },
					      SUM_COLUMNS };
static const struct column pid_columns[] = { { "comm", COL_TEXT, 20, get_comm },
					     { "pid", COL_COUNT, 10, get_pid },
					     SUM_COLUMNS{ "task", COL_TEXT, 24, get_task } };
static const struct column task_columns[] = { { "comm", COL_TEXT, 20, get_comm },
					      { "pid", COL_COUNT, 10, get_pid },
					      { "cpu", COL_COUNT, 8, get_cpu },
					      SUM_COLUMNS{ "task on CPU", COL_TEXT, 28, get_task_cpu } };
static const struct column irq_columns[] = {
	{ "comm", COL_TEXT, 20, get_irq_comm },	    { "pid", COL_COUNT, 10, get_irq_pid },
	{ "cpu", COL_COUNT, 8, get_irq_cpu },	    { "irq type", COL_TEXT, 10, get_irq_type },
	{ "irq name", COL_TEXT, 24, get_irq_name }, { "time (us)", COL_US, 14, get_irq_time },
	{ "count", COL_COUNT, 10, get_irq_count },  { "mean (us)", COL_US, 12, get_irq_mean },
	{ "max (us)", COL_US, 12, get_irq_max },    { "interrupt of task", COL_TEXT, 40, get_irq_label },
};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* columns of the charts: behind the key columns come running and runnable */
static const struct chart comm_charts[] = { { "Top 10 commands by running time (us)", 2, 2 } };
static const struct chart pid_charts[] = { { "Top 10 tasks by running time (us)", 2, 2 } };
static const struct chart task_charts[] = { { "Top 10 tasks per CPU by running time (us)", 3, 2 } };
static const struct chart irq_charts[] = { { "Top 10 interrupts by time (us)", 5, 1 } };

static const struct sheet sheets[] = {
	{ "task_summary_by_comm", comm_columns, COUNT(comm_columns), 1, 0, comm_charts, COUNT(comm_charts) },
	{ "task_summary_by_pid", pid_columns, COUNT(pid_columns), 2, COUNT(pid_columns) - 1, pid_charts,
	  COUNT(pid_charts) },
	{ "task_summary", task_columns, COUNT(task_columns), 3, COUNT(task_columns) - 1, task_charts,
	  COUNT(task_charts) },
	{ "proc_irq_detail", irq_columns, COUNT(irq_columns), 5, COUNT(irq_columns) - 1, irq_charts,
	  COUNT(irq_charts) },
};

/* A name as XML can hold it: names are bytes of other users' processes. @out: at least 256 bytes. */
static void clean(const char *text, char *out)
{
	const unsigned char *from = (const unsigned char *)text;
	size_t used = 0;

	for (; *from && used < 250; from++) {
		bool lead = *from >= 0xc2 && *from < 0xf0 && (from[1] & 0xc0) == 0x80;
		int more = lead ? (*from >= 0xe0 ? 2 : 1) : 0;
		bool surrogate = *from == 0xed && from[1] >= 0xa0;
		bool beyond = *from == 0xef && from[1] == 0xbf; /* not characters at its end */
		bool overlong = *from == 0xe0 && from[1] < 0xa0;

		if (lead && !surrogate && !overlong && !beyond && (more == 1 || (from[2] & 0xc0) == 0x80)) {
			memcpy(out + used, from, (size_t)more + 1);
			used += (size_t)more + 1;
			from += more;
		} else {
			out[used++] = *from >= 0x20 && *from < 0x7f ? (char)*from : '?';
		}
	}
	out[used] = '\0';
}

static lxw_error put_cell(struct book *book, lxw_worksheet *page, lxw_row_t at, int column, const struct column *spec,
			  const void *row)
{
	struct cell cell = { .text = "" };
	char name[256];

	spec->get(row, book->session, &cell);
	if (spec->type == COL_TEXT) {
		clean(cell.text, name);
		return worksheet_write_string(page, at, (lxw_col_t)column, name, NULL);
	}
	return worksheet_write_number(page, at, (lxw_col_t)column, cell.number,
				      spec->type == COL_US ? book->us : book->count);
}

static lxw_error put_chart(struct book *book, lxw_worksheet *page, const struct sheet *sheet, const struct chart *spec,
			   lxw_row_t last)
{
	lxw_chart *chart = workbook_add_chart(book->workbook, LXW_CHART_BAR_STACKED);
	lxw_chart_options where = { .x_scale = 1.6, .y_scale = 1.6 };
	int i;

	if (!chart)
		return LXW_ERROR_MEMORY_MALLOC_FAILED;
	for (i = 0; i < spec->count; i++) {
		lxw_col_t column = (lxw_col_t)(spec->first + i);
		lxw_chart_series *series = chart_add_series(chart, NULL, NULL);

		if (!series)
			return LXW_ERROR_MEMORY_MALLOC_FAILED;
		chart_series_set_categories(series, sheet->name, 1, (lxw_col_t)sheet->label, last,
					    (lxw_col_t)sheet->label);
		chart_series_set_values(series, sheet->name, 1, column, last, column);
		chart_series_set_name_range(series, sheet->name, 0, column);
	}
	chart_title_set_name(chart, spec->title);
	chart_axis_set_reverse(chart->y_axis); /* the first row on top */
	chart_legend_set_position(chart, spec->count > 1 ? LXW_CHART_LEGEND_BOTTOM : LXW_CHART_LEGEND_NONE);
	return worksheet_insert_chart_opt(page, 1, (lxw_col_t)(sheet->column_count + 1), chart, &where);
}

static lxw_error put_sheet(struct book *book, const struct sheet *sheet, const void *rows, size_t count, size_t size)
{
	lxw_worksheet *page = workbook_add_worksheet(book->workbook, sheet->name);
	size_t fits = count < EXCEL_ROWS - 1 ? count : EXCEL_ROWS - 1, row;
	lxw_error failed = page ? LXW_NO_ERROR : LXW_ERROR_MEMORY_MALLOC_FAILED;
	int c;

	book->left_out += count - fits;
	for (c = 0; !failed && c < sheet->column_count; c++) {
		worksheet_set_column(page, (lxw_col_t)c, (lxw_col_t)c, sheet->columns[c].width, NULL);
		failed = worksheet_write_string(page, 0, (lxw_col_t)c, sheet->columns[c].name, book->head);
	}
	for (row = 0; !failed && row < fits; row++)
		for (c = 0; !failed && c < sheet->column_count; c++)
			failed = put_cell(book, page, (lxw_row_t)row + 1, c, &sheet->columns[c],
					  (const char *)rows + row * size);
	if (failed)
		return failed;
	worksheet_freeze_panes(page, 1, (lxw_col_t)sheet->key_columns);
	worksheet_autofilter(page, 0, 0, (lxw_row_t)fits, (lxw_col_t)(sheet->column_count - 1));
	for (c = 0; !failed && fits && c < sheet->chart_count; c++)
		failed = put_chart(book, page, sheet, &sheet->charts[c], (lxw_row_t)(fits < TOP ? fits : TOP));
	return failed;
}

int sched_xlsx(const char *path, const struct sched_result *result, const struct ev_session *session, size_t *left_out,
	       struct st_err *err)
{
	size_t rows = result->comm_count + result->pid_count + result->task_count + result->irq_count;
	/* large ones go to a file of the library's row by row; then it cannot put values into the charts, viewers do */
	lxw_workbook_options options = { .constant_memory = rows > MEMORY_ROWS };
	struct book book = { .workbook = workbook_new_opt(path, &options), .session = session };
	lxw_error failed, closed;

	if (!book.workbook)
		return err_set(err, -ENOMEM, "%s: out of memory", path);
	book.head = workbook_add_format(book.workbook);
	book.us = workbook_add_format(book.workbook);
	book.count = workbook_add_format(book.workbook);
	format_set_bold(book.head);
	format_set_bottom(book.head, LXW_BORDER_THIN);
	format_set_num_format(book.us, "#,##0.000");
	format_set_num_format(book.count, "0");
	failed = put_sheet(&book, &sheets[0], result->comms, result->comm_count, sizeof(*result->comms));
	if (!failed)
		failed = put_sheet(&book, &sheets[1], result->pids, result->pid_count, sizeof(*result->pids));
	if (!failed)
		failed = put_sheet(&book, &sheets[2], result->tasks, result->task_count, sizeof(*result->tasks));
	if (!failed)
		failed = put_sheet(&book, &sheets[3], result->irqs, result->irq_count, sizeof(*result->irqs));
	closed = workbook_close(book.workbook);
	*left_out = book.left_out;
	if (!failed)
		failed = closed;
	return failed ? err_set(err, -EIO, "cannot write the workbook %s: %s", path, lxw_strerror(failed)) : 0;
}
#else
int sched_xlsx(const char *path, const struct sched_result *result, const struct ev_session *session, size_t *left_out,
	       struct st_err *err)
{
	return err_set(err, -ENOTSUP, "cannot write %s: this build has no libxlsxwriter; --format json holds the same",
		       path);
}
#endif
