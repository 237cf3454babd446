/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Native hooks: which functions are seen is the table (hook/table.h), how they are put in and taken out is hook/got.h.
 * Plugins switch their rows here; a thread of our own, systrace/hook, does the work and lives only while hooks are in.
 *
 * What every wrapper keeps to: no allocation, no lock, no stdio, no call into Python, no system call beyond the clock;
 * errno as the real function left it; the guard is down while the real function runs and up while we record. hook_real
 * is filled before any slot is written and never changes; nothing that a wrapper reads is ever freed, so a thread may be
 * inside one when the hooks go. A forked child inherits the slots: its wrappers record while its parent's plugin is on.
 */
#ifndef AGENT_HOOK_HOOK_H
#define AGENT_HOOK_HOOK_H

#include "agent/agent.h"
#include "agent/hook/table.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#undef fread_unlocked /* macros of some C libraries */
#undef fwrite_unlocked

#define HOOK_ID(id, symbol, version, plugins, type, params) HOOK_##id,
#define HOOK_POINTER(id, symbol, version, plugins, type, params) type(*id) params;
#define HOOK_WRAPPER(id, symbol, version, plugins, type, params) type hook_##id params;

enum hook_id { HOOKS(HOOK_ID) HOOK_COUNT };

/** hook_real - what callers get without us, there before a slot leads to a wrapper; NULL: this C library has no such function */
struct hook_real {
	HOOKS(HOOK_POINTER)
};
extern struct hook_real hook_real;

HOOKS(HOOK_WRAPPER)

/* volatile: signal handlers on this thread read it; initial-exec: touching it never allocates */
extern __thread volatile int hook_depth __attribute__((tls_model("initial-exec")));

/**
 * hook_on - does a wrapper record this call? false: switched off meanwhile, or we are inside ourselves
 * @plugin: its bit
 *
 * Children ask the pool's header too: their own guard keeps what was on when they were forked. Context: hook.
 */
static inline bool hook_on(uint32_t plugin)
{
	return !hook_depth && pool_on(&agent.pool, plugin) &&
	       (atomic_load_explicit(&agent.pool.head->on_mask, memory_order_relaxed) & plugin);
}

#define HOOK_SHARDS 64u

/** hook_counts - calls of each row by some hash of the thread; shared with forked children, never freed */
extern _Atomic uint64_t (*_Atomic hook_counts)[HOOK_COUNT];

/** hook_count - one more call of a row. Context: hook. */
static inline void hook_count(enum hook_id id)
{
	/* the guard's address stands for the thread: no two of them often add to one line */
	uint32_t shard = (uint32_t)(((uintptr_t)&hook_depth >> 8) * 2654435761u) / (UINT32_MAX / HOOK_SHARDS + 1);

	atomic_fetch_add_explicit(&hook_counts[shard][id], 1, memory_order_relaxed);
}

/** hook_counted - calls of a row so far, children's included. Context: any. */
uint64_t hook_counted(enum hook_id id);

/** hook_counted_all - calls of all rows of a plugin. Context: any. */
uint64_t hook_counted_all(uint32_t plugin);

/** hook_put - a record into the pool, behind the guard; errno is kept. Context: hook. Return: false = dropped. */
bool hook_put(const void *rec, uint32_t bytes, enum pool_source source);

/**
 * hook_switch - put a plugin's functions in, or take them out
 * @plugin: its bit; the plugin switches its bit of the pool itself: after this on the way in, before it on the way out
 * @only: an object that holds this address is the only one that is touched for this plugin; NULL = all objects
 * @deadline_ns: CLOCK_MONOTONIC; how long to wait for the first pass
 *
 * Context: control thread. Return: 0; -ETIMEDOUT: it goes on, and will be done as soon as the loader lets go (a thread
 * of the job is inside dlopen); -errno with @err.
 */
int hook_switch(uint32_t plugin, bool on, const void *only, uint64_t deadline_ns, struct st_err *err);

/** HOOK_WAIT_NS - how long enabling waits for the first pass */
#define HOOK_WAIT_NS 3000000000u

/** hook_tick_add - call @tick on systrace/hook every 50 ms while @plugin's functions are in. Context: control thread. */
void hook_tick_add(uint32_t plugin, void (*tick)(void));

/** struct hook_status - what the last pass found */
struct hook_status {
	uint32_t wanted; /* bits of plugins */
	bool pending; /* a pass was asked for and is not done */
	uint64_t passes, pass_ns; /* so far; the last one took */
	uint32_t objects, slots; /* with slots of ours; slots that hold wrappers */
	uint32_t foreign, refused;
	uint32_t missing; /* wanted functions that this C library does not have */
};

/**
 * hook_status - as of now; @each: told per object with hooks, on the caller's thread; may be NULL
 *
 * Context: control thread. Objects beyond the first 256 are only in the sums.
 */
void hook_status(struct hook_status *status,
		 void (*each)(void *arg, const char *path, uint32_t slots, uint32_t foreign, uint32_t refused),
		 void *arg);

/** hook_after_fork - a child has no such thread. Context: fork. */
void hook_after_fork(void);

/** hook_take_out - a promoted child: take out what it inherited. Context: thread. */
void hook_take_out(void);

#endif
