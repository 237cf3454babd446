/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sampling and bookkeeping of the job's memory; see track.h. */
#include "agent/memory/track.h"

#include "agent/hook/got.h"
#include "agent/hook/hook.h"
#include "agent/stack/stack.h"
#include "safe/clock.h"
#include "safe/regions.h"

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u
/* Cost in twentieths of a recorded call (bench/bench_memory.py): of a sampled block with its stack, of its end, and of the
 * calls that passed for each that it stands for. */
#define COST_CAME 200u
#define COST_WENT 20u
#define COST_PASSED 1u

__thread struct sampler track_sampler __attribute__((tls_model("initial-exec")));
_Atomic uint32_t track_epoch = 1;

static struct {
	_Atomic uint64_t period;
	_Atomic bool stacks;
	_Atomic uint32_t capacity;
} config;

static struct {
	_Atomic uint64_t heap, mapped, blocks, came, went, untracked, cost;
} sums;

/* The object that malloc comes from: what it maps is what it gives out. */
static struct {
	_Atomic bool known;
	bool own_new;
	uintptr_t begin, end;
	size_t (*usable)(void *block); /* NULL: not this allocator's */
} allocator;

static void add(_Atomic uint64_t *to, uint64_t by)
{
	atomic_fetch_add_explicit(to, by, memory_order_relaxed);
}

/* As hook_on(), but inside ourselves too: what a signal handler frees there is freed. */
static bool recording(void)
{
	return pool_on(&agent.pool, ON_MEMORY) &&
	       (atomic_load_explicit(&agent.pool.head->on_mask, memory_order_relaxed) & ON_MEMORY);
}

static bool put(uint8_t flags, uint64_t at_ns, uintptr_t address, const struct block *block)
{
	const struct pool_header *head = agent_place();
	struct rec_mem rec = {
		.head = { .bytes = sizeof(rec),
			  .type = REC_MEM,
			  .flags = flags,
			  .step = (uint32_t)atomic_load_explicit(&head->step, memory_order_relaxed) + 1 },
		.at_ns = at_ns,
		.address = address,
		.bytes = block->bytes,
		.usable = block->usable,
		.weight = block->weight,
		.stage_id = atomic_load_explicit(&head->stage_id, memory_order_relaxed),
		.stack = block->stack,
		.stage = (uint16_t)atomic_load_explicit(&head->stage, memory_order_relaxed),
		.kind = (uint16_t)block->kind,
	};

	return hook_put(&rec, sizeof(rec), POOL_SRC_MEMORY);
}

static uint32_t stack(void)
{
	return atomic_load_explicit(&config.stacks, memory_order_relaxed) ? stack_here(true) : 0;
}

/* --- blocks ---------------------------------------------------------------------------------------------------------- */

static bool sampled(uint64_t bytes, uint64_t period)
{
	uint32_t epoch = atomic_load_explicit(&track_epoch, memory_order_relaxed);
	struct sampler *s = &track_sampler;

	if (s->epoch != epoch && period > 1) {
		if (!s->random)
			sampler_seed(s, (uintptr_t)s ^ clock_mono_ns());
		s->left = sampler_draw(s, period);
		s->epoch = epoch;
	}
	return period <= 1 || sampler_hit(s, bytes, period);
}

static void live(const struct block *block, bool more)
{
	_Atomic uint64_t *sum = block->kind == MEM_MMAP ? &sums.mapped : &sums.heap;

	add(sum, more ? block->weight : -block->weight);
	add(&sums.blocks, more ? 1 : (uint64_t)-1);
}

