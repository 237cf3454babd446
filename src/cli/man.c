/* SPDX-License-Identifier: MulanPSL-2.0 */
/* troff output; see man.h. */
#include "cli/man.h"

#include <stdio.h>

void man_text(const char *text)
{
	bool line_start = true;

	for (; *text; text++) {
		if (line_start && (*text == '.' || *text == '\''))
			fputs("\\&", stdout);
		if (*text == '\\')
			fputs("\\e", stdout);
		else if (*text == '-')
			fputs("\\-", stdout);
		else
			putchar(*text);
		line_start = *text == '\n';
	}
}

void man_head(const char *name, const char *summary)
{
	char page[96];

	snprintf(page, sizeof(page), "%s", name);
	for (char *at = page; *at; at++)
		if (*at == ' ')
			*at = '-';
	printf(".TH \"%s\" 1 \"\" \"sysTrace " ST_VERSION "\" \"sysTrace\"\n.SH NAME\n", page);
	man_text(page);
	fputs(" \\- ", stdout);
	man_text(summary);
	putchar('\n');
}

static void man_option(const struct option_spec *row)
{
	fputs(".TP\n.B ", stdout);
	if (row->letter)
		printf("\\-%c, ", row->letter);
	fputs("\\-\\-", stdout);
	man_text(row->name);
	if (row->value) {
		putchar('=');
		man_text(row->value);
	}
	putchar('\n');
	man_text(row->help);
	if (row->initial && *row->initial) {
		fputs(" (default: ", stdout);
		man_text(row->initial);
		putchar(')');
	}
	putchar('\n');
}

void man_options(const struct option_spec *specs)
{
	const struct option_spec *tables[] = { specs, options_frame() };

	fputs(".SH OPTIONS\n", stdout);
	for (size_t i = 0; i < 2; i++)
		for (const struct option_spec *row = tables[i]; row && row->kind != OPT_END; row++)
			if (row->help)
				man_option(row);
}

void man_exit_status(void)
{
	fputs(".SH EXIT STATUS\n0 done, 1 error, 2 wrong usage, 3 nothing found.\n", stdout);
}
