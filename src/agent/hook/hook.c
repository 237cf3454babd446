/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Switching of native hooks; see hook.h. The control thread asks, systrace/hook works. */
#include "agent/hook/hook.h"

#include "agent/hook/got.h"
#include "agent/stack/stack.h"
#include "agent/threads.h"
#include "safe/clock.h"
#include "safe/siglog.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POLL_NS 50000000u
#define RETRY_NS 20000000u
#define OBJECTS_MAX 256
#define PLUGINS_MAX 4 /* that have hooks */

static _Atomic uint64_t no_counts[HOOK_SHARDS][HOOK_COUNT]; /* used where the shared ones cannot be had */

struct hook_real hook_real;
_Atomic uint64_t (*_Atomic hook_counts)[HOOK_COUNT] = no_counts;
__thread volatile int hook_depth __attribute__((tls_model("initial-exec")));

#define HOOK_WANT(id, symbol, its_version, its_plugins, type, params) \
	[HOOK_##id] = { .name = symbol,                               \
			.version = its_version,                       \
			.wrapper = (its_plugins) != 0 ? (void *)hook_##id : NULL },
#define HOOK_ROW(id, symbol, its_version, its_plugins, type, params) \
	[HOOK_##id] = { its_plugins, offsetof(struct hook_real, id) },

static struct got_want wants[HOOK_COUNT] = { HOOKS(HOOK_WANT) };
static const struct {
	uint32_t plugins;
	size_t real;
} rows[HOOK_COUNT] = { HOOKS(HOOK_ROW) };

/* What the control thread wants; the hook thread reads it after it has seen a new .asked. */
static struct {
	_Atomic uint32_t plugins;
	_Atomic(const void *) only[32]; /* by bit */
	_Atomic uint32_t asked; /* grows with each request */
	_Atomic uint32_t done; /* the newest request that was carried out; a futex word */
} wish;

static struct {
	uint32_t plugin;
	_Atomic(void (*)(void)) call;
} ticks[PLUGINS_MAX];

struct object_row {
	char path[160]; /* its end, where it is longer */
	uint32_t slots, foreign, refused;
};

/* What a pass found: written to the half that is not shown, then shown. */
static struct result {
	struct got_count sum;
	uint64_t pass_ns;
	uint32_t missing, rows, objects;
	struct object_row row[OBJECTS_MAX];
} results[2];
static _Atomic uint32_t passes; /* results[passes & 1] is shown */
static bool resolved;

bool hook_put(const void *rec, uint32_t bytes, enum pool_source source)
{
	bool kept;

	hook_depth++;
	kept = pool_put(&agent.pool, rec, bytes, source); /* keeps errno */
	hook_depth--;
	return kept;
}

uint64_t hook_counted(enum hook_id id)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < HOOK_SHARDS; i++)
		sum += atomic_load_explicit(&hook_counts[i][id], memory_order_relaxed);
	return sum;
}

uint64_t hook_counted_all(uint32_t plugin)
{
	uint64_t sum = 0;
	int id;

	for (id = 0; id < HOOK_COUNT; id++)
		sum += rows[id].plugins & plugin ? hook_counted((enum hook_id)id) : 0;
	return sum;
}

/* --- systrace/hook --------------------------------------------------------------------------------------------------- */

/* Once in a process: whatever a wrapper needs is there before the first slot leads to it. */
static void resolve(void)
{
	void *shared;
	size_t i;

	if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE))
		return;
	shared = mmap(NULL, sizeof(no_counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared != MAP_FAILED)
		hook_counts = shared;
	for (i = 0; i < HOOK_COUNT; i++) {
		got_resolve(&wants[i]);
		__atomic_store_n((void **)((char *)&hook_real + rows[i].real), wants[i].real, __ATOMIC_RELAXED);
	}
	/* a call through a slot orders nothing by itself: every thread gets a barrier before a slot is written */
	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0);
	/* release: whoever sees it sees what was resolved */
	__atomic_store_n(&resolved, true, __ATOMIC_RELEASE);
}

