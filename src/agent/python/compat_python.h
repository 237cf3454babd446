/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What differs between CPython versions, or is known about memory layout, in one place. Every figure here is checked for
 * plausibility before use (python_api_load(), hook_vectorcall_check()); an interpreter that fails a check is left alone.
 */
#ifndef AGENT_PYTHON_COMPAT_PYTHON_H
#define AGENT_PYTHON_COMPAT_PYTHON_H

#define PY_MINOR_LOWEST 8
#define PY_MINOR_HIGHEST 13

/* 3.11 runs Python-to-Python calls inside one interpreter loop and never looks at the vectorcall slot */
#define PY_MINOR_INLINES_CALLS 11
/* sys.monitoring and PyFunction_SetVectorcall */
#define PY_MINOR_MONITORING 12

/* 3.12 counts calls through C against a fixed allowance, two units for a Python function, whatever the recursion limit is */
#define PY_MINOR_COUNTS_C_CALLS 12
#define PY_UNITS_OF_A_CALL 2
#define PY_THREAD_STATE_INTS 32 /* how far into a thread state the counter is looked for */

/* struct _typeobject, the same on 64 bit from 3.8 to 3.13 */
#define PY_TYPE_NAME_OFF 24
#define PY_TYPE_VECTORCALL_OFF 56

/* PyTupleObject.ob_item */
#define PY_TUPLE_ITEMS_OFF 24

/* code flags (inspect.CO_...) */
#define PY_CO_VARARGS 0x04
#define PY_CO_VARKEYWORDS 0x08
#define PY_CO_GENERATOR 0x20
#define PY_CO_COROUTINE 0x80
#define PY_CO_ITERABLE_COROUTINE 0x100
#define PY_CO_ASYNC_GENERATOR 0x200
#define PY_CO_SUSPENDS (PY_CO_GENERATOR | PY_CO_COROUTINE | PY_CO_ITERABLE_COROUTINE | PY_CO_ASYNC_GENERATOR)

/* slot numbers of PyType_FromSpec (Include/typeslots.h, part of the stable ABI) */
#define PY_NB_INVERT 27
#define PY_NB_MULTIPLY 29
#define PY_TP_CALL 50
#define PY_TP_DEALLOC 52
#define PY_TP_DESCR_GET 54
#define PY_TP_GETATTRO 58
#define PY_TP_METHODS 64
#define PY_TP_REPR 66
#define PY_TP_SETATTRO 69

#define PY_TPFLAGS_DEFAULT (1u << 18)

#endif
