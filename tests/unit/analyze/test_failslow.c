/* SPDX-License-Identifier: MulanPSL-2.0 */
/* FailSlow on step times made here: contract 22 and 23, and what the published implementation got wrong (spec 7). */
#include "analyze/failslow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define START_US 1760000000000000

struct job {
	struct failslow *fs;
	int64_t now_us;
	uint32_t number;
	uint32_t noise;
};

static struct job job_of(const char *algorithm, unsigned queue)
{
	struct failslow_params params;
	struct st_err err = { 0 };
	struct job job = { .now_us = START_US, .noise = 1 };

	failslow_defaults(&params);
	params.algorithm = algorithm;
	params.max_data_queue_steps = queue;
	job.fs = failslow_new(&params, &err);
	assert_non_null(job.fs);
	return job;
}

/* even noise of +-0.5 % from a generator of our own, so that runs repeat */
static double noisy(struct job *job, double ms)
{
	job->noise = job->noise * 1664525 + 1013904223;
	return ms * (1 + ((double)(job->noise >> 16) / 65536 - 0.5) / 100);
}

static void put(struct job *job, unsigned count, double ms, double checkpoint_ms, double workload)
{
	while (count--) {
		struct failslow_step step = {
			.number = job->number++,
			.begin_us = job->now_us,
			.ms = noisy(job, ms) + checkpoint_ms,
			.checkpoint_ms = checkpoint_ms,
			.workload = workload,
		};

		job->now_us += (int64_t)(step.ms * 1000);
		assert_int_equal(failslow_step(job->fs, &step), 0);
	}
}

static struct failslow_result finish(struct job *job, double silent_minutes)
{
	struct failslow_result result;

	assert_int_equal(failslow_finish(job->fs, job->now_us + (int64_t)(silent_minutes * 60e6), &result), 1);
	return result;
}

static void both(void (*test)(const char *algorithm))
{
	const char *const *names = failslow_algorithms();

	for (; *names; names++)
		test(*names);
}

static void even_job(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;

	put(&job, 300, 2000, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_NORMAL);
	assert_int_equal(result.count, 0);
	assert_true(result.normal_ms > 1990 && result.normal_ms < 2010);
	failslow_free(job.fs);
}

static void test_even_job_is_normal(void **state)
{
	both(even_job);
}

/* a fault that lasts is reported to its end: it must not become the normal (spec 7, row 2) */
static void lasting_fault(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;

	put(&job, 60, 2000, 0, 0);
	put(&job, 40, 2600, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_SLOW);
	assert_int_equal(result.onset_step, 60);
	assert_int_equal(result.count, 40);
	assert_int_equal(result.last_step, 99);
	assert_false(result.recovered);
	assert_true(result.slowdown > 1.28 && result.slowdown < 1.32);
	assert_true(result.lost_ms > 23000 && result.lost_ms < 25000);
	assert_true(result.detected_step <= 62);
	assert_int_equal(result.anomalies[0].step, 60);
	assert_true(result.anomalies[0].at_us > START_US + 119000000 &&
		    result.anomalies[0].at_us < START_US + 121000000);
	failslow_free(job.fs);
}

static void test_lasting_fault_is_reported_to_its_end(void **state)
{
	both(lasting_fault);
}

static void recovery(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;

	put(&job, 50, 1000, 0, 0);
	put(&job, 20, 1500, 0, 0);
	put(&job, 30, 1000, 0, 0);
	put(&job, 10, 1500, 0, 0);
	put(&job, 20, 1000, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.count, 30);
	assert_int_equal(result.last_step, 109);
	assert_true(result.recovered);
	failslow_free(job.fs);
}

static void test_end_and_return_of_a_fault(void **state)
{
	both(recovery);
}

/* contract 22: above mean + k sigma is not enough, the degree must exceed the threshold */
/* a busy host made some steps a little longer before the fault came: the fault's step is the onset, all of them are listed */
static void fault_after_disturbances(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;

	put(&job, 60, 2000, 0, 0);
	put(&job, 5, 2600, 0, 0);
	put(&job, 15, 2000, 0, 0);
	put(&job, 40, 6000, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.onset_step, 80);
	assert_true(result.onset_us > START_US + 160000000 && result.onset_us < START_US + 166000000);
	assert_true(result.detected_step >= 80 && result.detected_step <= 85);
	assert_int_equal(result.anomalies[0].step, 60);
	assert_int_equal(result.count, 45);
	failslow_free(job.fs);
}

static void test_slight_disturbances_are_not_the_onset(void **state)
{
	both(fault_after_disturbances);
}

/* a fault that comes and goes began when it first came */
static void recurring_fault(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;
	int i;

	put(&job, 60, 2000, 0, 0);
	for (i = 0; i < 4; i++) {
		put(&job, 10, 3000, 0, 0);
		put(&job, 20, 2000, 0, 0);
	}
	result = finish(&job, 0);
	assert_int_equal(result.onset_step, 60);
	failslow_free(job.fs);
}

static void test_recurring_fault_began_at_its_first_time(void **state)
{
	both(recurring_fault);
}

