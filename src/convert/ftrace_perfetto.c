/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Exporter: Perfetto's protobuf trace with the kernel's events as it records them itself, so that its scheduling views and
 * SQL tables work: switches and wakings in compact form, interrupts and the other events as ftrace events, per CPU in
 * order. Futex calls and gaps of lost events are slices of tracks of their own. Where events are missing, the task leaves
 * its CPU at the last event before, in state I (idle), which no user's task ever has. Format: docs/formats/perfetto.md.
 */
#include "convert/ftrace_sink.h"
#include "trace/ftrace_known.h"
#include "trace/session.h"
#include "wire/pb.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* field numbers of perfetto/trace/ */
enum { TRACE_PACKET = 1 };
enum { /* TracePacket */
       PACKET_FTRACE = 1,
       PACKET_PROCESS_TREE = 2,
       PACKET_CLOCKS = 6,
       PACKET_TIMESTAMP = 8,
       PACKET_SEQUENCE = 10,
       PACKET_TRACK_EVENT = 11,
       PACKET_FTRACE_STATS = 34,
       PACKET_SYSTEM_INFO = 45,
       PACKET_CLOCK_ID = 58,
       PACKET_TRACK = 60
};
enum { BUNDLE_CPU = 1, BUNDLE_EVENT, BUNDLE_LOST, BUNDLE_COMPACT, BUNDLE_CLOCK };
enum { /* CompactSched */
       COMPACT_SWITCH_TIME = 1,
       COMPACT_SWITCH_STATE,
       COMPACT_SWITCH_PID,
       COMPACT_SWITCH_PRIO,
       COMPACT_TEXTS,
       COMPACT_SWITCH_COMM,
       COMPACT_WAKING_TIME,
       COMPACT_WAKING_PID,
       COMPACT_WAKING_CPU,
       COMPACT_WAKING_PRIO,
       COMPACT_WAKING_COMM
};
enum { FTRACE_TIME = 1, FTRACE_PID = 2 };
enum { FTRACE_SWITCH = 4, FTRACE_GENERIC = 327 };
enum { CLOCK_REALTIME_ID = 1, CLOCK_RAW_ID = 5, CLOCK_BOOT_ID = 6 };
enum { FTRACE_CLOCK_BOOT = 0, FTRACE_CLOCK_RAW = 4 };
enum { EVENT_TYPE = 9, EVENT_TRACK = 11, EVENT_NAME = 23, TYPE_BEGIN = 1, TYPE_END = 2 };
enum { TRACK_UUID = 1, TRACK_NAME = 2, TRACK_PROCESS = 3, TRACK_THREAD = 4, TRACK_PARENT = 5 };

#define SEQUENCE_ID 1
#define BATCH 1024 /* switches, and wakings, of a CPU in one bundle */
#define EVENT_BYTES (64u << 10) /* other events of a CPU in one bundle */
#define EVENT_MOST 16384 /* of one of them */
#define TEXT_MOST 1024
#define COMM_SLOTS 512
#define TEXTS (2 * BATCH)
#define IRQ_DEPTH 16
#define MAX_CPUS 1024 /* Perfetto takes no more */
#define STATE_IDLE 0x80
#define UUID_FUTEX ((uint64_t)1 << 40)
#define UUID_LOST ((uint64_t)2 << 40)

struct compact {
	uint32_t n;
	uint64_t t_ns[BATCH];
	int32_t pid[BATCH], prio[BATCH], third[BATCH]; /* third: prev_state, or target CPU */
	uint32_t comm[BATCH];
};

struct comm_slot {
	uint32_t name, batch, index;
};

struct irq_open {
	uint16_t entry; /* field number of the entry's event */
	int64_t number;
};

struct pcpu {
	int32_t pid; /* on the CPU, -1 = unknown: for Perfetto the idle task is */
	uint32_t comm;
	uint32_t idle; /* name of its idle task */
	bool chained; /* Perfetto knows who is on the CPU: a compact switch suffices */
	bool lost; /* the next bundle follows lost events */
	uint64_t lost_events;
	uint32_t batch; /* number of the bundle, for the slots */
	struct compact sw, waking;
	uint32_t texts[TEXTS];
	uint32_t text_count;
	struct comm_slot slots[COMM_SLOTS];
	struct pb_writer events;
	int depth;
	struct irq_open irqs[IRQ_DEPTH];
};

struct ptask {
	int32_t tid, tgid;
	uint32_t comm;
};

struct perfetto {
	struct fsink base;
	struct outfile out;
	struct known_keys keys;
	uint32_t clock_id, ftrace_clock;
	bool wakings; /* sched_waking is recorded: sched_wakeup says nothing more */
	struct pcpu **cpus;
	uint32_t cpu_room;
	bool many_cpus;
	struct ptask *tasks; /* open addressing by tid; tid 0 = free */
	uint32_t task_count, task_room;
	bool futex_root, lost_root;
	uint8_t *packet; /* being built */
	size_t packet_room;
};

