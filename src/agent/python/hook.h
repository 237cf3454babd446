/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Traced functions: one struct py_hook per function object (or native attribute), made by resolve.c, switched on and off
 * by one of four ways of hooking. Hooks are never freed: a thread may be inside one, and its callable stays referenced.
 * All calls here come from the thread systrace/py with the GIL held; the hooks themselves run on any thread of the job.
 */
#ifndef AGENT_PYTHON_HOOK_H
#define AGENT_PYTHON_HOOK_H

#include "agent/python/func_list.h"
#include "agent/python/python_api.h"
#include "agent/stage.h"

#include <stdatomic.h>
#include <stdint.h>

#define HOOK_MAX 512

struct py_hook;

/** struct hook_way - one way of hooking */
struct hook_way {
	const char *name; /* for status and log */
	/* attach hook->callable; idempotent (also looks whether it is still in place). NULL, or why it cannot be (static text) */
	const char *(*attach)(struct py_hook *hook);
	/* take it out again as far as that can be done safely; idempotent */
	void (*detach)(struct py_hook *hook);
};

/** struct hook_const - the object in a rewritten code's constants (shim311.c) */
struct hook_const {
	struct pyobj head;
	struct py_hook *hook;
	uint32_t arg_count; /* entries of the tuple handed over, 0 = none is */
	bool packed; /* the tuple is (args, kwargs) */
};

struct py_hook {
	struct stage_fn fn;
	const struct hook_way *way;
	struct pyobj *callable; /* strong reference */
	_Atomic bool attached; /* read by status */
	/* A replaced function that calls the one it replaced (functools.wraps) covers it: one call, one stage */
	const struct py_hook *covers;
	/* vectorcall.c: what the slot held */
	py_vectorcall next;
	/* shim311.c */
	struct pyobj *code_plain, *code_traced; /* strong references */
	struct hook_const marker;
	/* native.c (monitor.c uses code_plain too) */
	struct pyobj *owner, *name, *wrapper; /* strong references: attribute @name of @owner is @wrapper */
};

extern struct py_hook hooks[HOOK_MAX];
extern _Atomic unsigned int hook_count; /* written by systrace/py only */
extern _Atomic bool hook_gate; /* rewritten code and wrappers record; false = pass through */

/* the innermost hook that runs on this thread; set and put back around each call */
extern __thread const struct py_hook *hook_running __attribute__((tls_model("initial-exec")));

/** hook_is_covered - is this the inner half of a call that is being recorded already? Context: hook. */
static inline bool hook_is_covered(const struct py_hook *hook)
{
	return hook_running && hook_running->covers == hook;
}

extern const struct hook_way hook_vectorcall, hook_shim311, hook_monitor, hook_native;

/** hook_find - the hook of a callable, or NULL. Context: systrace/py. */
struct py_hook *hook_find(const struct pyobj *callable);

/**
 * hook_function - trace a Python function object
 *
 * Return: NULL (also when it is traced already), or why it cannot be: static text.
 */
const char *hook_function(struct pyobj *function, const struct func_row *row);

/** hook_native_attr - trace a native callable that is attribute @name of module or class @owner. Return: as above. */
const char *hook_native_attr(struct pyobj *callable, struct pyobj *owner, const char *name, const struct func_row *row);

/** hook_switch_all - attach or detach every hook made so far. */
void hook_switch_all(bool on);

/** hook_count_attached - hooks in place. Context: any (a figure for status). */
unsigned int hook_count_attached(void);

#endif
