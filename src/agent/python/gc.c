/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Times garbage collections for stage_gc(). The callable stays in gc.callbacks once it is there, where it costs one C call
 * per collection, and records only while hook_gate is open.
 */
#include "agent/python/gc.h"

#include "agent/python/compat_python.h"
#include "agent/python/hook.h"
#include "safe/clock.h"

#include <errno.h>

static struct pyobj *callback; /* strong references */
static struct pyobj *key_generation, *key_collected, *key_uncollectable;
static uint64_t begin_ns; /* one collection at a time per interpreter, with the GIL held */

static uint32_t info_get(struct pyobj *info, struct pyobj *key)
{
	struct pyobj *value = py.PyDict_GetItemWithError(info, key);

	return value ? (uint32_t)py.PyLong_AsLong(value) : 0;
}

/* hook: callback(phase, info), on the thread that collects */
static struct pyobj *gc_event(struct pyobj *self, struct pyobj *const *args, ssize_t nargs)
{
	int saved = errno;

	if (nargs == 2 && atomic_load_explicit(&hook_gate, memory_order_relaxed)) {
		if (py.PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
			begin_ns = clock_mono_ns();
		} else if (begin_ns) {
			stage_gc(begin_ns, clock_mono_ns(), info_get(args[1], key_generation),
				 info_get(args[1], key_collected), info_get(args[1], key_uncollectable));
			begin_ns = 0;
		}
	}
	py.Py_IncRef(py._Py_NoneStruct);
	errno = saved;
	return py._Py_NoneStruct;
}

static struct pyobj *make_callback(void)
{
	static struct py_methoddef method = { "systrace_gc", (void *)gc_event, PY_METH_FASTCALL, NULL };

	key_generation = py.PyUnicode_FromStringAndSize("generation", 10);
	key_collected = py.PyUnicode_FromStringAndSize("collected", 9);
	key_uncollectable = py.PyUnicode_FromStringAndSize("uncollectable", 13);
	if (!key_generation || !key_collected || !key_uncollectable)
		return NULL;
	return py.PyCFunction_NewEx(&method, NULL, NULL);
}

static bool list_has(struct pyobj *list, struct pyobj *item)
{
	ssize_t n = py.PyList_Size(list);

	for (ssize_t i = 0; i < n; i++)
		if (py.PyList_GetItem(list, i) == item)
			return true;
	return false;
}

const char *gc_attach(void)
{
	struct pyobj *module, *list = NULL;
	const char *why = "the module gc has no list of callbacks";

	if (!callback)
		callback = make_callback();
	module = py.PyImport_ImportModule("gc"); /* built into the interpreter */
	if (module)
		list = py.PyObject_GetAttrString(module, "callbacks");
	if (callback && list && py.PyList_Size(list) >= 0 &&
	    (list_has(list, callback) || py.PyList_Append(list, callback) == 0))
		why = NULL;
	py.Py_DecRef(list);
	py.Py_DecRef(module);
	py.PyErr_Clear();
	return why;
}
