/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin GIL: who holds the interpreter lock, who waits for it, who was made to drop it (hook/gil.h). Only the object that
 * holds _PyRuntime is hooked. Written down by spool/sink_chrome.c.
 */
#include "agent/hook/gil.h"

#include "agent/plugin.h"
#include "agent/python/python.h"
#include "safe/clock.h"
#include "wire/record.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

uintptr_t gil_range[2];

/* Addresses of the lock's parts, 0 = not seen yet. Written by whoever sees them first: all see the same. */
static struct {
	_Atomic uintptr_t cond;
	_Atomic uintptr_t first_signal; /* one of the two conditions */
	_Atomic uint32_t epoch; /* grows with each start: what a thread remembers from before is void */
	_Atomic uint64_t min_ns; /* shorter holds and waits are left out, for SYSTRACE_BUDGET_PCT */
	_Atomic uint64_t holds, waits, forced; /* recorded */
	_Atomic uint64_t left_out;
} gil;

/* What this thread does. Touched by the thread alone, outside of signal handlers: those do not run Python code. */
static __thread struct {
	uint32_t epoch;
	bool waited; /* it was held when we came */
	bool dropped; /* just now: a wait for the successor may follow */
	uint32_t timeouts;
	uint64_t take_ns; /* when it began to take, 0 = it does not */
	uint64_t hold_ns; /* since when it holds, 0 = does not, or not known */
	uint64_t forced_ns;
} mine __attribute__((tls_model("initial-exec")));

#define MUTEX_AT (sizeof(pthread_cond_t))
#define SWITCH_COND_AT (MUTEX_AT + sizeof(pthread_mutex_t))
#define SWITCH_MUTEX_AT (SWITCH_COND_AT + sizeof(pthread_cond_t))

/* Part of the lock at an address, as its offset from cond; -1 = none, or not known yet. */
static intptr_t part(const volatile void *at)
{
	uintptr_t cond = atomic_load_explicit(&gil.cond, memory_order_relaxed);
	uint32_t epoch = atomic_load_explicit(&gil.epoch, memory_order_relaxed);

	if (mine.epoch != epoch) {
		memset(&mine, 0, sizeof(mine));
		mine.epoch = epoch;
	}
	return cond ? (intptr_t)((uintptr_t)at - cond) : -1;
}

static void put(enum gil_what what, uint64_t begin_ns, uint64_t end_ns, uint32_t timeouts)
{
	struct rec_gil rec = {
		.head = { .bytes = sizeof(rec),
			  .type = REC_GIL,
			  .step = (uint32_t)atomic_load_explicit(&agent.pool.head->step, memory_order_relaxed) + 1 },
		.begin_ns = begin_ns,
		.dur_ns = end_ns - begin_ns,
		.what = what,
		.timeouts = timeouts,
	};
	uint64_t least_ns = atomic_load_explicit(&gil.min_ns, memory_order_relaxed);
	_Atomic uint64_t *count = what == GIL_HOLD ? &gil.holds : what == GIL_WAIT ? &gil.waits : &gil.forced;

	if (rec.dur_ns < least_ns)
		count = &gil.left_out;
	atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
	if (rec.dur_ns >= least_ns)
		hook_put(&rec, sizeof(rec), POOL_SRC_GIL);
}

void gil_locks(const pthread_mutex_t *m)
{
	intptr_t at = part(m);

	if (at == (intptr_t)MUTEX_AT && !mine.hold_ns && !mine.take_ns) {
		mine.take_ns = clock_mono_ns();
		mine.dropped = false;
	}
}

/* Two conditions are signalled, the lower one by who drops. */
static void learn_signal(uintptr_t at)
{
	uintptr_t first = 0;

	if (atomic_compare_exchange_strong(&gil.first_signal, &first, at) || first == at)
		return;
	if (first + SWITCH_COND_AT == at)
		atomic_store_explicit(&gil.cond, first, memory_order_relaxed);
	else if (at + SWITCH_COND_AT == first)
		atomic_store_explicit(&gil.cond, at, memory_order_relaxed);
}

