/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the stack ids of recorded files stand for: reads stacks/stacks_rank<r>_<pid>.json (docs/formats/stacks.md) beside
 * them and turns an id into a stack of the session, with names for addresses by symbols.h. For readers and exporters of
 * every file that holds stack ids.
 */
#ifndef TRACE_STACKS_H
#define TRACE_STACKS_H

#include "trace/event.h"
#include "trace/symbols.h"

struct stacks;

/**
 * stacks_new/_free
 * @session: where frames become names; must outlive it
 * @symbols: NULL = native frames stay module+address
 *
 * Context: tool. Return: NULL when out of memory.
 */
struct stacks *stacks_new(struct ev_session *session, struct symbols *symbols);
void stacks_free(struct stacks *stacks);

/**
 * stacks_find - the stack of an id
 * @beside: path of the file that holds the id: the stacks file is looked for in ../stacks, then in ./stacks and in .
 * @pid: of the process that wrote that file (its Origin; not a forked child's)
 *
 * Frames are innermost first: `function@file:line`, `function@module`, `module+0x12` or `0x7f...`; Python functions
 * `name@file:line`. Files are read when first asked for, whole. Return: id for ev_stack_frames(), 0 = not known.
 */
uint32_t stacks_find(struct stacks *stacks, const char *beside, uint32_t pid, uint32_t id);

/**
 * stacks_place - name of one frame of a stacks file's form, "3+0x1f40"; @beside, @pid as of stacks_find()
 *
 * Return: id, 0 = its module is not known.
 */
uint32_t stacks_place(struct stacks *stacks, const char *beside, uint32_t pid, const char *frame);

/** stacks_name - a frame of a stacks file's form ("3+0x1f40") for people is stacks_find()'s; this is one native frame's. */
uint32_t stacks_name(struct stacks *stacks, const char *path, const char *build_id, uint64_t address);

/** stacks_report - one line for what was asked for and is not there. Context: tool. */
void stacks_report(const struct stacks *stacks, void (*line)(void *arg, const char *text), void *arg);

#endif
