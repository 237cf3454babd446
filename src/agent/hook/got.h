/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Rewrites the slots through which the objects of this process call functions of other objects (.got, .got.plt), so that a
 * plugin sees the calls while it is on and the job runs its own code while it is off. Only the procedure that was found
 * safe: names are listed inside dl_iterate_phdr's callback, each object is patched outside of it while a reference on it
 * is held, which waits for any dlopen in flight; a slot that holds something unexpected is left alone.
 *
 * For a thread of our own only: it may wait for seconds behind an import.
 */
#ifndef AGENT_HOOK_GOT_H
#define AGENT_HOOK_GOT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct got_want - one function to be seen */
struct got_want {
	const char *name;
	const char *version; /* symbol version that the caller must ask for; NULL = any */
	void *wrapper; /* what the slots shall hold */
	void *real; /* what they hold otherwise; got_resolve() fills it */
	bool off; /* wanted no more: real goes back into the slots, also in a pass that installs others */
	const void *only; /* an address: the wrapper belongs into the object that holds it alone; NULL = into all */
};

/** struct got_count - what a pass did, summed over objects */
struct got_count {
	uint32_t objects; /* looked at */
	uint32_t changed; /* slots written */
	uint32_t already; /* slots that held what they should */
	uint32_t foreign; /* slots of a wanted name that hold an address of somebody else: left alone */
	uint32_t refused; /* slots in pages that could not be made writable */
	uint32_t gone; /* objects that went, or are in another namespace */
};

/** got_each - told per object with at least one slot of a wanted name; may be NULL. @path "" = the program itself */
typedef void (*got_each)(void *arg, const char *path, const struct got_count *count);

/**
 * got_resolve - fill @want->real: what a caller in the global scope gets
 *
 * That is the first definition in load order, so another tracer or allocator that is preloaded before or after us is
 * called as it would be without us. Context: thread. Return: 0, -ENOENT when nobody defines it (in that version).
 */
int got_resolve(struct got_want *want);

/**
 * got_apply - put the wrappers in, or take them out
 * @wants: resolved ones; those with real NULL are skipped
 * @install: false puts the resolved addresses back
 *
 * Walks all objects but our own, libc, ld.so, libpthread, libdl, libgcc and the vdso. Context: thread of ours. Idempotent.
 * Return: 0, -ENOMEM, -ENOSYS without the loader's functions.
 */
int got_apply(const struct got_want *wants, size_t count, bool install, struct got_count *sum, got_each each,
	      void *arg);

/**
 * got_each_object - dl_iterate_phdr that no fork interrupts
 *
 * A child forked while a thread is inside dl_iterate_phdr inherits the loader's lock taken: its first dlopen, or exception,
 * would wait for ever. Context: thread of ours. Return: what @each returned.
 */
struct dl_phdr_info;
int got_each_object(int (*each)(struct dl_phdr_info *info, size_t size, void *arg), void *arg);

/** got_fork_prepare/got_fork_parent/got_fork_child - around fork, for got_each_object. Context: atfork handlers. */
void got_fork_prepare(void);
void got_fork_parent(void);
void got_fork_child(void);

/** got_generation - changes whenever an object is loaded or unloaded; cheap. Context: thread. */
uint64_t got_generation(void);

#endif
