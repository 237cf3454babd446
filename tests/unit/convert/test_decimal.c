/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Numbers as text: what a viewer that knows only doubles makes of them. */
#include "convert/decimal.h"

#include <math.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static void microseconds_are_exact(void **state)
{
	static const struct {
		uint64_t ns;
		const char *text;
	} rows[] = {
		{ 0, "0" }, { 1, "0.001" }, { 999, "0.999" }, { 1000, "1" }, { 1234567, "1234.567" }, { 2000, "2" },
	};
	char text[DECIMAL_BYTES];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		*decimal_us(text, rows[i].ns) = 0;
		assert_string_equal(text, rows[i].text);
	}
}

static void lengths_some_picoseconds_short(void **state)
{
	static const struct {
		uint64_t ns;
		uint32_t ps;
		const char *text;
	} rows[] = {
		{ 39611, 1, "39.610999" }, { 0, 1, "0" },
		{ 1, 1, "0.000999" },	   { 1000, 1, "0.999999" },
		{ 2000, 300, "1.9997" },   { 1000, 10, "0.99999" },
		{ 1001, 999, "1.000001" }, { 5000001, 1, "5000.000999" },
	};
	char text[DECIMAL_BYTES];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		*decimal_us_less(text, rows[i].ns, rows[i].ps) = 0;
		assert_string_equal(text, rows[i].text);
	}
}

static double number(uint64_t ns, uint32_t less_ps)
{
	char text[DECIMAL_BYTES];

	if (less_ps)
		*decimal_us_less(text, ns, less_ps) = 0;
	else
		*decimal_us(text, ns) = 0;
	return strtod(text, NULL);
}

/* As viewers compute it, from the beginning of time or of a lane, up to 1000 s. */
static void slices_end_before_the_next_begins(void **state)
{
	for (int i = 0; i < 300000; i++) {
		uint64_t end_ns = next_random() % 1000000000000u >> next_random() % 20,
			 begin_ns = next_random() % (end_ns + 1);
		uint64_t first_ns = next_random() % (begin_ns + 1), dur_ns = end_ns - begin_ns;
		double first = number(first_ns, 0), begin = number(begin_ns, 0), end = number(end_ns, 0);
		double dur = number(dur_ns, 1), inner = number(dur_ns / 2, 2);

		if (!dur_ns)
			continue;
		if (begin + dur >= end || begin - first + dur >= end - first)
			fail_msg("%.17g + %.17g is not before %.17g", begin, dur, end);
		if (dur_ns > 3 && number(end_ns - dur_ns / 2, 0) - first + inner > begin - first + dur)
			fail_msg("the inner slice ends behind %.17g + %.17g", begin, dur);
		assert_int_equal(llround(dur * 1000), dur_ns);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(microseconds_are_exact),
		cmocka_unit_test(lengths_some_picoseconds_short),
		cmocka_unit_test(slices_end_before_the_next_begins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