/* ---- packets ---------------------------------------------------------------------------------------------------------- */

static int put_packet(struct perfetto *p, const struct pb_writer *packet)
{
	uint8_t head[16];
	size_t len = 1;

	if (packet->full)
		return p->out.failed = -EMSGSIZE; /* cannot be: everything in it is bounded */
	head[0] = TRACE_PACKET << 3 | 2;
	for (size_t n = packet->used;; n >>= 7) {
		head[len++] = (uint8_t)(n >= 128 ? (n & 127) | 128 : n);
		if (n < 128)
			break;
	}
	outfile_put(&p->out, head, len);
	outfile_put(&p->out, packet->data, packet->used);
	return p->out.failed;
}

static struct pb_writer new_packet(struct perfetto *p)
{
	struct pb_writer packet;

	pb_init(&packet, p->packet, p->packet_room);
	return packet;
}

static void add_text(struct perfetto *p, struct pb_writer *w, uint32_t field, uint32_t name)
{
	const char *text = ev_text(p->base.view->session, name);
	size_t len = ev_text_len(p->base.view->session, name);
	char copy[6 * TEXT_MOST];
	size_t i;

	if (len > TEXT_MOST / 2)
		len = TEXT_MOST / 2;
	for (i = 0; i < len && (unsigned char)text[i] < 0x80; i++)
		;
	if (i < len) {
		/* escaped text without escapes: bytes that are no UTF-8 become code points */
		size_t n = 0;

		for (i = 0; i < len; i++) {
			static const char plain[] = "\"\\";

			if ((unsigned char)text[i] < 0x20 || strchr(plain, text[i])) {
				copy[n++] = text[i];
				continue;
			}
			size_t run = i;

			while (run < len && (unsigned char)text[run] >= 0x20 && !strchr(plain, text[run]))
				run++;
			n += frow_escape(copy + n, text + i, run - i);
			i = run - 1;
		}
		pb_bytes(w, field, copy, n);
		return;
	}
	pb_bytes(w, field, text, len);
}

static int put_track(struct perfetto *p, uint64_t uuid, uint64_t parent, const char *name)
{
	struct pb_writer w = new_packet(p);
	size_t mark = pb_begin(&w, PACKET_TRACK);

	pb_u64(&w, TRACK_UUID, uuid);
	if (parent)
		pb_u64(&w, TRACK_PARENT, parent);
	pb_bytes(&w, TRACK_NAME, name, strlen(name));
	pb_end(&w, mark);
	return put_packet(p, &w);
}

static int put_slice(struct perfetto *p, uint64_t uuid, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
	int type;

	for (type = TYPE_BEGIN; type <= TYPE_END; type++) {
		struct pb_writer w = new_packet(p);
		size_t mark;

		pb_u64(&w, PACKET_TIMESTAMP, type == TYPE_BEGIN ? begin_ns : end_ns);
		pb_u64(&w, PACKET_SEQUENCE, SEQUENCE_ID);
		mark = pb_begin(&w, PACKET_TRACK_EVENT);
		pb_u64(&w, EVENT_TYPE, (uint64_t)type);
		pb_u64(&w, EVENT_TRACK, uuid);
		if (type == TYPE_BEGIN)
			pb_bytes(&w, EVENT_NAME, name, strlen(name));
		pb_end(&w, mark);
		pb_u64(&w, PACKET_CLOCK_ID, p->clock_id);
		put_packet(p, &w);
	}
	return p->out.failed;
}

/* ---- bundles ------------------------------------------------------------------------------------------------------------ */

static void put_array(struct pb_writer *w, uint32_t field, uint32_t n, const int32_t *values)
{
	size_t mark = pb_begin(w, field);
	uint32_t i;

	for (i = 0; i < n; i++) {
		uint64_t value = (uint64_t)(int64_t)values[i];

		for (; value >= 128 && w->used < w->room; value >>= 7)
			w->data[w->used++] = (uint8_t)(value | 128);
		if (w->used < w->room)
			w->data[w->used++] = (uint8_t)value;
		else
			w->full = true;
	}
	pb_end(w, mark);
}

static void put_times(struct pb_writer *w, uint32_t field, uint32_t n, const uint64_t *t_ns)
{
	size_t mark = pb_begin(w, field);
	uint32_t i;

	for (i = 0; i < n; i++) {
		uint64_t value = i ? t_ns[i] - t_ns[i - 1] : t_ns[i];

		for (; value >= 128 && w->used < w->room; value >>= 7)
			w->data[w->used++] = (uint8_t)(value | 128);
		if (w->used < w->room)
			w->data[w->used++] = (uint8_t)value;
		else
			w->full = true;
	}
	pb_end(w, mark);
}

