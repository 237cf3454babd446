/* SPDX-License-Identifier: MulanPSL-2.0 */
/* K-way merge with a window for each reader, and the common time axis; see merge.h. */
#include "trace/merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHIFT 512u /* how far an event moves forward in its run; beyond, the heap takes it */

/** struct held - an event that waits; only the arguments in use are stored */
struct held {
	uint64_t t_ns, dur_ns;
	uint64_t order; /* of arrival, for equal times */
	struct event *ev;
};

struct source {
	struct ev_reader *reader;
	uint64_t newest_ns; /* t_ns of the newest event, on the axis */
	uint64_t horizon_ns; /* nothing earlier can come: newest - window */
	int64_t shift_mono_ns, shift_wall_ns; /* to the axis, by the event's clock */
	/* what waits, in order: run[run_at..run_end). A file is nearly in order, so most events go to the end */
	struct held *run;
	size_t run_at, run_end, run_room;
	size_t front_at; /* place in merge.fronts, while something waits */
};

/** struct host - one machine since one boot; its two clocks differ by the same in all of its files */
struct host {
	uint32_t name, boot_id;
	int64_t wall_minus_mono_ns;
};

struct merge {
	struct ev_session *session;
	struct source *sources;
	size_t count, room;
	struct source **live; /* heap by horizon: the one to read next on top */
	size_t live_count;
	struct source **fronts; /* heap of the sources in which something waits, by their first event */
	size_t fronts_count;
	struct held *heap; /* by time: what is too far out of order for the runs */
	size_t heap_count, heap_room;
	void *spare[EV_MAX_ARGS + 1]; /* freed events by number of arguments, chained through their first bytes */
	uint64_t order, given_ns, waiting;
	struct host *hosts;
	size_t hosts_count;
	enum merge_axis axis;
	bool started;
	struct merge_stats stats;
};

/* ---- the axis ----------------------------------------------------------------------------------------------------- */

static const struct host *host_of(const struct merge *merge, const struct ev_origin *origin)
{
	size_t i;

	for (i = 0; i < merge->hosts_count; i++)
		if (merge->hosts[i].name == origin->host && merge->hosts[i].boot_id == origin->boot_id)
			return &merge->hosts[i];
	return NULL;
}

static int add_host(struct merge *merge, const struct ev_origin *origin)
{
	struct host *hosts;

	if (!origin->known || !origin->wall_minus_mono_ns || host_of(merge, origin))
		return 0;
	hosts = realloc(merge->hosts, (merge->hosts_count + 1) * sizeof(*hosts));
	if (!hosts)
		return -ENOMEM;
	merge->hosts = hosts;
	hosts[merge->hosts_count++] = (struct host){ origin->host, origin->boot_id, origin->wall_minus_mono_ns };
	return 0;
}

/*
 * MONOTONIC is the axis while one host is all there is. Files without an origin count wall time: with exactly one known
 * host they are taken as its own, with none everything is wall time already.
 */
static int choose_axis(struct merge *merge)
{
	bool no_offset = false;
	size_t i;

	for (i = 0; i < merge->count; i++) {
		const struct ev_origin *origin = &merge->sources[i].reader->origin;

		if (add_host(merge, origin) < 0)
			return -ENOMEM;
		no_offset |= origin->known && !origin->wall_minus_mono_ns;
	}
	merge->axis = merge->hosts_count == 1 || (merge->hosts_count == 0 && no_offset) ? MERGE_MONO : MERGE_WALL;
	for (i = 0; i < merge->count; i++) {
		struct source *source = &merge->sources[i];
		const struct host *host = host_of(merge, &source->reader->origin);
		int64_t offset_ns = source->reader->origin.wall_minus_mono_ns;

		if (host)
			offset_ns = host->wall_minus_mono_ns;
		else if (!source->reader->origin.known && merge->hosts_count == 1)
			offset_ns = merge->hosts[0].wall_minus_mono_ns;
		source->shift_mono_ns = merge->axis == MERGE_WALL ? offset_ns : 0;
		source->shift_wall_ns = merge->axis == MERGE_MONO ? -offset_ns : 0;
	}
	return 0;
}

