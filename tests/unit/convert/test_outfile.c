/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Output files appear whole or not at all; numbers and texts of the exporters. */
#include "convert/decimal.h"
#include "convert/outfile.h"
#include "convert/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* behind the headers it needs */
#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
	strcpy(dir, "/tmp/st-outfile-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	return rmdir(dir); /* a test that leaves a file fails here */
}

static const char *at(const char *name)
{
	static char path[160];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void appears_whole(void **state)
{
	struct outfile out;
	struct st_err err;
	char *big = malloc(3 * OUTFILE_ROOM);
	struct stat st;
	int i;

	memset(big, 'x', 3 * OUTFILE_ROOM);
	assert_int_equal(outfile_open(&out, at("o"), &err), 0);
	outfile_put(&out, "head", 4);
	outfile_put(&out, big, 3 * OUTFILE_ROOM);
	for (i = 0; i < 300000; i++)
		outfile_put(&out, "0123456789", 10);
	assert_int_equal(access(at("o"), F_OK), -1);
	assert_int_equal(access(at("o.part"), F_OK), 0);
	assert_int_equal(outfile_finish(&out, &err), 0);
	assert_int_equal(access(at("o.part"), F_OK), -1);
	assert_int_equal(stat(at("o"), &st), 0);
	assert_int_equal(st.st_size, 4 + 3 * OUTFILE_ROOM + 3000000);
	assert_int_equal(out.bytes, st.st_size);
	free(big);
	unlink(at("o"));
}

static void discarded_leaves_nothing(void **state)
{
	struct outfile out;
	struct st_err err;

	assert_int_equal(outfile_open(&out, at("o"), &err), 0);
	outfile_put(&out, "half", 4);
	outfile_flush(&out);
	outfile_discard(&out);
	outfile_discard(&out);
	assert_int_equal(access(at("o"), F_OK), -1);
	assert_int_equal(access(at("o.part"), F_OK), -1);
}

static void old_part_and_old_file_are_replaced(void **state)
{
	struct outfile out;
	struct st_err err;
	FILE *file = fopen(at("o.part"), "w");

	fputs("left over", file);
	fclose(file);
	file = fopen(at("o"), "w");
	fputs("old", file);
	fclose(file);
	assert_int_equal(outfile_open(&out, at("o"), &err), 0);
	outfile_put(&out, "new", 3);
	assert_int_equal(outfile_finish(&out, &err), 0);
	char text[16] = "";
	file = fopen(at("o"), "r");
	assert_int_equal(fread(text, 1, sizeof(text), file), 3);
	fclose(file);
	assert_string_equal(text, "new");
	unlink(at("o"));
}

static void full_disk_and_no_place(void **state)
{
	struct outfile out;
	struct st_err err;

	assert_int_equal(outfile_open(&out, "/dev/full", &err), 0);
	outfile_put(&out, "x", 1);
	assert_int_equal(outfile_finish(&out, &err), -ENOSPC);
	assert_non_null(strstr(err.text, "/dev/full"));
	assert_int_equal(outfile_open(&out, at("no/such/o"), &err), -ENOENT);
	assert_non_null(strstr(err.text, "cannot create"));
	assert_int_equal(outfile_open(&out, dir, &err), -EISDIR);
}

static void decimals(void **state)
{
	static const uint64_t values[] = { 0, 9, 10, 99, 100, 101, 12345, 4294967296, 999999999999, UINT64_MAX };
	char got[32], want[32];
	size_t i;

	for (i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		*decimal_u64(got, values[i]) = 0;
		snprintf(want, sizeof(want), "%" PRIu64, values[i]);
		assert_string_equal(got, want);
	}
	*decimal_i64(got, INT64_MIN) = 0;
	assert_string_equal(got, "-9223372036854775808");
	*decimal_us(got, 1234567) = 0;
	assert_string_equal(got, "1234.567");
	*decimal_us(got, 2000) = 0;
	assert_string_equal(got, "2");
	*decimal_us(got, 5) = 0;
	assert_string_equal(got, "0.005");
}

static void utf8(void **state)
{
	static const struct {
		const char *bytes;
		size_t len, valid;
	} cases[] = {
		{ "a", 1, 1 },
		{ "\xc3\xa4", 2, 2 },
		{ "\xe2\x9c\x93", 3, 3 },
		{ "\xf0\x9f\x98\x80", 4, 4 },
		{ "\xc3", 1, 0 }, /* cut */
		{ "\xe2\x9c", 2, 0 },
		{ "\x80", 1, 0 },
		{ "\xc0\x80", 2, 0 }, /* overlong */
		{ "\xe0\x80\x80", 3, 0 },
		{ "\xed\xa0\x80", 3, 0 }, /* surrogate */
		{ "\xf4\x90\x80\x80", 4, 0 }, /* above U+10FFFF */
		{ "\xff", 1, 0 },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(utf8_valid((const unsigned char *)cases[i].bytes, cases[i].len), cases[i].valid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(appears_whole, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(discarded_leaves_nothing, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(old_part_and_old_file_are_replaced, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(full_disk_and_no_place, make_dir, remove_dir),
		cmocka_unit_test(decimals),
		cmocka_unit_test(utf8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
