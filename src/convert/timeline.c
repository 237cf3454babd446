/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The picture: processes, tracks and lanes of merged events; see timeline.h. */
#include "convert/timeline.h"

#include "base/hash64.h"
#include "trace/locks.h"
#include "trace/os.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PID_BASE 10000000u /* + rank; made up, outside the range of real pids */
#define OTHER_PID_BASE 4000000000u /* of processes without a rank */
#define MAX_LANES 256u /* of one track; what overlaps more is shortened */
#define NO_LANE UINT32_MAX

/** enum row - kinds of tracks, in the order of the viewer */
enum row {
	ROW_STEPS,
	ROW_STEP_TIME,
	ROW_THREAD,
	ROW_GIL,
	ROW_GIL_WAITING,
	ROW_LOCK,
	ROW_STATE,
	ROW_CPU,
	ROW_IO,
	ROW_SOCKET,
	ROW_CALL_SUM,
	ROW_COMM_SUM,
	ROW_COMM_HOST,
	ROW_COMM_DEVICE,
	ROW_MARKS_HOST,
	ROW_MARKS_DEVICE,
	ROW_OTHER,
	ROW_LOSSES,
	ROWS
};

static const struct {
	const char *title;
	const char *category;
	enum { OF_RANK, OF_PROCESS, OF_THREAD, OF_STREAM, OF_CPU } of; /* what there is one of such a row for */
} rows[ROWS] = {
	[ROW_STEPS] = { "steps", "step", OF_RANK },
	[ROW_STEP_TIME] = { "step time", "step", OF_RANK },
	[ROW_THREAD] = { "thread", "stage", OF_THREAD },
	[ROW_GIL] = { "GIL", "GIL", OF_THREAD },
	[ROW_GIL_WAITING] = { "threads waiting for the GIL", "GIL", OF_PROCESS },
	[ROW_LOCK] = { "locks", "lock", OF_THREAD },
	[ROW_STATE] = { "state", "sched", OF_THREAD },
	[ROW_CPU] = { "CPU", "cpu", OF_CPU },
	[ROW_IO] = { "files", "io", OF_THREAD },
	[ROW_SOCKET] = { "sockets", "network", OF_THREAD },
	[ROW_CALL_SUM] = { "short calls (per step)", "stage", OF_RANK },
	[ROW_COMM_SUM] = { "collectives (per step)", "collective", OF_RANK },
	[ROW_COMM_HOST] = { "collectives, host", "collective", OF_THREAD },
	[ROW_COMM_DEVICE] = { "collectives, device", "collective", OF_STREAM },
	[ROW_MARKS_HOST] = { "markers, host", "marker", OF_THREAD },
	[ROW_MARKS_DEVICE] = { "markers, device", "marker", OF_STREAM },
	[ROW_OTHER] = { "other events", "other", OF_THREAD },
	[ROW_LOSSES] = { "losses and notes", "loss", OF_RANK },
};

/** struct lane - one row of slices that nest */
struct lane {
	struct tsink_track track;
	uint64_t last_ns; /* begin of its newest slice */
	uint64_t *ends; /* of the slices still open, innermost last */
	uint32_t depth, room;
};

/** struct track - what belongs on one row, in as many lanes as overlaps need */
struct track {
	uint64_t key; /* 0 = free slot */
	uint32_t process; /* index */
	enum row row;
	int32_t a, b; /* pid and tid, or device and stream */
	uint32_t title; /* name id from a thread's own name, 0 = none */
	bool worker;
	struct lane *lanes;
	uint32_t lanes_count;
	struct event *begun; /* EV_BEGIN without their EV_END yet */
	uint32_t begun_count;
	uint64_t *open; /* of a counter of spans: the ends of those that are open, latest first */
	uint32_t open_count, open_room;
	struct track *
		lost_by; /* of a CPU: the thread that was preempted there at lost_ns, while its taker is still to come */
	uint64_t lost_ns;
};

struct process {
	int32_t rank;
	uint32_t host;
	int32_t pid; /* of processes without a rank, else -1 */
	uint32_t sink_pid;
	int32_t main_pid; /* real pid of the rank: its main thread is called so */
};