void track_came(void *at, size_t bytes)
{
	uint64_t period = atomic_load_explicit(&config.period, memory_order_relaxed);
	struct block block = { .bytes = bytes, .usable = bytes, .kind = MEM_MALLOC };
	bool tracked;

	if (!at || !hook_on(ON_MEMORY) || !sampled(bytes, period))
		return;
	block.weight = sampler_weight(bytes, period);
	if (allocator.usable)
		block.usable = allocator.usable(at);
	block.begin_ns = clock_mono_ns();
	block.stack = stack();
	tracked = blocks_put((uintptr_t)at, &block);
	if (tracked)
		live(&block, true);
	add(tracked ? &sums.came : &sums.untracked, 1);
	add(&sums.cost, COST_CAME + (bytes ? block.weight / bytes * COST_PASSED : 0));
	put(tracked ? 0 : MEM_UNTRACKED, block.begin_ns, (uintptr_t)at, &block);
}

static void told_gone(const struct track_was *was)
{
	live(&was->block, false);
	add(&sums.went, 1);
	add(&sums.cost, COST_WENT);
	put(MEM_FREED, was->at_ns, was->address, &was->block);
}

void track_take(void *block, struct track_was *was)
{
	was->known = recording() && blocks_take((uintptr_t)block, &was->block);
	was->address = (uintptr_t)block;
	was->at_ns = was->known ? clock_mono_ns() : 0;
}

void track_put_back(const struct track_was *was)
{
	if (was->known && !blocks_put(was->address, &was->block))
		told_gone(was);
}

void track_tell(const struct track_was *was)
{
	if (was->known)
		told_gone(was);
}

void track_went(void *block)
{
	struct track_was was;

	track_take(block, &was);
	track_tell(&was);
}

/* --- mappings: all of them, each exactly ------------------------------------------------------------------------------- */

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static void region_came(uintptr_t at, const struct block *block, uint8_t flags)
{
	bool tracked = regions_put(at, block);

	if (tracked)
		live(block, true);
	add(tracked ? &sums.came : &sums.untracked, 1);
	add(&sums.cost, COST_CAME);
	put(tracked ? flags : flags | MEM_UNTRACKED, block->begin_ns, at, block);
}

/* Of a mapping of which a part went: what lies before and behind [from, to). */
static void region_rest(const struct track_was *was, uintptr_t from, uintptr_t to)
{
	uintptr_t end = was->address + was->block.bytes;
	struct block rest = was->block;

	rest.begin_ns = was->at_ns;
	if (was->address < from) {
		rest.bytes = rest.usable = rest.weight = from - was->address;
		region_came(was->address, &rest, MEM_REST);
	}
	if (end > to) {
		rest.bytes = rest.usable = rest.weight = end - to;
		region_came(to, &rest, MEM_REST);
	}
}

void track_unmap(const void *at, size_t bytes)
{
	uintptr_t from = (uintptr_t)at, to = from + pages(bytes);
	struct track_was was;

	while (recording() && regions_take(from, to - from, &was.address, &was.block)) {
		was.at_ns = clock_mono_ns();
		told_gone(&was);
		region_rest(&was, from, to);
	}
}

static void map_came(void *at, size_t bytes)
{
	struct block block = { .bytes = pages(bytes), .kind = MEM_MMAP, .begin_ns = clock_mono_ns() };

	block.usable = block.weight = block.bytes;
	block.stack = stack();
	region_came((uintptr_t)at, &block, 0);
}

void track_mapped(void *at, size_t bytes, int prot, int flags, const void *caller)
{
	if (at == MAP_FAILED || !hook_on(ON_MEMORY))
		return;
	if (flags & MAP_FIXED)
		track_unmap(at, bytes);
	/* files are not the heap, reserved addresses are not memory, and what malloc maps comes out of malloc */
	if (!(flags & MAP_ANONYMOUS) || prot == PROT_NONE ||
	    ((uintptr_t)caller >= allocator.begin && (uintptr_t)caller < allocator.end))
		return;
	map_came(at, bytes);
}

void track_take_map(const void *at, size_t bytes, struct track_was *was)
{
	was->known = bytes && recording() && regions_take((uintptr_t)at, pages(bytes), &was->address, &was->block);
	was->at_ns = was->known ? clock_mono_ns() : 0;
}

