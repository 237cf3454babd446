/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The probe's os_trace files; see os_file.h. Protobuf: concatenated OSprobe messages; JSON: one object that grows. */
#include "probe/os_file.h"
#include "base/hash64.h"
#include "probe/out.h"
#include "safe/clock.h"
#include "wire/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLDER "osprobe"
#define ENTRY_MAX 2048u /* of one encoded entry: its texts are short */
#define SECOND_NS 1000000000ull
#define CLOCKS_NS (60 * SECOND_NS)
#define SEEN_MIN 256u

struct os_file {
	struct probe_target *target;
	unsigned users;
	struct probe_out out;
	bool open;
	bool said; /* that it can't be written, until it can again */
	bool elements; /* JSON: the array holds something */
	int64_t wall_minus_mono_ns;
	uint64_t hour_end_ns; /* CLOCK_MONOTONIC: the next entry that ends later begins a new file */
	uint64_t clocks_ns; /* when the next clock snapshot is due */
	uint64_t retry_ns; /* after a file could not be made: when to try again */
	uint64_t unwritten; /* entries in the buffer */
	uint64_t lost; /* entries that a failed write cost, not yet told to the caller */
	uint64_t dropped; /* told in the file */
	uint64_t *seen; /* hashes of the (tid, comm) told, open addressing; 0 = empty */
	size_t seen_room, seen_count;
};

static uint64_t all_bytes;

struct os_file *os_file_get(struct probe_target *target)
{
	struct os_file *file = target->files[PLUGIN_CPU];

	if (!file) {
		file = calloc(1, sizeof(*file));
		if (!file)
			return NULL;
		file->target = target;
		file->out.fd = -1;
		target->files[PLUGIN_CPU] = file;
	}
	file->users++;
	return file;
}

static void close_file(struct os_file *file)
{
	uint64_t before = file->out.bytes;

	if (!file->open)
		return;
	probe_out_close(&file->out);
	all_bytes += file->out.bytes - before;
	file->open = false;
}

void os_file_drop(struct os_file *file)
{
	if (!file || --file->users)
		return;
	close_file(file);
	file->target->files[PLUGIN_CPU] = NULL;
	free(file->seen);
	free(file);
}

uint64_t os_file_bytes(void)
{
	return all_bytes;
}

/* --- the head ---------------------------------------------------------------------------------------------------------- */

static struct msg_clock clock_of(const struct clock_snapshot *now)
{
	return (struct msg_clock){ .mono_ns = now->mono_ns,
				   .mono_raw_ns = now->mono_raw_ns,
				   .boottime_ns = now->boottime_ns,
				   .realtime_ns = now->realtime_ns };
}

static int put_origin_pb(struct os_file *file, const struct msg_origin *origin, const struct clock_snapshot *now)
{
	struct msg_clock clock = clock_of(now);
	uint8_t data[4096];
	struct pb_writer w;
	size_t mark;

	pb_init(&w, data, sizeof(data));
	mark = pb_begin(&w, MSG_OS_origin);
	msg_origin_pb(&w, origin);
	msg_clock_put(&w, MSG_ORIGIN_clocks, &clock);
	pb_end(&w, mark);
	return w.full ? -EMSGSIZE : probe_out_put(&file->out, w.data, w.used);
}

static int put_head_json(struct os_file *file, const struct msg_origin *origin, const struct clock_snapshot *now)
{
	struct msg_clock clock = clock_of(now);
	struct json_writer w;
	char data[8192];

	json_init(&w, data, sizeof(data));
	json_open(&w, '{');
	json_key(&w, "origin");
	json_open(&w, '[');
	json_open(&w, '{');
	msg_origin_json(&w, origin);
	json_key(&w, "clocks");
	json_open(&w, '[');
	json_open(&w, '{');
	msg_clock_json(&w, &clock);
	json_close(&w, '}');
	json_close(&w, ']');
	json_close(&w, '}');
	json_close(&w, ']');
	json_key(&w, "OSprobe_entries");
	json_open(&w, '[');
	return w.full ? -EMSGSIZE : probe_out_put(&file->out, w.data, w.used);
}

static void set_tail(struct os_file *file)
{
	if (file->target->json)
		snprintf(file->out.tail, sizeof(file->out.tail), "\n],\"dropped\":%-20llu}\n",
			 (unsigned long long)file->dropped);
}

/* Name and end of the hour that this moment lies in. */
static void name_of_hour(struct os_file *file, uint64_t mono_ns, char *stem, size_t room)
{
	const struct msg_origin *origin = &file->target->origin;
	uint64_t wall_ns = mono_ns + (uint64_t)file->wall_minus_mono_ns;
	time_t wall_s = (time_t)(wall_ns / SECOND_NS);
	struct tm tm;
	char hour[32];

	localtime_r(&wall_s, &tm);
	strftime(hour, sizeof(hour), "%Y%m%d_%H", &tm);
	snprintf(stem, room, "os_trace_%s_rank_%u_%u", hour, origin->rank, origin->pid);
	file->hour_end_ns =
		mono_ns - wall_ns % SECOND_NS + (3600u - (unsigned)tm.tm_min * 60u - (unsigned)tm.tm_sec) * SECOND_NS;
}

