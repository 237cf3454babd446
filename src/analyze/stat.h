/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Robust statistics of the detectors: quantiles by selection, spread by median absolute deviation. All take a plain
 * array; those that reorder it say so. Called by failslow and localize; knows nothing of steps or ranks.
 */
#ifndef ANALYZE_STAT_H
#define ANALYZE_STAT_H

#include <stddef.h>

/** a normal distribution's standard deviation is this many median absolute deviations */
#define STAT_MAD_SIGMA 1.4826

/**
 * stat_quantile - the value below which a share of the values lies, interpolated
 * @values: reordered
 * @share: 0..1
 *
 * Context: tool. Return: the quantile, NAN for no values. NANs among the values are not allowed. O(count).
 */
double stat_quantile(double *values, size_t count, double share);

/** stat_median - stat_quantile(0.5); @values: reordered */
double stat_median(double *values, size_t count);

/** stat_sigma - 1.4826 x median of |value - center|; @values: replaced by the distances. NAN for no values. */
double stat_sigma(double *values, size_t count, double center);

/** stat_mean_std - mean and standard deviation (of the population). Nothing is written for no values. */
void stat_mean_std(const double *values, size_t count, double *mean, double *std);

/** stat_diff_sigma - noise from one value to the next, blind to slow drift: median |v[i] - v[i-1]| x 1.4826 / sqrt(2).
 * @scratch: count values, overwritten. Return: 0 for fewer than two values. */
double stat_diff_sigma(const double *values, size_t count, double *scratch);

#endif
