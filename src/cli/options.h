/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The one option grammar of every command: a table of rows gives parsing, checks, `--help` and the manual page.
 * `--key value`, `--key=value`, `-k value`; `_` and `-` are alike; `--` ends the options. Values are checked while
 * parsing, so that the getters below cannot fail; asking for a name that is not in the table is a programmer's mistake
 * (assert).
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
	OPT_END,
	OPT_FLAG, /* --sched, also --sched=on|off */
	OPT_TEXT,
	OPT_U64,
	OPT_SEC, /* seconds, decimals allowed */
	OPT_BYTES, /* 4096, 64K, 2G */
	OPT_WORD /* one of the words in .value, `db|json|perfetto` */
};

/** struct option_spec - one row; a table ends with { .kind = OPT_END } */
struct option_spec {
	const char *name; /* without dashes, words joined by `-`: "record-time" */
	char letter; /* short form, 0 = none */
	enum option_kind kind;
	const char *value; /* placeholder in the help, "FILE"; OPT_WORD: the valid words; OPT_FLAG: NULL */
	const char *initial; /* default, shown in the help; NULL = none */
	const char *help; /* one sentence without a full stop; NULL = hidden */
};

#define OPTIONS_MAX_SET 256

/** struct options - a parsed command line; texts point into argv */
struct options {
	const struct option_spec *specs;
	struct {
		const struct option_spec *spec;
		const char *value; /* "1" or "0" for OPT_FLAG */
	} set[OPTIONS_MAX_SET]; /* in the order given */
	size_t set_count;
	const char **words; /* the plain words, in order; options_free() */
	size_t word_count;
	bool json; /* --json */
};

/**
 * options_parse - read argv[0..argc) (without the command's name)
 * @specs: the command's table; --help, --json, --version are the frame's
 * @verbatim: true: everything from the first plain word on is a word, options of another program included
 *
 * Return: 0, -EINVAL with @err naming the option and what is valid, -ENOMEM. options_free() in any case.
 */
int options_parse(struct options *opts, const struct option_spec *specs, bool verbatim, int argc, char **argv,
		  struct st_err *err);
void options_free(struct options *opts);

/** options_text - last value given, else the default, else NULL. */
const char *options_text(const struct options *opts, const char *name);

/** options_given - was it on the command line (defaults do not count)? */
bool options_given(const struct options *opts, const char *name);

/** options_nth - the n-th value (from 0) of an option that may be repeated, or NULL. Defaults do not count. */
const char *options_nth(const struct options *opts, const char *name, size_t n);

/** options_flag - OPT_FLAG: on or off. */
bool options_flag(const struct options *opts, const char *name);

/** options_u64 - OPT_U64 and OPT_BYTES (bytes), OPT_SEC (nanoseconds); @otherwise when neither given nor defaulted. */
uint64_t options_u64(const struct options *opts, const char *name, uint64_t otherwise);

/** options_frame - the rows that every command has: --json, --help, --version. */
const struct option_spec *options_frame(void);

/** options_help - print the table's rows as help. */
void options_help(const struct option_spec *specs, FILE *out);

#endif
