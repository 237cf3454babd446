/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin Mutex: the wrappers of lock calls, which the plugin GIL shares, and what switches them. A lock that is free is
 * taken by its non-blocking form and costs no clock read; only a call that has to wait is timed. All calls are counted.
 * Written down by spool/sink_chrome.c.
 */
#include "agent/hook/gil.h"
#include "agent/hook/hook.h"
#include "agent/plugin.h"
#include "agent/stack/module.h"
#include "agent/stack/stack.h"
#include "safe/clock.h"
#include "wire/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPIN_GAP_NS 1000000u /* failures closer than this are in a row */
#define SPIN_PERIOD_NS 100000000u /* and are told at least so often */
#define SPIN_KEPT_NS 1000000000u

static _Atomic uint64_t min_ns; /* 0 = all calls are stored */
static _Atomic bool stacks; /* stack=1 */
static uint64_t base[LOCK_CALL_COUNT]; /* counts when it was switched on */
static bool running;
static _Atomic uint64_t timed; /* calls that took clock reads; the others cost a thirtieth (bench/bench_hooks.py) */
#define FREE_PER_TIMED 30
#define TIMED_PER_STACK 8 /* a stack costs as much as so many calls that are timed and stored */

static uint32_t stack_of_caller(void)
{
	if (!atomic_load_explicit(&stacks, memory_order_relaxed))
		return 0;
	atomic_fetch_add_explicit(&timed, TIMED_PER_STACK, memory_order_relaxed);
	return stack_here(true);
}

/* Object file and offset, so that it can be named when the process is gone. The guard is up. @back: a return address */
static uint64_t place_of(uintptr_t address, uint32_t back)
{
	struct module m;

	if (!address || !module_find(address - back, &m) || !m.id)
		return 0;
	return FRAME_NATIVE_AT(m.id, address - back - m.bias);
}

/* A call that may have to wait. What the lock lies in is asked before: after it, it may be gone with its library. */
struct wait {
	uint64_t begin_ns;
	uint64_t lock_at;
	const volatile void *lock;
	uint32_t owner;
};

static struct wait wait_begin(const volatile void *lock, uint32_t owner)
{
	struct wait wait = { .lock = lock, .owner = owner };

	hook_depth++;
	wait.lock_at = place_of((uintptr_t)lock, 0);
	hook_depth--;
	wait.begin_ns = clock_mono_ns();
	return wait;
}

static void put_times(enum lock_call call, const struct wait *wait, uint64_t end_ns, int result, const void *caller,
		      uint32_t repeats)
{
	const struct pool_header *head = agent_place();
	struct rec_lock rec = {
		.head = { .bytes = sizeof(rec),
			  .type = REC_LOCK,
			  .step = (uint32_t)atomic_load_explicit(&head->step, memory_order_relaxed) + 1 },
		.begin_ns = wait->begin_ns,
		.dur_ns = end_ns - wait->begin_ns,
		.address = (uintptr_t)wait->lock,
		.lock_at = wait->lock_at,
		.caller = (uintptr_t)caller,
		.owner = wait->owner,
		.result = result,
		.stage_id = atomic_load_explicit(&head->stage_id, memory_order_relaxed),
		.call = (uint16_t)call,
		.repeats = repeats,
		.stack = stack_of_caller(),
		.stage = (uint16_t)atomic_load_explicit(&head->stage, memory_order_relaxed),
	};

	hook_depth++;
	rec.caller_at = place_of(rec.caller, 1);
	hook_depth--;
	hook_put(&rec, sizeof(rec), POOL_SRC_MUTEX);
}

/* Failures of this thread that came right behind one that is stored: threads that spin on a trylock. */
static __thread struct {
	struct wait wait; /* of the first one, but for its begin */
	const void *caller;
	uint64_t last_ns;
	uint32_t repeats;
	int result;
	enum lock_call call;
} spin __attribute__((tls_model("initial-exec")));

static void flush_spin(uint64_t now_ns)
{
	/* from an earlier capture otherwise */
	if (spin.repeats && now_ns - spin.last_ns < SPIN_KEPT_NS)
		put_times(spin.call, &spin.wait, spin.last_ns, spin.result, spin.caller, spin.repeats);
	spin.repeats = 0;
}