struct timeline {
	struct ev_session *session;
	struct merge *merge;
	const struct timeline_options *options;
	struct timeline_summary *summary;
	struct tsink *sink;
	struct process *processes;
	size_t processes_count;
	struct track **tracks; /* slots of pointers: tracks do not move */
	uint32_t tracks_mask, tracks_count;
	struct track *recent[16]; /* by source: the same one most of the time */
	uint32_t next_id; /* of tracks in the file */
	struct event *early; /* names of threads that came before the first event with a time of its own */
	uint32_t early_count;
	uint64_t end_ns; /* newest end of anything */
	uint32_t name_unnamed, name_gil_wait, name_preempted, key_taken_by;
	uint64_t arrows; /* drawn so far */
	char **notes;
	size_t notes_count;
};

/* ---- processes ---------------------------------------------------------------------------------------------------- */

static int describe_process(struct timeline *tl, const struct process *process, const struct event *ev)
{
	const char *host = ev_text(tl->session, process->host);
	char name[160], labels[200];
	struct tsink_process out = { .pid = process->sink_pid, .name = name };

	if (process->rank >= 0) {
		snprintf(name, sizeof(name), "rank %d", process->rank);
		out.sort = process->rank;
	} else {
		snprintf(name, sizeof(name), "process %d", process->pid);
		out.sort = INT32_MAX / 2 + (int32_t)(process->sink_pid - OTHER_PID_BASE);
	}
	if (*host)
		snprintf(name + strlen(name), sizeof(name) - strlen(name), " (%.100s)", host);
	if (ev->track.pid >= 0) {
		snprintf(labels, sizeof(labels), "pid %d", ev->track.pid);
		out.labels = labels;
	}
	return tl->sink->ops->process(tl->sink, &out);
}

/* Process of an event: its rank, else its pid. Return: index or -errno. */
static ssize_t process_of(struct timeline *tl, const struct event *ev)
{
	int32_t pid = ev->rank >= 0 ? -1 : ev->track.pid;
	struct process *processes, *process;
	size_t i;
	int ret;

	for (i = tl->processes_count; i-- > 0;) {
		process = &tl->processes[i];
		/* one rank's files may say its host or not (marker CSV does not) */
		if (process->rank != ev->rank || process->pid != pid ||
		    (ev->rank < 0 && process->host != ev->track.host))
			continue;
		if (process->main_pid < 0 && !(ev->quality & EV_WORKER))
			process->main_pid = ev->track.pid;
		return (ssize_t)i;
	}
	processes = realloc(tl->processes, (tl->processes_count + 1) * sizeof(*processes));
	if (!processes)
		return -ENOMEM;
	tl->processes = processes;
	process = &processes[tl->processes_count];
	*process = (struct process){ .rank = ev->rank,
				     .host = ev->track.host,
				     .pid = pid,
				     .main_pid = ev->quality & EV_WORKER ? -1 : ev->track.pid,
				     .sink_pid = ev->rank >= 0 ? PID_BASE + (uint32_t)ev->rank
							       : OTHER_PID_BASE + (uint32_t)tl->processes_count };
	ret = describe_process(tl, process, ev);
	if (ret < 0)
		return ret;
	tl->summary->ranks += ev->rank >= 0;
	return (ssize_t)tl->processes_count++;
}

/* ---- tracks ------------------------------------------------------------------------------------------------------- */

/* Sums without a group are no collectives but short stages and collections (wire/record.h). */
static bool is_collective(const struct event *ev)
{
	uint8_t i;

	for (i = 0; i < ev->nargs; i++)
		if (ev->args[i].type == EV_ARG_NAME)
			return ev->args[i].name != 0; /* the group is the one name among a sum's arguments */
	return false;
}

static enum row row_of(const struct event *ev)
{
	bool device = ev->track.device >= 0;

	switch (ev->kind) {
	case EV_STEP:
		return ROW_STEPS;
	case EV_STAGE:
		return ROW_THREAD;
	case EV_GIL:
		return ROW_GIL;
	case EV_LOCK:
	case EV_COUNTER:
		return ROW_LOCK;
	case EV_OFFCPU:
	case EV_ONCPU:
		return ROW_STATE;
	case EV_TAKER:
	case EV_IRQ:
	case EV_SOFTIRQ:
		return ROW_CPU;
	case EV_IO:
		return ROW_IO;
	case EV_SOCKET:
		return ROW_SOCKET;
	case EV_COMM_SUM:
		return is_collective(ev) ? ROW_COMM_SUM : ROW_CALL_SUM;
	case EV_COMM:
		return device ? ROW_COMM_DEVICE : ROW_COMM_HOST;
	case EV_LOST:
	case EV_NOTE:
		return ROW_LOSSES;
	case EV_OTHER:
		return device ? ROW_MARKS_DEVICE : ROW_MARKS_HOST;
	default:
		return ROW_OTHER;
	}
}

