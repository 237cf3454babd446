/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Way of hooking 2: CPython 3.11, which never looks at a function's vectorcall slot. The function object gets a code
 * object that is its own one plus two instructions (code311.c), whose operand is an object of ours. Everything that can be
 * asked about the function stays the same but __code__'s bytes, constants and stack size.
 *
 * The guard that the first instruction leaves on the value stack holds the stage_frame; the interpreter frees it at the
 * return, or when an exception leaves the frame, and that is the end of the call. Guards come from a fixed store, used
 * with the GIL held.
 */
#include "agent/python/code311.h"
#include "agent/python/compat_python.h"
#include "agent/python/hook.h"

#include <errno.h>
#include <string.h>

#define GUARDS 1024 /* calls of traced functions running at one time, recursion included */
#define SHARED_REFS ((ssize_t)1 << 40) /* our own reference to a static object: it is never freed */

struct guard {
	struct pyobj head;
	struct py_hook *hook;
	struct guard *next; /* in the free list */
	const struct py_hook *outer; /* hook_running before */
	struct stage_frame frame;
};

static struct guard guards[GUARDS];
static struct guard *guards_free;
static struct pyobj *marker_type, *guard_type;

/* ---- hooks: on any thread of the job, with the GIL held ---------------------------------------------------------- */

static struct pyobj *guard_take(struct py_hook *hook)
{
	struct guard *guard = guards_free;

	if (!guard || !atomic_load_explicit(&hook_gate, memory_order_relaxed) || hook_is_covered(hook))
		return NULL;
	guards_free = guard->next;
	guard->head.refcnt = 1;
	guard->hook = hook;
	guard->outer = hook_running;
	hook_running = hook;
	return &guard->head;
}

/* passes through: any object will do as guard */
static struct pyobj *no_guard(struct pyobj *self)
{
	self->refcnt++;
	return self;
}

static struct pyobj *marker_invert(struct pyobj *self)
{
	struct py_hook *hook = ((struct hook_const *)self)->hook;
	struct guard *guard = (struct guard *)guard_take(hook);
	int saved = errno;

	if (!guard)
		return no_guard(self);
	stage_enter(&hook->fn, &guard->frame, NULL, 0, NULL);
	errno = saved;
	return &guard->head;
}

static struct pyobj *const *tuple_items(struct pyobj *tuple)
{
	return (struct pyobj *const *)((char *)tuple + PY_TUPLE_ITEMS_OFF);
}

/* What a function with (*args, **kwargs) was called with, as vectorcall has it */
static void enter_packed(struct guard *guard, struct pyobj *pair)
{
	struct pyobj *positional = tuple_items(pair)[0], *keywords = tuple_items(pair)[1];
	struct pyobj *all[CODE311_MAX_ARGS], *names = NULL, *key, *value;
	ssize_t n = py.PyTuple_Size(positional), k = 0, pos = 0;

	if (py.PyDict_Size(keywords) && n + py.PyDict_Size(keywords) <= CODE311_MAX_ARGS)
		names = py.PySequence_Tuple(keywords); /* its keys, in order */
	if (!names) {
		stage_enter(&guard->hook->fn, &guard->frame, (void *const *)tuple_items(positional), (size_t)n, NULL);
		return;
	}
	memcpy(all, tuple_items(positional), (size_t)n * sizeof(all[0]));
	while (py.PyDict_Next(keywords, &pos, &key, &value))
		all[n + k++] = value;
	stage_enter(&guard->hook->fn, &guard->frame, (void *const *)all, (size_t)n, names);
	py.Py_DecRef(names);
}

static struct pyobj *marker_multiply(struct pyobj *self, struct pyobj *other)
{
	struct hook_const *marker = (struct hook_const *)self;
	struct guard *guard;
	int saved = errno;

	if (self->type != marker_type) /* something * marker: nobody writes that */
		return no_guard(self);
	guard = (struct guard *)guard_take(marker->hook);
	if (!guard)
		return no_guard(self);
	if (marker->packed)
		enter_packed(guard, other);
	else
		stage_enter(&marker->hook->fn, &guard->frame, (void *const *)tuple_items(other), marker->arg_count,
			    NULL);
	errno = saved;
	return &guard->head;
}

/* The interpreter drops the guard: at a return without an exception set, at an exception's way out with it set */
static void guard_dealloc(struct pyobj *self)
{
	struct guard *guard = (struct guard *)self;
	int saved = errno;

	stage_leave(&guard->hook->fn, &guard->frame, py.PyErr_Occurred() != NULL);
	hook_running = guard->outer;
	guard->next = guards_free;
	guards_free = guard;
	errno = saved;
}

