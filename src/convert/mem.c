/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sums over recorded memory; see mem.h. */
#include "convert/mem.h"

#include "base/hash64.h"
#include "convert/rows.h"
#include "trace/mem.h"
#include "trace/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A block that is alive. */
struct live {
	uint64_t address;
	uint64_t weight, bytes;
	uint32_t site; /* 1 + index, 0 = slot unused */
	uint32_t process, capture;
};

struct mem_sum {
	struct ev_session *session;
	struct stacks *stacks;
	struct mem_site *sites;
	uint32_t site_count, site_room;
	struct mem_process *processes;
	uint32_t process_count, process_room;
	uint32_t *by_key; /* 1 + index of a site; open addressing */
	uint32_t key_mask;
	struct live *live;
	uint32_t live_mask, live_count;
};

struct mem_sum *mem_new(struct ev_session *session, struct stacks *stacks)
{
	struct mem_sum *sum = calloc(1, sizeof(*sum));

	if (sum) {
		sum->session = session;
		sum->stacks = stacks;
	}
	return sum;
}

void mem_free(struct mem_sum *sum)
{
	if (!sum)
		return;
	free(sum->sites);
	free(sum->processes);
	free(sum->by_key);
	free(sum->live);
	free(sum);
}

/* --- processes and sites --------------------------------------------------------------------------------------------- */

size_t mem_process_of(const struct mem_sum *sum, const struct event *ev)
{
	size_t i = sum->process_count;

	while (i-- > 0 && (sum->processes[i].pid != ev->track.pid || sum->processes[i].host != ev->track.host))
		;
	return i == SIZE_MAX ? sum->process_count : i;
}

static int process_of(struct mem_sum *sum, const struct event *ev, struct mem_process **process)
{
	size_t i = mem_process_of(sum, ev);

	if (i == sum->process_count) {
		if (rows_grow(&sum->processes, sum->process_count, &sum->process_room, sizeof(*sum->processes)) < 0)
			return -ENOMEM;
		sum->processes[sum->process_count++] = (struct mem_process){
			.host = ev->track.host,
			.pid = ev->track.pid,
			.rank = ev->rank,
			.worker = ev->quality & EV_WORKER,
			.first_ns = ev->t_ns,
		};
	}
	*process = &sum->processes[i];
	(*process)->last_ns = ev->t_ns;
	return (int)i;
}

static uint64_t site_key(const struct mem_site *site)
{
	return hash64_mix((uint64_t)site->process << 40 ^ (uint64_t)site->kind << 36 ^ (uint64_t)site->space << 33 ^
				  site->stack,
			  0x9e3779b97f4a7c15u);
}

static bool same_site(const struct mem_site *a, const struct mem_site *b)
{
	return a->process == b->process && a->stack == b->stack && a->kind == b->kind && a->space == b->space;
}

static int keys_grow(struct mem_sum *sum)
{
	uint32_t mask = sum->key_mask ? sum->key_mask * 2 + 1 : 1023, i, at;
	uint32_t *keys = calloc((size_t)mask + 1, sizeof(*keys));

	if (!keys)
		return -ENOMEM;
	for (i = 0; i < sum->site_count; i++) {
		for (at = (uint32_t)site_key(&sum->sites[i]) & mask; keys[at]; at = (at + 1) & mask)
			;
		keys[at] = i + 1;
	}
	free(sum->by_key);
	sum->by_key = keys;
	sum->key_mask = mask;
	return 0;
}

/* By its id, with names; else as the record itself has it. */
static uint32_t stack_of(struct mem_sum *sum, const struct event *ev)
{
	const char *path = ev_source_path(sum->session, ev->source);
	uint32_t id = (uint32_t)ev->args[MEM_ARG_STACK].u64, pid, found = 0;

	if (sum->stacks && id) {
		mem_rank_of_name(path, &pid);
		found = stacks_find(sum->stacks, path, pid ? pid : (uint32_t)ev->track.pid, id);
	}
	return found ? found : ev->stack;
}

/* Return: index, or -ENOMEM. */
static int64_t site_of(struct mem_sum *sum, const struct event *ev, size_t process)
{
	const struct mem_site want = { .process = (uint32_t)process,
				       .stack = stack_of(sum, ev),
				       .kind = (uint8_t)ev->args[MEM_ARG_KIND].u64,
				       .space = (uint8_t)ev->args[MEM_ARG_SPACE].u64 };
	uint32_t at;

	if (sum->site_count >= sum->key_mask / 2 && keys_grow(sum) < 0)
		return -ENOMEM;
	for (at = (uint32_t)site_key(&want) & sum->key_mask; sum->by_key[at]; at = (at + 1) & sum->key_mask)
		if (same_site(&sum->sites[sum->by_key[at] - 1], &want))
			return sum->by_key[at] - 1;
	if (rows_grow(&sum->sites, sum->site_count, &sum->site_room, sizeof(*sum->sites)) < 0)
		return -ENOMEM;
	sum->sites[sum->site_count] = want;
	sum->by_key[at] = ++sum->site_count;
	return sum->site_count - 1;
}

