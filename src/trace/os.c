/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Entries of os_trace files as events; see os.h. */
#include "trace/os.h"

#include "trace/session.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

int os_state_init(struct os_state *state, struct ev_reader *reader)
{
	static const char *const keys[OS_ARGS] = { "delay_ns", "on_ns", "next", "waker", "irq_ns" };
	static const char *const names[OS_EVENT_COUNT] = {
		"page fault", "swap", "compaction", "reclaim", "off CPU",  "on CPU",
		"wake-up",    "move", "irq",	    "softirq", "OOM kill", "other task",
	};
	struct ev_session *session = reader->session;
	size_t i;

	state->reader = reader;
	for (i = 0; i < OS_ARGS; i++)
		state->keys[i] = ev_namez(session, keys[i]);
	for (i = 0; i < OS_EVENT_COUNT; i++)
		state->names[i] = ev_namez(session, names[i]);
	state->unknown = ev_namez(session, "(unknown)");
	return state->unknown ? 0 : -ENOMEM;
}

static uint16_t kind_of(uint32_t type)
{
	switch (type) {
	case OS_OFFCPU:
		return EV_OFFCPU;
	case OS_IRQ:
		return EV_IRQ;
	case OS_SOFTIRQ:
		return EV_SOFTIRQ;
	case OS_PAGE_FAULT:
		return EV_FAULT;
	default:
		return EV_OTHER;
	}
}

static void put(const struct os_state *state, struct event *ev, enum os_arg arg, uint64_t value)
{
	ev->args[arg] = (struct ev_arg){ .key = state->keys[arg], .type = EV_ARG_U64, .u64 = value };
}

static void put_name(const struct os_state *state, struct event *ev, enum os_arg arg, struct msg_text text)
{
	uint32_t name = text.bytes ? ev_name(state->reader->session, text.at, text.bytes) : 0;

	ev->args[arg] = (struct ev_arg){ .key = state->keys[arg], .type = EV_ARG_NAME, .name = name };
}

void os_event(struct os_state *state, const struct msg_os *entry, struct event *ev)
{
	const struct ev_origin *origin = &state->reader->origin;
	struct ev_session *session = state->reader->session;
	uint32_t type = entry->OS_event_type;

	/* not the whole struct: args beyond nargs are never read */
	memset(ev, 0, offsetof(struct event, args));
	ev->kind = kind_of(type);
	ev->t_ns = entry->start_ns ? entry->start_ns : entry->start_us * 1000;
	ev->dur_ns = entry->start_ns ? entry->dur_ns : entry->dur * 1000;
	ev->clock = entry->start_ns ? EV_CLOCK_MONO : EV_CLOCK_REAL; /* published fields only: wall clock */
	ev->rank = origin->known ? origin->rank : (int32_t)entry->rank;
	ev->source = state->reader->source;
	ev->step = entry->step;
	ev->quality = (entry->pid ? EV_WORKER : 0) | (entry->flags & OS_BEGIN_UNSEEN ? EV_CUT_BEGIN : 0) |
		      (entry->flags & OS_OFF_OPEN ? EV_CUT_END : 0);
	ev->track = (struct ev_track){ origin->host,
				       entry->pid    ? (int32_t)entry->pid
				       : origin->pid ? (int32_t)origin->pid
						     : -1,
				       (int32_t)entry->key,
				       entry->cpu ? (int32_t)entry->cpu - 1 : -1,
				       -1,
				       -1 };
	ev->name = type < OS_EVENT_COUNT ? state->names[type] : state->unknown;
	if (type != OS_OFFCPU) { /* who or what it was */
		struct msg_text text = entry->name.bytes       ? entry->name
				       : entry->nxt_comm.bytes ? entry->nxt_comm
							       : entry->comm;

		if (text.bytes)
			ev->name = ev_name(session, text.at, text.bytes);
		return;
	}
	put(state, ev, OS_ARG_DELAY, entry->delay_ns);
	put(state, ev, OS_ARG_ON, entry->on_ns);
	put_name(state, ev, OS_ARG_NEXT, entry->nxt_comm);
	put_name(state, ev, OS_ARG_WAKER, entry->waker_comm);
	put(state, ev, OS_ARG_IRQ, entry->irq_ns + entry->softirq_ns);
	ev->nargs = OS_ARGS;
}