static void put_compact(struct perfetto *p, struct pb_writer *w, const struct pcpu *cpu)
{
	size_t mark = pb_begin(w, BUNDLE_COMPACT);
	const struct compact *sw = &cpu->sw, *waking = &cpu->waking;
	uint32_t i;

	if (sw->n) {
		put_times(w, COMPACT_SWITCH_TIME, sw->n, sw->t_ns);
		put_array(w, COMPACT_SWITCH_STATE, sw->n, sw->third);
		put_array(w, COMPACT_SWITCH_PID, sw->n, sw->pid);
		put_array(w, COMPACT_SWITCH_PRIO, sw->n, sw->prio);
	}
	for (i = 0; i < cpu->text_count; i++)
		add_text(p, w, COMPACT_TEXTS, cpu->texts[i]);
	if (sw->n)
		put_array(w, COMPACT_SWITCH_COMM, sw->n, (const int32_t *)sw->comm);
	if (waking->n) {
		put_times(w, COMPACT_WAKING_TIME, waking->n, waking->t_ns);
		put_array(w, COMPACT_WAKING_PID, waking->n, waking->pid);
		put_array(w, COMPACT_WAKING_CPU, waking->n, waking->third);
		put_array(w, COMPACT_WAKING_PRIO, waking->n, waking->prio);
		put_array(w, COMPACT_WAKING_COMM, waking->n, (const int32_t *)waking->comm);
	}
	pb_end(w, mark);
}

static int flush_cpu(struct perfetto *p, struct pcpu *cpu, uint32_t number)
{
	struct pb_writer w = new_packet(p);
	size_t mark;

	if (!cpu->sw.n && !cpu->waking.n && !cpu->events.used)
		return 0;
	mark = pb_begin(&w, PACKET_FTRACE);
	pb_u64(&w, BUNDLE_CPU, number);
	if (cpu->events.used <= w.room - w.used) {
		memcpy(w.data + w.used, cpu->events.data, cpu->events.used);
		w.used += cpu->events.used;
	} else {
		w.full = true;
	}
	if (cpu->lost)
		pb_u64(&w, BUNDLE_LOST, 1);
	if (cpu->sw.n || cpu->waking.n)
		put_compact(p, &w, cpu);
	if (p->ftrace_clock)
		pb_u64(&w, BUNDLE_CLOCK, p->ftrace_clock);
	pb_end(&w, mark);
	cpu->lost = false;
	cpu->sw.n = cpu->waking.n = cpu->text_count = 0;
	cpu->events.used = 0;
	cpu->batch++;
	return put_packet(p, &w);
}

static uint32_t comm_index(struct pcpu *cpu, uint32_t name)
{
	struct comm_slot *slot = &cpu->slots[name % COMM_SLOTS];

	if (slot->batch == cpu->batch && slot->name == name)
		return slot->index;
	*slot = (struct comm_slot){ name, cpu->batch, cpu->text_count };
	cpu->texts[cpu->text_count] = name;
	return cpu->text_count++;
}

static void add_compact(struct pcpu *cpu, struct compact *to, uint64_t t_ns, int32_t pid, int32_t prio, int32_t third,
			uint32_t comm)
{
	uint32_t i = to->n++;

	to->t_ns[i] = t_ns;
	to->pid[i] = pid;
	to->prio[i] = prio;
	to->third[i] = third;
	to->comm[i] = comm_index(cpu, comm);
}

/* ---- single events ------------------------------------------------------------------------------------------------------- */

/** struct field_row - which argument becomes which field */
struct field_row {
	uint8_t arg;
	uint8_t field; /* 0 = end of the row */
	bool text;
};

/** struct event_row - a known event in Perfetto's own form */
struct event_row {
	uint16_t number; /* of its message in FtraceEvent, 0 = none */
	struct field_row fields[8];
};

#define WAKE_FIELDS                                                                      \
	{                                                                                \
		{ WAKE_COMM, 1, true }, { WAKE_PID, 2, false }, { WAKE_PRIO, 3, false }, \
		{                                                                        \
			WAKE_CPU, 5, false                                               \
		}                                                                        \
	}

