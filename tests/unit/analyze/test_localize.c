/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The localiser on jobs made here: a synchronous group ends together, so that a late rank waits least. Each kind of
 * blame, healthy jobs, and the answers "cannot tell".
 */
#include "analyze/localize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#define MS 1000000
#define START_NS 1760000000000000000
#define MAX_RANKS 8
#define CALLS 12 /* per step: long and short ways in turn */

enum { GROUP = 1, OP = 2 };

/** struct job - what differs from rank to rank */
struct job {
	int ranks;
	unsigned steps;
	unsigned fault_from;
	int late; /* rank, -1 = none */
	double compute_factor; /* of the late rank's ways */
	double launch_ms; /* before each of its calls */
	double load_ms; /* more in its loader */
	double all_factor; /* of everybody's ways, from the fault on; 0 = 1 */
	double transfer_ms; /* more in every call, from the fault on */
	unsigned lose_every; /* n-th op is not recorded, 0 = all are */
	int silent; /* rank whose last calls are missing: it hangs; -1 = none */
	bool sums; /* always-on sums in place of single calls */
	bool chips; /* healthy ranks whose chips differ */
	bool one_call; /* a step, behind a forward pass without any */
	bool torn; /* the last call of those that wait was issued, but is not known to have begun */
	struct loc_options options;
};

static const struct job healthy = {
	.ranks = 4, .steps = 60, .fault_from = 30, .late = -1, .silent = -1, .compute_factor = 1
};

static uint32_t seed;

static double noise(void)
{
	seed = seed * 1664525 + 1013904223;
	return 1 + ((double)(seed >> 16) / 65536 - 0.5) / 100;
}

/* Healthy ones: a rank 2.5 % slower than another is just the slowest of them */
static const double chips[MAX_RANKS] = { 1, 1.012, 0.99, 1.024, 1.004, 0.985, 1.008, 0.996 };

/* One rank's way before a call */
static double way_ms(const struct job *job, int rank, unsigned step, unsigned call)
{
	double ms = (call % 2 ? 5 : 50) * noise() * (job->chips ? chips[rank] : 1);

	if (job->all_factor > 0 && step >= job->fault_from)
		ms *= job->all_factor;
	if (rank != job->late || step < job->fault_from)
		return ms;
	return ms * job->compute_factor + job->launch_ms;
}

static struct localize *run(const struct job *job, struct loc_result *result)
{
	struct localize *loc = localize_new(&job->options);
	int64_t now = START_NS, ready[MAX_RANKS];
	struct loc_rank *ranks[MAX_RANKS];
	double waited[MAX_RANKS];
	uint64_t serial = 100;
	unsigned step, call, calls = job->one_call ? 1 : CALLS;
	int r;

	seed = 1;
	for (r = 0; r < job->ranks; r++)
		ranks[r] = localize_rank(loc, r, 0, 0);
	for (step = 0; step < job->steps; step++) {
		for (r = 0; r < job->ranks; r++) {
			double load = 10 * noise() + (r == job->late && step >= job->fault_from ? job->load_ms : 0);

			ready[r] = now + (int64_t)(load * MS);
			waited[r] = 0;
			double forward = 0;

			if (job->one_call) {
				forward = 60 * noise();
				if (r == job->late && step >= job->fault_from)
					forward *= job->compute_factor;
			}
			loc_rank_step(ranks[r], &(struct loc_step){ step, now, ready[r], 0, forward });
			ready[r] += (int64_t)(forward * MS);
			loc_rank_stage(ranks[r], step, LOC_DATALOADER, load);
		}
		for (call = 0; call < calls; call++, serial++) {
			int64_t last = 0, begin[MAX_RANKS];
			bool hangs = job->silent >= 0 && step == job->steps - 1 && call >= CALLS / 2;

			for (r = 0; r < job->ranks; r++) {
				begin[r] = ready[r] + (int64_t)(way_ms(job, r, step, call) * MS);
				last = begin[r] > last ? begin[r] : last;
			}
			if (step >= job->fault_from)
				last += (int64_t)(job->transfer_ms * MS);
			for (r = 0; r < job->ranks; r++) {
				struct loc_op op = { GROUP, OP, 1000, serial, begin[r], last + 1 * MS, 0, false };

				if (hangs && (r == job->silent || call > CALLS / 2))
					continue;
				loc_rank_issued(ranks[r], serial);
				if (hangs && job->torn)
					continue;
				if (hangs)
					op.end_ns = 0;
				ready[r] = last + 1 * MS;
				waited[r] += (double)(ready[r] - begin[r]) / MS;
				if (!job->sums && !(job->lose_every && (serial + (unsigned)r) % job->lose_every == 0))
					assert_int_equal(loc_rank_op(ranks[r], &op), 0);
			}
		}
		for (r = 0; r < job->ranks && job->sums; r++)
			loc_rank_sum(ranks[r], &(struct loc_sum){ step, GROUP, OP, waited[r], 12000, false });
		now = ready[0];
	}
	for (r = 0; r < job->ranks; r++)
		assert_int_equal(loc_rank_done(ranks[r]), 0);
	assert_int_equal(localize_judge(loc, result), 0);
	return loc;
}