/* A call that does not block has failed. The first one is stored as it comes, those right behind it as one. */
static void failed(enum lock_call call, const volatile void *lock, uint32_t owner, int result, const void *caller)
{
	uint64_t now_ns = clock_mono_ns();

	atomic_fetch_add_explicit(&timed, 1, memory_order_relaxed);
	hook_depth++;
	if (spin.wait.lock == lock && spin.caller == caller && spin.call == call &&
	    now_ns - spin.last_ns < SPIN_GAP_NS) {
		if (!spin.repeats++)
			spin.wait.begin_ns = now_ns;
		spin.last_ns = now_ns;
		if (now_ns - spin.wait.begin_ns >= SPIN_PERIOD_NS)
			flush_spin(now_ns);
	} else {
		flush_spin(now_ns);
		spin.wait = (struct wait){
			.begin_ns = now_ns, .lock_at = place_of((uintptr_t)lock, 0), .lock = lock, .owner = owner
		};
		spin.caller = caller;
		spin.call = call;
		spin.result = result;
		spin.last_ns = now_ns;
		put_times(call, &spin.wait, now_ns, result, caller, 0);
	}
	hook_depth--;
}

/* A wait is over. */
static void waited(enum lock_call call, const struct wait *wait, int result, const void *caller)
{
	uint64_t end_ns = clock_mono_ns();

	atomic_fetch_add_explicit(&timed, 1, memory_order_relaxed);
	if (end_ns - wait->begin_ns >= atomic_load_explicit(&min_ns, memory_order_relaxed))
		put_times(call, wait, end_ns, result, caller, 0);
}

static inline bool all_stored(void)
{
	return !atomic_load_explicit(&min_ns, memory_order_relaxed);
}

/* glibc's structures, as its headers publish them; read without the lock, so a hint */
static uint32_t mutex_owner(const pthread_mutex_t *m)
{
	return (uint32_t)__atomic_load_n(&m->__data.__owner, __ATOMIC_RELAXED);
}

static uint32_t rwlock_owner(const pthread_rwlock_t *l)
{
	return (uint32_t)__atomic_load_n(&l->__data.__cur_writer, __ATOMIC_RELAXED);
}

#define CALLER __builtin_return_address(0)

