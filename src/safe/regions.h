/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Memory that the job mapped itself, in fixed room and without locks. Mappings can be cut anywhere, so they are searched
 * by range; there are few of them beside blocks, and each call here stands beside a system call. MADV_WIPEONFORK where the
 * kernel can: a forked child begins with none.
 */
#ifndef SAFE_REGIONS_H
#define SAFE_REGIONS_H

#include "safe/blocks.h"

#define REGIONS_MAX 4096u

/** regions_reserve - address space for them; once. Context: thread. Return: 0 or -errno. */
int regions_reserve(void);

/** regions_clear - forget all. Context: thread; a call that runs meanwhile may leave one behind. */
void regions_clear(void);

/** regions_put - [@address, @address + block->bytes) is mapped. Context: hook. Return: false = no room. */
bool regions_put(uintptr_t address, const struct block *block);

/**
 * regions_take - take out one region that overlaps [@address, @address + @bytes)
 * @at, @block: the whole region; what lies outside of the range is the caller's to put back
 *
 * Called until it says no, so that every overlapping region goes. Context: hook. Return: false = none overlaps.
 */
bool regions_take(uintptr_t address, uint64_t bytes, uintptr_t *at, struct block *block);

/** regions_each - all regions as they are. Context: thread. */
void regions_each(void (*each)(void *arg, uintptr_t address, const struct block *block), void *arg);

#endif
