/* SPDX-License-Identifier: MulanPSL-2.0 */
/* `systrace convert ftrace`: events in, spans out; see ftrace.h. */
#include "convert/ftrace.h"

#include "convert/ftrace_arrow.h"
#include "convert/ftrace_sink.h"
#include "trace/ftrace_known.h"
#include "trace/mmap_lock.h"
#include "trace/session.h"
#include "trace/tracedat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct fsink_ops *const ftrace_formats[] = { &fsink_db, &fsink_json, &fsink_chrome, &fsink_perfetto, NULL };

#define NO_FIRST UINT64_MAX

struct conversion {
	const struct ftrace_options *options;
	struct ftrace_summary *sum;
	struct fview view;
	struct fsink *sink;
	struct ev_reader *reader;
	struct sched_state *machine;
	struct mmap_lock *locks;
	struct farrows *arrows;
	struct sched_span wake; /* last arrow: its end says who woke the Runnable state that ends there; .pid -1 = none */
	uint64_t inside; /* events inside the window */
};

static bool in_window(const struct conversion *conv, uint64_t t_ns)
{
	const struct ftrace_axis *axis = &conv->options->axis;

	return !axis->window || (t_ns >= axis->begin_ns && t_ns <= axis->end_ns);
}

/* ---- spans -> rows --------------------------------------------------------------------------------------------------- */

/* Cut a row to the window. Return: false when nothing is left of it. */
static bool clip(const struct conversion *conv, struct frow *row)
{
	const struct ftrace_axis *axis = &conv->options->axis;
	bool instant = row->kind == ROW_SWITCH;

	if (!axis->window)
		return true;
	if (row->end_ns < axis->begin_ns || row->begin_ns > axis->end_ns)
		return false;
	if (row->begin_ns < axis->begin_ns) {
		row->begin_ns = axis->begin_ns;
		row->flags |= ROW_OUTSIDE;
	}
	if (row->end_ns > axis->end_ns) {
		row->end_ns = axis->end_ns;
		row->flags |= ROW_OUTSIDE;
	}
	return instant || row->end_ns > row->begin_ns || row->kind == ROW_IRQ || row->kind == ROW_SOFTIRQ;
}

static void count_row(struct ftrace_summary *sum, const struct frow *row)
{
	if (row->kind == ROW_SWITCH) {
		sum->switches++;
		return;
	}
	sum->slices++;
	sum->irqs += row->kind == ROW_IRQ || row->kind == ROW_SOFTIRQ;
	sum->states += row->kind == ROW_STATE;
	sum->gaps_shown += row->kind == ROW_GAP;
	sum->futexes += row->kind == ROW_FUTEX;
	sum->open += (row->flags & SPAN_END_UNSEEN) != 0;
	sum->cut += (row->flags & SPAN_CUT_LOST) != 0;
}

/* Arrows that are ready now that @row of a CPU's lane is written; gaps, though some formats do not show them, end runs. */
static int put_arrows(struct conversion *conv, const struct frow *row)
{
	int ret = farrows_wrote(conv->arrows, row);
	struct frow arrow;

	while (!ret && farrows_next(conv->arrows, &arrow)) {
		conv->sum->arrows++;
		ret = conv->sink->ops->row(conv->sink, &arrow);
	}
	return ret;
}

static int put_row(struct conversion *conv, struct frow *row)
{
	int ret;

	if (row->track == FTRACE_NO_TASK)
		return conv->view.failed;
	if (!clip(conv, row))
		return 0;
	if (!conv->sink->ops->trace_times) {
		row->begin_ns = fview_time(&conv->view, row->begin_ns);
		row->end_ns = fview_time(&conv->view, row->end_ns);
	}
	conv->view.tracks[row->track].rows++;
	count_row(conv->sum, row);
	ret = conv->sink->ops->row(conv->sink, row);
	if (ret || !conv->sink->ops->arrows || (row->kind != ROW_ON_CPU && row->kind != ROW_SWITCH))
		return ret;
	return put_arrows(conv, row);
}

static struct frow row_of(const struct sched_span *span, enum frow_kind kind)
{
	return (struct frow){ .begin_ns = span->begin_ns,
			      .end_ns = span->end_ns,
			      .track = FTRACE_NO_TASK,
			      .task = FTRACE_NO_TASK,
			      .kind = (uint8_t)kind,
			      .flags = (uint16_t)span->flags,
			      .cpu = span->cpu };
}

