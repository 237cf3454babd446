/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The clocks of every record: CLOCK_MONOTONIC in nanoseconds, and snapshots of all host clocks taken back to back so
 * that files of different sources can later be put on one axis.
 */
#ifndef SAFE_CLOCK_H
#define SAFE_CLOCK_H

#include <stdint.h>
#include <time.h>

/**
 * clock_ns - read one clock
 * @id: CLOCK_MONOTONIC, CLOCK_REALTIME, ...
 *
 * Context: hook (vDSO, no system call on the usual clock sources; errno is not touched on success).
 * Return: nanoseconds.
 */
static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/** clock_mono_ns - the time axis of all records. Context: hook. Return: CLOCK_MONOTONIC, nanoseconds. */
static inline uint64_t clock_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/** struct clock_snapshot - all host clocks at one moment, nanoseconds */
struct clock_snapshot {
	uint64_t mono_ns;
	uint64_t mono_raw_ns;
	uint64_t boottime_ns;
	uint64_t realtime_ns;
};

/**
 * clock_snapshot_take - read all clocks back to back
 *
 * Repeats the reading (at most 5 times) while the two MONOTONIC reads around it lie further apart than 5 us.
 * Context: hook. mono_ns is the middle of the two reads.
 */
void clock_snapshot_take(struct clock_snapshot *snap);

#endif