static void expect(const struct job *job, enum loc_kind kind)
{
	struct loc_result result;
	struct localize *loc = run(job, &result);

	assert_int_equal(result.verdict, LOC_FOUND);
	assert_int_equal(result.findings_count, 1);
	assert_int_equal(result.findings[0].rank, job->late);
	assert_int_equal(result.findings[0].kind, kind);
	assert_int_equal(result.findings[0].onset_step, job->fault_from);
	assert_true(result.findings[0].share > 0.02);
	localize_free(loc);
}

static void expect_nobody(const struct job *job, enum loc_verdict verdict, const char *reason)
{
	struct loc_result result;
	struct localize *loc = run(job, &result);

	assert_int_equal(result.verdict, verdict);
	assert_int_equal(result.findings_count, 0);
	assert_non_null(strstr(result.reason, reason));
	localize_free(loc);
}

static void test_healthy_job_accuses_nobody(void **state)
{
	struct job job = healthy;

	expect_nobody(&job, LOC_HEALTHY, "");
	job.sums = true;
	expect_nobody(&job, LOC_HEALTHY, "");
	job.sums = false;
	job.lose_every = 50;
	expect_nobody(&job, LOC_HEALTHY, "");
}

static void test_slow_compute(void **state)
{
	struct job job = healthy;

	job.late = 2;
	job.compute_factor = 1.3;
	expect(&job, LOC_COMPUTE);
	job.lose_every = 50; /* 2 % of the records are gone */
	expect(&job, LOC_COMPUTE);
	job.ranks = 8;
	job.late = 7;
	job.compute_factor = 1.05;
	expect(&job, LOC_COMPUTE);
}

/* one pair has nobody else to compare with, and still the one who waits least is late */
static void test_two_ranks(void **state)
{
	struct job job = healthy;

	job.ranks = 2;
	job.late = 1;
	job.compute_factor = 1.3;
	expect(&job, LOC_COMPUTE);
}

static void test_slow_from_the_start(void **state)
{
	struct job job = healthy;

	job.late = 0;
	job.fault_from = 0;
	job.compute_factor = 1.2;
	expect(&job, LOC_COMPUTE);
}

static void test_late_launch(void **state)
{
	struct job job = healthy;

	job.late = 1;
	job.launch_ms = 10;
	expect(&job, LOC_LAUNCH);
}

static void test_slow_loader(void **state)
{
	struct job job = healthy;

	job.late = 3;
	job.load_ms = 100;
	expect(&job, LOC_DATALOADER);
}

/* always-on sums alone: own time is what they leave over of the step */
static void test_sums_alone(void **state)
{
	struct job job = healthy;

	job.sums = true;
	job.late = 2;
	job.compute_factor = 1.5;
	expect(&job, LOC_COMPUTE);
}

