/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The bytecode rewriter of code311.h. 3.11 has only relative jumps, so putting instructions in means: find the jumps,
 * give every instruction its new place, and write jumps, exception table and line table anew. Called by shim311.c on the
 * Python thread; anything unexpected in the bytes refuses the function, which then runs untraced.
 */
#include "agent/python/code311.h"

#include <stdlib.h>
#include <string.h>

/* opcodes of 3.11 (Lib/opcode.py); fixed for the magic number */
enum {
	OP_CACHE = 0,
	OP_POP_TOP = 1,
	OP_UNARY_INVERT = 15,
	OP_RETURN_GENERATOR = 75,
	OP_RETURN_VALUE = 83,
	OP_FOR_ITER = 93,
	OP_SWAP = 99,
	OP_LOAD_CONST = 100,
	OP_BUILD_TUPLE = 102,
	OP_JUMP_FORWARD = 110,
	OP_JUMP_IF_FALSE_OR_POP = 111,
	OP_JUMP_IF_TRUE_OR_POP = 112,
	OP_POP_JUMP_FORWARD_IF_FALSE = 114,
	OP_POP_JUMP_FORWARD_IF_TRUE = 115,
	OP_BINARY_OP = 122,
	OP_SEND = 123,
	OP_LOAD_FAST = 124,
	OP_POP_JUMP_FORWARD_IF_NOT_NONE = 128,
	OP_POP_JUMP_FORWARD_IF_NONE = 129,
	OP_JUMP_BACKWARD_NO_INTERRUPT = 134,
	OP_LOAD_DEREF = 137,
	OP_JUMP_BACKWARD = 140,
	OP_EXTENDED_ARG = 144,
	OP_RESUME = 151,
	OP_POP_JUMP_BACKWARD_IF_NOT_NONE = 173,
	OP_POP_JUMP_BACKWARD_IF_NONE = 174,
	OP_POP_JUMP_BACKWARD_IF_FALSE = 175,
	OP_POP_JUMP_BACKWARD_IF_TRUE = 176
};

#define BINARY_MULTIPLY 5
#define BINARY_CACHES 1
#define EPILOGUE_UNITS 2
#define UNITS_MAX 100000u
#define LINE_UNITS_MAX 8u

/* One instruction: its EXTENDED_ARGs, the opcode, and the caches behind it; sizes in units of two bytes */
struct instr {
	uint32_t old, now; /* place of its first unit; now: of what was put in before it */
	uint32_t arg;
	uint32_t target; /* jumps: index of the instruction jumped to */
	uint8_t op;
	uint8_t extended; /* EXTENDED_ARGs before the opcode */
	uint8_t caches;
	uint8_t put_in; /* units put in before it */
	int8_t jump; /* +1 forward, -1 backward, 0 none */
};

struct rewrite {
	const struct code311 *in;
	struct instr *instr;
	uint32_t count;
	uint32_t *owner; /* old unit -> instruction it belongs to; one entry more for the end */
	uint32_t units;
	uint8_t prologue[2 * (2 + 2 * CODE311_MAX_ARGS + 4)];
	uint32_t prologue_units;
	uint32_t first; /* instruction behind RESUME, 0 = not found yet */
};

static int8_t jump_direction(uint8_t op)
{
	switch (op) {
	case OP_FOR_ITER:
	case OP_JUMP_FORWARD:
	case OP_JUMP_IF_FALSE_OR_POP:
	case OP_JUMP_IF_TRUE_OR_POP:
	case OP_POP_JUMP_FORWARD_IF_FALSE:
	case OP_POP_JUMP_FORWARD_IF_TRUE:
	case OP_SEND:
	case OP_POP_JUMP_FORWARD_IF_NOT_NONE:
	case OP_POP_JUMP_FORWARD_IF_NONE:
		return 1;
	case OP_JUMP_BACKWARD_NO_INTERRUPT:
	case OP_JUMP_BACKWARD:
	case OP_POP_JUMP_BACKWARD_IF_NOT_NONE:
	case OP_POP_JUMP_BACKWARD_IF_NONE:
	case OP_POP_JUMP_BACKWARD_IF_FALSE:
	case OP_POP_JUMP_BACKWARD_IF_TRUE:
		return -1;
	default:
		return 0;
	}
}

static uint32_t instr_units(const struct instr *i)
{
	return i->put_in + i->extended + 1u + i->caches;
}

