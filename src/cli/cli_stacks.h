/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `sysTrace_cli stacks`: asks agents for the stacks of their processes' threads, gives addresses their names, prints them.
 * cli_stacks_of() is for whoever wants one process's stacks without the command, such as a diagnosis that meets a hang.
 */
#ifndef CLI_CLI_STACKS_H
#define CLI_CLI_STACKS_H

#include "base/err.h"
#include "cli/ctl_client.h"
#include "cli/targets.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** struct stacks_query - what is asked, and how it is shown */
struct stacks_query {
	uint64_t timeout_ns; /* for one process */
	const char *const *symbol_dirs; /* --symbols; may be NULL */
	size_t symbol_dir_count;
	bool json; /* one object for each process, without line ends around it; else text */
};

/**
 * cli_stacks_print - one agent's threads
 * @target: with a socket
 *
 * As root for a process of another user the files that symbols come from are read as that user; of a container's process only
 * those of --symbols are. Context: tool. Return: 0 and everything is on @out, or -errno with @err, and nothing is.
 */
int cli_stacks_print(const struct target *target, const struct stacks_query *query, FILE *out, struct st_err *err);

/** cli_stacks_of - the same for a process id. Return: also -ESRCH when no agent is there (@err says why). */
int cli_stacks_of(pid_t pid, const struct stacks_query *query, FILE *out, struct st_err *err);

/**
 * cli_stacks_all - of many processes, one after the other: while one is asked the others go on
 * @calls: their answers to CTL_LIST, which say who answers at all and what rank it is
 * @ranks: only these, "0-3,8"; NULL = all
 *
 * Prints on stdout. Context: tool. Return: enum cmd_exit.
 */
int cli_stacks_all(const struct ctl_call *calls, size_t count, const char *ranks, const struct stacks_query *query);

#endif
