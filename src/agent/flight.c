/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See flight.h. Hooks write the table under the GIL; the dumping thread reads it without, so a slot's owner is an atomic. */
#include "agent/flight.h"

#include "agent/agent.h"
#include "safe/clock.h"

#define OPEN_CALLS 32

static struct open_call {
	/* NULL = free. Stored with release after the call was filled in; a reader that sees the same frame before and
	 * after copying has a whole call (or, when the same frame address came again meanwhile, a newer one cut in two:
	 * the begin time is checked for that). */
	_Atomic(const struct stage_frame *) frame;
	struct comm_flight call;
} open_calls[OPEN_CALLS];

void flight_enter(const struct stage_frame *frame, const struct comm_flight *call)
{
	int i;

	for (i = 0; i < OPEN_CALLS; i++) {
		struct open_call *slot = &open_calls[i];

		if (atomic_load_explicit(&slot->frame, memory_order_relaxed))
			continue;
		slot->call = *call;
		atomic_store_explicit(&slot->frame, frame, memory_order_release);
		return;
	}
}

void flight_leave(const struct stage_frame *frame, const struct comm_flight *call)
{
	int i;

	for (i = 0; i < OPEN_CALLS; i++) {
		struct open_call *slot = &open_calls[i];

		if (atomic_load_explicit(&slot->frame, memory_order_relaxed) == frame) {
			atomic_store_explicit(&slot->frame, NULL, memory_order_release);
			break;
		}
	}
	pool_flight_put(&agent.pool, call, sizeof(*call));
}

int flight_put_open(void)
{
	uint32_t pid = atomic_load_explicit(&agent.pool.guard->pid, memory_order_relaxed);
	uint64_t now = clock_mono_ns();
	int i, count = 0;

	for (i = 0; i < OPEN_CALLS; i++) {
		struct open_call *slot = &open_calls[i];
		const struct stage_frame *frame = atomic_load_explicit(&slot->frame, memory_order_acquire);
		struct comm_flight call = slot->call;

		atomic_thread_fence(memory_order_acquire);
		if (!frame || frame != atomic_load_explicit(&slot->frame, memory_order_relaxed) ||
		    call.begin_ns != slot->call.begin_ns || call.begin_ns > now || call.pid != pid)
			continue; /* free, changed under our eyes, or left over from before a fork */
		call.dur_ns = now - call.begin_ns;
		call.flags = FLIGHT_OPEN;
		pool_flight_put(&agent.pool, &call, sizeof(call));
		count++;
	}
	return count;
}
