/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The option grammar that every command shares. */
#include "cli/options.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct option_spec specs[] = {
	{ "input", 'i', OPT_TEXT, "FILE", "trace.dat", "input" },
	{ "record-time", 0, OPT_SEC, "SEC", NULL, "time" },
	{ "bf-size", 0, OPT_U64, "KB", "40960", "buffer" },
	{ "limit", 0, OPT_BYTES, "SIZE", "64M", "limit" },
	{ "format", 'f', OPT_WORD, "db|json|perfetto", "db", "format" },
	{ "sched", 0, OPT_FLAG, NULL, NULL, "sched" },
	{ "quick", 'q', OPT_FLAG, NULL, "on", "quick" },
	{ .kind = OPT_END },
};

static struct options opts;
static struct st_err err;

static int parse_as(bool verbatim, char **argv)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	options_free(&opts);
	memset(&err, 0, sizeof(err));
	return options_parse(&opts, specs, verbatim, argc, argv, &err);
}

#define PARSE(...) parse_as(false, (char *[]){ __VA_ARGS__, NULL })
#define PARSE_VERBATIM(...) parse_as(true, (char *[]){ __VA_ARGS__, NULL })

static void values_and_words(void **state)
{
	assert_int_equal(PARSE("a", "--input", "x.dat", "--record-time=2.5", "b", "-f", "json", "--sched"), 0);
	assert_string_equal(options_text(&opts, "input"), "x.dat");
	assert_int_equal(options_u64(&opts, "record-time", 0), 2500000000ull);
	assert_string_equal(options_text(&opts, "format"), "json");
	assert_true(options_flag(&opts, "sched"));
	assert_int_equal(opts.word_count, 2);
	assert_string_equal(opts.words[0], "a");
	assert_string_equal(opts.words[1], "b");
	assert_false(opts.json);
}

static void defaults(void **state)
{
	assert_int_equal(PARSE("--json"), 0);
	assert_true(opts.json);
	assert_string_equal(options_text(&opts, "input"), "trace.dat");
	assert_false(options_given(&opts, "input"));
	assert_int_equal(options_u64(&opts, "record-time", 7), 7);
	assert_int_equal(options_u64(&opts, "bf-size", 0), 40960);
	assert_int_equal(options_u64(&opts, "limit", 0), 64 << 20);
	assert_false(options_flag(&opts, "sched"));
	assert_true(options_flag(&opts, "quick"));
	assert_null(options_nth(&opts, "input", 0));
}

static void underscore_and_dash_are_alike(void **state)
{
	assert_int_equal(PARSE("--record_time", "1", "--bf_size=5"), 0);
	assert_int_equal(options_u64(&opts, "record-time", 0), 1000000000ull);
	assert_int_equal(options_u64(&opts, "bf_size", 0), 5);
}

static void the_last_one_counts_but_all_are_kept(void **state)
{
	assert_int_equal(PARSE("-iA", "--input=B", "--sched", "--sched=off", "--quick=false"), 0);
	assert_string_equal(options_text(&opts, "input"), "B");
	assert_string_equal(options_nth(&opts, "input", 0), "A");
	assert_string_equal(options_nth(&opts, "input", 1), "B");
	assert_null(options_nth(&opts, "input", 2));
	assert_false(options_flag(&opts, "sched"));
	assert_false(options_flag(&opts, "quick"));
}

static void double_dash_and_verbatim(void **state)
{
	assert_int_equal(PARSE("--", "--input", "-x"), 0);
	assert_int_equal(opts.word_count, 2);
	assert_string_equal(opts.words[0], "--input");
	assert_int_equal(PARSE_VERBATIM("--input", "x", "python", "train.py", "--lr", "1", "--", "-q"), 0);
	assert_string_equal(options_text(&opts, "input"), "x");
	assert_int_equal(opts.word_count, 6);
	assert_string_equal(opts.words[4], "--");
	assert_string_equal(opts.words[5], "-q");
	assert_int_equal(PARSE("-", ""), 0); /* a lone dash and an empty text are words */
	assert_int_equal(opts.word_count, 2);
}

static void mistakes_are_named(void **state)
{
	assert_int_equal(PARSE("--imput=x"), -EINVAL);
	assert_non_null(strstr(err.text, "did you mean --input?"));
	assert_int_equal(PARSE("--frobnicate"), -EINVAL);
	assert_string_equal(err.text, "there is no option --frobnicate");
	assert_int_equal(PARSE("--hepl"), -EINVAL);
	assert_non_null(strstr(err.text, "--help"));
	assert_int_equal(PARSE("--input"), -EINVAL);
	assert_non_null(strstr(err.text, "--input=FILE"));
	assert_int_equal(PARSE("--input="), -EINVAL);
	assert_int_equal(PARSE("-x"), -EINVAL);
	assert_int_equal(PARSE("-i"), -EINVAL);
	assert_int_equal(PARSE("-qi"), -EINVAL);
	assert_int_equal(PARSE("--format=xml"), -EINVAL);
	assert_non_null(strstr(err.text, "db|json|perfetto"));
	assert_int_equal(PARSE("--format=js"), -EINVAL);
	assert_int_equal(PARSE("--bf-size=1k"), -EINVAL);
	assert_int_equal(PARSE("--limit=x"), -EINVAL);
	assert_int_equal(PARSE("--record-time=-1"), -EINVAL);
	assert_int_equal(PARSE("--sched=perhaps"), -EINVAL);
}

static void too_many_are_refused(void **state)
{
	static char flag[] = "--sched";
	char *argv[OPTIONS_MAX_SET + 2];

	for (size_t i = 0; i <= OPTIONS_MAX_SET; i++)
		argv[i] = flag;
	argv[OPTIONS_MAX_SET + 1] = NULL;
	assert_int_equal(parse_as(false, argv), -EINVAL);
	argv[OPTIONS_MAX_SET] = NULL;
	assert_int_equal(parse_as(false, argv), 0);
}

static void help_lists_what_is_not_hidden(void **state)
{
	static const struct option_spec some[] = {
		{ "shown", 's', OPT_TEXT, "FILE", "x", "a text" },
		{ "hidden", 0, OPT_FLAG, NULL, NULL, NULL },
		{ "long", 0, OPT_FLAG, NULL, NULL,
		  "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen" },
		{ .kind = OPT_END },
	};
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	options_help(some, out);
	fclose(out);
	assert_non_null(strstr(text, "  -s, --shown=FILE"));
	assert_non_null(strstr(text, "a text (default: x)"));
	assert_null(strstr(text, "hidden"));
	/* 100 columns where there is no terminal */
	assert_non_null(strstr(
		text, "--long                    one two three four five six seven eight nine ten eleven twelve\n"
		      "                                thirteen fourteen fifteen\n"));
	assert_non_null(strstr(text, "--json"));
	free(text);
}

static int tidy(void **state)
{
	options_free(&opts);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(values_and_words, tidy),
		cmocka_unit_test_teardown(defaults, tidy),
		cmocka_unit_test_teardown(underscore_and_dash_are_alike, tidy),
		cmocka_unit_test_teardown(the_last_one_counts_but_all_are_kept, tidy),
		cmocka_unit_test_teardown(double_dash_and_verbatim, tidy),
		cmocka_unit_test_teardown(mistakes_are_named, tidy),
		cmocka_unit_test_teardown(too_many_are_refused, tidy),
		cmocka_unit_test_teardown(help_lists_what_is_not_hidden, tidy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