/* --- live blocks ------------------------------------------------------------------------------------------------------- */

static uint32_t live_slot(const struct mem_sum *sum, uint64_t address, uint32_t process)
{
	return (uint32_t)hash64_mix(address ^ (uint64_t)process << 50, 0x9e3779b97f4a7c15u) & sum->live_mask;
}

/* Slot of a block, or the empty one where it would be. */
static struct live *live_find(const struct mem_sum *sum, uint64_t address, uint32_t process)
{
	uint32_t at = live_slot(sum, address, process);

	while (sum->live[at].site && (sum->live[at].address != address || sum->live[at].process != process))
		at = (at + 1) & sum->live_mask;
	return &sum->live[at];
}

static int live_grow(struct mem_sum *sum)
{
	struct live *old = sum->live;
	uint32_t old_mask = sum->live_mask, i;

	sum->live_mask = old ? old_mask * 2 + 1 : 4095;
	sum->live = calloc((size_t)sum->live_mask + 1, sizeof(*sum->live));
	if (!sum->live) {
		sum->live = old;
		sum->live_mask = old_mask;
		return -ENOMEM;
	}
	for (i = 0; old && i <= old_mask; i++)
		if (old[i].site)
			*live_find(sum, old[i].address, old[i].process) = old[i];
	free(old);
	return 0;
}

static double stands_for(uint64_t weight, uint64_t bytes)
{
	return bytes ? (double)weight / (double)bytes : 1;
}

static void use_add(struct mem_use *use, uint64_t weight, uint64_t bytes)
{
	use->blocks++;
	use->all_blocks += stands_for(weight, bytes);
	use->bytes += weight;
}

/* Take a block out; the ones behind it move up. */
static void live_drop(struct mem_sum *sum, struct live *gone)
{
	struct mem_process *process = &sum->processes[gone->process];
	struct mem_use *use = &sum->sites[gone->site - 1].live;
	uint32_t hole = (uint32_t)(gone - sum->live), at = hole;

	if (gone->capture == process->capture) {
		uint64_t *now = sum->sites[gone->site - 1].kind == MEM_MMAP ? &process->mapped : &process->heap;

		use->blocks--;
		use->all_blocks -= stands_for(gone->weight, gone->bytes);
		use->bytes -= gone->weight;
		*now -= gone->weight < *now ? gone->weight : *now;
	}
	sum->live_count--;
	for (;;) {
		uint32_t home;

		sum->live[hole].site = 0;
		do {
			at = (at + 1) & sum->live_mask;
			if (!sum->live[at].site)
				return;
			home = live_slot(sum, sum->live[at].address, sum->live[at].process);
		} while (((at - home) & sum->live_mask) < ((at - hole) & sum->live_mask));
		sum->live[hole] = sum->live[at];
		hole = at;
	}
}

/* --- events ------------------------------------------------------------------------------------------------------------ */

static int take_alloc(struct mem_sum *sum, const struct event *ev, size_t process)
{
	uint64_t weight = ev->args[MEM_ARG_WEIGHT].u64, bytes = ev->args[MEM_ARG_BYTES].u64;
	uint64_t flags = ev->args[MEM_ARG_FLAGS].u64;
	struct mem_process *p = &sum->processes[process];
	int64_t site = site_of(sum, ev, process);
	struct live *slot;

	if (site < 0 || (sum->live_count >= sum->live_mask / 2 && live_grow(sum) < 0))
		return -ENOMEM;
	if (!(flags & MEM_REST))
		use_add(&sum->sites[site].allocated, weight, bytes);
	if (flags & MEM_UNTRACKED)
		return 1;
	slot = live_find(sum, ev->args[MEM_ARG_ADDRESS].u64, (uint32_t)process);
	if (slot->site) { /* its end was not seen */
		live_drop(sum, slot);
		slot = live_find(sum, ev->args[MEM_ARG_ADDRESS].u64, (uint32_t)process);
	}
	*slot = (struct live){ .address = ev->args[MEM_ARG_ADDRESS].u64,
			       .weight = weight,
			       .bytes = bytes,
			       .site = (uint32_t)site + 1,
			       .process = (uint32_t)process,
			       .capture = p->capture };
	sum->live_count++;
	use_add(&sum->sites[site].live, weight, bytes);
	*(sum->sites[site].kind == MEM_MMAP ? &p->mapped : &p->heap) += weight;
	return 1;
}

