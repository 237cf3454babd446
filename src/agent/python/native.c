/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Way of hooking 4: callables without Python code (builtins, pybind, Cython). The module's or class's attribute is set to
 * an object of ours that calls the real one and shows the real one's attributes, class, text and pickled form. Callers
 * that took the real one before, with `from m import f`, are not seen. Attributes of built-in types cannot be set.
 */
#include "agent/python/compat_python.h"
#include "agent/python/hook.h"

#include <errno.h>

/** struct wrapper - what stands in for the callable */
struct wrapper {
	struct pyobj head;
	struct py_hook *hook;
	bool binds; /* as a class attribute it becomes a bound method */
};

static struct wrapper wrappers[HOOK_MAX];
static struct pyobj *wrapper_type;

#define SHARED_REFS ((ssize_t)1 << 30) /* our own reference to a static object: it is never freed */

static struct py_hook *hook_of(struct pyobj *self)
{
	return ((struct wrapper *)self)->hook;
}

/* ---- hooks: on any thread of the job, with the GIL held ---------------------------------------------------------- */

static struct pyobj *wrapper_call(struct pyobj *self, struct pyobj *args, struct pyobj *kwargs)
{
	struct py_hook *hook = hook_of(self);
	struct stage_frame frame;
	struct pyobj *result;
	int saved = errno;

	if (!atomic_load_explicit(&hook_gate, memory_order_relaxed))
		return py.PyObject_Call(hook->callable, args, kwargs);
	stage_enter(&hook->fn, &frame, (void *const *)((char *)args + PY_TUPLE_ITEMS_OFF),
		    (size_t)py.PyTuple_Size(args), NULL);
	errno = saved;
	result = py.PyObject_Call(hook->callable, args, kwargs);
	saved = errno;
	stage_leave(&hook->fn, &frame, !result);
	errno = saved;
	return result;
}

static struct pyobj *wrapper_bind(struct pyobj *self, struct pyobj *instance, struct pyobj *type)
{
	if (((struct wrapper *)self)->binds && instance && instance != py._Py_NoneStruct)
		return py.PyMethod_New(self, instance);
	py.Py_IncRef(self);
	return self;
}

static struct pyobj *wrapper_getattr(struct pyobj *self, struct pyobj *name)
{
	return py.PyObject_GetAttr(hook_of(self)->callable, name);
}

static int wrapper_setattr(struct pyobj *self, struct pyobj *name, struct pyobj *value)
{
	return py.PyObject_SetAttr(hook_of(self)->callable, name, value);
}

static struct pyobj *wrapper_repr(struct pyobj *self)
{
	return py.PyObject_Repr(hook_of(self)->callable);
}

/* ---- attaching: on systrace/py ----------------------------------------------------------------------------------- */

static bool make_type(void)
{
	static struct py_typeslot slots[] = {
		{ PY_TP_CALL, (void *)wrapper_call },	     { PY_TP_DESCR_GET, (void *)wrapper_bind },
		{ PY_TP_GETATTRO, (void *)wrapper_getattr }, { PY_TP_SETATTRO, (void *)wrapper_setattr },
		{ PY_TP_REPR, (void *)wrapper_repr },	     { 0, NULL }
	};
	struct py_typespec spec = { .name = "systrace.native",
				    .basicsize = sizeof(struct wrapper),
				    .flags = PY_TPFLAGS_DEFAULT,
				    .slots = slots };

	if (!wrapper_type)
		wrapper_type = py.PyType_FromSpec(&spec);
	py.PyErr_Clear();
	return wrapper_type != NULL;
}

static struct pyobj *current_value(const struct py_hook *hook)
{
	struct pyobj *value;

	if (py_is(hook->owner, py.PyModule_Type))
		value = py.PyDict_GetItemWithError(py.PyModule_GetDict(hook->owner), hook->name);
	else
		value = py._PyType_Lookup(hook->owner, hook->name);
	py.PyErr_Clear();
	return value;
}

static bool put_value(struct py_hook *hook, struct pyobj *value)
{
	int ret;

	if (py_is(hook->owner, py.PyModule_Type))
		ret = py.PyDict_SetItem(py.PyModule_GetDict(hook->owner), hook->name, value);
	else
		ret = py.PyObject_SetAttr(hook->owner, hook->name, value);
	py.PyErr_Clear();
	return ret == 0;
}

static const char *native_attach(struct py_hook *hook)
{
	struct wrapper *wrapper = &wrappers[hook - hooks];
	struct pyobj *now = current_value(hook);

	if (hook->wrapper && now == hook->wrapper)
		return NULL;
	if (now != hook->callable)
		return "it was replaced after it had been traced";
	if (!make_type())
		return "out of memory";
	if (!hook->wrapper) {
		wrapper->head = (struct pyobj){ .refcnt = SHARED_REFS, .type = wrapper_type };
		wrapper->hook = hook;
		wrapper->binds = !py_is(hook->callable, py.PyCFunction_Type);
	}
	if (!put_value(hook, &wrapper->head))
		return "native, and its class does not let attributes be set";
	hook->wrapper = &wrapper->head;
	return NULL;
}

static void native_detach(struct py_hook *hook)
{
	if (hook->wrapper && current_value(hook) == hook->wrapper)
		put_value(hook, hook->callable);
}

const struct hook_way hook_native = { "attribute", native_attach, native_detach };
