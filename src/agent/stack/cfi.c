/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Unwind tables; see cfi.h. Every byte is read within the object's bounds: a damaged table gives RULE_NONE or RULE_STOP. */
#include "agent/stack/cfi.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#define REG_FP 6u
#define REG_SP 7u
#define REG_RA 16u
#define RA_STARTS_SAVED 1 /* at the CFA - 8, as every CIE says */
#elif defined(__aarch64__)
#define REG_FP 29u
#define REG_SP 31u
#define REG_RA 30u
#define RA_STARTS_SAVED 0
#else
#error "unwind tables: this processor's registers are not known here"
#endif

/* DW_EH_PE_... */
#define PE_OMIT 0xffu
#define PE_FORMAT 0x0fu
#define PE_PCREL 0x10u
#define PE_DATAREL 0x30u
#define PE_INDIRECT 0x80u
#define PE_TABLE 0x3bu /* datarel | sdata4: the only search table that linkers write */

#define ENTRY_BYTES 8u /* of the search table */
#define STATES 8 /* DW_CFA_remember_state; compilers nest one */

/* Bytes being read. @delta added to a pointer into them gives the address in the object. */
struct cursor {
	const uint8_t *at, *end;
	uintptr_t delta;
	bool bad;
};

enum place { PLACE_SAME, PLACE_SAVED, PLACE_BY_FP, PLACE_UNDEFINED, PLACE_ELSE };

struct place_of {
	enum place place;
	int64_t offset; /* from the CFA; BY_FP: from the frame pointer */
};

struct row {
	enum { CFA_REG, CFA_WORD, CFA_ELSE } cfa;
	uint64_t reg;
	int64_t offset;
	struct place_of fp, ra;
};

struct cie {
	uint64_t code_align;
	int64_t data_align;
	uint8_t encoding; /* of addresses in FDEs */
	bool augmented, signal;
	struct cursor program;
};

struct machine {
	const struct cie *cie;
	struct row row, initial;
	struct row saved[STATES];
	int depth;
	uintptr_t loc;
};

/* --- reading ------------------------------------------------------------------------------------------------------------- */

static uint64_t take(struct cursor *c, size_t bytes)
{
	uint64_t value = 0;

	if (c->bad || (size_t)(c->end - c->at) < bytes) {
		c->bad = true;
		return 0;
	}
	memcpy(&value, c->at, bytes);
	c->at += bytes;
	return value;
}

static uint64_t take_uleb(struct cursor *c)
{
	uint64_t value = 0;
	unsigned int shift = 0, byte;

	do {
		byte = (unsigned int)take(c, 1);
		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80 && !c->bad);
	return value;
}

static int64_t take_sleb(struct cursor *c)
{
	uint64_t value = 0;
	unsigned int shift = 0, byte;

	do {
		byte = (unsigned int)take(c, 1);
		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80 && !c->bad);
	if (shift < 64 && byte & 0x40)
		value |= ~(uint64_t)0 << shift;
	return (int64_t)value;
}

static void skip(struct cursor *c, uint64_t bytes)
{
	if (c->bad || bytes > (uint64_t)(c->end - c->at))
		c->bad = true;
	else
		c->at += bytes;
}

static uint64_t take_format(struct cursor *c, uint8_t format)
{
	switch (format) {
	case 0x00: /* absptr */
	case 0x04: /* udata8 */
	case 0x0c: /* sdata8 */
		return take(c, 8);
	case 0x01:
		return take_uleb(c);
	case 0x02:
		return take(c, 2);
	case 0x03:
		return take(c, 4);
	case 0x09:
		return (uint64_t)take_sleb(c);
	case 0x0a:
		return (uint64_t)(int16_t)take(c, 2);
	case 0x0b:
		return (uint64_t)(int32_t)take(c, 4);
	default:
		c->bad = true;
		return 0;
	}
}

static uintptr_t take_pointer(struct cursor *c, uint8_t encoding)
{
	uintptr_t place = (uintptr_t)c->at + c->delta;
	uint64_t value = take_format(c, encoding & PE_FORMAT);

	if ((encoding & 0x70) == PE_PCREL)
		value += place;
	else if (encoding & 0x70)
		c->bad = true; /* relative to what is not known here */
	if (encoding & PE_INDIRECT)
		c->bad = true;
	return value;
}

static struct cursor cursor_of(const struct module_view *view, uintptr_t at)
{
	return (struct cursor){ view->at, view->end, at - (uintptr_t)view->at, false };
}

