/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The sampled blocks that are alive, by address, in fixed memory: a table of buckets without locks, allocations or
 * tombstones, and in front of it a filter that tells in one load that a block was not sampled, which is true of nearly all
 * blocks that are freed. A block belongs to one caller between its allocation and its release, so no two calls are ever
 * about the same address at the same time; calls about different ones may come from any threads and signal handlers.
 *
 * Both areas are MADV_WIPEONFORK where the kernel can: a forked child begins with an empty table.
 */
#ifndef SAFE_BLOCKS_H
#define SAFE_BLOCKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKS_MAX (1u << 20) /* address space is reserved for so many */
#define BLOCKS_PAGE_SHIFT 12
#define BLOCKS_FILTER (1u << 19) /* counters, one for a page and those 2 GiB, 4 GiB, ... behind it */

/** struct block - what is kept of a sampled block */
struct block {
	uint64_t bytes; /* as asked for */
	uint64_t usable; /* as the allocator gave */
	uint64_t weight; /* bytes that it stands for */
	uint64_t begin_ns; /* CLOCK_MONOTONIC */
	uint32_t stack;
	uint32_t kind;
};

extern _Atomic uint16_t *blocks_filter; /* BLOCKS_FILTER counters, all 0 before blocks_reserve() */

/** blocks_reserve - address space for table and filter; once. Context: thread. Return: 0 or -errno. */
int blocks_reserve(void);

/**
 * blocks_clear - forget all, and use room for @capacity blocks from now on (rounded up to a power of two, 64..BLOCKS_MAX)
 *
 * Context: thread; a call that runs meanwhile may leave one block behind. Return: the capacity.
 */
uint32_t blocks_clear(uint32_t capacity);

/** blocks_maybe - false: no sampled block begins at @address. Context: hook. */
static inline bool blocks_maybe(uintptr_t address)
{
	return atomic_load_explicit(&blocks_filter[address >> BLOCKS_PAGE_SHIFT & (BLOCKS_FILTER - 1)],
				    memory_order_relaxed) != 0;
}

/** blocks_put - a block is alive; what was known of its address is replaced. Context: hook. Return: false = no room. */
bool blocks_put(uintptr_t address, const struct block *block);

/** blocks_take - it goes. @block: what was kept. Context: hook. Return: false = it was not in the table. */
bool blocks_take(uintptr_t address, struct block *block);

/**
 * blocks_each - all blocks as they are; those that come or go meanwhile may be seen or not
 *
 * Context: thread.
 */
void blocks_each(void (*each)(void *arg, uintptr_t address, const struct block *block), void *arg);

#endif
