/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The rewriter of 3.11 bytecode on code written out by hand: what is put in, jumps that grow, exception and line tables, and
 * bytes that are no code. That real functions behave the same is for the end-to-end tests.
 */
#include "agent/python/code311.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	CACHE = 0,
	POP_TOP = 1,
	NOP = 9,
	UNARY_INVERT = 15,
	RETURN_GENERATOR = 75,
	RETURN_VALUE = 83,
	FOR_ITER = 93,
	SWAP = 99,
	LOAD_CONST = 100,
	BUILD_TUPLE = 102,
	JUMP_FORWARD = 110,
	BINARY_OP = 122,
	LOAD_FAST = 124,
	LOAD_DEREF = 137,
	JUMP_BACKWARD = 140,
	EXTENDED_ARG = 144,
	RESUME = 151,
	LOAD_METHOD = 160
};

/* an entry of the line table: code 13 (no columns), @units, step of the line number 0 */
#define LINE(units) (uint8_t)(0x80 | 13 << 3 | ((units)-1)), 0

struct input {
	uint8_t code[2048], lines[2048], exceptions[256];
	struct code311 in;
};

static struct input input;

static void put(uint8_t op, uint8_t arg)
{
	input.code[input.in.code_len++] = op;
	input.code[input.in.code_len++] = arg;
}

static void begin(void)
{
	memset(&input, 0, sizeof(input));
	input.in.code = input.code;
	input.in.lines = input.lines;
	input.in.exceptions = input.exceptions;
	put(RESUME, 0);
}

/* one line entry per 8 units of the code */
static void lines(void)
{
	for (size_t left = input.in.code_len / 2; left;) {
		size_t units = left < 8 ? left : 8;
		const uint8_t entry[] = { LINE(units) };

		memcpy(input.lines + input.in.lines_len, entry, 2);
		input.in.lines_len += 2;
		left -= units;
	}
}

static const char *rewrite(struct code311 *out)
{
	if (!input.in.lines_len)
		lines();
	return code311_rewrite(&input.in, 3, NULL, 0, out);
}

static size_t line_units(const struct code311 *code)
{
	size_t units = 0;

	for (size_t i = 0; i < code->lines_len; i++)
		if (code->lines[i] & 128)
			units += (code->lines[i] & 7u) + 1;
	return units;
}

static void test_plain(void **state)
{
	static const uint8_t want[] = { RESUME, 0, LOAD_CONST, 3, UNARY_INVERT, 0, LOAD_CONST, 0,
					SWAP,	2, POP_TOP,    0, RETURN_VALUE, 0, LOAD_CONST, 1,
					SWAP,	2, POP_TOP,    0, RETURN_VALUE, 0 };
	struct code311 out;

	begin();
	put(LOAD_CONST, 0);
	put(RETURN_VALUE, 0);
	put(LOAD_CONST, 1);
	put(RETURN_VALUE, 0);
	assert_null(rewrite(&out));
	assert_int_equal(out.code_len, sizeof(want));
	assert_memory_equal(out.code, want, sizeof(want));
	assert_int_equal(line_units(&out), sizeof(want) / 2);
	assert_int_equal(out.exceptions_len, 0);
	assert_int_equal(out.stack, 2);
	code311_fini(&out);
}

static void test_arguments(void **state)
{
	static const struct code311_arg args[] = { { 0, false }, { 1, true }, { 300, false } };
	static const uint8_t want[] = { RESUME,	    0, EXTENDED_ARG, 1, LOAD_CONST, 4,	       LOAD_FAST,   0,
					LOAD_DEREF, 1, EXTENDED_ARG, 1, LOAD_FAST,  300 & 255, BUILD_TUPLE, 3,
					BINARY_OP,  5, CACHE,	     0, LOAD_CONST, 0,	       SWAP,	    2,
					POP_TOP,    0, RETURN_VALUE, 0 };
	struct code311 out;

	begin();
	put(LOAD_CONST, 0);
	put(RETURN_VALUE, 0);
	lines();
	assert_null(code311_rewrite(&input.in, 260, args, 3, &out));
	assert_int_equal(out.code_len, sizeof(want));
	assert_memory_equal(out.code, want, sizeof(want));
	assert_int_equal(line_units(&out), sizeof(want) / 2);
	code311_fini(&out);
	assert_non_null(code311_rewrite(&input.in, 70000, NULL, 0, &out));
	assert_non_null(code311_rewrite(&input.in, 0, args, CODE311_MAX_ARGS + 1, &out));
}

