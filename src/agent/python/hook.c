/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The table of traced functions and the choice of the way to hook each. Called by resolve.c and python.c on the thread
 * systrace/py; the ways themselves are in vectorcall.c, shim311.c, monitor.c and native.c.
 */
#include "agent/python/hook.h"

#include "agent/agent.h"
#include "agent/python/compat_python.h"

#include <string.h>

struct py_hook hooks[HOOK_MAX];
_Atomic unsigned int hook_count;
_Atomic bool hook_gate;
__thread const struct py_hook *hook_running;

#define WRAPPED_MAX 8

struct py_hook *hook_find(const struct pyobj *callable)
{
	for (unsigned int i = 0; i < hook_count; i++)
		if (hooks[i].callable == callable || hooks[i].wrapper == callable)
			return &hooks[i];
	return NULL;
}

static void fill_stage(struct stage_fn *fn, const struct func_row *row)
{
	const char *op = strrchr(row->spec, '@');

	fn->spec = row->spec;
	fn->kind = row->kind;
	fn->role = stage_role_of(row->spec, row->kind);
	fn->name = pool_intern(&agent.pool, row->spec, strlen(row->spec));
	if (fn->role == ROLE_COMM) {
		fn->op = op ? op + 1 : row->spec;
		fn->op_name = pool_intern(&agent.pool, fn->op, strlen(fn->op));
	}
}

static const char *hook_add(struct pyobj *callable, const struct func_row *row, const struct hook_way *way,
			    struct pyobj *owner, struct pyobj *name)
{
	struct py_hook *hook = &hooks[hook_count];
	const char *why;

	if (hook_count == HOOK_MAX)
		return "more functions than there are hooks";
	*hook = (struct py_hook){ .way = way, .callable = callable, .owner = owner, .name = name };
	fill_stage(&hook->fn, row);
	py.Py_IncRef(callable);
	why = way->attach(hook);
	if (why) {
		py.Py_DecRef(callable);
		*hook = (struct py_hook){ 0 };
		return why;
	}
	hook->attached = true;
	hook_count++;
	return NULL;
}

/* The hooked function of the same row that @function wraps */
static const struct py_hook *wrapped_hook(struct pyobj *function, const struct func_row *row)
{
	struct pyobj *inner = function;
	const struct py_hook *hook = NULL;

	py.Py_IncRef(inner);
	for (int i = 0; i < WRAPPED_MAX && inner && inner->type == py.PyFunction_Type && !hook; i++) {
		struct pyobj *next = py.PyObject_GetAttrString(inner, "__wrapped__");

		py.Py_DecRef(inner);
		inner = next;
		hook = inner ? hook_find(inner) : NULL;
		if (hook && hook->fn.spec != row->spec)
			hook = NULL;
	}
	py.Py_DecRef(inner);
	py.PyErr_Clear();
	return hook;
}

const char *hook_function(struct pyobj *function, const struct func_row *row)
{
	struct py_hook *hook = hook_find(function);
	const struct hook_way *way = py.minor == PY_MINOR_INLINES_CALLS ? &hook_shim311 : &hook_vectorcall;
	const char *why;

	if (hook) { /* traced already: only look whether it is still in place */
		why = hook->way->attach(hook);
		hook->attached = !why;
		return why;
	}
	if (py_long_attr(py.PyFunction_GetCode(function), "co_flags", 0) & PY_CO_SUSPENDS) {
		if (py.minor < PY_MINOR_MONITORING)
			return "a generator or coroutine function; these are traced from CPython 3.12 on";
		way = &hook_monitor;
	}
	why = hook_add(function, row, way, NULL, NULL);
	if (!why)
		hooks[hook_count - 1].covers = wrapped_hook(function, row);
	return why;
}

const char *hook_native_attr(struct pyobj *callable, struct pyobj *owner, const char *name, const struct func_row *row)
{
	struct pyobj *key;
	const char *why;

	if (hook_find(callable))
		return NULL;
	key = py.PyUnicode_FromStringAndSize(name, (ssize_t)strlen(name));
	if (!key) {
		py.PyErr_Clear();
		return "out of memory";
	}
	py.Py_IncRef(owner);
	why = hook_add(callable, row, &hook_native, owner, key);
	if (why) {
		py.Py_DecRef(owner);
		py.Py_DecRef(key);
	}
	return why;
}

void hook_switch_all(bool on)
{
	atomic_store_explicit(&hook_gate, on, memory_order_relaxed);
	for (unsigned int i = 0; i < hook_count; i++) {
		struct py_hook *hook = &hooks[i];

		if (on) {
			hook->attached = !hook->way->attach(hook);
		} else {
			hook->way->detach(hook);
			hook->attached = false;
		}
	}
}

unsigned int hook_count_attached(void)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < hook_count; i++)
		n += hooks[i].attached;
	return n;
}
