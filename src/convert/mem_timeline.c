/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Memory over time, as counters; see mem_out.h. */
#include "convert/mem_out.h"
#include "convert/rows.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define STEP_NS 1000000u /* values of a counter are at least so far apart */
#define MADE_UP_PID 10000000u /* of processes in the file */

enum counter { COUNT_HEAP, COUNT_MAPPED, COUNT_RSS, COUNT_BRK, COUNTERS };

static const char *const titles[COUNTERS] = { "heap in use since the capture began", "mapped by the job since then",
					      "resident memory", "brk heap" };

struct lane {
	struct tsink_track track; /* .id 0 = not in the file yet */
	uint64_t shown, shown_ns; /* last value written */
	uint64_t pending, pending_ns;
	bool waits; /* pending is newer than shown */
};

struct picture {
	struct ev_session *session;
	struct tsink *sink;
	struct mem_sum *sum;
	struct lane (*lanes)[COUNTERS]; /* by process */
	uint32_t count, room, next_id;
	struct mem_timeline_summary *summary;
};

static int put_value(struct picture *p, struct lane *lane, uint64_t t_ns, uint64_t value)
{
	lane->shown = value;
	lane->shown_ns = t_ns;
	lane->waits = false;
	p->summary->values++;
	return p->sink->ops->counter(p->sink, &lane->track, t_ns, value);
}

static int begin_lane(struct picture *p, size_t process, enum counter counter)
{
	struct lane *lane = &p->lanes[process][counter];

	lane->track = (struct tsink_track){
		.id = ++p->next_id,
		.pid = MADE_UP_PID + (uint32_t)process,
		.sort = counter,
		.counter = true,
		.unit = "bytes",
		.name = titles[counter],
	};
	return p->sink->ops->track(p->sink, &lane->track);
}

/* A counter has a value now. Those that are never more than 0 do not show. */
static int count(struct picture *p, size_t process, enum counter counter, uint64_t t_ns, uint64_t value)
{
	struct lane *lane = &p->lanes[process][counter];
	int ret = 0;

	if (!lane->track.id) {
		if (!value)
			return 0;
		ret = begin_lane(p, process, counter);
		return ret < 0 ? ret : put_value(p, lane, t_ns, value);
	}
	if (lane->waits && t_ns - lane->shown_ns >= STEP_NS)
		ret = put_value(p, lane, lane->pending_ns, lane->pending);
	if (value == (lane->waits ? lane->pending : lane->shown) || ret < 0)
		return ret;
	if (t_ns - lane->shown_ns >= STEP_NS)
		return put_value(p, lane, t_ns, value);
	lane->pending = value;
	lane->pending_ns = t_ns;
	lane->waits = true;
	return 0;
}

static int add_process(struct picture *p, size_t i)
{
	const struct mem_process *process = mem_process(p->sum, i);
	char name[160], labels[64];
	struct tsink_process out = { .pid = MADE_UP_PID + (uint32_t)i, .name = name, .labels = labels };

	if (rows_grow(&p->lanes, p->count, &p->room, sizeof(*p->lanes)) < 0)
		return -ENOMEM;
	memset(p->lanes[p->count++], 0, sizeof(*p->lanes));
	mem_process_text(process, name, sizeof(name));
	snprintf(labels, sizeof(labels), "pid %d", process->pid);
	if (process->host)
		snprintf(name + strlen(name), sizeof(name) - strlen(name), " (%.100s)",
			 ev_text(p->session, process->host));
	out.sort = process->rank >= 0 ? process->rank : INT32_MAX / 2 + (int32_t)i;
	return p->sink->ops->process(p->sink, &out);
}

