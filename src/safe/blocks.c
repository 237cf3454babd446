/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sampled blocks that are alive; see blocks.h. */
#include "safe/blocks.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define WAYS 16u /* slots of a bucket: two cache lines of addresses */
#define BUCKETS_MAX (BLOCKS_MAX / WAYS)
#define BEING_WRITTEN 1u /* an address that no block has */
#define STICKS UINT16_MAX /* a counter that got so far stays there */

static _Atomic uint16_t no_filter[BLOCKS_FILTER]; /* pages of zeros that nobody ever writes */

_Atomic uint16_t *blocks_filter = no_filter;

static struct {
	_Atomic uintptr_t *address; /* WAYS a bucket; 0 = free */
	struct block *block; /* of the same slot */
	_Atomic uint32_t buckets; /* in use, a power of two; 0 = none */
} table;

static void *reserve(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_WIPEONFORK); /* else a child begins with what its parent had: no harm */
	return at;
}

int blocks_reserve(void)
{
	_Atomic uintptr_t *address;
	_Atomic uint16_t *filter;
	struct block *block;

	if (table.block)
		return 0;
	address = reserve(BLOCKS_MAX * sizeof(*address));
	block = reserve(BLOCKS_MAX * sizeof(*block));
	filter = reserve(BLOCKS_FILTER * sizeof(*filter));
	if (!address || !block || !filter) {
		if (address)
			munmap(address, BLOCKS_MAX * sizeof(*address));
		if (block)
			munmap(block, BLOCKS_MAX * sizeof(*block));
		if (filter)
			munmap(filter, BLOCKS_FILTER * sizeof(*filter));
		return -ENOMEM;
	}
	table.address = address;
	table.block = block;
	blocks_filter = filter;
	return 0;
}

uint32_t blocks_clear(uint32_t capacity)
{
	uint32_t buckets = 4;

	while (buckets * WAYS < capacity && buckets < BUCKETS_MAX)
		buckets *= 2;
	atomic_store_explicit(&table.buckets, 0, memory_order_relaxed);
	/* private anonymous memory: zero again, and given back */
	madvise(table.address, BLOCKS_MAX * sizeof(*table.address), MADV_DONTNEED);
	madvise(table.block, BLOCKS_MAX * sizeof(*table.block), MADV_DONTNEED);
	madvise(blocks_filter, BLOCKS_FILTER * sizeof(*blocks_filter), MADV_DONTNEED);
	atomic_store_explicit(&table.buckets, buckets, memory_order_relaxed);
	return buckets * WAYS;
}

static void filter_add(uintptr_t address)
{
	_Atomic uint16_t *count = &blocks_filter[address >> BLOCKS_PAGE_SHIFT & (BLOCKS_FILTER - 1)];
	uint16_t now = atomic_load_explicit(count, memory_order_relaxed);

	while (now != STICKS &&
	       !atomic_compare_exchange_weak_explicit(count, &now, now + 1, memory_order_relaxed, memory_order_relaxed))
		;
}

static void filter_remove(uintptr_t address)
{
	_Atomic uint16_t *count = &blocks_filter[address >> BLOCKS_PAGE_SHIFT & (BLOCKS_FILTER - 1)];
	uint16_t now = atomic_load_explicit(count, memory_order_relaxed);

	while (now && now != STICKS &&
	       !atomic_compare_exchange_weak_explicit(count, &now, now - 1, memory_order_relaxed, memory_order_relaxed))
		;
}

/* First slot of one of the two buckets that an address may be in. */
static uint32_t bucket_of(uintptr_t address, uint32_t buckets, int which)
{
	uint64_t hash = (uint64_t)(address >> 4) * (which ? 0xc2b2ae3d27d4eb4full : 0x9e3779b97f4a7c15ull);

	return (uint32_t)(hash >> 40) % buckets * WAYS;
}

static bool put_into(uint32_t first, uintptr_t address, const struct block *block)
{
	uint32_t i;

	for (i = first; i < first + WAYS; i++) {
		uintptr_t empty = 0;

		if (atomic_load_explicit(&table.address[i], memory_order_relaxed) ||
		    !atomic_compare_exchange_strong_explicit(&table.address[i], &empty, BEING_WRITTEN,
							     memory_order_acquire, memory_order_relaxed))
			continue;
		table.block[i] = *block;
		/* release: who sees the address sees what is kept of it */
		atomic_store_explicit(&table.address[i], address, memory_order_release);
		return true;
	}
	return false;
}

bool blocks_put(uintptr_t address, const struct block *block)
{
	uint32_t buckets = atomic_load_explicit(&table.buckets, memory_order_relaxed);
	struct block old;

	if (!buckets || address <= BEING_WRITTEN)
		return false;
	if (blocks_maybe(address))
		blocks_take(address, &old); /* its release was not seen: inside libc, or while we were switched */
	filter_add(address);
	if (put_into(bucket_of(address, buckets, 0), address, block) ||
	    put_into(bucket_of(address, buckets, 1), address, block))
		return true;
	filter_remove(address);
	return false;
}

static bool take_from(uint32_t first, uintptr_t address, struct block *block)
{
	uint32_t i;

	for (i = first; i < first + WAYS; i++) {
		if (atomic_load_explicit(&table.address[i], memory_order_acquire) != address)
			continue;
		*block = table.block[i];
		/* release: the next owner writes what we have read */
		atomic_store_explicit(&table.address[i], 0, memory_order_release);
		return true;
	}
	return false;
}

bool blocks_take(uintptr_t address, struct block *block)
{
	uint32_t buckets = atomic_load_explicit(&table.buckets, memory_order_relaxed);

	if (!buckets || address <= BEING_WRITTEN ||
	    (!take_from(bucket_of(address, buckets, 0), address, block) &&
	     !take_from(bucket_of(address, buckets, 1), address, block)))
		return false;
	filter_remove(address);
	return true;
}

void blocks_each(void (*each)(void *arg, uintptr_t address, const struct block *block), void *arg)
{
	uint32_t slots = atomic_load_explicit(&table.buckets, memory_order_relaxed) * WAYS;
	struct block block;
	uint32_t i;

	for (i = 0; i < slots; i++) {
		uintptr_t address = atomic_load_explicit(&table.address[i], memory_order_acquire);

		if (address <= BEING_WRITTEN)
			continue;
		block = table.block[i];
		/* acquire fence: what was read was read before we look whether the block is still the same */
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&table.address[i], memory_order_relaxed) == address)
			each(arg, address, &block);
	}
}
