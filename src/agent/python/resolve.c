/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Resolution of the function list, see resolve.h. Called by python.c; what is found goes to hook.c.
 */
#include "agent/python/resolve.h"

#include "agent/python/compat_python.h"
#include "agent/python/hook.h"

#include <stdio.h>
#include <string.h>

#define PATH_MAX_BYTES 512
#define UNWRAP_MAX 8
#define REPLACED_MAX 64 /* functions of one row; a job that replaces one at every step must not fill the table */

static struct pyobj *dict_get(struct pyobj *dict, const char *key, size_t len)
{
	struct pyobj *name = py.PyUnicode_FromStringAndSize(key, (ssize_t)len), *value = NULL;

	if (name)
		value = py.PyDict_GetItemWithError(dict, name);
	py.Py_DecRef(name);
	py.PyErr_Clear();
	return value;
}

static struct pyobj *type_get(struct pyobj *type, const char *key, size_t len)
{
	struct pyobj *name = py.PyUnicode_FromStringAndSize(key, (ssize_t)len), *value = NULL;

	if (name)
		value = py._PyType_Lookup(type, name);
	py.Py_DecRef(name);
	py.PyErr_Clear();
	return value;
}

/** struct walk - where the search for a spec stands; all references borrowed */
struct walk {
	char path[PATH_MAX_BYTES]; /* the spec with '.' for '@' */
	size_t len;
	size_t module_len; /* of the first part: the module as the list names it */
	size_t at; /* behind the part of path that has been walked */
	struct pyobj *owner; /* of value: module or class */
	struct pyobj *value;
	const char *name; /* last name, NUL-terminated: the path's end */
};

static bool walk_init(struct walk *w, const char *spec)
{
	*w = (struct walk){ .len = strlen(spec) };
	if (w->len >= sizeof(w->path))
		return false;
	for (size_t i = 0; i <= w->len; i++) {
		w->path[i] = spec[i] == '@' ? '.' : spec[i];
		if (spec[i] == '@' && !w->module_len)
			w->module_len = i;
	}
	w->name = strrchr(w->path, '.');
	w->name = w->name ? w->name + 1 : w->path;
	return true;
}

/* The longest prefix of the first part that is a loaded module */
static bool walk_module(struct walk *w, struct pyobj *modules)
{
	size_t len = w->module_len;

	for (;;) {
		w->value = dict_get(modules, w->path, len);
		if (w->value && w->value != py._Py_NoneStruct) {
			w->at = len;
			return true;
		}
		while (len && w->path[len - 1] != '.')
			len--;
		if (len == 0)
			return false;
		len--;
	}
}

/* One name further: module attribute or submodule, or class attribute without binding it */
static bool walk_step(struct walk *w, struct pyobj *modules)
{
	const char *name = w->path + w->at + 1;
	size_t len = strcspn(name, ".");

	w->owner = w->value;
	w->value = NULL;
	if (py_is(w->owner, py.PyModule_Type)) {
		w->value = dict_get(py.PyModule_GetDict(w->owner), name, len);
		if (!w->value)
			w->value = dict_get(modules, w->path, w->at + 1 + len);
	} else if (py_is(w->owner, py.PyType_Type)) {
		w->value = type_get(w->owner, name, len);
	}
	w->at += 1 + len;
	return w->value != NULL;
}

static bool walk_to_end(struct walk *w, struct pyobj *modules)
{
	while (w->at < w->len)
		if (!walk_step(w, modules))
			return false;
	return true;
}

/* A new reference to what is inside partial, bound method, staticmethod, classmethod; NULL: @obj is none of these */
static struct pyobj *unwrap(struct pyobj *obj)
{
	struct pyobj *inner = NULL;

	if (obj->type == py.PyStaticMethod_Type || obj->type == py.PyClassMethod_Type) {
		inner = py.PyObject_GetAttrString(obj, "__func__");
	} else if (obj->type == py.PyMethod_Type) {
		inner = py.PyMethod_Function(obj);
		py.Py_IncRef(inner);
	} else if (strcmp(py_type_name(obj->type), "functools.partial") == 0) {
		inner = py.PyObject_GetAttrString(obj, "func");
	}
	py.PyErr_Clear();
	return inner;
}

