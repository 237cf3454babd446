/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The table of distinct stacks; see intern.h. Open addressing by hash, frames in one array that only grows. */
#include "agent/stack/intern.h"

#include "base/hash64.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define PROBES 64u

struct slot {
	_Atomic uint64_t hash; /* 0 = free */
	_Atomic uint32_t at; /* first word of the stack, 0 = being written (for ever, where a child died meanwhile) */
	_Atomic uint32_t told;
};

#define NAMES 16384u

struct name {
	_Atomic uint64_t hash; /* 0 = free */
	_Atomic uint32_t told;
};

static struct table {
	struct name name[INTERN_KINDS][NAMES];
	_Atomic uint32_t stacks;
	_Atomic uint32_t words; /* given out; 0 is nobody's */
	_Atomic uint64_t full;
	struct slot slot[INTERN_SLOTS];
	uint64_t word[INTERN_WORDS]; /* count and flags, then the frames */
} * _Atomic table;

static const void *pool_of;

int intern_start(const void *pool_head)
{
	struct table *made;

	if (atomic_load_explicit(&table, memory_order_relaxed) && pool_of == pool_head)
		return 0;
	/* pages come with their first use; the old table is left to hooks that are still in it */
	made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (made == MAP_FAILED)
		return -ENOMEM;
	atomic_store_explicit(&made->words, 1, memory_order_relaxed);
	pool_of = pool_head;
	atomic_store_explicit(&table, made, memory_order_release);
	return 0;
}

static uint64_t head_word(const struct stack *stack)
{
	return (uint64_t)stack->flags << 32 | stack->count;
}

static bool same(const struct table *t, uint32_t at, const struct stack *stack)
{
	return t->word[at] == head_word(stack) &&
	       !memcmp(&t->word[at + 1], stack->frame, stack->count * sizeof(stack->frame[0]));
}

/* Room for the stack, filled in; 0 = none left. */
static uint32_t store(struct table *t, const struct stack *stack)
{
	uint32_t at = atomic_load_explicit(&t->words, memory_order_relaxed);

	do {
		if (at > INTERN_WORDS || stack->count + 1 > INTERN_WORDS - at)
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(&t->words, &at, at + stack->count + 1, memory_order_relaxed,
							memory_order_relaxed));
	t->word[at] = head_word(stack);
	memcpy(&t->word[at + 1], stack->frame, stack->count * sizeof(stack->frame[0]));
	return at;
}

uint32_t intern_find(const struct stack *stack, bool *fresh)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);
	uint64_t hash;
	uint32_t i;

	*fresh = false;
	if (!t || !stack->count)
		return 0;
	hash = hash64(stack->frame, stack->count * sizeof(stack->frame[0])) | 1;
	for (i = 0; i < PROBES; i++) {
		uint32_t index = (uint32_t)(hash >> 32) + i;
		struct slot *slot = &t->slot[index % INTERN_SLOTS];
		uint64_t held = atomic_load_explicit(&slot->hash, memory_order_relaxed);
		uint32_t at;

		if (!held && atomic_load_explicit(&t->words, memory_order_relaxed) + stack->count >= INTERN_WORDS)
			break;
		if (!held && atomic_compare_exchange_strong_explicit(&slot->hash, &held, hash, memory_order_relaxed,
								     memory_order_relaxed)) {
			at = store(t, stack);
			/* release: whoever sees the place sees the frames */
			atomic_store_explicit(&slot->at, at, memory_order_release);
			if (!at)
				break;
			atomic_fetch_add_explicit(&t->stacks, 1, memory_order_relaxed);
			*fresh = true;
			return index % INTERN_SLOTS + 1;
		}
		if (held != hash)
			continue;
		/* a stack that is being written by another thread, or by one we interrupted, is passed: told twice then */
		at = atomic_load_explicit(&slot->at, memory_order_acquire);
		if (at && same(t, at, stack)) {
			*fresh = !atomic_load_explicit(&slot->told, memory_order_relaxed);
			return index % INTERN_SLOTS + 1;
		}
	}
	atomic_fetch_add_explicit(&t->full, 1, memory_order_relaxed);
	return 0;
}

void intern_told(uint32_t id)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);

	if (t && id && id <= INTERN_SLOTS)
		atomic_store_explicit(&t->slot[id - 1].told, 1, memory_order_relaxed);
}

uint32_t intern_get(uint32_t id, struct stack *stack)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);
	uint32_t at = t && id && id <= INTERN_SLOTS ? atomic_load_explicit(&t->slot[id - 1].at, memory_order_acquire)
						    : 0;

	stack->count = 0;
	if (!at || (uint32_t)t->word[at] > STACK_FRAMES_MAX)
		return 0;
	stack->count = (uint32_t)t->word[at];
	stack->flags = (uint32_t)(t->word[at] >> 32);
	memcpy(stack->frame, &t->word[at + 1], stack->count * sizeof(stack->frame[0]));
	return stack->count;
}

uint32_t intern_name(enum intern_kind kind, uint64_t hash, bool *fresh)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);
	uint32_t i;

	*fresh = false;
	hash |= 1;
	for (i = 0; t && i < PROBES; i++) {
		uint32_t index = ((uint32_t)(hash >> 32) + i) % NAMES;
		struct name *name = &t->name[kind][index];
		uint64_t held = 0;

		if (atomic_compare_exchange_strong_explicit(&name->hash, &held, hash, memory_order_relaxed,
							    memory_order_relaxed) ||
		    held == hash) {
			*fresh = !atomic_load_explicit(&name->told, memory_order_relaxed);
			return index + 1;
		}
	}
	return 0;
}

void intern_name_told(enum intern_kind kind, uint32_t id)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);

	if (t && id && id <= NAMES)
		atomic_store_explicit(&t->name[kind][id - 1].told, 1, memory_order_relaxed);
}

bool intern_name_is_told(enum intern_kind kind, uint32_t id)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);

	return t && id && id <= NAMES && atomic_load_explicit(&t->name[kind][id - 1].told, memory_order_relaxed);
}

uint64_t intern_mark(void)
{
	return (uintptr_t)atomic_load_explicit(&table, memory_order_acquire);
}

void intern_counts(uint32_t *stacks, uint64_t *full)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);

	*stacks = t ? atomic_load_explicit(&t->stacks, memory_order_relaxed) : 0;
	*full = t ? atomic_load_explicit(&t->full, memory_order_relaxed) : 0;
}
