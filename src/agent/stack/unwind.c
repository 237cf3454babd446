/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Walking a native stack; see unwind.h.
 *
 * What is read of the stack lies between where the walk began and a bound that moves up page by page, each asked of the
 * kernel first and remembered by the thread: tables that lie cannot lead us out of mapped memory.
 */
#include "agent/stack/unwind.h"

#include "agent/stack/cfi.h"
#include "agent/stack/memory.h"
#include "base/hash64.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <ucontext.h>

#define PAGE 4096u
#define PAGES_DOWN 16u /* how far below what is known the stack may have grown meanwhile */
#define CACHE_SLOTS 16384u
#define SEARCH_BYTES (64u << 10)
#define FRAME_BYTES_MAX (8u << 20) /* of one frame: more is not believed */

/* Where a frame pointer points, the caller's and the return address lie: at the frame's end, so that the caller's sp is behind
 * them; or, on aarch64, anywhere in it. */
#if defined(__aarch64__)
#define RECORD_ENDS_FRAME false
#else
#define RECORD_ENDS_FRAME true
#endif

/* Sanitizers know who may read which part of a stack; we read them all. */
#define READS_STACKS __attribute__((no_sanitize("address", "thread", "undefined")))

/* pc -> rule. Both words of a slot are written without a lock; the first one is the key xor the rule, so that halves of
 * different writers do not pass for a whole. */
static struct {
	_Atomic uint64_t mixed, rule;
} cache[CACHE_SLOTS];

/* Which part of its stack this thread has found readable. */
static __thread struct {
	uintptr_t low, high;
} known __attribute__((tls_model("initial-exec")));

/* --- bounds ---------------------------------------------------------------------------------------------------------------- */

static uintptr_t page_of(uintptr_t at)
{
	return at & ~(uintptr_t)(PAGE - 1);
}

/* The stack as known, if @sp is in it or not far below. */
static bool reaches_known(uintptr_t sp)
{
	uintptr_t page;

	if (sp >= known.low && sp < known.high)
		return true;
	if (sp >= known.low || known.low - page_of(sp) > PAGES_DOWN * PAGE)
		return false;
	for (page = page_of(sp); page < known.low; page += PAGE)
		if (!memory_readable(page))
			return false;
	known.low = page_of(sp);
	return true;
}

static void bound_own(struct unwind *u, uintptr_t sp)
{
	if (!reaches_known(sp)) { /* another stack: of a signal handler, of a coroutine */
		known.low = page_of(sp);
		known.high = known.low + PAGE;
	}
	u->low = sp & ~(uintptr_t)7;
	u->high = known.high;
}

static bool extend(struct unwind *u, uintptr_t at)
{
	if (u->copy || at - u->high > FRAME_BYTES_MAX)
		return false;
	while (u->high <= at) {
		if (!memory_readable(u->high))
			return false;
		u->high += PAGE;
	}
	if (u->high > known.high && u->low >= known.low && u->low < known.high)
		known.high = u->high;
	return true;
}

READS_STACKS static bool stack_word(struct unwind *u, uintptr_t at, uintptr_t *value)
{
	if (at < u->low || at & 7 || (at + 8 > u->high && !extend(u, at)))
		return false;
	*value = *(const volatile uintptr_t *)(at + u->copy);
	return true;
}

void unwind_begin(struct unwind *u, const struct unwind_regs *regs)
{
	u->regs = *regs;
	u->copy = 0;
	u->find = module_find;
	u->exact = true;
	u->cut = u->guessed = false;
	u->modules = u->next_module = 0;
	bound_own(u, regs->sp);
}

void unwind_begin_copy(struct unwind *u, const struct unwind_regs *regs, uintptr_t low, uintptr_t high,
		       const void *words, bool (*find)(uintptr_t pc, struct module *m))
{
	u->regs = *regs;
	u->find = find;
	u->low = low;
	u->high = high;
	u->copy = (uintptr_t)words - low;
	u->exact = true;
	u->cut = u->guessed = false;
	u->modules = u->next_module = 0;
}

/* --- rules ----------------------------------------------------------------------------------------------------------------- */

const struct module *unwind_module(struct unwind *u)
{
	uintptr_t pc = unwind_pc(u);
	struct module *m;
	uint32_t i;

	for (i = 0; i < u->modules; i++) {
		m = &u->seen[i];
		if (pc >= m->begin && pc < m->end)
			return u->module = m;
	}
	m = &u->seen[u->next_module];
	if (!u->find(pc, m)) {
		m->begin = m->end = 0;
		return u->module = NULL;
	}
	u->next_module = (u->next_module + 1) % UNWIND_MODULES;
	u->modules += u->modules < UNWIND_MODULES;
	return u->module = m;
}

static uint64_t rule_of(const struct module *m, uintptr_t pc)
{
	uint64_t key = m->identity ^ pc, rule;
	size_t slot = (size_t)(pc * 0x9e3779b97f4a7c15u >> 50) % CACHE_SLOTS;

	rule = atomic_load_explicit(&cache[slot].rule, memory_order_relaxed);
	if ((atomic_load_explicit(&cache[slot].mixed, memory_order_relaxed) ^ rule) == key)
		return rule;
	rule = cfi_rule(m, pc);
	atomic_store_explicit(&cache[slot].mixed, key ^ rule, memory_order_relaxed);
	atomic_store_explicit(&cache[slot].rule, rule, memory_order_relaxed);
	return rule;
}

