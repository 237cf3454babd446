/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Clock snapshots; see clock.h. Called at the start of each file segment and by the tools when they link clocks. */
#include "safe/clock.h"

#define SNAPSHOT_TRIES 5
#define SNAPSHOT_SPREAD_NS 5000

void clock_snapshot_take(struct clock_snapshot *snap)
{
	uint64_t best_ns = UINT64_MAX;
	int i;

	for (i = 0; i < SNAPSHOT_TRIES && best_ns > SNAPSHOT_SPREAD_NS; i++) {
		uint64_t before_ns = clock_mono_ns();
		uint64_t raw_ns = clock_ns(CLOCK_MONOTONIC_RAW);
		uint64_t boot_ns = clock_ns(CLOCK_BOOTTIME);
		uint64_t real_ns = clock_ns(CLOCK_REALTIME);
		uint64_t spread_ns = clock_mono_ns() - before_ns;

		if (spread_ns >= best_ns)
			continue;
		best_ns = spread_ns;
		snap->mono_ns = before_ns + spread_ns / 2;
		snap->mono_raw_ns = raw_ns;
		snap->boottime_ns = boot_ns;
		snap->realtime_ns = real_ns;
	}
}