/* One CIE or FDE behind its length. Return: false where there is none. */
static bool open_entry(const struct module *m, uintptr_t at, struct module_view *view, struct cursor *c)
{
	uint32_t length;

	if (!module_view(m, at, sizeof(view->room), view) || view->end - view->at < 8)
		return false;
	memcpy(&length, view->at, 4);
	if (!length || length == 0xffffffffu) /* 64-bit tables: nobody writes them */
		return false;
	*c = cursor_of(view, at);
	c->at += 4;
	/* in place there may be more than a view shows */
	if (m->direct && length <= m->end - at - 4)
		c->end = c->at + length;
	else if ((size_t)(c->end - c->at) >= length)
		c->end = c->at + length;
	else
		return false; /* longer than a copy can be */
	return true;
}

static bool read_cie(const struct module *m, uintptr_t at, struct module_view *view, struct cie *cie)
{
	struct cursor c;
	const char *augmentation;
	uint64_t version, bytes;
	const uint8_t *data;

	*cie = (struct cie){ 0 };
	if (!open_entry(m, at, view, &c) || take(&c, 4) != 0)
		return false;
	version = take(&c, 1);
	augmentation = (const char *)c.at;
	while (take(&c, 1) && !c.bad)
		;
	if (c.bad || (version != 1 && version != 3))
		return false;
	cie->code_align = take_uleb(&c);
	cie->data_align = take_sleb(&c);
	if ((version == 1 ? take(&c, 1) : take_uleb(&c)) != REG_RA)
		return false;
	if (*augmentation == 'z') {
		cie->augmented = true;
		bytes = take_uleb(&c);
		data = c.at;
		while (*++augmentation && !c.bad) {
			if (*augmentation == 'R')
				cie->encoding = (uint8_t)take(&c, 1);
			else if (*augmentation == 'L')
				take(&c, 1);
			else if (*augmentation == 'P')
				take_format(&c, (uint8_t)take(&c, 1) & PE_FORMAT);
			else if (*augmentation == 'S')
				cie->signal = true;
			else if (*augmentation != 'B') /* B: return addresses are signed with the other key */
				return false;
		}
		c.at = data;
		skip(&c, bytes);
	} else if (*augmentation) {
		return false;
	}
	cie->program = c;
	return !c.bad;
}

/* --- the program of a table -------------------------------------------------------------------------------------------------- */

static void set_place(struct row *row, uint64_t reg, enum place place, int64_t offset)
{
	struct place_of *of = reg == REG_FP ? &row->fp : reg == REG_RA ? &row->ra : NULL;

	if (of)
		*of = (struct place_of){ place, offset };
}

static void restore_place(struct machine *m, uint64_t reg)
{
	if (reg == REG_FP)
		m->row.fp = m->initial.fp;
	else if (reg == REG_RA)
		m->row.ra = m->initial.ra;
}

static void set_cfa(struct machine *m, uint64_t reg, int64_t offset)
{
	m->row.cfa = CFA_REG;
	m->row.reg = reg;
	m->row.offset = offset;
}

/* An expression that begins with DW_OP_breg<fp> offset; @rest: what comes after it. Return: false = another one. */
static bool take_by_fp(struct cursor *c, int64_t *offset, struct cursor *rest)
{
	uint64_t bytes = take_uleb(c);

	*rest = *c;
	skip(c, bytes);
	rest->end = c->at;
	if (c->bad || take(rest, 1) != 0x70 + REG_FP)
		return false;
	*offset = take_sleb(rest);
	return !rest->bad;
}

/* Frames that align their stack: the CFA is a word that the frame pointer leads to, ... */
static void set_cfa_expression(struct machine *m, struct cursor *c)
{
	struct cursor rest;

	m->row.cfa = CFA_ELSE;
	if (take_by_fp(c, &m->row.offset, &rest) && rest.end - rest.at == 1 && *rest.at == 0x06 /* deref */) {
		m->row.cfa = CFA_WORD;
		m->row.reg = REG_FP;
	}
}

/* ... and registers are saved beside it. */
static void set_expression(struct machine *m, struct cursor *c)
{
	uint64_t reg = take_uleb(c);
	struct cursor rest;
	int64_t offset;
	bool by_fp = take_by_fp(c, &offset, &rest) && rest.at == rest.end;

	set_place(&m->row, reg, by_fp ? PLACE_BY_FP : PLACE_ELSE, by_fp ? offset : 0);
}

