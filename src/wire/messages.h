/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The messages of the files, made from the field lists of wire/record.h: for each message NAME of MESSAGES below
 *
 *   struct msg_NAME                 its scalar fields (repeated and nested ones are put and read one by one)
 *   msg_NAME_pb(w, m)               fields into a protobuf writer; zero and empty ones are left out
 *   msg_NAME_put(w, field, m)       the same as a nested message with that field number
 *   msg_NAME_read(m, data, bytes)   from protobuf; unknown fields are skipped, a scalar that comes twice keeps the last
 *   msg_NAME_json(w, m)             fields into an open JSON object; fields below 20 always, others unless zero or empty
 *
 * Called by the sinks and by the readers of trace/. Texts are neither copied nor terminated: they point into the
 * caller's memory, or into the bytes that were read.
 */
#ifndef WIRE_MESSAGES_H
#define WIRE_MESSAGES_H

#include "wire/json.h"
#include "wire/pb.h"
#include "wire/record.h"

#include <string.h>

/** struct msg_text - a text of a message: UTF-8 by intent, any bytes in fact, not terminated */
struct msg_text {
	const char *at;
	size_t bytes;
};

/** msg_text - a C string as a text; NULL is empty */
static inline struct msg_text msg_text(const char *text)
{
	return (struct msg_text){ text, text ? strlen(text) : 0 };
}

#define MESSAGES(X)                    \
	X(clock, FIELDS_CLOCK)         \
	X(origin, FIELDS_ORIGIN)       \
	X(drop, FIELDS_DROP)           \
	X(gc_debug, FIELDS_GC_DEBUG)   \
	X(stage, FIELDS_STAGE)         \
	X(comm_sum, FIELDS_COMM_SUM)   \
	X(step, FIELDS_STEP)           \
	X(note, FIELDS_NOTE)           \
	X(thread, FIELDS_THREAD)       \
	X(pytorch, FIELDS_PYTORCH)     \
	X(io, FIELDS_IO)               \
	X(os, FIELDS_OS)               \
	X(frame, FIELDS_FRAME)         \
	X(mem_alloc, FIELDS_MEM_ALLOC) \
	X(mem_free, FIELDS_MEM_FREE)   \
	X(mem_site, FIELDS_MEM_SITE)   \
	X(proc_mem, FIELDS_PROC_MEM)   \
	X(mem_state, FIELDS_MEM_STATE)

#define MSG_CTYPE_u32 uint32_t
#define MSG_CTYPE_u64 uint64_t
#define MSG_CTYPE_i64 int64_t
#define MSG_CTYPE_s64 int64_t
#define MSG_CTYPE_boolean bool
#define MSG_CTYPE_stage_name uint32_t /* enums: numbers in protobuf, names in JSON */
#define MSG_CTYPE_io_name uint32_t
#define MSG_CTYPE_str struct msg_text
#define MSG_CTYPE_bytes struct msg_text

#define MSG_MEMBER(number, type, name, json) MSG_CTYPE_##type name;
#define MSG_DECLARE(name, FIELDS)                                                               \
	struct msg_##name {                                                                     \
		FIELDS(MSG_MEMBER)                                                              \
	};                                                                                      \
	void msg_##name##_pb(struct pb_writer *w, const struct msg_##name *m);                  \
	void msg_##name##_put(struct pb_writer *w, uint32_t field, const struct msg_##name *m); \
	int msg_##name##_read(struct msg_##name *m, const void *data, size_t bytes);            \
	void msg_##name##_json(struct json_writer *w, const struct msg_##name *m);
MESSAGES(MSG_DECLARE)
/* msg_NAME_read returns 0, or -EBADMSG when the bytes are no message (what came before the bad field is in @m then).
 * All: context thread, tool; no allocation. */

/** stage_type_name, io_type_name - names of the schema's enums, "STAGE_FORWARD", "IO_READ"; the first one for others */
const char *stage_type_name(uint32_t type);
const char *io_type_name(uint32_t type);

/** io_type_text - the call as people write it, "read". Context: any. */
const char *io_type_text(uint32_t type);

/** field numbers of what messages hold besides scalars: MSG_PYTORCH_pytorch_stages, ... */
#define MSG_PYTORCH_NUMBER(number, message, name) MSG_PYTORCH_##name = number,
#define MSG_IO_NUMBER(number, message, name) MSG_IO_##name = number,
#define MSG_ORIGIN_NUMBER(number, message, name) MSG_ORIGIN_##name = number,
#define MSG_OS_NUMBER(number, message, name) MSG_OS_##name = number,
#define MSG_PROC_MEM_NUMBER(number, message, name) MSG_PROC_MEM_##name = number,
#define MSG_MEM_ALLOC_NUMBER(number, message, name) MSG_MEM_ALLOC_##name = number,
#define MSG_MEM_SITE_NUMBER(number, message, name) MSG_MEM_SITE_##name = number,
enum msg_nested {
	REPEATED_PYTORCH(MSG_PYTORCH_NUMBER) REPEATED_ORIGIN(MSG_ORIGIN_NUMBER) REPEATED_IO(MSG_IO_NUMBER)
		REPEATED_OS(MSG_OS_NUMBER) REPEATED_PROC_MEM(MSG_PROC_MEM_NUMBER)
			REPEATED_MEM_ALLOC(MSG_MEM_ALLOC_NUMBER) REPEATED_MEM_SITE(MSG_MEM_SITE_NUMBER)
				MSG_STAGE_stack_frames = 5, /* repeated string */
	MSG_STAGE_gc_debug = 6
};

#endif