/* --- steps ----------------------------------------------------------------------------------------------------------------- */

static bool stop(struct unwind *u)
{
	u->cut = true;
	return false;
}

static uintptr_t plain(uintptr_t address)
{
#if defined(__aarch64__)
	return address & 0xffffffffffffull; /* without its signature */
#else
	return address;
#endif
}

/* Is the instruction before a call? A word of the stack that is no return address is seldom behind one. */
static bool behind_call(struct unwind *u, uintptr_t pc)
{
	uint8_t code[8];

	if (pc < PAGE || !memory_copy(code, pc - 8, sizeof(code)))
		return false;
#if defined(__x86_64__)
	/* e8 rel32; ff /2 in its lengths */
	return code[3] == 0xe8 || (code[6] == 0xff && (code[7] & 0x38) == 0x10) ||
	       (code[5] == 0xff && (code[6] & 0x38) == 0x10) || (code[4] == 0xff && (code[5] & 0x38) == 0x10) ||
	       (code[2] == 0xff && (code[3] & 0x38) == 0x10) || (code[1] == 0xff && (code[2] & 0x38) == 0x10);
#else
	uint32_t word = (uint32_t)code[4] | (uint32_t)code[5] << 8 | (uint32_t)code[6] << 16 | (uint32_t)code[7] << 24;

	/* bl, blr and its signed forms */
	return word >> 26 == 0x25 || (word & 0xfffffc1fu) == 0xd63f0000u || (word & 0xfefff800u) == 0xd63f0800u;
#endif
}

/* Nothing is known of the frame: where the frame pointer leads to what looks like a frame, believe it. */
static bool step_by_pointer(struct unwind *u)
{
	uintptr_t fp = u->regs.fp, caller_fp, pc;

	if (!u->regs.fp_known || fp < u->regs.sp || fp - u->regs.sp > FRAME_BYTES_MAX ||
	    !stack_word(u, fp, &caller_fp) || !stack_word(u, fp + 8, &pc))
		return stop(u);
	pc = plain(pc);
	if (!behind_call(u, pc))
		return stop(u);
	u->guessed = true;
	u->regs = (struct unwind_regs){
		.pc = pc,
		.sp = fp + 16,
		.fp = caller_fp,
		.fp_known = true,
		.sp_above = !RECORD_ENDS_FRAME,
	};
	u->exact = false;
	return true;
}

/*
 * Is @pc the kernel's trampoline? On aarch64 no table says so: Linux took it out of the vDSO in 5.8. Its two instructions do:
 * mov x8, #__NR_rt_sigreturn; svc #0 (arch/arm64/kernel/vdso/sigreturn.S).
 */
static bool at_trampoline(const struct unwind *u)
{
#if defined(__aarch64__)
	static const uint32_t trampoline[2] = { 0xd2801168u, 0xd4000001u };
	uint32_t code[2];

	return !u->regs.sp_above && memory_copy(code, u->regs.pc, sizeof(code)) &&
	       !memcmp(code, trampoline, sizeof(code));
#else
	return false;
#endif
}

/* The kernel's record of what it interrupted; at the return into its trampoline sp points at it, or at what is before. */
static bool step_over_signal(struct unwind *u)
{
	struct unwind_regs to = { .fp_known = true };
	uintptr_t context = u->regs.sp;

#if defined(__x86_64__)
	const size_t pc_at = offsetof(ucontext_t, uc_mcontext.gregs[REG_RIP]);
	const size_t sp_at = offsetof(ucontext_t, uc_mcontext.gregs[REG_RSP]);
	const size_t fp_at = offsetof(ucontext_t, uc_mcontext.gregs[REG_RBP]);
#else
	const size_t pc_at = offsetof(ucontext_t, uc_mcontext.pc);
	const size_t sp_at = offsetof(ucontext_t, uc_mcontext.sp);
	const size_t fp_at = offsetof(ucontext_t, uc_mcontext.regs[29]);

	context += 128; /* siginfo_t */
	if (!stack_word(u, context + offsetof(ucontext_t, uc_mcontext.regs[30]), &to.lr))
		return stop(u);
#endif
	if (!stack_word(u, context + pc_at, &to.pc) || !stack_word(u, context + sp_at, &to.sp) ||
	    !stack_word(u, context + fp_at, &to.fp) || !to.pc)
		return stop(u);
	u->regs = to;
	u->exact = true;
	if (u->copy)
		return to.sp >= u->low && to.sp < u->high ? true : stop(u);
	if (to.sp < u->low || to.sp >= u->high) /* the handler ran on a stack of its own */
		bound_own(u, to.sp);
	return true;
}

