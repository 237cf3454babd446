/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a command of `systrace` is. Each src/cli/cmd_<name>.c exports one `const struct command cmd_<name>`, and has one
 * row in commands.c; the frame (commands.c) parses options, prints help and manual pages, checks that the output was
 * really written and turns errors into exit statuses, so that a command only works and reports.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/options.h"

/** enum cmd_exit - exit statuses of every program of ours */
enum cmd_exit {
	CMD_OK = 0,
	CMD_ERROR = 1,
	CMD_USAGE = 2,
	CMD_NOTHING = 3 /* nothing found: no agent, no data, nothing to recover */
};

struct command {
	const char *name;
	const char *summary; /* one line without a full stop, for the list of commands */
	const char *usage; /* what follows the name: "[--input FILE] [--output FILE]"; NULL with kinds */
	const char *about; /* what it does, in a paragraph or more; lines end with \n; NULL = summary suffices */
	const char *examples; /* lines "  command   # what it does\n"; --help prints them */
	const struct option_spec *options; /* NULL = none */
	const struct command *const *kinds; /* sub-commands (`convert timeline`), NULL-terminated; run is then NULL */
	size_t min_words, max_words; /* plain words it takes; SIZE_MAX = any number */
	bool verbatim; /* options_parse: words keep what looks like options */
	bool hidden; /* not in the list of commands */
	/* Return: enum cmd_exit. Errors were already printed with cmd_error(). */
	int (*run)(const struct options *opts);
};

/** commands - rows of `systrace`, NULL-terminated, in the order of the list. One line per command. */
extern const struct command *const commands[];

/** convert_kinds - rows of `systrace convert`, NULL-terminated. One line per kind. */
extern const struct command *const convert_kinds[];

/**
 * command_main - run one command: help, parse, run, check stdout
 * @prefix: as typed before its name, "systrace" or "systrace convert"
 * @argc, @argv: what follows the command's name
 *
 * Return: exit status.
 */
int command_main(const struct command *cmd, const char *prefix, int argc, char **argv);

/** cmd_running - name for the hint at --help, for programs that are not made of commands. Kept by reference. */
void cmd_running(const char *name);

/** cmd_error - print "systrace: <text>" on stderr (red "error" on terminals). Return: CMD_ERROR, for `return cmd_error(...)`. */
int cmd_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** cmd_usage - the same with a hint at --help. Return: CMD_USAGE. */
int cmd_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** cmd_nothing - the same. Return: CMD_NOTHING. */
int cmd_nothing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** cmd_note - a remark or warning on stderr that changes no exit status. */
void cmd_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