static int on_cpu(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, ROW_ON_CPU);

	row.task = fview_task(&conv->view, span->pid ? span->comm : 0, span->pid);
	if (row.task == FTRACE_NO_TASK)
		return conv->view.failed;
	if (conv->view.tracks[row.task].hidden) {
		conv->sum->hidden += span->pid != 0;
		return 0;
	}
	row.track = fview_cpu(&conv->view, span->cpu);
	row.on_cpu.runtime_ns = span->runtime_ns;
	row.on_cpu.vruntime = span->vruntime;
	row.on_cpu.end_state = span->end_state;
	row.on_cpu.prio = span->prio;
	return put_row(conv, &row);
}

static int state(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, ROW_STATE);

	row.track = fview_task(&conv->view, span->comm, span->pid);
	if (row.track == FTRACE_NO_TASK)
		return conv->view.failed;
	if (conv->view.tracks[row.track].hidden) {
		conv->sum->hidden++;
		return 0;
	}
	row.state = (uint8_t)span->state;
	row.state_of.sleep = span->end_state;
	row.state_of.waker_pid = -1;
	if (span->state == TASK_RUNNABLE && conv->wake.pid == span->pid && conv->wake.end_ns == span->end_ns) {
		row.state_of.waker_pid = conv->wake.waker_pid;
		row.state_of.waker_comm = conv->wake.waker_comm;
	}
	return put_row(conv, &row);
}

static int irq(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, span->kind == SPAN_IRQ ? ROW_IRQ : ROW_SOFTIRQ);

	row.track = fview_cpu(&conv->view, span->cpu);
	if (span->pid >= 0)
		row.task = fview_task(&conv->view, span->pid ? span->comm : 0, span->pid);
	row.irq.number = span->number;
	row.irq.label = span->label;
	row.irq.result = span->result;
	return put_row(conv, &row);
}

static int switched(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, ROW_SWITCH);
	const struct ev_arg *arg = span->event->args;

	row.track = fview_cpu(&conv->view, span->cpu);
	row.sw.prev_comm = arg[SWITCH_PREV_COMM].name;
	row.sw.prev_pid = (int32_t)arg[SWITCH_PREV_PID].i64;
	row.sw.prev_prio = (int32_t)arg[SWITCH_PREV_PRIO].i64;
	row.sw.prev_state = arg[SWITCH_PREV_STATE].name;
	row.sw.next_comm = arg[SWITCH_NEXT_COMM].name;
	row.sw.next_pid = (int32_t)arg[SWITCH_NEXT_PID].i64;
	row.sw.next_prio = (int32_t)arg[SWITCH_NEXT_PRIO].i64;
	return put_row(conv, &row);
}

static int woken(struct conversion *conv, const struct sched_span *span)
{
	conv->wake = *span;
	if (!conv->sink->ops->arrows || !in_window(conv, span->begin_ns) || !in_window(conv, span->end_ns))
		return 0;
	return farrows_woken(conv->arrows, span);
}

static int gap(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, ROW_GAP);
	int ret = 0;

	if (conv->sink->ops->arrows) {
		row.begin_ns = fview_time(&conv->view, span->begin_ns);
		row.end_ns = fview_time(&conv->view, span->end_ns);
		ret = put_arrows(conv, &row);
		row = row_of(span, ROW_GAP);
	}
	if (ret || !conv->sink->ops->gaps || span->end_ns == span->begin_ns)
		return ret;
	row.track = fview_cpu(&conv->view, span->cpu);
	row.count = span->count;
	return put_row(conv, &row);
}

static int futex(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, ROW_FUTEX);

	if (!conv->sink->ops->futexes || span->end_ns == span->begin_ns) {
		conv->sum->futexes++;
		return 0;
	}
	row.track = fview_task(&conv->view, span->comm, span->pid);
	return put_row(conv, &row);
}

static int lock(struct conversion *conv, const struct sched_span *span)
{
	struct frow row = row_of(span, span->kind == SPAN_LOCK_WAIT ? ROW_LOCK_WAIT : ROW_LOCK_HOLD);
	uint32_t comm = sched_state_comm(conv->machine, span->pid);

	if (span->end_ns == span->begin_ns)
		return 0;
	row.track = fview_task(&conv->view, comm, span->pid);
	row.irq.number = span->number;
	return put_row(conv, &row);
}

