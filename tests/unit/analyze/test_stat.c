/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Quantiles and spread against values worked out by sorting or by hand. */
#include "analyze/stat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double sorted_quantile(double *values, size_t count, double share)
{
	double at = share * (double)(count - 1);
	size_t k = (size_t)at;

	qsort(values, count, sizeof(*values), by_value);
	return k + 1 < count ? values[k] + (values[k + 1] - values[k]) * (at - (double)k) : values[k];
}

/* every length, values with many repeats: selection and sorting must agree */
static void test_quantile_equals_sorting(void **state)
{
	static const double shares[] = { 0, 0.1, 0.25, 0.5, 0.9, 1 };
	double a[64], b[64];
	uint32_t seed = 7;
	size_t count, i, k, round;

	for (count = 1; count <= 64; count++) {
		for (round = 0; round < 20; round++) {
			for (i = 0; i < count; i++) {
				seed = seed * 1664525 + 1013904223;
				a[i] = (seed >> 20) % (round + 1);
			}
			for (k = 0; k < sizeof(shares) / sizeof(shares[0]); k++) {
				memcpy(b, a, sizeof(a));
				assert_true(fabs(stat_quantile(b, count, shares[k]) -
						 sorted_quantile(a, count, shares[k])) < 1e-12);
			}
		}
	}
}

static void test_nothing_has_no_median(void **state)
{
	double none[1] = { 0 };

	assert_true(isnan(stat_median(none, 0)));
	assert_true(stat_diff_sigma(none, 1, none) == 0);
}

static void test_spread(void **state)
{
	double values[] = { 1, 2, 3, 4, 100 }, steps[] = { 1, 2, 1, 2, 1, 2 }, scratch[6], mean = 0, std = 0;

	assert_true(fabs(stat_sigma(values, 5, 3) - STAT_MAD_SIGMA) < 1e-12);
	assert_true(fabs(stat_diff_sigma(steps, 6, scratch) - STAT_MAD_SIGMA / sqrt(2)) < 1e-12);
	stat_mean_std(steps, 6, &mean, &std);
	assert_true(fabs(mean - 1.5) < 1e-12 && fabs(std - 0.5) < 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantile_equals_sorting),
		cmocka_unit_test(test_nothing_has_no_median),
		cmocka_unit_test(test_spread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
