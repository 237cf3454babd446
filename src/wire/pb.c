/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Protobuf's wire format; see pb.h. */
#include "wire/pb.h"

#include <errno.h>
#include <string.h>

#define VARINT_BYTES 10

static size_t varint_encode(uint8_t *out, uint64_t value)
{
	size_t n = 0;

	while (value >= 0x80) {
		out[n++] = (uint8_t)(value | 0x80);
		value >>= 7;
	}
	out[n++] = (uint8_t)value;
	return n;
}

static void put_varint(struct pb_writer *w, uint64_t value)
{
	if (w->room - w->used < VARINT_BYTES) {
		w->full = true;
		return;
	}
	w->used += varint_encode(w->data + w->used, value);
}

void pb_u64(struct pb_writer *w, uint32_t field, uint64_t value)
{
	put_varint(w, (uint64_t)field << 3 | PB_VARINT);
	put_varint(w, value);
}

void pb_bytes(struct pb_writer *w, uint32_t field, const void *data, size_t bytes)
{
	put_varint(w, (uint64_t)field << 3 | PB_BYTES);
	put_varint(w, bytes);
	if (w->full || w->room - w->used < bytes) {
		w->full = true;
		return;
	}
	if (bytes)
		memcpy(w->data + w->used, data, bytes);
	w->used += bytes;
}

size_t pb_begin(struct pb_writer *w, uint32_t field)
{
	put_varint(w, (uint64_t)field << 3 | PB_BYTES);
	put_varint(w, 0); /* one byte for the length: enough for most entries */
	return w->used;
}

void pb_end(struct pb_writer *w, size_t mark)
{
	uint8_t length[VARINT_BYTES];
	size_t n, bytes;

	if (w->full)
		return;
	bytes = w->used - mark;
	n = varint_encode(length, bytes);
	if (w->room - w->used < n - 1) {
		w->full = true;
		return;
	}
	memmove(w->data + mark - 1 + n, w->data + mark, bytes);
	memcpy(w->data + mark - 1, length, n);
	w->used += n - 1;
}

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
	const uint8_t *p = *at;
	unsigned int shift;

	*value = 0;
	for (shift = 0; shift < 64 && p < end; shift += 7) {
		*value |= (uint64_t)(*p & 0x7f) << shift;
		if (!(*p++ & 0x80)) {
			*at = p;
			return true;
		}
	}
	return false;
}

static bool get_fixed(const uint8_t **at, const uint8_t *end, size_t bytes, uint64_t *value)
{
	size_t i;

	if ((size_t)(end - *at) < bytes)
		return false;
	*value = 0;
	for (i = 0; i < bytes; i++)
		*value |= (uint64_t)(*at)[i] << (8 * i);
	*at += bytes;
	return true;
}

int pb_next(struct pb_reader *r, struct pb_field *field)
{
	const uint8_t *at = r->at;
	uint64_t tag;
	bool ok;

	if (at == r->end)
		return 0;
	if (!get_varint(&at, r->end, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
		return -EBADMSG;
	*field = (struct pb_field){ .number = (uint32_t)(tag >> 3), .wire = (enum pb_wire)(tag & 7) };
	switch (tag & 7) {
	case PB_VARINT:
		ok = get_varint(&at, r->end, &field->value);
		break;
	case PB_FIXED64:
		ok = get_fixed(&at, r->end, 8, &field->value);
		break;
	case PB_FIXED32:
		ok = get_fixed(&at, r->end, 4, &field->value);
		break;
	case PB_BYTES:
		ok = get_varint(&at, r->end, &field->value) && field->value <= (uint64_t)(r->end - at);
		if (ok) {
			field->data = at;
			field->bytes = (size_t)field->value;
			at += field->bytes;
		}
		break;
	default: /* groups and what does not exist: no sysTrace file has them */
		ok = false;
	}
	if (!ok)
		return -EBADMSG;
	r->at = at;
	return 1;
}