/* A marker in a code object that is pickled by value (cloudpickle) becomes the number 0: see code311.h */
static struct pyobj *marker_reduce(struct pyobj *self, struct pyobj *unused)
{
	return py.Py_BuildValue("(O())", py.PyLong_Type);
}

/* ---- attaching: on systrace/py ----------------------------------------------------------------------------------- */

static struct pyobj *make_type(const char *name, struct py_typeslot *slots, size_t size)
{
	struct py_typespec spec = { .name = name, .basicsize = (int)size, .flags = PY_TPFLAGS_DEFAULT, .slots = slots };
	struct pyobj *type = py.PyType_FromSpec(&spec);

	if (!type)
		py.PyErr_Clear();
	return type;
}

static const char *make_types(void)
{
	static struct py_methoddef methods[] = { { "__reduce__", (void *)marker_reduce, PY_METH_NOARGS, NULL },
						 { NULL, NULL, 0, NULL } };
	static struct py_typeslot marker_slots[] = { { PY_NB_INVERT, (void *)marker_invert },
						     { PY_NB_MULTIPLY, (void *)marker_multiply },
						     { PY_TP_METHODS, methods },
						     { 0, NULL } };
	static struct py_typeslot guard_slots[] = { { PY_TP_DEALLOC, (void *)guard_dealloc }, { 0, NULL } };

	if (guard_type)
		return NULL;
	if ((py.PyImport_GetMagicNumber() & 0xffff) != CODE311_MAGIC)
		return "an interpreter with a bytecode of its own";
	marker_type = make_type("systrace.marker", marker_slots, sizeof(struct hook_const));
	if (!marker_type)
		return "out of memory";
	guard_type = make_type("systrace.guard", guard_slots, sizeof(struct guard));
	if (!guard_type)
		return "out of memory";
	for (int i = 0; i < GUARDS; i++) {
		guards[i].head.type = guard_type;
		guards[i].next = i + 1 < GUARDS ? &guards[i + 1] : NULL;
	}
	guards_free = guards;
	return NULL;
}

/* Which locals are handed over to stage_enter: collectives' arguments, optimizers' self, nobody else's */
static unsigned int choose_args(struct py_hook *hook, struct pyobj *code, struct code311_arg *args)
{
	long flags = py_long_attr(code, "co_flags", 0), positional = py_long_attr(code, "co_argcount", 0);
	struct pyobj *names = py.PyObject_GetAttrString(code, "co_varnames");
	struct pyobj *cells = py.PyObject_GetAttrString(code, "co_cellvars");
	unsigned int n = 0;

	hook->marker.packed = false;
	if ((hook->fn.role != ROLE_COMM && hook->fn.role != ROLE_OPTIMIZER_STEP) || !names || !cells)
		goto out;
	n = positional < CODE311_MAX_ARGS ? (unsigned int)positional : CODE311_MAX_ARGS;
	if (hook->fn.role == ROLE_OPTIMIZER_STEP && n > 1)
		n = 1;
	if (n == 0 && (flags & PY_CO_VARARGS) && (flags & PY_CO_VARKEYWORDS) &&
	    py_long_attr(code, "co_kwonlyargcount", 1) == 0) { /* a decorator's wrapper(*args, **kwargs) */
		hook->marker.packed = true;
		n = 2;
	}
	for (unsigned int i = 0; i < n; i++)
		args[i] = (struct code311_arg){
			.local = (uint16_t)i, .cell = py.PySequence_Contains(cells, py.PyTuple_GetItem(names, i)) == 1
		};
out:
	py.Py_DecRef(names);
	py.Py_DecRef(cells);
	py.PyErr_Clear();
	return n;
}

static bool get_bytes(struct pyobj *code, const char *attr, struct pyobj **keep, uint8_t **data, size_t *len)
{
	char *text;
	ssize_t size;

	*keep = py.PyObject_GetAttrString(code, attr);
	if (!*keep || py.PyBytes_AsStringAndSize(*keep, &text, &size) < 0)
		return false;
	*data = (uint8_t *)text;
	*len = (size_t)size;
	return true;
}

static bool dict_steal(struct pyobj *dict, const char *key, struct pyobj *value)
{
	bool good = value && py.PyDict_SetItemString(dict, key, value) == 0;

	py.Py_DecRef(value); /* Py_DecRef takes NULL */
	return good;
}

static struct pyobj *consts_with(struct pyobj *consts, struct pyobj *extra)
{
	ssize_t n = py.PyTuple_Size(consts);
	struct pyobj *longer = py.PyTuple_New(n + 1), *item;

