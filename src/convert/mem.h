/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Sums over recorded memory: who allocated how much, what is in use at the end, by stack. The exporters of memory (mem_text,
 * mem_flame, mem_timeline) feed it event by event and read it at the end. Memory: live blocks and distinct stacks.
 *
 * In use at the end is what the process itself said when its capture ended; where it did not (it was killed, is still
 * recording, or is a forked child), allocations less frees.
 */
#ifndef CONVERT_MEM_H
#define CONVERT_MEM_H

#include "trace/event.h"
#include "trace/merge.h"
#include "trace/stacks.h"

/** struct mem_use - blocks as recorded, and what they stand for */
struct mem_use {
	uint64_t blocks; /* recorded */
	double all_blocks; /* estimated */
	uint64_t bytes; /* estimated: sums of weights */
};

/** struct mem_site - what one stack of one process has done */
struct mem_site {
	uint32_t process; /* index */
	uint32_t stack; /* ev_stack; 0 = none recorded */
	uint8_t kind, space; /* enum mem_kind, enum mem_space */
	struct mem_use allocated;
	struct mem_use live; /* allocations less frees */
	struct mem_use told; /* by the process, at the end of its newest capture */
	uint64_t oldest_ns; /* of told: when the oldest block came; 0 = unknown */
};

/** struct mem_process - one process */
struct mem_process {
	uint32_t host; /* name id */
	int32_t pid, rank;
	bool worker; /* forked child of the rank */
	bool ended; /* its newest capture ended, and told what was in use */
	uint64_t first_ns, last_ns; /* of its records */
	uint64_t sample_bytes; /* 0 = unknown */
	uint64_t untracked; /* blocks that it had no room to remember */
	uint64_t heap, mapped; /* live bytes now: of malloc (estimated), mapped by the job */
	uint64_t rss, brk; /* as it said last; 0 = never */
	uint32_t capture; /* private: blocks of earlier captures are forgotten */
};

struct mem_sum;

/**
 * mem_new/_free
 * @stacks: gives ids of stacks their names, NULL = none; else, and where it knows none, the frames in the records serve
 *
 * Return: NULL when out of memory.
 */
struct mem_sum *mem_new(struct ev_session *session, struct stacks *stacks);
void mem_free(struct mem_sum *sum);

/** mem_is - is it an event of memory? */
static inline bool mem_is(const struct event *ev)
{
	return ev->kind == EV_MEM_ALLOC || ev->kind == EV_MEM_FREE || ev->kind == EV_MEM_SITE ||
	       ev->kind == EV_MEM_STATE;
}

/** mem_take - one event of the merge; others than memory's are passed over. Return: 1 = it was one, 0, -ENOMEM. */
int mem_take(struct mem_sum *sum, const struct event *ev);

/** mem_read - a whole merge. Return: memory events, -errno with @err. */
int64_t mem_read(struct mem_sum *sum, struct merge *merge, struct st_err *err);

size_t mem_site_count(const struct mem_sum *sum);
const struct mem_site *mem_site(const struct mem_sum *sum, size_t i);
size_t mem_process_count(const struct mem_sum *sum);
const struct mem_process *mem_process(const struct mem_sum *sum, size_t i);

/** mem_process_of - index of the process of an event that mem_take() has taken */
size_t mem_process_of(const struct mem_sum *sum, const struct event *ev);

/** mem_view - what is looked at */
enum mem_view { MEM_INUSE, MEM_ALLOCATED };

/** mem_use_of - of a site, in a view */
struct mem_use mem_use_of(const struct mem_sum *sum, const struct mem_site *site, enum mem_view view);

/** mem_kind_name - "malloc", "mmap", "device" */
const char *mem_kind_name(const struct mem_site *site);

#endif
