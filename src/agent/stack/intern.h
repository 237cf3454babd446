/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The table of distinct stacks: fixed memory, shared with forked children so that an id means the same in all processes
 * that write into one pool. Used by stack.c only.
 */
#ifndef AGENT_STACK_INTERN_H
#define AGENT_STACK_INTERN_H

#include "agent/stack/stack.h"

#define INTERN_SLOTS 32768u
#define INTERN_WORDS (1u << 19) /* 4 MiB of frames */

/** intern_start - make the table, a new one when @pool_head is another pool's. Context: control thread. 0 or -ENOMEM. */
int intern_start(const void *pool_head);

/**
 * intern_find - slot of a stack, put in when new
 * @fresh: true: nobody has put its definition into the pool yet; say so with intern_told()
 *
 * Context: hook (lock-free). Return: id from 1, 0 = full or no table.
 */
uint32_t intern_find(const struct stack *stack, bool *fresh);

/** intern_told - its definition is in the pool. Context: hook. */
void intern_told(uint32_t id);

/** intern_get - Context: any. Return: frames, 0 = none. */
uint32_t intern_get(uint32_t id, struct stack *stack);

/** enum intern_kind - what else has ids that forked children share */
enum intern_kind { INTERN_MODULE, INTERN_CODE, INTERN_KINDS };

/**
 * intern_name - id of whatever has this hash, which must say all that makes it differ from others
 * @fresh: as in intern_find(); then intern_name_told()
 *
 * Context: hook. Return: id from 1, 0 = the table is full.
 */
uint32_t intern_name(enum intern_kind kind, uint64_t hash, bool *fresh);
void intern_name_told(enum intern_kind kind, uint32_t id);
bool intern_name_is_told(enum intern_kind kind, uint32_t id);

/** intern_mark - a number that stands for the table: ids of another one mean nothing. Context: hook. */
uint64_t intern_mark(void);

/** intern_counts - Context: any. */
void intern_counts(uint32_t *stacks, uint64_t *full);

#endif