/* A blocking call, tried without blocking first. */
#define BLOCKING(id, call, lock, owner_now, attempt, params, args) \
	int hook_##id params                                       \
	{                                                          \
		struct wait wait;                                  \
		int ret;                                           \
                                                                   \
		if (!hook_on(ON_MUTEX))                            \
			return hook_real.id args;                  \
		hook_count(HOOK_##id);                             \
		if (!all_stored()) {                               \
			ret = attempt;                             \
			if (ret != EBUSY)                          \
				return ret;                        \
		}                                                  \
		wait = wait_begin(lock, owner_now);                \
		ret = hook_real.id args;                           \
		waited(call, &wait, ret, CALLER);                  \
		return ret;                                        \
	}

/* A call that does not block: its failures are stored. */
#define TRYING(id, call, lock, owner_now, params, args)         \
	int hook_##id params                                    \
	{                                                       \
		struct wait wait = { 0 };                       \
		uint32_t owner;                                 \
		int ret;                                        \
                                                                \
		if (!hook_on(ON_MUTEX))                         \
			return hook_real.id args;               \
		hook_count(HOOK_##id);                          \
		owner = owner_now;                              \
		if (all_stored())                               \
			wait = wait_begin(lock, owner);         \
		ret = hook_real.id args;                        \
		wait.owner = ret ? owner : 0;                   \
		if (wait.begin_ns)                              \
			waited(call, &wait, ret, CALLER);       \
		else if (ret)                                   \
			failed(call, lock, owner, ret, CALLER); \
		return ret;                                     \
	}

/* A call that is a wait by its nature. */
#define WAITING(id, call, lock, params, args)     \
	int hook_##id params                      \
	{                                         \
		struct wait wait;                 \
		int ret;                          \
                                                  \
		if (!hook_on(ON_MUTEX))           \
			return hook_real.id args; \
		hook_count(HOOK_##id);            \
		wait = wait_begin(lock, 0);       \
		ret = hook_real.id args;          \
		waited(call, &wait, ret, CALLER); \
		return ret;                       \
	}

#define UNTIL const struct timespec *until
#define TRY_MUTEX hook_real.mutex_trylock(m)
#define TRY_RD hook_real.rwlock_tryrdlock(l)
#define TRY_WR hook_real.rwlock_trywrlock(l)

static int mutex_lock(pthread_mutex_t *m, const void *caller)
{
	struct wait wait;
	int ret;

	hook_count(HOOK_mutex_lock);
	if (!all_stored()) {
		ret = hook_real.mutex_trylock(m);
		if (ret != EBUSY)
			return ret;
	}
	wait = wait_begin(m, mutex_owner(m));
	ret = hook_real.mutex_lock(m);
	waited(LOCK_MUTEX_LOCK, &wait, ret, caller);
	return ret;
}

int hook_mutex_lock(pthread_mutex_t *m)
{
	if (gil_sees(m, CALLER))
		gil_locks(m);
	return hook_on(ON_MUTEX) ? mutex_lock(m, CALLER) : hook_real.mutex_lock(m);
}

TRYING(mutex_trylock, LOCK_MUTEX_TRYLOCK, m, mutex_owner(m), (pthread_mutex_t * m), (m))
BLOCKING(mutex_timedlock, LOCK_MUTEX_TIMEDLOCK, m, mutex_owner(m), TRY_MUTEX, (pthread_mutex_t * m, UNTIL), (m, until))
BLOCKING(mutex_clocklock, LOCK_MUTEX_CLOCKLOCK, m, mutex_owner(m), TRY_MUTEX,
	 (pthread_mutex_t * m, clockid_t clock, UNTIL), (m, clock, until))
BLOCKING(rwlock_rdlock, LOCK_RDLOCK, l, rwlock_owner(l), TRY_RD, (pthread_rwlock_t * l), (l))
TRYING(rwlock_tryrdlock, LOCK_TRYRDLOCK, l, rwlock_owner(l), (pthread_rwlock_t * l), (l))
BLOCKING(rwlock_timedrdlock, LOCK_TIMEDRDLOCK, l, rwlock_owner(l), TRY_RD, (pthread_rwlock_t * l, UNTIL), (l, until))
BLOCKING(rwlock_clockrdlock, LOCK_CLOCKRDLOCK, l, rwlock_owner(l), TRY_RD,
	 (pthread_rwlock_t * l, clockid_t clock, UNTIL), (l, clock, until))
BLOCKING(rwlock_wrlock, LOCK_WRLOCK, l, rwlock_owner(l), TRY_WR, (pthread_rwlock_t * l), (l))
TRYING(rwlock_trywrlock, LOCK_TRYWRLOCK, l, rwlock_owner(l), (pthread_rwlock_t * l), (l))
BLOCKING(rwlock_timedwrlock, LOCK_TIMEDWRLOCK, l, rwlock_owner(l), TRY_WR, (pthread_rwlock_t * l, UNTIL), (l, until))
BLOCKING(rwlock_clockwrlock, LOCK_CLOCKWRLOCK, l, rwlock_owner(l), TRY_WR,
	 (pthread_rwlock_t * l, clockid_t clock, UNTIL), (l, clock, until))
BLOCKING(spin_lock, LOCK_SPIN_LOCK, l, 0, hook_real.spin_trylock(l), (pthread_spinlock_t * l), (l))
TRYING(spin_trylock, LOCK_SPIN_TRYLOCK, l, 0, (pthread_spinlock_t * l), (l))
WAITING(timedjoin, LOCK_TIMEDJOIN, (void *)thread, (pthread_t thread, void **value, UNTIL), (thread, value, until))
WAITING(clockjoin, LOCK_CLOCKJOIN, (void *)thread, (pthread_t thread, void **value, clockid_t clock, UNTIL),
	(thread, value, clock, until))
TRYING(tryjoin, LOCK_TRYJOIN, (void *)thread, 0, (pthread_t thread, void **value), (thread, value))
TRYING(pthread_yield, LOCK_YIELD, NULL, 0, (void), ())
TRYING(sched_yield, LOCK_YIELD, NULL, 0, (void), ())
WAITING(cond_clockwait, LOCK_COND_CLOCKWAIT, c, (pthread_cond_t * c, pthread_mutex_t *m, clockid_t clock, UNTIL),
	(c, m, clock, until))
#if defined(__x86_64__)
WAITING(old_cond_wait, LOCK_COND_WAIT, c, (pthread_cond_t * c, pthread_mutex_t *m), (c, m))
WAITING(old_cond_timedwait, LOCK_COND_TIMEDWAIT, c, (pthread_cond_t * c, pthread_mutex_t *m, UNTIL), (c, m, until))
#endif

/* --- conditions: for both plugins ------------------------------------------------------------------------------------ */

int hook_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	bool gil = gil_sees(c, CALLER), on = hook_on(ON_MUTEX);
	struct wait wait = { 0 };
	int ret;

	if (on) {
		hook_count(HOOK_cond_wait);
		wait = wait_begin(c, 0);
	}
	if (gil)
		gil_waits(c, m, false);
	ret = hook_real.cond_wait(c, m);
	if (gil)
		gil_waited(c, ret);
	if (on)
		waited(LOCK_COND_WAIT, &wait, ret, CALLER);
	return ret;
}

int hook_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, UNTIL)
{
	bool gil = gil_sees(c, CALLER), on = hook_on(ON_MUTEX);
	struct wait wait = { 0 };
	int ret;

	if (on) {
		hook_count(HOOK_cond_timedwait);
		wait = wait_begin(c, 0);
	}
	if (gil)
		gil_waits(c, m, true);
	ret = hook_real.cond_timedwait(c, m, until);
	if (gil)
		gil_waited(c, ret);
	if (on)
		waited(LOCK_COND_TIMEDWAIT, &wait, ret, CALLER);
	return ret;
}

int hook_cond_signal(pthread_cond_t *c)
{
	if (gil_sees(c, CALLER))
		gil_signals(c);
	return hook_real.cond_signal(c);
}

/* --- semaphores: errno says why, and a wait is a point of cancellation even when it need not wait ------------------------ */

/* Return: 0 taken, 1 to be waited for; errno is kept. */
static int sem_free(sem_t *s)
{
	int saved = errno, ret;

	if (all_stored() || !hook_real.testcancel || !hook_real.sem_trywait)
		return 1;
	hook_real.testcancel();
	ret = hook_real.sem_trywait(s);
	errno = saved;
	return ret ? 1 : 0;
}

static void sem_waited(enum lock_call call, const struct wait *wait, int ret, const void *caller)
{
	int saved = errno;

	waited(call, wait, ret ? saved : 0, caller);
	errno = saved;
}

#define SEM_WAITING(id, call, params, args)           \
	int hook_##id params                          \
	{                                             \
		struct wait wait;                     \
		int ret;                              \
                                                      \
		if (!hook_on(ON_MUTEX))               \
			return hook_real.id args;     \
		hook_count(HOOK_##id);                \
		if (!sem_free(s))                     \
			return 0;                     \
		wait = wait_begin(s, 0);              \
		ret = hook_real.id args;              \
		sem_waited(call, &wait, ret, CALLER); \
		return ret;                           \
	}

SEM_WAITING(sem_wait, LOCK_SEM_WAIT, (sem_t * s), (s))
SEM_WAITING(sem_timedwait, LOCK_SEM_TIMEDWAIT, (sem_t * s, UNTIL), (s, until))
SEM_WAITING(sem_clockwait, LOCK_SEM_CLOCKWAIT, (sem_t * s, clockid_t clock, UNTIL), (s, clock, until))

int hook_sem_trywait(sem_t *s)
{
	struct wait wait = { 0 };
	int ret, saved;

	if (!hook_on(ON_MUTEX))
		return hook_real.sem_trywait(s);
	hook_count(HOOK_sem_trywait);
	if (all_stored())
		wait = wait_begin(s, 0);
	ret = hook_real.sem_trywait(s);
	saved = errno;
	if (wait.begin_ns) {
		waited(LOCK_SEM_TRYWAIT, &wait, ret ? saved : 0, CALLER);
	} else if (ret) {
		failed(LOCK_SEM_TRYWAIT, s, 0, saved, CALLER);
	}
	errno = saved;
	return ret;
}

/* --- the plugin ------------------------------------------------------------------------------------------------------ */

static const struct {
	enum hook_id hook;
	enum lock_call call;
} counted[] = {
	{ HOOK_mutex_lock, LOCK_MUTEX_LOCK },
	{ HOOK_mutex_trylock, LOCK_MUTEX_TRYLOCK },
	{ HOOK_mutex_timedlock, LOCK_MUTEX_TIMEDLOCK },
	{ HOOK_mutex_clocklock, LOCK_MUTEX_CLOCKLOCK },
	{ HOOK_rwlock_rdlock, LOCK_RDLOCK },
	{ HOOK_rwlock_tryrdlock, LOCK_TRYRDLOCK },
	{ HOOK_rwlock_timedrdlock, LOCK_TIMEDRDLOCK },
	{ HOOK_rwlock_clockrdlock, LOCK_CLOCKRDLOCK },
	{ HOOK_rwlock_wrlock, LOCK_WRLOCK },
	{ HOOK_rwlock_trywrlock, LOCK_TRYWRLOCK },
	{ HOOK_rwlock_timedwrlock, LOCK_TIMEDWRLOCK },
	{ HOOK_rwlock_clockwrlock, LOCK_CLOCKWRLOCK },
	{ HOOK_spin_lock, LOCK_SPIN_LOCK },
	{ HOOK_spin_trylock, LOCK_SPIN_TRYLOCK },
	{ HOOK_timedjoin, LOCK_TIMEDJOIN },
	{ HOOK_clockjoin, LOCK_CLOCKJOIN },
	{ HOOK_tryjoin, LOCK_TRYJOIN },
	{ HOOK_pthread_yield, LOCK_YIELD },
	{ HOOK_sched_yield, LOCK_YIELD },
	{ HOOK_sem_wait, LOCK_SEM_WAIT },
	{ HOOK_sem_timedwait, LOCK_SEM_TIMEDWAIT },
	{ HOOK_sem_clockwait, LOCK_SEM_CLOCKWAIT },
	{ HOOK_sem_trywait, LOCK_SEM_TRYWAIT },
	{ HOOK_cond_wait, LOCK_COND_WAIT },
	{ HOOK_cond_timedwait, LOCK_COND_TIMEDWAIT },
	{ HOOK_cond_clockwait, LOCK_COND_CLOCKWAIT },
};

static void sum_calls(uint64_t sums[LOCK_CALL_COUNT])
{
	size_t i;

	memset(sums, 0, LOCK_CALL_COUNT * sizeof(*sums));
	for (i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
		sums[counted[i].call] += hook_counted(counted[i].hook);
}

/* How often each function was called, the unstored calls included: into the file. */
static void put_counts(void)
{
	uint64_t sums[LOCK_CALL_COUNT];
	int call;

	sum_calls(sums);
	for (call = 0; call < LOCK_CALL_COUNT; call++) {
		struct rec_lock rec = {
			.head = { .bytes = sizeof(rec), .type = REC_LOCK, .flags = LOCK_COUNTED },
			.begin_ns = clock_mono_ns(),
			.address = sums[call] - base[call],
			.call = (uint16_t)call,
		};

		if (rec.address)
			pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_MUTEX);
	}
}

static int mutex_start(const struct plugin_args *args, struct st_err *err)
{
	const char *min_us = plugin_args_get(args, "min_us");
	bool was_on = pool_on(&agent.pool, ON_MUTEX), want_stacks;
	int ret;

	atomic_store(&min_ns, (min_us ? strtoull(min_us, NULL, 10) : 1) * 1000);
	atomic_store(&stacks, false);
	want_stacks = plugin_args_bool(args, "stack");
	ret = stack_start(want_stacks, err); /* modules are asked for without stacks, too */
	if (ret < 0 && want_stacks)
		return ret;
	if (want_stacks)
		atomic_store(&stacks, true);
	if (was_on)
		return 0;
	ret = hook_switch(ON_MUTEX, true, NULL, clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret < 0 && ret != -ETIMEDOUT)
		return ret;
	sum_calls(base);
	pool_switch(&agent.pool, ON_MUTEX, true);
	running = true;
	return 0;
}

static void mutex_stop(void)
{
	struct st_err ignored;

	pool_switch(&agent.pool, ON_MUTEX, false);
	if (running) /* the pool's bit is off already when the process ends */
		put_counts();
	running = false;
	hook_switch(ON_MUTEX, false, NULL, clock_mono_ns() + HOOK_WAIT_NS, &ignored);
}

static uint64_t all_calls(void)
{
	uint64_t sums[LOCK_CALL_COUNT], all = 0;
	int call;

	sum_calls(sums);
	for (call = 0; call < LOCK_CALL_COUNT; call++)
		all += sums[call];
	return all;
}

/* For the budget, which takes each for a call that is timed and stored. */
static uint64_t costly_calls(void)
{
	return atomic_load(&timed) + all_calls() / FREE_PER_TIMED;
}

static int mutex_back_off(unsigned int level, char *what, size_t room)
{
	static const uint32_t min_us[] = { 10, 100, 1000 };
	static unsigned int without_stacks; /* the level that did without them */

	if (level == 1)
		without_stacks = atomic_load(&stacks) ? 1 : 0;
	if (level == without_stacks) {
		atomic_store(&stacks, false);
		snprintf(what, room, "no stacks are taken now");
		return 0;
	}
	level -= without_stacks;
	if (level > sizeof(min_us) / sizeof(min_us[0]))
		return -ERANGE;
	if (atomic_load(&min_ns) < min_us[level - 1] * 1000u)
		atomic_store(&min_ns, min_us[level - 1] * 1000u);
	snprintf(what, room, "only waits of %u us and more are kept now", min_us[level - 1]);
	return 0;
}

static void mutex_status(char *text, size_t room)
{
	uint64_t all = all_calls();
	int call;

	for (call = 0; call < LOCK_CALL_COUNT; call++)
		all -= base[call];
	snprintf(text, room, "%llu calls", (unsigned long long)all);
}

const struct plugin plugin_mutex = {
	.id = PLUGIN_MUTEX,
	.start = mutex_start,
	.stop = mutex_stop,
	.calls = costly_calls,
	.back_off = mutex_back_off,
	.status = mutex_status,
};
