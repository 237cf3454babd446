/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Prints what agents answered to `status` and `list`, as a table for people or as JSON. The keys of the answers are
 * documented in docs/formats/ctl.md.
 */
#ifndef CLI_CLI_STATUS_H
#define CLI_CLI_STATUS_H

#include "cli/ctl_client.h"

/** struct fleet - what was found and answered; .calls in the order of .targets->list, agents only */
struct fleet {
	const struct targets *targets;
	const struct ctl_call *calls;
	size_t call_count;
	bool chosen; /* --pid: say nothing of other processes */
};

/** cli_print_status - one row per process, then files and remarks. */
void cli_print_status(const struct fleet *fleet);

/** cli_print_list - one row per process, dormant ones included. */
void cli_print_list(const struct fleet *fleet);

/** cli_print_json - everything that was answered, for both. */
void cli_print_json(const struct fleet *fleet);

#endif
