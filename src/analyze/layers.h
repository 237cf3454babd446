/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What other layers recorded of a rank in an interval: time that went into file and socket calls, waits for the
 * interpreter's lock and for locks, and time without a CPU, each with the name that has most of it. For evidence.c, which compares ranks.
 */
#ifndef ANALYZE_LAYERS_H
#define ANALYZE_LAYERS_H

#include "analyze/records.h"

enum layer { LAYER_FILE_IO, LAYER_SOCKET_IO, LAYER_GIL, LAYER_LOCK, LAYER_CPU, LAYERS };

/** struct layer_sum - one layer of one rank */
struct layer_sum {
	/* in all of the covered time, on the main thread (without a CPU: on the thread that lost most), and of loader workers
	 * when asked for; NAN = not recorded */
	double ms;
	int64_t begin_ns, end_ns; /* wall clock: what was recorded within the interval */
	uint32_t detail; /* name id: file, peer, holding thread, function, task that ran instead, with the largest part; 0 = none */
	double detail_ms;
};

/**
 * layers_sum - all layers of a rank
 * @from_ns, @to_ns: wall clock of that rank's host
 * @workers: I/O of forked children (data-loader workers) counts, too
 * @sums: LAYERS of them
 *
 * Context: tool; reads the rank's files of other layers. What cannot be read is noted.
 */
void layers_sum(const struct records *records, int32_t rank, int64_t from_ns, int64_t to_ns, bool workers,
		struct layer_sum *sums);

#endif
