/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Arrows whose ends lie on slices; see ftrace_arrow.h. */
#include "convert/ftrace_arrow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RUNS_KEPT 256 /* of each CPU: where a waker's slice is looked up */
#define WAITING 128 /* arrows of a waker that is still on its CPU; more are left out */

/** struct run_kept - a slice that was written */
struct run_kept {
	uint64_t begin_ns, end_ns;
	uint32_t task;
};

struct arrow_cpu {
	struct run_kept runs[RUNS_KEPT];
	uint32_t next;
	bool known; /* a switch was seen here: pid_now runs since since_ns */
	int32_t pid_now;
	uint64_t since_ns;
	uint64_t gap_ns; /* end of the last gap */
	struct sched_span arrow; /* waits for the slice that it ends at; .pid -1 = none */
	struct {
		struct frow row;
		int32_t pid; /* of the waker */
	} waiting[WAITING]; /* for the slice that they begin at */
	uint32_t waits;
};

struct farrows {
	struct fview *view;
	struct arrow_cpu **cpus;
	uint32_t cpu_room;
	uint64_t count;
	struct frow ready[WAITING + 1];
	uint32_t ready_count;
};

struct farrows *farrows_new(struct fview *view)
{
	struct farrows *arrows = calloc(1, sizeof(*arrows));

	if (arrows)
		arrows->view = view;
	return arrows;
}

void farrows_free(struct farrows *arrows)
{
	uint32_t i;

	if (!arrows)
		return;
	for (i = 0; i < arrows->cpu_room; i++)
		free(arrows->cpus[i]);
	free(arrows->cpus);
	free(arrows);
}

/* NULL: out of memory, or no CPU. */
static struct arrow_cpu *cpu_of(struct farrows *arrows, int32_t cpu)
{
	uint32_t room = ((uint32_t)cpu | 15) + 1;
	struct arrow_cpu **more;

	if (cpu < 0)
		return NULL;
	if ((uint32_t)cpu >= arrows->cpu_room) {
		more = realloc(arrows->cpus, room * sizeof(*more));
		if (!more)
			return NULL;
		memset(more + arrows->cpu_room, 0, (room - arrows->cpu_room) * sizeof(*more));
		arrows->cpus = more;
		arrows->cpu_room = room;
	}
	if (!arrows->cpus[cpu]) {
		arrows->cpus[cpu] = calloc(1, sizeof(*arrows->cpus[cpu]));
		if (arrows->cpus[cpu])
			arrows->cpus[cpu]->arrow.pid = -1;
	}
	return arrows->cpus[cpu];
}

enum start { START_NONE, START_WRITTEN, START_OPEN };

/* Does a slice of the waker lie under the arrow's begin? Open: it may, when the waker leaves its CPU. */
static enum start start_of(const struct fview *view, const struct arrow_cpu *cpu, const struct sched_span *wake)
{
	uint64_t t_ns = fview_time(view, wake->begin_ns), oldest_ns = UINT64_MAX;
	uint32_t i;

	for (i = 0; i < RUNS_KEPT; i++) {
		const struct run_kept *run = &cpu->runs[(cpu->next - 1 - i) % RUNS_KEPT];

		if (!run->end_ns)
			break;
		if (run->begin_ns <= t_ns && t_ns <= run->end_ns && view->tracks[run->task].number == wake->waker_pid)
			return START_WRITTEN;
		oldest_ns = run->begin_ns;
		if (oldest_ns < t_ns)
			break;
	}
	if (i == RUNS_KEPT &&
	    oldest_ns > t_ns) /* long ago: it is there unless events are missing; text has runs of no length */
		return view->clock != EV_CLOCK_UNKNOWN && cpu->gap_ns < t_ns ? START_WRITTEN : START_NONE;
	if (wake->end_ns == wake->begin_ns || (cpu->known && (cpu->pid_now != wake->waker_pid || cpu->since_ns > t_ns)))
		return START_NONE;
	return START_OPEN;
}

