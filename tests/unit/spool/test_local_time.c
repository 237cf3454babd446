/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Local time for file names: what localtime_r says, in zones of all kinds, through their changes. */
#include "spool/local_time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void compare(const char *zone)
{
	int64_t t;

	setenv("TZ", zone, 1);
	tzset();
	/* 2000 to 2036, all hours of the day and the days of changes */
	for (t = 946684800; t < 2082758400; t += 11 * 3600 + 17) {
		struct tm tm;
		time_t seconds = (time_t)t;

		assert_non_null(localtime_r(&seconds, &tm));
		if (local_time_offset(zone, t) != tm.tm_gmtoff)
			fail_msg("%s at %lld: %lld, the C library says %ld", zone, (long long)t,
				 (long long)local_time_offset(zone, t), tm.tm_gmtoff);
	}
}

static void rules_are_understood(void **state)
{
	static const char *const zones[] = { "UTC0",
					     "CST-8",
					     "<+0530>-5:30",
					     "CET-1CEST,M3.5.0,M10.5.0/3",
					     "EST5EDT,M3.2.0,M11.1.0",
					     "AEST-10AEDT,M10.1.0,M4.1.0/3",
					     "XXX3YYY,J60/1,J300/23:30:15",
					     "XXX3YYY2:30,59,299" };
	size_t i;

	for (i = 0; i < sizeof(zones) / sizeof(zones[0]); i++)
		compare(zones[i]);
}

static void zone_files_are_read(void **state)
{
	static const char *const zones[] = { "Asia/Shanghai",	  "Europe/Berlin",    "America/New_York",
					     "Australia/Sydney",  "America/St_Johns", "Pacific/Chatham",
					     "Africa/Casablanca", "America/Sao_Paulo" };
	size_t i;
	char path[128];

	for (i = 0; i < sizeof(zones) / sizeof(zones[0]); i++) {
		snprintf(path, sizeof(path), "/usr/share/zoneinfo/%s", zones[i]);
		if (access(path, R_OK)) {
			print_message("skip: %s is not installed\n", path);
			continue;
		}
		compare(zones[i]);
		assert_int_equal(local_time_offset(path, 1700000000), local_time_offset(zones[i], 1700000000));
	}
}

static void nonsense_is_utc(void **state)
{
	static const char *const zones[] = { "", "nowhere", "../../etc/passwd", ":", "/etc/hostname", "A1" };
	size_t i;

	for (i = 0; i < sizeof(zones) / sizeof(zones[0]); i++)
		assert_int_equal(local_time_offset(zones[i], 1700000000), 0);
}

static void dates_are_right(void **state)
{
	int64_t t;

	unsetenv("TZ");
	for (t = -86400 * 800; t < 4102444800; t += 86400 * 3 + 4567) {
		struct local_time got;
		time_t seconds;
		struct tm tm;

		local_time(t, &got);
		seconds = (time_t)(t + got.offset_s);
		gmtime_r(&seconds, &tm);
		assert_int_equal(got.year, tm.tm_year + 1900);
		assert_int_equal(got.month, tm.tm_mon + 1);
		assert_int_equal(got.day, tm.tm_mday);
		assert_int_equal(got.hour, tm.tm_hour);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rules_are_understood),
		cmocka_unit_test(zone_files_are_read),
		cmocka_unit_test(nonsense_is_utc),
		cmocka_unit_test(dates_are_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
