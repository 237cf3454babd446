/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The agent's Python side as life.c, the control thread and the Python plugin see it: is there an interpreter, tell us
 * when a framework comes, trace the functions of the list, stop. Everything is found by dlsym; a process without an
 * interpreter, or with one we do not know, only ever gets a reason out of python_off_reason().
 *
 * Who calls what: the constructor calls python_present() and python_watch(); agent_start() hands python_loop() to a thread
 * named systrace/py, the only one that takes the GIL; all other calls only leave a wish with that thread and, where they
 * wait, wait with a deadline.
 */
#ifndef AGENT_PYTHON_PYTHON_H
#define AGENT_PYTHON_PYTHON_H

#include <stdbool.h>
#include <stddef.h>

/** struct python_options - from the environment table; texts are kept by pointer */
struct python_options {
	const char *list_path; /* SYSTRACE_PYFUNC_LIST; NULL or "" = the built-in list */
	bool stages_on; /* SYSTRACE_PYTHON_TRACING: attach as soon as the loop runs */
};

/** python_present - is a CPython API visible in this process? Context: constructor, thread. Costs one dlsym. */
bool python_present(void);

/**
 * python_watch - wait for a framework without a thread
 *
 * Registers a C audit hook. At the first import of a framework it calls agent_start(AGENT_BY_FRAMEWORK) on the
 * importing thread, once; from then on it returns at once. Works before and after the interpreter was initialised
 * (after: only when the caller holds the GIL).
 *
 * Context: constructor. Return: 0, -ENOSYS without an interpreter or one whose API lacks audit hooks, -EALREADY.
 */
int python_watch(void);

/** python_configure - set before python_loop() runs for the first time; later calls count from its next start on. */
void python_configure(const struct python_options *options);

/**
 * python_loop - body of the thread systrace/py
 *
 * Waits for the interpreter, attaches the list's functions as their modules appear, follows late imports and replaced
 * functions, carries out python_stages_switch(). Returns after python_stop(), when the interpreter finalises, or at
 * once when python_off_reason() has one. CPython up to 3.13 may end this thread inside the call (pthread_exit) when it
 * finalises without running atexit callbacks: never join without a deadline.
 *
 * Context: thread of its own, all signals blocked.
 */
void python_loop(void);

/**
 * python_stages_switch - attach or detach the functions of the list
 * @deadline_ms: how long to wait until it is done; 0 = do not wait
 *
 * Context: thread (not systrace/py). Return: 0, -ETIMEDOUT (the wish stands and is carried out later), -ENOTSUP (see
 * python_off_reason()), -ESRCH when no python_loop() runs.
 */
int python_stages_switch(bool on, unsigned int deadline_ms);

/** python_rescan - resolve the list again soon. Context: hook. */
void python_rescan(void);

/**
 * python_stop - end python_loop()
 * @deadline_ms: how long to wait for it; it may be waiting for the GIL
 *
 * Functions stay attached (their hooks pass through once nothing records): undoing them would need the GIL.
 * Context: thread, also the job's exit path with or without the GIL. Return: 0, -ETIMEDOUT.
 */
int python_stop(unsigned int deadline_ms);

/** python_child - note in a forked child: the thread is gone; attached functions go on. Context: fork. */
void python_child(void);

/**
 * python_off_reason - why no Python function can be traced in this process
 *
 * Context: any. Return: a constant or static text ("free-threaded interpreter", ...), or NULL when all is well or not
 * known yet.
 */
const char *python_off_reason(void);

/** python_status - one line, for example "CPython 3.11.2: 23 functions attached, 2 not traceable, 31 not loaded". */
void python_status(char *text, size_t room);

/**
 * python_list_untraceable - rows of the list that were found and cannot be traced, with the reason, one per line
 *
 * Context: thread. Return: number of such rows; @text holds as many as fit, cut at a line's end.
 */
int python_list_untraceable(char *text, size_t room);

#endif
