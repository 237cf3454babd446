/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace probe`: be a recorder outside the job (probe/frame.h does the work). sysTrace_cli starts it, detached; by hand
 * it stays in the foreground and waits for orders, or tells what a running one does.
 */
#include "cli/command.h"

#include "cli/probe_order.h"
#include "probe/frame.h"

#include <string.h>

static const struct option_spec probe_options[] = {
	{ "status", 's', OPT_FLAG, NULL, NULL, "show what the probes of this host do, instead of being one" },
	{ "ready-fd", 0, OPT_U64, "FD", NULL, NULL },
	{ .kind = OPT_END },
};

static int print_status(const struct options *opts)
{
	size_t count;

	if (opts->json)
		fputs("{\"probes\": [", stdout);
	count = opts->json ? probe_report_json(3000000000ull) : probe_report_print(3000000000ull);
	if (opts->json)
		puts("]}");
	return count ? CMD_OK : cmd_nothing("no probe runs; sysTrace_cli enable CPU starts one");
}

static int no_group(const char *name)
{
	char groups[128] = "";

	for (size_t i = 0; probe_kinds[i]; i++)
		if (!i ||
		    strcmp(probe_kinds[i]->group, probe_kinds[i - 1]->group) != 0) /* those of a group are neighbours */
			snprintf(groups + strlen(groups), sizeof(groups) - strlen(groups), "%s%s", i ? ", " : "",
				 probe_kinds[i]->group);
	if (!groups[0])
		return cmd_error(
			"this build has no probe: it was made without libbpf, clang or bpftool (docs/build.md)");
	return cmd_usage("there is no probe '%.40s'; the probes are %s", name, groups);
}

static int run_probe(const struct options *opts)
{
	int ready = options_given(opts, "ready-fd") ? (int)options_u64(opts, "ready-fd", 0) : -1;
	struct st_err err = { 0 };
	bool known = false;

	if (options_flag(opts, "status"))
		return print_status(opts);
	if (opts->word_count != 1)
		return cmd_usage("say which probe: systrace probe os");
	for (size_t i = 0; probe_kinds[i]; i++)
		known |= strcmp(probe_kinds[i]->group, opts->words[0]) == 0;
	if (!known)
		return no_group(opts->words[0]);
	if (probe_run(opts->words[0], ready, &err) < 0)
		return cmd_error("%s", strcmp(err.text, "running") == 0 ? "such a probe runs already on this host"
									: err.text);
	return CMD_OK;
}

const struct command cmd_probe = {
	.name = "probe",
	.summary = "record from outside the job what needs root (started by sysTrace_cli)",
	.usage = "<group> | --status",
	.about =
		"sysTrace_cli enable CPU starts it, detached, one for each group on a host. It serves every job that asks for\n"
		"it, writes into the jobs' dump directories in the name of their users, and ends with its last capture. The\n"
		"groups are os (plugins CPU and Memory), lock (GIL and Mutex of processes without an agent), ftrace, trace and\n"
		"cachemiss. Its log is systrace_probe_<group>.log in SYSTRACE_LOG_PATH.\n",
	.examples =
		"  sysTrace_cli enable CPU duration=10   # the usual way: starts the probe and tells it what to record\n"
		"  systrace probe --status               # what the probes of this host record, and what that costs\n"
		"  systrace probe os                     # be one, in the foreground, until nothing is left to do\n",
	.options = probe_options,
	.max_words = 1,
	.run = run_probe,
};
