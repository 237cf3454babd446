/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Time zones; see local_time.h. Zone files: RFC 8536. */
#include "spool/local_time.h"

#include "safe/rawio.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZONE_BYTES (32u * 1024u) /* the longest of 2024 has 3.6 KiB */
#define HEAD 44u
#define DAY 86400

/* --- days and dates -------------------------------------------------------------------------------------------------- */

/* Days from 1970-01-01 to the first of a month, proleptic Gregorian calendar. */
static int64_t days_to(int64_t year, int month)
{
	int64_t y = month > 2 ? year : year - 1;
	int64_t era = (y >= 0 ? y : y - 399) / 400, of_era = y - era * 400;
	int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5;

	return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

static void to_date(int64_t unix_s, struct local_time *out)
{
	int64_t days = floor_div(unix_s, DAY), z = days + 719468, era = floor_div(z, 146097);
	int64_t of_era = z - era * 146097;
	int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	int64_t of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;

	out->day = (unsigned int)(of_year - (153 * month + 2) / 5 + 1);
	out->month = (unsigned int)(month < 10 ? month + 3 : month - 9);
	out->year = (int)(year + era * 400 + (out->month <= 2));
	out->hour = (unsigned int)((unix_s - days * DAY) / 3600);
}

/* --- POSIX rules: std offset [dst [offset] [,start[/time],end[/time]]] -------------------------------------------------- */

static bool skip_name(const char **at)
{
	const char *p = *at;

	if (*p == '<') {
		p = strchr(p, '>');
		if (!p)
			return false;
		*at = p + 1;
		return true;
	}
	while (isalpha((unsigned char)*p))
		p++;
	if (p - *at < 3)
		return false;
	*at = p;
	return true;
}

/* [+-]hh[:mm[:ss]] as seconds */
static bool take_hms(const char **at, int64_t *seconds)
{
	int64_t part[3] = { 0 };
	bool minus = **at == '-';
	int i;

	*at += **at == '-' || **at == '+';
	if (!isdigit((unsigned char)**at))
		return false;
	for (i = 0; i < 3; i++) {
		part[i] = strtol(*at, (char **)at, 10);
		if (**at != ':' || i == 2)
			break;
		(*at)++;
	}
	*seconds = (part[0] * 60 + part[1]) * 60 + part[2];
	if (minus)
		*seconds = -*seconds;
	return true;
}

static bool leap(int64_t year)
{
	return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* A change of the year: Mm.w.d, Jn or n, with /time. Return: seconds since 1970 by the clock on the wall before it. */
static bool take_change(const char **at, int64_t year, int64_t *when)
{
	int64_t time_s = 7200, day;
	int m, w, d, n;

	if (**at != ',')
		return false;
	(*at)++;
	if (sscanf(*at, "M%d.%d.%d%n", &m, &w, &d, &n) == 3 && m >= 1 && m <= 12) {
		int64_t first = days_to(year, m), next = m < 12 ? days_to(year, m + 1) : days_to(year + 1, 1);

		day = first + (d - (first + 4) % 7 + 7) % 7 + 7 * (w - 1); /* 1970-01-01 was a Thursday */
		while (day >= next)
			day -= 7;
	} else if (sscanf(*at, "J%d%n", &d, &n) == 1) {
		day = days_to(year, 1) + d - 1 + (leap(year) && d >= 60);
	} else if (sscanf(*at, "%d%n", &d, &n) == 1) {
		day = days_to(year, 1) + d;
	} else {
		return false;
	}
	*at += n;
	if (**at == '/') {
		(*at)++;
		if (!take_hms(at, &time_s))
			return false;
	}
	*when = day * DAY + time_s;
	return true;
}

/* Return: is it a rule? */
static bool by_rule(const char *rule, int64_t unix_s, int64_t *offset_s)
{
	int64_t std, dst, start, end;
	struct local_time now;

	if (!skip_name(&rule) || !take_hms(&rule, &std))
		return false;
	*offset_s = std = -std;
	if (!*rule || !skip_name(&rule))
		return true;
	dst = std + 3600;
	if (*rule && *rule != ',') {
		if (!take_hms(&rule, &dst))
			return true;
		dst = -dst;
	}
	if (!*rule)
		rule = ",M3.2.0,M11.1.0";
	to_date(unix_s + std, &now);
	if (!take_change(&rule, now.year, &start) || !take_change(&rule, now.year, &end))
		return true;
	start -= std;
	end -= dst;
	if (start < end ? unix_s >= start && unix_s < end : unix_s < end || unix_s >= start)
		*offset_s = dst;
	return true;
}

/* --- zone files ------------------------------------------------------------------------------------------------------ */

static int64_t big_endian(const uint8_t *at, int bytes)
{
	uint64_t value = at[0] & 0x80 ? UINT64_MAX : 0;
	int i;

	for (i = 0; i < bytes; i++)
		value = value << 8 | at[i];
	return (int64_t)value;
}

struct block {
	const uint8_t *times, *types, *infos, *end; /* end: behind the block */
	uint32_t time_count, type_count;
};

/* One data block with times of @wide bytes. */
static bool find_block(const uint8_t *head, const uint8_t *end, uint32_t wide, struct block *block)
{
	uint32_t count[6]; /* isutc, isstd, leap, time, type, char */
	uint64_t bytes;
	int i;

	if (end - head < (int)HEAD || memcmp(head, "TZif", 4) != 0)
		return false;
	for (i = 0; i < 6; i++)
		count[i] = (uint32_t)big_endian(head + 20 + 4 * i, 4);
	bytes = (uint64_t)count[3] * (wide + 1) + (uint64_t)count[4] * 6 + count[5] + (uint64_t)count[2] * (wide + 4) +
		count[1] + count[0];
	if (!count[4] || bytes > (uint64_t)(end - head) - HEAD)
		return false;
	block->time_count = count[3];
	block->type_count = count[4];
	block->times = head + HEAD;
	block->types = block->times + (size_t)count[3] * wide;
	block->infos = block->types + count[3];
	block->end = head + HEAD + bytes;
	return true;
}

static bool by_file(const uint8_t *file, size_t bytes, int64_t unix_s, int64_t *offset_s)
{
	const uint8_t *end = file + bytes;
	struct block block;
	uint32_t wide = 4, i, type = 0;
	char rule[128] = "";

	if (!find_block(file, end, 4, &block))
		return false;
	if (file[4] >= '2') {
		if (!find_block(block.end, end, 8, &block))
			return false;
		wide = 8;
		if (block.end < end && *block.end == '\n')
			snprintf(rule, sizeof(rule), "%.*s", (int)(end - block.end - 1), (const char *)block.end + 1);
		rule[strcspn(rule, "\n")] = 0;
	}
	for (i = block.time_count; i > 0; i--) {
		if (big_endian(block.times + (size_t)(i - 1) * wide, (int)wide) <= unix_s)
			break;
	}
	if (i == block.time_count && rule[0] && by_rule(rule, unix_s, offset_s))
		return true;
	if (i)
		type = block.types[i - 1];
	*offset_s = type < block.type_count ? big_endian(block.infos + (size_t)type * 6, 4) : 0;
	return true;
}

int64_t local_time_offset(const char *zone, int64_t unix_s)
{
	static char file[ZONE_BYTES]; /* the drain's thread alone */
	char path[512];
	int64_t offset_s = 0;
	ssize_t bytes;

	if (zone && *zone == ':')
		zone++;
	if (!zone)
		snprintf(path, sizeof(path), "/etc/localtime");
	else if (*zone == '/')
		snprintf(path, sizeof(path), "%s", zone);
	else
		snprintf(path, sizeof(path), "/usr/share/zoneinfo/%s", zone);
	bytes = (!zone || (*zone && !strstr(zone, ".."))) ? sys_read_file(path, file, sizeof(file)) : 0;
	if (bytes > 0 && by_file((const uint8_t *)file, (size_t)bytes, unix_s, &offset_s))
		return offset_s;
	if (zone)
		by_rule(zone, unix_s, &offset_s);
	return offset_s;
}

/* --- the process's zone ------------------------------------------------------------------------------------------------ */

/* Return: the value, NULL = not set. */
static const char *started_with(char *room, size_t size)
{
	static char environment[128u * 1024u];
	ssize_t bytes = sys_read_file("/proc/self/environ", environment, sizeof(environment));
	const char *at = environment;

	while (bytes > 0 && at < environment + bytes) {
		if (!strncmp(at, "TZ=", 3)) {
			snprintf(room, size, "%s", at + 3);
			return room;
		}
		at += strlen(at) + 1;
	}
	return NULL;
}

void local_time(int64_t unix_s, struct local_time *out)
{
	static char text[256];
	static const char *zone;
	static bool known;

	if (!known)
		zone = started_with(text, sizeof(text));
	known = true;
	out->offset_s = local_time_offset(zone, unix_s);
	to_date(unix_s + out->offset_s, out);
}