static void run_extended(struct machine *m, struct cursor *c, unsigned int op)
{
	const struct cie *cie = m->cie;
	uint64_t reg;

	switch (op) {
	case 0x00: /* nop */
	case 0x2d: /* aarch64: return addresses are signed from here on; the bits are masked anyway */
		break;
	case 0x01: /* set_loc */
		m->loc = take_pointer(c, cie->encoding);
		break;
	case 0x02: /* advance_loc1, 2, 4 */
	case 0x03:
	case 0x04:
		m->loc += take(c, 1u << (op - 2)) * cie->code_align;
		break;
	case 0x05: /* offset_extended */
		reg = take_uleb(c);
		set_place(&m->row, reg, PLACE_SAVED, (int64_t)take_uleb(c) * cie->data_align);
		break;
	case 0x06: /* restore_extended */
		restore_place(m, take_uleb(c));
		break;
	case 0x07: /* undefined */
		set_place(&m->row, take_uleb(c), PLACE_UNDEFINED, 0);
		break;
	case 0x08: /* same_value */
		set_place(&m->row, take_uleb(c), PLACE_SAME, 0);
		break;
	case 0x09: /* register */
		set_place(&m->row, take_uleb(c), PLACE_ELSE, 0);
		take_uleb(c);
		break;
	case 0x0a: /* remember_state */
		if (m->depth == STATES)
			c->bad = true;
		else
			m->saved[m->depth++] = m->row;
		break;
	case 0x0b: /* restore_state */
		if (!m->depth)
			c->bad = true;
		else
			m->row = m->saved[--m->depth];
		break;
	case 0x0c: /* def_cfa */
		reg = take_uleb(c);
		set_cfa(m, reg, (int64_t)take_uleb(c));
		break;
	case 0x0d: /* def_cfa_register */
		m->row.reg = take_uleb(c);
		break;
	case 0x0e: /* def_cfa_offset */
		m->row.offset = (int64_t)take_uleb(c);
		break;
	case 0x0f: /* def_cfa_expression */
		set_cfa_expression(m, c);
		break;
	case 0x10: /* expression */
		set_expression(m, c);
		break;
	case 0x16: /* val_expression */
		set_place(&m->row, take_uleb(c), PLACE_ELSE, 0);
		skip(c, take_uleb(c));
		break;
	case 0x11: /* offset_extended_sf */
		reg = take_uleb(c);
		set_place(&m->row, reg, PLACE_SAVED, take_sleb(c) * cie->data_align);
		break;
	case 0x12: /* def_cfa_sf */
		reg = take_uleb(c);
		set_cfa(m, reg, take_sleb(c) * cie->data_align);
		break;
	case 0x13: /* def_cfa_offset_sf */
		m->row.offset = take_sleb(c) * cie->data_align;
		break;
	case 0x14: /* val_offset */
		set_place(&m->row, take_uleb(c), PLACE_ELSE, 0);
		take_uleb(c);
		break;
	case 0x15: /* val_offset_sf */
		set_place(&m->row, take_uleb(c), PLACE_ELSE, 0);
		take_sleb(c);
		break;
	case 0x2e: /* GNU_args_size */
		take_uleb(c);
		break;
	case 0x2f: /* GNU_negative_offset_extended */
		reg = take_uleb(c);
		set_place(&m->row, reg, PLACE_SAVED, -(int64_t)take_uleb(c) * cie->data_align);
		break;
	default:
		c->bad = true;
		break;
	}
}

/* Up to the row that holds at @pc. */
static bool run(struct machine *m, struct cursor *c, uintptr_t pc)
{
	while (c->at < c->end && !c->bad) {
		unsigned int op = (unsigned int)take(c, 1), low = op & 0x3f;
		struct row before = m->row;

		if (op >> 6 == 1)
			m->loc += low * m->cie->code_align;
		else if (op >> 6 == 2)
			set_place(&m->row, low, PLACE_SAVED, (int64_t)take_uleb(c) * m->cie->data_align);
		else if (op >> 6 == 3)
			restore_place(m, low);
		else
			run_extended(m, c, op);
		if (m->loc > pc) {
			m->row = before;
			return !c->bad;
		}
	}
	return !c->bad;
}

static bool packs(int64_t offset, unsigned int bits)
{
	return offset % 8 == 0 && offset / 8 >= -(1ll << (bits - 1)) && offset / 8 < 1ll << (bits - 1);
}

