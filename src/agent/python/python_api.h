/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * CPython's C API as the agent uses it: one table of names, looked up at run time, so that one build serves 3.8 to 3.13,
 * shared or static. Nothing is linked and Python.h is not needed. compat_python.h holds what differs between versions.
 * Used by the files of this folder, and by agent/stack/pyframes.c for the names alone.
 */
#ifndef AGENT_PYTHON_PYTHON_API_H
#define AGENT_PYTHON_PYTHON_API_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** struct pyobj - head of each object in builds without Py_TRACE_REFS (others are refused at load) */
struct pyobj {
	ssize_t refcnt; /* 3.12+ has immortal values here: only Py_IncRef and Py_DecRef touch it */
	struct pyobj *type;
};

typedef struct pyobj *(*py_vectorcall)(struct pyobj *callable, struct pyobj *const *args, size_t nargsf,
				       struct pyobj *kwnames);

struct py_methoddef {
	const char *name;
	void *function;
	int flags; /* PY_METH_... */
	const char *doc;
};
#define PY_METH_NOARGS 0x0004
#define PY_METH_FASTCALL 0x0080

struct py_typeslot {
	int slot;
	void *function;
};

struct py_typespec {
	const char *name;
	int basicsize;
	int itemsize;
	unsigned int flags;
	struct py_typeslot *slots;
};

/* F(result, name, arguments): must be there, or Python is left alone */
#define PYTHON_API_REQUIRED(F)                                                                        \
	F(int, Py_IsInitialized, (void))                                                              \
	F(const char *, Py_GetVersion, (void))                                                        \
	F(void *, PyInterpreterState_Main, (void))                                                    \
	F(void *, PyThreadState_New, (void *))                                                        \
	F(void, PyThreadState_Clear, (void *))                                                        \
	F(void, PyThreadState_DeleteCurrent, (void))                                                  \
	F(void *, PyEval_SaveThread, (void))                                                          \
	F(void, PyEval_RestoreThread, (void *))                                                       \
	F(int, Py_AddPendingCall, (int (*)(void *), void *))                                          \
	F(void, Py_IncRef, (struct pyobj *))                                                          \
	F(void, Py_DecRef, (struct pyobj *))                                                          \
	F(void, PyErr_Clear, (void))                                                                  \
	F(struct pyobj *, PyErr_Occurred, (void))                                                     \
	F(struct pyobj *, PyImport_GetModuleDict, (void))                                             \
	F(struct pyobj *, PyImport_ImportModule, (const char *))                                      \
	F(struct pyobj *, PyUnicode_FromStringAndSize, (const char *, ssize_t))                       \
	F(struct pyobj *, PyUnicode_InternFromString, (const char *))                                 \
	F(const char *, PyUnicode_AsUTF8AndSize, (struct pyobj *, ssize_t *))                         \
	F(int, PyUnicode_CompareWithASCIIString, (struct pyobj *, const char *))                      \
	F(struct pyobj *, PyDict_GetItemWithError, (struct pyobj *, struct pyobj *))                  \
	F(int, PyDict_SetItemString, (struct pyobj *, const char *, struct pyobj *))                  \
	F(int, PyDict_SetItem, (struct pyobj *, struct pyobj *, struct pyobj *))                      \
	F(ssize_t, PyDict_Size, (struct pyobj *))                                                     \
	F(struct pyobj *, PyDict_New, (void))                                                         \
	F(struct pyobj *, PyModule_GetDict, (struct pyobj *))                                         \
	F(int, PyType_IsSubtype, (struct pyobj *, struct pyobj *))                                    \
	F(struct pyobj *, _PyType_Lookup, (struct pyobj *, struct pyobj *))                           \
	F(struct pyobj *, PyMethod_New, (struct pyobj *, struct pyobj *))                             \
	F(struct pyobj *, PyObject_GetAttr, (struct pyobj *, struct pyobj *))                         \
	F(struct pyobj *, PyObject_GenericGetAttr, (struct pyobj *, struct pyobj *))                  \
	F(int, PyObject_SetAttr, (struct pyobj *, struct pyobj *, struct pyobj *))                    \
	F(struct pyobj *, PyObject_Repr, (struct pyobj *))                                            \
	F(struct pyobj *, PyObject_GetAttrString, (struct pyobj *, const char *))                     \
	F(int, PyObject_SetAttrString, (struct pyobj *, const char *, struct pyobj *))                \
	F(struct pyobj *, PyObject_Call, (struct pyobj *, struct pyobj *, struct pyobj *))            \
	F(struct pyobj *, PyObject_CallMethod, (struct pyobj *, const char *, const char *, ...))     \
	F(struct pyobj *, PyObject_CallFunction, (struct pyobj *, const char *, ...))                 \
	F(struct pyobj *, PyObject_CallMethodObjArgs, (struct pyobj *, struct pyobj *, ...))          \
	F(struct pyobj *, PyObject_CallFunctionObjArgs, (struct pyobj *, ...))                        \
	F(struct pyobj *, Py_BuildValue, (const char *, ...))                                         \
	F(int, PySequence_Contains, (struct pyobj *, struct pyobj *))                                 \
	F(struct pyobj *, PySequence_Tuple, (struct pyobj *))                                         \
	F(int, PyDict_Next, (struct pyobj *, ssize_t *, struct pyobj **, struct pyobj **))            \
	F(struct pyobj *, PyFunction_GetCode, (struct pyobj *))                                       \
	F(struct pyobj *, PyMethod_Function, (struct pyobj *))                                        \
	F(struct pyobj *, PyCFunction_NewEx, (struct py_methoddef *, struct pyobj *, struct pyobj *)) \
	F(struct pyobj *, PyType_FromSpec, (struct py_typespec *))                                    \
	F(long, PyLong_AsLong, (struct pyobj *))                                                      \
	F(struct pyobj *, PyLong_FromLong, (long))                                                    \
	F(int, PyBytes_AsStringAndSize, (struct pyobj *, char **, ssize_t *))                         \
	F(struct pyobj *, PyBytes_FromStringAndSize, (const char *, ssize_t))                         \
	F(struct pyobj *, PyTuple_New, (ssize_t))                                                     \
	F(ssize_t, PyTuple_Size, (struct pyobj *))                                                    \
	F(struct pyobj *, PyTuple_GetItem, (struct pyobj *, ssize_t))                                 \
	F(int, PyTuple_SetItem, (struct pyobj *, ssize_t, struct pyobj *))                            \
	F(ssize_t, PyList_Size, (struct pyobj *))                                                     \
	F(struct pyobj *, PyList_GetItem, (struct pyobj *, ssize_t))                                  \
	F(int, PyList_Append, (struct pyobj *, struct pyobj *))