static int take_span(void *arg, const struct sched_span *span)
{
	static int (*const takers[])(struct conversion *, const struct sched_span *) = {
		[SPAN_ON_CPU] = on_cpu,	  [SPAN_STATE] = state,	   [SPAN_IRQ] = irq, [SPAN_SOFTIRQ] = irq,
		[SPAN_SWITCH] = switched, [SPAN_WAKE] = woken,	   [SPAN_GAP] = gap, [SPAN_FUTEX] = futex,
		[SPAN_LOCK_WAIT] = lock,  [SPAN_LOCK_HOLD] = lock,
	};

	return takers[span->kind](arg, span);
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static void count_event(struct conversion *conv, const struct event *ev)
{
	struct ftrace_summary *sum = conv->sum;
	const struct ftrace_axis *axis = &conv->options->axis;

	sum->events++;
	if (sum->first_ns == NO_FIRST || ev->t_ns < sum->first_ns)
		sum->first_ns = ev->t_ns;
	if (ev->t_ns > sum->last_ns)
		sum->last_ns = ev->t_ns;
	if (!axis->window || (ev->t_ns >= axis->begin_ns && ev->t_ns <= axis->end_ns))
		conv->inside++;
	else if (ev->t_ns < axis->begin_ns)
		sum->before++;
	else
		sum->after++;
}

static int take_event(struct conversion *conv, const struct event *ev)
{
	bool own = ev->track.cpu >= 0 && ev->kind != EV_LOST; /* not a name or a gap that the reader made */
	int ret = 0;

	if (own)
		count_event(conv, ev);
	if (conv->options->type == FTRACE_SCHED || ev->kind == EV_TASK)
		ret = sched_state_feed(conv->machine, ev);
	if (!ret && conv->options->type == FTRACE_MMAPLOCK && (ev->kind == EV_LOCK || ev->kind == EV_LOST))
		ret = mmap_lock_feed(conv->locks, ev);
	if (!ret && conv->sink->ops->event && in_window(conv, ev->t_ns))
		ret = conv->sink->ops->event(conv->sink, ev);
	return ret ? ret : conv->view.failed;
}

static int open_output(struct conversion *conv, const struct event *first, struct st_err *err)
{
	conv->view.first_ns = conv->options->axis.window && conv->options->axis.begin_ns > first->t_ns
				      ? conv->options->axis.begin_ns
				      : first->t_ns;
	conv->view.clock = (enum ev_clock)first->clock;
	conv->sum->clock = (enum ev_clock)first->clock;
	conv->sink = conv->options->format->open(&conv->view, conv->options->output, err);
	return conv->sink ? 0 : (err->code ? err->code : -EIO);
}

static void tell(struct conversion *conv, const char *text)
{
	if (conv->options->note)
		conv->options->note(conv->options->arg, text);
}

/* A reader that fails in the middle has given good events before: they are kept, and the failure is told. */
static int read_all(struct conversion *conv, struct st_err *err)
{
	const struct ftrace_options *options = conv->options;
	uint64_t count = 0;
	struct event ev;
	int ret;

	while ((ret = ev_next(conv->reader, &ev, err)) == 1) {
		ret = conv->sink ? 0 : open_output(conv, &ev, err);
		if (ret)
			return ret;
		ret = take_event(conv, &ev);
		if (ret)
			return err_set(err, ret, "cannot write %s: %s", options->output, strerror(-ret));
		if (!(++count & 0xffff) && options->progress && options->progress(options->arg, conv->reader))
			return err_set(err, -ECANCELED, "stopped");
	}
	if (ret < 0 && conv->sum->events) {
		tell(conv, err->text);
		err->code = 0;
		ret = 0;
	}
	return ret;
}

static int nothing_in_window(const struct conversion *conv, struct st_err *err)
{
	const struct ftrace_summary *sum = conv->sum;
	const struct ftrace_axis *axis = &conv->options->axis;
	const char *side = !sum->after	  ? "all of them lie before it"
			   : !sum->before ? "all of them lie after it"
					  : "they lie before and after it";

	return err_set(
		err, -ENODATA,
		"none of the %" PRIu64 " events lies inside the time of the profiling data: %s (trace %.6f to "
		"%.6f s, profile %.6f to %.6f s of CLOCK_MONOTONIC_RAW); were both recorded at the same time, on the "
		"same host, with trace_clock mono_raw?",
		sum->events, side, (double)sum->first_ns / 1e9, (double)sum->last_ns / 1e9,
		(double)axis->begin_ns / 1e9, (double)axis->end_ns / 1e9);
}

static int check_content(const struct conversion *conv, struct st_err *err)
{
	const struct ftrace_summary *sum = conv->sum;
	const char *input = conv->options->input;

	if (!sum->events)
		return err_set(err, -ENODATA, "%s holds no events", input);
	if (!conv->inside)
		return nothing_in_window(conv, err);
	if (sum->slices || sum->switches)
		return 0;
	return err_set(err, -ENODATA,
		       conv->options->type == FTRACE_SCHED
			       ? "%s: none of its %" PRIu64 " events tells who ran where; record with --sched and --irq"
			       : "%s: there is no pair of mmap_lock events among its %" PRIu64
				 "; record mmap_lock_start_locking, mmap_lock_acquire_returned and mmap_lock_released",
		       input, sum->events);
}

/* ---- the whole --------------------------------------------------------------------------------------------------------- */

static void on_report(void *arg, const char *text)
{
	tell(arg, text);
}

static void note_numbers(struct conversion *conv)
{
	const struct sched_stats *stats = &conv->sum->sched;
	const struct {
		uint64_t count;
		const char *what;
	} lines[] = {
		{ stats->switch_mismatch,
		  "times a CPU went on with another task than the last switch named: shown as gaps" },
		{ stats->bad_cpu, "events with CPU numbers that cannot be were left out" },
		{ stats->irq_unpaired, "interrupts without entry or exit were left out" },
		{ stats->backwards, "events lie before the one recorded before them: taken as of then" },
		{ conv->options->format->futexes ? 0 : conv->sum->futexes,
		  "futex calls were left out: only chrome and perfetto have a place for them" },
		{ conv->sum->hidden, "slices of kernel threads were left out (--hide-kernel)" },
	};
	char text[256];
	size_t i;

	for (i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (!lines[i].count)
			continue;
		snprintf(text, sizeof(text), "%" PRIu64 " %s", lines[i].count, lines[i].what);
		tell(conv, text);
	}
}

static void fill_summary(struct conversion *conv)
{
	struct ftrace_summary *sum = conv->sum;
	uint32_t i;

	sum->sched = *sched_state_stats(conv->machine);
	sum->lost = conv->reader->stats.lost;
	sum->skipped = conv->reader->stats.skipped;
	for (i = 0; i < conv->view.track_count; i++)
		if (conv->view.tracks[i].rows) {
			sum->cpus += conv->view.tracks[i].is_cpu;
			sum->tasks += !conv->view.tracks[i].is_cpu;
		}
	if (conv->reader->ops->report)
		conv->reader->ops->report(conv->reader, on_report, conv);
	note_numbers(conv);
}

static int finish(struct conversion *conv, struct st_err *err)
{
	int ret;

	if (!conv->sink)
		return err_set(err, -ENODATA, "%s holds no events", conv->options->input);
	ret = conv->options->type == FTRACE_SCHED ? sched_state_finish(conv->machine) : mmap_lock_finish(conv->locks);
	if (ret)
		return err_set(err, ret, "cannot write %s: %s", conv->options->output, strerror(-ret));
	ret = check_content(conv, err);
	if (ret)
		return ret;
	fill_summary(conv);
	ret = conv->sink->ops->finish(conv->sink, &conv->sum->bytes, err);
	conv->sink = NULL;
	return ret;
}

int ftrace_convert(const struct ftrace_options *options, struct ftrace_summary *sum, struct st_err *err)
{
	struct conversion conv = { .options = options, .sum = sum, .wake = { .pid = -1 } };
	struct ev_session *session = ev_session_new();
	int ret = 0;

	*sum = (struct ftrace_summary){ .first_ns = NO_FIRST };
	conv.view.session = session;
	conv.view.options = options;
	if (session) {
		conv.machine = sched_state_new(session, take_span, &conv);
		conv.locks = mmap_lock_new(session, take_span, &conv);
		conv.arrows = farrows_new(&conv.view);
	}
	conv.view.machine = conv.machine;
	if (!conv.machine || !conv.locks || !conv.arrows) {
		ret = err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	conv.reader = ev_open(session, options->input, err);
	if (!conv.reader)
		ret = err->code ? err->code : -EIO;
	if (!ret && strcmp(conv.reader->ops->format, "trace.dat") && strcmp(conv.reader->ops->format, "ftrace-text"))
		ret = err_set(err, -EINVAL, "%s is no ftrace recording but %s", options->input,
			      conv.reader->ops->format);
	if (!ret) {
		conv.view.release = tracedat_release(conv.reader);
		ret = read_all(&conv, err);
	}
	if (!ret)
		ret = finish(&conv, err);
out:
	if (conv.sink)
		conv.sink->ops->discard(conv.sink);
	mmap_lock_free(conv.locks);
	farrows_free(conv.arrows);
	sched_state_free(conv.machine);
	fview_fini(&conv.view);
	ev_close(conv.reader);
	ev_session_free(session);
	return ret;
}