static const struct event_row event_rows[KNOWN_COUNT] = {
	[KNOWN_SWITCH] = { FTRACE_SWITCH,
			   { { SWITCH_PREV_COMM, 1, true },
			     { SWITCH_PREV_PID, 2, false },
			     { SWITCH_PREV_PRIO, 3, false },
			     { SWITCH_PREV_STATE, 4, false },
			     { SWITCH_NEXT_COMM, 5, true },
			     { SWITCH_NEXT_PID, 6, false },
			     { SWITCH_NEXT_PRIO, 7, false } } },
	[KNOWN_WAKEUP] = { 17, WAKE_FIELDS },
	[KNOWN_WAKING] = { 20, WAKE_FIELDS },
	[KNOWN_WAKEUP_NEW] = { 114, WAKE_FIELDS },
	[KNOWN_MIGRATE] = { 491,
			    { { MIGRATE_COMM, 1, true },
			      { MIGRATE_PID, 2, false },
			      { MIGRATE_PRIO, 3, false },
			      { MIGRATE_FROM, 4, false },
			      { MIGRATE_TO, 5, false } } },
	[KNOWN_FORK] = { 239,
			 { { FORK_PARENT_COMM, 1, true },
			   { FORK_PARENT_PID, 2, false },
			   { FORK_CHILD_COMM, 3, true },
			   { FORK_CHILD_PID, 4, false } } },
	[KNOWN_EXEC] = { 237, { { EXEC_FILENAME, 1, true }, { EXEC_PID, 2, false }, { EXEC_OLD_PID, 3, false } } },
	[KNOWN_EXIT] = { 238, { { EXIT_COMM, 1, true }, { EXIT_PID, 2, false }, { EXIT_PRIO, 4, false } } },
	[KNOWN_IRQ_ENTRY] = { 36, { { IRQ_IRQ, 1, false }, { IRQ_NAME, 2, true } } },
	[KNOWN_IRQ_EXIT] = { 37, { { IRQ_IRQ, 1, false }, { IRQ_RET, 2, false } } },
	[KNOWN_SOFTIRQ_ENTRY] = { 24, { { SOFTIRQ_VEC, 1, false } } },
	[KNOWN_SOFTIRQ_EXIT] = { 25, { { SOFTIRQ_VEC, 1, false } } },
	[KNOWN_SOFTIRQ_RAISE] = { 26, { { SOFTIRQ_VEC, 1, false } } },
};

/* Letters of prev_state as the kernel's bits. */
static uint32_t state_bits(const char *letters)
{
	static const char bits[] = "SDTtXZPI";
	uint32_t state = 0;
	const char *found;

	for (; *letters; letters++) {
		if (*letters == '+')
			state |= 0x100;
		else if ((found = strchr(bits, *letters)) != NULL)
			state |= 1u << (found - bits);
	}
	return state;
}

/* A value that a message wants as number but the model has as text. */
static uint64_t number_of(struct perfetto *p, enum ftrace_known known, const struct ev_arg *arg)
{
	if (arg->type != EV_ARG_NAME)
		return arg->u64;
	if (known == KNOWN_IRQ_EXIT)
		return arg->name == p->keys.handled[1];
	return state_bits(ev_text(p->base.view->session, arg->name));
}

static size_t begin_event(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns, int32_t pid)
{
	size_t mark;

	if (cpu->events.room - cpu->events.used < EVENT_MOST)
		flush_cpu(p, cpu, number);
	mark = pb_begin(&cpu->events, BUNDLE_EVENT);
	pb_u64(&cpu->events, FTRACE_TIME, t_ns);
	pb_u64(&cpu->events, FTRACE_PID, (uint64_t)(int64_t)pid);
	return mark;
}

static int known_event(struct perfetto *p, struct pcpu *cpu, const struct event *ev, enum ftrace_known known)
{
	const struct event_row *row = &event_rows[known];
	const struct field_row *field;
	size_t outer, inner;

	outer = begin_event(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns, ev->track.tid);
	inner = pb_begin(&cpu->events, row->number);
	for (field = row->fields; field->field && field->arg < ev->nargs; field++) {
		if (field->text)
			add_text(p, &cpu->events, field->field, ev->args[field->arg].name);
		else
			pb_u64(&cpu->events, field->field, number_of(p, known, &ev->args[field->arg]));
	}
	pb_end(&cpu->events, inner);
	pb_end(&cpu->events, outer);
	return p->out.failed;
}

/* An event that Perfetto has no message for: name and fields. */
static int other_event(struct perfetto *p, struct pcpu *cpu, const struct event *ev)
{
	struct pb_writer *w = &cpu->events;
	size_t outer = begin_event(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns, ev->track.tid), inner, field;
	int i;

	w = &cpu->events;
	inner = pb_begin(w, FTRACE_GENERIC);
	add_text(p, w, 1, ev->name);
	for (i = 0; i < ev->nargs; i++) {
		const struct ev_arg *arg = &ev->args[i];

		field = pb_begin(w, 2);
		add_text(p, w, 1, arg->key);
		if (arg->type == EV_ARG_NAME)
			add_text(p, w, 3, arg->name);
		else
			pb_u64(w, arg->type == EV_ARG_I64 ? 4 : 5, arg->u64);
		pb_end(w, field);
	}
	pb_end(w, inner);
	pb_end(w, outer);
	return p->out.failed;
}