static void track_place(const struct event *ev, enum row row, int32_t *a, int32_t *b)
{
	*a = *b = -1;
	if (rows[row].of == OF_THREAD) {
		*a = ev->track.pid;
		*b = ev->track.tid;
	} else if (rows[row].of == OF_PROCESS) {
		*a = ev->track.pid;
	} else if (rows[row].of == OF_STREAM) {
		*a = ev->track.device;
		*b = ev->track.stream;
	} else if (rows[row].of == OF_CPU) {
		*a = ev->track.cpu;
	}
}

static uint64_t track_key(const struct event *ev, enum row row, int32_t a, int32_t b)
{
	uint64_t who = ev->rank >= 0 ? (uint64_t)(uint32_t)ev->rank : (uint64_t)1 << 32 | ev->track.host;
	uint64_t key = hash64_mix((uint64_t)(uint32_t)a << 32 | (uint32_t)b, 0x9e3779b97f4a7c15u);

	key ^= hash64_mix(who << 5 | row, 0xd6e8feb86659fd93u);
	if (ev->rank < 0)
		key ^= hash64_mix((uint32_t)ev->track.pid + 1u, 0xa0761d6478bd642fu);
	return key | 1; /* not 0 */
}

static bool is_track(const struct timeline *tl, const struct track *track, const struct event *ev, enum row row,
		     int32_t a, int32_t b)
{
	const struct process *process = &tl->processes[track->process];

	return track->row == row && track->a == a && track->b == b && process->rank == ev->rank &&
	       (ev->rank >= 0 || (process->pid == ev->track.pid && process->host == ev->track.host));
}

static int tracks_grow(struct timeline *tl)
{
	uint32_t mask = tl->tracks ? tl->tracks_mask * 2 + 1 : 255, i, at;
	struct track **tracks = calloc((size_t)mask + 1, sizeof(struct track *));

	if (!tracks)
		return -ENOMEM;
	for (i = 0; tl->tracks && i <= tl->tracks_mask; i++) {
		if (!tl->tracks[i])
			continue;
		at = (uint32_t)tl->tracks[i]->key & mask;
		while (tracks[at])
			at = (at + 1) & mask;
		tracks[at] = tl->tracks[i];
	}
	free(tl->tracks);
	tl->tracks = tracks;
	tl->tracks_mask = mask;
	return 0;
}

static struct track *track_of(struct timeline *tl, const struct event *ev, enum row row)
{
	struct track **recent = &tl->recent[(ev->source * 3u + row) % 16];
	struct track *track;
	ssize_t process;
	uint64_t key;
	uint32_t at;
	int32_t a, b;

	track_place(ev, row, &a, &b);
	if (*recent && is_track(tl, *recent, ev, row, a, b))
		return *recent;
	key = track_key(ev, row, a, b);
	if ((!tl->tracks || tl->tracks_count > tl->tracks_mask / 2) && tracks_grow(tl) < 0)
		return NULL;
	for (at = (uint32_t)key & tl->tracks_mask; (track = tl->tracks[at]) != NULL; at = (at + 1) & tl->tracks_mask)
		if (track->key == key && is_track(tl, track, ev, row, a, b))
			return *recent = track;
	process = process_of(tl, ev);
	track = process < 0 ? NULL : calloc(1, sizeof(*track));
	if (!track)
		return NULL;
	*track = (struct track){
		.key = key, .process = (uint32_t)process, .row = row, .a = a, .b = b, .worker = ev->quality & EV_WORKER
	};
	tl->tracks[at] = track;
	tl->tracks_count++;
	return *recent = track;
}

/* The name of a track's thread, whichever of its rows it came with; 0 = none. */
static uint32_t title_of(const struct timeline *tl, const struct track *track)
{
	const struct process *process = &tl->processes[track->process];
	const struct event thread = { .rank = process->rank,
				      .track = { process->host, process->rank < 0 ? process->pid : track->a, track->b,
						 -1, -1, -1 } };
	uint64_t key = track_key(&thread, ROW_THREAD, track->a, track->b);
	const struct track *other;
	uint32_t at;

	if (track->title || rows[track->row].of != OF_THREAD)
		return track->title;
	for (at = (uint32_t)key & tl->tracks_mask; (other = tl->tracks[at]) != NULL; at = (at + 1) & tl->tracks_mask)
		if (other->key == key && is_track(tl, other, &thread, ROW_THREAD, track->a, track->b))
			return other->title;
	return 0;
}