enum merge_axis merge_axis(const struct merge *merge)
{
	return merge->axis;
}

int64_t merge_wall_minus_mono(const struct merge *merge)
{
	return merge->hosts_count ? merge->hosts[0].wall_minus_mono_ns : 0;
}

static uint64_t shifted(uint64_t t_ns, int64_t by_ns)
{
	if (by_ns < 0 && t_ns < (uint64_t)-by_ns)
		return 0;
	return t_ns + (uint64_t)by_ns;
}

static void put_on_axis(const struct merge *merge, const struct source *source, struct event *ev)
{
	int64_t by_ns = ev->clock == EV_CLOCK_REAL   ? source->shift_wall_ns
			: ev->clock == EV_CLOCK_MONO ? source->shift_mono_ns
						     : 0;

	ev->t_ns = shifted(ev->t_ns, by_ns);
	ev->clock = merge->axis == MERGE_MONO ? EV_CLOCK_MONO : EV_CLOCK_REAL;
}

/* ---- events that wait --------------------------------------------------------------------------------------------- */

static struct event *store(struct merge *merge, const struct event *ev)
{
	size_t nargs = ev->nargs <= EV_MAX_ARGS ? ev->nargs : EV_MAX_ARGS;
	size_t bytes = offsetof(struct event, args) + nargs * sizeof(ev->args[0]);
	struct event *copy = merge->spare[nargs];

	if (copy)
		memcpy(&merge->spare[nargs], copy, sizeof(void *));
	else
		copy = malloc(bytes);
	if (copy)
		memcpy(copy, ev, bytes);
	return copy;
}

static void give_back(struct merge *merge, struct event *ev, size_t nargs)
{
	memcpy(ev, &merge->spare[nargs], sizeof(void *));
	merge->spare[nargs] = ev;
}

static bool earlier(const struct held *a, const struct held *b)
{
	if (a->t_ns != b->t_ns)
		return a->t_ns < b->t_ns;
	if (a->dur_ns != b->dur_ns)
		return a->dur_ns > b->dur_ns;
	return a->order < b->order;
}

