/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Timelines of whole jobs (job_timeline.h). A recording may hold only some of the job's steps: these are then numbered by
 * their order, which is said, since a window of steps must not have holes.
 */
#include "analyze/job_timeline.h"
#include "wire/op_family.h"
#include "wire/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SUMS_MAX 8 /* operations of one worker and step; further ones are added to the last */

struct job_sum {
	uint32_t name, group;
	double ms;
};

/** struct job_cell - one worker in one step */
struct job_cell {
	int32_t rank;
	uint32_t step; /* as written, then as numbered */
	int64_t begin_ns, end_ns;
	double own_ms, forward_ms, load_ms;
	struct job_sum sums[SUMS_MAX];
	size_t sums_count;
};

struct job_timeline {
	const struct records *records;
	struct job_cell *cells; /* by rank, then step */
	size_t count, room;
	size_t *slots; /* by rank and step: index + 1, while reading */
	size_t slots_count;
	size_t workers;
};

static size_t slot_of(const struct job_timeline *job, int32_t rank, uint32_t step)
{
	size_t mask = job->slots_count - 1;
	size_t slot = ((size_t)(uint32_t)rank * 0x9e3779b97f4a7c15u + (size_t)step * 0xd6e8feb86659fd93u) >> 20 & mask;

	while (job->slots[slot] &&
	       (job->cells[job->slots[slot] - 1].rank != rank || job->cells[job->slots[slot] - 1].step != step))
		slot = (slot + 1) & mask;
	return slot;
}

static int grow(struct job_timeline *job)
{
	size_t room = job->room ? 2 * job->room : 512, i, *slots;
	void *more = reallocarray(job->cells, room, sizeof(*job->cells));

	if (!more)
		return -ENOMEM;
	job->cells = more;
	slots = calloc(2 * room, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	free(job->slots);
	job->slots = slots;
	job->slots_count = 2 * room;
	job->room = room;
	for (i = 0; i < job->count; i++)
		job->slots[slot_of(job, job->cells[i].rank, job->cells[i].step)] = i + 1;
	return 0;
}

static struct job_cell *cell_of(struct job_timeline *job, const struct event *ev)
{
	size_t slot;

	if (job->count == job->room && grow(job) < 0)
		return NULL;
	slot = slot_of(job, ev->rank, ev->step);
	if (!job->slots[slot]) {
		job->cells[job->count] =
			(struct job_cell){ .rank = ev->rank, .step = ev->step, .begin_ns = (int64_t)ev->t_ns };
		job->slots[slot] = ++job->count;
	}
	return &job->cells[job->slots[slot] - 1];
}

static void add_sum(struct job_cell *cell, uint32_t name, uint32_t group, double ms)
{
	size_t i;

	for (i = 0; i < cell->sums_count; i++)
		if (cell->sums[i].name == name && cell->sums[i].group == group)
			break;
	if (i == SUMS_MAX)
		i--;
	else if (i == cell->sums_count)
		cell->sums[cell->sums_count++] = (struct job_sum){ .name = name, .group = group };
	cell->sums[i].ms += ms;
}

static void add_event(struct job_cell *cell, const struct event *ev, uint32_t key_kind, uint32_t key_group)
{
	int64_t begin = (int64_t)ev->t_ns, end = begin + (int64_t)ev->dur_ns;
	double ms = (double)ev->dur_ns / 1e6;

	if (begin < cell->begin_ns)
		cell->begin_ns = begin;
	if (end > cell->end_ns)
		cell->end_ns = end;
	if (ev->kind == EV_COMM) {
		add_sum(cell, ev->name, records_name(ev, key_group), ms);
		return;
	}
	switch (records_number(ev, key_kind, STAGE_UNKNOWN)) {
	case STAGE_DATALOADER:
		cell->load_ms += ms;
		break;
	case STAGE_FORWARD:
		cell->forward_ms += ms;
		cell->own_ms += ms;
		break;
	case STAGE_BACKWARD:
	case STAGE_OPTIMIZER:
	case STAGE_GC:
		cell->own_ms += ms;
		break;
	default:
		break;
	}
}

static void note_line(void *arg, const char *text)
{
	records_note(arg, "%s", text);
}

static int read_file(struct job_timeline *job, const char *path)
{
	const struct records *records = job->records;
	uint32_t key_kind = ev_name(records->session, "kind", 4), key_group = ev_name(records->session, "group", 5);
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &err);
	struct event ev;
	int more = reader ? 1 : 0;

	if (!reader)
		records_note(records, "%s", err.text);
	while (reader && (more = ev_next(reader, &ev, &err)) > 0) {
		struct job_cell *cell;

		if (ev.rank == EV_NO_RANK || (ev.kind != EV_COMM && ev.kind != EV_STAGE))
			continue;
		cell = cell_of(job, &ev);
		if (!cell) {
			ev_close(reader);
			return -ENOMEM;
		}
		add_event(cell, &ev, key_kind, key_group);
	}
	if (more < 0)
		records_note(records, "%s", err.text);
	if (reader && reader->ops->report)
		reader->ops->report(reader, note_line, (void *)records);
	ev_close(reader);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct job_cell *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->step > y->step) - (x->step < y->step);
}

