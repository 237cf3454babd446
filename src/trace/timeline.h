/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the two readers of timeline files (protobuf and JSON) share: the tables by which JSON fills the messages of
 * wire/messages.h, and the turning of a message into an event. Private to trace/.
 */
#ifndef TRACE_TIMELINE_H
#define TRACE_TIMELINE_H

#include "trace/event.h"
#include "wire/messages.h"
#include "wire/record.h"

#define TL_MAX_FRAMES 256

enum tl_message {
	TL_NONE,
	TL_STAGE,
	TL_COMM_SUM,
	TL_STEP,
	TL_NOTE,
	TL_THREAD,
	TL_ORIGIN,
	TL_DROP,
	TL_CLOCK,
	TL_GC_DEBUG,
	TL_PYTORCH, /* scalars of the top level */
	TL_IO, /* of io_trace files in JSON; turned into events by io.c */
	TL_MEM_ALLOC, /* these stand inside others, or are top levels of their own: trace/mem.h */
	TL_MEM_FREE,
	TL_MEM_SITE,
	TL_MEM_STATE,
	TL_PROC_MEM,
	TL_FRAME,
	TL_OS, /* of os_trace files; turned into events by os.c */
	TL_MESSAGES
};

/** struct tl_record - room for any record, with what stages and origins nest */
struct tl_record {
	union {
		struct msg_stage stage;
		struct msg_comm_sum comm_sum;
		struct msg_step step;
		struct msg_note note;
		struct msg_thread thread;
		struct msg_origin origin;
		struct msg_drop drop;
		struct msg_pytorch pytorch;
		struct msg_io io;
		struct msg_os os;
	};
	struct msg_gc_debug gc_debug; /* of a stage */
	struct msg_clock clock; /* of an origin: the first of its snapshots */
	bool has_clock;
	uint32_t nframes;
	struct msg_text frames[TL_MAX_FRAMES]; /* of a stage, innermost first */
};

enum tl_type { TL_u32, TL_u64, TL_i64, TL_s64, TL_boolean, TL_str, TL_bytes, TL_stage_name, TL_io_name };

/** struct tl_field - one row of a message's table; the offset is into its struct msg_... */
struct tl_field {
	uint16_t number;
	uint8_t type; /* enum tl_type */
	uint16_t offset;
	const char *json;
};

/** tl_find_json - row of a field by its JSON name; `_` and case do not matter, so that lowerCamelCase finds it too */
const struct tl_field *tl_find_json(enum tl_message message, const char *name, size_t len);

/** tl_same_name - two JSON names but for `_` and case */
bool tl_same_name(const char *name, size_t len, const char *want);

/** tl_by_number/_json - which record a field of the top level holds, TL_NONE if it is none */
enum tl_message tl_by_number(uint32_t number);
enum tl_message tl_by_json(const char *name, size_t len);

/** tl_clear - empty a record before it is filled; frames are only counted 0 */
void tl_clear(struct tl_record *record);

/** tl_set_number - put a number into a field of a message's struct; false when the field is no number */
bool tl_set_number(const struct tl_field *field, void *message, uint64_t value);

/** tl_set_text - the name of an enum's value ("IO_READ") into a field of it; false when the field is none or knows it not */
bool tl_set_text(const struct tl_field *field, void *message, const char *text, size_t len);

/** struct tl_state - what turns records into events, one per file */
struct tl_state {
	struct ev_reader *reader;
	uint32_t key_kind, key_stage_id, key_gen, key_collected, key_uncollectable, key_source, key_microbatches;
	uint32_t key_renumbered, key_calls, key_total, key_max, key_last_start, key_elements, key_last_seq, key_group;
	uint32_t key_count, key_what, name_step, name_thread, name_lost, name_unnamed;
	uint32_t step_sources[4];
	uint64_t last_ns; /* of the newest event, for records without a time */
};

/** tl_state_init - intern the keys, take the rank from the file's name. Return: 0 or -ENOMEM. */
int tl_state_init(struct tl_state *state, struct ev_reader *reader);

/**
 * tl_event - turn a record into an event, or apply it to the reader (origin, rank)
 *
 * Return: 1 = *ev is filled, 0 = no event. Texts are interned, @record may be reused.
 */
int tl_event(struct tl_state *state, enum tl_message message, const struct tl_record *record, struct event *ev);

/**
 * tl_rank/tl_job - the published fields rank and comm of the top level
 *
 * Files without an Origin have nothing else; protobuf writes them behind the records they are about, so readers look
 * them up first where they can.
 */
void tl_rank(struct tl_state *state, uint64_t rank);
void tl_job(struct tl_state *state, struct msg_text job);

/** tl_rank_of_name - rank in the name of a timeline file (`host--00003.timeline`). Return: rank or EV_NO_RANK. */
int32_t tl_rank_of_name(const char *path);

#endif
