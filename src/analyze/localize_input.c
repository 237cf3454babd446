/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Records to localiser (localize_input.h). Device markers are taken where a file has them, else the host's; a rank
 * without markers is judged by its always-on sums. A rank without a timeline has no steps and stays out.
 */
#include "analyze/localize_input.h"
#include "analyze/job_timeline.h"
#include "analyze/rank_steps.h"
#include "trace/markers.h"
#include "wire/op_family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct feeding {
	const struct records *records;
	struct localize *loc;
	struct loc_rank *rank;
	const struct rank_steps *steps;
	const struct localize_also *also;
	struct rank_steps reference; /* of the first rank that has steps, for those found in markers */
	uint32_t domain; /* configured group of the rank, 0 = none */
	uint32_t key_group, key_count, key_id;
	uint8_t *pairwise; /* by name id: 0 = not asked yet, 1 = no, 2 = yes */
	size_t pairwise_count;
	int64_t last_ns;
};

/* Asked for each call. Out of memory: asked again each time. */
static bool is_pairwise(struct feeding *f, uint32_t name)
{
	const char *text;
	bool pairwise;

	if (name < f->pairwise_count && f->pairwise[name])
		return f->pairwise[name] == 2;
	text = ev_text(f->records->session, name);
	pairwise = op_family_p2p(op_family_of(text, strlen(text)));
	if (name >= f->pairwise_count) {
		uint8_t *more = realloc(f->pairwise, 2 * (size_t)name + 64);

		if (!more)
			return pairwise;
		memset(more + f->pairwise_count, 0, 2 * (size_t)name + 64 - f->pairwise_count);
		f->pairwise = more;
		f->pairwise_count = 2 * (size_t)name + 64;
	}
	f->pairwise[name] = pairwise ? 2 : 1;
	return pairwise;
}

static int feed_stage(struct feeding *f, const struct rank_step *step, enum loc_kind kind, double ms)
{
	int ret = loc_rank_stage(f->rank, step->number, kind, ms);

	if (!ret && f->also->documented)
		ret = slowrank_stage(f->also->documented, kind, step->number, step->begin_ns, ms);
	return ret;
}

static int feed_steps(struct feeding *f, const struct rank_steps *steps)
{
	size_t i;
	int ret = 0;

	for (i = 0; i < steps->count && !ret; i++) {
		const struct rank_step *s = &steps->steps[i];

		ret = loc_rank_step(f->rank, &(struct loc_step){
						     .number = s->number,
						     .begin_ns = s->begin_ns,
						     .load_end_ns = s->load_end_ns,
						     .ms = (double)s->dur_ns / 1e6,
						     .forward_ms = (double)s->forward_ns / 1e6,
					     });
		if (!ret && s->load_ns)
			ret = feed_stage(f, s, LOC_DATALOADER, (double)s->load_ns / 1e6);
		if (!ret && s->ckpt_ns)
			ret = feed_stage(f, s, LOC_CKPT, (double)s->ckpt_ns / 1e6);
	}
	for (i = 0; i < steps->sums_count && !ret; i++) {
		const struct rank_sum *s = &steps->sums[i];

		ret = loc_rank_sum(f->rank, &(struct loc_sum){
						    .step = steps->steps[s->step].number,
						    .group = s->group ? s->group : s->name,
						    .name = s->name,
						    .total_ms = (double)s->total_ns / 1e6,
						    .elements = s->elements,
						    .pairwise = is_pairwise(f, s->name),
					    });
	}
	return ret;
}

static int feed_op(struct feeding *f, const struct ev_reader *reader, const struct event *ev)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	uint32_t group = records_name(ev, f->key_group);

	group = group ? group : f->domain;
	return loc_rank_op(f->rank, &(struct loc_op){
					    .group = group ? group : ev->name,
					    .name = ev->name,
					    .count = records_number(ev, f->key_count, 0),
					    .serial = records_number(ev, f->key_id, 0),
					    .begin_ns = begin,
					    .end_ns = ev->phase == EV_COMPLETE ? begin + (int64_t)ev->dur_ns : 0,
					    .stream = ev->track.stream,
					    .pairwise = is_pairwise(f, ev->name),
				    });
}

/* The documented localiser sees both sides of a call */
static int feed_documented(struct feeding *f, const struct ev_reader *reader, const struct event *ev, bool executed)
{
	int64_t begin = records_wall_ns(reader, ev, ev->t_ns);
	size_t at = f->steps->count ? rank_steps_at(f->steps, begin) : SIZE_MAX;

	if (f->steps->count && at == SIZE_MAX)
		return 0; /* before the first step */
	return slowrank_call(f->also->documented,
			     &(struct slowrank_call){
				     .name = ev->name,
				     .group = records_name(ev, f->key_group),
				     .id = records_number(ev, f->key_id, 0),
				     .step = at == SIZE_MAX ? SLOWRANK_NO_STEP : f->steps->steps[at].number,
				     .begin_ns = begin,
				     .end_ns = ev->phase == EV_COMPLETE ? begin + (int64_t)ev->dur_ns : 0,
				     .device = ev->track.device >= 0,
				     .executed = executed,
			     });
}

