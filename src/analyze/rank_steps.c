/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Steps of one rank (rank_steps.h). Records come in the order of their ends, so everything is collected first, sorted by
 * time, and stages and sums are then given to the steps whose time they fall into.
 */
#include "analyze/rank_steps.h"
#include "analyze/marker_steps.h"
#include "base/hash64.h"
#include "wire/op_family.h"
#include "wire/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** struct span - a stage or sum that waits for its step */
struct span {
	int64_t begin_ns, end_ns;
	uint64_t number; /* documented stage_id */
	uint8_t kind; /* enum stage_type */
};

struct pending_sum {
	int64_t begin_ns;
	struct rank_sum sum;
	uint64_t calls;
};

struct reading {
	struct rank_steps *out;
	struct span *spans;
	size_t spans_count;
	struct pending_sum *sums;
	size_t sums_count;
	uint32_t key_kind, key_stage_id, key_group, key_total, key_elements, key_calls, key_count;
};

static void *grow(void *array, size_t count, size_t size)
{
	if (count & (count - 1))
		return array;
	return reallocarray(array, count ? 2 * count : 1, size);
}

#define APPEND(array, count, value)                                 \
	({                                                          \
		void *more_ = grow(array, count, sizeof(*(array))); \
		if (more_) {                                        \
			(array) = more_;                            \
			(array)[(count)++] = (value);               \
		}                                                   \
		more_ ? 0 : -ENOMEM;                                \
	})

static int take_event(struct reading *r, const struct ev_reader *reader, const struct event *ev)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	int64_t end = begin + (int64_t)ev->dur_ns;
	uint64_t kind;

	if (ev->quality & EV_WORKER)
		return 0;
	if (end > r->out->last_ns)
		r->out->last_ns = end;
	switch (ev->kind) {
	case EV_STEP:
		return APPEND(
			r->out->steps, r->out->count,
			((struct rank_step){ .number = ev->step, .begin_ns = begin, .dur_ns = (int64_t)ev->dur_ns }));
	case EV_STAGE:
		kind = records_number(ev, r->key_kind, STAGE_UNKNOWN);
		if (kind != STAGE_DATALOADER && kind != STAGE_CHECKPOINT && kind != STAGE_FORWARD)
			return 0;
		return APPEND(r->spans, r->spans_count,
			      ((struct span){ begin, end, records_number(ev, r->key_stage_id, 0), (uint8_t)kind }));
	case EV_COMM_SUM:
		return APPEND(r->sums, r->sums_count,
			      ((struct pending_sum){ .begin_ns = begin,
						     .sum = { .name = ev->name,
							      .group = records_name(ev, r->key_group),
							      .total_ns = (int64_t)records_number(ev, r->key_total, 0),
							      .elements = records_number(ev, r->key_elements, 0) },
						     .calls = records_number(ev, r->key_calls, 1) }));
	case EV_LOST:
		r->out->lost += records_number(ev, r->key_count, 1);
		return 0;
	}
	return 0;
}

static void note_line(void *arg, const char *text)
{
	records_note(arg, "%s", text);
}

static int read_file(struct reading *r, const struct records *records, const char *path)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &err);
	struct event ev;
	int ret = 0, more;

	if (!reader) {
		records_note(records, "%s", err.text);
		return 0;
	}
	while (!ret && (more = ev_next(reader, &ev, &err)) != 0) {
		if (more < 0) {
			records_note(records, "%s", err.text);
			break;
		}
		ret = take_event(r, reader, &ev);
	}
	if (reader->ops->report)
		reader->ops->report(reader, note_line, (void *)records);
	ev_close(reader);
	return ret;
}

