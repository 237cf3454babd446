/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin Memory, the agent's part: the job's heap by sampled blocks, with the stacks that hold it when the capture ends. The
 * wrappers and tables are in agent/memory/; this switches them, tells now and then what the process holds, and at the
 * end which stacks hold live blocks. Written down by spool/sink_os.c; kernel events are the probe's.
 */
#include "agent/hook/hook.h"
#include "agent/io_thread.h"
#include "agent/memory/track.h"
#include "agent/plugin.h"
#include "agent/stack/stack.h"
#include "base/num.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "safe/regions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SAMPLE_BYTES (512u << 10)
#define FINE_BYTES (64u << 10) /* samples below are many */
#define STATE_PERIOD_NS 100000000u
#define TELL_WAIT_NS 2000000000u /* at the end, for room in the pool */

static struct {
	struct track_options options; /* as asked for */
	bool running;
	uint64_t next_state_ns; /* of systrace/hook */
	uint64_t heap_start; /* where the brk heap begins */
	long page;
} memory;

/* --- what the process holds ------------------------------------------------------------------------------------------- */

/* Field 47 of /proc/self/stat; the command's name in field 2 may hold blanks and brackets. */
static uint64_t brk_start(void)
{
	char text[1024];
	const char *at;
	int field;

	if (sys_read_file("/proc/self/stat", text, sizeof(text)) <= 0)
		return 0;
	at = strrchr(text, ')');
	for (field = 2; at && field < 47; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

static uint64_t resident(void)
{
	char text[128];
	const char *at;

	if (sys_read_file("/proc/self/statm", text, sizeof(text)) <= 0)
		return 0;
	at = strchr(text, ' ');
	return at ? strtoull(at, NULL, 10) * (uint64_t)memory.page : 0;
}

/* The pool may be full of what the capture has left: the io thread makes room, for which we wait a little. */
static bool put_patiently(const void *rec, uint32_t bytes, uint64_t deadline_ns)
{
	while (!pool_put(&agent.pool, rec, bytes, POOL_SRC_MEMORY)) {
		if (clock_mono_ns() >= deadline_ns)
			return false;
		/* what is tried again is not lost */
		atomic_fetch_sub_explicit(&agent.pool.head->dropped[POOL_SRC_MEMORY], 1, memory_order_relaxed);
		io_ask(IO_FLUSH);
		usleep(5000);
	}
	return true;
}

static bool put_state(uint8_t flags, uint64_t deadline_ns)
{
	struct rec_mem_state rec = {
		.head = { .bytes = sizeof(rec),
			  .type = REC_MEM_STATE,
			  .flags = flags,
			  .step = (uint32_t)atomic_load_explicit(&agent_place()->step, memory_order_relaxed) + 1 },
		.at_ns = clock_mono_ns(),
		.rss = resident(),
	};
	uintptr_t end = (uintptr_t)sbrk(0);
	struct track_sums sums;

	track_sums(&sums);
	rec.heap = sums.heap;
	rec.mapped = sums.mapped;
	rec.untracked = sums.untracked;
	rec.sample_bytes = sums.period;
	rec.brk = end > memory.heap_start && memory.heap_start ? end - memory.heap_start : 0;
	return put_patiently(&rec, sizeof(rec), deadline_ns);
}

/* On systrace/hook, every 50 ms. */
static void tick(void)
{
	uint64_t now_ns = clock_mono_ns();

	track_learn();
	if (now_ns < memory.next_state_ns || !pool_on(&agent.pool, ON_MEMORY))
		return;
	memory.next_state_ns = now_ns + STATE_PERIOD_NS;
	put_state(0, 0);
}

/* --- the end: which stacks hold live blocks ------------------------------------------------------------------------------ */

struct sites {
	struct rec_mem_site *slot; /* by stack and kind; .blocks 0 = free */
	uint32_t room; /* a power of two, more than there can be stacks */
	uint64_t lost; /* no slot */
};

static void add_block(void *arg, uintptr_t address, const struct block *block)
{
	struct sites *sites = arg;
	uint32_t at = (block->stack * 2 + block->kind) * 2654435761u & (sites->room - 1), tries;

	for (tries = 0; tries < sites->room; tries++, at = (at + 1) & (sites->room - 1)) {
		struct rec_mem_site *site = &sites->slot[at];

		if (!site->blocks)
			*site = (struct rec_mem_site){ .stack = block->stack,
						       .kind = block->kind,
						       .oldest_ns = UINT64_MAX };
		if (site->stack != block->stack || site->kind != block->kind)
			continue;
		site->blocks++;
		site->bytes += block->bytes;
		site->usable += block->usable;
		site->weight += block->weight;
		if (block->begin_ns < site->oldest_ns)
			site->oldest_ns = block->begin_ns;
		return;
	}
	sites->lost++;
}

static void tell_live(uint64_t deadline_ns)
{
	struct stack_status stacks;
	struct sites sites = { .room = 1024 };
	uint32_t i, untold = 0;
	bool room = true;

	stack_status(&stacks);
	while (sites.room < 4 * (stacks.stacks + 1))
		sites.room *= 2;
	sites.slot = mmap(NULL, sites.room * sizeof(*sites.slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	if (sites.slot == MAP_FAILED) {
		atomic_fetch_add_explicit(&agent.pool.head->dropped[POOL_SRC_MEMORY], 1, memory_order_relaxed);
		return;
	}
	blocks_each(add_block, &sites);
	regions_each(add_block, &sites);
	for (i = 0; i < sites.room; i++) {
		struct rec_mem_site *site = &sites.slot[i];

		if (!site->blocks)
			continue;
		site->head = (struct rec_head){ .bytes = sizeof(*site), .type = REC_MEM_SITE };
		site->at_ns = clock_mono_ns();
		room = room && put_patiently(site, sizeof(*site), deadline_ns);
		untold += !room;
	}
	/* the first that found no room is counted already */
	atomic_fetch_add_explicit(&agent.pool.head->dropped[POOL_SRC_MEMORY], sites.lost + (untold ? untold - 1 : 0),
				  memory_order_relaxed);
	munmap(sites.slot, sites.room * sizeof(*sites.slot));
}

/* --- the plugin ------------------------------------------------------------------------------------------------------ */

static uint64_t number(const struct plugin_args *args, const char *key, uint64_t otherwise)
{
	const char *text = plugin_args_get(args, key);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

static int memory_check(const struct plugin_args *args, struct st_err *err)
{
	const char *space = plugin_args_get(args, "space");

	if (space && !strcmp(space, "device"))
		return err_set(
			err, -ENOTSUP,
			"Memory records device memory only in a process with a device runtime; use space=host here");
	if (!number(args, "sample_bytes", 1))
		return err_set(err, -EINVAL, "sample_bytes= must be at least 1 (every allocation)");
	if (number(args, "blocks", 1) - 1 >= BLOCKS_MAX)
		return err_set(err, -EINVAL, "blocks= must be from 1 to %u", BLOCKS_MAX);
	return 0;
}

static void memory_stop(void)
{
	struct st_err ignored;

	pool_switch(&agent.pool, ON_MEMORY, false);
	track_end();
	if (memory.running) { /* the pool's bit is off already when the process ends */
		uint64_t deadline_ns = clock_mono_ns() + TELL_WAIT_NS;

		tell_live(deadline_ns);
		put_state(MEM_ENDED, deadline_ns);
	}
	memory.running = false;
	hook_switch(ON_MEMORY_NEW, false, NULL, clock_mono_ns() + HOOK_WAIT_NS, &ignored);
	hook_switch(ON_MEMORY, false, NULL, clock_mono_ns() + HOOK_WAIT_NS, &ignored);
}

static int memory_start(const struct plugin_args *args, struct st_err *err)
{
	const char *stack = plugin_args_get(args, "stack");
	bool stacks = true;
	int ret;

	if (stack)
		num_bool(stack, &stacks);
	memory.options.stacks = stacks;
	memory.options.sample_bytes = number(args, "sample_bytes", SAMPLE_BYTES);
	memory.options.blocks = (uint32_t)number(
		args, "blocks", memory.options.sample_bytes < FINE_BYTES ? BLOCKS_MAX : BLOCKS_MAX / 16);
	memory.page = sysconf(_SC_PAGESIZE);
	ret = stacks ? stack_start(true, err) : 0;
	if (ret < 0)
		return ret;
	if (memory.running) {
		track_set(&memory.options);
		return 0;
	}
	memory.heap_start = brk_start();
	ret = track_begin(&memory.options);
	if (ret < 0)
		return err_set(err, ret, "no memory for the table of blocks: %s", strerror(-ret));
	hook_tick_add(ON_MEMORY, tick);
	ret = hook_switch(ON_MEMORY, true, NULL, clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret == 0 && track_learn() && track_own_new())
		ret = hook_switch(ON_MEMORY_NEW, true, NULL, clock_mono_ns() + HOOK_WAIT_NS, err);
	if (ret < 0 && ret != -ETIMEDOUT)
		return ret;
	memory.running = true;
	put_state(MEM_BEGINS, clock_mono_ns() + TELL_WAIT_NS);
	pool_switch(&agent.pool, ON_MEMORY, true);
	return 0;
}

static uint64_t memory_calls(void)
{
	struct track_sums sums;

	track_sums(&sums);
	return sums.cost / 20;
}

static int memory_back_off(unsigned int level, char *what, size_t room)
{
	struct track_options options = memory.options;

	if (level > 3)
		return -ERANGE;
	options.sample_bytes = memory.options.sample_bytes << 3 * level;
	if (options.sample_bytes < SAMPLE_BYTES)
		options.sample_bytes = SAMPLE_BYTES;
	track_set(&options);
	snprintf(what, room, "one allocation in %llu bytes is sampled now", (unsigned long long)options.sample_bytes);
	return 0;
}

static void memory_status(char *text, size_t room)
{
	struct track_sums sums;

	track_sums(&sums);
	snprintf(text, room, "%llu samples, %llu alive: %.1f MB of heap, %.1f MB mapped%s",
		 (unsigned long long)sums.came, (unsigned long long)sums.blocks, (double)sums.heap / 1e6,
		 (double)sums.mapped / 1e6,
		 sums.untracked ? "; the table of live blocks is full: more with blocks=" : "");
}

const struct plugin plugin_memory = {
	.id = PLUGIN_MEMORY,
	.check = memory_check,
	.start = memory_start,
	.stop = memory_stop,
	.calls = memory_calls,
	.back_off = memory_back_off,
	.status = memory_status,
};