/* a loop back to the first instruction of the body must not run the prologue again; a jump to a return lands before
 * what was put in for it */
static void test_jump_targets(void **state)
{
	static const uint8_t want[] = { RESUME,	       0, LOAD_CONST, 3, UNARY_INVERT, 0, FOR_ITER,	2, POP_TOP, 0,
					JUMP_BACKWARD, 3, SWAP,	      2, POP_TOP,      0, RETURN_VALUE, 0 };
	struct code311 out;

	begin();
	put(FOR_ITER, 2); /* to RETURN_VALUE */
	put(POP_TOP, 0);
	put(JUMP_BACKWARD, 3); /* to FOR_ITER */
	put(RETURN_VALUE, 0);
	assert_null(rewrite(&out));
	assert_int_equal(out.code_len, sizeof(want));
	assert_memory_equal(out.code, want, sizeof(want));
	code311_fini(&out);
}

/* a jump over 254 units becomes one over 258 and needs an EXTENDED_ARG, which lengthens the jump around it */
static void test_jump_grows(void **state)
{
	struct code311 out;
	size_t at = 2 * 3;

	begin();
	put(JUMP_FORWARD, 255); /* to the last LOAD_CONST */
	put(JUMP_FORWARD, 254); /* the same */
	for (int i = 0; i < 252; i++)
		put(NOP, 0);
	put(LOAD_CONST, 0);
	put(RETURN_VALUE, 0);
	put(LOAD_CONST, 0);
	put(RETURN_VALUE, 0);
	assert_null(rewrite(&out));
	/* behind the prologue both have an EXTENDED_ARG now, and lead to the last four instructions */
	assert_int_equal(out.code[at], EXTENDED_ARG);
	assert_int_equal(out.code[at + 2], JUMP_FORWARD);
	assert_int_equal(out.code[at + 4], EXTENDED_ARG);
	assert_int_equal(out.code[at + 6], JUMP_FORWARD);
	for (int i = 0; i < 2; i++) {
		size_t behind = at / 2 + 2 + 2 * (size_t)i;
		size_t arg = out.code[at + 4 * (size_t)i + 1] * 256u + out.code[at + 4 * (size_t)i + 3];

		assert_int_equal(2 * (behind + arg), out.code_len - 8); /* LOAD_CONST SWAP POP_TOP RETURN_VALUE */
	}
	assert_int_equal(line_units(&out), out.code_len / 2);
	code311_fini(&out);
}

static void test_exception_table(void **state)
{
	/* RESUME | NOP NOP RETURN_VALUE NOP | handler: NOP RETURN_VALUE; range 1..5, handler 5, depth 0 with lasti */
	static const uint8_t table[] = { 128 | 1, 4, 5, 1 };
	/* prologue 2 units: NOPs at 3 and 4, what was put in before the return at 5, NOP at 8, handler at 9; depth + 1 */
	static const uint8_t want[] = { 128 | 3, 2, 9, 3, 128 | 8, 1, 9, 3 };
	struct code311 out;

	begin();
	put(NOP, 0);
	put(NOP, 0);
	put(RETURN_VALUE, 0);
	put(NOP, 0);
	put(NOP, 0);
	put(RETURN_VALUE, 0);
	memcpy(input.exceptions, table, sizeof(table));
	input.in.exceptions_len = sizeof(table);
	assert_null(rewrite(&out));
	assert_int_equal(out.exceptions_len, sizeof(want));
	assert_memory_equal(out.exceptions, want, sizeof(want));
	code311_fini(&out);
}

