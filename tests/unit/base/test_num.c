/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Texts to numbers, CPU lists, and how near two words are. */
#include "base/cpulist.h"
#include "base/near.h"
#include "base/num.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void whole_numbers(void **state)
{
	uint64_t value = 7;

	assert_int_equal(num_u64("0", &value), 0);
	assert_int_equal(value, 0);
	assert_int_equal(num_u64("18446744073709551615", &value), 0);
	assert_int_equal(value, UINT64_MAX);
	assert_int_equal(num_u64("18446744073709551616", &value), -ERANGE);
	for (const char *const *text = (const char *const[]){ "", "-1", "+1", " 1", "1 ", "1x", "0x1", NULL }; *text;
	     text++)
		assert_int_equal(num_u64(*text, &value), -EINVAL);
	assert_int_equal(value, UINT64_MAX); /* untouched by failures */
	assert_int_equal(num_u64_n("12,34", 2, &value), 0);
	assert_int_equal(value, 12);
}

static void seconds(void **state)
{
	uint64_t ns;

	assert_int_equal(num_sec_ns("2.5", &ns), 0);
	assert_int_equal(ns, 2500000000ull);
	assert_int_equal(num_sec_ns("0.0000000019", &ns), 0);
	assert_int_equal(ns, 1);
	assert_int_equal(num_sec_ns("18446744074", &ns), -ERANGE);
	for (const char *const *text = (const char *const[]){ "", ".", ".5", "1.", "1.2.3", "1.-5", "1e3", NULL };
	     *text; text++)
		assert_int_equal(num_sec_ns(*text, &ns), -EINVAL);
}

static void sizes(void **state)
{
	uint64_t bytes;

	assert_int_equal(num_bytes("64K", &bytes), 0);
	assert_int_equal(bytes, 65536);
	assert_int_equal(num_bytes("2gb", &bytes), 0);
	assert_int_equal(bytes, 2147483648ull);
	assert_int_equal(num_bytes("4096", &bytes), 0);
	assert_int_equal(bytes, 4096);
	assert_int_equal(num_bytes("16777216T", &bytes), -ERANGE);
	assert_int_equal(num_bytes("16777215T", &bytes), 0);
	for (const char *const *text = (const char *const[]){ "", "K", "B", "1.5G", "-1", "1Q", NULL }; *text; text++)
		assert_int_equal(num_bytes(*text, &bytes), -EINVAL);
}

static void booleans(void **state)
{
	bool yes;

	for (const char *const *text = (const char *const[]){ "1", "true", "On", "YES", NULL }; *text; text++) {
		assert_int_equal(num_bool(*text, &yes), 0);
		assert_true(yes);
	}
	for (const char *const *text = (const char *const[]){ "0", "false", "OFF", "no", NULL }; *text; text++) {
		assert_int_equal(num_bool(*text, &yes), 0);
		assert_false(yes);
	}
	assert_int_equal(num_bool("", &yes), -EINVAL);
	assert_int_equal(num_bool("2", &yes), -EINVAL);
}

static void cpu_lists(void **state)
{
	const char *at = "0-3,5";
	uint32_t first, last;

	assert_int_equal(cpulist_next(&at, &first, &last), 1);
	assert_int_equal(first, 0);
	assert_int_equal(last, 3);
	assert_int_equal(cpulist_next(&at, &first, &last), 1);
	assert_int_equal(first, 5);
	assert_int_equal(last, 5);
	assert_int_equal(cpulist_next(&at, &first, &last), 0);
	assert_int_equal(cpulist_check("0"), 0);
	for (const char *const *text =
		     (const char *const[]){ "", ",", "1,", ",1", "3-1", "0-", "-1", "65536", "a", "1 2", NULL };
	     *text; text++)
		assert_int_equal(cpulist_check(*text), -EINVAL);
}

static const char *nearest(const char *word)
{
	struct near near = { .word = word };

	for (const char *const *name = (const char *const[]){ "duration", "min_us", "pid", "path", "enable", NULL };
	     *name; name++)
		near_offer(&near, *name);
	return near.best;
}

static void near_words(void **state)
{
	assert_string_equal(nearest("durtion"), "duration");
	assert_string_equal(nearest("druation"), "duration");
	assert_string_equal(nearest("dur"), "duration");
	assert_string_equal(nearest("MIN-US"), "min_us");
	assert_string_equal(nearest("enabel"), "enable");
	assert_string_equal(nearest("pidd"), "pid");
	assert_null(nearest("frequency"));
	assert_null(nearest(""));
	assert_null(nearest("x"));
	assert_null(nearest("a word that is far longer than any name can be"));
	assert_true(near_same("bf_size", "BF-size"));
	assert_false(near_same("bf", "bf_size"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_numbers), cmocka_unit_test(seconds),   cmocka_unit_test(sizes),
		cmocka_unit_test(booleans),	 cmocka_unit_test(cpu_lists), cmocka_unit_test(near_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