/* the instruction that begins at an old unit (the end counts as one), or UINT32_MAX */
static uint32_t instr_at(const struct rewrite *r, uint32_t old)
{
	if (old > r->units || r->instr[r->owner[old]].old != old)
		return UINT32_MAX;
	return r->owner[old];
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static const char *read_instr(struct rewrite *r, uint32_t *unit)
{
	const uint8_t *code = r->in->code;
	struct instr *i = &r->instr[r->count];
	uint32_t at = *unit;

	*i = (struct instr){ .old = at };
	while (at < r->units && code[2 * at] == OP_EXTENDED_ARG && i->extended < 3) {
		i->arg = (i->arg | code[2 * at + 1]) << 8;
		i->extended++;
		at++;
	}
	if (at == r->units || code[2 * at] == OP_EXTENDED_ARG)
		return "its bytecode ends inside an instruction";
	i->op = code[2 * at];
	i->arg |= code[2 * at + 1];
	i->jump = jump_direction(i->op);
	at++;
	while (at < r->units && code[2 * at] == OP_CACHE) {
		if (i->caches == 32)
			return "its bytecode has an unknown form";
		i->caches++;
		at++;
	}
	if (i->op == OP_RETURN_GENERATOR)
		return "a generator or coroutine function";
	if (i->op == OP_RETURN_VALUE)
		i->put_in = EPILOGUE_UNITS;
	for (uint32_t u = i->old; u < at; u++)
		r->owner[u] = r->count;
	r->count++;
	*unit = at;
	return NULL;
}

static const char *read_code(struct rewrite *r)
{
	uint32_t unit = 0;
	const char *why;

	for (unit = 0; unit < r->units;) {
		why = read_instr(r, &unit);
		if (why)
			return why;
	}
	r->owner[r->units] = r->count;
	r->instr[r->count].old = r->units;
	for (uint32_t n = 0; n < r->count; n++) {
		struct instr *i = &r->instr[n];
		int64_t to;

		if (!r->first && i->op == OP_RESUME && n + 1 < r->count) {
			if (i[1].put_in)
				return "its bytecode has an unknown form";
			i[1].put_in = (uint8_t)r->prologue_units;
			r->first = n + 1;
		}
		if (!i->jump)
			continue;
		/* relative to the unit behind the opcode; none of these has caches in 3.11 */
		to = (int64_t)i->old + i->extended + 1 + (int64_t)i->jump * (int64_t)i->arg;
		if (to < 0 || to >= r->units || instr_at(r, (uint32_t)to) == UINT32_MAX)
			return "a jump leads to no instruction";
		i->target = instr_at(r, (uint32_t)to);
	}
	return r->first ? NULL : "its bytecode has no RESUME";
}

/* ---- placing ---------------------------------------------------------------------------------------------------- */

/* A jump to a RETURN_VALUE lands on what was put in before it; one to the body's first instruction, a loop's, must not
 * run the prologue again. The same holds for ranges of the exception table. */
static uint32_t landing(const struct rewrite *r, uint32_t index)
{
	return r->instr[index].now + (index == r->first ? r->prologue_units : 0);
}

static uint32_t jump_distance(const struct rewrite *r, const struct instr *i)
{
	uint32_t behind = i->now + i->put_in + i->extended + 1u;
	uint32_t to = landing(r, i->target);

	return i->jump > 0 ? to - behind : behind - to;
}

static void place(struct rewrite *r)
{
	bool grew = true;

	while (grew) { /* an argument that grows over 255 makes its jump, and so other distances, longer */
		uint32_t now = 0;

		grew = false;
		for (uint32_t n = 0; n < r->count; n++) {
			r->instr[n].now = now;
			now += instr_units(&r->instr[n]);
		}
		r->instr[r->count].now = now;
		for (uint32_t n = 0; n < r->count; n++) {
			struct instr *i = &r->instr[n];
			uint8_t need;

			if (!i->jump)
				continue;
			i->arg = jump_distance(r, i);
			need = i->arg > 0xffff ? 2 : i->arg > 0xff ? 1 : 0;
			if (need > i->extended) {
				i->extended = need;
				grew = true;
			}
		}
	}
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static uint8_t *put_unit(uint8_t *p, uint8_t op, uint32_t arg)
{
	*p++ = op;
	*p++ = (uint8_t)arg;
	return p;
}

static const char *write_code(struct rewrite *r, struct code311 *out)
{
	uint8_t *p;

	out->code_len = 2 * (size_t)r->instr[r->count].now;
	out->code = p = malloc(out->code_len);
	if (!p)
		return "out of memory";
	for (uint32_t n = 0; n < r->count; n++) {
		const struct instr *i = &r->instr[n];

		if (i->op == OP_RETURN_VALUE) {
			p = put_unit(p, OP_SWAP, 2);
			p = put_unit(p, OP_POP_TOP, 0);
		} else if (i->put_in) {
			memcpy(p, r->prologue, 2 * (size_t)r->prologue_units);
			p += 2 * (size_t)r->prologue_units;
		}
		for (int shift = 8 * i->extended; shift > 0; shift -= 8)
			p = put_unit(p, OP_EXTENDED_ARG, i->arg >> shift);
		p = put_unit(p, i->op, i->arg);
		memset(p, 0, 2 * (size_t)i->caches);
		p += 2 * (size_t)i->caches;
	}
	return NULL;
}

/* Exception table: numbers of 6-bit groups, most significant first, bit 6 = more follows, bit 7 = first byte of an entry */
static bool exc_get(const uint8_t **p, const uint8_t *end, uint32_t *value)
{
	uint32_t v = 0;
	uint8_t b;

	do {
		if (*p == end || v > UINT32_MAX >> 6)
			return false;
		b = *(*p)++;
		v = v << 6 | (b & 63);
	} while (b & 64);
	*value = v;
	return true;
}

static uint8_t *exc_put(uint8_t *p, uint32_t value, uint8_t first)
{
	int shift = 30;

	while (shift > 0 && !(value >> shift))
		shift -= 6;
	for (; shift >= 0; shift -= 6, first = 0)
		*p++ = (uint8_t)(first | (shift ? 64 : 0) | (value >> shift & 63));
	return p;
}

/* One range, in pieces without the RETURN_VALUEs: these raise nothing, and behind their POP_TOP the stack is one lower */
static uint8_t *put_ranges(const struct rewrite *r, uint8_t *q, uint32_t from, uint32_t to, uint32_t handler,
			   uint32_t depth)
{
	while (from < to) {
		uint32_t stop = from;

		while (stop < to && r->instr[stop].op != OP_RETURN_VALUE)
			stop++;
		if (stop > from) {
			q = exc_put(q, landing(r, from), 128);
			q = exc_put(q, r->instr[stop].now - landing(r, from), 0);
			q = exc_put(q, landing(r, handler), 0);
			q = exc_put(q, depth + 2, 0); /* depth << 1 | keep lasti: the guard lies below everything */
		}
		from = stop + 1;
	}
	return q;
}

static const char *write_exceptions(const struct rewrite *r, struct code311 *out)
{
	const uint8_t *p = r->in->exceptions, *end = p + r->in->exceptions_len;
	size_t room = 0, returns = 1;
	uint8_t *q;

	for (uint32_t n = 0; n < r->count; n++)
		returns += r->instr[n].op == OP_RETURN_VALUE;
	for (size_t n = 0; n < r->in->exceptions_len; n++)
		room += r->in->exceptions[n] >> 7;
	out->exceptions = q = malloc(room * returns * 24 + 1);
	if (!q)
		return "out of memory";
	while (p < end) {
		uint32_t start, len, target, depth, from, to, handler;

		if (!(*p & 128) || !exc_get(&p, end, &start) || !exc_get(&p, end, &len) || !exc_get(&p, end, &target) ||
		    !exc_get(&p, end, &depth) || start > r->units || len > r->units - start)
			return "its exception table has an unknown form";
		from = instr_at(r, start);
		to = instr_at(r, start + len);
		handler = instr_at(r, target);
		if (from == UINT32_MAX || to == UINT32_MAX || handler >= r->count || from < r->first)
			return "its exception table has an unknown form";
		q = put_ranges(r, q, from, to, handler, depth);
	}
	out->exceptions_len = (size_t)(q - out->exceptions);
	return NULL;
}

/* Where an old unit is now: an instruction's first one at what was put in before it, the others (entries of the line
 * table may end inside a long instruction's caches) as far from its end as before */
static uint32_t unit_now(const struct rewrite *r, uint32_t old)
{
	const struct instr *i = &r->instr[r->owner[old]];

	return i->old == old ? i->now : i[1].now - (i[1].old - old);
}

/* Line table: entries of 1..8 units; a head byte 0x80 | code << 3 | units - 1, then varints or columns by code */
#define LINE_CODE(head) ((head) >> 3 & 15)
enum { LINE_ONE_0 = 10, LINE_ONE_2 = 12, LINE_NO_COLUMNS = 13, LINE_LONG = 14, LINE_NONE = 15 };

static size_t line_rest(const uint8_t *p, const uint8_t *end)
{
	size_t n = 0;

	while (p + n < end && !(p[n] & 128))
		n++;
	return n;
}

/* The location again, as seen right after it: no step of the line number */
static uint8_t *line_again(uint8_t *q, const uint8_t *head, size_t rest, uint32_t units)
{
	uint8_t code = LINE_CODE(*head);
	size_t step = 1;

	if (code >= LINE_ONE_0 && code <= LINE_ONE_2)
		code = LINE_ONE_0;
	*q++ = (uint8_t)(128 | code << 3 | (units - 1));
	if (code == LINE_NO_COLUMNS || code == LINE_LONG) {
		*q++ = 0; /* instead of the step, a varint */
		while (step <= rest && head[step] & 64)
			step++;
		memcpy(q, head + step + 1, rest - step);
		return q + (rest - step);
	}
	memcpy(q, head + 1, rest);
	return q + rest;
}

static const char *write_lines(const struct rewrite *r, struct code311 *out)
{
	const uint8_t *p = r->in->lines, *end = p + r->in->lines_len;
	uint8_t *q;
	uint32_t old = 0, now = 0;

	/* each entry may need further ones for what was put in: at most one per put-in and 8 units */
	out->lines = q = malloc(r->in->lines_len + (size_t)r->instr[r->count].now * 12 + 1);
	if (!q)
		return "out of memory";
	while (p < end) {
		size_t rest = line_rest(p + 1, end);
		uint8_t code = LINE_CODE(*p);
		uint32_t units = (*p & 7u) + 1, next, len;

		if (!(*p & 128) || units > r->units - old)
			return "its line table has an unknown form";
		next = unit_now(r, old + units);
		if ((code == LINE_NO_COLUMNS || code == LINE_LONG) && rest == 0)
			return "its line table has an unknown form";
		len = next - now;
		*q++ = (uint8_t)((*p & 0xf8) | ((len < LINE_UNITS_MAX ? len : LINE_UNITS_MAX) - 1));
		memcpy(q, p + 1, rest);
		q += rest;
		for (len -= len < LINE_UNITS_MAX ? len : LINE_UNITS_MAX; len;) {
			uint32_t part = len < LINE_UNITS_MAX ? len : LINE_UNITS_MAX;

			q = line_again(q, p, rest, part);
			len -= part;
		}
		old += units;
		now = next;
		p += 1 + rest;
	}
	if (old != r->units)
		return "its line table is too short";
	out->lines_len = (size_t)(q - out->lines);
	return NULL;
}

static void make_prologue(struct rewrite *r, unsigned int konst, const struct code311_arg *args, unsigned int arg_count)
{
	uint8_t *p = r->prologue;

	if (konst > 0xff)
		p = put_unit(p, OP_EXTENDED_ARG, konst >> 8);
	p = put_unit(p, OP_LOAD_CONST, konst);
	for (unsigned int i = 0; i < arg_count; i++) {
		if (args[i].local > 0xff)
			p = put_unit(p, OP_EXTENDED_ARG, args[i].local >> 8);
		p = put_unit(p, args[i].cell ? OP_LOAD_DEREF : OP_LOAD_FAST, args[i].local);
	}
	if (arg_count) {
		p = put_unit(p, OP_BUILD_TUPLE, arg_count);
		p = put_unit(p, OP_BINARY_OP, BINARY_MULTIPLY);
		for (int i = 0; i < BINARY_CACHES; i++)
			p = put_unit(p, OP_CACHE, 0);
	} else {
		p = put_unit(p, OP_UNARY_INVERT, 0);
	}
	r->prologue_units = (uint32_t)(p - r->prologue) / 2;
}

const char *code311_rewrite(const struct code311 *in, unsigned int konst, const struct code311_arg *args,
			    unsigned int arg_count, struct code311 *out)
{
	struct rewrite r = { .in = in, .units = (uint32_t)(in->code_len / 2) };
	const char *why = "out of memory";

	*out = (struct code311){ .stack = arg_count + 2 };
	if (in->code_len % 2 || in->code_len / 2 > UNITS_MAX || in->code_len == 0 || in->lines_len > 16 * UNITS_MAX ||
	    in->exceptions_len > 16 * UNITS_MAX)
		return "its bytecode is too long";
	if (konst > 0xffff || arg_count > CODE311_MAX_ARGS)
		return "it has too many constants or arguments";
	make_prologue(&r, konst, args, arg_count);
	r.instr = calloc(r.units + 1, sizeof(*r.instr));
	r.owner = malloc((r.units + 1) * sizeof(*r.owner));
	if (!r.instr || !r.owner)
		goto out;
	why = read_code(&r);
	if (why)
		goto out;
	place(&r);
	why = write_code(&r, out);
	if (!why)
		why = write_exceptions(&r, out);
	if (!why)
		why = write_lines(&r, out);
out:
	free(r.instr);
	free(r.owner);
	if (why)
		code311_fini(out);
	return why;
}

void code311_fini(struct code311 *code)
{
	free(code->code);
	free(code->exceptions);
	free(code->lines);
	*code = (struct code311){ 0 };
}