static void note_line(void *arg, const char *text)
{
	records_note(arg, "%s", text);
}

/* One pass over a file of markers; *seen: collectives of the wanted side. @quiet: remarks were made by an earlier pass. */
static int feed_markers(struct feeding *f, const char *path, bool device, size_t *seen, bool quiet)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(f->records->session, path, &err);
	struct event ev;
	int ret = 0, more;

	*seen = 0;
	if (!reader) {
		records_note(f->records, "%s", err.text);
		return 0;
	}
	if (device && !f->also->documented)
		markers_device_only(reader);
	while (!ret && (more = ev_next(reader, &ev, &err)) != 0) {
		if (more < 0) {
			if (!quiet)
				records_note(f->records, "%s", err.text);
			break;
		}
		if (ev.kind != EV_COMM || ev.phase == EV_INSTANT)
			continue;
		/* the second pass is for files without a device side: calls were seen already, but not as executed ones */
		if (f->also->documented && (!quiet || (ev.track.device >= 0) == device))
			ret = feed_documented(f, reader, &ev, (ev.track.device >= 0) == device);
		if (ret || (ev.track.device >= 0) != device)
			continue;
		++*seen;
		ret = feed_op(f, reader, &ev);
	}
	loc_rank_issued(f->rank, markers_issued(reader));
	if (!quiet && reader->ops->report)
		reader->ops->report(reader, note_line, (void *)f->records);
	ev_close(reader);
	return ret;
}

static int feed_rank(struct feeding *f, const struct record_file *files, size_t count)
{
	struct rank_steps steps;
	size_t i, seen;
	int ret;

	f->rank = localize_rank(f->loc, files[0].rank, files[0].host, 0);
	if (!f->rank)
		return -ENOMEM;
	f->domain = f->also->config ? model_config_domain(f->also->config, f->records->session, files[0].rank) : 0;
	for (i = 0; i < count; i++)
		localize_rank(f->loc, files[i].rank, files[i].host, files[i].ip);
	ret = rank_steps_read(&steps, f->records, files, count);
	f->steps = &steps;
	if (!ret && steps.from_markers)
		ret = rank_steps_align(&steps, &f->reference);
	if (!ret && f->also->documented)
		ret = slowrank_rank(f->also->documented, files[0].rank);
	if (!ret)
		ret = feed_steps(f, &steps);
	for (i = 0; i < count && !ret; i++) {
		if (!(files[i].format & RECORD_MARKERS))
			continue;
		ret = feed_markers(f, files[i].path, true, &seen, false);
		if (!ret && !seen)
			ret = feed_markers(f, files[i].path, false, &seen, true);
	}
	if (steps.count && !f->reference.count) {
		f->reference = steps;
		steps = (struct rank_steps){ 0 };
	}
	rank_steps_fini(&steps);
	return ret < 0 ? ret : loc_rank_done(f->rank);
}

static bool has_timeline(const struct record_file *files, size_t count)
{
	return count && files[0].format & RECORD_TIMELINE;
}

/* All ranks with timelines, or all without: the latter's steps are numbered as the former's */
static int feed_ranks(struct feeding *f, bool with_timeline)
{
	const struct records *records = f->records;
	size_t i, end;
	int ret = 0;

	for (i = 0; i < records->count && !ret; i = end) {
		for (end = i; end < records->count && records->files[end].rank == records->files[i].rank; end++)
			;
		if (has_timeline(records->files + i, end - i) != with_timeline)
			continue;
		if (records->files[i].format & RECORD_JOB)
			continue;
		if (records->files[i].rank == EV_NO_RANK)
			records_note(records, "%zu files without a rank left out, the first is %s", end - i,
				     records->files[i].path);
		else
			ret = feed_rank(f, records->files + i, end - i);
	}
	return ret;
}

int localize_feed(struct localize *loc, const struct records *records, const struct localize_also *also)
{
	static const struct localize_also nothing;
	struct records plain = *records;
	struct feeding f = {
		.also = also ? also : &nothing,
		.records = &plain,
		.loc = loc,
		.key_group = ev_name(records->session, "group", 5),
		.key_count = ev_name(records->session, "count", 5),
		.key_id = ev_name(records->session, "id", 2),
	};
	struct job_timeline *job;
	int ret;

	plain.cache = NULL; /* all ranks at once are too many to be kept */
	localize_world(loc, records->world_size);
	job = job_timeline_read(records);
	if (job)
		ret = job_timeline_localize(job, loc);
	else
		ret = errno == ENOMEM ? -ENOMEM : 0;
	job_timeline_free(job);
	if (!ret)
		ret = feed_ranks(&f, true);
	if (!ret)
		ret = feed_ranks(&f, false);
	rank_steps_fini(&f.reference);
	free(f.pairwise);
	return ret;
}