static void test_line_table(void **state)
{
	/* RESUME; LOAD_METHOD with 10 caches, whose location takes two entries; RETURN_VALUE with columns, one line on */
	static const uint8_t table[] = { LINE(1),
					 0x80 | 14 << 3 | 7,
					 2,
					 0,
					 5,
					 9, /* long form: line + 1, 8 units */
					 0x80 | 0 << 3 | 2,
					 0x12, /* 3 units, columns */
					 0x80 | 11 << 3 | 0,
					 4,
					 8 }; /* line + 1, columns 4..8 */
	static const uint8_t want[] = { LINE(1),
					0x80 | 14 << 3 | 7,
					2,
					0,
					5,
					9, /* prologue and what fits */
					0x80 | 14 << 3 | 1,
					0,
					0,
					5,
					9, /* the same place again, no step */
					0x80 | 0 << 3 | 2,
					0x12,
					0x80 | 11 << 3 | 2,
					4,
					8 };
	struct code311 out;

	begin();
	put(LOAD_METHOD, 0);
	for (int i = 0; i < 10; i++)
		put(CACHE, 0);
	put(RETURN_VALUE, 0);
	memcpy(input.lines, table, sizeof(table));
	input.in.lines_len = sizeof(table);
	assert_null(rewrite(&out));
	assert_int_equal(out.lines_len, sizeof(want));
	assert_memory_equal(out.lines, want, sizeof(want));
	code311_fini(&out);
}

static void test_refused(void **state)
{
	struct code311 out;

	begin();
	put(RETURN_GENERATOR, 0);
	assert_string_equal(rewrite(&out), "a generator or coroutine function");
	begin();
	put(JUMP_FORWARD, 200); /* beyond the end */
	assert_non_null(rewrite(&out));
	begin();
	put(JUMP_FORWARD, 1); /* into the middle of an instruction */
	put(EXTENDED_ARG, 1);
	put(EXTENDED_ARG, 1);
	put(LOAD_CONST, 0);
	assert_non_null(rewrite(&out));
	begin();
	put(JUMP_BACKWARD, 9); /* before the beginning */
	assert_non_null(rewrite(&out));
	begin();
	put(EXTENDED_ARG, 0);
	assert_non_null(rewrite(&out));
	begin();
	input.code[0] = NOP;
	put(NOP, 0);
	assert_string_equal(rewrite(&out), "its bytecode has no RESUME");
	begin();
	put(NOP, 0);
	lines();
	input.in.lines_len -= 2;
	assert_string_equal(code311_rewrite(&input.in, 3, NULL, 0, &out), "its line table is too short");
	begin();
	put(NOP, 0);
	input.exceptions[0] = 1; /* no first-byte mark */
	input.in.exceptions_len = 1;
	assert_non_null(rewrite(&out));
	begin();
	input.in.code_len = 1;
	assert_non_null(rewrite(&out));
	input.in.code_len = 0;
	assert_non_null(rewrite(&out));
	assert_null(out.code); /* nothing to free after a refusal */
}

/* any bytes: refused or rewritten, never out of bounds (this program also runs under the address sanitizer) */
static void test_any_bytes(void **state)
{
	static const uint8_t often[] = { RESUME,     RETURN_VALUE, JUMP_FORWARD, JUMP_BACKWARD, FOR_ITER,
					 LOAD_CONST, EXTENDED_ARG, CACHE,	 NOP,		POP_TOP };
	unsigned int seed = 311, good = 0;
	struct code311 out;

	for (int round = 0; round < 20000; round++) {
		size_t units = 1 + (size_t)rand_r(&seed) % 40;

		begin();
		for (size_t i = 0; i < units; i++)
			put(often[(size_t)rand_r(&seed) % sizeof(often)], (uint8_t)(rand_r(&seed) % 8));
		input.in.exceptions_len = (size_t)rand_r(&seed) % 12;
		for (size_t i = 0; i < input.in.exceptions_len; i++)
			input.exceptions[i] = (uint8_t)(rand_r(&seed) % 16 | (i % 4 ? 0 : 128));
		lines();
		if (round % 3 == 0)
			for (size_t i = 0; i < input.in.lines_len; i++)
				input.lines[i] = (uint8_t)rand_r(&seed);
		if (code311_rewrite(&input.in, 3, NULL, 0, &out))
			continue;
		good++;
		assert_int_equal(line_units(&out), out.code_len / 2);
		code311_fini(&out);
	}
	assert_in_range(good, 100, 19000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),		cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_jump_targets),	cmocka_unit_test(test_jump_grows),
		cmocka_unit_test(test_exception_table), cmocka_unit_test(test_line_table),
		cmocka_unit_test(test_refused),		cmocka_unit_test(test_any_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