static int heap_push(struct merge *merge, struct held held)
{
	size_t at = merge->heap_count;

	if (at == merge->heap_room) {
		size_t room = at ? at * 2 : 1024;
		struct held *heap = realloc(merge->heap, room * sizeof(*heap));

		if (!heap)
			return -ENOMEM;
		merge->heap = heap;
		merge->heap_room = room;
	}
	merge->heap_count++;
	while (at && earlier(&held, &merge->heap[(at - 1) / 2])) {
		merge->heap[at] = merge->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	merge->heap[at] = held;
	return 0;
}

static struct held heap_pop(struct merge *merge)
{
	struct held top = merge->heap[0], last = merge->heap[--merge->heap_count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < merge->heap_count) {
		if (child + 1 < merge->heap_count && earlier(&merge->heap[child + 1], &merge->heap[child]))
			child++;
		if (!earlier(&merge->heap[child], &last))
			break;
		merge->heap[at] = merge->heap[child];
		at = child;
	}
	merge->heap[at] = last;
	return top;
}

static const struct held *front_of(const struct source *source)
{
	return &source->run[source->run_at];
}

static void front_place(struct merge *merge, size_t at, struct source *source)
{
	merge->fronts[at] = source;
	source->front_at = at;
}

static void front_up(struct merge *merge, struct source *source)
{
	size_t at = source->front_at;

	while (at && earlier(front_of(source), front_of(merge->fronts[(at - 1) / 2]))) {
		front_place(merge, at, merge->fronts[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	front_place(merge, at, source);
}

static void front_down(struct merge *merge, struct source *source)
{
	size_t at = source->front_at, child;

	while ((child = 2 * at + 1) < merge->fronts_count) {
		if (child + 1 < merge->fronts_count &&
		    earlier(front_of(merge->fronts[child + 1]), front_of(merge->fronts[child])))
			child++;
		if (!earlier(front_of(merge->fronts[child]), front_of(source)))
			break;
		front_place(merge, at, merge->fronts[child]);
		at = child;
	}
	front_place(merge, at, source);
}

static int run_room(struct source *source)
{
	struct held *run;
	size_t room;

	if (source->run_at == source->run_end)
		source->run_at = source->run_end = 0;
	if (source->run_end < source->run_room)
		return 0;
	if (source->run_at > source->run_room / 2) {
		memmove(source->run, source->run + source->run_at, (source->run_end - source->run_at) * sizeof(*run));
		source->run_end -= source->run_at;
		source->run_at = 0;
		return 0;
	}
	room = source->run_room ? source->run_room * 2 : 64;
	run = realloc(source->run, room * sizeof(*run));
	if (!run)
		return -ENOMEM;
	source->run = run;
	source->run_room = room;
	return 0;
}

/* Keep an event until its turn. Return: 0 or -ENOMEM. */
static int hold(struct merge *merge, struct source *source, const struct held *held)
{
	size_t at, lowest;

	if (run_room(source) < 0)
		return -ENOMEM;
	at = source->run_end;
	lowest = at - source->run_at > MAX_SHIFT ? at - MAX_SHIFT : source->run_at;
	while (at > lowest && earlier(held, &source->run[at - 1]))
		at--;
	if (at == lowest && at > source->run_at && earlier(held, &source->run[at - 1]))
		return heap_push(merge, *held);
	memmove(&source->run[at + 1], &source->run[at], (source->run_end - at) * sizeof(*held));
	source->run[at] = *held;
	if (source->run_end++ == source->run_at)
		front_place(merge, merge->fronts_count++, source);
	if (at == source->run_at)
		front_up(merge, source);
	return 0;
}

/* The earliest of all that wait, NULL if nothing does. */
static const struct held *earliest(const struct merge *merge)
{
	const struct held *front = merge->fronts_count ? front_of(merge->fronts[0]) : NULL;

	if (merge->heap_count && (!front || earlier(&merge->heap[0], front)))
		return &merge->heap[0];
	return front;
}

static struct held take_earliest(struct merge *merge)
{
	struct source *source;
	struct held held;

	if (earliest(merge) == merge->heap)
		return heap_pop(merge);
	source = merge->fronts[0];
	held = source->run[source->run_at++];
	if (source->run_at == source->run_end) {
		source = merge->fronts[--merge->fronts_count];
		if (!merge->fronts_count)
			return held;
		front_place(merge, 0, source);
	}
	front_down(merge, source);
	return held;
}

/* ---- readers ------------------------------------------------------------------------------------------------------ */

struct merge *merge_new(struct ev_session *session)
{
	struct merge *merge = calloc(1, sizeof(*merge));

	if (merge)
		merge->session = session;
	return merge;
}

void merge_free(struct merge *merge)
{
	size_t i;

	if (!merge)
		return;
	for (i = 0; i < merge->count; i++) {
		struct source *source = &merge->sources[i];

		ev_close(source->reader);
		for (; source->run_at < source->run_end; source->run_at++)
			free(source->run[source->run_at].ev);
		free(source->run);
	}
	for (i = 0; i < merge->heap_count; i++)
		free(merge->heap[i].ev);
	for (i = 0; i <= EV_MAX_ARGS; i++) {
		while (merge->spare[i]) {
			void *next;

			memcpy(&next, merge->spare[i], sizeof(next));
			free(merge->spare[i]);
			merge->spare[i] = next;
		}
	}
	free(merge->sources);
	free(merge->live);
	free(merge->fronts);
	free(merge->heap);
	free(merge->hosts);
	free(merge);
}

int merge_add(struct merge *merge, struct ev_reader *reader)
{
	if (merge->count == merge->room) {
		size_t room = merge->room ? merge->room * 2 : 16;
		struct source *sources = realloc(merge->sources, room * sizeof(*sources));

		if (!sources) {
			ev_close(reader);
			return -ENOMEM;
		}
		merge->sources = sources;
		merge->room = room;
	}
	merge->sources[merge->count++] = (struct source){ .reader = reader };
	return 0;
}

/* Move the top of the live heap down to where its new horizon belongs. */
static void live_sink(struct merge *merge)
{
	struct source *moved = merge->live[0];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < merge->live_count) {
		if (child + 1 < merge->live_count &&
		    merge->live[child + 1]->horizon_ns < merge->live[child]->horizon_ns)
			child++;
		if (merge->live[child]->horizon_ns >= moved->horizon_ns)
			break;
		merge->live[at] = merge->live[child];
		at = child;
	}
	merge->live[at] = moved;
}

static void live_drop(struct merge *merge)
{
	merge->live[0] = merge->live[--merge->live_count];
	if (merge->live_count)
		live_sink(merge);
}

static int start(struct merge *merge)
{
	size_t i;

	merge->live = malloc((merge->count + 1) * sizeof(struct source *));
	merge->fronts = malloc((merge->count + 1) * sizeof(struct source *));
	if (!merge->live || !merge->fronts || choose_axis(merge) < 0)
		return -ENOMEM;
	for (i = 0; i < merge->count; i++)
		merge->live[i] = &merge->sources[i]; /* all horizons are 0: a heap */
	merge->live_count = merge->count;
	merge->started = true;
	return 0;
}

/* Read one event of the reader that is furthest behind. Return: 0 or -errno. */
static int read_one(struct merge *merge, struct st_err *err)
{
	struct source *source = merge->live[0];
	struct event ev;
	struct held held;
	int ret;

	ret = ev_next(source->reader, &ev, err);
	if (ret <= 0) {
		live_drop(merge);
		return ret;
	}
	put_on_axis(merge, source, &ev);
	held = (struct held){ ev.t_ns, ev.dur_ns, merge->order++, store(merge, &ev) };
	if (!held.ev || hold(merge, source, &held) < 0) {
		free(held.ev);
		return err_set(err, -ENOMEM, "out of memory after %llu events", (unsigned long long)merge->order);
	}
	if (++merge->waiting > merge->stats.peak)
		merge->stats.peak = merge->waiting;
	if (ev.t_ns < merge->given_ns)
		merge->stats.late++;
	if (ev.t_ns > source->newest_ns) {
		source->newest_ns = ev.t_ns;
		source->horizon_ns = ev.t_ns > source->reader->window_ns ? ev.t_ns - source->reader->window_ns : 0;
		live_sink(merge);
	}
	return 0;
}

int merge_next(struct merge *merge, struct event *ev, struct st_err *err)
{
	const struct held *first;
	struct held held;
	size_t nargs;
	int ret;

	if (!merge->started && start(merge) < 0)
		return err_set(err, -ENOMEM, "out of memory for %zu files", merge->count);
	while (first = earliest(merge), merge->live_count && (!first || first->t_ns > merge->live[0]->horizon_ns)) {
		ret = read_one(merge, err);
		if (ret < 0)
			return ret;
	}
	if (!first)
		return 0;
	held = take_earliest(merge);
	merge->waiting--;
	nargs = held.ev->nargs;
	memcpy(ev, held.ev, offsetof(struct event, args) + nargs * sizeof(ev->args[0]));
	give_back(merge, held.ev, nargs);
	if (ev->t_ns > merge->given_ns)
		merge->given_ns = ev->t_ns;
	return 1;
}

void merge_stats(const struct merge *merge, struct merge_stats *stats)
{
	struct ev_reader_stats *sum = &stats->read;
	size_t i;

	*stats = merge->stats;
	for (i = 0; i < merge->count; i++) {
		const struct ev_reader_stats *add = &merge->sources[i].reader->stats;

		sum->events += add->events;
		sum->bytes += add->bytes;
		sum->total_bytes += add->total_bytes;
		sum->consumed_bytes += add->consumed_bytes;
		sum->lost += add->lost;
		sum->skipped += add->skipped;
		sum->torn |= add->torn;
	}
}

size_t merge_count(const struct merge *merge)
{
	return merge->count;
}

const struct ev_reader *merge_reader(const struct merge *merge, size_t i)
{
	return merge->sources[i].reader;
}