static int by_begin(const void *a, const void *b)
{
	const struct rank_step *x = a, *y = b;

	return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static int span_by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/* Does the documented stage_id count the loader calls, one by one? */
static bool numbers_count(const struct reading *r)
{
	uint64_t last = 0;
	bool seen = false;
	size_t i;

	for (i = 0; i < r->spans_count; i++) {
		if (r->spans[i].kind != STAGE_DATALOADER)
			continue;
		if (seen && r->spans[i].number != last + 1)
			return false;
		last = r->spans[i].number;
		seen = true;
	}
	return seen;
}

/* A published timeline: each loader call begins a step. Numbered by stage_id where that counts them, else from 0. */
static int steps_from_loader(struct reading *r)
{
	struct rank_steps *out = r->out;
	bool counted = numbers_count(r);
	struct rank_step step;
	size_t i;
	int ret = 0;

	for (i = 0; i < r->spans_count && !ret; i++) {
		const struct span *s = &r->spans[i];

		if (s->kind != STAGE_DATALOADER)
			continue;
		if (out->count)
			out->steps[out->count - 1].dur_ns = s->begin_ns - out->steps[out->count - 1].begin_ns;
		step = (struct rank_step){ .number = counted ? (uint32_t)s->number : (uint32_t)out->count,
					   .begin_ns = s->begin_ns };
		ret = APPEND(out->steps, out->count, step);
	}
	return ret;
}

/* Repeated numbers and steps counted anew by another source: the later one holds */
static void tidy_steps(struct rank_steps *out)
{
	size_t i, kept = 0;

	for (i = 0; i < out->count; i++) {
		while (kept && out->steps[kept - 1].number >= out->steps[i].number)
			kept--;
		out->steps[kept++] = out->steps[i];
	}
	out->count = kept;
}

size_t rank_steps_at(const struct rank_steps *steps, int64_t wall_ns)
{
	size_t low = 0, high = steps->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (steps->steps[mid].begin_ns <= wall_ns)
			low = mid + 1;
		else
			high = mid;
	}
	return low ? low - 1 : SIZE_MAX;
}

static void give_span(struct rank_steps *out, const struct span *span)
{
	size_t at = rank_steps_at(out, span->begin_ns);
	struct rank_step *step;

	if (at == SIZE_MAX)
		return;
	step = &out->steps[at];
	if (span->kind == STAGE_FORWARD) {
		step->forward_ns += span->end_ns - span->begin_ns;
		return;
	}
	if (span->kind == STAGE_CHECKPOINT) {
		step->ckpt_ns += span->end_ns - span->begin_ns;
		return;
	}
	step->load_ns += span->end_ns - span->begin_ns;
	if (!step->load_end_ns)
		step->load_end_ns = span->end_ns;
}

static int give_sum(struct rank_steps *out, struct pending_sum *pending)
{
	size_t at = rank_steps_at(out, pending->begin_ns);

	if (at == SIZE_MAX)
		return 0;
	pending->sum.step = (uint32_t)at;
	out->steps[at].elements += pending->sum.elements;
	out->steps[at].calls += pending->calls;
	return APPEND(out->sums, out->sums_count, pending->sum);
}

static int finish(struct reading *r)
{
	struct rank_steps *out = r->out;
	size_t i;
	int ret = 0;

	if (r->spans_count)
		qsort(r->spans, r->spans_count, sizeof(r->spans[0]), span_by_begin);
	if (!out->count)
		ret = steps_from_loader(r);
	if (out->count)
		qsort(out->steps, out->count, sizeof(out->steps[0]), by_begin);
	tidy_steps(out);
	for (i = 0; i < r->spans_count; i++)
		give_span(out, &r->spans[i]);
	for (i = 0; i < r->sums_count && !ret; i++)
		ret = give_sum(out, &r->sums[i]);
	return ret;
}

/* ---- steps from markers --------------------------------------------------------------------------------------------- */

/** struct call - one collective */
struct call {
	uint64_t serial; /* 0 = unknown */
	int64_t begin_ns;
	uint64_t code;
	bool device;
};

struct calls {
	struct call *list;
	size_t count;
	uint32_t key_id, key_count;
	struct {
		uint32_t name;
		uint64_t code;
	} cache[16];
};

/* Kind and size of an operation, equal on all ranks: names of groups are not part of it */
static uint64_t code_of(struct calls *c, const struct ev_session *session, const struct event *ev)
{
	size_t slot = ev->name % 16;

	if (c->cache[slot].name != ev->name) {
		const char *text = ev_text(session, ev->name);

		c->cache[slot].name = ev->name;
		c->cache[slot].code = hash64(text, strlen(text));
	}
	return hash64_mix(c->cache[slot].code ^ records_number(ev, c->key_count, 0), 0x9e3779b97f4a7c15u);
}

static int read_calls(struct calls *c, const struct records *records, const char *path, int64_t *last_ns)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &err);
	struct event ev;
	int ret = 0;

	while (reader && !ret && ev_next(reader, &ev, &err) > 0) {
		int64_t begin = records_wall_ns(reader, &ev, ev.t_ns);

		if (ev.kind != EV_COMM || ev.phase == EV_INSTANT)
			continue;
		if (begin + (int64_t)ev.dur_ns > *last_ns)
			*last_ns = begin + (int64_t)ev.dur_ns;
		ret = APPEND(c->list, c->count,
			     ((struct call){ records_number(&ev, c->key_id, 0), begin,
					     code_of(c, records->session, &ev), ev.track.device >= 0 }));
	}
	ev_close(reader);
	return ret;
}

