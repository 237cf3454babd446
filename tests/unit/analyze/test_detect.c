/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented detectors against slow and obvious references written here: DBSCAN against its definition on random
 * points, SlidingWindowNSigma against the direct formula; and who is bad, on which side.
 */
#include "analyze/detect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#define MANY 60

static uint32_t seed = 7;

static double random_value(void)
{
	seed = seed * 1664525 + 1013904223;
	return (double)(seed >> 8) / (1 << 24);
}

static double distance(const double *a, const double *b)
{
	return sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]));
}

/* Core points that are joined by a chain of near core points share a cluster, and only those do; a point that is near no
 * core point is noise, any other one belongs to a core point near it. */
static void check_definition(double points[][2], size_t count, double eps, unsigned min_samples, const int *labels)
{
	bool core[MANY], joined[MANY][MANY];
	size_t i, k, m;

	for (i = 0; i < count; i++) {
		unsigned near = 0;

		for (k = 0; k < count; k++)
			near += distance(points[i], points[k]) <= eps;
		core[i] = near >= min_samples;
	}
	for (i = 0; i < count; i++)
		for (k = 0; k < count; k++)
			joined[i][k] = core[i] && core[k] && distance(points[i], points[k]) <= eps;
	for (m = 0; m < count; m++)
		for (i = 0; i < count; i++)
			for (k = 0; k < count; k++)
				joined[i][k] |= joined[i][m] && joined[m][k];
	for (i = 0; i < count; i++) {
		bool reached = false, right = false;

		for (k = 0; k < count; k++) {
			if (core[i] && core[k])
				assert_int_equal(labels[i] == labels[k], joined[i][k]);
			if (!core[k] || distance(points[i], points[k]) > eps)
				continue;
			reached = true;
			right |= labels[k] == labels[i];
		}
		assert_int_equal(labels[i] == -1, !reached);
		assert_true(!reached || right);
	}
}

static void dbscan_is_as_defined(void **state)
{
	double points[MANY][2];
	int labels[MANY], round, most = 0;
	size_t i;

	for (round = 0; round < 200; round++) {
		double eps = 0.05 + 0.15 * random_value();
		unsigned min_samples = 1 + (unsigned)(5 * random_value());
		int clusters;

		for (i = 0; i < MANY; i++) {
			points[i][0] = random_value();
			points[i][1] = random_value();
		}
		clusters = detect_dbscan(points[0], MANY, 2, eps, min_samples, METRIC_EUCLIDEAN, labels);
		assert_true(clusters >= 0);
		most = clusters > most ? clusters : most;
		check_definition(points, MANY, eps, min_samples, labels);
	}
	assert_true(most > 3); /* the rounds really had something to tell apart */
}

static void distances_differ(void **state)
{
	const double points[] = { 0, 0, 3, 4 };
	int labels[2];

	assert_int_equal(detect_dbscan(points, 2, 2, 5, 2, METRIC_EUCLIDEAN, labels), 1);
	assert_int_equal(detect_dbscan(points, 2, 2, 4.9, 2, METRIC_EUCLIDEAN, labels), 0);
	assert_int_equal(detect_dbscan(points, 2, 2, 7, 2, METRIC_MANHATTAN, labels), 1);
	assert_int_equal(detect_dbscan(points, 2, 2, 6.9, 2, METRIC_MANHATTAN, labels), 0);
	assert_int_equal(detect_dbscan(points, 2, 2, 4, 2, METRIC_CHEBYSHEV, labels), 1);
	assert_int_equal(detect_dbscan(points, 2, 2, 3.9, 2, METRIC_CHEBYSHEV, labels), 0);
}

static const struct metric_space_detector space = {
	.type = METRIC_SPACE_DBSCAN, .eps = 1, .cv_threshold = 0.1, .min_samples = 2, .window_size = 2
};

static void only_the_bad_side_is_bad(void **state)
{
	const double points[] = { 10, 10, 10.2, 10.1, 10.1, 10, 2, 2, 30, 30 };
	double normal;
	bool bad[5];

	assert_int_equal(detect_space(&space, points, 5, 2, DETECT_BELOW, bad, &normal), 0);
	assert_true(!bad[0] && !bad[1] && !bad[2] && bad[3] && !bad[4]);
	assert_true(fabs(normal - 10.066667) < 1e-4);
	assert_int_equal(detect_space(&space, points, 5, 2, DETECT_ABOVE, bad, &normal), 0);
	assert_true(!bad[0] && !bad[1] && !bad[2] && !bad[3] && bad[4]);
}

/* Two clusters of the same size: whichever came first must not win */
static void a_tie_accuses_nobody(void **state)
{
	const double points[] = { 10, 10, 10, 10, 2, 2, 2, 2 };
	double normal;
	bool bad[4];
	size_t i;

	assert_int_equal(detect_space(&space, points, 4, 2, DETECT_BELOW, bad, &normal), 0);
	for (i = 0; i < 4; i++)
		assert_false(bad[i]);
}

static void small_deviations_are_no_reason(void **state)
{
	struct metric_space_detector how = space;
	const double points[] = { 10, 10, 10, 10, 10, 10, 8.5, 8.5 };
	double normal;
	bool bad[4];

	assert_int_equal(detect_space(&how, points, 4, 2, DETECT_BELOW, bad, &normal), 0);
	assert_true(bad[3]);
	how.cv_threshold = 0.2;
	assert_int_equal(detect_space(&how, points, 4, 2, DETECT_BELOW, bad, &normal), 0);
	assert_false(bad[3]);
}

