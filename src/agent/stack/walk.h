/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Native and Python frames of one thread, joined. Used by stack.c for its own thread, by show.c for others. */
#ifndef AGENT_STACK_WALK_H
#define AGENT_STACK_WALK_H

#include "agent/stack/pyframes.h"
#include "agent/stack/stack.h"
#include "agent/stack/unwind.h"

/** struct stack_out - where the frames go; all return false when there is room for no more */
struct stack_out {
	bool (*native)(void *arg, const struct unwind *u);
	/* takes one more frame off @walk; *@entry as of pyframes_next(). -1 = there is none */
	int (*python)(void *arg, struct pyframes_walk *walk, bool *entry);
};

/**
 * stack_join - frames from where @u stands outwards
 * @python: the thread's Python frames; NULL = none
 *
 * Python frames stand where the interpreter loop runs them; its own native frames outside of the innermost run are left
 * out. What is left of either kind at the end of the other one is kept. Context: hook. Return: false = there was no room
 * for all.
 */
bool stack_join(struct unwind *u, struct pyframes_walk *python, const struct stack_out *out, void *arg);

#endif
