/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a CPU did, as bundles of ftrace events: switches and wakings in compact form, the others one by one; see
 * ftrace_perfetto_impl.h.
 */
#include "convert/ftrace_perfetto_impl.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

#define EVENT_BYTES (64u << 10) /* other events of a CPU in one bundle */
#define EVENT_MOST 16384 /* of one of them */
#define STATE_IDLE 0x80

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
		pfpacket_text(p, w, COMPACT_TEXTS, cpu->texts[i]);
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

int pfcpu_flush(struct perfetto *p, struct pcpu *cpu, uint32_t number)
{
	struct pb_writer w = pfpacket_new(p);
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
	return pfpacket_put(p, &w);
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
		pfcpu_flush(p, cpu, number);
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
			pfpacket_text(p, &cpu->events, field->field, ev->args[field->arg].name);
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
	pfpacket_text(p, w, 1, ev->name);
	for (i = 0; i < ev->nargs; i++) {
		const struct ev_arg *arg = &ev->args[i];

		field = pb_begin(w, 2);
		pfpacket_text(p, w, 1, arg->key);
		if (arg->type == EV_ARG_NAME)
			pfpacket_text(p, w, 3, arg->name);
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
	pfpacket_text(p, w, 1, cpu->idle);
	pb_u64(w, 2, 0);
	pb_u64(w, 3, 120);
	pb_u64(w, 4, 0);
	pfpacket_text(p, w, 5, cpu->comm);
	pb_u64(w, 6, (uint64_t)cpu->pid);
	pb_u64(w, 7, 120);
	pb_end(w, inner);
	pb_end(w, outer);
}

/* ---- CPUs ---------------------------------------------------------------------------------------------------------------- */

struct pcpu *pfcpu_get(struct perfetto *p, int32_t number)
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
		pfcpu_flush(p, cpu, number);
	add_compact(cpu, &cpu->sw, t_ns, pid, prio, (int32_t)state, comm);
}

/* What goes on there is unknown from @t_ns on: the task leaves. */
void pfcpu_cut(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns)
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
void pfcpu_enter(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns, int32_t pid, uint32_t comm)
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
		pfcpu_enter(p, cpu, number, ev->t_ns, prev, ev->args[SWITCH_PREV_COMM].name);
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
		pfcpu_flush(p, cpu, (uint32_t)ev->track.cpu);
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

int pfcpu_event(struct perfetto *p, struct pcpu *cpu, const struct event *ev)
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
