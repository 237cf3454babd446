/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Entries of os_trace files as events, for the readers of those files and for whoever sums them up. One cycle off and on a
 * CPU becomes up to three events: asleep, waiting for a CPU, running. docs/formats/osprobe.md.
 */
#ifndef TRACE_OS_H
#define TRACE_OS_H

#include "trace/event.h"
#include "wire/messages.h"

#define OS_EVENTS_MAX 3 /* of one entry */
#define OS_KEY_TAKEN_BY "taken by"
#define OS_KEY_WOKEN_BY "woken by"
#define OS_KEY_DELAY "delay_ns"

/*
 * Arguments, in this order; later ones only where they say something.
 * EV_OFFCPU asleep: waker. EV_OFFCPU waiting: who ran instead ("hog 1234", 0 = not said), the kernel's delay_ns, the waker.
 * EV_ONCPU and EV_TAKER: name of the thread.
 */
enum os_arg { OS_ARG_WHO, OS_ARG_MORE };

/** struct os_state - of one file */
struct os_state {
	struct ev_reader *reader;
	uint32_t key_thread, key_waker, key_taker, key_from_cpu, key_migrations, key_delay, key_rundelay, key_irq,
		key_softirq, key_address, key_file, key_flags, key_state;
	/* names of what a thread does; os_names() */
	uint32_t running, preempted, runnable, sleeping, uninterruptible, stopped, ended;
	uint32_t fault, major_fault, others[OS_EVENT_COUNT];
	uint32_t softirqs[10];
	struct os_who { /* "comm id" made lately */
		char comm[16];
		uint32_t id, name;
	} who[256];
};

/** os_state_init - intern keys and names. Context: tool. Return: 0 or -ENOMEM. */
int os_state_init(struct os_state *state, struct ev_reader *reader);

/** os_events - an entry as events; texts are interned. Return: how many (0..OS_EVENTS_MAX). */
unsigned int os_events(struct os_state *state, const struct msg_os *entry, struct event *ev);

#endif
