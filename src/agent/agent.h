/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The agent inside a job's process: its state, its pool and who it is. One instance per process, static, reached by
 * every hook. life.c moves it through its states; everything else reads it.
 *
 * Inert: no interpreter and no device runtime here; nothing was done. Dormant: an interpreter alone; an audit hook
 * waits for a framework, no thread, no socket, no file, no pool. Ready: threads, pool and socket exist, hooks of the
 * always-on layers record into the pool, nothing is written yet. Recording: a step, a collective or a device runtime was
 * seen, or a command came; files are written. Stopping: exit or fork child, hooks pass through.
 */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "base/err.h"
#include "safe/pool.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum agent_state { AGENT_INERT, AGENT_DORMANT, AGENT_STARTING, AGENT_READY, AGENT_RECORDING, AGENT_STOPPING };

/** enum agent_reason - why the agent starts or recording begins; in the log, in `status` and in the meta file */
enum agent_reason {
	AGENT_BY_FRAMEWORK, /* torch, torch_npu, mindspore, ... imported */
	AGENT_BY_RUNTIME, /* a device runtime is loaded */
	AGENT_BY_COMMAND,
	AGENT_BY_ENV, /* SYSTRACE_ENABLE=1 */
	AGENT_BY_PARENT, /* a worker whose rank records (parent.h) */
	AGENT_BY_STEP,
	AGENT_BY_COMM
};

struct agent {
	_Atomic int state; /* enum agent_state */
	struct pool pool;
	_Atomic(const struct pool_header *) rank; /* of the process this one may be a worker of, read-only; NULL = none */
};

extern struct agent agent;

/**
 * agent_start - dormant -> ready: pool, threads, socket
 *
 * Context: thread, or the job's own thread outside any hook (the audit hook calls it). Idempotent and safe against two
 * threads at once. errno is kept. A failure leaves the job as it was and is logged with its reason.
 */
void agent_start(enum agent_reason reason);

/** agent_record - ready -> recording. Context: hook (one store; the io thread does the rest). Idempotent. */
void agent_record(enum agent_reason reason);

/** agent_python_ends - the interpreter is about to finalise. Context: the job's thread, without the GIL; at most 2 s. */
void agent_python_ends(void);

static inline enum agent_state agent_state(void)
{
	return (enum agent_state)atomic_load_explicit(&agent.state, memory_order_relaxed);
}

/**
 * agent_place - the header whose step and stage are those of our records
 *
 * Our own; a worker that multiprocessing started (spawn, forkserver) is where its rank is, as soon as that one trains.
 * Context: hook; agent.pool.head is not NULL.
 */
static inline const struct pool_header *agent_place(void)
{
	/* acquire: whoever sees the pointer sees what was checked behind it */
	const struct pool_header *rank = atomic_load_explicit(&agent.rank, memory_order_acquire);

	if (__builtin_expect(!rank, 1))
		return agent.pool.head;
	return atomic_load_explicit(&rank->step, memory_order_relaxed) ||
			       atomic_load_explicit(&rank->stage_id, memory_order_relaxed)
		       ? rank
		       : agent.pool.head;
}

/** agent_bind_rank - bind the rank now if it is not bound yet (called at the first step or collective). Context: thread. */
void agent_bind_rank(void);

/**
 * agent_rank_hint - what torch's process group says, which outranks the environment
 * @rank, @world_size: from the default group
 *
 * Context: hook.
 */
void agent_rank_hint(uint32_t rank, uint32_t world_size);

#endif