/* Rows that serve a plugin which is on go in: everywhere, or where all of their plugins that are on are content with. */
static void set_wants(uint32_t plugins, struct result *result)
{
	size_t i;
	int bit;

	result->missing = 0;
	for (i = 0; i < HOOK_COUNT; i++) {
		uint32_t on = rows[i].plugins & plugins;
		const void *only = NULL;
		bool everywhere = false;

		for (bit = 0; bit < 32; bit++) {
			const void *its = on & 1u << bit ? atomic_load(&wish.only[bit]) : NULL;

			everywhere |= (on & 1u << bit) && !its;
			only = its ? its : only;
		}
		wants[i].off = !on;
		wants[i].only = everywhere ? NULL : only;
		result->missing += on && !wants[i].real;
	}
}

static void note_object(void *arg, const char *path, const struct got_count *count)
{
	struct result *result = arg;
	uint32_t slots = count->changed + count->already;
	struct object_row *row;
	size_t len = strlen(path);

	if (!slots && !count->foreign && !count->refused)
		return;
	result->objects++;
	if (result->rows == OBJECTS_MAX)
		return;
	row = &result->row[result->rows++];
	if (len >= sizeof(row->path))
		path += len - sizeof(row->path) + 1;
	snprintf(row->path, sizeof(row->path), "%s", path[0] ? path : "(program)");
	row->slots = slots;
	row->foreign = count->foreign;
	row->refused = count->refused;
}

static void pass(uint32_t plugins)
{
	uint32_t shown = atomic_load_explicit(&passes, memory_order_relaxed);
	struct result *result = &results[(shown + 1) & 1];
	uint64_t begin_ns = clock_mono_ns();
	int ret;

	result->rows = result->objects = 0;
	set_wants(plugins, result);
	ret = got_apply(wants, HOOK_COUNT, plugins != 0, &result->sum, note_object, result);
	if (!plugins) { /* what is counted then are slots put back */
		result->rows = result->objects = 0;
		result->sum.changed = result->sum.already = 0;
	}
	result->pass_ns = clock_mono_ns() - begin_ns;
	atomic_store_explicit(&passes, shown + 1, memory_order_release);
	if (ret < 0)
		siglog(SIGLOG_ERROR, "hook", "hooks cannot be put in or taken out: error %d", -ret);
	if (result->sum.refused)
		siglog(SIGLOG_WARN, "hook", "%u slots lie in memory that cannot be made writable", result->sum.refused);
}

static void call_ticks(uint32_t plugins)
{
	int i;

	for (i = 0; i < PLUGINS_MAX; i++) {
		void (*call)(void) = atomic_load_explicit(&ticks[i].call, memory_order_acquire);

		if (call && (ticks[i].plugin & plugins))
			call();
	}
}

static void hook_run(void)
{
	uint64_t generation = 0;

	resolve();
	while (!thread_stopping(THREAD_HOOK)) {
		uint32_t asked = atomic_load_explicit(&wish.asked, memory_order_acquire);
		uint32_t plugins = atomic_load_explicit(&wish.plugins, memory_order_relaxed);
		uint64_t now = got_generation();
		bool news = asked != atomic_load_explicit(&wish.done, memory_order_relaxed);

		if (news || (plugins && now != generation)) {
			pass(plugins);
			generation = now;
		}
		if (news) {
			atomic_store_explicit(&wish.done, asked, memory_order_release);
			futex_wake(&wish.done);
		}
		if (!plugins && asked == atomic_load_explicit(&wish.asked, memory_order_acquire))
			break;
		call_ticks(plugins);
		stack_refresh(now);
		thread_sleep(THREAD_HOOK, POLL_NS);
	}
}

/* --- the control thread ---------------------------------------------------------------------------------------------- */

