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

/* --- frames (pyframes.c): offsets in bytes on 64 bit, the same in all patch releases of a version ---------------------- */

#define PY_OBJECT_TYPE_OFF 8 /* PyObject.ob_type */
#define PY_BYTES_SIZE_OFF 16 /* PyVarObject.ob_size */
#define PY_BYTES_DATA_OFF 32 /* PyBytesObject.ob_sval */
#define PY_STR_LENGTH_OFF 16 /* PyASCIIObject.length, in characters */
#define PY_STR_STATE_OFF 32 /* PyASCIIObject.state */
#define PY_STR_KIND(state) ((state) >> 2 & 7) /* bytes of a character: 1, 2, 4 */
#define PY_STR_COMPACT(state) ((state) >> 5 & 1)
#define PY_STR_ASCII(state) ((state) >> 6 & 1)
#define PY_TSTATE_NEXT_OFF 8
#define PY_FRAME_OF_C_STACK 3 /* FRAME_OWNED_BY_CSTACK, 3.12+: stands for a C function that called Python code */
#define PY_GIL_HOLDER_OFF 8 /* struct _gil_runtime_state, 3.12+ */
#define PY_GIL_LOCKED_OFF 16

/** struct py_frame_layout - where a version keeps what; 0 in an offset that cannot be 0: it has no such field */
struct py_frame_layout {
	unsigned short thread_frame; /* PyThreadState.frame, .current_frame, or .cframe */
	unsigned short cframe_frame; /* behind .cframe: _PyCFrame.current_frame */
	unsigned short thread_handle; /* PyThreadState.thread_id */
	unsigned short thread_native; /* PyThreadState.native_thread_id; 0 = none */
	unsigned short threads_head; /* PyInterpreterState: first thread */
	unsigned short gil; /* PyInterpreterState.ceval.gil; 0 = _PyThreadState_UncheckedGet tells */
	unsigned char has_cframe;
	unsigned char frame_code, frame_back, frame_at; /* f_lasti, prev_instr or instr_ptr */
	unsigned char frame_entry; /* _PyInterpreterFrame.is_entry; 0 = none */
	unsigned char frame_owner; /* 0 = none */
	unsigned char code_name, code_file, code_first_line, code_lines;
	unsigned char code_start; /* co_code_adaptive: .frame_at is a pointer behind it; 0 = an index */
	unsigned char index_bytes; /* what .frame_at counts */
	unsigned char str_ascii, str_other; /* from a str to its characters */
};

/* by minor version; 3.13 says the same of itself at the head of _PyRuntime (Py_DebugOffsets) */
#define PY_FRAME_LAYOUTS                                                                                              \
	[8] = { 24, 0, 176, 0, 8, 0, 0, 32, 24, 104, 0, 0, 112, 104, 40, 120, 0, 1, 48, 72 }, [9] = { 24,  0,	176,  \
												      0,   8,	0,    \
												      0,   32,	24,   \
												      104, 0,	0,    \
												      112, 104, 40,   \
												      120, 0,	1,    \
												      48,  72 },      \
	[10] = { 24, 0, 176, 0, 8, 0, 0, 32, 24, 96, 0, 0, 112, 104, 40, 120, 0, 2, 48, 72 }, [11] = { 56,  8,	 152, \
												       160, 16,	 0,   \
												       1,   32,	 48,  \
												       56,  68,	 69,  \
												       128, 112, 72,  \
												       136, 184, 0,   \
												       48,  72 },     \
	[12] = { 56, 0, 136, 144, 72, 384, 1, 0, 8, 56, 0, 70, 128, 112, 68, 136, 192, 0, 40, 56 },                   \
	[13] = { 72, 0, 152, 160, 7344, 16, 0, 0, 8, 56, 0, 70, 128, 112, 68, 136, 200, 0, 40, 56 }

/* words of Py_DebugOffsets, 3.13: which offset it tells */
#define PY_OWN_THREADS_HEAD 9
#define PY_OWN_GIL 14
#define PY_OWN_CURRENT_FRAME 23
#define PY_OWN_THREAD_ID 24
#define PY_OWN_NATIVE_THREAD_ID 25
#define PY_OWN_PREVIOUS 29
#define PY_OWN_EXECUTABLE 30
#define PY_OWN_INSTR_PTR 31
#define PY_OWN_OWNER 33
#define PY_OWN_FILENAME 35
#define PY_OWN_QUALNAME 37
#define PY_OWN_LINETABLE 38
#define PY_OWN_FIRSTLINENO 39
#define PY_OWN_CODE_ADAPTIVE 43

#endif
