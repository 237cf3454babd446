/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented detectors (user guide 5.3.2.2): DBSCAN, comparison between ranks in a window, outliers in one rank's
 * own history. Pure arithmetic on arrays; called by slowrank.c, which knows ranks, windows and what a value means.
 */
#ifndef ANALYZE_DETECT_H
#define ANALYZE_DETECT_H

#include "analyze/metric_config.h"

#include <stdbool.h>
#include <stddef.h>

/** enum detect_side - which deviation is bad: the late rank of a collective waits less, a slow loader takes longer */
enum detect_side { DETECT_BELOW = -1, DETECT_ABOVE = 1 };

/**
 * detect_dbscan - density clusters by their definition
 * @points: count rows of dim values
 * @min_samples: points within eps, itself included, that make a core point
 * @labels: gets the cluster 0.. of each point, or -1 for noise; a border point goes to the first cluster that reaches it
 *
 * Context: tool. O(count^2 dim). Return: number of clusters or -ENOMEM.
 */
int detect_dbscan(const double *points, size_t count, size_t dim, double eps, unsigned min_samples,
		  enum metric_distance distance, int *labels);

/**
 * detect_space - which of the ranks in one window differ from the others
 * @points: count rows of dim values, all known
 * @bad: gets true for those that lie on the bad side by more than cv_threshold
 * @normal: gets the mean of those taken as normal
 *
 * Nobody is bad where no cluster is larger than all the others, or with fewer than two ranks. Context: tool. Return: 0 or
 * -ENOMEM.
 */
int detect_space(const struct metric_space_detector *how, const double *points, size_t count, size_t dim,
		 enum detect_side side, bool *bad, double *normal);

/**
 * detect_time - which points of one series differ from the series' own past or bulk
 * @bad: gets true for those on the bad side (TSDBSCANDetector) or outside of the bound (SlidingWindowKSigmaDetector)
 *
 * Context: tool. Return: 0 or -ENOMEM.
 */
int detect_time(const struct metric_time_detector *how, const double *values, size_t count, enum detect_side side,
		bool *bad);

#endif