static uint64_t pack(const struct row *row)
{
	enum rule_kind kind = row->cfa == CFA_WORD ? RULE_FP_WORD : row->reg == REG_SP ? RULE_SP : RULE_FP;

	if (row->ra.place == PLACE_UNDEFINED)
		return RULE_PACK(RULE_END, 0, 0, 0, 0, 0);
	/* the packed form says only once by what: both by the frame pointer, or neither */
	if ((row->cfa == CFA_WORD && row->fp.place == PLACE_SAVED) ||
	    (row->cfa != CFA_WORD && row->fp.place == PLACE_BY_FP))
		return RULE_PACK(RULE_STOP, 0, 0, 0, 0, 0);
	if (row->cfa == CFA_ELSE || (row->reg != REG_SP && row->reg != REG_FP) || !packs(row->offset, 21) ||
	    row->ra.place >= PLACE_BY_FP || row->fp.place == PLACE_ELSE || !packs(row->fp.offset, 14) ||
	    !packs(row->ra.offset, 14))
		return RULE_PACK(RULE_STOP, 0, 0, 0, 0, 0);
	return RULE_PACK(kind, row->offset / 8, row->fp.place == PLACE_SAVED || row->fp.place == PLACE_BY_FP,
			 row->fp.offset / 8, row->ra.place == PLACE_SAVED, row->ra.offset / 8);
}

/* --- finding the table ------------------------------------------------------------------------------------------------------- */

/* The search table of .eh_frame_hdr. Return: the last FDE that begins at or before @pc, 0 = none. */
static uintptr_t search(const struct module *m, uintptr_t pc)
{
	uintptr_t header = m->unwind_header, table;
	struct module_view view;
	struct cursor c;
	uint32_t word;
	const uint8_t *encoding = (const uint8_t *)&word;
	uint64_t low = 0, high;
	int64_t wanted = (int64_t)(pc - header);
	int32_t entry[2];

	if (!header || !module_view(m, header, 32, &view))
		return 0;
	c = cursor_of(&view, header);
	word = (uint32_t)take(&c, 4);
	if (c.bad || encoding[0] != 1 || encoding[2] == PE_OMIT || encoding[3] != PE_TABLE)
		return 0;
	take_pointer(&c, encoding[1]);
	high = take_pointer(&c, encoding[2]);
	table = (uintptr_t)c.at + c.delta;
	if (c.bad || high > (m->end - header) / ENTRY_BYTES)
		return 0;
	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (!module_view(m, table + middle * ENTRY_BYTES, ENTRY_BYTES, &view) ||
		    view.end - view.at < (ptrdiff_t)ENTRY_BYTES)
			return 0;
		memcpy(entry, view.at, sizeof(entry));
		if (entry[0] <= wanted)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low || !module_view(m, table + (low - 1) * ENTRY_BYTES, ENTRY_BYTES, &view) ||
	    view.end - view.at < (ptrdiff_t)ENTRY_BYTES)
		return 0;
	memcpy(entry, view.at, sizeof(entry));
	return header + (uintptr_t)(int64_t)entry[1];
}

/* Return: the cursor stands behind the FDE's addresses; false: the tables do not cover @pc. */
static bool open_fde(const struct module *m, uintptr_t pc, struct module_view *view, struct module_view *cie_view,
		     struct cursor *c, struct cie *cie, uintptr_t *begin)
{
	uintptr_t fde = search(m, pc), place;
	uint64_t back, bytes;

	if (!fde || !open_entry(m, fde, view, c))
		return false;
	place = (uintptr_t)c->at + c->delta;
	back = take(c, 4);
	if (!back || c->bad || !read_cie(m, place - back, cie_view, cie))
		return false;
	*begin = take_pointer(c, cie->encoding);
	bytes = take_format(c, cie->encoding & PE_FORMAT);
	if (cie->augmented)
		skip(c, take_uleb(c));
	return !c->bad && pc >= *begin && pc - *begin < bytes;
}

uint64_t cfi_rule(const struct module *m, uintptr_t pc)
{
	struct module_view view, cie_view;
	struct machine machine = { .row = { .ra = { RA_STARTS_SAVED ? PLACE_SAVED : PLACE_SAME, -8 } } };
	struct cursor c;
	struct cie cie;

	if (!open_fde(m, pc, &view, &cie_view, &c, &cie, &machine.loc))
		return RULE_PACK(RULE_NONE, 0, 0, 0, 0, 0);
	if (cie.signal)
		return RULE_PACK(RULE_SIGNAL, 0, 0, 0, 0, 0);
	machine.cie = &cie;
	if (!run(&machine, &cie.program, UINTPTR_MAX))
		return RULE_PACK(RULE_STOP, 0, 0, 0, 0, 0);
	machine.initial = machine.row;
	if (!run(&machine, &c, pc))
		return RULE_PACK(RULE_STOP, 0, 0, 0, 0, 0);
	return pack(&machine.row);
}

uintptr_t cfi_function(const struct module *m, uintptr_t pc)
{
	struct module_view view, cie_view;
	struct cursor c;
	struct cie cie;
	uintptr_t begin;

	return open_fde(m, pc, &view, &cie_view, &c, &cie, &begin) ? begin : 0;
}
