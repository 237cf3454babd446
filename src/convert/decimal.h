/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Numbers as text, fast: exporters write some hundred millions of them. */
#ifndef CONVERT_DECIMAL_H
#define CONVERT_DECIMAL_H

#include <stdint.h>
#include <string.h>

#define DECIMAL_BYTES 24 /* most that one number takes */

/** decimal_u64 - Return: behind the last digit */
static inline char *decimal_u64(char *out, uint64_t value)
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
				    "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
				    "8081828384858687888990919293949596979899";
	char text[20];
	char *at = text + sizeof(text);
	size_t len;

	while (value >= 100) {
		at -= 2;
		memcpy(at, pairs + value % 100 * 2, 2);
		value /= 100;
	}
	if (value >= 10) {
		at -= 2;
		memcpy(at, pairs + value * 2, 2);
	} else {
		*--at = (char)('0' + value);
	}
	len = (size_t)(text + sizeof(text) - at);
	memcpy(out, at, len);
	return out + len;
}

/** decimal_i64 - Return: behind the last digit */
static inline char *decimal_i64(char *out, int64_t value)
{
	if (value >= 0)
		return decimal_u64(out, (uint64_t)value);
	*out++ = '-';
	return decimal_u64(out, (uint64_t)0 - (uint64_t)value);
}

/** decimal_us - nanoseconds as microseconds, exact: 1234567 -> 1234.567, 2000 -> 2. Return: behind the last digit. */
static inline char *decimal_us(char *out, uint64_t ns)
{
	unsigned int rest = (unsigned int)(ns % 1000);

	out = decimal_u64(out, ns / 1000);
	if (rest) {
		*out++ = '.';
		*out++ = (char)('0' + rest / 100);
		*out++ = (char)('0' + rest / 10 % 10);
		*out++ = (char)('0' + rest % 10);
	}
	return out;
}

/**
 * decimal_us_less - the length of a slice as microseconds, some picoseconds short: 39611 ns less 1 ps -> 39.610999
 * @ps: below 1000; a slice of no length stays one
 *
 * Return: behind the last digit.
 */
static inline char *decimal_us_less(char *out, uint64_t ns, uint32_t ps)
{
	uint64_t rest, unit = 100000u;

	if (!ns)
		return decimal_us(out, ns);
	rest = ns % 1000 * 1000;
	ns -= ns % 1000;
	if (rest < ps) {
		ns -= 1000;
		rest += 1000000;
	}
	out = decimal_u64(out, ns / 1000);
	rest -= ps;
	if (rest)
		*out++ = '.';
	for (; rest; rest %= unit, unit /= 10)
		*out++ = (char)('0' + rest / unit);
	return out;
}

#endif
