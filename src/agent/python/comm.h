/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a call of torch.distributed is about: its group, dtype and element count, read from the arguments of the call that
 * is just beginning. Called by steps.c alone; how long it took and what is recorded are decided there.
 */
#ifndef AGENT_PYTHON_COMM_H
#define AGENT_PYTHON_COMM_H

#include "agent/stage.h"

/** struct comm_call - 0 stands for "not known" in each field */
struct comm_call {
	uint64_t count; /* elements of the operation's first tensor on this rank (NCCL's count convention, docs/steps.md) */
	uint32_t group; /* pool name */
	uint32_t dtype; /* pool name */
	uint32_t seq; /* n-th collective of this process on that group, from 1; sends and receives have their own count */
	bool outside; /* this rank is no member of the group: torch returns at once, there is no communication */
};

/** comm_knows - is this the name of an operation whose arguments can be read? Context: any. */
bool comm_knows(const char *op);

/**
 * comm_read - read a call's arguments
 * @args, @nargsf, @kwnames: as in stage_enter(), args may be NULL
 *
 * Runs no Python code: arguments of types that could are left unknown (tensor subclasses, torch function modes). The
 * first call on a group writes a Note with its ranks; the first call at all tells agent_rank_hint() rank and world size.
 * Context: hook with the GIL held. A pending exception stays as it is.
 */
void comm_read(const struct stage_fn *fn, void *const *args, size_t nargsf, void *kwnames, struct comm_call *call);

/**
 * comm_hint_rank - tell agent_rank_hint() what torch's default group says, if there is one
 *
 * Called before recording begins with something else than a collective: a step. Context: hook with the GIL held.
 */
void comm_hint_rank(void);

#endif