static void test_documented_thresholds(void **state)
{
	struct job job = job_of("documented", 500);
	struct failslow_result result;

	put(&job, 40, 1000, 0, 0);
	put(&job, 5, 1190, 0, 0);
	put(&job, 40, 1000, 0, 0);
	put(&job, 1, 1230, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.count, 1);
	assert_int_equal(result.onset_step, 85);
	failslow_free(job.fs);
}

/* contract 22: no verdict on the first steps */
static void test_documented_start(void **state)
{
	struct job job = job_of("documented", 500);
	struct failslow_result result;

	put(&job, 3, 9000, 0, 0);
	put(&job, 5, 1000, 0, 0);
	put(&job, 1, 1500, 0, 0); /* ninth step: too early */
	put(&job, 20, 1000, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_NORMAL);
	failslow_free(job.fs);
}

static void test_robust_ignores_what_is_no_fault(void **state)
{
	struct job job = job_of("robust", 500);
	struct failslow_result result;

	put(&job, 3, 9000, 0, 0); /* compilation */
	put(&job, 4, 3000, 0, 0);
	put(&job, 40, 2000, 0, 100);
	put(&job, 1, 2700, 0, 100); /* one late packet */
	put(&job, 23, 2000, 0, 100);
	put(&job, 1, 2000, 2500, 100); /* a checkpoint */
	put(&job, 24, 2000, 0, 100);
	put(&job, 1, 2000, 2500, 100);
	put(&job, 60, 2700, 0, 135); /* longer sequences: 35 % more work */
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_NORMAL);
	failslow_free(job.fs);
}

/* contract 23: a lasting shift of 5 % is found, one of 1 % is not */
static void test_robust_small_shift(void **state)
{
	struct job job = job_of("robust", 500);
	struct failslow_result result;

	put(&job, 80, 2000, 0, 0);
	put(&job, 40, 2020, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_NORMAL);
	put(&job, 40, 2100, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.type, FAILSLOW_SLOW);
	assert_int_equal(result.onset_step, 120);
	assert_true(result.slowdown > 1.03 && result.slowdown < 1.06);
	failslow_free(job.fs);
}

static void hang(const char *algorithm)
{
	struct job job = job_of(algorithm, 500);
	struct failslow_result result;

	put(&job, 20, 2000, 0, 0);
	result = finish(&job, 29);
	assert_int_equal(result.type, FAILSLOW_NORMAL);
	result = finish(&job, 31);
	assert_int_equal(result.type, FAILSLOW_HANG);
	assert_int_equal(result.onset_step, 20);
	assert_int_equal(result.count, 1);
	assert_int_equal(result.anomalies_count, 1);
	assert_true(result.anomalies[0].ms > 30 * 60e3);
	failslow_free(job.fs);
}

static void test_hang_is_judged_on_the_time_of_the_data(void **state)
{
	both(hang);
}

static void test_queue_keeps_the_newest(void **state)
{
	struct job job = job_of("documented", 7);
	struct failslow_result result;

	put(&job, 50, 1000, 0, 0);
	put(&job, 100, 2000, 0, 0);
	result = finish(&job, 0);
	assert_int_equal(result.count, 100);
	assert_int_equal(result.anomalies_count, 7);
	assert_int_equal(result.anomalies[0].step, 143);
	assert_int_equal(result.anomalies[6].step, 149);
	assert_int_equal(result.onset_step, 50);
	failslow_free(job.fs);
}

static void test_too_few_steps_and_bad_parameters(void **state)
{
	struct job job = job_of("robust", 500);
	struct failslow_params params;
	struct failslow_result result;
	struct st_err err = { 0 };

	assert_int_equal(failslow_finish(job.fs, 0, &result), 0);
	put(&job, 9, 1000, 0, 0);
	assert_int_equal(failslow_finish(job.fs, 0, &result), 0);
	assert_int_equal(result.steps, 9);
	failslow_free(job.fs);

	failslow_defaults(&params);
	params.steps_window_size = 0;
	assert_null(failslow_new(&params, &err));
	assert_non_null(strstr(err.text, "steps_window_size"));
	failslow_defaults(&params);
	params.algorithm = "magic";
	assert_null(failslow_new(&params, &err));
	assert_non_null(strstr(err.text, "magic"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_even_job_is_normal),
		cmocka_unit_test(test_lasting_fault_is_reported_to_its_end),
		cmocka_unit_test(test_end_and_return_of_a_fault),
		cmocka_unit_test(test_slight_disturbances_are_not_the_onset),
		cmocka_unit_test(test_recurring_fault_began_at_its_first_time),
		cmocka_unit_test(test_documented_thresholds),
		cmocka_unit_test(test_documented_start),
		cmocka_unit_test(test_robust_ignores_what_is_no_fault),
		cmocka_unit_test(test_robust_small_shift),
		cmocka_unit_test(test_hang_is_judged_on_the_time_of_the_data),
		cmocka_unit_test(test_queue_keeps_the_newest),
		cmocka_unit_test(test_too_few_steps_and_bad_parameters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