static void outer_data_works_for_two(void **state)
{
	const struct metric_space_detector how = { .type = METRIC_SPACE_OUTER, .eps = 1, .cv_threshold = 0.1 };
	const double points[] = { 10, 20 };
	double normal;
	bool bad[2];

	assert_int_equal(detect_space(&how, points, 2, 1, DETECT_ABOVE, bad, &normal), 0);
	assert_true(!bad[0] && bad[1]);
	assert_int_equal(detect_space(&how, points, 2, 1, DETECT_BELOW, bad, &normal), 0);
	assert_true(bad[0] && !bad[1]);
}

static void series_outliers_are_found(void **state)
{
	const struct metric_time_detector how = { .type = METRIC_TIME_DBSCAN,
						  .preprocess_eps = 0.05,
						  .preprocess_min_samples = 3 };
	double values[20];
	bool bad[20];
	size_t i;

	for (i = 0; i < 20; i++)
		values[i] = 10 + 0.1 * random_value();
	values[7] = 15;
	values[11] = 4;
	assert_int_equal(detect_time(&how, values, 20, DETECT_ABOVE, bad), 0);
	for (i = 0; i < 20; i++)
		assert_int_equal(bad[i], i == 7);
}

/* mean, deviation and bounds written out; good values replace the oldest of the window */
static void nsigma_is_the_formula(void **state)
{
	const struct metric_time_detector how = {
		.type = METRIC_TIME_KSIGMA,
		.preprocess_eps = 10,
		.preprocess_min_samples = 1,
		.nsigma = { .training_window_size = 8,
			    .min_update_window_size = 5,
			    .min_std_val = 0.2,
			    .bias = 0.05,
			    .abs_bias = 0.1,
			    .nsigma_coefficient = 2,
			    .detect_type = METRIC_BOTH,
			    .min_expert_lower_bound = NAN,
			    .max_expert_lower_bound = NAN,
			    .min_expert_upper_bound = NAN,
			    .max_expert_upper_bound = NAN },
	};
	double values[MANY], window[MANY];
	bool bad[MANY];
	size_t i, k, used = 0, found = 0;

	for (i = 0; i < MANY; i++)
		values[i] = 10 + random_value() + (i % 13 == 12 ? 4 : 0) - (i % 17 == 16 ? 4 : 0);
	assert_int_equal(detect_time(&how, values, MANY, DETECT_ABOVE, bad), 0);
	for (i = 0; i < MANY; i++) {
		double mean = 0, square = 0, std;
		size_t from = used > 8 ? used - 8 : 0;
		bool expected = false;

		for (k = from; k < used; k++)
			mean += window[k] / (double)(used - from);
		for (k = from; k < used; k++)
			square += (window[k] - mean) * (window[k] - mean) / (double)(used - from);
		std = fmax(sqrt(square), 0.2);
		if (used >= 5)
			expected = values[i] > (mean + 2 * std) * 1.05 + 0.1 ||
				   values[i] < (mean - 2 * std) * 0.95 - 0.1;
		assert_int_equal(bad[i], expected);
		found += expected;
		if (!expected)
			window[used++] = values[i];
	}
	assert_true(found >= 5);
}

static void experts_bound_the_bounds(void **state)
{
	struct metric_time_detector how = {
		.type = METRIC_TIME_KSIGMA,
		.preprocess_eps = 1,
		.preprocess_min_samples = 1,
		.nsigma = { .training_window_size = 8,
			    .min_update_window_size = 4,
			    .min_std_val = 0.1,
			    .nsigma_coefficient = 3,
			    .detect_type = METRIC_UPPER,
			    .min_expert_lower_bound = NAN,
			    .max_expert_lower_bound = NAN,
			    .min_expert_upper_bound = 20,
			    .max_expert_upper_bound = NAN },
	};
	double values[] = { 10, 10, 10, 10, 10, 10, 10, 10, 10, 15 };
	bool bad[10];

	assert_int_equal(detect_time(&how, values, 10, DETECT_ABOVE, bad), 0);
	assert_false(bad[9]);
	how.nsigma.min_expert_upper_bound = NAN;
	assert_int_equal(detect_time(&how, values, 10, DETECT_ABOVE, bad), 0);
	assert_true(bad[9]);
}

/* a spike at the start must not widen what later values are compared with */
static void a_spike_in_the_training_hides_nothing(void **state)
{
	struct metric_config config;
	struct metric_time_detector how;
	double values[30];
	bool bad[30];
	size_t i;

	metric_config_defaults(&config);
	how = metric_config_find(&config, "HcclBatchSendRecv")->time;
	how.type = METRIC_TIME_KSIGMA;
	for (i = 0; i < 30; i++)
		values[i] = 10 + 0.2 * random_value();
	values[3] = 100;
	values[25] = 14;
	assert_int_equal(detect_time(&how, values, 30, DETECT_ABOVE, bad), 0);
	assert_true(bad[25]);
	assert_false(bad[24]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dbscan_is_as_defined),
		cmocka_unit_test(distances_differ),
		cmocka_unit_test(only_the_bad_side_is_bad),
		cmocka_unit_test(a_tie_accuses_nobody),
		cmocka_unit_test(small_deviations_are_no_reason),
		cmocka_unit_test(outer_data_works_for_two),
		cmocka_unit_test(series_outliers_are_found),
		cmocka_unit_test(nsigma_is_the_formula),
		cmocka_unit_test(experts_bound_the_bounds),
		cmocka_unit_test(a_spike_in_the_training_hides_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
