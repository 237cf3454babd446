/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Walking a native stack, from registers outwards. Rules come from cfi.h through a cache of this process's own; where no
 * table tells (code made at run time, hand-made frames) frame pointers are followed as far as they make sense.
 * Used by stack.c and by what walks other threads' stacks.
 */
#ifndef AGENT_STACK_UNWIND_H
#define AGENT_STACK_UNWIND_H

#include "agent/stack/module.h"

#include <stdbool.h>
#include <stdint.h>

/** struct unwind_regs - what a frame is found by */
struct unwind_regs {
	uintptr_t pc, sp, fp;
	uintptr_t lr; /* aarch64: of an interrupted frame; else 0 */
	bool fp_known; /* false: of a thread that we know little of */
	bool sp_above; /* aarch64: the frame was reached by a frame pointer; sp is somewhere from .sp on */
};

#define UNWIND_MODULES 8u

/** struct unwind - a walk; the caller's, some 700 bytes */
struct unwind {
	struct unwind_regs regs;
	uintptr_t low, high; /* words of the stack that may be read: [low, high) ... */
	uintptr_t copy; /* ... at this distance from where they are; 0 = in place, and high may be moved */
	bool exact; /* pc is an instruction that was interrupted, not a return address */
	bool cut, guessed; /* it ended early; a frame was found without a table */
	bool (*find)(uintptr_t pc, struct module *m); /* module_find(), or a list of the caller's */
	struct module *module; /* of .frame; NULL = none */
	uint32_t modules, next_module;
	struct module seen[UNWIND_MODULES]; /* during this walk: nobody can unload them */
};

/** unwind_here - begin at the caller. Context: hook. */
#define unwind_here(u)                                              \
	do {                                                        \
		struct unwind_regs regs_here_ = UNWIND_REGS_HERE(); \
		unwind_begin(u, &regs_here_);                       \
	} while (0)

/** unwind_begin - begin a walk of the calling thread's stack at @regs. Context: hook. */
void unwind_begin(struct unwind *u, const struct unwind_regs *regs);

/**
 * unwind_begin_copy - of a stack whose words [@low, @high) were copied to @words
 * @find: objects are found by it; their tables are read as it says (module.direct)
 *
 * Where fp is not known and a frame needs it, it is looked for among the words (guessed). Context: any.
 */
void unwind_begin_copy(struct unwind *u, const struct unwind_regs *regs, uintptr_t low, uintptr_t high,
		       const void *words, bool (*find)(uintptr_t pc, struct module *m));

/** unwind_pc - the current frame's address to look up: return address - 1, or what was interrupted. Context: hook. */
static inline uintptr_t unwind_pc(const struct unwind *u)
{
	return u->exact ? u->regs.pc : u->regs.pc - 1;
}

/** unwind_module - finds it, and remembers it for the walk. Call it once for each frame. Context: hook. NULL = none. */
const struct module *unwind_module(struct unwind *u);

/** unwind_step - to the caller's frame; after unwind_module(). Context: hook. Return: false = it was the last one. */
bool unwind_step(struct unwind *u);

#if defined(__x86_64__)
#define UNWIND_REGS_HERE()                                                             \
	({                                                                             \
		struct unwind_regs here_ = { .fp_known = true };                       \
		__asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2"  \
				 : "=&r"(here_.pc), "=&r"(here_.sp), "=&r"(here_.fp)); \
		here_;                                                                 \
	})
#elif defined(__aarch64__)
#define UNWIND_REGS_HERE()                                                             \
	({                                                                             \
		struct unwind_regs here_ = { .fp_known = true };                       \
		__asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29"              \
				 : "=&r"(here_.pc), "=&r"(here_.sp), "=&r"(here_.fp)); \
		here_;                                                                 \
	})
#endif

#endif