static int take(struct picture *p, const struct event *ev)
{
	const struct mem_process *process;
	int ret = mem_take(p->sum, ev);
	size_t i;

	if (ret <= 0)
		return ret;
	p->summary->events++;
	p->summary->last_ns = ev->t_ns;
	i = mem_process_of(p->sum, ev);
	ret = i == p->count ? add_process(p, i) : 0;
	process = mem_process(p->sum, i);
	if (ret == 0)
		ret = count(p, i, COUNT_HEAP, ev->t_ns, process->heap);
	if (ret == 0)
		ret = count(p, i, COUNT_MAPPED, ev->t_ns, process->mapped);
	if (ret == 0 && ev->kind == EV_MEM_STATE)
		ret = count(p, i, COUNT_RSS, ev->t_ns, process->rss);
	if (ret == 0 && ev->kind == EV_MEM_STATE)
		ret = count(p, i, COUNT_BRK, ev->t_ns, process->brk);
	return ret;
}

static int start(struct picture *p, struct merge *merge, const struct tsink_ops *format, const char *path,
		 const struct event *first, struct st_err *err)
{
	const struct tsink_head head = {
		.axis = merge_axis(merge),
		.first_ns = first->t_ns,
		.wall_minus_mono_ns = merge_wall_minus_mono(merge),
	};

	p->sink = format->open(p->session, path, err);
	if (!p->sink)
		return err->code ? err->code : -EIO;
	p->summary->first_ns = first->t_ns;
	return p->sink->ops->head(p->sink, &head);
}

static int run(struct picture *p, struct merge *merge, const struct tsink_ops *format, const char *path,
	       struct st_err *err)
{
	struct event ev;
	int ret;

	for (;;) {
		ret = merge_next(merge, &ev, err);
		if (ret == -ENOMEM)
			return ret;
		if (ret < 0) /* one file: the others go on */
			continue;
		if (ret == 0)
			return 0;
		if (!mem_is(&ev))
			continue;
		if (!p->sink && (ret = start(p, merge, format, path, &ev, err)) < 0)
			return ret;
		ret = take(p, &ev);
		if (ret < 0)
			return err_set(err, ret, "cannot write %s: %s", path, strerror(-ret));
	}
}

static int finish(struct picture *p, struct merge *merge, struct st_err *err)
{
	struct merge_stats stats;
	char lost[100] = "";
	const char *notes[2] = { NULL, NULL };
	uint32_t i, k;
	int ret = 0;

	for (i = 0; i < p->count && ret == 0; i++) {
		for (k = 0; k < COUNTERS && ret == 0; k++) {
			struct lane *lane = &p->lanes[i][k];

			if (lane->waits)
				ret = put_value(p, lane, lane->pending_ns, lane->pending);
			if (ret == 0 && lane->track.id)
				ret = p->sink->ops->rename(p->sink, &lane->track);
		}
	}
	if (ret < 0)
		return err_set(err, ret, "cannot write: %s", strerror(-ret));
	merge_stats(merge, &stats);
	if (stats.read.lost) {
		snprintf(lost, sizeof(lost), "%" PRIu64 " records were lost while recording", stats.read.lost);
		notes[0] = lost;
	}
	p->summary->processes = p->count;
	ret = p->sink->ops->finish(p->sink, notes, &p->summary->bytes, err);
	p->sink = NULL;
	return ret;
}

int mem_timeline_write(struct ev_session *session, struct merge *merge, const struct tsink_ops *format,
		       const char *path, struct mem_timeline_summary *summary, struct st_err *err)
{
	struct picture p = { .session = session, .sum = mem_new(session, NULL), .summary = summary };
	int ret;

	*summary = (struct mem_timeline_summary){ 0 };
	ret = p.sum ? run(&p, merge, format, path, err) : err_set(err, -ENOMEM, "out of memory");
	if (ret == 0 && !p.sink)
		ret = err_set(err, -ENODATA, "the files hold no records of memory");
	if (ret == 0)
		ret = finish(&p, merge, err);
	if (p.sink)
		p.sink->ops->discard(p.sink);
	free(p.lanes);
	mem_free(p.sum);
	return ret;
}
