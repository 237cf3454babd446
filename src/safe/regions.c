/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Mappings of the job; see regions.h. */
#include "safe/regions.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define BEING_WRITTEN 1u /* an address that no mapping has */

struct regions {
	_Atomic uint32_t used; /* slots behind this one were never used */
	_Atomic uintptr_t address[REGIONS_MAX]; /* 0 = free */
	_Atomic uint64_t bytes[REGIONS_MAX]; /* of the same slot: the search looks at these two only */
	struct block block[REGIONS_MAX];
};
static struct regions *regions;

int regions_reserve(void)
{
	void *at;

	if (regions)
		return 0;
	at = mmap(NULL, sizeof(*regions), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	madvise(at, sizeof(*regions), MADV_WIPEONFORK);
	regions = at;
	return 0;
}

void regions_clear(void)
{
	madvise(regions, sizeof(*regions), MADV_DONTNEED);
}

bool regions_put(uintptr_t address, const struct block *block)
{
	uint32_t i, used;

	for (i = 0; regions && i < REGIONS_MAX; i++) {
		uintptr_t empty = 0;

		if (atomic_load_explicit(&regions->address[i], memory_order_relaxed) ||
		    !atomic_compare_exchange_strong_explicit(&regions->address[i], &empty, BEING_WRITTEN,
							     memory_order_acquire, memory_order_relaxed))
			continue;
		atomic_store_explicit(&regions->bytes[i], block->bytes, memory_order_relaxed);
		regions->block[i] = *block;
		used = atomic_load_explicit(&regions->used, memory_order_relaxed);
		while (used <= i && !atomic_compare_exchange_weak_explicit(&regions->used, &used, i + 1,
									   memory_order_relaxed, memory_order_relaxed))
			;
		/* release: who sees the address sees what is kept of it */
		atomic_store_explicit(&regions->address[i], address, memory_order_release);
		return true;
	}
	return false;
}

bool regions_take(uintptr_t address, uint64_t bytes, uintptr_t *at, struct block *block)
{
	uint32_t i, used = regions ? atomic_load_explicit(&regions->used, memory_order_relaxed) : 0;

	for (i = 0; i < used; i++) {
		uintptr_t begin = atomic_load_explicit(&regions->address[i], memory_order_acquire);

		if (begin <= BEING_WRITTEN || begin >= address + bytes ||
		    begin + atomic_load_explicit(&regions->bytes[i], memory_order_relaxed) <= address)
			continue;
		/* whoever takes it owns the slot until it is free again */
		if (!atomic_compare_exchange_strong_explicit(&regions->address[i], &begin, BEING_WRITTEN,
							     memory_order_acquire, memory_order_relaxed))
			continue;
		*at = begin;
		*block = regions->block[i];
		/* release: the next owner writes what we have read */
		atomic_store_explicit(&regions->address[i], 0, memory_order_release);
		return true;
	}
	return false;
}

void regions_each(void (*each)(void *arg, uintptr_t address, const struct block *block), void *arg)
{
	uint32_t i, used = regions ? atomic_load_explicit(&regions->used, memory_order_relaxed) : 0;

	for (i = 0; i < used; i++) {
		uintptr_t address = atomic_load_explicit(&regions->address[i], memory_order_acquire);
		struct block block;

		if (address <= BEING_WRITTEN)
			continue;
		block = regions->block[i];
		/* acquire fence: read before we look whether it is still the same */
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&regions->address[i], memory_order_relaxed) == address)
			each(arg, address, &block);
	}
}
