/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading step times (failslow_input.h). The ranks of a synchronous job all have the same step time, so a few of them
 * suffice; their median ignores one rank's own pauses between two records.
 */
#include "analyze/failslow_input.h"
#include "analyze/job_timeline.h"
#include "analyze/rank_steps.h"
#include "analyze/stat.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_RANKS 16
#define LOG_SNIFF_BYTES (1 << 20)
#define WORK_OPS 4096 /* operations of one step that count for its work */

/* ---- timelines ------------------------------------------------------------------------------------------------------ */

struct rank_files {
	const struct record_file *files;
	size_t count;
};

static bool any_timeline(const struct records *records)
{
	size_t i;

	for (i = 0; i < records->count; i++)
		if (records->files[i].format & RECORD_TIMELINE)
			return true;
	return false;
}

/* Ranks without a timeline are read where no rank has one; markers are many, so fewer of them suffice */
#define MARKER_RANKS 4

/* The ranks to read: all that have timelines, or MAX_RANKS of them spread evenly; the first one always */
static size_t choose_ranks(const struct records *records, struct rank_files *chosen)
{
	const bool timelines = any_timeline(records);
	const size_t most = timelines ? MAX_RANKS : MARKER_RANKS;
	size_t ranks = 0, pass, seen, i, end;

	for (pass = 0; pass < 2; pass++) {
		size_t take = ranks < most ? ranks : most, taken = 0;

		for (i = seen = 0; i < records->count; i = end) {
			for (end = i; end < records->count && records->files[end].rank == records->files[i].rank; end++)
				;
			if (timelines && !(records->files[i].format & RECORD_TIMELINE))
				continue;
			if (pass && taken < take && seen * take >= taken * ranks)
				chosen[taken++] = (struct rank_files){ records->files + i, end - i };
			seen++;
		}
		if (pass)
			return taken;
		ranks = seen;
	}
	return 0;
}

/** struct work - elements that a rank's operations carried, per step */
struct work {
	double *sum; /* per step of the rank */
	uint64_t *count;
	uint32_t group; /* the one it meets most often among the first operations */
};

static uint32_t most_frequent(const uint32_t *groups, size_t count)
{
	size_t i, k, best = 0;
	uint32_t winner = 0;

	for (i = 0; i < count; i++) {
		size_t same = 0;

		for (k = 0; k < count; k++)
			same += groups[k] == groups[i];
		if (same > best) {
			best = same;
			winner = groups[i];
		}
	}
	return winner;
}

/* Walk a file of markers; first to learn the usual group (@work->group 0), then to sum its elements per step */
static int read_work(const struct records *records, const char *path, const struct rank_steps *steps, struct work *work)
{
	uint32_t key_group = ev_name(records->session, "group", 5), key_count = ev_name(records->session, "count", 5);
	struct ev_reader *reader = ev_open(records->session, path, NULL);
	uint32_t groups[256];
	size_t learned = 0;
	struct event ev;

	if (!reader)
		return 0;
	while (ev_next(reader, &ev, NULL) > 0 && (work->group || learned < 256)) {
		size_t at;

		if (ev.kind != EV_COMM || ev.phase == EV_INSTANT)
			continue;
		if (!work->group) {
			groups[learned++] = records_name(&ev, key_group);
			continue;
		}
		at = rank_steps_at(steps, records_wall_ns(reader, &ev, ev.t_ns));
		if (at == SIZE_MAX || records_name(&ev, key_group) != work->group || work->count[at] >= WORK_OPS)
			continue;
		work->sum[at] += (double)records_number(&ev, key_count, 0);
		work->count[at]++;
	}
	ev_close(reader);
	if (!work->group)
		work->group = most_frequent(groups, learned);
	return 0;
}

/* Size of each step's work: mean elements of the usual group's operations, else of the always-on sums; 0 = unknown */
static int find_work(const struct records *records, const struct rank_files *rank, const struct rank_steps *steps,
		     double *work_of)
{
	struct work work = { .sum = calloc(steps->count + 1, sizeof(double)),
			     .count = calloc(steps->count + 1, sizeof(uint64_t)) };
	size_t i;
	int ret = work.sum && work.count ? 0 : -ENOMEM;

	for (i = 0; i < 2 * rank->count && !ret; i++) {
		const struct record_file *f = &rank->files[i % rank->count];

		if (f->format & RECORD_MARKERS)
			ret = read_work(records, f->path, steps, &work);
	}
	for (i = 0; i < steps->count && !ret; i++) {
		if (work.count[i])
			work_of[i] = work.sum[i] / (double)work.count[i];
		else if (steps->steps[i].calls)
			work_of[i] = (double)steps->steps[i].elements / (double)steps->steps[i].calls;
	}
	free(work.sum);
	free(work.count);
	return ret;
}

