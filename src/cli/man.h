/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Pieces of manual pages (troff) on stdout; the pages are made from the same tables as the help. Used by commands.c
 * (`systrace <command> --man`) and cli_help.c (`sysTrace_cli --man`).
 */
#ifndef CLI_MAN_H
#define CLI_MAN_H

#include "cli/options.h"

/** man_text - print text so that troff shows it as it is. */
void man_text(const char *text);

/** man_head - title and NAME section. @name: blanks become dashes ("systrace convert" -> systrace-convert). */
void man_head(const char *name, const char *summary);

/** man_options - OPTIONS section with the table's visible rows; @specs may be NULL. */
void man_options(const struct option_spec *specs);

/** man_exit_status - EXIT STATUS section, the same for every command. */
void man_exit_status(void);

#endif