static int open_file(struct os_file *file, uint64_t mono_ns)
{
	struct msg_origin origin = file->target->origin;
	struct clock_snapshot now;
	struct st_err err = { 0 };
	char stem[96], tail[PROBE_OUT_TAIL] = "";
	int ret;

	clock_snapshot_take(&now);
	file->wall_minus_mono_ns = (int64_t)(now.realtime_ns - now.mono_ns);
	name_of_hour(file, mono_ns, stem, sizeof(stem));
	file->dropped = 0;
	if (file->target->json)
		snprintf(tail, sizeof(tail), "\n],\"dropped\":%-20llu}\n", 0ull);
	ret = probe_out_open(&file->out, file->target, FOLDER, stem, file->target->json ? ".probe.json" : ".probe.pb",
			     tail, PROBE_OUT_APPEND, &err);
	if (ret < 0) {
		if (!file->retry_ns)
			probe_log("%s; what is recorded of process %d is lost until it can be", err.text,
				  (int)file->target->pid);
		file->retry_ns = mono_ns + SECOND_NS;
		return ret;
	}
	file->open = true;
	file->retry_ns = 0;
	file->elements = !file->out.empty;
	file->clocks_ns = now.mono_ns + CLOCKS_NS;
	file->seen_count = 0;
	if (file->seen)
		memset(file->seen, 0, file->seen_room * sizeof(*file->seen));
	origin.wall_minus_mono_ns = file->wall_minus_mono_ns;
	if (!file->target->json)
		return put_origin_pb(file, &origin, &now);
	return file->out.empty ? put_head_json(file, &origin, &now) : 0;
}

/* The file for an entry that ends at @mono_ns. */
static int ready(struct os_file *file, uint64_t mono_ns)
{
	if (file->open && mono_ns >= file->hour_end_ns)
		close_file(file);
	if (file->open)
		return 0;
	if (file->retry_ns && mono_ns < file->retry_ns)
		return -EAGAIN;
	return open_file(file, mono_ns);
}

/* --- encoding ---------------------------------------------------------------------------------------------------------- */

/*
 * An entry as protobuf, from the one list of its fields, without looking at the room for each byte: the caller has made
 * sure of ENTRY_MAX. This is the probe's hottest code (200 000 entries a second), so tags are made by the compiler and the
 * length takes two bytes whatever it is, which readers of protobuf accept.
 */
static inline uint8_t *fast_varint(uint8_t *at, uint64_t value)
{
	while (value >= 0x80) {
		*at++ = (uint8_t)(value | 0x80);
		value >>= 7;
	}
	*at++ = (uint8_t)value;
	return at;
}

static inline uint8_t *fast_number(uint8_t *at, uint32_t number, uint64_t value)
{
	return value ? fast_varint(fast_varint(at, number << 3 | PB_VARINT), value) : at;
}

static inline uint8_t *fast_text(uint8_t *at, uint32_t number, struct msg_text text)
{
	if (!text.bytes)
		return at;
	at = fast_varint(fast_varint(at, number << 3 | PB_BYTES), text.bytes);
	memcpy(at, text.at, text.bytes);
	return at + text.bytes;
}

#define FAST_u32 fast_number
#define FAST_u64 fast_number
#define FAST_str fast_text
#define FAST_FIELD(number, type, name, json) at = FAST_##type(at, number, entry->name);
#define TEXT_ROOM_u32(text) 0
#define TEXT_ROOM_u64(text) 0
#define TEXT_ROOM_str(text) (text).bytes
#define TEXT_ROOM(number, type, name, json) +TEXT_ROOM_##type(entry->name)

static size_t encode(uint8_t *to, const struct msg_os *entry)
{
	uint8_t *begin = fast_varint(to, MSG_OS_OSprobe_entries << 3 | PB_BYTES);
	uint8_t *at = begin + 2;
	size_t bytes;

	FIELDS_OS(FAST_FIELD)
	bytes = (size_t)(at - begin) - 2;
	begin[0] = (uint8_t)(bytes | 0x80);
	begin[1] = (uint8_t)(bytes >> 7);
	return (size_t)(at - to);
}

/* --- entries ----------------------------------------------------------------------------------------------------------- */

/* The buffer goes to the file; what a failed write costs is kept for os_file_write(). */
static int write_out(struct os_file *file)
{
	uint64_t before = file->out.bytes;
	int ret = probe_out_write(&file->out);

	all_bytes += file->out.bytes - before;
	if (ret < 0) {
		file->lost += file->unwritten;
		if (!file->said)
			probe_log("cannot write %s/%s: %s", file->target->dump_path, file->out.name, strerror(-ret));
	}
	file->said = ret < 0;
	file->unwritten = 0;
	return ret;
}

