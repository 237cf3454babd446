/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Prints the plugin table for people; see cli_help.h. The layout is the user guide's (7.2.3). */
#include "cli/cli_help.h"

#include "cli/man.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>

#define RULE "========================================================="
#define HELP_COLUMN 20 /* where the dash of a parameter line stands */

/* One line per plugin, in the table's order; the guide's own, its misprints corrected. */
static const char *const examples[PLUGIN_COUNT] = {
	[PLUGIN_MSPTI] = "enable MSPTI event=marker,kernel,api duration=10",
	[PLUGIN_IO] = "enable IO duration=10",
	[PLUGIN_CPU] = "enable CPU duration=10",
	[PLUGIN_MEMORY] = "enable Memory duration=10",
	[PLUGIN_CACHEMISS] = "enable CacheMiss duration=10 args=\"-p 12345 -e cache-misses\"",
	[PLUGIN_GIL] = "enable GIL duration=10",
	[PLUGIN_MUTEX] = "enable Mutex duration=10",
	[PLUGIN_FTRACE] =
		"enable Ftrace duration=10 cpu_list=0-31 events=\"raw_syscalls/sys_enter,raw_syscalls/sys_exit\"",
	[PLUGIN_TRACE] = "enable Trace args=\"record -e sched sleep 5\"",
	[PLUGIN_HBM] = "enable HBM duration=10",
};

/* The order of the documented examples, and what else is worth showing. */
static const char *const all_examples[] = {
	"enable MSPTI event=marker,kernel,api duration=10",
	"enable IO duration=10",
	"enable Memory duration=10",
	"enable CacheMiss duration=10 args=\"-p 12345 -e cache-misses\"",
	"enable GIL duration=10",
	"enable Trace args=\"record -e sched sleep 5\"",
	"disable CPU",
	"enable Mutex duration=10",
	"enable CacheMiss args=\" -e branch-misses,cache-misses,cache-references --timeout 5000\"",
	"enable Ftrace duration=10 cpu_list=0-31 events=\"syscalls/sys_enter_futex,syscalls/sys_exit_futex\"",
	"enable HBM duration=10",
	"enable IO start_step=100 steps=5",
	"status",
	"list --json",
	"dump --pid 1868164",
	"stacks --rank 3",
	"disable stages",
	NULL,
};

static void param_line(const struct param_spec *row, int indent)
{
	int pad = HELP_COLUMN - indent - (int)strlen(row->syntax);

	printf("%*s%s%*s- %s\n", indent, "", row->syntax, pad > 1 ? pad : 1, "", row->help);
}

void cli_help(const struct cli_action *actions, const struct option_spec *options)
{
	puts(RULE "\nUSAGE:\n  sysTrace_cli <action> <plugin> [key=value ...]\n\nACTIONS:");
	for (; actions->name; actions++)
		printf("  %-8s %s\n", actions->name, actions->help);
	puts("\nCOMMON PARAMETERS:");
	for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
		param_line(row, 2);
	puts("\nPLUGINS & SPECIFIC PARAMETERS:");
	for (int id = 0; id < PLUGIN_COUNT; id++) {
		printf("  %-11s %s\n", plugin_specs[id].name, plugin_specs[id].help);
		for (const struct param_spec *row = plugin_specs[id].params; row->type != PARAM_END; row++)
			param_line(row, 4);
		putchar('\n');
	}
	puts("  stages      Always-on layer: Python stages, steps, sums of collectives (no parameters)\n");
	puts("OPTIONS:");
	options_help(options, stdout);
	puts("\nEXAMPLES:");
	for (size_t i = 0; all_examples[i]; i++)
		printf("  sysTrace_cli %s\n", all_examples[i]);
	puts(RULE);
}

static void heading(const char *text)
{
	printf("\n%s%s%s\n", term_on(stdout, TERM_BOLD), text, term_off(stdout));
}

void cli_help_plugin(enum plugin_id id)
{
	const struct plugin_spec *spec = &plugin_specs[id];

	printf("%s - %s\nrecorded by: %s\n", spec->name, spec->help, plugin_where_text(id));
	if (spec->params->type != PARAM_END)
		heading("PARAMETERS");
	for (const struct param_spec *row = spec->params; row->type != PARAM_END; row++)
		param_line(row, 2);
	heading("COMMON PARAMETERS");
	for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
		param_line(row, 2);
	heading("EXAMPLES");
	printf("  sysTrace_cli %s\n  sysTrace_cli disable %s\n", examples[id], spec->name);
}

static void man_param(const struct param_spec *row)
{
	fputs(".TP\n.B ", stdout);
	man_text(row->syntax);
	putchar('\n');
	man_text(row->help);
	putchar('\n');
}

void cli_man(const struct cli_action *actions, const struct option_spec *options)
{
	man_head("sysTrace_cli", "switch recording on and off in running jobs");
	fputs(".SH SYNOPSIS\n.B sysTrace_cli\n<action> <plugin> [key=value ...]\n.SH DESCRIPTION\n", stdout);
	man_text(
		"Finds every process of this host that was started with LD_PRELOAD=libsysTrace.so, sends the action to all of "
		"them at once and prints one line per process.\n");
	fputs(".SH ACTIONS\n", stdout);
	for (; actions->name; actions++) {
		fputs(".TP\n.B ", stdout);
		man_text(actions->name);
		putchar('\n');
		man_text(actions->help);
		putchar('\n');
	}
	fputs(".SH COMMON PARAMETERS\n", stdout);
	for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
		man_param(row);
	fputs(".SH PLUGINS\n", stdout);
	for (int id = 0; id < PLUGIN_COUNT; id++) {
		fputs(".SS ", stdout);
		man_text(plugin_specs[id].name);
		putchar('\n');
		man_text(plugin_specs[id].help);
		putchar('\n');
		for (const struct param_spec *row = plugin_specs[id].params; row->type != PARAM_END; row++)
			man_param(row);
	}
	man_options(options);
	fputs(".SH EXAMPLES\n.nf\n", stdout);
	for (size_t i = 0; all_examples[i]; i++) {
		man_text("sysTrace_cli ");
		man_text(all_examples[i]);
		putchar('\n');
	}
	fputs(".fi\n", stdout);
	man_exit_status();
}
