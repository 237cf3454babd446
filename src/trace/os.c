/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Entries of os_trace files as events; see os.h. */
#include "trace/os.h"

#include "trace/session.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* the kernel's task states (include/linux/sched.h) */
#define STATE_SLEEPING 1u
#define STATE_UNINTERRUPTIBLE 2u
#define STATE_STOPPED (4u | 8u)
#define STATE_DEAD (0x10u | 0x20u | 0x80u)
#define STATE_BITS 0xffu /* above are modifiers: loads not, freezable, ... */

int os_state_init(struct os_state *state, struct ev_reader *reader)
{
	static const char *const vectors[10] = { "HI",	     "TIMER",	"NET_TX", "NET_RX",  "BLOCK",
						 "IRQ_POLL", "TASKLET", "SCHED",  "HRTIMER", "RCU" };
	struct ev_session *session = reader->session;
	char text[32];

	*state = (struct os_state){
		.reader = reader,
		.key_thread = ev_namez(session, "thread"),
		.key_waker = ev_namez(session, OS_KEY_WOKEN_BY),
		.key_taker = ev_namez(session, OS_KEY_TAKEN_BY),
		.key_from_cpu = ev_namez(session, "from CPU"),
		.key_migrations = ev_namez(session, "migrations"),
		.key_rundelay = ev_namez(session, "run_delay_ns"),
		.key_delay = ev_namez(session, OS_KEY_DELAY),
		.key_irq = ev_namez(session, "irq_ns"),
		.key_softirq = ev_namez(session, "softirq_ns"),
		.key_address = ev_namez(session, "address"),
		.key_file = ev_namez(session, "file"),
		.key_flags = ev_namez(session, "flags"),
		.key_state = ev_namez(session, "state"),
		.running = ev_namez(session, "Running"),
		.preempted = ev_namez(session, "Preempted"),
		.runnable = ev_namez(session, "Runnable"),
		.sleeping = ev_namez(session, "Sleeping"),
		.uninterruptible = ev_namez(session, "Uninterruptible sleep"),
		.stopped = ev_namez(session, "Stopped"),
		.ended = ev_namez(session, "Ended"),
		.fault = ev_namez(session, "page fault"),
		.major_fault = ev_namez(session, "page fault (major)"),
		.others = { [OS_SWAP_PAGE] = ev_namez(session, "swap"),
			    [OS_COMPACTION] = ev_namez(session, "compaction"),
			    [OS_VMSCAN] = ev_namez(session, "reclaim"),
			    [OS_WAKEUP] = ev_namez(session, "wake-up"),
			    [OS_MIGRATE] = ev_namez(session, "migration"),
			    [OS_OOM_KILL] = ev_namez(session, "OOM kill") },
	};
	for (unsigned int i = 0; i < 10; i++) {
		snprintf(text, sizeof(text), "softirq %s", vectors[i]);
		state->softirqs[i] = ev_namez(session, text);
	}
	return state->softirqs[9] ? 0 : -ENOMEM;
}

/* "hog 1234"; 0 when nobody is told. The same few come again and again. */
static uint32_t who_name(struct os_state *state, struct msg_text comm, uint32_t id)
{
	const char *at = comm.bytes ? comm.at : "";
	size_t bytes = comm.bytes < 16 ? comm.bytes : 15;
	struct os_who *who = &state->who[id % 256];
	char text[40];

	if (!id && !bytes)
		return 0;
	if (who->name && who->id == id && memcmp(who->comm, at, bytes) == 0 && !who->comm[bytes])
		return who->name;
	*who = (struct os_who){ .id = id };
	memcpy(who->comm, at, bytes);
	snprintf(text, sizeof(text), id ? "%s %u" : "%s", who->comm, id);
	return who->name = ev_namez(state->reader->session, text);
}

static uint32_t text_name(struct os_state *state, struct msg_text text)
{
	return text.bytes ? ev_name(state->reader->session, text.at, text.bytes) : 0;
}

static struct ev_arg *add(struct event *ev, uint32_t key, enum ev_arg_type type)
{
	struct ev_arg *arg = &ev->args[ev->nargs++];

	*arg = (struct ev_arg){ .key = key, .type = type };
	return arg;
}

static void add_number(struct event *ev, uint32_t key, uint64_t value)
{
	if (value)
		add(ev, key, EV_ARG_U64)->u64 = value;
}

static void event_base(struct os_state *state, const struct msg_os *entry, struct event *ev, enum ev_kind kind)
{
	const struct ev_origin *origin = &state->reader->origin;
	int32_t pid = entry->pid ? (int32_t)entry->pid : origin->pid ? (int32_t)origin->pid : (int32_t)entry->key;

	/* not the whole struct: args beyond nargs are never read */
	memset(ev, 0, offsetof(struct event, args));
	ev->kind = (uint16_t)kind;
	ev->t_ns = entry->start_ns ? entry->start_ns : entry->start_us * 1000;
	ev->dur_ns = entry->start_ns ? entry->dur_ns : entry->dur * 1000;
	ev->clock = entry->start_ns ? EV_CLOCK_MONO : EV_CLOCK_REAL; /* published fields only: wall clock */
	ev->rank = origin->known ? origin->rank : (int32_t)entry->rank;
	ev->source = state->reader->source;
	ev->step = entry->step;
	ev->track =
		(struct ev_track){ origin->host, pid, (int32_t)entry->key, entry->cpu ? (int32_t)entry->cpu - 1 : -1,
				   -1,		 -1 };
}

static uint32_t sleep_name(const struct os_state *state, uint32_t bits)
{
	bits &= STATE_BITS;
	if (bits & STATE_DEAD)
		return state->ended;
	if (bits & STATE_UNINTERRUPTIBLE)
		return state->uninterruptible;
	return bits & STATE_STOPPED ? state->stopped : state->sleeping;
}

