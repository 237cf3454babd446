/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin GIL: who holds the interpreter lock, who waits for it, who was made to drop it (hook/gil.h). Only the object that
 * holds _PyRuntime is hooked. What has not ended when the capture does is told too, marked. Written down by spool/sink_chrome.c.
 */
#include "agent/hook/gil.h"

#include "agent/hook/got.h"
#include "agent/plugin.h"
#include "agent/python/python.h"
#include "safe/clock.h"
#include "wire/record.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic uintptr_t gil_range[2], gil_code[2];

#define LOCKS 32 /* interpreters with a lock of their own; of more the rest is not seen */
#define WAITING 256 /* threads whose waits are known before they end */
#define MUTEX_AT (sizeof(pthread_cond_t))
#define SWITCH_COND_AT (MUTEX_AT + sizeof(pthread_mutex_t))
#define SWITCH_MUTEX_AT (SWITCH_COND_AT + sizeof(pthread_cond_t))
#define LOCK_BYTES (SWITCH_MUTEX_AT + sizeof(pthread_mutex_t))

/*
 * One interpreter's lock. Its address stays known from one capture to the next. Who holds it is written by whoever takes
 * or drops it, with the lock's own mutex held; the control thread takes what is left at the end of a capture.
 */
struct lock {
	_Atomic uintptr_t cond; /* 0 = row not used */
	_Atomic uint64_t hold_ns; /* since when it is held; 0 = it is not, or that is not known */
	_Atomic uint32_t holder; /* tid; after a drop that of the last one */
	_Atomic uint32_t switches; /* times that another thread than the last one took it */
	_Atomic bool asked; /* a waiting thread's switch interval has run out: the holder is asked to drop it */
	_Atomic bool taken; /* somebody was seen to take it in this capture */
};

/* A thread that waits, so that a capture's end can say what has not ended. */
struct waiting {
	_Atomic uint32_t tid; /* 0 = free */
	_Atomic uint32_t lock;
	_Atomic uint64_t begin_ns;
};

static struct {
	struct lock locks[LOCKS]; /* the first one is that inside _PyRuntime */
	struct waiting waiting[WAITING];
	_Atomic uint32_t rows; /* of locks */
	_Atomic uintptr_t signalled; /* before the first lock is known: one of its two conditions, */
	_Atomic uint64_t signalled_ns; /* when it was signalled */
	_Atomic uint32_t signalled_by;
	char signalled_comm[16];
	_Atomic uint32_t epoch; /* grows with each start: what a thread remembers from before is void */
	_Atomic uint32_t generation; /* of the process that all this is about */
	_Atomic uint64_t begin_ns; /* of the capture; in a child when it was first heard of */
	_Atomic uint64_t min_ns; /* shorter holds and waits are left out, for SYSTRACE_BUDGET_PCT */
	_Atomic uint64_t holds, waits, forced; /* recorded */
	_Atomic uint64_t left_out;
} gil = { .rows = 1 };

/* What this thread does. Touched by the thread alone, outside of signal handlers: those do not run Python code. */
static __thread struct {
	uint32_t epoch, generation;
	uint32_t tid;
	uint32_t lock; /* that it takes, row */
	bool holds; /* has taken it, since start */
	bool waited; /* it was held when we came */
	bool dropped; /* just now: a wait for the successor may follow */
	uint32_t timeouts;
	uint32_t switches; /* of the lock, when the wait began */
	uint32_t place; /* 1 + row of waiting */
	uint64_t take_ns; /* when it began to take, 0 = it does not */
	uint64_t forced_ns;
	uintptr_t signalled; /* a condition of a lock that is not known yet */
	uint64_t signalled_ns;
} mine __attribute__((tls_model("initial-exec")));

/* --- who are we ------------------------------------------------------------------------------------------------------ */

/* A forked child has the tables of its parent, whose threads do not exist in it. */
static void forget_parent(uint32_t generation)
{
	uint32_t i;

	for (i = 0; i < LOCKS; i++) {
		atomic_store_explicit(&gil.locks[i].hold_ns, 0, memory_order_relaxed);
		atomic_store_explicit(&gil.locks[i].taken, false, memory_order_relaxed);
		atomic_store_explicit(&gil.locks[i].asked, false, memory_order_relaxed);
		atomic_store_explicit(&gil.locks[i].holder, 0, memory_order_relaxed);
	}
	for (i = 0; i < WAITING; i++)
		atomic_store_explicit(&gil.waiting[i].tid, 0, memory_order_relaxed);
	atomic_store_explicit(&gil.begin_ns, clock_mono_ns(), memory_order_relaxed);
	atomic_store_explicit(&gil.generation, generation, memory_order_relaxed);
}

