/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Output for people: colours (terminals only, NO_COLOR honoured), a progress line on stderr (terminals only, and only
 * for what takes longer than two seconds), aligned tables, and the check that stdout really took what was printed.
 */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum term_colour { TERM_PLAIN, TERM_BOLD, TERM_DIM, TERM_RED, TERM_GREEN, TERM_YELLOW };

/** term_on - escape sequence that begins a colour on this stream, "" where colours are off; term_off ends it. */
const char *term_on(FILE *stream, enum term_colour colour);
const char *term_off(FILE *stream);

/** term_clean - replace control characters in place by `?`, line ends and tabs by a blank: texts of other users' processes go to an operator's terminal. */
char *term_clean(char *text);

/** term_width - columns of the terminal behind stdout, 100 when there is none. */
int term_width(void);

/** term_finish - flush stdout and check every byte was written. Return: 0, or -errno (-EIO, -ENOSPC, ...); EPIPE is 0. */
int term_finish(void);

/** struct progress - one line that is rewritten in place; zero-initialise, no output before 2 s or off a terminal */
struct progress {
	const char *what; /* "reading trace.dat" */
	uint64_t total; /* in the unit of progress_at(), 0 = unknown */
	uint64_t begin_ns, shown_ns;
	bool visible;
};

void progress_begin(struct progress *progress, const char *what, uint64_t total);
/** progress_at - cheap enough for every record batch (one clock read). @done: bytes, for the percentage and MB/s. */
void progress_at(struct progress *progress, uint64_t done);
/** progress_end - wipe the line. Always call it before printing results. */
void progress_end(struct progress *progress);

/** struct table - cells are collected, columns aligned at table_print(); numbers (right-aligned) by format '>' */
struct table {
	char **cells;
	size_t count, room;
	size_t columns;
	const char *align; /* one of '<' or '>' per column, for example "<>><" */
	bool failed; /* out of memory; table_print says so */
};

/** table_init - @columns columns; @align as above, kept by reference. */
void table_init(struct table *table, size_t columns, const char *align);
/** table_cell - next cell, row by row. A NUL-terminated UTF-8 text, copied. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** table_print - first row is the heading (bold on terminals); frees the cells. @indent: blanks before each line. */
void table_print(struct table *table, FILE *out, int indent);
/** table_drop - free the cells without printing. */
void table_drop(struct table *table);

/** term_json_string - print a text as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void term_json_string(FILE *out, const char *text);

#endif