/* A task is on its CPU without a switch that says so; Perfetto knows of no task there before. */
static void first_switch(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns)
{
	struct pb_writer *w = &cpu->events;
	size_t outer = begin_event(p, cpu, number, t_ns, 0), inner;

	inner = pb_begin(w, FTRACE_SWITCH);
	add_text(p, w, 1, cpu->idle);
	pb_u64(w, 2, 0);
	pb_u64(w, 3, 120);
	pb_u64(w, 4, 0);
	add_text(p, w, 5, cpu->comm);
	pb_u64(w, 6, (uint64_t)cpu->pid);
	pb_u64(w, 7, 120);
	pb_end(w, inner);
	pb_end(w, outer);
}

/* ---- CPUs ---------------------------------------------------------------------------------------------------------------- */

static struct pcpu *pcpu_get(struct perfetto *p, int32_t number)
{
	uint32_t room = ((uint32_t)number | 15) + 1;
	struct pcpu **more;
	uint8_t *events;
	char idle[24];

	if ((uint32_t)number < p->cpu_room && p->cpus[number])
		return p->cpus[number];
	if ((uint32_t)number >= p->cpu_room) {
		more = realloc(p->cpus, room * sizeof(*more));
		if (!more)
			goto no_memory;
		memset(more + p->cpu_room, 0, (room - p->cpu_room) * sizeof(*more));
		p->cpus = more;
		p->cpu_room = room;
	}
	p->cpus[number] = calloc(1, sizeof(**p->cpus));
	events = malloc(EVENT_BYTES);
	if (!p->cpus[number] || !events) {
		free(p->cpus[number]);
		p->cpus[number] = NULL;
		free(events);
		goto no_memory;
	}
	snprintf(idle, sizeof(idle), "swapper/%d", number);
	p->cpus[number]->idle = ev_namez(p->base.view->session, idle);
	p->cpus[number]->pid = -1;
	p->cpus[number]->batch = 1;
	pb_init(&p->cpus[number]->events, events, EVENT_BYTES);
	return p->cpus[number];
no_memory:
	p->out.failed = -ENOMEM;
	return NULL;
}

static void add_switch(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns, int32_t pid, int32_t prio,
		       uint32_t state, uint32_t comm)
{
	if (cpu->sw.n == BATCH)
		flush_cpu(p, cpu, number);
	add_compact(cpu, &cpu->sw, t_ns, pid, prio, (int32_t)state, comm);
}

/* What goes on there is unknown from @t_ns on: the task leaves. */
static void cut(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns)
{
	while (cpu->depth) {
		const struct irq_open *irq = &cpu->irqs[--cpu->depth];
		size_t outer = begin_event(p, cpu, number, t_ns, cpu->pid > 0 ? cpu->pid : 0);
		size_t inner = pb_begin(&cpu->events, (uint32_t)irq->entry + 1); /* exits follow their entries */

		pb_u64(&cpu->events, 1, (uint64_t)irq->number);
		pb_end(&cpu->events, inner);
		pb_end(&cpu->events, outer);
	}
	if (cpu->pid > 0)
		add_switch(p, cpu, number, t_ns, 0, 120, STATE_IDLE, cpu->idle);
	cpu->pid = -1;
}

/* A task is on the CPU though no switch said so: seen in the middle. */
static void enter(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns, int32_t pid, uint32_t comm)
{
	cpu->pid = pid;
	cpu->comm = comm;
	if (!pid)
		return;
	if (cpu->chained)
		add_switch(p, cpu, number, t_ns, pid, 120, 0, comm);
	else
		first_switch(p, cpu, number, t_ns);
	cpu->chained = true;
}

static int on_switch(struct perfetto *p, struct pcpu *cpu, const struct event *ev)
{
	int32_t prev = (int32_t)ev->args[SWITCH_PREV_PID].i64, next = (int32_t)ev->args[SWITCH_NEXT_PID].i64;
	uint32_t state = state_bits(ev_text(p->base.view->session, ev->args[SWITCH_PREV_STATE].name));
	uint32_t number = (uint32_t)ev->track.cpu;

	if (cpu->chained && cpu->pid != prev)
		enter(p, cpu, number, ev->t_ns, prev, ev->args[SWITCH_PREV_COMM].name);
	if (cpu->chained)
		add_switch(p, cpu, number, ev->t_ns, next, (int32_t)ev->args[SWITCH_NEXT_PRIO].i64, state,
			   ev->args[SWITCH_NEXT_COMM].name);
	else
		known_event(p, cpu, ev, KNOWN_SWITCH);
	cpu->chained = true;
	cpu->pid = next;
	cpu->comm = ev->args[SWITCH_NEXT_COMM].name;
	return p->out.failed;
}

