/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Robust statistics of the detectors (stat.h). Selection is Hoare's quickselect with the median of three as pivot:
 * linear on the nearly sorted and the constant arrays that step times are.
 */
#include "analyze/stat.h"

#include <math.h>
#include <string.h>

static void swap(double *a, double *b)
{
	double t = *a;

	*a = *b;
	*b = t;
}

/* Order the ends and the middle, and return the middle's value */
static double pivot_of(double *v, size_t lo, size_t hi)
{
	size_t mid = lo + (hi - lo) / 2;

	if (v[mid] < v[lo])
		swap(&v[mid], &v[lo]);
	if (v[hi] < v[lo])
		swap(&v[hi], &v[lo]);
	if (v[hi] < v[mid])
		swap(&v[hi], &v[mid]);
	return v[mid];
}

/* Put the k-th smallest value at place k, smaller ones before it */
static double select_kth(double *v, size_t count, size_t k)
{
	size_t lo = 0, hi = count - 1;

	while (lo < hi) {
		double pivot = pivot_of(v, lo, hi);
		size_t i = lo, j = hi;

		for (;;) {
			while (v[i] < pivot)
				i++;
			while (v[j] > pivot)
				j--;
			if (i >= j)
				break;
			swap(&v[i++], &v[j--]);
		}
		if (k <= j)
			hi = j;
		else
			lo = j + 1;
	}
	return v[k];
}

double stat_quantile(double *values, size_t count, double share)
{
	double at, low, high;
	size_t k, i;

	if (!count)
		return NAN;
	at = share * (double)(count - 1);
	k = (size_t)at;
	low = select_kth(values, count, k);
	if (k + 1 >= count || at <= (double)k)
		return low;

	high = values[k + 1];
	for (i = k + 2; i < count; i++)
		if (values[i] < high)
			high = values[i];
	return low + (high - low) * (at - (double)k);
}

double stat_median(double *values, size_t count)
{
	return stat_quantile(values, count, 0.5);
}

double stat_sigma(double *values, size_t count, double center)
{
	size_t i;

	for (i = 0; i < count; i++)
		values[i] = fabs(values[i] - center);
	return STAT_MAD_SIGMA * stat_median(values, count);
}

void stat_mean_std(const double *values, size_t count, double *mean, double *std)
{
	double sum = 0, squares = 0;
	size_t i;

	if (!count)
		return;
	for (i = 0; i < count; i++)
		sum += values[i];
	*mean = sum / (double)count;
	for (i = 0; i < count; i++)
		squares += (values[i] - *mean) * (values[i] - *mean);
	*std = sqrt(squares / (double)count);
}

double stat_diff_sigma(const double *values, size_t count, double *scratch)
{
	size_t i;

	if (count < 2)
		return 0;
	for (i = 1; i < count; i++)
		scratch[i - 1] = fabs(values[i] - values[i - 1]);
	return STAT_MAD_SIGMA * stat_median(scratch, count - 1) / sqrt(2);
}
