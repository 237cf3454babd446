/* SPDX-License-Identifier: MulanPSL-2.0 */
/* A decoder for the few instructions that functions begin with; what it does not know ends the search. See quick_probe.h. */
#include "probe/quick_probe.h"

#include <stdbool.h>
#include <string.h>

#define INSTRUCTIONS_MAX 10
#define RSP 4
#define RDI 7

/* one instruction, as far as it is known */
struct insn {
	const uint8_t *at, *end; /* of what is left of the code */
	uint8_t rex;
	uint8_t mod, reg, rm; /* of its ModRM byte, with the bits of REX */
};

static bool take(struct insn *insn, size_t bytes)
{
	if ((size_t)(insn->end - insn->at) < bytes)
		return false;
	insn->at += bytes;
	return true;
}

/* ModRM byte with what belongs to it. */
static bool take_modrm(struct insn *insn)
{
	uint8_t byte, sib = 0;
	size_t more;

	if (!take(insn, 1))
		return false;
	byte = insn->at[-1];
	insn->mod = byte >> 6;
	insn->reg = (uint8_t)((byte >> 3 & 7) | (insn->rex & 4) << 1);
	insn->rm = (uint8_t)((byte & 7) | (insn->rex & 1) << 3);
	if (insn->mod == 3)
		return true;
	if ((byte & 7) == 4) {
		if (!take(insn, 1))
			return false;
		sib = insn->at[-1];
	}
	more = insn->mod == 1 ? 1 : insn->mod == 2 ? 4 : 0;
	if (insn->mod == 0 && ((byte & 7) == 5 || ((byte & 7) == 4 && (sib & 7) == 5)))
		more = 4;
	return take(insn, more);
}

static bool may_write(uint8_t reg)
{
	return reg != RSP && reg != RDI;
}

/* add, or, adc, sbb, and, sub, xor (not cmp): the second operand is the destination for even opcodes 01, 09, ... */
static bool arithmetic(struct insn *insn, uint8_t op)
{
	bool compare = (op & 0x38) == 0x38;

	switch (op & 7) {
	case 1: /* r/m, r */
		return take_modrm(insn) && (compare || (insn->mod == 3 && may_write(insn->rm)));
	case 3: /* r, r/m */
		return take_modrm(insn) && (compare || may_write(insn->reg));
	case 5: /* eax, imm32 */
		return take(insn, 4);
	default:
		return false;
	}
}

static bool two_bytes(struct insn *insn)
{
	if (!take(insn, 1))
		return false;
	switch (insn->at[-1]) {
	case 0xb6: /* movzx, movsx */
	case 0xb7:
	case 0xbe:
	case 0xbf:
		return take_modrm(insn) && may_write(insn->reg);
	default:
		return false;
	}
}

static bool harmless_op(struct insn *insn, uint8_t op)
{
	if (op < 0x40)
		return arithmetic(insn, op);
	if (op >= 0xb8 && op <= 0xbf) /* mov r, imm */
		return may_write((uint8_t)((op & 7) | (insn->rex & 1) << 3)) && take(insn, insn->rex & 8 ? 8 : 4);
	switch (op) {
	case 0x0f:
		return two_bytes(insn);
	case 0x81: /* arithmetic with a constant */
	case 0x83:
		return take_modrm(insn) && take(insn, op == 0x81 ? 4 : 1) &&
		       ((insn->reg & 7) == 7 || (insn->mod == 3 && may_write(insn->rm)));
	case 0x85: /* test */
		return take_modrm(insn);
	case 0x89: /* mov r/m, r */
		return take_modrm(insn) && insn->mod == 3 && may_write(insn->rm);
	case 0x8b: /* mov r, r/m */
	case 0x8d: /* lea */
		return take_modrm(insn) && may_write(insn->reg);
	case 0xa8: /* test al, imm8 */
		return take(insn, 1);
	case 0xa9: /* test eax, imm32 */
		return take(insn, 4);
	case 0xc1: /* shifts by a constant */
		return take_modrm(insn) && take(insn, 1) && insn->mod == 3 && may_write(insn->rm);
	case 0xf6: /* test r/m8, imm8 */
		return take_modrm(insn) && (insn->reg & 7) == 0 && take(insn, 1);
	case 0xf7: /* test r/m, imm32 */
		return take_modrm(insn) && (insn->reg & 7) == 0 && take(insn, 4);
	default:
		return false;
	}
}

/* Pass one that writes nothing but other registers. Return: false = it is not known to be one. */
static bool harmless(const uint8_t **code, const uint8_t *end)
{
	static const uint8_t endbr[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	struct insn insn = { .at = *code, .end = end };
	uint8_t op;

	if ((size_t)(end - *code) >= sizeof(endbr) && memcmp(*code, endbr, sizeof(endbr)) == 0) {
		*code += sizeof(endbr);
		return true;
	}
	if (insn.at < end && *insn.at == 0x64) /* fs: */
		insn.at++;
	if (insn.at < end && (*insn.at & 0xf0) == 0x40)
		insn.rex = *insn.at++;
	if (!take(&insn, 1))
		return false;
	op = insn.at[-1];
	if (!harmless_op(&insn, op))
		return false;
	*code = insn.at;
	return true;
}

/* Is this one that the kernel emulates? push, jcc */
static bool emulated(const uint8_t *code, const uint8_t *end)
{
	size_t left = (size_t)(end - code);

	if (left >= 2 && code[0] == 0x41) /* REX.B */
		return code[1] >= 0x50 && code[1] <= 0x57;
	if (left >= 1 && code[0] >= 0x50 && code[0] <= 0x57)
		return true;
	if (left >= 2 && code[0] >= 0x70 && code[0] <= 0x7f)
		return true;
	return left >= 6 && code[0] == 0x0f && code[1] >= 0x80 && code[1] <= 0x8f;
}

/*
 * Does anything from @last on look like a jump to between @first and @last? Every place is taken for an instruction, so none
 * is missed; what comes before has been decoded and is no jump.
 */
static bool jumped_to(const uint8_t *code, size_t bytes, size_t first, size_t last)
{
	for (size_t i = last; i < bytes; i++) {
		bool brief = (code[i] >= 0x70 && code[i] <= 0x7f) || code[i] == 0xeb;
		bool full = code[i] == 0xe9;
		bool branch = code[i] == 0x0f && i + 1 < bytes && code[i + 1] >= 0x80 && code[i + 1] <= 0x8f;
		size_t size = brief ? 2 : full ? 5 : branch ? 6 : 0;
		int32_t away = 0;
		int64_t to;

		if (!size || i + size > bytes)
			continue;
		if (brief)
			away = (int8_t)code[i + 1];
		else
			memcpy(&away, code + i + size - sizeof(away), sizeof(away));
		to = (int64_t)(i + size) + away;
		if (to >= (int64_t)first && to <= (int64_t)last)
			return true;
	}
	return false;
}

size_t quick_probe(const uint8_t *code, size_t bytes)
{
	const uint8_t *at = code, *end = code + bytes;

	for (int i = 0; i < INSTRUCTIONS_MAX; i++) {
		if (emulated(at, end))
			return jumped_to(code, bytes, 1, (size_t)(at - code)) ? 0 : (size_t)(at - code);
		if (!harmless(&at, end))
			return 0;
	}
	return 0;
}
