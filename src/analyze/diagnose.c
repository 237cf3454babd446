/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A whole diagnosis (diagnose.h). The window is chosen here; what a slow step or rank is, is decided by failslow*.c and
 * localize*.c.
 */
#include "analyze/diagnose.h"
#include "analyze/debug_files.h"
#include "analyze/evidence.h"
#include "analyze/localize_input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EARLY_HANG_STEPS 10 /* longest steps of silence */
#define EARLY_HANG_MS 60e3
#define SHORTEST_WINDOW 24 /* steps; a shorter finding of FailSlow is looked at with steps before it */

int diagnose_steps(struct diagnosis *d, struct st_err *err)
{
	int64_t until_us = d->until_ns / 1000;

	d->fs = failslow_new(&d->config->failslow, err);
	if (!d->fs)
		return -errno;
	if (d->log) {
		int ret = failslow_feed_log(d->fs, d->log, &d->fed, err);

		if (ret < 0)
			return ret;
	} else if (failslow_feed_records(d->fs, d->records, &d->fed) < 0) {
		return err_set(err, -ENOMEM, "out of memory");
	}
	if (!until_us && !d->log)
		until_us = d->records->capture_end_ns ? d->records->capture_end_ns / 1000 : d->fed.last_us;
	d->judged = d->fed.steps && failslow_finish(d->fs, until_us, &d->steps);
	return 0;
}

static bool is_documented(const struct model_config *config)
{
	return config->failslow.algorithm && !strcmp(config->failslow.algorithm, "documented");
}

static void window_of_steps(struct diagnosis *d)
{
	const struct failslow_result *s = &d->steps;
	uint32_t from = s->onset_step, length = s->last_step - s->onset_step + 1;

	if (!d->judged || s->type != FAILSLOW_SLOW)
		return;
	if (length < SHORTEST_WINDOW)
		from = from > SHORTEST_WINDOW - length ? from - (SHORTEST_WINDOW - length) : 0;
	d->options.from_step = from;
	d->options.to_step = s->recovered ? s->last_step : 0;
	snprintf(d->window, sizeof(d->window), "steps from %u on, where FailSlow found the job slow", from);
}

/* Only where the user gave no limits */
static int choose_window(struct diagnosis *d, struct st_err *err)
{
	const struct model_config *c = d->config;
	int ret = 0;

	if (d->options.from_step || d->options.to_step || d->options.from_ns || d->options.to_ns)
		return 0;
	if (c->with_fail_slow == 1) {
		ret = d->fs ? 0 : diagnose_steps(d, err);
		window_of_steps(d);
	} else if (c->range_to_ns) {
		d->options.from_ns = c->range_from_ns;
		d->options.to_ns = c->range_to_ns;
		snprintf(d->window, sizeof(d->window), "slow_node_detection_range_times");
	} else if (c->slow_node_detection_time_span_hours > 0) {
		d->options.span_ns = (int64_t)(c->slow_node_detection_time_span_hours * 3600e9);
		snprintf(d->window, sizeof(d->window), "the last %g hours", c->slow_node_detection_time_span_hours);
	}
	return ret;
}

int diagnose_ranks(struct diagnosis *d, struct st_err *err)
{
	struct localize_also also = { .config = d->config };
	int ret = choose_window(d, err);

	if (ret < 0)
		return ret;
	d->options.off_kinds = d->config->off_kinds;
	d->options.hang_mins = d->hang_mins > 0 ? d->hang_mins : d->config->failslow.hang_times_mins_thr;
	d->options.until_ns = d->until_ns ? d->until_ns : d->records->capture_end_ns;
	if (is_documented(d->config)) {
		d->documented = slowrank_new(d->config, d->metrics, d->records->session, err);
		if (!d->documented)
			return -errno;
		slowrank_options(d->documented, &d->options);
		also.documented = d->documented;
	}
	d->loc = localize_new(&d->options);
	if (!d->loc || localize_feed(d->loc, d->records, &also) < 0 || localize_judge(d->loc, &d->ranks) < 0 ||
	    evidence_find(d->loc, &d->ranks, d->records) < 0)
		return err_set(err, -ENOMEM, "out of memory");
	return 0;
}

static void forget_ranks(struct diagnosis *d)
{
	localize_free(d->loc);
	d->loc = NULL;
	d->ranks = (struct loc_result){ .verdict = LOC_NO_DATA };
	d->hang_mins = 0;
}

int diagnose_early_hang(struct diagnosis *d, struct st_err *err)
{
	const struct failslow_result *s = &d->steps;
	struct loc_options asked = d->options;
	int ret;

	if (!d->judged || s->type == FAILSLOW_HANG || d->log || is_documented(d->config) ||
	    s->silent_ms < EARLY_HANG_MS || s->silent_ms < EARLY_HANG_STEPS * s->longest_ms)
		return 0;
	d->hang_mins = s->silent_ms / 60e3 / 2;
	ret = diagnose_ranks(d, err);
	if (!ret && d->ranks.verdict == LOC_FOUND && d->ranks.findings[0].kind == LOC_HANG) {
		failslow_hang(d->fs, &d->steps);
		return 1;
	}
	forget_ranks(d);
	d->options = asked;
	return ret;
}

int diagnose_files(const struct diagnosis *d, struct st_err *err)
{
	int ret = 0;

	if (d->config->debug_data && d->documented && d->debug_dir)
		ret = debug_csv(d->documented, d->debug_dir, err);
	if (!ret && d->config->use_plot)
		ret = debug_plots(d->loc, &d->ranks, d->config->save_image ? d->config->save_image : "image", err);
	return ret;
}

void diagnosis_fini(struct diagnosis *d)
{
	failslow_free(d->fs);
	localize_free(d->loc);
	slowrank_free(d->documented);
	d->fs = NULL;
	d->loc = NULL;
	d->documented = NULL;
}
