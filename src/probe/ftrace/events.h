/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which events are recorded: the groups of the documents (sched, irq, futex) and what the user names, as far as this
 * kernel has them. Used by all back ends.
 */
#ifndef PROBE_FTRACE_EVENTS_H
#define PROBE_FTRACE_EVENTS_H

#include "base/err.h"
#include "probe/ftrace/note.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_list {
	char **names; /* "sched/sched_switch", each once, in the order asked for */
	size_t count, room;
};

/**
 * events_choose - the events of groups and of names, as far as the kernel has them
 * @events: directory `events` of tracefs
 * @groups: SYSTRACE_FTRACE_* bits; missing ones of a group are skipped with one note
 * @names: NULL-terminated "group/name", "group:name" or "group"; one that does not exist is skipped with a note
 *
 * Return: 0, -ENOENT with @err if none is left, -EINVAL a name with `..` or the like, -ENOMEM; events_free() in any case.
 */
int events_choose(struct event_list *list, int events, uint32_t groups, const char *const *names,
		  const struct note *note, struct st_err *err);

/**
 * events_named - all events of a list that must exist
 * @text: names separated by commas: "group/event", "group" (all of it), with `*` and `?` in either part
 *
 * Return: 0, -ENOENT with @err naming what the kernel lacks and the nearest that it has, -EINVAL, -ENOMEM; events_free()
 * in any case.
 */
int events_named(struct event_list *list, int events, const char *text, struct st_err *err);

/** events_add - one more, unless it is there. Return: 0 or -ENOMEM. */
int events_add(struct event_list *list, const char *name);

void events_free(struct event_list *list);

#endif
