/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Parsing and printing of option tables; see options.h for the grammar. */
#include "cli/options.h"

#include "base/near.h"
#include "base/num.h"
#include "cli/term.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 32

/* The frame's own options: parsed everywhere, so that a near miss of them gets a hint, too. */
static const struct option_spec frame_options[] = {
	{ "json", 0, OPT_FLAG, NULL, NULL, "Print results as JSON, for programs" },
	{ "help", 'h', OPT_FLAG, NULL, NULL, "Print this text" },
	{ "version", 0, OPT_FLAG, NULL, NULL, "Print the version" },
	{ .kind = OPT_END },
};

static const struct option_spec no_options[] = { { .kind = OPT_END } };

static const struct option_spec *find_name(const struct option_spec *row, const char *name)
{
	for (; row->kind != OPT_END; row++)
		if (near_same(row->name, name))
			return row;
	return NULL;
}

static const struct option_spec *find_letter(const struct option_spec *row, char letter)
{
	for (; row->kind != OPT_END; row++)
		if (row->letter == letter)
			return row;
	return NULL;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static bool word_in(const char *value, const char *words)
{
	size_t want = strlen(value);

	while (*words) {
		size_t len = strcspn(words, "|");

		if (len == want && strncmp(words, value, len) == 0)
			return true;
		words += len + (words[len] == '|');
	}
	return false;
}

static int check_value(const struct option_spec *spec, const char *value, struct st_err *err)
{
	uint64_t number;

	switch (spec->kind) {
	case OPT_U64:
		if (num_u64(value, &number) < 0)
			return err_set(err, -EINVAL, "--%s=%.60s: it must be a whole number", spec->name, value);
		return 0;
	case OPT_SEC:
		if (num_sec_ns(value, &number) < 0)
			return err_set(err, -EINVAL, "--%s=%.60s: it must be a number of seconds, such as 10 or 2.5",
				       spec->name, value);
		return 0;
	case OPT_BYTES:
		if (num_bytes(value, &number) < 0)
			return err_set(err, -EINVAL, "--%s=%.60s: it must be a size, such as 4096, 64K or 2G",
				       spec->name, value);
		return 0;
	case OPT_WORD:
		if (!word_in(value, spec->value))
			return err_set(err, -EINVAL, "--%s=%.60s: it must be one of %s", spec->name, value,
				       spec->value);
		return 0;
	case OPT_TEXT:
		if (*value == '\0')
			return err_set(err, -EINVAL, "--%s has an empty value", spec->name);
		return 0;
	default:
		return 0;
	}
}

static int add_set(struct options *opts, const struct option_spec *spec, const char *value, struct st_err *err)
{
	int ret = check_value(spec, value, err);

	if (ret < 0)
		return ret;
	if (opts->set_count == OPTIONS_MAX_SET)
		return err_set(err, -EINVAL, "more than %d options", OPTIONS_MAX_SET);
	opts->set[opts->set_count].spec = spec;
	opts->set[opts->set_count].value = value;
	opts->set_count++;
	return 0;
}

static int add_flag(struct options *opts, const struct option_spec *spec, const char *value, struct st_err *err)
{
	bool yes = true;

	if (value && num_bool(value, &yes) < 0)
		return err_set(err, -EINVAL, "--%s=%.60s: it is on or off", spec->name, value);
	if (spec == &frame_options[0]) {
		opts->json = yes;
		return 0;
	}
	return add_set(opts, spec, yes ? "1" : "0", err);
}

/* --- parsing ------------------------------------------------------------------------------------------------------ */

static int unknown_option(const struct option_spec *specs, const char *name, struct st_err *err)
{
	struct near near = { .word = name };

	for (const struct option_spec *row = specs; row->kind != OPT_END; row++)
		near_offer(&near, row->name);
	for (const struct option_spec *row = frame_options; row->kind != OPT_END; row++)
		near_offer(&near, row->name);
	if (near.best)
		return err_set(err, -EINVAL, "there is no option --%.60s; did you mean --%s?", name, near.best);
	return err_set(err, -EINVAL, "there is no option --%.60s", name);
}

/* One `--name`, `--name=value` or `--name value`; *at is moved to the last argument used. */
static int parse_long(struct options *opts, int argc, char **argv, int *at, struct st_err *err)
{
	const char *text = argv[*at] + 2;
	const char *value = strchr(text, '=');
	const struct option_spec *spec;
	char name[64];

	snprintf(name, sizeof(name), "%.*s", value ? (int)(value - text) : (int)strlen(text), text);
	value = value ? value + 1 : NULL;
	spec = find_name(opts->specs, name);
	if (!spec)
		spec = find_name(frame_options, name);
	if (!spec)
		return unknown_option(opts->specs, name, err);
	if (spec->kind == OPT_FLAG)
		return add_flag(opts, spec, value, err);
	if (!value) {
		if (*at + 1 >= argc)
			return err_set(err, -EINVAL, "--%s needs a value: --%s=%s", spec->name, spec->name,
				       spec->value);
		value = argv[++*at];
	}
	return add_set(opts, spec, value, err);
}

/* `-o FILE`, `-oFILE` or `-h` */
static int parse_short(struct options *opts, int argc, char **argv, int *at, struct st_err *err)
{
	const char *text = argv[*at] + 1;
	const struct option_spec *spec = find_letter(opts->specs, *text);

	if (!spec)
		spec = find_letter(frame_options, *text);
	if (!spec)
		return err_set(err, -EINVAL, "there is no option -%c", *text);
	if (spec->kind == OPT_FLAG) {
		if (text[1])
			return err_set(err, -EINVAL, "-%.30s: give one-letter options one by one", text);
		return add_flag(opts, spec, NULL, err);
	}
	if (text[1])
		return add_set(opts, spec, text + 1, err);
	if (*at + 1 >= argc)
		return err_set(err, -EINVAL, "-%c needs a value: --%s=%s", *text, spec->name, spec->value);
	return add_set(opts, spec, argv[++*at], err);
}

int options_parse(struct options *opts, const struct option_spec *specs, bool verbatim, int argc, char **argv,
		  struct st_err *err)
{
	bool only_words = false;
	int ret = 0;

	*opts = (struct options){ .specs = specs ? specs : no_options };
	opts->words = calloc((size_t)argc + 1, sizeof(*opts->words));
	if (!opts->words)
		return err_set(err, -ENOMEM, "out of memory");
	for (int i = 0; i < argc && ret == 0; i++) {
		if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
			opts->words[opts->word_count++] = argv[i];
			only_words |= verbatim;
		} else if (strcmp(argv[i], "--") == 0) {
			only_words = true;
		} else if (argv[i][1] == '-') {
			ret = parse_long(opts, argc, argv, &i, err);
		} else {
			ret = parse_short(opts, argc, argv, &i, err);
		}
	}
	return ret;
}

