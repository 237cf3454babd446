/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Building and reading control messages in memory that the caller owns. Bounded and without allocation: the agent reads
 * with it what any process of its user may have sent. Sending and receiving are the callers' business.
 */
#include "wire/ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define ENTRY_HEAD_BYTES 6u
#define KEY_MAX_BYTES 255u
#define ADDF_MAX_BYTES 4096

static void put_u16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)value;
	at[1] = (uint8_t)(value >> 8);
}

static void put_u32(uint8_t *at, uint32_t value)
{
	put_u16(at, (uint16_t)value);
	put_u16(at + 2, (uint16_t)(value >> 16));
}

static uint16_t get_u16(const uint8_t *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t get_u32(const uint8_t *at)
{
	return get_u16(at) | (uint32_t)get_u16(at + 2) << 16;
}

static bool key_valid(const char *key, size_t bytes)
{
	if (bytes == 0 || bytes > KEY_MAX_BYTES)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		char c = key[i];

		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'))
			return false;
	}
	return true;
}

void ctl_begin(struct ctl_msg *msg, void *data, uint32_t room, uint16_t verb, uint32_t sequence)
{
	*msg = (struct ctl_msg){ .data = data, .room = room, .used = CTL_FRAME_BYTES };
	if (room < CTL_FRAME_BYTES) {
		msg->error = -ENOSPC;
		return;
	}
	put_u32(msg->data, CTL_MAGIC);
	put_u16(msg->data + 4, CTL_VERSION);
	put_u16(msg->data + 6, verb);
	put_u32(msg->data + 8, 0);
	put_u32(msg->data + 12, sequence);
}

static void add_bytes(struct ctl_msg *msg, const char *key, const char *value, size_t value_bytes)
{
	size_t key_bytes = strlen(key);
	uint32_t limit = msg->room;
	uint8_t *at;

	if (msg->error)
		return;
	if (!key_valid(key, key_bytes)) {
		msg->error = -EINVAL;
		return;
	}
	if (limit > CTL_FRAME_BYTES + CTL_MAX_PAYLOAD)
		limit = CTL_FRAME_BYTES + CTL_MAX_PAYLOAD;
	if (value_bytes > limit || ENTRY_HEAD_BYTES + key_bytes + value_bytes > limit - msg->used) {
		msg->error = -ENOSPC;
		return;
	}
	at = msg->data + msg->used;
	put_u16(at, (uint16_t)key_bytes);
	put_u32(at + 2, (uint32_t)value_bytes);
	memcpy(at + ENTRY_HEAD_BYTES, key, key_bytes);
	memcpy(at + ENTRY_HEAD_BYTES + key_bytes, value, value_bytes);
	msg->used += ENTRY_HEAD_BYTES + (uint32_t)(key_bytes + value_bytes);
}

void ctl_add(struct ctl_msg *msg, const char *key, const char *value)
{
	add_bytes(msg, key, value, strlen(value));
}

void ctl_addf(struct ctl_msg *msg, const char *key, const char *format, ...)
{
	char text[ADDF_MAX_BYTES];
	va_list ap;

	va_start(ap, format);
	if (vsnprintf(text, sizeof(text), format, ap) < 0)
		text[0] = '\0';
	va_end(ap);
	ctl_add(msg, key, text);
}

void ctl_add_u64(struct ctl_msg *msg, const char *key, uint64_t value)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	add_bytes(msg, key, digits + at, sizeof(digits) - at);
}

int ctl_finish(struct ctl_msg *msg)
{
	if (msg->error)
		return msg->error;
	put_u32(msg->data + 8, msg->used - CTL_FRAME_BYTES);
	return (int)msg->used;
}

int ctl_frame_decode(const void *data, struct ctl_frame *frame)
{
	const uint8_t *at = data;

	if (get_u32(at) != CTL_MAGIC)
		return -EPROTO;
	*frame = (struct ctl_frame){
		.version = get_u16(at + 4),
		.verb = get_u16(at + 6),
		.payload_bytes = get_u32(at + 8),
		.sequence = get_u32(at + 12),
	};
	if (frame->version + 1 < CTL_VERSION ||
	    frame->version > CTL_VERSION + 1) /* promoted to int: 65535 + 1 is no 0 */
		return -EPROTONOSUPPORT;
	if (frame->payload_bytes > CTL_MAX_PAYLOAD)
		return -EMSGSIZE;
	return 0;
}

int ctl_next(const void *payload, uint32_t bytes, uint32_t *at, struct ctl_entry *entry)
{
	const uint8_t *base = payload;
	uint32_t left, key_bytes, value_bytes;

	if (*at == bytes)
		return 0;
	if (*at > bytes || bytes - *at < ENTRY_HEAD_BYTES)
		return -EPROTO;
	key_bytes = get_u16(base + *at);
	value_bytes = get_u32(base + *at + 2);
	left = bytes - *at - ENTRY_HEAD_BYTES;
	if (key_bytes > left || value_bytes > left - key_bytes)
		return -EPROTO;
	*entry = (struct ctl_entry){
		.key = (const char *)base + *at + ENTRY_HEAD_BYTES,
		.value = (const char *)base + *at + ENTRY_HEAD_BYTES + key_bytes,
		.key_bytes = key_bytes,
		.value_bytes = value_bytes,
	};
	if (!key_valid(entry->key, key_bytes))
		return -EPROTO;
	*at += ENTRY_HEAD_BYTES + key_bytes + value_bytes;
	return 1;
}

int ctl_get(const void *payload, uint32_t bytes, const char *key, char *out, size_t room)
{
	size_t key_bytes = strlen(key);
	struct ctl_entry entry;
	uint32_t at = 0;

	while (ctl_next(payload, bytes, &at, &entry) == 1) {
		size_t copy = entry.value_bytes;

		if (entry.key_bytes != key_bytes || memcmp(entry.key, key, key_bytes) != 0)
			continue;
		if (room > 0) {
			if (copy > room - 1)
				copy = room - 1;
			memcpy(out, entry.value, copy);
			out[copy] = '\0';
		}
		return (int)entry.value_bytes;
	}
	return -ENOENT;
}

int ctl_check(const void *payload, uint32_t bytes)
{
	struct ctl_entry entry;
	uint32_t at = 0;
	unsigned count = 0;
	int ret;

	while ((ret = ctl_next(payload, bytes, &at, &entry)) == 1)
		if (++count > CTL_MAX_ENTRIES)
			return -EPROTO;
	return ret;
}