/* The thread may be about to end when the request comes: it is then started again. */
static int carry_out(uint32_t asked, uint64_t deadline_ns)
{
	for (;;) {
		uint32_t done = atomic_load_explicit(&wish.done, memory_order_acquire);
		uint64_t now_ns = clock_mono_ns();
		int ret;

		if ((int32_t)(done - asked) >= 0)
			return 0;
		ret = thread_start(THREAD_HOOK, hook_run);
		if (ret < 0 && ret != -EALREADY)
			return ret;
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		thread_wake(THREAD_HOOK);
		futex_wait(&wish.done, done, RETRY_NS);
	}
}

int hook_switch(uint32_t plugin, bool on, const void *only, uint64_t deadline_ns, struct st_err *err)
{
	uint32_t plugins = atomic_load_explicit(&wish.plugins, memory_order_relaxed);
	uint32_t asked;
	int ret;

	/* at the end of the process they stay and pass through: nobody waits for us then */
	if (!on && (!(plugins & plugin) || agent_state() == AGENT_STOPPING))
		return 0;
	atomic_store(&wish.only[__builtin_ctz(plugin)], only);
	atomic_store_explicit(&wish.plugins, on ? plugins | plugin : plugins & ~plugin, memory_order_relaxed);
	/* release: the thread that sees the number sees the wish */
	asked = atomic_fetch_add_explicit(&wish.asked, 1, memory_order_release) + 1;
	ret = carry_out(asked, deadline_ns);
	if (ret == -ETIMEDOUT)
		return err_set(err, ret, "a thread of the job is inside dlopen: hooks are %s as soon as it is done",
			       on ? "put in" : "taken out");
	if (ret < 0)
		return err_set(err, ret, "cannot start systrace/hook: %s", strerror(-ret));
	return 0;
}

void hook_tick_add(uint32_t plugin, void (*tick)(void))
{
	int i;

	for (i = 0; i < PLUGINS_MAX; i++) {
		if (ticks[i].plugin && ticks[i].plugin != plugin)
			continue;
		ticks[i].plugin = plugin;
		atomic_store_explicit(&ticks[i].call, tick, memory_order_release);
		return;
	}
}

void hook_status(struct hook_status *status,
		 void (*each)(void *arg, const char *path, uint32_t slots, uint32_t foreign, uint32_t refused),
		 void *arg)
{
	uint32_t shown = atomic_load_explicit(&passes, memory_order_acquire);
	/* the next pass writes the other half, and the one after that is 50 ms away at least */
	const struct result *result = &results[shown & 1];
	uint32_t i;

	*status = (struct hook_status){
		.wanted = atomic_load_explicit(&wish.plugins, memory_order_relaxed),
		.pending = atomic_load(&wish.asked) != atomic_load(&wish.done),
		.passes = shown,
		.pass_ns = result->pass_ns,
		.objects = result->objects,
		.slots = result->sum.changed + result->sum.already,
		.foreign = result->sum.foreign,
		.refused = result->sum.refused,
		.missing = result->missing,
	};
	for (i = 0; each && i < result->rows; i++)
		each(arg, result->row[i].path, result->row[i].slots, result->row[i].foreign, result->row[i].refused);
}

void hook_after_fork(void)
{
	/* the wish stays: the slots are as they were, and hook_take_out() must know */
	atomic_store_explicit(&wish.done, atomic_load_explicit(&wish.asked, memory_order_relaxed),
			      memory_order_relaxed);
}

void hook_take_out(void)
{
	struct st_err err;

	if (!__atomic_load_n(&resolved, __ATOMIC_ACQUIRE))
		return;
	atomic_store_explicit(&wish.plugins, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&wish.asked, 1, memory_order_release);
	if (thread_start(THREAD_HOOK, hook_run) < 0)
		err_set(&err, -EAGAIN, "the inherited hooks stay in place and pass through");
}