/* First in each call: is what this thread remembers about this capture, and this process? */
static void arrive(void)
{
	uint32_t epoch = atomic_load_explicit(&gil.epoch, memory_order_relaxed);
	uint32_t generation = atomic_load_explicit(&agent.pool.guard->generation, memory_order_relaxed);

	if (mine.epoch == epoch && mine.generation == generation)
		return;
	if (atomic_load_explicit(&gil.generation, memory_order_relaxed) != generation)
		forget_parent(generation); /* a child begins with one thread */
	memset(&mine, 0, sizeof(mine));
	mine.epoch = epoch;
	mine.generation = generation;
	mine.tid = (uint32_t)syscall(SYS_gettid);
}

/* Which lock has this address as a part? Return: row and *at = offset from its cond, or -1. */
static int find(const volatile void *address, uintptr_t *at)
{
	uint32_t rows = atomic_load_explicit(&gil.rows, memory_order_relaxed), i;

	for (i = 0; i < rows; i++) {
		uintptr_t cond = atomic_load_explicit(&gil.locks[i].cond, memory_order_relaxed);

		*at = (uintptr_t)address - cond;
		if (cond && *at < LOCK_BYTES)
			return (int)i;
	}
	return -1;
}

/* --- records --------------------------------------------------------------------------------------------------------- */

static void put(enum gil_what what, uint32_t lock, uint64_t begin_ns, uint64_t end_ns, uint32_t timeouts, uint8_t flags)
{
	struct rec_gil rec = {
		.head = { .bytes = sizeof(rec),
			  .type = REC_GIL,
			  .flags = flags,
			  .step = (uint32_t)atomic_load_explicit(&agent_place()->step, memory_order_relaxed) + 1 },
		.begin_ns = begin_ns,
		.dur_ns = end_ns - begin_ns,
		.what = what,
		.timeouts = timeouts,
		.lock = lock,
	};
	uint64_t least_ns = atomic_load_explicit(&gil.min_ns, memory_order_relaxed);
	_Atomic uint64_t *count = what == GIL_HOLD ? &gil.holds : what == GIL_WAIT ? &gil.waits : &gil.forced;

	if (rec.dur_ns < least_ns)
		count = &gil.left_out;
	atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
	if (rec.dur_ns >= least_ns)
		hook_put(&rec, sizeof(rec), POOL_SRC_GIL);
}

/* For another thread: what has not ended, or was understood too late. @comm: 16 bytes */
static void put_for(enum gil_what what, uint32_t lock, uint32_t tid, const char *comm, uint64_t begin_ns,
		    uint64_t end_ns, uint8_t flags)
{
	struct rec_gil_for rec = {
		.gil = { .head = { .bytes = sizeof(rec),
				   .type = REC_GIL,
				   .flags = flags | GIL_FOR_OTHER,
				   .step = (uint32_t)atomic_load_explicit(&agent_place()->step, memory_order_relaxed) +
					   1 },
			 .begin_ns = begin_ns,
			 .dur_ns = end_ns - begin_ns,
			 .what = what,
			 .lock = lock },
		.tid = tid,
	};

	memcpy(rec.comm, comm, sizeof(rec.comm));
	atomic_fetch_add_explicit(what == GIL_HOLD ? &gil.holds : &gil.waits, 1, memory_order_relaxed);
	hook_put(&rec, sizeof(rec), POOL_SRC_GIL);
}

/* --- learning where the locks are --------------------------------------------------------------------------------------- */