static int take_free(struct mem_sum *sum, const struct event *ev, size_t process)
{
	struct live *slot;

	if (!sum->live)
		return 1;
	slot = live_find(sum, ev->args[MEM_ARG_ADDRESS].u64, (uint32_t)process);
	if (slot->site)
		live_drop(sum, slot);
	return 1;
}

static int take_site(struct mem_sum *sum, const struct event *ev, size_t process)
{
	uint64_t weight = ev->args[MEM_ARG_WEIGHT].u64, bytes = ev->args[MEM_ARG_BYTES].u64;
	int64_t i = site_of(sum, ev, process);
	struct mem_site *site;

	if (i < 0)
		return -ENOMEM;
	site = &sum->sites[i];
	site->told.blocks += ev->args[SITE_ARG_BLOCKS].u64;
	site->told.all_blocks += (double)ev->args[SITE_ARG_BLOCKS].u64 * stands_for(weight, bytes);
	site->told.bytes += weight;
	if (!site->oldest_ns || ev->args[SITE_ARG_OLDEST].u64 < site->oldest_ns)
		site->oldest_ns = ev->args[SITE_ARG_OLDEST].u64;
	return 1;
}

/* What was alive in an earlier capture is not followed any more. */
static void new_capture(struct mem_sum *sum, size_t process)
{
	struct mem_process *p = &sum->processes[process];
	uint32_t i;

	p->capture++;
	p->ended = false;
	p->heap = p->mapped = 0;
	for (i = 0; i < sum->site_count; i++) {
		if (sum->sites[i].process != process)
			continue;
		sum->sites[i].live = sum->sites[i].told = (struct mem_use){ 0 };
		sum->sites[i].oldest_ns = 0;
	}
}

static void take_state(struct mem_sum *sum, const struct event *ev, size_t process)
{
	struct mem_process *p = &sum->processes[process];
	uint64_t flags = ev->args[STATE_ARG_FLAGS].u64;

	if (flags & MEM_BEGINS)
		new_capture(sum, process);
	p->ended |= (flags & MEM_ENDED) != 0;
	p->sample_bytes = ev->args[STATE_ARG_SAMPLE_BYTES].u64;
	p->untracked = ev->args[STATE_ARG_UNTRACKED].u64;
	p->rss = ev->args[STATE_ARG_RSS].u64;
	p->brk = ev->args[STATE_ARG_BRK].u64;
	/* it knows better than records of which some may be lost */
	p->heap = ev->args[STATE_ARG_HEAP].u64;
	p->mapped = ev->args[STATE_ARG_MAPPED].u64;
}

int mem_take(struct mem_sum *sum, const struct event *ev)
{
	struct mem_process *process;
	int i;

	if (!mem_is(ev))
		return 0;
	i = process_of(sum, ev, &process);
	if (i < 0)
		return i;
	switch (ev->kind) {
	case EV_MEM_ALLOC:
		return take_alloc(sum, ev, (size_t)i);
	case EV_MEM_FREE:
		return take_free(sum, ev, (size_t)i);
	case EV_MEM_SITE:
		return take_site(sum, ev, (size_t)i);
	default:
		take_state(sum, ev, (size_t)i);
		return 1;
	}
}

int64_t mem_read(struct mem_sum *sum, struct merge *merge, struct st_err *err)
{
	int64_t events = 0;
	struct event ev;
	int ret;

	while ((ret = merge_next(merge, &ev, err)) != 0) {
		if (ret > 0)
			ret = mem_take(sum, &ev);
		if (ret == -ENOMEM)
			return err_set(err, ret, "out of memory");
		events += ret > 0; /* a file that failed has given what it had */
	}
	return events;
}

/* --- results ----------------------------------------------------------------------------------------------------------- */

size_t mem_site_count(const struct mem_sum *sum)
{
	return sum->site_count;
}

const struct mem_site *mem_site(const struct mem_sum *sum, size_t i)
{
	return &sum->sites[i];
}

size_t mem_process_count(const struct mem_sum *sum)
{
	return sum->process_count;
}

const struct mem_process *mem_process(const struct mem_sum *sum, size_t i)
{
	return &sum->processes[i];
}

struct mem_use mem_use_of(const struct mem_sum *sum, const struct mem_site *site, enum mem_view view)
{
	if (view == MEM_ALLOCATED)
		return site->allocated;
	return sum->processes[site->process].ended ? site->told : site->live;
}

const char *mem_kind_name(const struct mem_site *site)
{
	if (site->space == MEM_SPACE_DEVICE)
		return "device";
	return site->kind == MEM_MMAP ? "mmap" : "malloc";
}
