/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Rewrites the bytecode of one CPython 3.11 function so that an object of ours learns when it begins and ends: bytes in,
 * bytes out, no interpreter. shim311.c wraps the result into a code object.
 *
 * What is put in: after RESUME `LOAD_CONST ours; UNARY_INVERT`, which leaves what ours.__invert__() returns, the guard, at
 * the bottom of the value stack for as long as the frame runs; before each RETURN_VALUE `SWAP 2; POP_TOP`, which drops it.
 * An exception that leaves the frame drops it too, since the interpreter clears the stack then. So there is no second
 * frame, no try block and no Python-level code: tracebacks, recursion depth, locals and line numbers stay as they are.
 * Where arguments are wanted the first part is `LOAD_CONST ours; LOAD_FAST ...; BUILD_TUPLE n; BINARY_OP *`.
 * A copy of the code that was pickled by value elsewhere has the number 0 as that object: ~0 and 0 * tuple work as well.
 */
#ifndef AGENT_PYTHON_CODE311_H
#define AGENT_PYTHON_CODE311_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE311_MAGIC 3495 /* low half of the magic number of 3.11 .pyc files */
#define CODE311_MAX_ARGS 16

struct code311 {
	uint8_t *code;
	size_t code_len;
	uint8_t *exceptions;
	size_t exceptions_len;
	uint8_t *lines;
	size_t lines_len;
	unsigned int stack; /* entries needed beyond the old co_stacksize */
};

/** struct code311_arg - a local to hand over: index of the fast local; in a cell? */
struct code311_arg {
	uint16_t local;
	bool cell;
};

/**
 * code311_rewrite - see above
 * @in: co_code, co_exceptiontable, co_linetable; read only
 * @konst: index of our object in the new co_consts
 * @args, @arg_count: locals handed over as a tuple, at most CODE311_MAX_ARGS; 0 = the short form
 * @out: filled with malloc'ed buffers; free with code311_fini()
 *
 * Context: thread. Return: NULL, or why this code cannot be rewritten (static text).
 */
const char *code311_rewrite(const struct code311 *in, unsigned int konst, const struct code311_arg *args,
			    unsigned int arg_count, struct code311 *out);

void code311_fini(struct code311 *code);

#endif
