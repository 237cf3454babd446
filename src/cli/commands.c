/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The commands of `systrace` (one row each) and the frame around every one of them: --help by example, --man, option
 * parsing, messages, and the check that stdout really took the output. main() of both programs calls it.
 */
#include "cli/command.h"

#include "base/near.h"
#include "cli/man.h"
#include "cli/term.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* --- the commands: one line each, in the order of the list; C(name) is cmd_<name> of cmd_<name>.c ------------------ */

#define COMMANDS(C) \
	C(convert)  \
	C(analyze)  \
	C(failslow) \
	C(localize) \
	C(record)   \
	C(pidmap)   \
	C(probe)    \
	C(recover)  \
	C(collect)  \
	C(fold)     \
	C(doctor)

/* The kinds of `systrace convert`, likewise: C(name) is cmd_convert_<name> of cmd_convert_<name>.c. */
#define CONVERT_KINDS(C) \
	C(timeline)      \
	C(mspti)         \
	C(io)            \
	C(gil)           \
	C(mutex)         \
	C(mem)           \
	C(osprobe)       \
	C(ftrace)

#define DECLARE_COMMAND(name) extern const struct command cmd_##name;
#define DECLARE_KIND(name) extern const struct command cmd_convert_##name;
#define COMMAND_ROW(name) &cmd_##name,
#define KIND_ROW(name) &cmd_convert_##name,

COMMANDS(DECLARE_COMMAND)
CONVERT_KINDS(DECLARE_KIND)

const struct command *const commands[] = { COMMANDS(COMMAND_ROW) NULL };
const struct command *const convert_kinds[] = { CONVERT_KINDS(KIND_ROW) NULL };

const struct command cmd_convert = {
	.name = "convert",
	.summary = "turn recorded files into timelines, databases and flame graphs",
	.kinds = convert_kinds,
};

/* --- messages ------------------------------------------------------------------------------------------------------- */

static const char *running = "systrace"; /* full name of the running command, for messages */

void cmd_running(const char *name)
{
	running = name;
}

static void message(const char *label, enum term_colour colour, const char *format, va_list ap)
{
	fflush(stdout);
	fprintf(stderr, "%s: %s%s%s", program_invocation_short_name, term_on(stderr, colour), label, term_off(stderr));
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
}

int cmd_error(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	message("error: ", TERM_RED, format, ap);
	va_end(ap);
	return CMD_ERROR;
}

int cmd_usage(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	message("error: ", TERM_RED, format, ap);
	va_end(ap);
	fprintf(stderr, "See: %s --help\n", running);
	return CMD_USAGE;
}

int cmd_nothing(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	message("", TERM_PLAIN, format, ap);
	va_end(ap);
	return CMD_NOTHING;
}

void cmd_note(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	message("note: ", TERM_YELLOW, format, ap);
	va_end(ap);
}

/* --- help ------------------------------------------------------------------------------------------------------------- */

static void list_rows(const struct command *const *rows)
{
	size_t wide = 0;

	for (size_t i = 0; rows[i]; i++)
		if (!rows[i]->hidden && strlen(rows[i]->name) > wide)
			wide = strlen(rows[i]->name);
	for (size_t i = 0; rows[i]; i++)
		if (!rows[i]->hidden)
			printf("  %-*s  %s\n", (int)wide, rows[i]->name, rows[i]->summary);
}

static void heading(const char *text)
{
	printf("\n%s%s%s\n", term_on(stdout, TERM_BOLD), text, term_off(stdout));
}

static void print_help(const struct command *cmd, const char *name)
{
	printf("%s - %s\n", name, cmd->summary);
	heading("USAGE");
	printf("  %s %s\n", name, cmd->kinds ? "<kind> [options]" : cmd->usage ? cmd->usage : "");
	if (cmd->about)
		printf("\n%s", cmd->about);
	if (cmd->examples) {
		heading("EXAMPLES");
		fputs(cmd->examples, stdout);
	}
	if (cmd->kinds) {
		heading("KINDS");
		list_rows(cmd->kinds);
		printf("\nEach has a help of its own: %s <kind> --help\n", name);
		return;
	}
	heading("OPTIONS");
	options_help(cmd->options, stdout);
	printf("\nExit status: 0 done, 1 error, 2 wrong usage, 3 nothing found.\n");
}

