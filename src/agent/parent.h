/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The rank that a worker belongs to. Data-loader workers that multiprocessing starts by spawn or forkserver are programs
 * of their own and have an agent of their own; what they lack is where the training loop is, and who they are. Both are
 * in the pool of the rank, whose first pages are mapped here, to be read only: agent_place() is the step of all records,
 * identity.c takes run and rank from it. Recording begins when the rank records. A process that steps or calls a
 * collective is a rank itself (torch.multiprocessing.spawn) and leaves.
 */
#ifndef AGENT_PARENT_H
#define AGENT_PARENT_H

#include "wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * parent_find - is this process a child of multiprocessing, and has whoever had it started a pool?
 *
 * May be called again where it had none: agents start late, forked ranks get a pool of their own late.
 * Context: agent_start() after identity_start(), then the io thread; opens files in /proc and below SYSTRACE_SPOOL_PATH.
 */
void parent_find(void);

/** parent_pid - of whoever had this process started, 0 = not known, or no longer of interest. Context: any. */
uint32_t parent_pid(void);

/** parent_records - are we a worker, and does the rank write files, with its identity bound? Context: thread. */
bool parent_records(void);

/**
 * parent_origin - identity of the rank whose worker we are
 * @bytes: POOL_ORIGIN bytes; the texts of @origin point into it
 *
 * Context: thread. Return: is there one?
 */
bool parent_origin(uint8_t *bytes, struct msg_origin *origin);

/** parent_leave - this process is no worker, or no longer one; for good. Context: hook. */
void parent_leave(void);

#endif
