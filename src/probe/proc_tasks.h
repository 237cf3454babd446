/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A walk over all tasks (threads) that /proc shows, for recorders that need names or pids of each of them.
 */
#ifndef PROBE_PROC_TASKS_H
#define PROBE_PROC_TASKS_H

#include <stdint.h>

/**
 * proc_tasks - call @each for every task
 * @each: pid of the process, id of the task; a negative value ends the walk and is returned
 *
 * Tasks come and go meanwhile: what @each then reads of one may be gone. Context: tool. Return: 0 or -errno.
 */
int proc_tasks(int (*each)(void *ctx, int32_t pid, int32_t tid), void *ctx);

#endif
