/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names are any bytes, viewers want UTF-8: exporters write valid sequences as they are and each other byte as the code
 * point of its value.
 */
#ifndef CONVERT_UTF8_H
#define CONVERT_UTF8_H

#include <stddef.h>

/** utf8_valid - Return: bytes of the valid sequence at @at (1..4), 0 = none begins here. @len: bytes left, not 0. */
static inline size_t utf8_valid(const unsigned char *at, size_t len)
{
	unsigned int c = at[0];
	unsigned int low = 0x80, high = 0xbf; /* of the second byte */
	size_t n, i;

	if (c < 0x80)
		return 1;
	if (c < 0xc2 || c > 0xf4)
		return 0;
	n = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
	if (c == 0xe0)
		low = 0xa0;
	else if (c == 0xed)
		high = 0x9f; /* surrogates */
	else if (c == 0xf0)
		low = 0x90;
	else if (c == 0xf4)
		high = 0x8f;
	if (len < n || at[1] < low || at[1] > high)
		return 0;
	for (i = 2; i < n; i++)
		if (at[i] < 0x80 || at[i] > 0xbf)
			return 0;
	return n;
}

/** utf8_put_byte - UTF-8 of the code point @byte (0..255). Return: bytes written, 1 or 2. */
static inline size_t utf8_put_byte(char *out, unsigned char byte)
{
	if (byte < 0x80) {
		out[0] = (char)byte;
		return 1;
	}
	out[0] = (char)(0xc0 | byte >> 6);
	out[1] = (char)(0x80 | (byte & 0x3f));
	return 2;
}

#endif
