/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Protobuf's wire format: a writer into a caller's buffer and a reader that survives any bytes. Only what the files of
 * sysTrace use: varints, fixed words (read and skipped), length-delimited fields. Field numbers and types are made from
 * the lists of wire/record.h by wire/messages.h; sinks and readers seldom call this directly.
 */
#ifndef WIRE_PB_H
#define WIRE_PB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct pb_writer - a message being built in the caller's buffer */
struct pb_writer {
	uint8_t *data;
	size_t room;
	size_t used;
	bool full; /* something did not fit; the content is then useless */
};

/** pb_init - start writing. Context: thread, tool; no allocation anywhere in this file. */
static inline void pb_init(struct pb_writer *w, void *data, size_t room)
{
	*w = (struct pb_writer){ .data = data, .room = room };
}

/** pb_u64 - one varint field, written also when it is 0 */
void pb_u64(struct pb_writer *w, uint32_t field, uint64_t value);

/** pb_bytes - one length-delimited field (string, bytes), written also when it is empty */
void pb_bytes(struct pb_writer *w, uint32_t field, const void *data, size_t bytes);

/**
 * pb_begin - open a nested message
 *
 * Return: mark for pb_end(); fields put until then belong to the nested message. Nesting is free.
 */
size_t pb_begin(struct pb_writer *w, uint32_t field);

/** pb_end - close a nested message: its length is put in front of it, which moves it when it is 128 bytes or longer */
void pb_end(struct pb_writer *w, size_t mark);

static inline uint64_t pb_zigzag(int64_t value)
{
	return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline int64_t pb_unzigzag(uint64_t value)
{
	return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

enum pb_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

/** struct pb_reader - position in a message */
struct pb_reader {
	const uint8_t *at;
	const uint8_t *end;
};

/** struct pb_field - one field as read; bytes point into the message */
struct pb_field {
	uint32_t number;
	enum pb_wire wire;
	uint64_t value; /* varint and fixed */
	const uint8_t *data; /* PB_BYTES */
	size_t bytes;
};

static inline void pb_read(struct pb_reader *r, const void *data, size_t bytes)
{
	r->at = data;
	r->end = r->at + bytes;
}

/**
 * pb_next - next field of the message
 *
 * Return: 1, 0 at the end, -EBADMSG when the bytes are no protobuf message or the last field is cut; @r then still
 * stands before the bad field, so that what came before is usable and the offset can be told.
 */
int pb_next(struct pb_reader *r, struct pb_field *field);

#endif