static uint8_t cut_of(const struct msg_os *entry, uint32_t open)
{
	return (entry->flags & OS_BEGIN_UNSEEN ? EV_CUT_BEGIN : 0) | (entry->flags & open ? EV_CUT_END : 0);
}

/* Asleep, waiting, running. Files with the published fields only say no more than that it was off the CPU. */
static unsigned int cycle_events(struct os_state *state, const struct msg_os *entry, struct event *ev)
{
	bool asleep = entry->state & STATE_BITS || entry->flags & OS_BEGIN_UNSEEN ||
		      (!entry->start_ns && !entry->delay_ns);
	struct event off, *to = ev;
	uint64_t wait_ns;

	event_base(state, entry, &off, EV_OFFCPU);
	wait_ns = asleep ? entry->delay_ns < off.dur_ns ? entry->delay_ns : off.dur_ns : off.dur_ns;
	if (off.dur_ns > wait_ns) {
		*to = off;
		to->dur_ns = off.dur_ns - wait_ns;
		to->name = sleep_name(state, entry->state);
		to->track.cpu = -1;
		to->quality = cut_of(entry, wait_ns ? 0 : OS_OFF_OPEN);
		add(to, state->key_waker, EV_ARG_NAME)->name = who_name(state, entry->waker_comm, entry->waker_pid);
		if (!to->args[0].name)
			to->nargs = 0;
		to++;
	}
	if (wait_ns) {
		uint32_t waker = who_name(state, entry->waker_comm, entry->waker_pid);
		uint32_t taker = asleep ? 0 : who_name(state, entry->nxt_comm, entry->nxt_pid);

		*to = off;
		to->t_ns = off.t_ns + off.dur_ns - wait_ns;
		to->dur_ns = wait_ns;
		to->name = entry->flags & OS_PREEMPTED ? state->preempted : state->runnable;
		if (entry->flags & OS_PREEMPTED && entry->from_cpu)
			to->track.cpu = (int32_t)entry->from_cpu - 1; /* where it was taken from */
		to->quality = cut_of(entry, OS_OFF_OPEN);
		if (asleep)
			to->quality &= (uint8_t)~EV_CUT_BEGIN;
		add(to, state->key_taker, EV_ARG_NAME)->name = taker;
		add(to, state->key_delay, EV_ARG_U64)->u64 = entry->delay_ns;
		if (waker)
			add(to, state->key_waker, EV_ARG_NAME)->name = waker;
		add_number(to, state->key_migrations, entry->migrations);
		to++;
	}
	if (entry->on_ns) {
		*to = off;
		to->kind = EV_ONCPU;
		to->t_ns = off.t_ns + off.dur_ns;
		to->dur_ns = entry->on_ns;
		to->name = state->running;
		to->quality = cut_of(entry, OS_ON_OPEN);
		if (off.dur_ns)
			to->quality &= (uint8_t)~EV_CUT_BEGIN;
		add(to, state->key_thread, EV_ARG_NAME)->name = who_name(state, entry->comm, entry->key);
		if (entry->from_cpu)
			add(to, state->key_from_cpu, EV_ARG_U64)->u64 = entry->from_cpu - 1;
		add_number(to, state->key_irq, entry->irq_ns);
		add_number(to, state->key_softirq, entry->softirq_ns);
		add_number(to, state->key_rundelay, entry->rundelay);
		to++;
	}
	return (unsigned int)(to - ev);
}

static uint32_t irq_name(struct os_state *state, const struct msg_os *entry)
{
	uint32_t number = entry->number ? entry->number - 1 : 0;
	char text[64];

	if (entry->OS_event_type == OS_SOFTIRQ && number < 10)
		return state->softirqs[number];
	snprintf(text, sizeof(text), "irq %u %.*s", number, (int)(entry->name.bytes < 32 ? entry->name.bytes : 32),
		 entry->name.at ? entry->name.at : "");
	return ev_namez(state->reader->session, text);
}

unsigned int os_events(struct os_state *state, const struct msg_os *entry, struct event *ev)
{
	switch (entry->OS_event_type) {
	case OS_OFFCPU:
		return cycle_events(state, entry, ev);
	case OS_TAKER:
		event_base(state, entry, ev, EV_TAKER);
		ev->name = text_name(state, entry->comm);
		if (state->reader->origin.pid)
			ev->track.pid =
				(int32_t)state->reader->origin.pid; /* told to this process; its own is in the name */
		add(ev, state->key_thread, EV_ARG_NAME)->name = who_name(state, entry->comm, entry->key);
		return 1;
	case OS_ONCPU:
		event_base(state, entry, ev, EV_ONCPU);
		ev->name = state->running;
		add(ev, state->key_thread, EV_ARG_NAME)->name = who_name(state, entry->comm, entry->key);
		return 1;
	case OS_IRQ:
	case OS_SOFTIRQ:
		event_base(state, entry, ev, entry->OS_event_type == OS_IRQ ? EV_IRQ : EV_SOFTIRQ);
		ev->name = irq_name(state, entry);
		return 1;
	case OS_PAGE_FAULT:
		event_base(state, entry, ev, EV_FAULT);
		ev->name = entry->flags & OS_MAJOR ? state->major_fault : state->fault;
		break;
	default:
		event_base(state, entry, ev, EV_OTHER);
		ev->name = entry->OS_event_type < OS_EVENT_COUNT ? state->others[entry->OS_event_type] : 0;
		break;
	}
	if (entry->address)
		add(ev, state->key_address, EV_ARG_PTR)->u64 = entry->address;
	if (entry->name.bytes)
		add(ev, state->key_file, EV_ARG_NAME)->name = text_name(state, entry->name);
	return 1;
}