static void track_name(const struct timeline *tl, const struct track *track, uint32_t lane, char *out, size_t room)
{
	const struct process *process = &tl->processes[track->process];
	const char *own = ev_text(tl->session, title_of(tl, track));
	size_t used = 0;

	if (track->row == ROW_THREAD) {
		used = (size_t)snprintf(out, room, "%s %d",
					track->worker			? "worker"
					: track->b == process->main_pid ? "main thread"
									: "thread",
					track->b);
		if (track->b < 0)
			used = (size_t)snprintf(out, room, "stages");
	} else {
		used = (size_t)snprintf(out, room, "%s", rows[track->row].title);
		if (rows[track->row].of == OF_THREAD && track->b >= 0)
			used += (size_t)snprintf(out + used, room - used, " thread %d", track->b);
		else if (rows[track->row].of == OF_PROCESS && track->a != process->main_pid)
			used += (size_t)snprintf(out + used, room - used, " of %d", track->a);
		else if (rows[track->row].of == OF_CPU)
			used += (size_t)snprintf(out + used, room - used, " %d", track->a);
		else if (rows[track->row].of == OF_STREAM)
			used += (size_t)snprintf(out + used, room - used, " %d stream %d", track->a, track->b);
	}
	if (*own)
		used += (size_t)snprintf(out + used, room - used, " (%.60s)", own);
	if (lane)
		snprintf(out + used, room - used, " [%u]", lane + 1);
}

/* Write a lane's descriptor, or its final name. */
static int describe_lane(struct timeline *tl, const struct track *track, uint32_t lane,
			 int (*op)(struct tsink *sink, const struct tsink_track *track))
{
	struct tsink_track out = track->lanes[lane].track;
	char name[200];

	track_name(tl, track, lane, name, sizeof(name));
	out.name = name;
	return op(tl->sink, &out);
}

static struct lane *add_lane(struct timeline *tl, struct track *track)
{
	struct lane *lanes = realloc(track->lanes, (track->lanes_count + 1) * sizeof(*lanes));
	struct lane *lane;

	if (!lanes)
		return NULL;
	track->lanes = lanes;
	lane = &lanes[track->lanes_count];
	*lane = (struct lane){ .track = {
				       .id = ++tl->next_id,
				       .pid = tl->processes[track->process].sink_pid,
				       .sort = (int32_t)track->row * 1000 + (track->worker ? 500 : 0) +
					       (int32_t)(tl->next_id % 400),
				       .counter = track->row == ROW_STEP_TIME || track->row == ROW_GIL_WAITING,
				       .unit = track->row == ROW_GIL_WAITING ? "threads" : NULL,
				       .name = rows[track->row].title,
			       } };
	if (track->row == ROW_THREAD && track->b == tl->processes[track->process].main_pid)
		lane->track.sort = (int32_t)track->row * 1000;
	if (describe_lane(tl, track, track->lanes_count, tl->sink->ops->track) < 0)
		return NULL;
	track->lanes_count++;
	return lane;
}

/* ---- lanes -------------------------------------------------------------------------------------------------------- */

