/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The top level of files; see top.h. */
#include "trace/top.h"

#include <ctype.h>

#define RECORD_MAX (16u << 20) /* longer than any record: the length itself is damaged */

/* Return: bytes of the number, 0 = cut by the end, -1 = no number. */
static int varint(const unsigned char *at, size_t len, uint64_t *value)
{
	int i;

	*value = 0;
	for (i = 0; i < 10; i++) {
		if ((size_t)i >= len)
			return 0;
		*value |= (uint64_t)(at[i] & 127) << (7 * i);
		if (at[i] < 128)
			return i + 1;
	}
	return -1;
}

int top_field(struct input *input, struct pb_field *field, size_t *total, const char **why, struct st_err *err)
{
	struct pb_reader cursor;
	uint64_t tag, len = 0;
	int ret, n, m;

	/* tag and length need at most 20 bytes */
	ret = input_want(input, 20, err);
	if (ret < 0)
		return ret;
	if (!input->len)
		return TOP_END;
	n = varint(input->at, input->len, &tag);
	if (n <= 0 || !(tag >> 3) || tag >> 32 || (tag & 7) == 3 || (tag & 7) == 4 || (tag & 7) > 5) {
		*why = n == 0 ? "a record is cut" : "no protobuf field begins here";
		return TOP_DAMAGED;
	}
	*total = (size_t)n + 10;
	if ((tag & 7) == PB_BYTES) {
		m = varint(input->at + n, input->len - (size_t)n, &len);
		if (m <= 0 || len > RECORD_MAX) {
			*why = m == 0 ? "a record is cut" : "a record of impossible length begins here";
			return TOP_DAMAGED;
		}
		*total = (size_t)n + (size_t)m + (size_t)len;
	}
	ret = input_want(input, *total, err);
	if (ret < 0)
		return ret;
	pb_read(&cursor, input->at, *total < input->len ? *total : input->len);
	if (pb_next(&cursor, field) != 1) {
		*why = input->eof ? "a record is cut" : "no protobuf field begins here";
		return TOP_DAMAGED;
	}
	*total = (size_t)(cursor.at - input->at);
	return TOP_FIELD;
}

const unsigned char *top_key(const unsigned char *at, const unsigned char *end, int *depth, size_t *len)
{
	const unsigned char *begin;

	for (; at < end; at++) {
		if (*at == '{' || *at == '[') {
			++*depth;
		} else if (*at == '}' || *at == ']') {
			--*depth;
		} else if (*at == '"') {
			begin = ++at;
			while (at < end && *at != '"')
				at += *at == '\\' ? 2 : 1;
			if (at >= end)
				return NULL;
			*len = (size_t)(at - begin);
			for (at++; at < end && isspace(*at); at++)
				;
			if (*depth == 1 && at < end && *at == ':')
				return begin;
			at--;
		}
	}
	return NULL;
}
