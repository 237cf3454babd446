/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Help of sysTrace_cli, made from the plugin table (wire/plugin_spec.h) and the table of actions, so that it cannot say
 * anything else than what is checked.
 */
#ifndef CLI_CLI_HELP_H
#define CLI_CLI_HELP_H

#include "cli/options.h"
#include "wire/plugin_spec.h"

/** struct cli_action - one action of sysTrace_cli; the table is in sysTrace_cli.c and ends with a NULL name */
struct cli_action {
	const char *name;
	const char *help;
	uint16_t verb; /* enum ctl_verb */
	bool takes_plugin;
	bool takes_params;
	int (*run)(const struct cli_action *action, const struct options *opts);
};

/** cli_help - the whole help text, headings and lines as documented. */
void cli_help(const struct cli_action *actions, const struct option_spec *options);

/** cli_help_plugin - one plugin's parameters with what each accepts, and examples. */
void cli_help_plugin(enum plugin_id id);

/** cli_man - sysTrace_cli(1) as troff. */
void cli_man(const struct cli_action *actions, const struct option_spec *options);

#endif