static int on_wakeup(struct perfetto *p, struct pcpu *cpu, const struct event *ev, enum ftrace_known known)
{
	if (known == KNOWN_WAKEUP_NEW || (known == KNOWN_WAKEUP && !p->wakings))
		return known_event(p, cpu, ev, known);
	if (known == KNOWN_WAKEUP)
		return 0;
	p->wakings = true;
	if (cpu->waking.n == BATCH)
		flush_cpu(p, cpu, (uint32_t)ev->track.cpu);
	add_compact(cpu, &cpu->waking, ev->t_ns, (int32_t)ev->args[WAKE_PID].i64, (int32_t)ev->args[WAKE_PRIO].i64,
		    (int32_t)ev->args[WAKE_CPU].i64, ev->args[WAKE_COMM].name);
	return p->out.failed;
}

/* Exits without their entries are left out, and entries that never end would hold their track open: the same rule as the
 * state machine's. */
static int on_irq(struct perfetto *p, struct pcpu *cpu, const struct event *ev, enum ftrace_known known)
{
	uint16_t entry = (uint16_t)(known == KNOWN_IRQ_ENTRY || known == KNOWN_IRQ_EXIT ? 36 : 24);
	int64_t number = ev->args[0].i64;

	if (ev->phase == EV_BEGIN) {
		if (cpu->depth == IRQ_DEPTH)
			return 0;
		cpu->irqs[cpu->depth++] = (struct irq_open){ entry, number };
	} else if (ev->phase == EV_END) {
		if (!cpu->depth || cpu->irqs[cpu->depth - 1].entry != entry ||
		    cpu->irqs[cpu->depth - 1].number != number)
			return 0;
		cpu->depth--;
	}
	return known_event(p, cpu, ev, known);
}

static enum ftrace_known known_of(const struct perfetto *p, const struct event *ev)
{
	int i;

	if (ev->kind == EV_OTHER && ev->name != p->keys.name[KNOWN_STAT_RUNTIME])
		return KNOWN_NONE;
	for (i = KNOWN_TASK_COMM; i < KNOWN_COUNT; i++)
		if (p->keys.name[i] == ev->name)
			return (enum ftrace_known)i;
	return KNOWN_NONE;
}

static int dispatch(struct perfetto *p, struct pcpu *cpu, const struct event *ev)
{
	enum ftrace_known known = known_of(p, ev);

	switch (known) {
	case KNOWN_SWITCH:
		return ev->nargs > SWITCH_NEXT_PRIO ? on_switch(p, cpu, ev) : 0;
	case KNOWN_WAKING:
	case KNOWN_WAKEUP:
	case KNOWN_WAKEUP_NEW:
		return ev->nargs > WAKE_CPU ? on_wakeup(p, cpu, ev, known) : 0;
	case KNOWN_IRQ_ENTRY:
	case KNOWN_IRQ_EXIT:
	case KNOWN_SOFTIRQ_ENTRY:
	case KNOWN_SOFTIRQ_EXIT:
		return ev->nargs ? on_irq(p, cpu, ev, known) : 0;
	case KNOWN_STAT_RUNTIME: /* switches say the same, exactly */
	case KNOWN_FUTEX_ENTER: /* slices */
	case KNOWN_FUTEX_EXIT:
		return 0;
	default:
		return event_rows[known].number ? known_event(p, cpu, ev, known) : other_event(p, cpu, ev);
	}
}

static bool grow_tasks(struct perfetto *p)
{
	uint32_t room = p->task_room ? 2 * p->task_room : 1024, i, at;
	struct ptask *fresh = calloc(room, sizeof(*fresh));

	if (!fresh) {
		p->out.failed = -ENOMEM;
		return false;
	}
	for (i = 0; i < p->task_room; i++) {
		if (!p->tasks[i].tid)
			continue;
		for (at = (uint32_t)p->tasks[i].tid * 2654435761u; fresh[at & (room - 1)].tid; at++)
			;
		fresh[at & (room - 1)] = p->tasks[i];
	}
	free(p->tasks);
	p->tasks = fresh;
	p->task_room = room;
	return true;
}

static struct ptask *task_slot(struct perfetto *p, int32_t tid)
{
	uint32_t at;

	if (2 * p->task_count >= p->task_room && !grow_tasks(p))
		return NULL;
	for (at = (uint32_t)tid * 2654435761u; p->tasks[at & (p->task_room - 1)].tid; at++)
		if (p->tasks[at & (p->task_room - 1)].tid == tid)
			break;
	return &p->tasks[at & (p->task_room - 1)];
}

/* Which process a thread belongs to: the tgid column of text. */
static void note_task(struct perfetto *p, int32_t tid, int32_t tgid, uint32_t comm)
{
	struct ptask *task = tid > 0 && tgid > 0 ? task_slot(p, tid) : NULL;

	if (!task)
		return;
	p->task_count += !task->tid;
	task->tid = tid;
	task->tgid = tgid;
	if (comm)
		task->comm = comm;
}

