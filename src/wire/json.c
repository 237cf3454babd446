/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The small JSON writer; see json.h. */
#include "wire/json.h"

#include <string.h>

static void put(struct json_writer *w, const char *text, size_t bytes)
{
	if (w->full || w->room - w->used < bytes) {
		w->full = true;
		return;
	}
	memcpy(w->data + w->used, text, bytes);
	w->used += bytes;
}

static void put_comma(struct json_writer *w)
{
	if (w->comma)
		put(w, ",", 1);
	w->comma = true;
}

void json_raw(struct json_writer *w, const char *text)
{
	put(w, text, strlen(text));
}

void json_open(struct json_writer *w, char bracket)
{
	put_comma(w);
	put(w, &bracket, 1);
	w->comma = false;
}

void json_close(struct json_writer *w, char bracket)
{
	put(w, &bracket, 1);
	w->comma = true;
}

void json_key(struct json_writer *w, const char *key)
{
	put_comma(w);
	put(w, "\"", 1);
	put(w, key, strlen(key));
	put(w, "\":", 2);
	w->comma = false;
}

static void put_decimal(struct json_writer *w, uint64_t value, bool negative)
{
	char text[24];
	size_t at = sizeof(text);

	do
		text[--at] = (char)('0' + value % 10);
	while (value /= 10);
	if (negative)
		text[--at] = '-';
	put_comma(w);
	put(w, text + at, sizeof(text) - at);
}

void json_u64(struct json_writer *w, uint64_t value)
{
	put_decimal(w, value, false);
}

void json_i64(struct json_writer *w, int64_t value)
{
	put_decimal(w, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, value < 0);
}

void json_bool(struct json_writer *w, bool value)
{
	put_comma(w);
	put(w, value ? "true" : "false", value ? 4 : 5);
}

/* Length of the valid UTF-8 sequence of two or more bytes at @s, 0 when there is none (overlong, surrogate, cut). */
static size_t utf8_sequence(const uint8_t *s, size_t bytes)
{
	static const uint32_t lowest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	uint32_t point;
	size_t i;

	if (s[0] < 0xc2 || s[0] > 0xf4 || n > bytes)
		return 0;
	point = s[0] & (0x7fu >> n);
	for (i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		point = point << 6 | (s[i] & 0x3f);
	}
	if (point < lowest[n] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
		return 0;
	return n;
}

static void put_escaped(struct json_writer *w, uint8_t byte)
{
	static const char hex[] = "0123456789abcdef";
	char text[6] = { '\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15] };

	if (byte == '"' || byte == '\\') {
		text[1] = (char)byte;
		put(w, text, 2);
	} else if (byte == '\n') {
		put(w, "\\n", 2);
	} else {
		put(w, text, 6);
	}
}

void json_text(struct json_writer *w, const char *text, size_t bytes)
{
	const uint8_t *s = (const uint8_t *)text;
	size_t i, plain = 0; /* start of the run not yet copied */

	put_comma(w);
	put(w, "\"", 1);
	for (i = 0; i < bytes;) {
		size_t n = s[i] < 0x80 ? 1 : utf8_sequence(s + i, bytes - i);

		if (n && s[i] >= 0x20 && s[i] != '"' && s[i] != '\\' && s[i] != 0x7f) {
			i += n;
			continue;
		}
		put(w, text + plain, i - plain);
		put_escaped(w, s[i]);
		plain = ++i;
	}
	if (bytes)
		put(w, text + plain, bytes - plain);
	put(w, "\"", 1);
}
