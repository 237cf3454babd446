/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Unwind tables: from an address of code to how the caller's frame is found, packed into 64 bits so that a cache can hold
 * it. Reads .eh_frame_hdr and .eh_frame (DWARF 5, 6.4; LSB, "Exception Frames"). Compilers need no more of the CFA than the
 * stack pointer, the frame pointer or a word that the frame pointer leads to; anything else is RULE_STOP.
 * Used by unwind.c.
 */
#ifndef AGENT_STACK_CFI_H
#define AGENT_STACK_CFI_H

#include "agent/stack/module.h"

#include <stdint.h>

enum rule_kind {
	RULE_NONE, /* no table tells: frame pointers may */
	RULE_SP, /* CFA = sp + offset */
	RULE_FP, /* CFA = fp + offset */
	RULE_FP_WORD, /* CFA = *(fp + offset): frames that align the stack */
	RULE_END, /* the outermost frame */
	RULE_SIGNAL, /* the kernel's frame below a signal handler */
	RULE_STOP /* described in a way that is not followed */
};

/* A rule, in bits: kind 3, offset 21 (in 8 bytes, signed), fp saved 1 and where 14, return address saved 1 and where 14. The
 * places count from the CFA in 8 bytes, signed; with RULE_FP_WORD that of fp counts from fp. Not saved: fp is as it was; the return address is in the link register. */
#define RULE_PACK(kind, cfa, fp_saved, fp_at, ra_saved, ra_at)                             \
	((uint64_t)(kind) | ((uint64_t)(cfa)&0x1fffff) << 3 | (uint64_t)(fp_saved) << 24 | \
	 ((uint64_t)(fp_at)&0x3fff) << 25 | (uint64_t)(ra_saved) << 39 | ((uint64_t)(ra_at)&0x3fff) << 40)
#define RULE_KIND(r) ((enum rule_kind)((r)&7))
#define RULE_SIGNED(r, at, bits) ((int64_t)((r) << (64 - (at) - (bits))) >> (64 - (bits)))
#define RULE_CFA(r) (8 * RULE_SIGNED(r, 3, 21)) /* bytes */
#define RULE_FP_SAVED(r) ((r) >> 24 & 1)
#define RULE_FP_AT(r) (8 * RULE_SIGNED(r, 25, 14))
#define RULE_RA_SAVED(r) ((r) >> 39 & 1)
#define RULE_RA_AT(r) (8 * RULE_SIGNED(r, 40, 14))

/** cfi_rule - how the frame of @pc leads to its caller's. Context: hook; some 0.3 us. */
uint64_t cfi_rule(const struct module *m, uintptr_t pc);

/** cfi_function - first address of the function part that @pc lies in, by the same tables; 0 = unknown. Context: hook. */
uintptr_t cfi_function(const struct module *m, uintptr_t pc);

#endif