static int by_step(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Steps with holes between them are numbered by their order */
static int number_steps(struct job_timeline *job)
{
	uint32_t *numbers = malloc((job->count + 1) * sizeof(*numbers)), *found;
	size_t i, count = 0;

	if (!numbers)
		return -ENOMEM;
	for (i = 0; i < job->count; i++) {
		numbers[i] = job->cells[i].step;
		job->workers += !i || job->cells[i].rank != job->cells[i - 1].rank;
	}
	if (job->count)
		qsort(numbers, job->count, sizeof(*numbers), by_step);
	for (i = 0; i < job->count; i++)
		if (!count || numbers[count - 1] != numbers[i])
			numbers[count++] = numbers[i];
	if (count && numbers[count - 1] - numbers[0] >= count) {
		records_note(job->records,
			     "%zu steps between %u and %u were recorded; they are numbered by their order, from 0",
			     count, numbers[0], numbers[count - 1]);
		for (i = 0; i < job->count; i++) {
			found = bsearch(&job->cells[i].step, numbers, count, sizeof(*numbers), by_step);
			job->cells[i].step = (uint32_t)(found - numbers);
		}
	}
	free(numbers);
	return 0;
}

struct job_timeline *job_timeline_read(const struct records *records)
{
	struct job_timeline *job = calloc(1, sizeof(*job));
	size_t i, files = 0;
	int ret = job ? 0 : -ENOMEM;

	if (job)
		job->records = records;
	for (i = 0; i < records->count && !ret; i++) {
		if (!(records->files[i].format & RECORD_JOB))
			continue;
		files++;
		ret = read_file(job, records->files[i].path);
	}
	if (!ret && job->count) {
		qsort(job->cells, job->count, sizeof(job->cells[0]), by_place);
		ret = number_steps(job);
	}
	if (ret < 0 || !files) {
		job_timeline_free(job);
		errno = -ret;
		return NULL;
	}
	return job;
}

void job_timeline_free(struct job_timeline *job)
{
	if (!job)
		return;
	free(job->cells);
	free(job->slots);
	free(job);
}

size_t job_timeline_workers(const struct job_timeline *job)
{
	return job->workers;
}

static int feed_cell(struct loc_rank *rank, const struct job_cell *c, const struct ev_session *session)
{
	size_t i;
	int ret = loc_rank_step(rank, &(struct loc_step){ .number = c->step,
							  .begin_ns = c->begin_ns,
							  .ms = (double)(c->end_ns - c->begin_ns) / 1e6,
							  .forward_ms = c->forward_ms });

	if (!ret && c->load_ms > 0)
		ret = loc_rank_stage(rank, c->step, LOC_DATALOADER, c->load_ms);
	if (!ret && c->own_ms > 0)
		loc_rank_own(rank, c->step, c->own_ms);
	for (i = 0; i < c->sums_count && !ret; i++) {
		const char *name = ev_text(session, c->sums[i].name);

		ret = loc_rank_sum(rank,
				   &(struct loc_sum){ .step = c->step,
						      .group = c->sums[i].group,
						      .name = c->sums[i].name,
						      .total_ms = c->sums[i].ms,
						      .pairwise = op_family_p2p(op_family_of(name, strlen(name))) });
	}
	return ret;
}

int job_timeline_localize(const struct job_timeline *job, struct localize *loc)
{
	struct loc_rank *rank = NULL;
	size_t i;
	int ret = 0;

	for (i = 0; i < job->count && !ret; i++) {
		const struct job_cell *c = &job->cells[i];

		if (!i || c->rank != job->cells[i - 1].rank) {
			ret = rank ? loc_rank_done(rank) : 0;
			rank = localize_rank(loc, c->rank, 0, 0);
			if (!rank)
				return -ENOMEM;
		}
		if (!ret)
			ret = feed_cell(rank, c, job->records->session);
	}
	return ret || !rank ? ret : loc_rank_done(rank);
}

static int by_step_then_begin(const void *a, const void *b)
{
	const struct job_cell *const *x = a, *const *y = b;

	if ((*x)->step != (*y)->step)
		return (*x)->step < (*y)->step ? -1 : 1;
	return ((*x)->begin_ns > (*y)->begin_ns) - ((*x)->begin_ns < (*y)->begin_ns);
}

long job_timeline_failslow(const struct job_timeline *job, struct failslow *fs, int64_t *last_us)
{
	const struct job_cell **cells = malloc((job->count + 1) * sizeof(*cells));
	size_t i, end;
	long steps = 0;
	int ret = 0;

	if (!cells)
		return -ENOMEM;
	for (i = 0; i < job->count; i++)
		cells[i] = &job->cells[i];
	if (job->count)
		qsort(cells, job->count, sizeof(cells[0]), by_step_then_begin);
	for (i = 0; i < job->count && !ret; i = end) {
		int64_t last = 0;

		for (end = i; end < job->count && cells[end]->step == cells[i]->step; end++)
			last = cells[end]->end_ns > last ? cells[end]->end_ns : last;
		ret = failslow_step(fs, &(struct failslow_step){ .number = cells[i]->step,
								 .begin_us = cells[i]->begin_ns / 1000,
								 .ms = (double)(last - cells[i]->begin_ns) / 1e6 });
		steps++;
		*last_us = last / 1000;
	}
	free(cells);
	return ret < 0 ? ret : steps;
}
