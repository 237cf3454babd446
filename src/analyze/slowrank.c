/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented localiser (slowrank.h). Ranks are matched by step (or, without steps, by the number of the call within
 * its group), never by their clocks: the clock of one rank of the group cuts all ranks' values into windows.
 */
#include "analyze/slowrank.h"
#include "analyze/detect.h"
#include "analyze/localize_impl.h"
#include "analyze/stat.h"
#include "wire/op_family.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KINDS 5 /* compute, launch, comm, dataloader, ckpt */
#define CACHE 64

struct sample {
	int64_t at_ns;
	uint32_t key; /* step, or number of the call */
	uint32_t group;
	float value; /* ms */
};

/** struct series - one metric of one rank */
struct series {
	int32_t rank;
	struct sample *samples; /* in the order of keys once judged */
	size_t count;
	uint32_t group; /* the one with most calls; 0 = all ranks */
	uint64_t calls; /* numbering where there are no steps */
	struct loc_point *points; /* the aggregated series of the last judgement */
	size_t points_count;
};

/** struct watch - one observation point */
struct watch {
	enum loc_kind kind;
	const struct metric *metric;
	enum op_family family;
	char op[64]; /* name without _launch */
	struct series *series; /* rising ranks */
	size_t count;
};

struct launch {
	uint64_t id;
	int64_t begin_ns;
	uint32_t step, group;
	bool device;
};

struct slowrank {
	const struct model_config *model;
	struct ev_session *session;
	struct watch watches[KINDS]; /* by priority */
	size_t count;
	int32_t rank;
	struct launch *launches; /* both sides of the rank's calls, until its end */
	size_t launches_count;
	struct {
		uint32_t name;
		uint8_t mask; /* bit per watch */
	} cache[CACHE];
};

static void *room_for_one(void *array, size_t count, size_t size)
{
	if (count & (count - 1))
		return array;
	return reallocarray(array, count ? 2 * count : 1, size);
}

/* ---- set-up --------------------------------------------------------------------------------------------------------- */