/* The first lock is known now: what its signal meant that was seen before. */
static void explain_signal(struct lock *lock, uintptr_t cond)
{
	uintptr_t at = atomic_load_explicit(&gil.signalled, memory_order_relaxed);
	/* acquire: the name was written before */
	uint64_t ns = atomic_load_explicit(&gil.signalled_ns, memory_order_acquire);
	uint32_t by = atomic_load_explicit(&gil.signalled_by, memory_order_relaxed);
	uint64_t begin_ns = atomic_load_explicit(&gil.begin_ns, memory_order_relaxed);

	if (!ns || ns < begin_ns)
		return;
	atomic_store_explicit(&lock->taken, true, memory_order_relaxed);
	if (at == cond) {
		put_for(GIL_HOLD, 0, by, gil.signalled_comm, begin_ns, ns, GIL_CUT_BEGIN);
	} else {
		atomic_store_explicit(&lock->holder, by, memory_order_relaxed);
		atomic_store_explicit(&lock->hold_ns, ns, memory_order_relaxed);
	}
}

/* Return: row, -1 = no room. */
static int learned(uintptr_t cond)
{
	uint32_t i = gil_inside(gil_range, cond) ? 0 : 1;
	uint32_t rows;

	for (; i < LOCKS; i++) {
		struct lock *lock = &gil.locks[i];
		uintptr_t free_row = 0;

		if (!atomic_compare_exchange_strong(&lock->cond, &free_row, cond)) {
			if (free_row == cond)
				return (int)i;
			if (i == 0)
				return -1; /* there is one in _PyRuntime */
			continue;
		}
		rows = atomic_load(&gil.rows);
		while (rows <= i && !atomic_compare_exchange_weak(&gil.rows, &rows, i + 1))
			;
		if (i == 0)
			explain_signal(lock, cond);
		return (int)i;
	}
	return -1;
}

/* Is one of two conditions at the right distance from the other? Return: the lower one, which whoever drops signals; or 0. */
static uintptr_t lower_of(uintptr_t one, uintptr_t other)
{
	if (!one)
		return 0;
	return one + SWITCH_COND_AT == other ? one : other + SWITCH_COND_AT == one ? other : 0;
}

/*
 * A condition of an unknown lock was signalled. In _PyRuntime there is one lock, so any two different ones are its; those
 * of other interpreters are told by a thread that signals both.
 */
static int learn_signal(uintptr_t at, uint64_t now_ns)
{
	uintptr_t first = 0, cond;
	int row;

	if (gil_inside(gil_range, at)) {
		if (atomic_compare_exchange_strong(&gil.signalled, &first, at)) {
			atomic_store_explicit(&gil.signalled_by, mine.tid, memory_order_relaxed);
			prctl(PR_GET_NAME, gil.signalled_comm);
			atomic_store_explicit(&gil.signalled_ns, now_ns, memory_order_release);
			return -1;
		}
		cond = lower_of(first, at);
		return cond ? learned(cond) : -1;
	}
	cond = lower_of(mine.signalled, at);
	row = cond ? learned(cond) : -1;
	if (row >= 0 && mine.signalled != cond && mine.signalled_ns >= atomic_load(&gil.begin_ns)) {
		/* it was taken then, and is dropped now */
		atomic_store_explicit(&gil.locks[row].holder, mine.tid, memory_order_relaxed);
		atomic_store_explicit(&gil.locks[row].hold_ns, mine.signalled_ns, memory_order_relaxed);
	}
	mine.signalled = at;
	mine.signalled_ns = now_ns;
	return row;
}

/* --- waits that have not ended ------------------------------------------------------------------------------------------ */

static void enter_waiting(uint32_t lock)
{
	uint32_t i, tid;

	for (i = 0; i < 8 && !mine.place; i++) {
		struct waiting *row = &gil.waiting[(mine.tid + i) % WAITING];

		tid = 0;
		if (!atomic_compare_exchange_strong_explicit(&row->tid, &tid, mine.tid, memory_order_relaxed,
							     memory_order_relaxed))
			continue;
		mine.place = 1 + (mine.tid + i) % WAITING;
		atomic_store_explicit(&row->lock, lock, memory_order_relaxed);
		/* release: whoever sees the time sees the rest */
		atomic_store_explicit(&row->begin_ns, mine.take_ns, memory_order_release);
	}
}

/* Return: false, the control thread has taken it into the file already. */
static bool leave_waiting(void)
{
	struct waiting *row;
	uint64_t begin_ns;

	if (!mine.place)
		return true;
	row = &gil.waiting[mine.place - 1];
	mine.place = 0;
	begin_ns = atomic_exchange_explicit(&row->begin_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&row->tid, 0, memory_order_release);
	return begin_ns != 0;
}

/* --- what the wrappers tell ---------------------------------------------------------------------------------------------- */