static bool is_native_callable(struct pyobj *obj)
{
	static const char *const names[] = { "cython_function_or_method",
					     "fused_cython_function",
					     "instancemethod",
					     "wrapper_descriptor",
					     "nb_func",
					     "nb_method" };
	const char *name = py_type_name(obj->type), *dot = strrchr(name, '.');

	if (py_is(obj, py.PyCFunction_Type) || obj->type == py.PyMethodDescr_Type)
		return true;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(dot ? dot + 1 : name, names[i]) == 0)
			return true;
	return false;
}

static const char *why_not(struct pyobj *obj)
{
	const char *name = py_type_name(obj->type);

	if (strstr(name, "ScriptFunction") || strstr(name, "ScriptMethod"))
		return "a ScriptFunction runs without the interpreter";
	if (obj->type == py.PyProperty_Type)
		return "a property";
	if (strcmp(name, "classmethod_descriptor") == 0)
		return "a native class method";
	if (py_is(obj, py.PyType_Type))
		return "a class: name its method";
	if (py_is(obj, py.PyModule_Type))
		return "a module: name its function";
	return "an object of a class of its own: name that class's __call__";
}

/* Hook one value found as @name of @owner */
static const char *hook_value(struct pyobj *value, struct pyobj *owner, const char *name, const struct func_row *row)
{
	struct pyobj *obj = value, *inner;
	const char *why;

	py.Py_IncRef(obj);
	for (int i = 0; i < UNWRAP_MAX; i++) {
		inner = unwrap(obj);
		if (!inner)
			break;
		py.Py_DecRef(obj);
		obj = inner;
	}
	if (obj->type == py.PyFunction_Type)
		why = hook_function(obj, row);
	else if (hook_find(obj))
		why = NULL; /* our own wrapper around a native callable */
	else if (is_native_callable(obj) && obj == value)
		why = hook_native_attr(obj, owner, name, row);
	else
		why = why_not(obj);
	py.Py_DecRef(obj);
	return why;
}

static void row_hook(struct func_row *row, struct pyobj *value, struct pyobj *owner, const char *name)
{
	unsigned int before = hook_count;
	const char *why;

	if (row->attached >= REPLACED_MAX)
		return;
	why = hook_value(value, owner, name, row);
	row->attached += hook_count - before;
	if (why && row->state != ROW_ATTACHED) {
		row->why = why;
		row->state = ROW_UNTRACEABLE;
	} else if (!why) {
		row->state = ROW_ATTACHED;
	}
}

/* An optimizer's row stands for the step of each subclass: these override it, and torch puts a wrapper into the class
 * when its first instance is made */
static void hook_subclasses(struct func_row *row, struct pyobj *type, const char *name, int depth)
{
	struct pyobj *list = depth ? py.PyObject_CallMethod(py.PyType_Type, "__subclasses__", "(O)", type) : NULL;
	ssize_t n = list ? py.PyList_Size(list) : 0;

	for (ssize_t i = 0; i < n; i++) {
		struct pyobj *sub = py.PyList_GetItem(list, i);
		struct pyobj *value = sub ? type_get(sub, name, strlen(name)) : NULL;

		if (value)
			row_hook(row, value, sub, name);
		if (sub)
			hook_subclasses(row, sub, name, depth - 1);
	}
	py.Py_DecRef(list);
	py.PyErr_Clear();
}

static void resolve_row(struct func_row *row, struct pyobj *modules)
{
	struct walk w;

	if (!walk_init(&w, row->spec) || !walk_module(&w, modules)) {
		row->state = row->attached ? ROW_ATTACHED : ROW_NOT_LOADED;
		return;
	}
	if (!walk_to_end(&w, modules)) {
		if (!row->attached)
			row->state = dict_get(modules, w.path, w.module_len) ? ROW_NO_SUCH_NAME : ROW_NOT_LOADED;
		return;
	}
	row_hook(row, w.value, w.owner, w.name);
	if (row->kind == STAGE_OPTIMIZER && w.owner && py_is(w.owner, py.PyType_Type))
		hook_subclasses(row, w.owner, w.name, UNWRAP_MAX);
}

void resolve_list(struct func_list *list)
{
	struct pyobj *modules = py.PyImport_GetModuleDict();

	for (size_t i = 0; i < list->count; i++)
		if (list->rows[i].kind != STAGE_GC)
			resolve_row(&list->rows[i], modules);
}