/* End the slices of a lane that are over at @t_ns. */
static int end_slices(struct timeline *tl, struct lane *lane, uint64_t t_ns)
{
	int ret = 0;

	while (lane->depth && lane->ends[lane->depth - 1] <= t_ns) {
		lane->depth--;
		if (tl->sink->ops->slice_end)
			ret = tl->sink->ops->slice_end(tl->sink, &lane->track, lane->ends[lane->depth]);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Would a slice nest here? Slices that are over by then do not count. */
static bool fits(const struct lane *lane, uint64_t t_ns, uint64_t end_ns)
{
	uint32_t depth = lane->depth;

	if (t_ns < lane->last_ns)
		return false;
	while (depth && lane->ends[depth - 1] <= t_ns)
		depth--;
	return !depth || lane->ends[depth - 1] >= end_ns;
}

static struct lane *lane_for(struct timeline *tl, struct track *track, struct tsink_slice *slice)
{
	uint64_t end_ns = slice->t_ns + slice->dur_ns;
	struct lane *lane;
	uint32_t i;

	for (i = 0; i < track->lanes_count; i++)
		if (fits(&track->lanes[i], slice->t_ns, end_ns))
			return &track->lanes[i];
	if (i < MAX_LANES)
		return add_lane(tl, track);
	/* shown where it begins last, cut to the slice around it: better than a file that viewers refuse */
	tl->summary->squeezed++;
	lane = &track->lanes[track->lanes_count - 1];
	if (slice->t_ns < lane->last_ns)
		slice->t_ns = lane->last_ns;
	for (i = lane->depth; i && lane->ends[i - 1] <= slice->t_ns; i--)
		;
	if (i && end_ns > lane->ends[i - 1])
		end_ns = lane->ends[i - 1];
	slice->dur_ns = end_ns > slice->t_ns ? end_ns - slice->t_ns : 0;
	return lane;
}

static int put_slice(struct timeline *tl, struct track *track, struct tsink_slice *slice)
{
	struct lane *lane = lane_for(tl, track, slice);
	int ret;

	if (!lane)
		return -ENOMEM;
	ret = end_slices(tl, lane, slice->t_ns);
	if (ret < 0)
		return ret;
	if (lane->depth == lane->room) {
		uint32_t room = lane->room ? lane->room * 2 : 8;
		uint64_t *ends = realloc(lane->ends, room * sizeof(*ends));

		if (!ends)
			return -ENOMEM;
		lane->ends = ends;
		lane->room = room;
	}
	lane->ends[lane->depth++] = slice->t_ns + slice->dur_ns;
	lane->last_ns = slice->t_ns;
	if (slice->t_ns + slice->dur_ns > tl->end_ns)
		tl->end_ns = slice->t_ns + slice->dur_ns;
	tl->summary->slices++;
	return tl->sink->ops->slice(tl->sink, &lane->track, slice);
}

static struct lane *first_lane(struct timeline *tl, struct track *track)
{
	return track->lanes_count ? &track->lanes[0] : add_lane(tl, track);
}

static int put_instant(struct timeline *tl, struct track *track, const struct tsink_slice *slice)
{
	struct lane *lane = first_lane(tl, track);

	if (!lane)
		return -ENOMEM;
	if (slice->t_ns > tl->end_ns)
		tl->end_ns = slice->t_ns;
	tl->summary->instants++;
	return tl->sink->ops->instant(tl->sink, &lane->track, slice);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static int put_step_time(struct timeline *tl, const struct event *ev)
{
	struct track *track = track_of(tl, ev, ROW_STEP_TIME);
	struct lane *lane = track ? first_lane(tl, track) : NULL;

	if (!lane)
		return -ENOMEM;
	tl->summary->values++;
	return tl->sink->ops->counter(tl->sink, &lane->track, ev->t_ns, ev->dur_ns);
}

/* ---- how many spans are open ------------------------------------------------------------------------------------------- */

static int put_open_count(struct timeline *tl, struct track *track, uint64_t t_ns)
{
	struct lane *lane = first_lane(tl, track);

	if (!lane)
		return -ENOMEM;
	tl->summary->values++;
	return tl->sink->ops->counter(tl->sink, &lane->track, t_ns, track->open_count);
}

/* Spans that are over by @t_ns end, in order. */
static int end_open(struct timeline *tl, struct track *track, uint64_t t_ns)
{
	int ret = 0;

	while (ret == 0 && track->open_count && track->open[track->open_count - 1] <= t_ns) {
		uint64_t end_ns = track->open[--track->open_count];

		ret = put_open_count(tl, track, end_ns);
	}
	return ret;
}

static int begin_open(struct timeline *tl, struct track *track, uint64_t t_ns, uint64_t end_ns)
{
	uint32_t i;

	if (track->open_count == track->open_room) {
		uint32_t room = track->open_room ? track->open_room * 2 : 16;
		uint64_t *open = realloc(track->open, room * sizeof(*open));

		if (!open)
			return -ENOMEM;
		track->open = open;
		track->open_room = room;
	}
	for (i = track->open_count++; i && track->open[i - 1] < end_ns; i--)
		track->open[i] = track->open[i - 1];
	track->open[i] = end_ns;
	return put_open_count(tl, track, t_ns);
}

/* How many threads of its process wait for the interpreter's lock. */
static int count_waiting(struct timeline *tl, const struct event *ev)
{
	struct track *track = track_of(tl, ev, ROW_GIL_WAITING);
	int ret = track ? end_open(tl, track, ev->t_ns) : -ENOMEM;

	if (ret == 0 && ev->name == tl->name_gil_wait)
		ret = begin_open(tl, track, ev->t_ns, ev->t_ns + ev->dur_ns);
	return ret;
}

/* ---- CPUs ---------------------------------------------------------------------------------------------------------- */

static int put_arrow(struct timeline *tl, const struct track *from, const struct track *to, struct tsink_slice slice)
{
	slice.name = tl->name_preempted;
	slice.category = rows[ROW_STATE].category;
	return tl->sink->ops->arrow(tl->sink, &from->lanes[0].track, &to->lanes[0].track, &slice, ++tl->arrows);
}

/* On the row of its CPU a slice is called after who ran. */
static int put_on_cpu(struct timeline *tl, const struct event *ev, struct tsink_slice slice)
{
	struct track *track = ev->track.cpu < 0 ? NULL : track_of(tl, ev, ROW_CPU);
	int ret;

	if (ev->track.cpu < 0)
		return 0;
	if (!track)
		return -ENOMEM;
	slice.category = rows[ROW_CPU].category;
	if (ev->kind != EV_IRQ && ev->kind != EV_SOFTIRQ && ev->nargs && ev->args[OS_ARG_WHO].name)
		slice.name = ev->args[OS_ARG_WHO].name;
	ret = put_slice(tl, track, &slice);
	if (ret == 0 && track->lost_by && track->lost_ns == ev->t_ns)
		ret = put_arrow(tl, track->lost_by, track, slice);
	if (track->lost_ns <= ev->t_ns)
		track->lost_by = NULL;
	return ret;
}

/*
 * An arrow from a thread that lost its CPU to whoever came on it that very moment, where that was recorded: it has been
 * drawn, or comes next.
 */
static int put_preemption(struct timeline *tl, struct track *track, const struct event *ev, struct tsink_slice slice)
{
	struct track *cpu;

	if (ev->track.cpu < 0 || !ev->nargs || ev->args[OS_ARG_WHO].key != tl->key_taken_by || !track->lanes_count)
		return 0;
	cpu = track_of(tl, ev, ROW_CPU);
	if (!cpu)
		return -ENOMEM;
	if (cpu->lanes_count && cpu->lanes[0].last_ns == ev->t_ns)
		return put_arrow(tl, track, cpu, slice);
	cpu->lost_by = track;
	cpu->lost_ns = ev->t_ns;
	return 0;
}

/* A thread says its name: kept for the end, when tracks get their final names. */
static int take_thread_name(struct timeline *tl, const struct event *ev)
{
	struct track *track = track_of(tl, ev, ROW_THREAD);

	if (!track)
		return -ENOMEM;
	track->title = ev->name;
	return 0;
}

static int keep(struct event **list, uint32_t *count, const struct event *ev)
{
	struct event *events = realloc(*list, (*count + 1) * sizeof(*events));

	if (!events)
		return -ENOMEM;
	*list = events;
	events[(*count)++] = *ev;
	return 0;
}

/* An end closes the newest begin of its name; one without a begin says nothing. Return: 1 = *ev is the whole. */
static int close_begun(struct track *track, struct event *ev)
{
	struct event whole;
	uint32_t i;

	for (i = track->begun_count; i-- > 0;)
		if (!ev->name || track->begun[i].name == ev->name)
			break;
	if (i == UINT32_MAX)
		return 0;
	whole = track->begun[i];
	memmove(&track->begun[i], &track->begun[i + 1], (--track->begun_count - i) * sizeof(*ev));
	whole.dur_ns = ev->t_ns > whole.t_ns ? ev->t_ns - whole.t_ns : 0;
	whole.phase = EV_COMPLETE;
	*ev = whole;
	return 1;
}

static uint32_t name_of(struct timeline *tl, const struct event *ev)
{
	char text[200];

	if (ev->kind == EV_LOST) {
		snprintf(text, sizeof(text), "lost: %.180s", ev_text(tl->session, ev->name));
		return ev_namez(tl->session, text);
	}
	return ev->name ? ev->name : tl->name_unnamed;
}

static void slice_of(struct timeline *tl, const struct event *ev, enum row row, struct tsink_slice *slice)
{
	*slice = (struct tsink_slice){
		.ev = ev,
		.t_ns = ev->t_ns,
		.dur_ns = ev->dur_ns,
		.name = name_of(tl, ev),
		.number = ev->kind == EV_STEP ? ev->step : 0,
		.category = ev->kind == EV_NOTE ? "note" : rows[row].category,
	};
	/* the end of a 64-bit clock is no time: what stands there was damaged */
	if (slice->t_ns + slice->dur_ns < slice->t_ns || slice->t_ns + slice->dur_ns > INT64_MAX)
		slice->dur_ns = 0;
}

/* Slices that never ended reach to the end of what is known. */
static int put_open(struct timeline *tl, struct track *track, struct event *ev)
{
	struct tsink_slice slice;

	ev->quality |= EV_CUT_END;
	ev->dur_ns = tl->end_ns > ev->t_ns ? tl->end_ns - ev->t_ns : 0;
	tl->summary->open++;
	slice_of(tl, ev, track->row, &slice);
	return put_slice(tl, track, &slice);
}

static int put_event(struct timeline *tl, struct event *ev)
{
	enum row row = row_of(ev);
	struct tsink_slice slice;
	struct track *track;
	int ret;

	if (ev->kind == EV_TASK)
		return take_thread_name(tl, ev);
	track = track_of(tl, ev, row);
	if (!track)
		return -ENOMEM;
	if (ev->phase == EV_END && !close_begun(track, ev))
		return 0;
	if (ev->phase == EV_BEGIN)
		return ev->quality & EV_CUT_END ? put_open(tl, track, ev)
						: keep(&track->begun, &track->begun_count, ev);
	slice_of(tl, ev, row, &slice);
	if (ev->kind == EV_LOST || ev->phase == EV_INSTANT)
		return put_instant(tl, track, &slice);
	if (row == ROW_CPU)
		return put_on_cpu(tl, ev, slice);
	ret = put_slice(tl, track, &slice);
	if (ret == 0 && ev->kind == EV_ONCPU)
		ret = put_on_cpu(tl, ev, slice);
	if (ret == 0 && ev->kind == EV_OFFCPU)
		ret = put_preemption(tl, track, ev, slice);
	if (ret == 0 && ev->kind == EV_GIL)
		ret = count_waiting(tl, ev);
	if (ret == 0 && ev->kind == EV_STEP) {
		tl->summary->steps++;
		ret = put_step_time(tl, ev);
	}
	return ret;
}

static int start(struct timeline *tl, const struct event *first, struct st_err *err)
{
	const struct tsink_head head = {
		.axis = merge_axis(tl->merge),
		.first_ns = first->t_ns,
		.wall_minus_mono_ns = merge_wall_minus_mono(tl->merge),
	};
	uint32_t i;
	int ret;

	tl->sink = tl->options->format->open(tl->session, tl->options->output, err);
	if (!tl->sink)
		return err ? err->code : -EIO;
	tl->summary->first_ns = first->t_ns;
	ret = tl->sink->ops->head(tl->sink, &head);
	for (i = 0; i < tl->early_count && ret == 0; i++)
		ret = take_thread_name(tl, &tl->early[i]);
	return ret;
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

static int finish_track(struct timeline *tl, struct track *track)
{
	uint32_t i;
	int ret = 0;

	ret = end_open(tl, track, UINT64_MAX);
	for (i = 0; i < track->begun_count && ret == 0; i++)
		ret = put_open(tl, track, &track->begun[i]);
	for (i = 0; i < track->lanes_count && ret == 0; i++) {
		ret = end_slices(tl, &track->lanes[i], UINT64_MAX);
		if (ret == 0)
			ret = describe_lane(tl, track, i, tl->sink->ops->rename);
	}
	tl->summary->tracks += track->lanes_count;
	return ret;
}

static void add_note(void *arg, const char *text)
{
	struct timeline *tl = arg;
	char **notes = realloc(tl->notes, (tl->notes_count + 2) * sizeof(*notes));

	if (!notes)
		return;
	tl->notes = notes;
	notes[tl->notes_count] = strdup(text);
	tl->notes_count += notes[tl->notes_count] != NULL;
	notes[tl->notes_count] = NULL;
	if (tl->options->note)
		tl->options->note(tl->options->arg, text);
}

static void collect_notes(struct timeline *tl)
{
	struct timeline_summary *summary = tl->summary;
	struct merge_stats stats;
	char text[200];
	size_t i;

	merge_stats(tl->merge, &stats);
	summary->lost = stats.read.lost;
	for (i = 0; i < merge_count(tl->merge); i++) {
		const struct ev_reader *reader = merge_reader(tl->merge, i);

		if (reader->ops->report)
			reader->ops->report(reader, add_note, tl);
	}
	if (stats.read.lost) {
		snprintf(text, sizeof(text),
			 "%llu records were lost while recording: see 'losses and notes' of each rank",
			 (unsigned long long)stats.read.lost);
		add_note(tl, text);
	}
	if (summary->squeezed) {
		snprintf(text, sizeof(text),
			 "%llu events overlap too much or lie outside the time axis: shortened or left out",
			 (unsigned long long)summary->squeezed);
		add_note(tl, text);
	}
}

static int finish(struct timeline *tl, struct st_err *err)
{
	uint32_t i;
	int ret;

	for (i = 0; i <= tl->tracks_mask && tl->tracks; i++) {
		ret = tl->tracks[i] ? finish_track(tl, tl->tracks[i]) : 0;
		if (ret < 0)
			return ret;
	}
	collect_notes(tl);
	tl->summary->last_ns = tl->end_ns;
	tl->summary->processes = tl->processes_count;
	ret = tl->sink->ops->finish(tl->sink, (const char *const *)tl->notes, &tl->summary->bytes, err);
	tl->sink = NULL;
	return ret;
}

static void timeline_free(struct timeline *tl)
{
	uint32_t i, k;

	for (i = 0; tl->tracks && i <= tl->tracks_mask; i++) {
		struct track *track = tl->tracks[i];

		if (!track)
			continue;
		for (k = 0; k < track->lanes_count; k++)
			free(track->lanes[k].ends);
		free(track->lanes);
		free(track->begun);
		free(track->open);
		free(track);
	}
	for (i = 0; i < tl->notes_count; i++)
		free(tl->notes[i]);
	free(tl->notes);
	free(tl->early);
	free(tl->tracks);
	free(tl->processes);
	if (tl->sink)
		tl->sink->ops->discard(tl->sink);
}

static int take_event(struct timeline *tl, struct event *ev, struct st_err *err)
{
	int ret;

	if (ev->t_ns > INT64_MAX / 2) { /* no clock is there yet: the record is damaged */
		tl->summary->squeezed++;
		return 0;
	}
	if (!tl->sink) {
		if (ev->kind == EV_TASK)
			return keep(&tl->early, &tl->early_count, ev);
		ret = start(tl, ev, err);
		if (ret < 0)
			return ret;
	}
	ret = put_event(tl, ev);
	return ret < 0 ? err_set(err, ret, "cannot write %s: %s", tl->options->output, strerror(-ret)) : 0;
}

/* All events of the merge. Return: 0 or -errno with @err. */
static int run(struct timeline *tl, struct st_err *err)
{
	const struct timeline_options *options = tl->options;
	struct st_err failed = { 0 };
	struct event ev;
	int ret;

	for (;;) {
		ret = merge_next(tl->merge, &ev, &failed);
		if (ret < 0) { /* one file: the others go on */
			add_note(tl, failed.text);
			if (ret == -ENOMEM)
				return err_set(err, ret, "%s", failed.text);
			continue;
		}
		if (ret == 0)
			return 0;
		tl->summary->events++;
		ret = take_event(tl, &ev, err);
		if (ret < 0)
			return ret;
		if (options->progress && (tl->summary->events & 0xffff) == 0 &&
		    options->progress(options->arg, tl->merge))
			return err_set(err, -ECANCELED, "%s: stopped, nothing is left", options->output);
	}
}

int timeline_write(struct ev_session *session, struct merge *merge, const struct timeline_options *options,
		   struct timeline_summary *summary, struct st_err *err)
{
	struct timeline tl = { .session = session, .merge = merge, .options = options, .summary = summary };
	int ret;

	*summary = (struct timeline_summary){ 0 };
	tl.name_unnamed = ev_namez(session, "(unnamed)");
	tl.name_gil_wait = ev_namez(session, GIL_NAME_WAIT);
	tl.name_preempted = ev_namez(session, "preempted");
	tl.key_taken_by = ev_namez(session, OS_KEY_TAKEN_BY);
	ret = run(&tl, err);
	if (ret == 0 && !tl.sink)
		ret = err_set(err, -ENODATA, "the files hold no events");
	if (ret == 0)
		ret = finish(&tl, err);
	timeline_free(&tl);
	return ret;
}