/* --- manual pages -------------------------------------------------------------------------------------------------- */

static void print_man(const struct command *cmd, const char *name)
{
	man_head(name, cmd->summary);
	fputs(".SH SYNOPSIS\n.B ", stdout);
	man_text(name);
	putchar('\n');
	man_text(cmd->kinds ? "<kind> [options]" : cmd->usage ? cmd->usage : "");
	fputs("\n.SH DESCRIPTION\n", stdout);
	man_text(cmd->about ? cmd->about : cmd->summary);
	putchar('\n');
	for (size_t i = 0; cmd->kinds && cmd->kinds[i]; i++) {
		fputs(".TP\n.B ", stdout);
		man_text(cmd->kinds[i]->name);
		putchar('\n');
		man_text(cmd->kinds[i]->summary);
		putchar('\n');
	}
	if (!cmd->kinds)
		man_options(cmd->options);
	if (cmd->examples) {
		fputs(".SH EXAMPLES\n.nf\n", stdout);
		man_text(cmd->examples);
		fputs(".fi\n", stdout);
	}
	man_exit_status();
}

/* --- running ------------------------------------------------------------------------------------------------------------ */

static int unknown_kind(const struct command *cmd, const char *name, const char *kind)
{
	struct near near = { .word = kind };
	char kinds[256] = "";
	size_t used = 0;

	for (size_t i = 0; cmd->kinds[i]; i++) {
		near_offer(&near, cmd->kinds[i]->name);
		if (used < sizeof(kinds))
			used += (size_t)snprintf(kinds + used, sizeof(kinds) - used, "%s%s", i ? ", " : "",
						 cmd->kinds[i]->name);
	}
	if (near.best)
		return cmd_usage("there is no %s '%.60s'; did you mean %s %s?", name, kind, name, near.best);
	return cmd_usage("there is no %s '%.60s'; the kinds are %s", name, kind, kinds);
}

static int run_kind(const struct command *cmd, const char *name, int argc, char **argv)
{
	if (argc == 0)
		return cmd_usage("%s needs a kind", name);
	if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
		print_help(cmd, name);
		return CMD_OK;
	}
	if (strcmp(argv[0], "--man") == 0) {
		print_man(cmd, name);
		return CMD_OK;
	}
	for (size_t i = 0; cmd->kinds[i]; i++)
		if (near_same(cmd->kinds[i]->name, argv[0]))
			return command_main(cmd->kinds[i], name, argc - 1, argv + 1);
	return unknown_kind(cmd, name, argv[0]);
}

static int run_parsed(const struct command *cmd, const char *name, const struct options *opts)
{
	if (options_given(opts, "help")) {
		print_help(cmd, name);
		return CMD_OK;
	}
	if (options_given(opts, "version")) {
		puts("sysTrace " ST_VERSION);
		return CMD_OK;
	}
	if (opts->word_count < cmd->min_words)
		return cmd_usage("%s %s", name, cmd->usage ? cmd->usage : "");
	if (opts->word_count > cmd->max_words)
		return cmd_usage("unexpected '%.60s'", opts->words[cmd->max_words]);
	return cmd->run(opts);
}

/* Success is only claimed once every byte of the output is written. */
static int finish(int status)
{
	int ret = term_finish();

	if (ret < 0 && status != CMD_USAGE)
		return cmd_error("cannot write the output: %s", strerror(-ret));
	return status;
}

int command_main(const struct command *cmd, const char *prefix, int argc, char **argv)
{
	struct options opts = { 0 };
	struct st_err err = { 0 };
	char name[96];
	int status;

	snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix ? " " : "", cmd->name);
	running = name;
	if (argc == 1 && strcmp(argv[0], "--man") == 0 && !cmd->kinds) {
		print_man(cmd, name);
		status = CMD_OK;
	} else if (cmd->kinds) {
		status = run_kind(cmd, name, argc, argv);
	} else if (options_parse(&opts, cmd->options, cmd->verbatim, argc, argv, &err) < 0) {
		status = options_given(&opts, "help") ? run_parsed(cmd, name, &opts) : cmd_usage("%s", err.text);
	} else {
		status = run_parsed(cmd, name, &opts);
	}
	options_free(&opts);
	status = finish(status);
	running = "systrace";
	return status;
}
