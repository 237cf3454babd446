/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One whole diagnosis over found records, as the configuration asks for it: step times (FailSlow), and which rank
 * (localiser) in which window. Called by cmd_failslow, cmd_localize and the service; prints and writes nothing but the
 * files that debug_data and use_plot ask for.
 */
#ifndef ANALYZE_DIAGNOSE_H
#define ANALYZE_DIAGNOSE_H

#include "analyze/failslow.h"
#include "analyze/failslow_input.h"
#include "analyze/localize.h"
#include "analyze/metric_config.h"
#include "analyze/model_config.h"
#include "analyze/records.h"
#include "analyze/slowrank.h"

/** struct diagnosis - what is asked for, and what came out; zero-initialise, diagnosis_fini() in any case */
struct diagnosis {
	const struct model_config *config;
	const struct metric_config *metrics;
	struct records *records;
	struct loc_options
		options; /* limits of the user; from and to are narrowed by the configuration where they are 0 */
	int64_t until_ns; /* job was observed up to here, 0 = to its last record */
	const char *log; /* training log with the step times, NULL = they are in the records */
	const char *debug_dir; /* where debug_data goes, NULL = nowhere */

	struct failslow *fs;
	struct failslow_feed fed;
	bool judged; /* steps has a verdict */
	struct failslow_result steps;
	struct localize *loc;
	struct slowrank *documented;
	struct loc_result ranks;
	double hang_mins; /* in place of hang_times_mins_thr, 0 = not */
	char window[128]; /* where the window came from, for people; "" = everything */
};

/** diagnose_steps - FailSlow; d->judged tells whether there was enough. Return: 0, -errno with @err. */
int diagnose_steps(struct diagnosis *d, struct st_err *err);

/**
 * diagnose_ranks - the localiser of `algorithm`, in the window of FailSlow's finding (with_fail_slow: diagnose_steps()
 * is called if it was not), of slow_node_detection_range_times, or of the last hours
 *
 * Return: 0, -errno with @err.
 */
int diagnose_ranks(struct diagnosis *d, struct st_err *err);

/**
 * diagnose_early_hang - does the job hang, though hang_times_mins_thr has not passed? Asked where no step ended for ten times
 * the longest one (a minute at least); a hang is what markers show: ranks in a collective that one of its group never began.
 *
 * Context: behind diagnose_steps(). Return: 1 = yes, d->steps and d->ranks say so; 0; -errno with @err.
 */
int diagnose_early_hang(struct diagnosis *d, struct st_err *err);

void diagnosis_fini(struct diagnosis *d);

/** diagnose_files - write what debug_data and use_plot ask for. Return: 0, -errno with @err. */
int diagnose_files(const struct diagnosis *d, struct st_err *err);

#endif
