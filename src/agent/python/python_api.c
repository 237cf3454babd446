/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Fills the table of CPython's C API by dlsym and decides whether this interpreter is one we know. Called once by the
 * Python thread; leaves waiting for the interpreter and taking the GIL to python.c.
 */
#include "agent/python/python_api.h"

#include "agent/python/compat_python.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct python_api py;

struct symbol {
	const char *name;
	void **place;
	bool required;
};

static const struct symbol symbols[] = {
#define F(result, name, args) { #name, (void **)&py.name, true },
	PYTHON_API_REQUIRED(F)
#undef F
#define F(result, name, args) { #name, (void **)&py.name, false },
		PYTHON_API_OPTIONAL(F)
#undef F
#define F(name) { #name, (void **)&py.name, true },
			PYTHON_API_DATA(F)
#undef F
};

static const char *find_symbols(void)
{
	static char missing[96];

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].place = dlsym(RTLD_DEFAULT, symbols[i].name);
		if (!*symbols[i].place && symbols[i].required) {
			snprintf(missing, sizeof(missing), "the interpreter does not export %s", symbols[i].name);
			return missing;
		}
	}
	return NULL;
}

static const char *check_version(void)
{
	static char unknown[96];
	const char *text = py.Py_GetVersion();
	size_t len = strcspn(text, " ");

	if (len >= sizeof(py.version))
		len = sizeof(py.version) - 1;
	memcpy(py.version, text, len);
	if (strncmp(text, "3.", 2) == 0)
		py.minor = atoi(text + 2);
	if (py.minor < PY_MINOR_LOWEST || py.minor > PY_MINOR_HIGHEST) {
		snprintf(unknown, sizeof(unknown), "CPython %s is not one of 3.%d to 3.%d", py.version, PY_MINOR_LOWEST,
			 PY_MINOR_HIGHEST);
		return unknown;
	}
	if (strstr(text, "free-threading"))
		return "a free-threaded interpreter";
	if (dlsym(RTLD_DEFAULT, "_Py_RefTotal") || dlsym(RTLD_DEFAULT, "_Py_INCREF_IncRefTotal"))
		return "a debug build of the interpreter";
	if (py.minor >= PY_MINOR_MONITORING && !py.PyFunction_SetVectorcall)
		return "the interpreter does not export PyFunction_SetVectorcall";
	if (strcmp(py_type_name(py.PyFunction_Type), "function") != 0)
		return "type objects of this interpreter are laid out in an unknown way";
	return NULL;
}

const char *python_api_load(void)
{
	static const char *reason;
	static _Atomic int done;

	if (sizeof(void *) != 8)
		return "not a 64-bit process";
	if (atomic_load_explicit(&done, memory_order_acquire))
		return reason;
	reason = find_symbols();
	if (!reason)
		reason = check_version();
	atomic_store_explicit(&done, 1, memory_order_release);
	return reason;
}

const char *py_type_name(struct pyobj *type)
{
	return *(const char **)((char *)type + PY_TYPE_NAME_OFF);
}

long py_long_attr(struct pyobj *obj, const char *name, long absent)
{
	struct pyobj *value = py.PyObject_GetAttrString(obj, name);
	long number;

	if (!value) {
		py.PyErr_Clear();
		return absent;
	}
	number = py.PyLong_AsLong(value);
	py.Py_DecRef(value);
	if (number == -1 && py.PyErr_Occurred()) {
		py.PyErr_Clear();
		return absent;
	}
	return number;
}
