/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Native and Python frames of one thread, joined. Used by stack.c for its own thread and by threads.c for others. */
#ifndef AGENT_STACK_WALK_H
#define AGENT_STACK_WALK_H

#include "agent/stack/pyframes.h"
#include "agent/stack/stack.h"
#include "agent/stack/unwind.h"

/**
 * stack_walk - from where @u stands outwards
 * @python: its Python frames; NULL = none
 *
 * Python frames stand where the interpreter loop runs them; its own native frames outside of the innermost run are left
 * out. What is left of either kind at the end of the other one is kept. Context: hook.
 */
void stack_walk(struct unwind *u, struct pyframes_walk *python, struct stack *stack);

#endif
