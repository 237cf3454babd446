/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * From mmap_lock events (start_locking, acquire_returned, released) to spans: how long each task waited for the lock of an
 * address space and how long it held it. Used by `convert ftrace --type mmaplock`; spans as those of sched_state.h.
 */
#ifndef TRACE_MMAP_LOCK_H
#define TRACE_MMAP_LOCK_H

#include "trace/sched_state.h"

struct mmap_lock;

/** mmap_lock_new - a machine that calls @emit(@arg, span) with SPAN_LOCK_WAIT and SPAN_LOCK_HOLD; .number is the mm. */
struct mmap_lock *mmap_lock_new(struct ev_session *session, sched_emit emit, void *arg);

/** mmap_lock_feed - one event (EV_LOCK, EV_LOST; others are ignored), in time order. Return: 0, -ENOMEM, emit's error. */
int mmap_lock_feed(struct mmap_lock *machine, const struct event *ev);

/** mmap_lock_finish - what is open ends at the last event, marked. Return: as feed. */
int mmap_lock_finish(struct mmap_lock *machine);

void mmap_lock_free(struct mmap_lock *machine);

#endif