int farrows_woken(struct farrows *arrows, const struct sched_span *wake)
{
	const struct fview *view = arrows->view;
	struct arrow_cpu *from, *to;

	if (wake->waker_pid <= 0 || wake->waker_cpu < 0 || wake->cpu < 0)
		return 0;
	from = cpu_of(arrows, wake->waker_cpu);
	to = cpu_of(arrows, wake->cpu);
	if (!from || !to)
		return -ENOMEM;
	if ((uint32_t)wake->waker_cpu < view->cpu_room && view->cpu_tracks[wake->waker_cpu] &&
	    start_of(view, from, wake) != START_NONE)
		to->arrow = *wake;
	return 0;
}

static void make_ready(struct farrows *arrows, const struct frow *arrow)
{
	if (arrows->ready_count < sizeof(arrows->ready) / sizeof(arrows->ready[0]))
		arrows->ready[arrows->ready_count++] = *arrow;
}

/* The slice that an arrow ends at was written. */
static void end_written(struct farrows *arrows, struct arrow_cpu *to, const struct frow *row)
{
	const struct fview *view = arrows->view;
	const struct sched_span *wake = &to->arrow;
	struct arrow_cpu *from = cpu_of(arrows, wake->waker_cpu); /* was made with the arrow */
	struct frow arrow = { .kind = ROW_ARROW,
			      .begin_ns = fview_time(view, wake->begin_ns),
			      .end_ns = row->begin_ns,
			      .track = view->cpu_tracks[wake->waker_cpu] - 1,
			      .task = row->track,
			      .cpu = row->cpu };

	switch (start_of(view, from, wake)) {
	case START_WRITTEN:
		make_ready(arrows, &arrow);
		break;
	case START_OPEN:
		if (from->waits == WAITING)
			break;
		from->waiting[from->waits].row = arrow;
		from->waiting[from->waits++].pid = wake->waker_pid;
		break;
	default:
		break;
	}
}

/* A slice was written: arrows that begin on it are ready, others that wait on this CPU have none. */
static void begins_written(struct farrows *arrows, struct arrow_cpu *from, const struct frow *row)
{
	uint32_t i, kept = 0;

	for (i = 0; i < from->waits; i++) {
		const struct frow *arrow = &from->waiting[i].row;

		if (arrow->begin_ns > row->end_ns)
			from->waiting[kept++] = from->waiting[i];
		else if (arrow->begin_ns >= row->begin_ns &&
			 arrows->view->tracks[row->task].number == from->waiting[i].pid)
			make_ready(arrows, arrow);
	}
	from->waits = kept;
}

int farrows_wrote(struct farrows *arrows, const struct frow *row)
{
	struct arrow_cpu *cpu = cpu_of(arrows, row->cpu);

	if (!cpu)
		return row->cpu < 0 ? 0 : -ENOMEM;
	if (row->kind != ROW_ON_CPU) {
		cpu->known = true;
		cpu->pid_now = row->kind == ROW_SWITCH ? row->sw.next_pid : -1;
		cpu->since_ns = row->begin_ns;
		if (row->kind == ROW_GAP)
			cpu->gap_ns = row->end_ns;
		return 0;
	}
	cpu->runs[cpu->next++ % RUNS_KEPT] = (struct run_kept){ row->begin_ns, row->end_ns, row->task };
	begins_written(arrows, cpu, row);
	if (cpu->arrow.pid >= 0 && arrows->view->tracks[row->task].number == cpu->arrow.pid &&
	    fview_time(arrows->view, cpu->arrow.end_ns) == row->begin_ns)
		end_written(arrows, cpu, row);
	cpu->arrow.pid = -1;
	return 0;
}

bool farrows_next(struct farrows *arrows, struct frow *arrow)
{
	if (!arrows->ready_count)
		return false;
	*arrow = arrows->ready[--arrows->ready_count];
	arrow->count = ++arrows->count;
	return true;
}
