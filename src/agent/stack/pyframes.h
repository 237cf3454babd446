/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Python frames read from the interpreter's memory: no call into it, no reference taken, no GIL. Works on the calling
 * thread inside a hook, and, reading through system calls that cannot fault, on all threads of a process that hangs with
 * its GIL held. Layouts are those of compat_python.h; on every object read its type is checked before its fields.
 * Used by stack.c and threads.c.
 */
#ifndef AGENT_STACK_PYFRAMES_H
#define AGENT_STACK_PYFRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct pyframes_walk - along the frames of one thread, innermost first; the caller's */
struct pyframes_walk {
	uintptr_t frame; /* the next one to be told, 0 = none */
	bool careful; /* memory may change or go: read by system calls */
};

/** pyframes_start - learn the layout. Context: control thread. Idempotent. Return: NULL, or why there are no frames. */
const char *pyframes_start(void);

/** pyframes_stop - the interpreter ends: no more frames from now on. Context: any. */
void pyframes_stop(void);

/** pyframes_begin - of the calling thread. Context: hook. Return: false: it runs no Python code, or not known how. */
bool pyframes_begin(struct pyframes_walk *w);

/**
 * pyframes_next - the next frame as a record's frame (FRAME_PYTHON)
 * @entry: it is the outermost one of its run of the interpreter loop: one frame of the native stack stands for it and
 *	those before it
 *
 * Puts the function's definition into the pool when it is new. Context: hook. Return: false = no more.
 */
bool pyframes_next(struct pyframes_walk *w, uint64_t *frame, bool *entry);

/** pyframes_next_text - the same as text, `name@file:line`; puts nothing anywhere. Context: thread. */
bool pyframes_next_text(struct pyframes_walk *w, char *text, size_t room, bool *entry);

/** pyframes_in_loop - is this code of the interpreter loop? Context: hook. */
bool pyframes_in_loop(uintptr_t pc);

/** pyframes_loop - an address in the interpreter loop, 0 = not known: tells which object the interpreter is. Context: any. */
uintptr_t pyframes_loop(void);

/* --- other threads ------------------------------------------------------------------------------------------------------- */

/** struct pyframes_thread - a thread that the interpreter knows */
struct pyframes_thread {
	uintptr_t state;
	uintptr_t handle; /* pthread_self() of it */
	uint32_t tid; /* 0: the interpreter does not say (before 3.11) */
};

/** pyframes_threads - list them. Context: thread. Return: how many, at most @max. */
size_t pyframes_threads(struct pyframes_thread *threads, size_t max);

/** pyframes_begin_other - along another thread's frames. Context: thread. */
bool pyframes_begin_other(struct pyframes_walk *w, const struct pyframes_thread *thread);

/** pyframes_holder - state of the thread that holds the GIL; 0 = free. @known: could it be told? Context: thread. */
uintptr_t pyframes_holder(bool *known);

#endif
