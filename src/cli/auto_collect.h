/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the service does by itself where a finding's cause cannot be told (auto_collect of the configuration): it runs the
 * very command that the finding asks for, waits until that capture is over, and has the ranks judged again. One at a time,
 * each for the seconds that the command says, and only so many in an hour.
 */
#ifndef CLI_AUTO_COLLECT_H
#define CLI_AUTO_COLLECT_H

#include "analyze/localize.h"

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

/** struct auto_collect - zero-initialise */
struct auto_collect {
	pid_t pid; /* command that runs, 0 = none */
	time_t since; /* of that */
	time_t due; /* when what was recorded is looked at, 0 = nothing was */
	bool done; /* a capture is over and was not reported yet */
	unsigned count; /* captures in the hour that began at hour */
	time_t hour;
	bool wanted; /* command shall be run */
	const char *command; /* literal */
	int rank; /* that it is for */
};

/** auto_collect_start - have what the costliest finding without a cause asks for run by the next auto_collect_poll(), which is
 * called with the service's own rights, while records are read with those of their owner */
void auto_collect_start(struct auto_collect *c, const struct loc_result *result);

/** auto_collect_poll - run what is wanted; has a capture come to its end? Then a pass should be made. Every few seconds. */
bool auto_collect_poll(struct auto_collect *c);

/** auto_collect_done - was there a capture since the last call, so that the result is told again? */
bool auto_collect_done(struct auto_collect *c);

/** auto_collect_stop - leave nothing running: a command still at work is ended, captures end by their duration */
void auto_collect_stop(struct auto_collect *c);

#endif
