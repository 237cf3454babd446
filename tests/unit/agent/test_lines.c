/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Line tables as real interpreters wrote them: bytes and lines below were printed by each version's own compiler. */
#include "agent/stack/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint8_t table_8[] = { 0, 2, 6, 2, 2, 254, 6, 4, 2, 1, 4, 1, 4, 1, 2, 255, 12, 3, 8, 127, 0, 127, 0, 47 };
static const int32_t lines_8[][2] = { { 0, 3 },	  { 6, 5 },  { 8, 3 },	 { 14, 7 },   { 16, 8 }, { 20, 9 },
				      { 24, 10 }, { 26, 9 }, { 38, 12 }, { 46, 313 }, { 50, -1 } };
static const uint8_t table_9[] = { 0, 2,   6, 2, 2, 254, 6, 4, 2,  1,	4, 1,	4, 1,
				   2, 255, 4, 3, 6, 253, 4, 3, 16, 127, 0, 127, 0, 47 };
static const int32_t lines_9[][2] = { { 0, 3 },	 { 6, 5 },   { 8, 3 },	{ 14, 7 },  { 16, 8 },	 { 20, 9 }, { 24, 10 },
				      { 26, 9 }, { 30, 12 }, { 36, 9 }, { 40, 12 }, { 56, 313 }, { 60, -1 } };
static const uint8_t table_10[] = { 6, 2, 2,   2, 6, 254, 2,   4, 4,   1, 4,  1, 2,   1, 4,   255, 8,
				    3, 2, 252, 6, 4, 0,	  127, 0, 127, 4, 47, 0, 129, 0, 129, 8,   209 };
static const int32_t lines_10[][2] = { { 0, 3 },   { 6, 5 },	{ 8, 3 },   { 14, 7 },	{ 16, 8 },
				       { 20, 9 },  { 24, 10 },	{ 26, 9 },  { 30, 12 }, { 38, 8 },
				       { 40, 12 }, { 46, 313 }, { 50, 12 }, { 58, -1 } };
static const uint8_t table_11[] = { 128, 0,   240, 4,	2,   9,	  12,  240, 0,	 2,   9,   12,	224, 9,	  10,  240, 5,
				    2,	 9,   12,  241, 0,   2,	  9,   12,  244, 0,   2,   9,	12,  128, 65,  240, 8,
				    5,	 5,   12,  216, 11,  12,  240, 0,   2,	 9,   24,  221, 19,  20,  144, 81,  216,
				    21,	 22,  241, 3,	1,   20,  24,  244, 0,	 1,   20,  24,	245, 6,	  0,   9,   10,
				    137, 3,   140, 3,	136, 3,	  136, 3,   240, 9,   2,   9,	24,  245, 8,   0,   9,
				    10,	 137, 3,   140, 3,   136, 3,   136, 3,	 248, 141, 1,	137, 3,	  140, 3,   136,
				    3,	 136, 3,   248, 248, 248, 240, 90,  9,	 0,   12,  13,	136, 49 };
static const int32_t lines_11[][2] = { { 0, 1 },   { 2, 3 },	{ 6, 5 },   { 8, 3 },	  { 26, 7 },  { 28, 8 },
				       { 32, 9 },  { 46, 10 },	{ 48, 9 },  { 62, 12 },	  { 92, 8 },  { 94, 12 },
				       { 124, 0 }, { 126, 12 }, { 156, 0 }, { 162, 313 }, { 166, -1 } };
static const uint8_t table_13[] = { 128, 0,   241, 8,	0,   10, 11,  243, 5,	2,   9,	  12,  225, 9,	 10, 240, 3,
				    0,	 14,  15,  243, 3,   0,	 10,  11,  225, 9,   10,  240, 5,   0,	 5,  6,	  240,
				    0,	 2,   9,   12,	240, 8,	 5,   5,   12,	222, 11,  12,  220, 19,	 20, 144, 81,
				    216, 21,  22,  243, 3,   1,	 20,  24,  244, 6,   0,	  9,   10,  141, 3,  240, 9,
				    0,	 12,  13,  244, 8,   0,	 9,   10,  140, 3,   240, 90,  9,   0,	 12, 13,  249,
				    242, 109, 9,   2,	9,   12, 248, 244, 18,	0,   9,	  10,  141, 3,	 250 };
static const int32_t lines_13[][2] = { { 0, 1 },   { 2, 5 },   { 6, 3 },    { 14, 5 },	{ 18, 4 },    { 20, 3 },
				       { 28, 5 },  { 32, 3 },  { 36, 7 },   { 38, 8 },	{ 52, 9 },    { 64, 10 },
				       { 66, 9 },  { 74, 12 }, { 96, 8 },   { 98, 12 }, { 118, 313 }, { 120, 0 },
				       { 124, 3 }, { 130, 0 }, { 132, 12 }, { 154, 0 }, { 160, -1 } };

struct table {
	const uint8_t *data;
	size_t bytes;
};

static int byte(void *arg, size_t i)
{
	const struct table *t = arg;

	return i < t->bytes ? t->data[i] : -1;
}

/* Every instruction of the function: @lines tells where a line begins to hold, and the end. */
static void check(int minor, const uint8_t *data, size_t bytes, const int32_t (*lines)[2])
{
	struct table t = { data, bytes };
	int64_t offset;
	int i;

	for (i = 0; lines[i][1] >= 0; i++)
		for (offset = lines[i][0]; offset < lines[i + 1][0]; offset += 2)
			assert_int_equal(py_line(minor, byte, &t, 1, offset), lines[i][1]);
	assert_int_equal(py_line(minor, byte, &t, 1, -2), 1);
}

#define TEST(minor)                                                                \
	static void test_##minor(void **state)                                     \
	{                                                                          \
		check(minor, table_##minor, sizeof(table_##minor), lines_##minor); \
	}
TEST(8)
TEST(9)
TEST(10)
TEST(11)
TEST(13)

/* Any bytes end somewhere. */
static void test_damaged(void **state)
{
	uint8_t junk[64];
	struct table t = { junk, 0 };
	uint32_t seed = 1;
	int minor, round;

	for (round = 0; round < 20000; round++) {
		for (t.bytes = 0; t.bytes < sizeof(junk) - round % 64; t.bytes++) {
			seed = seed * 1664525 + 1013904223;
			junk[t.bytes] = (uint8_t)(seed >> 24);
		}
		for (minor = 8; minor <= 13; minor++)
			py_line(minor, byte, &t, 1, round);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_8),  cmocka_unit_test(test_9),  cmocka_unit_test(test_10),
		cmocka_unit_test(test_11), cmocka_unit_test(test_13), cmocka_unit_test(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