static int by_call(const void *a, const void *b)
{
	const struct call *x = a, *y = b;

	if (x->serial != y->serial)
		return x->serial < y->serial ? -1 : 1;
	return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/* One side of the calls: the device's where there is one */
static void keep_side(struct calls *c)
{
	size_t i, kept = 0;
	bool device = false;

	for (i = 0; i < c->count && !device; i++)
		device = c->list[i].device;
	for (i = 0; i < c->count; i++)
		if (c->list[i].device == device)
			c->list[kept++] = c->list[i];
	c->count = kept;
	if (kept)
		qsort(c->list, kept, sizeof(c->list[0]), by_call);
}

static int steps_from_calls(struct rank_steps *out, const struct calls *c)
{
	uint64_t *codes = malloc((c->count + 1) * sizeof(*codes));
	size_t i, start = 0, period;
	int ret = 0;

	if (!codes)
		return -ENOMEM;
	for (i = 0; i < c->count; i++)
		codes[i] = c->list[i].code;
	period = marker_steps_find(codes, c->count, &start);
	free(codes);
	out->from_markers = period > 0;
	for (i = start; period && i < c->count && !ret; i += period) {
		struct rank_step step = { .number = (uint32_t)(i / period), .begin_ns = c->list[i].begin_ns };

		if (out->count && step.begin_ns <= out->steps[out->count - 1].begin_ns)
			continue;
		if (out->count)
			out->steps[out->count - 1].dur_ns = step.begin_ns - out->steps[out->count - 1].begin_ns;
		ret = APPEND(out->steps, out->count, step);
	}
	return ret;
}

static int read_markers(struct rank_steps *out, const struct records *records, const struct record_file *files,
			size_t count)
{
	struct calls c = { .key_id = ev_name(records->session, "id", 2),
			   .key_count = ev_name(records->session, "count", 5) };
	size_t i;
	int ret = 0;

	for (i = 0; i < count && !ret; i++)
		if (files[i].format & RECORD_MARKERS)
			ret = read_calls(&c, records, files[i].path, &out->last_ns);
	keep_side(&c);
	if (!ret)
		ret = steps_from_calls(out, &c);
	free(c.list);
	return ret;
}

int rank_steps_align(struct rank_steps *steps, const struct rank_steps *reference)
{
	int64_t *begins = malloc((steps->count + reference->count + 1) * sizeof(*begins));
	int64_t *others = begins + steps->count;
	size_t i, kept = 0;
	long shift;

	if (!begins)
		return -ENOMEM;
	for (i = 0; i < steps->count; i++)
		begins[i] = steps->steps[i].begin_ns;
	for (i = 0; i < reference->count; i++)
		others[i] = reference->steps[i].begin_ns;
	shift = marker_steps_shift(begins, steps->count, others, reference->count);
	free(begins);
	for (i = 0; i < steps->count && reference->count; i++) {
		long number = (long)reference->steps[0].number + (long)i + shift;

		if (number < 0)
			continue; /* before anything that the reference knows */
		steps->steps[kept] = steps->steps[i];
		steps->steps[kept++].number = (uint32_t)number;
	}
	if (reference->count)
		steps->count = kept;
	return 0;
}

int rank_steps_read(struct rank_steps *out, const struct records *records, const struct record_file *files,
		    size_t count)
{
	struct ev_session *session = records->session;
	struct reading r = {
		.out = out,
		.key_kind = ev_name(session, "kind", 4),
		.key_stage_id = ev_name(session, "stage_id", 8),
		.key_group = ev_name(session, "group", 5),
		.key_total = ev_name(session, "total_ns", 8),
		.key_elements = ev_name(session, "elements", 8),
		.key_calls = ev_name(session, "calls", 5),
		.key_count = ev_name(session, "count", 5),
	};
	size_t i;
	int ret = 0;

	*out = (struct rank_steps){ 0 };
	for (i = 0; i < count && !ret; i++)
		if (files[i].format & RECORD_TIMELINE)
			ret = read_file(&r, records, files[i].path);
	if (!ret)
		ret = finish(&r);
	if (!ret && !out->count)
		ret = read_markers(out, records, files, count);
	free(r.spans);
	free(r.sums);
	return ret;
}

void rank_steps_fini(struct rank_steps *steps)
{
	free(steps->steps);
	free(steps->sums);
	*steps = (struct rank_steps){ 0 };
}