/* may be missing: NULL then */
#define PYTHON_API_OPTIONAL(F)                                                              \
	F(int, PySys_AddAuditHook, (int (*)(const char *, struct pyobj *, void *), void *)) \
	F(int, _Py_IsFinalizing, (void)) /* up to 3.12 */                                   \
	F(int, Py_IsFinalizing, (void)) /* 3.13 */                                          \
	F(void, PyFunction_SetVectorcall, (struct pyobj *, py_vectorcall)) /* 3.12 */       \
	F(long, PyImport_GetMagicNumber, (void))                                            \
	F(int, Py_EnterRecursiveCall, (const char *)) /* 3.9 */                             \
	F(void, Py_LeaveRecursiveCall, (void))                                              \
	F(void *, PyThreadState_Get, (void))                                                \
	F(struct pyobj *, PyEval_GetFrame, (void))                                          \
	F(struct pyobj *, PyFrame_GetBack, (struct pyobj *)) /* 3.9 */

#define PYTHON_API_DATA(F)     \
	F(PyFunction_Type)     \
	F(PyModule_Type)       \
	F(PyType_Type)         \
	F(PyMethod_Type)       \
	F(PyStaticMethod_Type) \
	F(PyClassMethod_Type)  \
	F(PyProperty_Type)     \
	F(PyCFunction_Type)    \
	F(PyLong_Type)         \
	F(PyMethodDescr_Type)  \
	F(PyBaseObject_Type)   \
	F(PyUnicode_Type)      \
	F(PyDict_Type)         \
	F(PyList_Type)         \
	F(PyTuple_Type)        \
	F(_Py_FalseStruct)     \
	F(_Py_NoneStruct)

struct python_api {
#define F(result, name, args) result(*name) args;
	PYTHON_API_REQUIRED(F)
	PYTHON_API_OPTIONAL(F)
#undef F
#define F(name) struct pyobj *name;
	PYTHON_API_DATA(F)
#undef F
	int minor; /* of 3.minor, once loaded */
	char version[24]; /* for people: "3.11.2" */
};

extern struct python_api py;

/**
 * python_api_load - look all names up, once
 *
 * Context: thread, constructor (no allocation). Idempotent. Return: NULL, or why Python is left alone here (static text).
 */
const char *python_api_load(void);

/** py_is - exact type or a subtype. Context: with the GIL. */
static inline bool py_is(struct pyobj *obj, struct pyobj *type)
{
	return obj->type == type || py.PyType_IsSubtype(obj->type, type);
}

/** py_type_name - tp_name of a type object. Context: with the GIL. */
const char *py_type_name(struct pyobj *type);

/** py_long_attr - an int attribute of an object of a built-in type; @absent where there is none. Context: systrace/py. */
long py_long_attr(struct pyobj *obj, const char *name, long absent);

#endif