static int by_priority(const void *a, const void *b)
{
	const struct watch *x = a, *y = b;

	if (x->metric->priority != y->metric->priority)
		return x->metric->priority < y->metric->priority ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

static bool is_stage(enum loc_kind kind)
{
	return kind == LOC_DATALOADER || kind == LOC_CKPT;
}

struct slowrank *slowrank_new(const struct model_config *model, const struct metric_config *metrics,
			      struct ev_session *session, struct st_err *err)
{
	struct slowrank *sr = calloc(1, sizeof(*sr));
	char *suffix;
	int kind;

	if (!sr) {
		err_set(err, -ENOMEM, "out of memory");
		return NULL;
	}
	sr->model = model;
	sr->session = session;
	sr->rank = EV_NO_RANK;
	for (kind = 0; kind < KINDS; kind++) {
		struct watch *w = &sr->watches[sr->count];
		const char *name = model_config_op(model, (enum loc_kind)kind);

		if (!model->detect[kind])
			continue;
		*w = (struct watch){ .kind = (enum loc_kind)kind, .metric = metric_config_find(metrics, name) };
		if (!w->metric) {
			err_set(err, -EINVAL, "fail_slow_ops names %s, but metric_config.json has no such metric",
				name);
			free(sr);
			errno = EINVAL;
			return NULL;
		}
		snprintf(w->op, sizeof(w->op), "%s", w->metric->name);
		suffix = strlen(w->op) > 7 ? w->op + strlen(w->op) - 7 : NULL;
		if (suffix && !strcasecmp(suffix, "_launch"))
			*suffix = '\0';
		w->family = op_family_of(w->op, strlen(w->op));
		sr->count++;
	}
	qsort(sr->watches, sr->count, sizeof(sr->watches[0]), by_priority);
	return sr;
}

void slowrank_free(struct slowrank *sr)
{
	size_t i, k;

	if (!sr)
		return;
	for (i = 0; i < sr->count; i++) {
		for (k = 0; k < sr->watches[i].count; k++) {
			free(sr->watches[i].series[k].samples);
			free(sr->watches[i].series[k].points);
		}
		free(sr->watches[i].series);
	}
	free(sr->launches);
	free(sr);
}

/* ---- feeding -------------------------------------------------------------------------------------------------------- */

static int add(struct slowrank *sr, struct watch *w, uint32_t step, uint32_t group, int64_t at_ns, double value)
{
	struct series *s = w->count ? &w->series[w->count - 1] : NULL;
	void *more;

	if (!isfinite(value) || value < 0)
		return 0;
	if (!s || s->rank != sr->rank) {
		more = room_for_one(w->series, w->count, sizeof(*s));
		if (!more)
			return -ENOMEM;
		w->series = more;
		s = &w->series[w->count++];
		*s = (struct series){ .rank = sr->rank };
	}
	more = room_for_one(s->samples, s->count, sizeof(*s->samples));
	if (!more)
		return -ENOMEM;
	s->samples = more;
	s->samples[s->count++] = (struct sample){
		.at_ns = at_ns,
		.key = step == SLOWRANK_NO_STEP ? (uint32_t)s->calls++ : step,
		.group = group,
		.value = (float)value,
	};
	return 0;
}

static struct watch *watch_of(struct slowrank *sr, enum loc_kind kind)
{
	size_t i;

	for (i = 0; i < sr->count; i++)
		if (sr->watches[i].kind == kind)
			return &sr->watches[i];
	return NULL;
}

static int by_launch(const void *a, const void *b)
{
	const struct launch *x = a, *y = b;

	if (x->id != y->id)
		return (x->id > y->id) - (x->id < y->id);
	return (int)x->device - (int)y->device;
}

/* From the host's call to the device's start, call by call */
static int end_rank(struct slowrank *sr)
{
	struct watch *w = watch_of(sr, LOC_LAUNCH);
	size_t i;
	int ret = 0;

	if (sr->launches_count)
		qsort(sr->launches, sr->launches_count, sizeof(sr->launches[0]), by_launch);
	for (i = 1; i < sr->launches_count && w && !ret; i++) {
		const struct launch *host = &sr->launches[i - 1], *dev = &sr->launches[i];

		if (host->id == dev->id && !host->device && dev->device)
			ret = add(sr, w, dev->step, dev->group, dev->begin_ns,
				  (double)(dev->begin_ns - host->begin_ns) / 1e6);
	}
	sr->launches_count = 0;
	return ret;
}

int slowrank_rank(struct slowrank *sr, int32_t rank)
{
	int ret = end_rank(sr);

	sr->rank = rank;
	return ret;
}

static unsigned watchers(struct slowrank *sr, uint32_t name)
{
	const char *text = ev_text(sr->session, name);
	enum op_family family;
	unsigned mask = 0;
	size_t i;

	if (sr->cache[name % CACHE].name == name)
		return sr->cache[name % CACHE].mask;
	family = op_family_of(text, strlen(text));
	for (i = 0; i < sr->count; i++) {
		const struct watch *w = &sr->watches[i];

		if (!is_stage(w->kind) && (family ? family == w->family : !strcasecmp(text, w->op)))
			mask |= 1u << i;
	}
	sr->cache[name % CACHE].name = name;
	sr->cache[name % CACHE].mask = (uint8_t)mask;
	return mask;
}

static int add_launch(struct slowrank *sr, const struct slowrank_call *call)
{
	void *more = room_for_one(sr->launches, sr->launches_count, sizeof(sr->launches[0]));

	if (!more)
		return -ENOMEM;
	sr->launches = more;
	sr->launches[sr->launches_count++] =
		(struct launch){ call->id, call->begin_ns, call->step, call->group, call->device };
	return 0;
}

int slowrank_call(struct slowrank *sr, const struct slowrank_call *call)
{
	unsigned mask = watchers(sr, call->name);
	size_t i;
	int ret = 0;

	for (i = 0; mask && i < sr->count && !ret; i++) {
		struct watch *w = &sr->watches[i];

		if (!(mask & 1u << i))
			continue;
		if (w->kind == LOC_LAUNCH && call->id)
			ret = add_launch(sr, call);
		else if (w->kind != LOC_LAUNCH && call->executed && call->end_ns)
			ret = add(sr, w, call->step, call->group, call->begin_ns,
				  (double)(call->end_ns - call->begin_ns) / 1e6);
	}
	return ret;
}

int slowrank_stage(struct slowrank *sr, enum loc_kind kind, uint32_t step, int64_t at_ns, double ms)
{
	struct watch *w = watch_of(sr, kind);

	return w ? add(sr, w, step, 0, at_ns, ms) : 0;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	if (x->key != y->key)
		return (x->key > y->key) - (x->key < y->key);
	return (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns);
}

static bool is_wanted(const struct loc_options *o, const struct sample *s)
{
	return s->key >= o->from_step && (!o->to_step || s->key <= o->to_step) && s->at_ns >= o->from_ns &&
	       (!o->to_ns || s->at_ns <= o->to_ns);
}

/* The group of most calls (Boyer and Moore's majority would need one; here plurality is counted over few groups) */
static uint32_t busiest_group(const struct series *s)
{
	struct {
		uint32_t group;
		size_t calls;
	} seen[32];
	size_t used = 0, best = 0, i, k;

	for (i = 0; i < s->count; i++) {
		for (k = 0; k < used && seen[k].group != s->samples[i].group; k++)
			;
		if (k == used && used < 32) {
			seen[used].group = s->samples[i].group;
			seen[used++].calls = 0;
		}
		if (k < 32 && ++seen[k].calls > seen[best].calls)
			best = k;
	}
	return used ? seen[best].group : 0;
}

/* Keep what the options ask for, of one group, in the order of keys */
static int prepare(struct slowrank *sr, struct localize *loc, struct watch *w)
{
	size_t i, k, kept;

	for (i = 0; i < w->count; i++) {
		struct series *s = &w->series[i];
		uint32_t busiest = is_stage(w->kind) ? 0 : busiest_group(s);
		uint32_t domain = is_stage(w->kind) ? 0 : model_config_domain(sr->model, sr->session, s->rank);
		struct loc_group *group = domain ? loc_group_get(loc, domain) : NULL;

		for (k = kept = 0; k < s->count; k++)
			if (is_wanted(&loc->options, &s->samples[k]) && s->samples[k].group == busiest)
				s->samples[kept++] = s->samples[k];
		s->count = kept;
		s->group = domain ? domain : busiest;
		if (kept)
			qsort(s->samples, kept, sizeof(s->samples[0]), by_key);
		if (domain && (!group || loc_group_join(group, s->rank, 1) < 0))
			return -ENOMEM;
	}
	return 0;
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

/** struct board - the members of one group and their aggregated points */
struct board {
	struct slowrank *sr;
	struct localize *loc;
	struct watch *w;
	struct series **members;
	size_t count;
	const struct series *reference;
	uint32_t *window; /* per sample of the reference: its point */
	size_t points;
	struct sample *first; /* per point: the reference's first sample */
	double per_key; /* samples of a step */
	double *values; /* [member][point], NAN = unknown */
	bool *bad; /* [member][point] */
	bool *in_space; /* per member */
	double *excess; /* per member: sum of what bad points have beyond normal */
};

static void board_fini(struct board *b)
{
	free(b->members);
	free(b->window);
	free(b->first);
	free(b->values);
	free(b->bad);
	free(b->in_space);
	free(b->excess);
}

/* Points of during_s seconds on the reference's clock; those in which it did nothing do not exist */
static int lay_windows(struct board *b)
{
	const struct series *r = b->reference;
	double during_ns = b->w->metric->during_s * 1e9;
	size_t i, keys = 1;
	int64_t last = -1;

	b->window = malloc(r->count * sizeof(*b->window));
	b->first = malloc(r->count * sizeof(*b->first));
	if (!b->window || !b->first)
		return -ENOMEM;
	for (i = 0; i < r->count; i++) {
		int64_t at = (int64_t)((double)(r->samples[i].at_ns - r->samples[0].at_ns) / during_ns);

		/* calls of one step stay together */
		if (i && r->samples[i].key == r->samples[i - 1].key)
			at = last;
		else
			keys += i > 0;
		if (at != last || !i)
			b->first[b->points++] = r->samples[i];
		last = at;
		b->window[i] = (uint32_t)(b->points - 1);
	}
	b->per_key = (double)r->count / (double)keys;
	return 0;
}

static bool window_of(const struct board *b, uint32_t key, size_t *window)
{
	const struct series *r = b->reference;
	size_t low = 0, high = r->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (r->samples[mid].key <= key)
			low = mid + 1;
		else
			high = mid;
	}
	if (low)
		*window = b->window[low - 1];
	return low > 0;
}

static double aggregate(const struct metric_aggregate *how, double *values, size_t count)
{
	double mean = 0, std = 0;
	size_t i;

	if (how->func == METRIC_COUNT || !count)
		return count ? (double)count : NAN;
	stat_mean_std(values, count, &mean, &std);
	switch (how->func) {
	case METRIC_MIN:
		return stat_quantile(values, count, 0);
	case METRIC_MAX_OF:
		return stat_quantile(values, count, 1);
	case METRIC_MEDIAN:
		return stat_median(values, count);
	case METRIC_PERCENTILE:
		return stat_quantile(values, count, how->percentile / 100);
	case METRIC_STD:
		return std;
	case METRIC_SUM:
		for (i = 0, mean = 0; i < count; i++)
			mean += values[i];
		return mean;
	default:
		return mean;
	}
}

static int aggregate_member(const struct board *b, const struct metric_aggregate *how, size_t member)
{
	const struct series *s = b->members[member];
	double *scratch = malloc((s->count + 1) * sizeof(*scratch));
	double *row = b->values + member * b->points;
	size_t i, used = 0, window = 0, current = SIZE_MAX;

	if (!scratch)
		return -ENOMEM;
	for (i = 0; i < b->points; i++)
		row[i] = NAN;
	for (i = 0; i < s->count; i++) {
		if (!window_of(b, s->samples[i].key, &window))
			continue;
		if (window != current && used) {
			row[current] = aggregate(how, scratch, used);
			used = 0;
		}
		current = window;
		scratch[used++] = s->samples[i].value;
	}
	if (used)
		row[current] = aggregate(how, scratch, used);
	free(scratch);
	return 0;
}

static int keep_points(const struct board *b, size_t member)
{
	struct series *s = b->members[member];
	size_t i;

	free(s->points);
	s->points_count = 0;
	s->points = malloc((b->points + 1) * sizeof(*s->points));
	if (!s->points)
		return -ENOMEM;
	for (i = 0; i < b->points; i++)
		if (!isnan(b->values[member * b->points + i]))
			s->points[s->points_count++] =
				(struct loc_point){ b->first[i].at_ns, b->values[member * b->points + i] };
	return 0;
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

static enum detect_side side_of(enum loc_kind kind)
{
	return kind == LOC_COMPUTE ? DETECT_BELOW : DETECT_ABOVE;
}

/* One window of all members that know it */
static int judge_window(const struct board *b, size_t from, size_t dim, double *rows, size_t *who, bool *flags)
{
	const struct metric_space_detector *how = &b->w->metric->space;
	size_t i, k, count = 0;
	double normal;
	int ret;

	for (i = 0; i < b->count; i++) {
		const double *row = b->values + i * b->points + from;

		for (k = 0; k < dim && !isnan(row[k]); k++)
			rows[count * dim + k] = row[k];
		if (k == dim)
			who[count++] = i;
	}
	ret = detect_space(how, rows, count, dim, side_of(b->w->kind), flags, &normal);
	for (i = 0; i < count && !ret; i++) {
		if (!flags[i])
			continue;
		b->in_space[who[i]] = true;
		for (k = 0; k < dim; k++) {
			if (!b->bad[who[i] * b->points + from + k])
				b->excess[who[i]] += fabs(rows[i * dim + k] - normal);
			b->bad[who[i] * b->points + from + k] = true;
		}
	}
	return ret;
}

/* Windows do not overlap, but for the last one, which ends with the data */
static int judge_space(const struct board *b)
{
	size_t dim = b->w->metric->space.window_size < b->points ? b->w->metric->space.window_size : b->points;
	double *rows = malloc((b->count * dim + 1) * sizeof(*rows));
	size_t *who = malloc((b->count + 1) * sizeof(*who));
	bool *flags = malloc((b->count + 1) * sizeof(*flags));
	size_t from;
	int ret = rows && who && flags ? 0 : -ENOMEM;

	for (from = 0; from < b->points && !ret; from += dim)
		ret = judge_window(b, from + dim <= b->points ? from : b->points - dim, dim, rows, who, flags);
	free(rows);
	free(who);
	free(flags);
	return ret;
}

static int judge_time(const struct board *b, size_t member)
{
	const double *row = b->values + member * b->points;
	double *known = malloc((b->points + 1) * sizeof(*known));
	size_t *at = malloc((b->points + 1) * sizeof(*at));
	bool *flags = malloc((b->points + 1) * sizeof(*flags));
	double good = 0;
	size_t i, count = 0, clean = 0;
	int ret = -ENOMEM;

	if (!known || !at || !flags)
		goto out;
	for (i = 0; i < b->points; i++) {
		if (isnan(row[i]))
			continue;
		at[count] = i;
		known[count++] = row[i];
	}
	ret = detect_time(&b->w->metric->time, known, count, side_of(b->w->kind), flags);
	for (i = 0; i < count; i++) {
		good += flags[i] ? 0 : known[i];
		clean += !flags[i];
	}
	for (i = 0; i < count && !ret && clean; i++) {
		if (!flags[i] || b->bad[member * b->points + at[i]])
			continue;
		b->bad[member * b->points + at[i]] = true;
		b->excess[member] += fabs(known[i] - good / (double)clean);
	}
out:
	free(known);
	free(at);
	free(flags);
	return ret;
}

static bool is_found(const struct localize *loc, int32_t rank, enum loc_kind kind)
{
	size_t i;

	for (i = 0; i < loc->findings_count; i++)
		if (loc->findings[i].rank == rank && loc->findings[i].kind == kind)
			return true;
	return false;
}

/* Alarm filter: as many bad points in a row as configured; points that the rank does not know neither count nor break */
static int accuse(const struct board *b, size_t member)
{
	const struct metric *m = b->w->metric;
	const bool *bad = b->bad + member * b->points;
	const double *row = b->values + member * b->points;
	size_t i, run = 0, start = 0, onset = SIZE_MAX, last = 0, detected = 0, total = 0;

	for (i = 0; i < b->points; i++) {
		if (isnan(row[i]))
			continue;
		if (!bad[i]) {
			run = 0;
			continue;
		}
		total++;
		if (!run++)
			start = i;
		if (run < m->alarm_filter_window_size)
			continue;
		if (onset == SIZE_MAX) {
			onset = start;
			detected = i;
		}
		last = i;
	}
	if (onset == SIZE_MAX || is_found(b->loc, b->members[member]->rank, b->w->kind))
		return 0;
	return loc_find(b->loc, &(struct loc_finding){
					.rank = b->members[member]->rank,
					.kind = b->w->kind,
					.onset_step = b->first[onset].key,
					.detected_step = b->first[detected].key,
					.last_step = b->first[last].key,
					.lost_ms = b->excess[member] / (double)total * b->per_key,
					.group = b->members[member]->group,
					.kpi = ev_name(b->sr->session, m->name, strlen(m->name)),
					.in_time = !b->in_space[member],
				});
}

static int judge_aggregate(struct board *b, const struct metric_aggregate *how, bool keep)
{
	size_t i;
	int ret = 0;

	memset(b->bad, 0, b->count * b->points * sizeof(*b->bad));
	memset(b->in_space, 0, b->count * sizeof(*b->in_space));
	memset(b->excess, 0, b->count * sizeof(*b->excess));
	for (i = 0; i < b->count && !ret; i++)
		ret = aggregate_member(b, how, i);
	for (i = 0; i < b->count && !ret && keep; i++)
		ret = keep_points(b, i);
	if (!ret && b->w->metric->space.type)
		ret = judge_space(b);
	for (i = 0; i < b->count && !ret && b->w->metric->time.type; i++)
		ret = judge_time(b, i);
	for (i = 0; i < b->count && !ret; i++)
		ret = accuse(b, i);
	return ret;
}

static int judge_group(struct slowrank *sr, struct localize *loc, struct watch *w, size_t first)
{
	struct board b = { .sr = sr, .loc = loc, .w = w };
	size_t i, room;
	int ret = -ENOMEM;

	b.members = malloc(w->count * sizeof(*b.members));
	if (!b.members)
		return -ENOMEM;
	for (i = first; i < w->count; i++) {
		struct series *s = &w->series[i];

		if (s->group != w->series[first].group || !s->count)
			continue;
		b.members[b.count++] = s;
		if (!b.reference || s->count > b.reference->count)
			b.reference = s;
	}
	if (b.reference && lay_windows(&b) < 0)
		goto out;
	room = b.count * b.points;
	b.values = malloc((room + 1) * sizeof(*b.values));
	b.bad = malloc((room + 1) * sizeof(*b.bad));
	b.in_space = malloc((b.count + 1) * sizeof(*b.in_space));
	b.excess = malloc((b.count + 1) * sizeof(*b.excess));
	if (!b.values || !b.bad || !b.in_space || !b.excess)
		goto out;
	for (i = 0, ret = 0; i < w->metric->funcs_count && !ret && b.reference; i++)
		ret = judge_aggregate(&b, &w->metric->funcs[i], !i);
out:
	board_fini(&b);
	return ret;
}

static int judge_watch(struct slowrank *sr, struct localize *loc, struct watch *w)
{
	size_t i, k;
	int ret = prepare(sr, loc, w);

	for (i = 0; i < w->count && !ret; i++) {
		for (k = 0; k < i && w->series[k].group != w->series[i].group; k++)
			;
		if (k == i)
			ret = judge_group(sr, loc, w, i);
	}
	return ret;
}

/* Return: 1 when something was observed, 0 when nothing was, -ENOMEM */
static int judge(struct localize *loc, void *arg)
{
	struct slowrank *sr = arg;
	size_t i, seen = 0;
	int ret = slowrank_rank(sr, EV_NO_RANK);

	for (i = 0; i < sr->count && !ret; i++) {
		ret = judge_watch(sr, loc, &sr->watches[i]);
		seen += sr->watches[i].count;
	}
	return ret < 0 ? ret : seen > 0;
}

static size_t series(void *arg, int32_t rank, enum loc_kind kind, const struct loc_point **points)
{
	struct slowrank *sr = arg;
	const struct watch *w = watch_of(sr, kind);
	size_t i;

	for (i = 0; w && i < w->count; i++) {
		if (w->series[i].rank != rank)
			continue;
		*points = w->series[i].points;
		return w->series[i].points_count;
	}
	return 0;
}

void slowrank_options(struct slowrank *sr, struct loc_options *options)
{
	options->judge = judge;
	options->series = series;
	options->judge_arg = sr;
}

int slowrank_each(const struct slowrank *sr,
		  int (*show)(void *arg, int32_t rank, enum loc_kind kind, const char *metric, uint32_t key,
			      const struct loc_point *point),
		  void *arg)
{
	size_t i, k, n;
	int ret = 0;

	for (i = 0; i < sr->count && !ret; i++) {
		const struct watch *w = &sr->watches[i];

		for (k = 0; k < w->count && !ret; k++) {
			for (n = 0; n < w->series[k].count && !ret; n++) {
				const struct sample *s = &w->series[k].samples[n];

				ret = show(arg, w->series[k].rank, w->kind, w->metric->name, s->key,
					   &(struct loc_point){ s->at_ns, s->value });
			}
		}
	}
	return ret;
}
