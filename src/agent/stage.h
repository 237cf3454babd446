/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The seam between the ways of hooking Python functions (agent/python/) and what a call means (steps.c, comm.c). The
 * hooks call stage_enter and stage_leave around each call of a traced function, with the GIL held; these decide what is
 * recorded, count steps and keep the job's position in the pool's header.
 */
#ifndef AGENT_STAGE_H
#define AGENT_STAGE_H

#include "wire/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** enum stage_role - what a call does besides being a stage; given by the function list's row or by its kind */
enum stage_role {
	ROLE_PLAIN,
	ROLE_DATALOADER, /* counts stage_id and microbatches */
	ROLE_OPTIMIZER_STEP, /* ends a step when it returns normally and is outermost */
	ROLE_MODEL_CALL, /* ends a step in inference */
	ROLE_COMM /* torch.distributed collective: arguments are read for op, group, dtype, count */
};

/** struct stage_fn - one traced function; lives as long as the process once a hook may have seen it */
struct stage_fn {
	const char *spec; /* as in the list file */
	uint32_t name; /* pool name of spec */
	enum stage_type kind;
	enum stage_role role;
	const char *op; /* ROLE_COMM: operation name, for example "all_reduce" */
	uint32_t op_name; /* ROLE_COMM: pool name of op */
};

/** struct stage_frame - on the caller's stack between enter and leave */
struct stage_frame {
	uint64_t begin_ns; /* 0 = not recorded */
	uint64_t count;
	uint32_t group, dtype, seq;
	uint32_t outer_stage; /* stage to put back into the pool header */
	bool outermost; /* of its role, on this thread */
};

/**
 * stage_enter - a traced function is about to run
 * @args, @nargsf, @kwnames: as in CPython's vectorcall protocol (PyObject *const *, size_t, PyObject *), or NULL when
 *   the hook has none (generators, code shims); borrowed
 *
 * Context: hook with the GIL held; no Python call that runs code, no allocation, no exception left set or cleared.
 */
void stage_enter(const struct stage_fn *fn, struct stage_frame *frame, void *const *args, size_t nargsf, void *kwnames);

/** stage_leave - it returned, or raised. Context: as stage_enter; a pending exception stays untouched. */
void stage_leave(const struct stage_fn *fn, struct stage_frame *frame, bool raised);

/** stage_gc - a garbage collection ended (gc.callbacks). Context: hook with the GIL held. */
void stage_gc(uint64_t begin_ns, uint64_t end_ns, uint32_t gen, uint32_t collected, uint32_t uncollectable);

/** stage_role_of - role of a list row. @spec: `module@Class@method`; @kind: its stage type. Context: thread. */
enum stage_role stage_role_of(const char *spec, enum stage_type kind);

#endif
