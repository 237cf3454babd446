/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What calls of condition variables inside _PyRuntime say about the interpreter lock: who takes, holds, waits and is made
 * to drop it. The rules are those of the agent's plugin (agent/plugin/gil.c), but seen from outside and in order of time
 * over all threads. Used by the kind GIL; no kernel, no files.
 */
#ifndef PROBE_GIL_TRACK_H
#define PROBE_GIL_TRACK_H

#include "probe/bpf/gil.h"
#include "wire/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gil_thread;

/** struct gil_track - one interpreter; zero it, then set begin_ns */
struct gil_track {
	uint64_t begin_ns; /* of the capture: a lock that is dropped first had been held since before */
	uint64_t cond; /* address of the lock's condition, 0 = not seen yet: the others follow from it */
	uint64_t first_signal; /* one of the two conditions */
	struct gil_thread *threads; /* open addressing by tid */
	size_t room, count;
	uint32_t holder; /* tid, 0 = nobody or not known */
	bool seen; /* a take or a drop */
	bool asked; /* a waiting thread's switch interval has run out */
	uint64_t holds, waits, forced;
};

/** gil_put_fn - a span has ended. @event: the call that ended it, for pid, tid and name of the thread. */
typedef void gil_put_fn(void *ctx, const struct gil_event *event, const struct rec_gil *rec);

/** gil_track_event - the next call. Return: 0 or -ENOMEM: a thread is not followed. */
int gil_track_event(struct gil_track *track, const struct gil_event *event, gil_put_fn *put, void *ctx);

/** gil_track_end - the capture ends: what has not ended is told as cut. */
void gil_track_end(struct gil_track *track, uint64_t now_ns, gil_put_fn *put, void *ctx);

/** gil_track_lost - events are missing: what had begun is forgotten, so that no span is made of two. */
void gil_track_lost(struct gil_track *track);

void gil_track_fini(struct gil_track *track);

#endif