/* A step's median over the ranks that have it; false if none knows its time */
static bool join_step(const struct rank_steps *ranks, size_t count, uint32_t number, size_t *at,
		      struct failslow_step *step)
{
	double ms[MAX_RANKS], ckpt[MAX_RANKS];
	size_t i, known = 0;

	*step = (struct failslow_step){ .number = number };
	for (i = 0; i < count; i++) {
		const struct rank_step *s;

		while (at[i] < ranks[i].count && ranks[i].steps[at[i]].number < number)
			at[i]++;
		s = at[i] < ranks[i].count ? &ranks[i].steps[at[i]] : NULL;
		if (!s || s->number != number || s->dur_ns <= 0)
			continue;
		if (!known)
			step->begin_us = s->begin_ns / 1000;
		ckpt[known] = (double)s->ckpt_ns / 1e6;
		ms[known++] = (double)s->dur_ns / 1e6;
	}
	if (!known)
		return false;
	step->ms = stat_median(ms, known);
	step->checkpoint_ms = stat_median(ckpt, known);
	return true;
}

static int feed_joined(struct failslow *fs, const struct rank_steps *ranks, size_t count, const double *work_of,
		       struct failslow_feed *out)
{
	uint32_t low = UINT32_MAX, high = 0, number;
	size_t at[MAX_RANKS] = { 0 };
	size_t i;
	int ret = 0;

	for (i = 0; i < count; i++) {
		if (ranks[i].last_ns / 1000 > out->last_us)
			out->last_us = ranks[i].last_ns / 1000;
		if (!ranks[i].count)
			continue;
		low = ranks[i].steps[0].number < low ? ranks[i].steps[0].number : low;
		number = ranks[i].steps[ranks[i].count - 1].number;
		high = number > high ? number : high;
	}
	for (number = low; number <= high && !ret; number++) {
		struct failslow_step step;

		if (!join_step(ranks, count, number, at, &step)) {
			if (number == UINT32_MAX)
				break;
			continue;
		}
		if (at[0] < ranks[0].count && ranks[0].steps[at[0]].number == number)
			step.workload = work_of[at[0]];
		out->steps++;
		ret = failslow_step(fs, &step);
	}
	return ret;
}

/* Steps of the next rank, numbered as the first one's where they were found in markers */
static int read_rank(const struct records *records, const struct rank_files *files, struct rank_steps *ranks, size_t at)
{
	int ret = rank_steps_read(&ranks[at], records, files->files, files->count);

	if (!ret && at && ranks[at].from_markers)
		ret = rank_steps_align(&ranks[at], &ranks[0]);
	return ret;
}

/* A timeline of the whole job. Return: false = there is none; *ret: 0 or -ENOMEM */
static bool feed_job(struct failslow *fs, const struct records *records, struct failslow_feed *out, int *ret)
{
	struct job_timeline *job = job_timeline_read(records);
	long steps;

	*ret = !job && errno == ENOMEM ? -ENOMEM : 0;
	if (!job)
		return *ret < 0;
	*out = (struct failslow_feed){ .ranks = job_timeline_workers(job) };
	steps = job_timeline_failslow(job, fs, &out->last_us);
	out->steps = steps > 0 ? (size_t)steps : 0;
	*ret = steps < 0 ? (int)steps : 0;
	job_timeline_free(job);
	return true;
}

int failslow_feed_records(struct failslow *fs, const struct records *records, struct failslow_feed *out)
{
	struct rank_steps ranks[MAX_RANKS] = { { 0 } };
	struct rank_files chosen[MAX_RANKS];
	double *work_of = NULL;
	size_t count = choose_ranks(records, chosen), i;
	int ret = 0;

	if (feed_job(fs, records, out, &ret))
		return ret;
	*out = (struct failslow_feed){ .ranks = count };
	for (i = 0; i < count && !ret; i++)
		ret = read_rank(records, &chosen[i], ranks, i);
	if (!ret && count) {
		work_of = calloc(ranks[0].count + 1, sizeof(*work_of));
		ret = work_of ? find_work(records, &chosen[0], &ranks[0], work_of) : -ENOMEM;
	}
	if (!ret && count)
		ret = feed_joined(fs, ranks, count, work_of, out);
	for (i = 0; i < count; i++)
		rank_steps_fini(&ranks[i]);
	free(work_of);
	return ret;
}