void options_free(struct options *opts)
{
	free(opts->words);
	opts->words = NULL;
	opts->word_count = 0;
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static const struct option_spec *must_find(const struct options *opts, const char *name)
{
	const struct option_spec *spec = find_name(opts->specs, name);

	if (!spec)
		spec = find_name(frame_options, name);
	assert(spec);
	return spec;
}

static const char *last_value(const struct options *opts, const struct option_spec *spec)
{
	for (size_t i = opts->set_count; i-- > 0;)
		if (opts->set[i].spec == spec)
			return opts->set[i].value;
	return NULL;
}

bool options_given(const struct options *opts, const char *name)
{
	return last_value(opts, must_find(opts, name)) != NULL;
}

const char *options_text(const struct options *opts, const char *name)
{
	const struct option_spec *spec = must_find(opts, name);
	const char *value = last_value(opts, spec);

	return value ? value : spec->initial;
}

const char *options_nth(const struct options *opts, const char *name, size_t n)
{
	const struct option_spec *spec = must_find(opts, name);

	for (size_t i = 0; i < opts->set_count; i++)
		if (opts->set[i].spec == spec && n-- == 0)
			return opts->set[i].value;
	return NULL;
}

bool options_flag(const struct options *opts, const char *name)
{
	const char *value = options_text(opts, name);
	bool yes = false;

	return value && num_bool(value, &yes) == 0 && yes;
}

uint64_t options_u64(const struct options *opts, const char *name, uint64_t otherwise)
{
	const struct option_spec *spec = must_find(opts, name);
	const char *value = options_text(opts, name);
	uint64_t number = otherwise;
	int ret;

	if (!value)
		return otherwise;
	if (spec->kind == OPT_SEC)
		ret = num_sec_ns(value, &number);
	else if (spec->kind == OPT_BYTES)
		ret = num_bytes(value, &number);
	else
		ret = num_u64(value, &number);
	assert(ret == 0); /* given values were checked; a default that fails is a mistake in the table */
	return ret == 0 ? number : otherwise;
}

/* --- help --------------------------------------------------------------------------------------------------------- */

/* Words of @text from HELP_COLUMN on, in lines of @width columns. */
static void wrap(const char *text, int width, FILE *out)
{
	int column = HELP_COLUMN;

	while (*text) {
		int len = (int)strcspn(text, " ");

		if (column > HELP_COLUMN && column + 1 + len > width) {
			fprintf(out, "\n%*s", HELP_COLUMN, "");
			column = HELP_COLUMN;
		} else if (column > HELP_COLUMN) {
			fputc(' ', out);
			column++;
		}
		fprintf(out, "%.*s", len, text);
		column += len;
		text += len;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

static void help_row(const struct option_spec *row, FILE *out)
{
	char dash[12] = "      --", head[96], text[512];
	int len;

	if (!row->help)
		return;
	if (row->letter)
		snprintf(dash, sizeof(dash), "  -%c, --", row->letter);
	len = snprintf(head, sizeof(head), "%s%s%s%s", dash, row->name, row->value ? "=" : "",
		       row->value ? row->value : "");
	fprintf(out, "%-*s", HELP_COLUMN, head);
	if (len >= HELP_COLUMN)
		fprintf(out, "\n%*s", HELP_COLUMN, "");
	if (row->initial && *row->initial)
		snprintf(text, sizeof(text), "%s (default: %s)", row->help, row->initial);
	else
		snprintf(text, sizeof(text), "%s", row->help);
	wrap(text, term_width(), out);
}

const struct option_spec *options_frame(void)
{
	return frame_options;
}

void options_help(const struct option_spec *specs, FILE *out)
{
	for (const struct option_spec *row = specs ? specs : no_options; row->kind != OPT_END; row++)
		help_row(row, out);
	for (const struct option_spec *row = frame_options; row->kind != OPT_END; row++)
		help_row(row, out);
}
