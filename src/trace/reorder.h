/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Puts events in order of time that come nearly so: trace_pipe hands out an event of one CPU a little after a later one of
 * another. The newest events are held back, at most REORDER_EVENTS of them and REORDER_NS long; in order, which is nearly
 * always, an event costs one copy. Used by read_ftrace_text.c.
 */
#ifndef TRACE_REORDER_H
#define TRACE_REORDER_H

#include "trace/event.h"

#define REORDER_NS 1000000u /* an event may come so much after a later one */
#define REORDER_EVENTS 512u /* power of 2 */

struct reorder {
	struct event ring[REORDER_EVENTS];
	uint32_t head, tail; /* ring[head % REORDER_EVENTS] is the oldest; tail - head are held */
	uint64_t last_out_ns;
	uint64_t moved; /* events that came after later ones, put in order */
	uint64_t late; /* so late that a later one was handed out already: they stand where they came */
};

/** reorder_room - may @count more events be put? */
static inline bool reorder_room(const struct reorder *r, uint32_t count)
{
	return REORDER_EVENTS - (r->tail - r->head) >= count;
}

/** reorder_next - where the next event is built; reorder_put() then takes it */
static inline struct event *reorder_next(struct reorder *r)
{
	return &r->ring[r->tail % REORDER_EVENTS];
}

/** reorder_put - take the event that was built. Events of the same time stay in the order in which they came. */
void reorder_put(struct reorder *r);

/**
 * reorder_take - hand out the oldest event
 * @all: also when later ones may still come before it
 *
 * Return: false when none may go yet.
 */
bool reorder_take(struct reorder *r, bool all, struct event *ev);

#endif