void gil_locks(const pthread_mutex_t *m)
{
	uintptr_t at;
	int row;

	arrive();
	row = find(m, &at);
	if (row >= 0 && at == MUTEX_AT && !mine.holds && !mine.take_ns) {
		mine.lock = (uint32_t)row;
		mine.take_ns = clock_mono_ns();
		mine.dropped = false;
	}
}

/* The lock's own mutex is held here, so holds of different threads cannot overlap. */
static void drops(uint32_t row, uint64_t now_ns)
{
	struct lock *lock = &gil.locks[row];
	uint64_t since_ns = atomic_exchange_explicit(&lock->hold_ns, 0, memory_order_relaxed);
	uint8_t flags = atomic_exchange_explicit(&lock->asked, false, memory_order_relaxed) ? GIL_ASKED : 0;

	if (since_ns)
		put(GIL_HOLD, row, since_ns, now_ns, 0, flags);
	/* nobody has taken it since the capture began. Another interpreter's may have been taken before it was known */
	else if (!atomic_exchange_explicit(&lock->taken, true, memory_order_relaxed) && (!row || !mine.signalled))
		put(GIL_HOLD, row, atomic_load_explicit(&gil.begin_ns, memory_order_relaxed), now_ns, 0,
		    flags | GIL_CUT_BEGIN);
	mine.holds = false;
	mine.take_ns = 0;
	mine.dropped = true;
}

static void takes(uint32_t row, uint64_t now_ns)
{
	struct lock *lock = &gil.locks[row];

	if (leave_waiting() && mine.take_ns && mine.waited)
		put(GIL_WAIT, row, mine.take_ns, now_ns, mine.timeouts, 0);
	atomic_store_explicit(&lock->taken, true, memory_order_relaxed);
	atomic_store_explicit(&lock->asked, false, memory_order_relaxed);
	if (atomic_exchange_explicit(&lock->holder, mine.tid, memory_order_relaxed) != mine.tid)
		atomic_fetch_add_explicit(&lock->switches, 1, memory_order_relaxed);
	atomic_store_explicit(&lock->hold_ns, now_ns, memory_order_release);
	mine.holds = true;
	mine.take_ns = 0;
	mine.waited = mine.dropped = false;
	mine.timeouts = 0;
}

void gil_signals(const pthread_cond_t *c)
{
	uint64_t now_ns = clock_mono_ns();
	uintptr_t at;
	int row;

	arrive();
	row = find(c, &at);
	if (row < 0) {
		row = learn_signal((uintptr_t)c, now_ns);
		if (row < 0)
			return;
		at = (uintptr_t)c - atomic_load_explicit(&gil.locks[row].cond, memory_order_relaxed);
	}
	if (at == 0)
		drops((uint32_t)row, now_ns);
	else if (at == SWITCH_COND_AT)
		takes((uint32_t)row, now_ns);
}

void gil_waits(const pthread_cond_t *c, const pthread_mutex_t *m, bool timed)
{
	uintptr_t at;
	int row;

	arrive();
	row = find(c, &at);
	/* nothing else in there is waited for with a time */
	if (row < 0 && timed && (uintptr_t)m == (uintptr_t)c + MUTEX_AT) {
		row = learned((uintptr_t)c);
		at = 0;
	}
	if (row < 0)
		return;
	if (at == 0) {
		mine.waited = true;
		mine.switches = atomic_load_explicit(&gil.locks[row].switches, memory_order_relaxed);
		if (!mine.take_ns) { /* it had come before the capture, or the lock was not known */
			mine.lock = (uint32_t)row;
			mine.take_ns = clock_mono_ns();
		}
		enter_waiting((uint32_t)row);
	} else if (at == SWITCH_COND_AT && mine.dropped) {
		mine.lock = (uint32_t)row;
		mine.forced_ns = clock_mono_ns();
	}
}

void gil_waited(const pthread_cond_t *c, int result)
{
	uintptr_t at;
	int row;

	arrive();
	row = find(c, &at);
	if (row < 0)
		return;
	if (at == 0 && result == ETIMEDOUT) {
		mine.timeouts++;
		/* as CPython does: who has taken it meanwhile has its whole interval yet */
		if (atomic_load_explicit(&gil.locks[row].switches, memory_order_relaxed) == mine.switches)
			atomic_store_explicit(&gil.locks[row].asked, true, memory_order_relaxed);
	}
	if (at == SWITCH_COND_AT && mine.forced_ns) {
		put(GIL_FORCED, (uint32_t)row, mine.forced_ns, clock_mono_ns(), 0, 0);
		mine.forced_ns = 0;
	}
}