static void test_hang(void **state)
{
	struct job job = healthy;
	struct loc_result result;
	struct localize *loc;

	job.silent = 3;
	job.options.until_ns = START_NS + (int64_t)3600 * 1000 * MS;
	loc = run(&job, &result);
	assert_int_equal(result.verdict, LOC_FOUND);
	assert_int_equal(result.findings_count, 1);
	assert_int_equal(result.findings[0].rank, 3);
	assert_int_equal(result.findings[0].kind, LOC_HANG);
	localize_free(loc);

	/* rows of the ones that wait were lost with the end of their files: what they issued tells them from the culprit */
	job.torn = true;
	loc = run(&job, &result);
	assert_int_equal(result.findings_count, 1);
	assert_int_equal(result.findings[0].rank, 3);
	localize_free(loc);
}

/* Chips that differ are no fault, and do not hide one of the same size that begins */
static void test_chips_differ(void **state)
{
	struct job job = healthy;

	job.ranks = 8;
	job.chips = true;
	expect_nobody(&job, LOC_HEALTHY, "");
	job.late = 2;
	job.compute_factor = 1.04;
	expect(&job, LOC_COMPUTE);
}

/* Jobs with one collective a step: the forward pass tells slow computing from late launching */
static void test_one_call_a_step(void **state)
{
	struct job job = healthy;

	job.one_call = true;
	expect_nobody(&job, LOC_HEALTHY, "");
	job.late = 1;
	job.launch_ms = 15;
	expect(&job, LOC_LAUNCH);
	job.launch_ms = 0;
	job.compute_factor = 1.2;
	expect(&job, LOC_COMPUTE);
}

#define STAGED 6 /* ranks: three stages of two replicas each */

/* A call of some of the staged ranks: all end together. @ms: way before it; the last stage has half as much again */
static void meet(struct loc_rank **ranks, int64_t *ready, uint64_t *serial, unsigned mask, uint32_t group, double ms)
{
	int64_t begin[STAGED], last = 0;
	int r;

	for (r = 0; r < STAGED; r++) {
		begin[r] = ready[r] + (int64_t)((r < 4 ? ms : 1.5 * ms) * noise() * MS);
		if (mask & 1u << r && begin[r] > last)
			last = begin[r];
	}
	for (r = 0; r < STAGED; r++) {
		if (!(mask & 1u << r))
			continue;
		ready[r] = last + MS;
		loc_rank_op(ranks[r],
			    &(struct loc_op){ group, OP, 1000, ++serial[r], begin[r], ready[r], 0, group >= 20 });
	}
}

/* Stages of a pipeline, the last with half as much more work, and a collective of all that they meet in most often */
static void test_stages_are_unequal(void **state)
{
	struct localize *loc = localize_new(&healthy.options);
	struct loc_rank *ranks[STAGED];
	int64_t ready[STAGED];
	uint64_t serial[STAGED] = { 0 };
	struct loc_result result;
	unsigned step, call;
	int r;

	seed = 1;
	for (r = 0; r < STAGED; r++) {
		ranks[r] = localize_rank(loc, r, 0, 0);
		ready[r] = START_NS;
	}
	for (step = 0; step < 60; step++) {
		for (r = 0; r < STAGED; r++)
			loc_rank_step(ranks[r], &(struct loc_step){ step, ready[r], 0, 0, 0 });
		for (call = 0; call < 4; call++) {
			for (r = 0; r < 3; r++) /* the replicas of each stage */
				meet(ranks, ready, serial, 3u << 2 * r, 10 + (uint32_t)r, 50);
			for (r = 0; r < 4; r++) /* stage to stage */
				meet(ranks, ready, serial, 5u << r, 20 + (uint32_t)r, 1);
			meet(ranks, ready, serial, 63, 13, 10); /* all */
			meet(ranks, ready, serial, 63, 13, 10);
		}
	}
	for (r = 0; r < STAGED; r++)
		assert_int_equal(loc_rank_done(ranks[r]), 0);
	assert_int_equal(localize_judge(loc, &result), 0);
	assert_int_equal(result.findings_count, 0);
	assert_int_equal(result.verdict, LOC_HEALTHY);
	localize_free(loc);
}

static void test_range_and_switches(void **state)
{
	struct job job = healthy;

	job.late = 2;
	job.compute_factor = 1.3;
	job.options.to_step = 29;
	expect_nobody(&job, LOC_HEALTHY, "");
	job.options = (struct loc_options){ .off_kinds = 1u << LOC_COMPUTE };
	expect_nobody(&job, LOC_HEALTHY, "");
	job.options = (struct loc_options){ .from_step = 25 };
	expect(&job, LOC_COMPUTE);
}

