/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What steps.c tells the rest of the agent besides stage.h: how many collectives there were, for `status`, and the
 * pacing that keeps always-on data within its budget.
 */
#ifndef AGENT_STEPS_H
#define AGENT_STEPS_H

#include <stdint.h>

/* Always-on data of one rank: at most 8 MiB an hour, of which a part is kept for what is never left out (step records,
 * notes, snapshots). Bytes as they are in the pb file. A forked worker has an eighth of it. */
#define STEPS_RATE_BYTES_PER_HOUR (7u << 20)
#define STEPS_BURST_BYTES (512 << 10)

struct steps_stats {
	uint64_t collectives; /* outermost calls seen */
	uint64_t markers; /* of them put as REC_COMM, because MSPTI's markers are on */
	uint64_t left_out; /* not put, because only every n-th is */
	uint64_t summed; /* stages and garbage collections added to sums instead of being written one by one */
	uint64_t paced_steps; /* steps of which only sums were kept, for the budget's sake */
};

/** steps_stats - of this process. Context: any; figures of a moment. */
void steps_stats(struct steps_stats *stats);

/**
 * steps_markers_every - put only markers whose number in their group is a multiple of @n; 1 = all
 *
 * By number, so that all ranks keep the same calls, and those kept at 16 are among those kept at 4. Context: thread.
 */
void steps_markers_every(uint32_t n);

/** steps_reset - forget all: the next call finds a process that has seen nothing. Context: hook with the GIL held. */
void steps_reset(void);

#endif