/* --- the plugin ------------------------------------------------------------------------------------------------------ */

/* Interpreters beside the main one have locks of their own from 3.12 on, on the heap: told by who calls (gil.h). */
static bool own_locks(void)
{
	const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "Py_GetVersion");
	const char *text = version ? version() : "";

	return strncmp(text, "3.", 2) == 0 && atoi(text + 2) >= 12;
}

struct range {
	uintptr_t inside, begin, end;
};

static int find_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct range *range = arg;
	uintptr_t begin = UINTPTR_MAX, end = 0;
	int i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + part->p_vaddr;

		if (part->p_type != PT_LOAD)
			continue;
		begin = at < begin ? at : begin;
		end = at + part->p_memsz > end ? at + part->p_memsz : end;
	}
	if (range->inside < begin || range->inside >= end)
		return 0;
	range->begin = begin;
	range->end = end;
	return 1;
}

static int find_runtime(struct st_err *err)
{
	const ElfW(Sym) *symbol = NULL;
	void *runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
	struct range object = { .inside = (uintptr_t)runtime };
	Dl_info info;

	if (!runtime || !dladdr1(runtime, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol || !symbol->st_size)
		return err_set(err, -ENOTSUP, "there is no CPython interpreter in this process");
	if (dlsym(RTLD_DEFAULT, "_Py_MergeZeroLocalRefcount"))
		return err_set(err, -ENOTSUP, "this is a free-threaded CPython: it has no interpreter lock");
	gil_range[1] = (uintptr_t)runtime + symbol->st_size;
	gil_range[0] = (uintptr_t)runtime;
	if (own_locks() && got_each_object(find_object, &object)) {
		gil_code[1] = object.end;
		gil_code[0] = object.begin;
	}
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
	ret = hook_switch(ON_GIL, true, (const void *)atomic_load(&gil_range[0]), clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret < 0 && ret != -ETIMEDOUT)
		return ret;
	forget_parent(atomic_load(&agent.pool.guard->generation));
	atomic_fetch_add(&gil.epoch, 1);
	pool_switch(&agent.pool, ON_GIL, true);
	return 0;
}

/* The name of a thread; "" when it is gone. Our own descriptor table. */
static void name_of(uint32_t tid, char comm[16])
{
	char path[48];
	ssize_t n;
	int fd;

	memset(comm, 0, 16);
	snprintf(path, sizeof(path), "/proc/self/task/%u/comm", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, comm, 15);
	close(fd);
	comm[n > 0 ? strcspn(comm, "\n") : 0] = 0;
}

/* Holds and waits that the end of the capture cuts. Whoever ends one meanwhile finds it taken, or has taken it. */
static void put_open(void)
{
	uint64_t now_ns = clock_mono_ns(), begin_ns;
	char comm[16];
	uint32_t i;

	for (i = 0; i < WAITING; i++) {
		struct waiting *row = &gil.waiting[i];
		uint32_t tid = atomic_load(&row->tid);

		begin_ns = tid ? atomic_exchange(&row->begin_ns, 0) : 0;
		if (!begin_ns || begin_ns > now_ns)
			continue;
		name_of(tid, comm);
		put_for(GIL_WAIT, atomic_load(&row->lock), tid, comm, begin_ns, now_ns, GIL_CUT_END);
	}
	for (i = 0; i < LOCKS; i++) {
		struct lock *lock = &gil.locks[i];
		uint32_t tid;

		begin_ns = atomic_exchange(&lock->hold_ns, 0);
		tid = atomic_load(&lock->holder);
		if (!begin_ns || begin_ns > now_ns)
			continue;
		name_of(tid, comm);
		put_for(GIL_HOLD, i, tid, comm, begin_ns, now_ns, GIL_CUT_END);
	}
}

static void gil_stop(void)
{
	bool was_on = pool_on(&agent.pool, ON_GIL);
	struct st_err ignored;

	pool_switch(&agent.pool, ON_GIL, false);
	if (was_on)
		put_open();
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
