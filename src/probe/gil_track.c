/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See gil_track.h. */
#include "probe/gil_track.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MUTEX_AT sizeof(pthread_cond_t)
#define SWITCH_COND_AT (MUTEX_AT + sizeof(pthread_mutex_t))

struct gil_thread {
	uint32_t tid; /* 0 = empty slot */
	uint32_t pid;
	char comm[16];
	uint32_t timeouts;
	bool dropped; /* just now: a wait for the successor may follow */
	uint64_t take_ns; /* since when it waits to take, 0 = it does not */
	uint64_t hold_ns; /* since when it holds, 0 = does not, or not known */
	uint64_t forced_ns;
};

static struct gil_thread *slot_of(struct gil_thread *threads, size_t room, uint32_t tid)
{
	size_t at = (size_t)tid * 0x9e3779b9u & (room - 1);

	while (threads[at].tid && threads[at].tid != tid)
		at = (at + 1) & (room - 1);
	return &threads[at];
}

static int grow(struct gil_track *track)
{
	size_t room = track->room ? track->room * 2 : 64;
	struct gil_thread *threads = calloc(room, sizeof(*threads));

	if (!threads)
		return -ENOMEM;
	for (size_t i = 0; i < track->room; i++)
		if (track->threads[i].tid)
			*slot_of(threads, room, track->threads[i].tid) = track->threads[i];
	free(track->threads);
	track->threads = threads;
	track->room = room;
	return 0;
}

static struct gil_thread *thread_of(struct gil_track *track, uint32_t tid)
{
	struct gil_thread *thread;

	if (track->count * 2 >= track->room && grow(track) < 0)
		return NULL;
	thread = slot_of(track->threads, track->room, tid);
	if (!thread->tid) {
		thread->tid = tid;
		track->count++;
	}
	return thread;
}

static void tell(const struct gil_event *event, enum gil_what what, uint64_t begin_ns, uint32_t timeouts, uint8_t flags,
		 gil_put_fn *put, void *ctx)
{
	struct rec_gil rec = {
		.head = { .bytes = sizeof(rec), .type = REC_GIL, .flags = flags },
		.begin_ns = begin_ns,
		.dur_ns = event->at_ns - begin_ns,
		.what = what,
		.timeouts = timeouts,
	};

	put(ctx, event, &rec);
}

/* Two conditions are signalled, the lower one by who drops. */
static void learn_signal(struct gil_track *track, uint64_t at)
{
	if (!track->first_signal)
		track->first_signal = at;
	else if (track->first_signal + SWITCH_COND_AT == at)
		track->cond = track->first_signal;
	else if (at + SWITCH_COND_AT == track->first_signal)
		track->cond = at;
}

static void dropped(struct gil_track *track, struct gil_thread *thread, const struct gil_event *event, gil_put_fn *put,
		    void *ctx)
{
	uint8_t flags = track->asked ? GIL_ASKED : 0;

	if (!thread->hold_ns && !track->seen && track->begin_ns) {
		thread->hold_ns = track->begin_ns;
		flags |= GIL_CUT_BEGIN;
	}
	if (thread->hold_ns) {
		track->holds++;
		tell(event, GIL_HOLD, thread->hold_ns, 0, flags, put, ctx);
	}
	track->seen = true;
	track->asked = false;
	thread->hold_ns = thread->take_ns = 0;
	thread->dropped = true;
	track->holder = 0;
}

static void taken(struct gil_track *track, struct gil_thread *thread, const struct gil_event *event, gil_put_fn *put,
		  void *ctx)
{
	/* only one can have it: if another one seems to, the event of its drop was lost */
	if (track->holder && track->holder != thread->tid)
		slot_of(track->threads, track->room, track->holder)->hold_ns = 0;
	if (thread->take_ns) {
		track->waits++;
		tell(event, GIL_WAIT, thread->take_ns, thread->timeouts, 0, put, ctx);
	}
	thread->hold_ns = event->at_ns;
	thread->take_ns = 0;
	thread->timeouts = 0;
	thread->dropped = false;
	track->seen = true;
	track->asked = false;
	track->holder = thread->tid;
}

int gil_track_event(struct gil_track *track, const struct gil_event *event, gil_put_fn *put, void *ctx)
{
	struct gil_thread *thread = thread_of(track, event->tid);
	uint64_t at;

	if (!thread)
		return -ENOMEM;
	thread->pid = event->pid;
	memcpy(thread->comm, event->comm, sizeof(thread->comm));
	/* nothing else in there is waited for with a time */
	if (!track->cond && event->call == GIL_TIMED_BEGIN && event->mutex == event->cond + MUTEX_AT)
		track->cond = event->cond;
	if (!track->cond) {
		if (event->call == GIL_SIGNAL)
			learn_signal(track, event->cond);
		return 0;
	}
	at = event->cond - track->cond;
	if (at == 0 && event->call == GIL_SIGNAL) {
		dropped(track, thread, event, put, ctx);
	} else if (at == SWITCH_COND_AT && event->call == GIL_SIGNAL) {
		taken(track, thread, event, put, ctx);
	} else if (at == 0 && event->call == GIL_TIMED_BEGIN && !thread->take_ns) {
		thread->take_ns = event->at_ns;
		thread->dropped = false;
	} else if (at == 0 && event->call == GIL_TIMED_END && event->result == ETIMEDOUT) {
		thread->timeouts++;
		track->asked = true;
	} else if (at == SWITCH_COND_AT && event->call == GIL_WAIT_BEGIN && thread->dropped) {
		thread->forced_ns = event->at_ns;
	} else if (at == SWITCH_COND_AT && event->call == GIL_WAIT_END && thread->forced_ns) {
		track->forced++;
		tell(event, GIL_FORCED, thread->forced_ns, 0, 0, put, ctx);
		thread->forced_ns = 0;
	}
	return 0;
}

void gil_track_end(struct gil_track *track, uint64_t now_ns, gil_put_fn *put, void *ctx)
{
	for (size_t i = 0; i < track->room; i++) {
		struct gil_thread *thread = &track->threads[i];
		struct gil_event event = { .at_ns = now_ns, .tid = thread->tid, .pid = thread->pid };

		memcpy(event.comm, thread->comm, sizeof(event.comm));
		if (thread->hold_ns && track->holder == thread->tid)
			tell(&event, GIL_HOLD, thread->hold_ns, 0, GIL_CUT_END, put, ctx);
		if (thread->take_ns)
			tell(&event, GIL_WAIT, thread->take_ns, thread->timeouts, GIL_CUT_END, put, ctx);
		thread->hold_ns = thread->take_ns = 0;
	}
}

void gil_track_lost(struct gil_track *track)
{
	for (size_t i = 0; i < track->room; i++) {
		track->threads[i].take_ns = track->threads[i].hold_ns = track->threads[i].forced_ns = 0;
		track->threads[i].timeouts = 0;
		track->threads[i].dropped = false;
	}
	track->holder = 0;
}

void gil_track_fini(struct gil_track *track)
{
	free(track->threads);
	memset(track, 0, sizeof(*track));
}
