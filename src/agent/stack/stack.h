/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Stacks for all plugins. A hook takes the stack of its own thread as 64-bit frames (wire/record.h: module and offset,
 * Python function and line, or a raw address) and turns it into an id; each distinct stack is put into the pool once, and
 * the file stacks/stacks_rank<r>_<pid>.json tells readers what the ids stand for (docs/formats/stacks.md).
 *
 * A plugin calls stack_start() in its start, then in its hooks stack_here(), or stack_capture() and stack_intern() where it
 * wants the frames first. Nothing is ever freed: a hook may still be inside when a plugin stops.
 */
#ifndef AGENT_STACK_STACK_H
#define AGENT_STACK_STACK_H

#include "base/err.h"
#include "wire/record.h"

#include <stdbool.h>
#include <stdint.h>

/** struct stack - one stack as captured */
struct stack {
	uint64_t frame[STACK_FRAMES_MAX]; /* innermost first */
	uint32_t count;
	uint32_t flags; /* STACK_CUT, STACK_GUESSED */
};

/**
 * stack_start - reserve what captures need, and warm the unwinder
 * @python: will Python frames be asked for? Where they cannot be had, captures are of native frames and @err says why
 *
 * Idempotent. Context: control thread. Return: 0 (also without Python frames: err->text is "" then or says why), -ENOMEM.
 */
int stack_start(bool python, struct st_err *err);

/**
 * stack_refresh - objects or an interpreter may have come
 * @generation: of got_generation()
 *
 * Context: systrace/hook, every 50 ms while hooks are in.
 */
void stack_refresh(uint64_t generation);

/**
 * stack_capture - the calling thread's stack
 * @python: interleave Python frames, in place of the interpreter's own
 *
 * Frames of this library are left out. Context: hook, also in a signal handler; no allocation, no lock, errno is kept.
 * Costs about 20 ns a frame once the code was seen (bench/bench_stack.c). Return: frames, 0 before stack_start() or when nothing could be had.
 */
uint32_t stack_capture(struct stack *stack, bool python);

/**
 * stack_intern - the id of a stack, for records
 *
 * Puts the stack's definition into the pool before it returns the id for the first time. Ids are the same in forked
 * children. Context: hook. Return: the id, 0 = none: empty, or the table is full (counted: stack_status()).
 */
uint32_t stack_intern(const struct stack *stack);

/** stack_here - capture and intern behind the guard of hooks. Context: hook. Return: as stack_intern(). */
uint32_t stack_here(bool python);

/** stack_get - the frames of an id. Context: any. Return: frames, 0 = no such id. */
uint32_t stack_get(uint32_t id, struct stack *stack);

/** struct stack_status - counts since stack_start(); children's included */
struct stack_status {
	uint32_t stacks, room; /* kept; how many can be */
	uint64_t full; /* captures that got no id because the table was full */
	const char *unwinder; /* "tables", "tables, from a list" (old glibc), "" = not started */
};
void stack_status(struct stack_status *status);

#endif