/* The lock's own mutex is held here, so holds of different threads cannot overlap. */
void gil_signals(const pthread_cond_t *c)
{
	intptr_t at = part(c);
	uint64_t now_ns;

	if (at < 0 && !atomic_load_explicit(&gil.cond, memory_order_relaxed)) {
		learn_signal((uintptr_t)c);
		return;
	}
	now_ns = clock_mono_ns();
	if (at == 0) {
		if (mine.hold_ns)
			put(GIL_HOLD, mine.hold_ns, now_ns, 0);
		mine.hold_ns = mine.take_ns = 0;
		mine.dropped = true;
	} else if (at == (intptr_t)SWITCH_COND_AT) {
		if (mine.take_ns && mine.waited)
			put(GIL_WAIT, mine.take_ns, now_ns, mine.timeouts);
		mine.hold_ns = now_ns;
		mine.take_ns = 0;
		mine.waited = mine.dropped = false;
		mine.timeouts = 0;
	}
}

void gil_waits(const pthread_cond_t *c, const pthread_mutex_t *m, bool timed)
{
	intptr_t at = part(c);

	/* nothing else in there is waited for with a time */
	if (at < 0 && timed && (uintptr_t)m == (uintptr_t)c + MUTEX_AT) {
		atomic_store_explicit(&gil.cond, (uintptr_t)c, memory_order_relaxed);
		at = 0;
	}
	if (at == 0)
		mine.waited = true;
	else if (at == (intptr_t)SWITCH_COND_AT && mine.dropped)
		mine.forced_ns = clock_mono_ns();
}

void gil_waited(const pthread_cond_t *c, int result)
{
	intptr_t at = part(c);

	if (at == 0 && result == ETIMEDOUT)
		mine.timeouts++;
	if (at == (intptr_t)SWITCH_COND_AT && mine.forced_ns) {
		put(GIL_FORCED, mine.forced_ns, clock_mono_ns(), 0);
		mine.forced_ns = 0;
	}
}

/* --- the plugin ------------------------------------------------------------------------------------------------------ */

static int find_runtime(struct st_err *err)
{
	const ElfW(Sym) *symbol = NULL;
	void *runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
	Dl_info info;

	if (!runtime || !dladdr1(runtime, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol || !symbol->st_size)
		return err_set(err, -ENOTSUP, "there is no CPython interpreter in this process");
	if (dlsym(RTLD_DEFAULT, "_Py_MergeZeroLocalRefcount"))
		return err_set(err, -ENOTSUP, "this is a free-threaded CPython: it has no interpreter lock");
	gil_range[1] = (uintptr_t)runtime + symbol->st_size;
	gil_range[0] = (uintptr_t)runtime;
	return 0;
}

static int gil_check(const struct plugin_args *args, struct st_err *err)
{
	return find_runtime(err);
}

static int gil_start(const struct plugin_args *args, struct st_err *err)
{
	int ret;

	atomic_store(&gil.min_ns, 0);
	if (pool_on(&agent.pool, ON_GIL))
		return 0;
	atomic_fetch_add(&gil.epoch, 1);
	ret = hook_switch(ON_GIL, true, (const void *)gil_range[0], clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret < 0 && ret != -ETIMEDOUT)
		return ret;
	pool_switch(&agent.pool, ON_GIL, true);
	return 0;
}

static void gil_stop(void)
{
	struct st_err ignored;

	pool_switch(&agent.pool, ON_GIL, false);
	hook_switch(ON_GIL, false, NULL, clock_mono_ns() + HOOK_WAIT_NS, &ignored);
}

static uint64_t gil_calls(void)
{
	return atomic_load(&gil.holds) + atomic_load(&gil.waits) + atomic_load(&gil.forced) +
	       atomic_load(&gil.left_out);
}

static int gil_back_off(unsigned int level, char *what, size_t room)
{
	static const uint32_t min_us[] = { 100, 1000, 5000 };

	if (level > sizeof(min_us) / sizeof(min_us[0]))
		return -ERANGE;
	atomic_store(&gil.min_ns, min_us[level - 1] * 1000u);
	snprintf(what, room, "only holds and waits of %u us and more are kept now", min_us[level - 1]);
	return 0;
}

static void gil_status(char *text, size_t room)
{
	snprintf(text, room, "%llu holds, %llu waits, %llu forced switches",
		 (unsigned long long)atomic_load(&gil.holds), (unsigned long long)atomic_load(&gil.waits),
		 (unsigned long long)atomic_load(&gil.forced));
}

const struct plugin plugin_gil = {
	.id = PLUGIN_GIL,
	.check = gil_check,
	.start = gil_start,
	.stop = gil_stop,
	.calls = gil_calls,
	.back_off = gil_back_off,
	.status = gil_status,
};