static int perfetto_event(struct fsink *sink, const struct event *ev)
{
	struct perfetto *p = (struct perfetto *)sink;
	struct pcpu *cpu;

	if (ev->name == p->keys.name[KNOWN_TASK_COMM]) {
		note_task(p, ev->track.tid, ev->track.pid, ev->nargs ? ev->args[TASK_COMM_COMM].name : 0);
		return p->out.failed;
	}
	if (ev->track.cpu < 0)
		return 0;
	if (ev->track.cpu >= MAX_CPUS) {
		p->many_cpus = true;
		return 0;
	}
	cpu = pcpu_get(p, ev->track.cpu);
	if (!cpu)
		return p->out.failed;
	if (ev->kind == EV_LOST) {
		cut(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns);
		flush_cpu(p, cpu, (uint32_t)ev->track.cpu);
		cpu->lost = true;
		cpu->chained = false;
		cpu->lost_events += ev->nargs ? ev->args[0].u64 : 0;
		return p->out.failed;
	}
	if (cpu->pid < 0 && ev->track.tid >= 0 && ev->kind != EV_SCHED_SWITCH)
		enter(p, cpu, (uint32_t)ev->track.cpu, ev->t_ns, ev->track.tid,
		      sched_state_comm(sink->view->machine, ev->track.tid));
	return dispatch(p, cpu, ev);
}

/* ---- slices ------------------------------------------------------------------------------------------------------------- */

static int futex_row(struct perfetto *p, const struct frow *row)
{
	struct ftrack *track = &p->base.view->tracks[row->track];
	uint64_t uuid = UUID_FUTEX + row->track + 1;

	if (!p->futex_root)
		put_track(p, UUID_FUTEX, 0, "futex");
	p->futex_root = true;
	if (!track->futexes++) {
		char *name = fview_utf8(p->base.view, track);

		put_track(p, uuid, UUID_FUTEX, name ? name : "");
		free(name);
	}
	return put_slice(p, uuid, "futex", row->begin_ns, row->end_ns);
}

static int lock_row(struct perfetto *p, const struct frow *row)
{
	struct ftrack *track = &p->base.view->tracks[row->track];
	struct ftext name = frow_name(p->base.view, row);
	uint64_t uuid = UUID_FUTEX + row->track + 1;
	char text[64];

	if (!p->futex_root)
		put_track(p, UUID_FUTEX, 0, "mmap_lock");
	p->futex_root = true;
	if (!track->futexes++) {
		char *label = fview_utf8(p->base.view, track);

		put_track(p, uuid, UUID_FUTEX, label ? label : "");
		free(label);
	}
	snprintf(text, sizeof(text), "%.*s", (int)name.len, name.text);
	return put_slice(p, uuid, text, row->begin_ns, row->end_ns);
}

static int gap_row(struct perfetto *p, const struct frow *row)
{
	struct ftrack *track = &p->base.view->tracks[row->track];
	uint64_t uuid = UUID_LOST + row->track + 1;
	struct pcpu *cpu = row->cpu < MAX_CPUS ? pcpu_get(p, row->cpu) : NULL;

	if (!cpu)
		return p->out.failed;
	cut(p, cpu, (uint32_t)row->cpu, row->begin_ns);
	if (!p->lost_root)
		put_track(p, UUID_LOST, 0, "lost events");
	p->lost_root = true;
	if (!track->futexes++)
		put_track(p, uuid, UUID_LOST, track->label.text);
	return put_slice(p, uuid, "lost events", row->begin_ns, row->end_ns);
}

static int perfetto_row(struct fsink *sink, const struct frow *row)
{
	struct perfetto *p = (struct perfetto *)sink;

	switch (row->kind) {
	case ROW_FUTEX:
		return futex_row(p, row);
	case ROW_GAP:
		return gap_row(p, row);
	case ROW_LOCK_WAIT:
	case ROW_LOCK_HOLD:
		return lock_row(p, row);
	default:
		return 0; /* Perfetto makes them from the events */
	}
}

/* ---- begin and end ------------------------------------------------------------------------------------------------------ */

static void put_clock(struct pb_writer *w, uint32_t id, uint64_t t_ns)
{
	size_t mark = pb_begin(w, 1);

	pb_u64(w, 1, id);
	pb_u64(w, 2, t_ns);
	pb_end(w, mark);
}

/* The trace's clock, and where it is known the wall clock, which is then the one of the whole trace. */
static void put_clocks(struct perfetto *p)
{
	const struct fview *view = p->base.view;
	const struct ftrace_axis *axis = &view->options->axis;
	size_t i = 0;

	do {
		struct pb_writer w = new_packet(p);
		size_t mark = pb_begin(&w, PACKET_CLOCKS);

		put_clock(&w, p->clock_id, axis->points ? axis->at[i].trace_ns : view->first_ns);
		if (axis->points)
			put_clock(&w, CLOCK_REALTIME_ID, axis->at[i].wall_ns);
		pb_u64(&w, 2, axis->points ? CLOCK_REALTIME_ID : p->clock_id);
		pb_end(&w, mark);
		put_packet(p, &w);
	} while (++i < axis->points);
}