	for (ssize_t i = 0; longer && i <= n; i++) {
		item = i < n ? py.PyTuple_GetItem(consts, i) : extra;
		py.Py_IncRef(item);
		py.PyTuple_SetItem(longer, i, item);
	}
	return longer;
}

/* code.replace() with what was rewritten; NULL with an exception set */
static struct pyobj *code_replace(struct pyobj *code, const struct code311 *with, struct pyobj *consts,
				  struct pyobj *marker)
{
	struct pyobj *changes = py.PyDict_New(), *none = py.PyTuple_New(0), *result = NULL;
	struct pyobj *replace = py.PyObject_GetAttrString(code, "replace");

	if (changes && none && replace &&
	    dict_steal(changes, "co_code", py.PyBytes_FromStringAndSize((char *)with->code, (ssize_t)with->code_len)) &&
	    dict_steal(changes, "co_exceptiontable",
		       py.PyBytes_FromStringAndSize((char *)with->exceptions, (ssize_t)with->exceptions_len)) &&
	    dict_steal(changes, "co_linetable",
		       py.PyBytes_FromStringAndSize((char *)with->lines, (ssize_t)with->lines_len)) &&
	    dict_steal(changes, "co_consts", consts_with(consts, marker)) &&
	    dict_steal(changes, "co_stacksize",
		       py.PyLong_FromLong(py_long_attr(code, "co_stacksize", 0) + (long)with->stack)))
		result = py.PyObject_Call(replace, none, changes);
	py.Py_DecRef(changes);
	py.Py_DecRef(none);
	py.Py_DecRef(replace);
	return result;
}

/* The traced form of @code into @traced */
static const char *make_code(struct py_hook *hook, struct pyobj *code, struct pyobj **traced)
{
	struct code311_arg args[CODE311_MAX_ARGS];
	struct code311 in = { 0 }, out = { 0 };
	struct pyobj *keep[3] = { NULL }, *consts = py.PyObject_GetAttrString(code, "co_consts");
	const char *why = "its code object cannot be read";

	if (!consts || !get_bytes(code, "co_code", &keep[0], &in.code, &in.code_len) ||
	    !get_bytes(code, "co_exceptiontable", &keep[1], &in.exceptions, &in.exceptions_len) ||
	    !get_bytes(code, "co_linetable", &keep[2], &in.lines, &in.lines_len))
		goto out;
	hook->marker.arg_count = choose_args(hook, code, args);
	why = code311_rewrite(&in, (unsigned int)py.PyTuple_Size(consts), args, hook->marker.arg_count, &out);
	if (why)
		goto out;
	*traced = code_replace(code, &out, consts, &hook->marker.head);
	if (!*traced)
		why = "the interpreter refused its rewritten code";
out:
	py.PyErr_Clear();
	code311_fini(&out);
	for (int i = 0; i < 3; i++)
		py.Py_DecRef(keep[i]);
	py.Py_DecRef(consts);
	return why;
}

static const char *set_code(struct py_hook *hook, struct pyobj *code)
{
	if (py.PyObject_SetAttrString(hook->callable, "__code__", code) == 0)
		return NULL;
	py.PyErr_Clear();
	return "the interpreter refused the assignment to __code__";
}

static const char *shim311_attach(struct py_hook *hook)
{
	struct pyobj *code = py.PyFunction_GetCode(hook->callable);
	const char *why = make_types();

	if (why)
		return why;
	if (code == hook->code_traced)
		return NULL;
	if (hook->code_plain && code != hook->code_plain)
		return "its __code__ was replaced after it had been traced";
	if (!hook->code_plain) {
		hook->marker.head = (struct pyobj){ .refcnt = SHARED_REFS, .type = marker_type };
		hook->marker.hook = hook;
		why = make_code(hook, code, &hook->code_traced);
		if (why)
			return why;
		py.Py_IncRef(code);
		hook->code_plain = code;
	}
	return set_code(hook, hook->code_traced);
}

static bool dynamo_is_loaded(void)
{
	struct pyobj *name = py.PyUnicode_FromStringAndSize("torch._dynamo", 13);
	bool loaded = !name || py.PyDict_GetItemWithError(py.PyImport_GetModuleDict(), name);

	py.Py_DecRef(name);
	py.PyErr_Clear();
	return loaded;
}

/* Once torch.compile has guards on __code__ it stays, and hook_gate alone switches it off */
static void shim311_detach(struct py_hook *hook)
{
	if (hook->code_traced && py.PyFunction_GetCode(hook->callable) == hook->code_traced && !dynamo_is_loaded())
		set_code(hook, hook->code_plain);
}

const struct hook_way hook_shim311 = { "rewritten code", shim311_attach, shim311_detach };
