/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The interpreter lock as its pthread calls show it. The wrappers of lock calls (plugin/mutex.c) tell what they see of
 * addresses inside _PyRuntime; plugin/gil.c makes holds and waits of it.
 *
 * All CPythons of 3.8 to 3.13 keep (cond, mutex, switch_cond, switch_mutex) side by side. Taking: lock(mutex), wait(cond)
 * while it is held, lock(switch_mutex), signal(switch_cond). Dropping: lock(mutex), signal(cond); when another thread has
 * asked for it, lock(switch_mutex) and wait(switch_cond) for the successor. So signals say it all, whatever the offsets.
 */
#ifndef AGENT_HOOK_GIL_H
#define AGENT_HOOK_GIL_H

#include "agent/hook/hook.h"

#include <stdbool.h>
#include <stdint.h>

/** gil_range - _PyRuntime: first byte and the one behind it; equal until the plugin was started */
extern _Atomic uintptr_t gil_range[2];

/** gil_code - of an interpreter that may have more than one lock: the object that holds _PyRuntime, likewise */
extern _Atomic uintptr_t gil_code[2];

/** gil_inside - does an address lie in such a range? Context: hook. */
static inline bool gil_inside(_Atomic uintptr_t range[2], uintptr_t address)
{
	uintptr_t begin = atomic_load_explicit(&range[0], memory_order_relaxed);

	return address - begin < atomic_load_explicit(&range[1], memory_order_relaxed) - begin;
}

/**
 * gil_sees - may this be an interpreter's lock, and does the plugin record?
 * @caller: who calls the wrapper. Locks of further interpreters lie on the heap; CPython itself uses no other conditions
 *
 * Context: hook.
 */
static inline bool gil_sees(const volatile void *lock, const void *caller)
{
	return (gil_inside(gil_range, (uintptr_t)lock) || gil_inside(gil_code, (uintptr_t)caller)) && hook_on(ON_GIL);
}

/* Before the real call; gil_waited after it. Context: hook, the guard is down. */
void gil_locks(const pthread_mutex_t *m);
void gil_signals(const pthread_cond_t *c);
void gil_waits(const pthread_cond_t *c, const pthread_mutex_t *m, bool timed);
void gil_waited(const pthread_cond_t *c, int result);

#endif
