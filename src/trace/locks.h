/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recordings of locks and of the interpreter's lock as events: how the slices of Mutex and GIL files, which are Chrome
 * traces as they stand, turn into the one event model. For their reader and for whoever sums them up.
 */
#ifndef TRACE_LOCKS_H
#define TRACE_LOCKS_H

#include "trace/event.h"

/* names of EV_GIL events */
#define GIL_NAME_HOLD "GIL hold"
#define GIL_NAME_WAIT "GIL wait"
#define GIL_NAME_FORCED "GIL forced drop"

/* keys of arguments; those of EV_LOCK in the order of the first two, the others only where they say something */
#define LOCK_KEY_LOCK "lock" /* name: address */
#define LOCK_KEY_CALLER "caller" /* name: address */
#define LOCK_KEY_OWNER "owner_tid"
#define LOCK_KEY_ERRNO "errno"
#define LOCK_KEY_FAILURES "failures"
#define LOCK_KEY_CALLS "calls" /* of EV_COUNTER: how often the function that is its name was called in the capture */
#define GIL_KEY_FORCED "forced" /* of a hold: dropped after a waiting thread had asked for it */
#define GIL_KEY_TIMEOUTS "timeouts"
#define GIL_KEY_INTERPRETER "interpreter" /* absent = the main one */

/** locks_arg - argument of an event by the id of its key; NULL = it has none */
static inline const struct ev_arg *locks_arg(const struct event *ev, uint32_t key)
{
	uint8_t i;

	for (i = 0; i < ev->nargs; i++)
		if (ev->args[i].key == key)
			return &ev->args[i];
	return NULL;
}

#endif
