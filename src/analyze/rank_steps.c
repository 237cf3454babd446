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
#include <sys/stat.h>

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
	uint64_t bytes; /* read from files */
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

/** struct cached_file - how far a file was read */
struct cached_file {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime;
	uint64_t offset; /* 0 = must be read from its begin */
	struct ev_origin origin;
};

/* @at: where to go on and where that was noted; NULL = all of the file is read, and nothing is noted */
static int read_file(struct reading *r, const struct records *records, const char *path, struct cached_file *at)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &err);
	struct event ev;
	uint64_t from = 0;
	int ret = 0, more;

	if (!reader) {
		records_note(records, "%s", err.text);
		return 0;
	}
	if (at && at->offset && reader->ops->resume && reader->ops->resume(reader, at->offset, &at->origin) == 0)
		from = at->offset;
	while (!ret && (more = ev_next(reader, &ev, &err)) != 0) {
		if (more < 0) {
			records_note(records, "%s", err.text);
			break;
		}
		ret = take_event(r, reader, &ev);
	}
	if (reader->ops->report)
		reader->ops->report(reader, note_line, (void *)records);
	r->bytes += reader->stats.bytes - from;
	if (at) {
		at->offset = reader->ops->resume ? reader->stats.resume_bytes : 0;
		at->origin = reader->origin;
	}
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

/* ---- steps read before ---------------------------------------------------------------------------------------------- */

/** struct cached_rank - what the files of a rank held, before stages and sums were given to steps */
struct cached_rank {
	int32_t rank;
	struct rank_steps raw;
	struct span *spans;
	size_t spans_count;
	struct pending_sum *sums;
	size_t sums_count;
	struct cached_file *files;
	size_t files_count;
};

struct steps_cache {
	struct cached_rank **ranks;
	size_t count;
	uint64_t bytes;
};

struct steps_cache *steps_cache_new(void)
{
	return calloc(1, sizeof(struct steps_cache));
}

static void forget(struct cached_rank *c)
{
	rank_steps_fini(&c->raw);
	free(c->spans);
	free(c->sums);
	free(c->files);
	*c = (struct cached_rank){ .rank = c->rank };
}

void steps_cache_free(struct steps_cache *cache)
{
	size_t i;

	if (!cache)
		return;
	for (i = 0; i < cache->count; i++) {
		forget(cache->ranks[i]);
		free(cache->ranks[i]);
	}
	free(cache->ranks);
	free(cache);
}

uint64_t steps_cache_bytes(struct steps_cache *cache)
{
	uint64_t bytes = cache->bytes;

	cache->bytes = 0;
	return bytes;
}

static struct cached_rank *cached_rank(struct steps_cache *cache, int32_t rank)
{
	struct cached_rank *c;
	size_t i;

	for (i = 0; i < cache->count; i++)
		if (cache->ranks[i]->rank == rank)
			return cache->ranks[i];
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->rank = rank;
	if (APPEND(cache->ranks, cache->count, c) < 0) {
		free(c);
		return NULL;
	}
	return c;
}

static struct cached_file *cached_file(struct cached_rank *c, const struct stat *st)
{
	size_t i;

	for (i = 0; i < c->files_count; i++)
		if (c->files[i].dev == st->st_dev && c->files[i].ino == st->st_ino)
			return &c->files[i];
	return NULL;
}

static bool is_same(const struct cached_file *f, const struct stat *st)
{
	return f->size == st->st_size && f->mtime.tv_sec == st->st_mtim.tv_sec &&
	       f->mtime.tv_nsec == st->st_mtim.tv_nsec;
}

/* Can what was read be kept: are all of its files still there, and unchanged or only longer where that can be read on? */
static bool is_good(struct cached_rank *c, const struct record_file *files, size_t count)
{
	size_t i, present = 0;

	for (i = 0; i < count; i++) {
		struct cached_file *f;
		struct stat st;

		if (!(files[i].format & RECORD_TIMELINE) || stat(files[i].path, &st) < 0)
			continue;
		f = cached_file(c, &st);
		if (f && !is_same(f, &st) && (!f->offset || (uint64_t)st.st_size < f->offset))
			return false;
		present += f != NULL;
	}
	return present == c->files_count;
}

static int read_on(struct cached_rank *c, struct reading *r, const struct records *records, const char *path)
{
	struct cached_file *f;
	struct stat st;
	int ret;

	if (stat(path, &st) < 0)
		return 0;
	f = cached_file(c, &st);
	if (f && is_same(f, &st))
		return 0;
	if (!f) {
		ret = APPEND(c->files, c->files_count, ((struct cached_file){ .dev = st.st_dev, .ino = st.st_ino }));
		if (ret < 0)
			return ret;
		f = &c->files[c->files_count - 1];
	}
	f->size = st.st_size;
	f->mtime = st.st_mtim;
	return read_file(r, records, path, f);
}

static void *copy_of(const void *array, size_t count, size_t size)
{
	void *copy = malloc(count * size + 1);

	if (copy && count)
		memcpy(copy, array, count * size);
	return copy;
}

/* What is new joins what was read before; @r then holds copies of all */
static int read_cached(struct reading *r, const struct records *records, const struct record_file *files, size_t count)
{
	struct cached_rank *c = cached_rank(records->cache, files[0].rank);
	struct rank_steps *out = r->out;
	size_t i;
	int ret = 0;

	if (!c)
		return -ENOMEM;
	if (!is_good(c, files, count))
		forget(c);
	*out = c->raw;
	r->spans = c->spans;
	r->spans_count = c->spans_count;
	r->sums = c->sums;
	r->sums_count = c->sums_count;
	for (i = 0; i < count && !ret; i++)
		if (files[i].format & RECORD_TIMELINE)
			ret = read_on(c, r, records, files[i].path);
	records->cache->bytes += r->bytes;
	c->raw = *out;
	c->spans = r->spans;
	c->spans_count = r->spans_count;
	c->sums = r->sums;
	c->sums_count = r->sums_count;
	out->steps = copy_of(c->raw.steps, out->count, sizeof(*out->steps));
	r->spans = copy_of(c->spans, r->spans_count, sizeof(*r->spans));
	r->sums = copy_of(c->sums, r->sums_count, sizeof(*r->sums));
	if (!out->steps || !r->spans || !r->sums)
		ret = -ENOMEM;
	if (!out->count) { /* steps may still be found, and then grow from nothing */
		free(out->steps);
		out->steps = NULL;
	}
	return ret;
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
	if (records->cache && count)
		ret = read_cached(&r, records, files, count);
	for (i = 0; i < count && !ret && !records->cache; i++)
		if (files[i].format & RECORD_TIMELINE)
			ret = read_file(&r, records, files[i].path, NULL);
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