static int put_json(struct os_file *file, const struct msg_os *entry)
{
	struct json_writer w;
	char data[ENTRY_MAX * 6];

	json_init(&w, data, sizeof(data));
	json_raw(&w, file->elements ? ",\n" : "\n");
	json_open(&w, '{');
	msg_os_json(&w, entry);
	json_close(&w, '}');
	if (w.full)
		return -EMSGSIZE;
	if (file->out.used + w.used > PROBE_OUT_WRITE - PROBE_OUT_TAIL)
		write_out(file);
	file->elements = true;
	return probe_out_put(&file->out, w.data, w.used);
}

int os_file_put(struct os_file *file, struct msg_os *entry)
{
	struct probe_out *out = &file->out;
	int ret = ready(file, entry->start_ns + entry->dur_ns + entry->on_ns);

	if (ret < 0)
		return ret;
	entry->start_us = (entry->start_ns + (uint64_t)file->wall_minus_mono_ns) / 1000;
	entry->dur = entry->dur_ns / 1000;
	entry->rank = file->target->origin.rank;
	if (file->target->json) {
		ret = put_json(file, entry);
	} else {
		/* encoded where it will be written from */
		if (out->used + ENTRY_MAX > PROBE_OUT_WRITE - PROBE_OUT_TAIL)
			write_out(file);
		if (FIELDS_OS(TEXT_ROOM) > ENTRY_MAX / 2)
			return -EMSGSIZE;
		out->used += encode(out->buf + out->used, entry);
	}
	file->unwritten++;
	return ret;
}

/* Is this the first time? */
static bool first_time(struct os_file *file, uint64_t key)
{
	size_t at;

	if (file->seen_count * 2 >= file->seen_room) {
		size_t room = file->seen_room ? file->seen_room * 2 : SEEN_MIN;
		uint64_t *seen = calloc(room, sizeof(*seen));

		if (!seen)
			return true;
		for (size_t i = 0; i < file->seen_room; i++) {
			for (at = file->seen[i] & (room - 1); file->seen[i] && seen[at]; at = (at + 1) & (room - 1))
				;
			if (file->seen[i])
				seen[at] = file->seen[i];
		}
		free(file->seen);
		file->seen = seen;
		file->seen_room = room;
	}
	key |= !key;
	for (at = key & (file->seen_room - 1); file->seen[at]; at = (at + 1) & (file->seen_room - 1))
		if (file->seen[at] == key)
			return false;
	file->seen[at] = key;
	file->seen_count++;
	return true;
}

int os_file_thread(struct os_file *file, uint32_t pid, uint32_t tid, uint32_t inner_tid, const char *comm)
{
	struct msg_thread thread = { .pid = pid, .tid = tid, .comm = msg_text(comm), .inner_tid = inner_tid };
	uint8_t data[256];
	struct pb_writer w;
	int ret;

	if (file->target->json)
		return 0; /* the published form has no place for them; entries carry the name */
	ret = ready(file, clock_mono_ns());
	if (ret < 0)
		return ret;
	if (!first_time(file, hash64(comm, strlen(comm)) * 31 + tid))
		return 0;
	pb_init(&w, data, sizeof(data));
	msg_thread_put(&w, MSG_OS_threads, &thread);
	return w.full ? -EMSGSIZE : probe_out_put(&file->out, w.data, w.used);
}

int os_file_drops(struct os_file *file, const char *source, uint64_t count, uint64_t from_ns, uint64_t to_ns)
{
	struct msg_drop drop = { .source = msg_text(source), .count = count, .from_ns = from_ns, .to_ns = to_ns };
	uint8_t data[128];
	struct pb_writer w;
	int ret = ready(file, to_ns);

	if (ret < 0)
		return ret;
	file->dropped += count;
	set_tail(file);
	if (file->target->json)
		return 0;
	pb_init(&w, data, sizeof(data));
	msg_drop_put(&w, MSG_OS_drops, &drop);
	return w.full ? -EMSGSIZE : probe_out_put(&file->out, w.data, w.used);
}

int os_file_write(struct os_file *file, uint64_t *lost)
{
	struct clock_snapshot now;
	int ret = file->open ? write_out(file) : 0;

	if (lost)
		*lost += file->lost;
	file->lost = 0;
	if (file->open && !file->target->json && clock_mono_ns() >= file->clocks_ns) {
		struct msg_origin origin = { .wall_minus_mono_ns = file->wall_minus_mono_ns };

		clock_snapshot_take(&now);
		file->clocks_ns = now.mono_ns + CLOCKS_NS;
		put_origin_pb(file, &origin, &now);
	}
	return ret;
}