static void test_cannot_tell(void **state)
{
	struct job job = healthy;
	struct loc_result result;
	struct localize *loc;

	job.ranks = 1;
	expect_nobody(&job, LOC_CANNOT_TELL, "one rank only");
	job.ranks = 4;
	job.steps = 5;
	expect_nobody(&job, LOC_CANNOT_TELL, "at least");

	loc = localize_new(&(struct loc_options){ 0 });
	assert_int_equal(localize_judge(loc, &result), 0);
	assert_int_equal(result.verdict, LOC_NO_DATA);
	localize_free(loc);
}

/* a slowdown that all share is not healthy, and it is said where the time goes */
static void test_all_ranks_alike(void **state)
{
	struct job job = healthy;

	job.all_factor = 1.5;
	expect_nobody(&job, LOC_CANNOT_TELL, "own time");
	job.all_factor = 0;
	job.sums = true;
	job.transfer_ms = 20;
	expect_nobody(&job, LOC_CANNOT_TELL, "spent in collectives");
}

/* with single calls the group's transfer itself is seen to be slow; all of its members are named */
static void test_slow_group_of_all(void **state)
{
	struct job job = healthy;
	struct loc_result result;
	struct localize *loc;
	size_t i;

	job.transfer_ms = 20;
	loc = run(&job, &result);
	assert_int_equal(result.verdict, LOC_FOUND);
	assert_int_equal(result.findings_count, 4);
	for (i = 0; i < 4; i++)
		assert_int_equal(result.findings[i].kind, LOC_COMM);
	localize_free(loc);
}

static void test_missing_ranks_are_named(void **state)
{
	struct job job = healthy;
	struct loc_result result;
	struct localize *loc = localize_new(&job.options);

	localize_world(loc, 3);
	loc_rank_done(localize_rank(loc, 1, 0, 0));
	assert_int_equal(localize_judge(loc, &result), 0);
	assert_int_equal(result.verdict, LOC_CANNOT_TELL);
	localize_free(loc);

	loc = run(&job, &result);
	localize_world(loc, 6);
	assert_int_equal(localize_judge(loc, &result), 0);
	assert_string_equal(result.reason, "no data of rank 4, 5");
	localize_free(loc);
}

/* 12 calls of 50 and 5 ms in turn: 30 % more of them are 99 ms a step, for all who wait */
static void test_what_a_finding_costs(void **state)
{
	struct job job = healthy;
	struct loc_result result;
	struct localize *loc;
	double steps;

	job.late = 2;
	job.compute_factor = 1.3;
	loc = run(&job, &result);
	steps = result.findings[0].last_step - result.findings[0].onset_step + 1;
	assert_int_equal(result.findings_count, 1);
	assert_true(fabs(result.findings[0].saved_ms / steps - 99) < 3);
	assert_true(fabs(result.findings[0].cost_ms - result.findings[0].saved_ms) < 1);
	assert_true(fabs(result.findings[0].saved_share - 99. / (10 + 12 + 330 + 99)) < 0.02);
	localize_free(loc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_healthy_job_accuses_nobody),
		cmocka_unit_test(test_what_a_finding_costs),
		cmocka_unit_test(test_slow_compute),
		cmocka_unit_test(test_two_ranks),
		cmocka_unit_test(test_slow_from_the_start),
		cmocka_unit_test(test_late_launch),
		cmocka_unit_test(test_slow_loader),
		cmocka_unit_test(test_sums_alone),
		cmocka_unit_test(test_hang),
		cmocka_unit_test(test_chips_differ),
		cmocka_unit_test(test_stages_are_unequal),
		cmocka_unit_test(test_one_call_a_step),
		cmocka_unit_test(test_range_and_switches),
		cmocka_unit_test(test_cannot_tell),
		cmocka_unit_test(test_missing_ranks_are_named),
		cmocka_unit_test(test_all_ranks_alike),
		cmocka_unit_test(test_slow_group_of_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
