/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Exporter: Perfetto's protobuf trace with the kernel's events as it records them itself, so that its scheduling views and
 * SQL tables work: switches and wakings in compact form, interrupts and the other events as ftrace events, per CPU in
 * order. Futex calls are slices of their threads, gaps of lost events of tracks of their own. Where events are missing, the
 * task leaves its CPU at the last event before, in state I (idle), which no user's task ever has. Format:
 * docs/formats/perfetto.md.
 */
#include "convert/ftrace_perfetto_impl.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_GROUP ((uint64_t)1 << 40)
#define UUID_LOST ((uint64_t)2 << 40)

static int perfetto_event(struct fsink *sink, const struct event *ev)
{
	struct perfetto *p = (struct perfetto *)sink;
	struct pcpu *cpu;

	if (ev->name == p->keys.name[KNOWN_TASK_COMM]) {
		pftask_note(p, ev->track.tid, ev->track.pid, ev->nargs ? ev->args[TASK_COMM_COMM].name : 0);
		return p->out.failed;
	}
	if (ev->track.cpu < 0)
		return 0;
	if (ev->track.cpu >= MAX_CPUS) {
		p->far_events++;
		return 0;
	}
	cpu = pfcpu_get(p, ev->track.cpu);
	if (!cpu)
		return p->out.failed;
	if (ev->kind == EV_LOST) {
		pfcpu_cut(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns);
		pfcpu_flush(p, cpu, (uint32_t)ev->track.cpu);
		cpu->lost = true;
		cpu->chained = false;
		cpu->lost_events += ev->nargs ? ev->args[0].u64 : 0;
		return p->out.failed;
	}
	if (cpu->pid < 0 && ev->track.tid >= 0 && ev->kind != EV_SCHED_SWITCH)
		pfcpu_enter(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns, ev->track.tid,
			    sched_state_comm(sink->view->machine, ev->track.tid));
	return pfcpu_event(p, cpu, ev);
}

/* ---- slices ------------------------------------------------------------------------------------------------------------- */

/* A lane of the task's own in a group, for threads whose process is not told. */
static uint64_t group_track(struct perfetto *p, struct ftrack *track, uint32_t index, const char *group)
{
	uint64_t uuid = UUID_GROUP + index + 1;
	char *name;

	if (!p->group_root)
		pfpacket_track(p, UUID_GROUP, 0, group);
	p->group_root = true;
	if (track->futexes++)
		return uuid;
	name = fview_utf8(p->base.view, track);
	pfpacket_track(p, uuid, UUID_GROUP, name ? name : "");
	free(name);
	return uuid;
}

/* What a task did, under its thread; @group names the group of the others. */
static int task_row(struct perfetto *p, const struct frow *row, const char *group)
{
	struct ftrack *track = &p->base.view->tracks[row->track];
	struct ftext name = frow_name(p->base.view, row);
	uint64_t uuid = pftask_track(p, track->number, track->comm);
	char text[64];

	if (!uuid)
		uuid = group_track(p, track, row->track, group);
	snprintf(text, sizeof(text), "%.*s", (int)name.len, name.text);
	return pfpacket_slice(p, uuid, text, row->begin_ns, row->end_ns);
}

static int gap_row(struct perfetto *p, const struct frow *row)
{
	struct ftrack *track = &p->base.view->tracks[row->track];
	uint64_t uuid = UUID_LOST + row->track + 1;
	struct pcpu *cpu = row->cpu < MAX_CPUS ? pfcpu_get(p, row->cpu) : NULL;

	if (!cpu)
		return p->out.failed;
	pfcpu_cut(p, cpu, (uint32_t)row->cpu, row->begin_ns);
	if (!p->lost_root)
		pfpacket_track(p, UUID_LOST, 0, "lost events");
	p->lost_root = true;
	if (!track->futexes++)
		pfpacket_track(p, uuid, UUID_LOST, track->label.text);
	return pfpacket_slice(p, uuid, "lost events", row->begin_ns, row->end_ns);
}

static int perfetto_row(struct fsink *sink, const struct frow *row)
{
	struct perfetto *p = (struct perfetto *)sink;

	switch (row->kind) {
	case ROW_FUTEX:
		return task_row(p, row, "futex");
	case ROW_GAP:
		return gap_row(p, row);
	case ROW_LOCK_WAIT:
	case ROW_LOCK_HOLD:
		return task_row(p, row, "mmap_lock");
	default:
		return 0; /* Perfetto makes them from the events */
	}
}

static void perfetto_free(struct perfetto *p)
{
	uint32_t i;

	for (i = 0; i < p->cpu_room; i++)
		if (p->cpus[i]) {
			free(p->cpus[i]->events.data);
			free(p->cpus[i]);
		}
	free(p->cpus);
	free(p->tasks);
	free(p->packet);
	free(p);
}

static struct fsink *perfetto_open(struct fview *view, const char *path, struct st_err *err)
{
	struct perfetto *p = calloc(1, sizeof(*p));

	if (p) {
		p->packet_room = 4u << 20;
		p->packet = malloc(p->packet_room);
	}
	if (!p || !p->packet || known_keys_init(&p->keys, view->session)) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	p->base = (struct fsink){ .ops = &fsink_perfetto, .view = view };
	if (view->clock == EV_CLOCK_MONO || view->clock == EV_CLOCK_BOOT) {
		p->clock_id = CLOCK_BOOT_ID;
		p->ftrace_clock = FTRACE_CLOCK_BOOT;
	} else {
		p->clock_id = CLOCK_RAW_ID;
		p->ftrace_clock = FTRACE_CLOCK_RAW;
	}
	if (outfile_open(&p->out, path, err) < 0)
		goto fail;
	pfpacket_clocks(p);
	pfpacket_system(p);
	return &p->base;
fail:
	if (p)
		perfetto_free(p);
	return NULL;
}

static void tell_far(const struct perfetto *p)
{
	const struct ftrace_options *options = p->base.view->options;
	char text[128];

	if (!p->far_events || !options->note)
		return;
	snprintf(text, sizeof(text), "%" PRIu64 " events of CPUs from %d on were left out: Perfetto takes no more",
		 p->far_events, MAX_CPUS);
	options->note(options->arg, text);
}

static int perfetto_finish(struct fsink *sink, uint64_t *bytes, struct st_err *err)
{
	struct perfetto *p = (struct perfetto *)sink;
	uint32_t i;
	int ret;

	for (i = 0; i < p->cpu_room; i++)
		if (p->cpus[i])
			pfcpu_flush(p, p->cpus[i], i);
	pftask_put_tree(p);
	pfpacket_stats(p);
	tell_far(p);
	ret = outfile_finish(&p->out, err);
	*bytes = p->out.bytes;
	perfetto_free(p);
	return ret;
}

static void perfetto_discard(struct fsink *sink)
{
	if (!sink)
		return;
	outfile_discard(&((struct perfetto *)sink)->out);
	perfetto_free((struct perfetto *)sink);
}

const struct fsink_ops fsink_perfetto = {
	.name = "perfetto",
	.output = "ftrace_data.pftrace",
	.help = "Perfetto protobuf trace",
	.futexes = true,
	.gaps = true,
	.trace_times = true,
	.open = perfetto_open,
	.row = perfetto_row,
	.event = perfetto_event,
	.finish = perfetto_finish,
	.discard = perfetto_discard,
};
