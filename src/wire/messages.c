/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Encoders and readers of the messages, made from the lists of wire/record.h; see messages.h. */
#include "wire/messages.h"

#include <errno.h>

/* One line per type and direction; the lists choose among them by the type's name. */
#define PB_u32(w, number, value) pb_nonzero(w, number, value)
#define PB_u64(w, number, value) pb_nonzero(w, number, value)
#define PB_i64(w, number, value) pb_nonzero(w, number, (uint64_t)(value))
#define PB_s64(w, number, value) pb_nonzero(w, number, pb_zigzag(value))
#define PB_boolean(w, number, value) pb_nonzero(w, number, value)
#define PB_stage_name(w, number, value) pb_nonzero(w, number, value)
#define PB_io_name(w, number, value) pb_nonzero(w, number, value)
#define PB_str(w, number, value) pb_text(w, number, &(value))
#define PB_bytes(w, number, value) pb_text(w, number, &(value))

static void pb_nonzero(struct pb_writer *w, uint32_t number, uint64_t value)
{
	if (value)
		pb_u64(w, number, value);
}

static void pb_text(struct pb_writer *w, uint32_t number, const struct msg_text *text)
{
	if (text->bytes)
		pb_bytes(w, number, text->at, text->bytes);
}

static void json_enum(struct json_writer *w, const char *name)
{
	json_text(w, name, strlen(name));
}

const char *stage_type_name(uint32_t type)
{
	static const char *const names[STAGE_COUNT] = {
		[STAGE_UNKNOWN] = "STAGE_UNKNOWN",
		[STAGE_DATALOADER] = "STAGE_DATALOADER",
		[STAGE_FORWARD] = "STAGE_FORWARD",
		[STAGE_BACKWARD] = "STAGE_BACKWARD",
		[STAGE_SYNCHRONIZATION] = "STAGE_SYNCHRONIZATION",
		[STAGE_GC] = "STAGE_GC",
		[STAGE_OPTIMIZER] = "STAGE_OPTIMIZER",
		[STAGE_CHECKPOINT] = "STAGE_CHECKPOINT",
		[STAGE_COMM] = "STAGE_COMM",
	};

	return names[type < STAGE_COUNT ? type : STAGE_UNKNOWN];
}

#define IO_TYPE_NAME(number, name, text) [number] = "IO_" #name,
#define IO_TYPE_TEXT(number, name, text) [number] = text,

const char *io_type_name(uint32_t type)
{
	static const char *const names[IO_TYPE_COUNT] = { IO_TYPES(IO_TYPE_NAME) };

	return names[type < IO_TYPE_COUNT ? type : IO_UNKNOWN];
}

const char *io_type_text(uint32_t type)
{
	static const char *const texts[IO_TYPE_COUNT] = { IO_TYPES(IO_TYPE_TEXT) };

	return texts[type < IO_TYPE_COUNT ? type : IO_UNKNOWN];
}

#define GET_u32(f, to) ((to) = (uint32_t)(f)->value)
#define GET_u64(f, to) ((to) = (f)->value)
#define GET_i64(f, to) ((to) = (int64_t)(f)->value)
#define GET_s64(f, to) ((to) = pb_unzigzag((f)->value))
#define GET_boolean(f, to) ((to) = (f)->value != 0)
#define GET_stage_name(f, to) ((to) = (uint32_t)(f)->value)
#define GET_io_name(f, to) ((to) = (uint32_t)(f)->value)
#define GET_str(f, to) ((to) = (struct msg_text){ (const char *)(f)->data, (f)->bytes })
#define GET_bytes(f, to) GET_str(f, to)
#define WIRE_u32 PB_VARINT
#define WIRE_u64 PB_VARINT
#define WIRE_i64 PB_VARINT
#define WIRE_s64 PB_VARINT
#define WIRE_boolean PB_VARINT
#define WIRE_stage_name PB_VARINT
#define WIRE_io_name PB_VARINT
#define WIRE_str PB_BYTES
#define WIRE_bytes PB_BYTES

#define JSON_u32(w, value) json_u64(w, value)
#define JSON_u64(w, value) json_u64(w, value)
#define JSON_i64(w, value) json_i64(w, value)
#define JSON_s64(w, value) json_i64(w, value)
#define JSON_boolean(w, value) json_bool(w, value)
#define JSON_stage_name(w, value) json_enum(w, stage_type_name(value))
#define JSON_io_name(w, value) json_enum(w, io_type_name(value))
#define JSON_str(w, value) json_text(w, (value).at, (value).bytes)
#define JSON_bytes(w, value) json_text(w, (value).at, (value).bytes)
#define HAS_u32(value) ((value) != 0)
#define HAS_u64(value) ((value) != 0)
#define HAS_i64(value) ((value) != 0)
#define HAS_s64(value) ((value) != 0)
#define HAS_boolean(value) (value)
#define HAS_stage_name(value) ((value) != 0)
#define HAS_io_name(value) ((value) != 0)
#define HAS_str(value) ((value).bytes != 0)
#define HAS_bytes(value) ((value).bytes != 0)

#define FIRST_OWN_NUMBER 20 /* published fields are always in the JSON form: its readers may not expect gaps */

#define FIELD_PB(number, type, name, json) PB_##type(w, number, m->name);
#define FIELD_GET(number, type, name, json)          \
	case number:                                 \
		if (field.wire == WIRE_##type)       \
			GET_##type(&field, m->name); \
		break;
#define FIELD_JSON(number, type, name, json)                      \
	if ((number) < FIRST_OWN_NUMBER || HAS_##type(m->name)) { \
		json_key(w, json);                                \
		JSON_##type(w, m->name);                          \
	}

#define MSG_DEFINE(name, FIELDS)                                                                \
	void msg_##name##_pb(struct pb_writer *w, const struct msg_##name *m)                   \
	{                                                                                       \
		FIELDS(FIELD_PB)                                                                \
	}                                                                                       \
	void msg_##name##_put(struct pb_writer *w, uint32_t number, const struct msg_##name *m) \
	{                                                                                       \
		size_t mark = pb_begin(w, number);                                              \
                                                                                                \
		msg_##name##_pb(w, m);                                                          \
		pb_end(w, mark);                                                                \
	}                                                                                       \
	int msg_##name##_read(struct msg_##name *m, const void *data, size_t bytes)             \
	{                                                                                       \
		struct pb_reader reader;                                                        \
		struct pb_field field;                                                          \
		int ret;                                                                        \
                                                                                                \
		memset(m, 0, sizeof(*m));                                                       \
		pb_read(&reader, data, bytes);                                                  \
		while ((ret = pb_next(&reader, &field)) > 0) {                                  \
			switch (field.number) {                                                 \
				FIELDS(FIELD_GET)                                               \
			}                                                                       \
		}                                                                               \
		return ret;                                                                     \
	}                                                                                       \
	void msg_##name##_json(struct json_writer *w, const struct msg_##name *m)               \
	{                                                                                       \
		FIELDS(FIELD_JSON)                                                              \
	}
MESSAGES(MSG_DEFINE)