void track_put_back_map(const struct track_was *was)
{
	if (was->known && !regions_put(was->address, &was->block))
		told_gone(was);
}

void track_moved(const struct track_was *was, const void *from, size_t from_bytes, void *to, size_t bytes)
{
	if (!was->known) /* of a file, or from before the capture */
		return;
	told_gone(was);
	region_rest(was, (uintptr_t)from, (uintptr_t)from + pages(from_bytes));
	track_unmap(to, bytes); /* MREMAP_FIXED */
	map_came(to, bytes);
}

/* --- switching ------------------------------------------------------------------------------------------------------- */

static void next_epoch(void)
{
	uint32_t epoch = atomic_load_explicit(&track_epoch, memory_order_relaxed) + 1;

	/* release: a thread that draws anew draws for the new period */
	atomic_store_explicit(&track_epoch, epoch ? epoch : 1, memory_order_release);
}

void track_set(const struct track_options *options)
{
	atomic_store_explicit(&config.stacks, options->stacks, memory_order_relaxed);
	atomic_store_explicit(&config.period, options->sample_bytes ? options->sample_bytes : 1, memory_order_relaxed);
	next_epoch();
}

int track_begin(const struct track_options *options)
{
	int ret = blocks_reserve();

	if (ret == 0)
		ret = regions_reserve();
	if (ret < 0)
		return ret;
	atomic_store(&config.capacity, blocks_clear(options->blocks));
	regions_clear();
	atomic_store(&sums.heap, 0);
	atomic_store(&sums.mapped, 0);
	atomic_store(&sums.blocks, 0);
	atomic_store(&sums.came, 0);
	atomic_store(&sums.went, 0);
	atomic_store(&sums.untracked, 0);
	track_set(options);
	return 0;
}

void track_end(void)
{
	next_epoch();
}

struct holder {
	uintptr_t inside; /* an address of the object that is looked for */
	uintptr_t begin, end;
};

static int look_for(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct holder *holder = arg;
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
	if (holder->inside < begin || holder->inside >= end)
		return 0;
	holder->begin = begin;
	holder->end = end;
	return 1;
}

bool track_learn(void)
{
	struct holder holder = { .inside = (uintptr_t)hook_real.malloc };
	uintptr_t usable = (uintptr_t)hook_real.malloc_usable_size, own_new = (uintptr_t)hook_real.op_new;

	if (atomic_load_explicit(&allocator.known, memory_order_acquire))
		return true;
	if (!holder.inside || !got_each_object(look_for, &holder))
		return false;
	if (usable >= holder.begin && usable < holder.end)
		allocator.usable = hook_real.malloc_usable_size;
	allocator.own_new = own_new >= holder.begin && own_new < holder.end;
	allocator.begin = holder.begin;
	allocator.end = holder.end;
	atomic_store_explicit(&allocator.known, true, memory_order_release);
	return true;
}

bool track_own_new(void)
{
	return allocator.own_new;
}

void track_sums(struct track_sums *out)
{
	*out = (struct track_sums){
		.heap = atomic_load_explicit(&sums.heap, memory_order_relaxed),
		.mapped = atomic_load_explicit(&sums.mapped, memory_order_relaxed),
		.blocks = atomic_load_explicit(&sums.blocks, memory_order_relaxed),
		.came = atomic_load_explicit(&sums.came, memory_order_relaxed),
		.went = atomic_load_explicit(&sums.went, memory_order_relaxed),
		.untracked = atomic_load_explicit(&sums.untracked, memory_order_relaxed),
		.capacity = atomic_load_explicit(&config.capacity, memory_order_relaxed),
		.period = atomic_load_explicit(&config.period, memory_order_relaxed),
		.cost = atomic_load_explicit(&sums.cost, memory_order_relaxed),
	};
}
