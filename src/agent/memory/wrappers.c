/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Wrappers of the plugin Memory. Nearly all calls pass: an allocation that is not sampled costs a subtraction before it
 * goes on to the allocator, a release one load. All else is in memory/track.c. Context: hook, and no thread's own
 * allocations: nothing here or below allocates.
 */
#include "agent/hook/hook.h"
#include "agent/memory/track.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define SELDOM __attribute__((noinline, cold))

/* Wrapper of an allocating function: passes, or is looked at. @bytes: an expression of the arguments. */
#define ALLOCATING(id, bytes, params, args)       \
	static SELDOM void *id##_seen params      \
	{                                         \
		void *block = hook_real.id args;  \
                                                  \
		track_came(block, bytes);         \
		return block;                     \
	}                                         \
	void *hook_##id params                    \
	{                                         \
		if (LIKELY(track_passes(bytes)))  \
			return hook_real.id args; \
		return id##_seen args;            \
	}

#define FREEING(id, params, args)                            \
	static SELDOM void id##_seen params                  \
	{                                                    \
		track_went(block);                           \
		hook_real.id args;                           \
	}                                                    \
	void hook_##id params                                \
	{                                                    \
		if (LIKELY(!blocks_maybe((uintptr_t)block))) \
			hook_real.id args;                   \
		else                                         \
			id##_seen args;                      \
	}

/* Of a product that overflows the call fails: whatever is asked about it does not matter. */
ALLOCATING(malloc, bytes, (size_t bytes), (bytes))
ALLOCATING(calloc, count *size, (size_t count, size_t size), (count, size))
ALLOCATING(memalign, bytes, (size_t align, size_t bytes), (align, bytes))
ALLOCATING(aligned_alloc, bytes, (size_t align, size_t bytes), (align, bytes))
ALLOCATING(valloc, bytes, (size_t bytes), (bytes))
ALLOCATING(pvalloc, bytes, (size_t bytes), (bytes))
FREEING(free, (void *block), (block))

int hook_posix_memalign(void **block, size_t align, size_t bytes)
{
	int ret = hook_real.posix_memalign(block, align, bytes);

	if (!ret && !track_passes(bytes))
		track_came(*block, bytes);
	return ret;
}

/* --- realloc: the old block goes and a new one comes, unless there is no memory -------------------------------------- */

static void *resized(const struct track_was *was, void *block, size_t bytes)
{
	if (!block && bytes) {
		track_put_back(was);
		return NULL;
	}
	track_tell(was);
	track_came(block, bytes);
	return block;
}

static SELDOM void *realloc_seen(void *old, size_t bytes)
{
	struct track_was was;

	track_take(old, &was);
	return resized(&was, hook_real.realloc(old, bytes), bytes);
}

void *hook_realloc(void *old, size_t bytes)
{
	if (LIKELY(!blocks_maybe((uintptr_t)old) && track_passes(bytes)))
		return hook_real.realloc(old, bytes);
	return realloc_seen(old, bytes);
}

static SELDOM void *reallocarray_seen(void *old, size_t count, size_t size)
{
	struct track_was was;
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes))
		bytes = SIZE_MAX; /* fails */
	track_take(old, &was);
	return resized(&was, hook_real.reallocarray(old, count, size), bytes);
}

void *hook_reallocarray(void *old, size_t count, size_t size)
{
	if (LIKELY(!blocks_maybe((uintptr_t)old) && track_passes(count * size)))
		return hook_real.reallocarray(old, count, size);
	return reallocarray_seen(old, count, size);
}

/* --- mappings --------------------------------------------------------------------------------------------------------- */

#define CALLER __builtin_return_address(0)

void *hook_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	void *mapped = hook_real.mmap(at, bytes, prot, flags, fd, offset);

	track_mapped(mapped, bytes, prot, flags, CALLER);
	return mapped;
}

void *hook_mmap64(void *at, size_t bytes, int prot, int flags, int fd, off64_t offset)
{
	void *mapped = hook_real.mmap64(at, bytes, prot, flags, fd, offset);

	track_mapped(mapped, bytes, prot, flags, CALLER);
	return mapped;
}

int hook_munmap(void *at, size_t bytes)
{
	track_unmap(at, bytes);
	return hook_real.munmap(at, bytes);
}

void *hook_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
	struct track_was was;
	void *to = NULL, *moved;
	va_list more;

	if (flags & MREMAP_FIXED) {
		va_start(more, flags);
		to = va_arg(more, void *);
		va_end(more);
	}
	track_take_map(old, old_bytes, &was);
	moved = hook_real.mremap(old, old_bytes, bytes, flags, to);
	if (moved == MAP_FAILED)
		track_put_back_map(&was);
	else
		track_moved(&was, old, old_bytes, moved, bytes);
	return moved;
}

/* --- C++: where the allocator brings operators of its own, which do not call malloc through a slot ----------------------- */

#define BYTES size_t bytes
#define ALIGN size_t align
#define BLOCK void *block
#define NOTHROW const void *nothrow

ALLOCATING(op_new, bytes, (BYTES), (bytes))
ALLOCATING(op_new_array, bytes, (BYTES), (bytes))
ALLOCATING(op_new_nothrow, bytes, (BYTES, NOTHROW), (bytes, nothrow))
ALLOCATING(op_new_array_nothrow, bytes, (BYTES, NOTHROW), (bytes, nothrow))
ALLOCATING(op_new_align, bytes, (BYTES, ALIGN), (bytes, align))
ALLOCATING(op_new_array_align, bytes, (BYTES, ALIGN), (bytes, align))
ALLOCATING(op_new_align_nothrow, bytes, (BYTES, ALIGN, NOTHROW), (bytes, align, nothrow))
ALLOCATING(op_new_array_align_nothrow, bytes, (BYTES, ALIGN, NOTHROW), (bytes, align, nothrow))
FREEING(op_delete, (BLOCK), (block))
FREEING(op_delete_array, (BLOCK), (block))
FREEING(op_delete_size, (BLOCK, BYTES), (block, bytes))
FREEING(op_delete_array_size, (BLOCK, BYTES), (block, bytes))
FREEING(op_delete_nothrow, (BLOCK, NOTHROW), (block, nothrow))
FREEING(op_delete_array_nothrow, (BLOCK, NOTHROW), (block, nothrow))
FREEING(op_delete_align, (BLOCK, ALIGN), (block, align))
FREEING(op_delete_array_align, (BLOCK, ALIGN), (block, align))
FREEING(op_delete_size_align, (BLOCK, BYTES, ALIGN), (block, bytes, align))
FREEING(op_delete_array_size_align, (BLOCK, BYTES, ALIGN), (block, bytes, align))