/* prev_state is written with the bits of kernels from 4.14 on; without a release Perfetto would take it for older. */
static void put_system(struct perfetto *p)
{
	const char *release = p->base.view->release ? p->base.view->release : "4.14.0";
	struct pb_writer w = new_packet(p);
	size_t mark = pb_begin(&w, PACKET_SYSTEM_INFO), inner = pb_begin(&w, 1);

	pb_bytes(&w, 1, "Linux", 5);
	pb_bytes(&w, 3, release, strlen(release));
	pb_end(&w, inner);
	pb_end(&w, mark);
	put_packet(p, &w);
}

static void put_thread(struct perfetto *p, int32_t tid, int32_t tgid, int32_t inside, const char *name, size_t len,
		       bool process)
{
	struct pb_writer w = new_packet(p);
	size_t mark, inner;

	pb_u64(&w, PACKET_TIMESTAMP, p->base.view->first_ns);
	mark = pb_begin(&w, PACKET_PROCESS_TREE);
	inner = pb_begin(&w, process ? 1 : 2);
	pb_u64(&w, 1, (uint64_t)tid);
	if (process) {
		pb_u64(&w, 2, 0);
		pb_bytes(&w, 3, name, len);
	} else {
		pb_bytes(&w, 2, name, len);
		pb_u64(&w, 3, (uint64_t)tgid);
	}
	if (inside != tid)
		pb_u64(&w, process ? 6 : 4, (uint64_t)inside);
	pb_end(&w, inner);
	pb_end(&w, mark);
	pb_u64(&w, PACKET_CLOCK_ID, p->clock_id);
	put_packet(p, &w);
}

/* Processes first: a thread without its process would be refused. */
static void put_tree(struct perfetto *p)
{
	const struct pid_map *pids = p->base.view->options->pids;
	struct ev_session *session = p->base.view->session;
	size_t i;

	for (i = 0; pids && i < pid_map_count(pids); i++) {
		const struct pid_entry *entry = pid_map_entry(pids, i);

		note_task(p, entry->host_pid, entry->tgid, ev_namez(session, entry->name));
	}
	for (int process = 1; process >= 0; process--)
		for (i = 0; i < p->task_room; i++) {
			const struct ptask *task = &p->tasks[i], *leader;
			const struct pid_entry *entry = pids && task->tid ? pid_map_find(pids, task->tid) : NULL;
			uint32_t comm = task->comm;
			char name[TEXT_MOST];

			if (!task->tid)
				continue;
			leader = task_slot(p, task->tgid);
			if (!leader || p->out.failed)
				return;
			if (process && leader->tid && leader != task)
				continue; /* the leader's own entry names the process */
			if (!comm)
				comm = sched_state_comm(p->base.view->machine, task->tid);
			snprintf(name, sizeof(name), "%.100s", comm ? ev_text(session, comm) : "<...>");
			if (process)
				put_thread(p, task->tgid, task->tgid,
					   task->tgid == task->tid && entry ? entry->pid : task->tgid, name,
					   strlen(name), true);
			else
				put_thread(p, task->tid, task->tgid, entry ? entry->pid : task->tid, name, strlen(name),
					   false);
		}
}

static void put_stats(struct perfetto *p)
{
	struct pb_writer w = new_packet(p);
	size_t mark = pb_begin(&w, PACKET_FTRACE_STATS), inner;
	bool any = false;
	uint32_t i;

	pb_u64(&w, 1, 2); /* at the end */
	for (i = 0; i < p->cpu_room; i++) {
		if (!p->cpus[i] || !p->cpus[i]->lost_events)
			continue;
		any = true;
		inner = pb_begin(&w, 2);
		pb_u64(&w, 1, i);
		pb_u64(&w, 3, p->cpus[i]->lost_events);
		pb_end(&w, inner);
	}
	pb_end(&w, mark);
	if (any)
		put_packet(p, &w);
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
	put_clocks(p);
	put_system(p);
	return &p->base;
fail:
	if (p)
		perfetto_free(p);
	return NULL;
}

static int perfetto_finish(struct fsink *sink, uint64_t *bytes, struct st_err *err)
{
	struct perfetto *p = (struct perfetto *)sink;
	uint32_t i;
	int ret;

	for (i = 0; i < p->cpu_room; i++)
		if (p->cpus[i])
			flush_cpu(p, p->cpus[i], i);
	put_tree(p);
	put_stats(p);
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