/* ---- training log --------------------------------------------------------------------------------------------------- */

/* what stands before the number, and a text that may follow it */
static const char *const log_marks[] = { "per_step_time:", "elapsed time per iteration (ms):" };

static const char *find_mark(const char *line)
{
	size_t i;

	for (i = 0; i < sizeof(log_marks) / sizeof(log_marks[0]); i++) {
		const char *at = strstr(line, log_marks[i]);

		if (at)
			return at + strlen(log_marks[i]);
	}
	return NULL;
}

/* The first `YYYY-mm-dd HH:MM:SS` of a line (`T` and `/` accepted), 0 if there is none */
static int64_t line_time_us(const char *line)
{
	const char *at;

	for (at = line; *at && at < line + 200; at++) {
		struct tm tm = { .tm_isdst = -1 };
		int n = 0;

		if (!isdigit((unsigned char)*at) || (at > line && isdigit((unsigned char)at[-1])))
			continue;
		if (sscanf(at, "%4d%*1[-/]%2d%*1[-/]%2d%*1[ T]%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
			   &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &n) != 6 ||
		    !n || tm.tm_year < 1970)
			continue;
		tm.tm_year -= 1900;
		tm.tm_mon -= 1;
		return (int64_t)mktime(&tm) * 1000000;
	}
	return 0;
}

/* `iteration  120/ 5000`, `step: 120`, `step:[ 120/ 5000]`: the number after the word, -1 if there is none */
static long line_step(const char *line)
{
	static const char *const words[] = { "iteration", "global_step", "step:" };
	size_t i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		const char *at = strstr(line, words[i]);

		if (!at)
			continue;
		at += strlen(words[i]);
		while (*at && strchr(" :=[\t", *at))
			at++;
		if (isdigit((unsigned char)*at))
			return strtol(at, NULL, 10);
	}
	return -1;
}

static int feed_line(struct failslow *fs, const char *line, struct failslow_step *last, struct failslow_feed *out)
{
	const char *at = find_mark(line);
	char *end;
	double ms = at ? strtod(at, &end) : 0;
	long number = at ? line_step(line) : -1;
	int64_t us = at ? line_time_us(line) : 0;

	if (!at || end == at || !isfinite(ms) || !(ms > 0) || ms > 1e12)
		return 0;
	/* a step's line is written at its end */
	last->begin_us = us ? us - (int64_t)(ms * 1000) : last->begin_us + (int64_t)(last->ms * 1000);
	last->number = number >= 0 && number < UINT32_MAX ? (uint32_t)number : last->number + 1;
	last->ms = ms;
	out->steps++;
	out->last_us = last->begin_us + (int64_t)(ms * 1000);
	return failslow_step(fs, last);
}

int failslow_feed_log(struct failslow *fs, const char *path, struct failslow_feed *out, struct st_err *err)
{
	struct failslow_step last = { 0 };
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t room = 0;
	int ret = 0;

	*out = (struct failslow_feed){ 0 };
	if (!file)
		return err_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
	while (!ret && getline(&line, &room, file) >= 0)
		ret = feed_line(fs, line, &last, out);
	if (!ret && ferror(file))
		ret = err_set(err, -EIO, "%s: read error", path);
	free(line);
	fclose(file);
	return ret;
}

bool failslow_is_log(const char *path)
{
	FILE *file = fopen(path, "re");
	char *head = file ? malloc(LOG_SNIFF_BYTES + 1) : NULL;
	bool found = false;
	size_t n, i;

	if (head) {
		n = fread(head, 1, LOG_SNIFF_BYTES, file);
		for (i = 0; i < sizeof(log_marks) / sizeof(log_marks[0]); i++)
			found |= memmem(head, n, log_marks[i], strlen(log_marks[i])) != NULL;
	}
	free(head);
	if (file)
		fclose(file);
	return found;
}
