/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Entries of the probe's os_trace files (docs/formats/os_trace.md) as events, for the reader of those files and for whoever sums
 * them up: spans off the CPU, what took a CPU, interrupts, page faults and reclaim. The keys of the arguments are fixed here.
 */
#ifndef TRACE_OS_H
#define TRACE_OS_H

#include "trace/event.h"
#include "wire/messages.h"

/* arguments of EV_OFFCPU (t_ns, dur_ns: off the CPU), in this order */
enum os_arg {
	OS_ARG_DELAY, /* ns of it that the thread could have run and did not */
	OS_ARG_ON, /* ns that it then ran */
	OS_ARG_NEXT, /* name: who ran instead */
	OS_ARG_WAKER, /* name */
	OS_ARG_IRQ, /* ns of interrupts while it then ran, soft ones among them */
	OS_ARGS
};

/** struct os_state - of one file */
struct os_state {
	struct ev_reader *reader;
	uint32_t keys[OS_ARGS], names[OS_EVENT_COUNT], unknown;
};

/** os_state_init - intern the keys. Context: tool. Return: 0 or -ENOMEM. */
int os_state_init(struct os_state *state, struct ev_reader *reader);

/** os_event - an entry as an event: EV_OFFCPU, EV_IRQ, EV_SOFTIRQ, EV_FAULT, else EV_OTHER; texts are interned */
void os_event(struct os_state *state, const struct msg_os *entry, struct event *ev);

#endif
