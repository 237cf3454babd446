/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * main() of `systrace`: finds the command named by the first word and hands the rest to the frame in commands.c. Without
 * a word, or with --help, it lists what there is.
 */
#include "base/near.h"
#include "cli/command.h"
#include "cli/man.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>

static void print_list(void)
{
	puts("systrace - tracing and diagnosis of AI training jobs\n");
	printf("%sUSAGE%s\n  systrace <command> [options]\n", term_on(stdout, TERM_BOLD), term_off(stdout));
	printf("\n%sCOMMANDS%s\n", term_on(stdout, TERM_BOLD), term_off(stdout));
	for (size_t i = 0; commands[i]; i++)
		if (!commands[i]->hidden)
			printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
	puts("\nEach command has a help with examples: systrace <command> --help\n"
	     "Running jobs are controlled with sysTrace_cli.");
}

/* Names only, one a line, kinds as "convert timeline": for completion, tests and the manual's build. */
static void print_names(void)
{
	for (size_t i = 0; commands[i]; i++) {
		if (commands[i]->hidden)
			continue;
		puts(commands[i]->name);
		for (size_t k = 0; commands[i]->kinds && commands[i]->kinds[k]; k++)
			printf("%s %s\n", commands[i]->name, commands[i]->kinds[k]->name);
	}
}

static void print_man(void)
{
	man_head("systrace", "tracing and diagnosis of AI training jobs");
	puts(".SH SYNOPSIS\n.B systrace\n<command> [options]\n.SH COMMANDS");
	for (size_t i = 0; commands[i]; i++) {
		if (commands[i]->hidden)
			continue;
		fputs(".TP\n.BR systrace\\-", stdout);
		man_text(commands[i]->name);
		puts(" (1)");
		man_text(commands[i]->summary);
		putchar('\n');
	}
	puts(".SH SEE ALSO\n.BR sysTrace_cli (1)");
}

static int unknown_command(const char *word)
{
	struct near near = { .word = word };

	for (size_t i = 0; commands[i]; i++)
		near_offer(&near, commands[i]->name);
	if (near.best)
		return cmd_usage("there is no command '%.60s'; did you mean %s?", word, near.best);
	return cmd_usage("there is no command '%.60s'", word);
}

static int finished(void)
{
	int ret = term_finish();

	return ret < 0 ? cmd_error("cannot write the output: %s", strerror(-ret)) : CMD_OK;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";

	if (argc < 2) {
		print_list();
		finished();
		return CMD_USAGE;
	}
	if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
		print_list();
		return finished();
	}
	if (strcmp(word, "--man") == 0) {
		print_man();
		return finished();
	}
	if (strcmp(word, "--version") == 0) {
		puts("sysTrace " ST_VERSION);
		return finished();
	}
	if (strcmp(word, "--list-commands") == 0 || strcmp(word, "--list_commands") == 0) {
		print_names();
		return finished();
	}
	for (size_t i = 0; commands[i]; i++)
		if (near_same(commands[i]->name, word))
			return command_main(commands[i], "systrace", argc - 2, argv + 2);
	return unknown_command(word);
}