/* Does the call before @pc go straight to @function? */
static bool calls(uintptr_t pc, uintptr_t function)
{
	int32_t relative;
#if defined(__x86_64__)
	uint8_t code[5];

	if (pc < PAGE || !memory_copy(code, pc - 5, sizeof(code)) || code[0] != 0xe8)
		return false;
	memcpy(&relative, code + 1, sizeof(relative));
	return pc + (uintptr_t)(int64_t)relative == function;
#else
	uint32_t code;

	if (pc < PAGE || !memory_copy(&code, pc - 4, sizeof(code)) || code >> 26 != 0x25)
		return false;
	relative = (int32_t)(code << 6) >> 4; /* 26 bits, in words */
	return pc - 4 + (uintptr_t)(int64_t)relative == function;
#endif
}

/*
 * Nobody told this thread's frame pointer, and no frame further in has saved it: look for the place that it must point to. The
 * one whose return address is behind a call of this very function is it; else the first that looks like a frame.
 */
static bool search_pointer(struct unwind *u, uint64_t rule)
{
	uintptr_t at, function = cfi_function(u->module, unwind_pc(u)), likely = 0;
	uintptr_t end = u->high - u->regs.sp > SEARCH_BYTES ? u->regs.sp + SEARCH_BYTES : u->high;

	if (!u->copy || RULE_KIND(rule) != RULE_FP || !RULE_FP_SAVED(rule) || !RULE_RA_SAVED(rule))
		return false;
	for (at = u->regs.sp; at < end; at += 8) {
		uintptr_t cfa = at + (uintptr_t)RULE_CFA(rule), caller, pc;
		struct module m;

		if (!stack_word(u, cfa + (uintptr_t)RULE_RA_AT(rule), &pc) ||
		    !stack_word(u, cfa + (uintptr_t)RULE_FP_AT(rule), &caller))
			break;
		pc = plain(pc);
		if (!u->find(pc, &m))
			continue;
		if (calls(pc, function)) {
			likely = at;
			break;
		}
		if (!likely && (!caller || (caller > at && caller < u->high)) && behind_call(u, pc))
			likely = at;
	}
	if (!likely)
		return false;
	u->regs.fp = likely;
	u->regs.fp_known = true;
	u->guessed = true;
	return true;
}

/* Where the rule's frame ends. Return: false = nobody knows. */
static bool find_cfa(struct unwind *u, uint64_t rule, uintptr_t *cfa)
{
	if (RULE_KIND(rule) != RULE_SP) {
		if (!u->regs.fp_known && !search_pointer(u, rule))
			return false;
		*cfa = u->regs.fp + (uintptr_t)RULE_CFA(rule);
		return RULE_KIND(rule) != RULE_FP_WORD || stack_word(u, *cfa, cfa);
	}
	*cfa = u->regs.sp + (uintptr_t)RULE_CFA(rule);
	if (!u->regs.sp_above)
		return true;
	/* its frame record (fp, and lr behind it) is where the table says that they are saved, and fp points at it */
	*cfa = u->regs.fp - (uintptr_t)RULE_FP_AT(rule);
	return RULE_FP_SAVED(rule) && RULE_RA_SAVED(rule) && RULE_RA_AT(rule) == RULE_FP_AT(rule) + 8;
}

static bool step_by_rule(struct unwind *u, uint64_t rule)
{
	struct unwind_regs to = { 0 };
	uintptr_t cfa;

	if (!find_cfa(u, rule, &cfa))
		return stop(u);
	to.fp = u->regs.fp;
	to.fp_known = u->regs.fp_known;
	/* callers lie above, and not far; a leaf that has not touched the stack may share its caller's sp */
	if (cfa < u->regs.sp || (cfa == u->regs.sp && RULE_RA_SAVED(rule)) || cfa - u->regs.sp > FRAME_BYTES_MAX)
		return stop(u);
	to.pc = u->regs.lr;
	if (RULE_RA_SAVED(rule) && !stack_word(u, cfa + (uintptr_t)RULE_RA_AT(rule), &to.pc))
		return stop(u);
	if (RULE_FP_SAVED(rule)) {
		uintptr_t by = RULE_KIND(rule) == RULE_FP_WORD ? u->regs.fp : cfa;

		if (!stack_word(u, by + (uintptr_t)RULE_FP_AT(rule), &to.fp))
			return stop(u);
		to.fp_known = true;
	}
	to.pc = plain(to.pc);
	to.sp = cfa;
	if (!to.pc)
		return RULE_RA_SAVED(rule) ? false : stop(u);
	u->regs = to;
	u->exact = false;
	return true;
}

bool unwind_step(struct unwind *u)
{
	uint64_t rule = u->module ? rule_of(u->module, unwind_pc(u)) : RULE_NONE;

	switch (RULE_KIND(rule)) {
	case RULE_SP:
	case RULE_FP:
	case RULE_FP_WORD:
		return step_by_rule(u, rule);
	case RULE_SIGNAL:
		return u->regs.sp_above ? stop(u) : step_over_signal(u);
	case RULE_END:
		return false;
	case RULE_NONE:
		return at_trampoline(u) ? step_over_signal(u) : step_by_pointer(u);
	default:
		return stop(u);
	}
}
