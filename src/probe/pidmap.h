/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * pid_mapping.json: which pid a task of a container has inside, as `convert ftrace --pid_mapping` reads it. Written once
 * or again and again while a recording runs, since tasks come and go.
 */
#ifndef PROBE_PIDMAP_H
#define PROBE_PIDMAP_H

#include "base/err.h"

#include <stdint.h>

/**
 * pidmap_write - write all tasks of /proc, in the file's final place only when whole
 *
 * Tasks that were there when the same map was written before, and have ended since, are kept: their events are in the
 * trace. @map: what pidmap_new() gave. Context: tool. Return: number of tasks, or -errno with @err.
 */
struct pidmap;
struct pidmap *pidmap_new(void);
int pidmap_write(struct pidmap *map, const char *path, struct st_err *err);
void pidmap_free(struct pidmap *map);

/**
 * pidmap_run - a thread that writes now and then every @period_s seconds
 * @period_s: 0 = at the start and at pidmap_stop() only
 *
 * Return: the thread's handle, or NULL with errno and @err when the first writing failed.
 */
struct pidmap_thread;
struct pidmap_thread *pidmap_start(const char *path, uint32_t period_s, struct st_err *err);

/** pidmap_stop - write once more, end the thread, free it. NULL is fine. Return: 0 or -errno of the last writing. */
int pidmap_stop(struct pidmap_thread *thread, struct st_err *err);

#endif
