/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What `systrace convert mem` can make of recorded memory (mem.h): tables, flame graphs and collapsed stacks, and counters
 * over time. One function each.
 */
#ifndef CONVERT_MEM_OUT_H
#define CONVERT_MEM_OUT_H

#include "convert/mem.h"
#include "convert/sink.h"
#include "convert/text.h"

/** mem_text_write - tables of what is in use at the end and of what was allocated. Return: 0 or -errno with @err. */
int mem_text_write(struct ev_session *session, const struct mem_sum *sum, const struct merge_stats *stats, FILE *out,
		   const struct text_options *options, struct st_err *err);

/**
 * mem_flame_write - stacks by their bytes
 * @svg: a picture; else collapsed stacks
 *
 * Stacks of several processes begin with the process; what does not come from malloc ends with [mmap] or [device].
 * Return: bytes shown, 0 = nothing in this view (no file is written), -errno with @err.
 */
int64_t mem_flame_write(struct ev_session *session, const struct mem_sum *sum, enum mem_view view, bool svg,
			const char *path, struct st_err *err);

/** struct mem_timeline_summary - what was written */
struct mem_timeline_summary {
	uint64_t events, values;
	uint64_t first_ns, last_ns;
	uint64_t bytes; /* of the output */
	size_t processes;
};

/**
 * mem_timeline_write - read a merge to its end; heap, mappings, resident memory and brk heap of each process as counters
 *
 * Return: 0; -ENODATA when there was no event (no file is left then); -errno with @err.
 */
int mem_timeline_write(struct ev_session *session, struct merge *merge, const struct tsink_ops *format,
		       const char *path, struct mem_timeline_summary *summary, struct st_err *err);

/** mem_bytes - for people: "12.3 MB" (10^6) */
void mem_bytes(char *text, size_t room, uint64_t bytes);

/** mem_process_text - "rank 3", "rank 3, worker 4711", "process 99" */
void mem_process_text(const struct mem_process *process, char *text, size_t room);

#endif
