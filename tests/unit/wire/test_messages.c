/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Messages of the files: the field lists say what systrace.proto says (protoc's own description of it is the witness),
 * what is written is read back, plain protoc decodes it against the published schema, and readers survive any bytes.
 */
#include "wire/csv.h"
#include "wire/messages.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN ST_SOURCE_DIR "/tests/golden/"

static uint8_t buffer[64 << 10];

static size_t read_command(const char *command, void *data, size_t room)
{
	FILE *f = popen(command, "r");
	size_t n;

	assert_non_null(f);
	n = fread(data, 1, room, f);
	assert_int_equal(pclose(f), 0);
	return n;
}

static void need_protoc(void)
{
	if (system("protoc --version >/dev/null 2>&1") != 0) {
		print_message("skip: protoc is not installed\n");
		skip();
	}
}

/* --- lists against the .proto ------------------------------------------------------------------------------------------- */

struct listed {
	uint32_t number;
	const char *name, *type;
};

#define ROW(number, type, name, json) { number, #name, #type },
#define NESTED(number, message, name) { number, #name, "message" },
#define LIST(name, FIELDS) static const struct listed list_##name[] = { FIELDS(ROW){ 0 } };
MESSAGES(LIST)
static const struct listed nested_origin[] = { REPEATED_ORIGIN(NESTED){ 0 } };
static const struct listed nested_pytorch[] = { REPEATED_PYTORCH(NESTED){ 0 } };
static const struct listed nested_io[] = { REPEATED_IO(NESTED){ 0 } };
static const struct listed nested_proc_mem[] = { REPEATED_PROC_MEM(NESTED){ 0 } };
static const struct listed nested_os[] = { REPEATED_OS(NESTED){ 0 } };
static const struct listed nested_mem_alloc[] = { REPEATED_MEM_ALLOC(NESTED){ 0 } };
static const struct listed nested_mem_site[] = { REPEATED_MEM_SITE(NESTED){ 0 } };
static const struct listed nested_stage[] = { { MSG_STAGE_stack_frames, "stack_frames", "str" },
					      { MSG_STAGE_gc_debug, "gc_debug", "message" },
					      { 0 } };

static const struct {
	const char *proto;
	const struct listed *lists[2];
} messages[] = {
	{ "ClockSnapshot", { list_clock } },
	{ "Origin", { list_origin, nested_origin } },
	{ "Drop", { list_drop } },
	{ "GcDebugData", { list_gc_debug } },
	{ "PytorchStage", { list_stage, nested_stage } },
	{ "CommSum", { list_comm_sum } },
	{ "StepMark", { list_step } },
	{ "Note", { list_note } },
	{ "Thread", { list_thread } },
	{ "Pytorch", { list_pytorch, nested_pytorch } },
	{ "IOEntry", { list_io } },
	{ "IO", { nested_io } },
	{ "StackFrame", { list_frame } },
	{ "MemAllocEntry", { list_mem_alloc, nested_mem_alloc } },
	{ "MemFreeEntry", { list_mem_free } },
	{ "MemSite", { list_mem_site, nested_mem_site } },
	{ "MemState", { list_mem_state } },
	{ "ProcMem", { list_proc_mem, nested_proc_mem } },
	{ "OSprobeEntry", { list_os } },
	{ "OSprobe", { nested_os } },
};

/* FieldDescriptorProto.Type of a list's type name */
static uint64_t type_number(const char *type)
{
	static const struct {
		const char *name;
		uint64_t number;
	} types[] = { { "u32", 13 },	 { "u64", 4 }, { "i64", 3 },	{ "s64", 18 },	  { "stage_name", 14 },
		      { "io_name", 14 }, { "str", 9 }, { "bytes", 12 }, { "boolean", 8 }, { "message", 11 } };

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (!strcmp(types[i].name, type))
			return types[i].number;
	}
	fail_msg("type %s", type);
	return 0;
}

static const struct listed *find_listed(size_t message, uint64_t number)
{
	for (size_t l = 0; l < 2; l++) {
		for (const struct listed *row = messages[message].lists[l]; row && row->number; row++) {
			if (row->number == number)
				return row;
		}
	}
	return NULL;
}

static size_t count_listed(size_t message)
{
	size_t n = 0;

	for (size_t l = 0; l < 2; l++) {
		for (const struct listed *row = messages[message].lists[l]; row && row->number; row++)
			n++;
	}
	return n;
}

static void check_field(size_t message, const struct pb_field *descriptor)
{
	const struct listed *row;
	struct pb_reader r;
	struct pb_field f;
	uint64_t number = 0, type = 0;
	char name[64] = "";

	pb_read(&r, descriptor->data, descriptor->bytes);
	while (pb_next(&r, &f) > 0) {
		if (f.number == 1)
			snprintf(name, sizeof(name), "%.*s", (int)f.bytes, f.data);
		else if (f.number == 3)
			number = f.value;
		else if (f.number == 5)
			type = f.value;
	}
	row = find_listed(message, number);
	if (!row)
		fail_msg("%s.%s = %d is in no list", messages[message].proto, name, (int)number);
	assert_string_equal(row->name, name);
	assert_int_equal(type_number(row->type), type);
}

static void check_message(const struct pb_field *descriptor, size_t *checked)
{
	struct pb_reader r;
	struct pb_field f;
	size_t message = SIZE_MAX, fields = 0;

	pb_read(&r, descriptor->data, descriptor->bytes);
	while (pb_next(&r, &f) > 0) {
		for (size_t i = 0; f.number == 1 && i < sizeof(messages) / sizeof(messages[0]); i++) {
			if (strlen(messages[i].proto) == f.bytes && !memcmp(messages[i].proto, f.data, f.bytes))
				message = i;
		}
		if (f.number == 2 && message != SIZE_MAX) {
			check_field(message, &f);
			fields++;
		}
	}
	if (message == SIZE_MAX)
		return;
	assert_int_equal(fields, count_listed(message));
	(*checked)++;
}

static void lists_say_what_the_proto_says(void **state)
{
	struct pb_reader set, file;
	struct pb_field f, m;
	size_t checked = 0, n;

	(void)state;
	need_protoc();
	n = read_command("protoc --proto_path=" ST_SOURCE_DIR
			 "/src/wire/proto --descriptor_set_out=/dev/stdout systrace.proto",
			 buffer, sizeof(buffer));
	pb_read(&set, buffer, n);
	assert_int_equal(pb_next(&set, &f), 1);
	pb_read(&file, f.data, f.bytes);
	while (pb_next(&file, &m) > 0) {
		if (m.number == 4)
			check_message(&m, &checked);
	}
	assert_int_equal(checked, sizeof(messages) / sizeof(messages[0]));
}

/* --- there and back ------------------------------------------------------------------------------------------------------ */

static uint64_t random_state = 88172645463325252ull;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state >> (random_state % 60); /* all lengths of varints */
}

static const char letters[300] = "\xff\x00 some text, not all of it UTF-8 \xe2\x82";

#define FILL_u32(to) (to) = (uint32_t)next_random()
#define FILL_u64(to) (to) = next_random()
#define FILL_i64(to) (to) = (int64_t)next_random() - 77
#define FILL_s64(to) FILL_i64(to)
#define FILL_stage_name(to) FILL_u32(to)
#define FILL_io_name(to) FILL_u32(to)
#define FILL_bytes(to) FILL_str(to)
#define FILL_boolean(to) (to) = next_random() & 1
#define FILL_str(to)                                     \
	(to) = (struct msg_text)                         \
	{                                                \
		letters, next_random() % sizeof(letters) \
	}
#define SAME_u32(a, b) assert_int_equal(a, b)
#define SAME_u64(a, b) assert_int_equal(a, b)
#define SAME_i64(a, b) assert_int_equal(a, b)
#define SAME_s64(a, b) assert_int_equal(a, b)
#define SAME_stage_name(a, b) assert_int_equal(a, b)
#define SAME_io_name(a, b) assert_int_equal(a, b)
#define SAME_bytes(a, b) SAME_str(a, b)
#define SAME_boolean(a, b) assert_int_equal(a, b)
#define SAME_str(a, b)                          \
	assert_int_equal((a).bytes, (b).bytes); \
	if ((a).bytes)                          \
	assert_memory_equal((a).at, (b).at, (a).bytes)
#define FILL_FIELD(number, type, name, json) FILL_##type(in.name);
#define SAME_FIELD(number, type, name, json) SAME_##type(in.name, out.name);
#define ROUND_TRIP(name, FIELDS)                                               \
	static void round_trip_##name(void)                                    \
	{                                                                      \
		struct msg_##name in, out;                                     \
		struct pb_writer w;                                            \
		struct pb_reader r;                                            \
		struct pb_field f;                                             \
                                                                               \
		FIELDS(FILL_FIELD)                                             \
		pb_init(&w, buffer, sizeof(buffer));                           \
		msg_##name##_put(&w, 31, &in);                                 \
		pb_u64(&w, 1, 5);                                              \
		assert_false(w.full);                                          \
		pb_read(&r, buffer, w.used);                                   \
		assert_int_equal(pb_next(&r, &f), 1);                          \
		assert_int_equal(f.number, 31);                                \
		assert_int_equal(msg_##name##_read(&out, f.data, f.bytes), 0); \
		FIELDS(SAME_FIELD)                                             \
		assert_int_equal(pb_next(&r, &f), 1);                          \
		assert_int_equal(f.value, 5);                                  \
		assert_int_equal(pb_next(&r, &f), 0);                          \
	}
MESSAGES(ROUND_TRIP)

static void written_is_read_back(void **state)
{
	(void)state;
	for (int i = 0; i < 500; i++) {
#define RUN_ONE(name, FIELDS) round_trip_##name();
		MESSAGES(RUN_ONE)
	}
}

/* --- a golden file ------------------------------------------------------------------------------------------------------- */

static size_t golden_timeline(uint8_t *data, size_t room)
{
	struct msg_origin origin = { .run = msg_text("run-1"),
				     .host = msg_text("node0001"),
				     .rank = 5,
				     .rank_known = true,
				     .world_size = 8,
				     .job = msg_text("train.py"),
				     .version = msg_text("0.1.0"),
				     .format = 1,
				     .wall_minus_mono_ns = -5,
				     .author = msg_text("agent"),
				     .pid = 4242 };
	struct msg_clock clock = { .mono_ns = 1000000007, .realtime_ns = 1760000000000000007 };
	struct msg_pytorch top = { .rank = 5, .comm = msg_text("train.py") };
	struct msg_stage stage = { .stage_id = 2,
				   .stage_type = msg_text("torch@forward"),
				   .start_us = 1760000000000001,
				   .end_us = 1760000000000345,
				   .start_ns = 1000001000,
				   .dur_ns = 344000,
				   .step = 9,
				   .kind = STAGE_FORWARD,
				   .tid = 77 };
	struct msg_stage gc = { .stage_id = 2,
				.stage_type = msg_text("GC"),
				.start_us = 1760000000000400,
				.end_us = 1760000000000500,
				.start_ns = 1000400000,
				.dur_ns = 100000,
				.step = 9,
				.kind = STAGE_GC,
				.gen = 2 };
	struct msg_gc_debug debug = { .collected = 150, .uncollectable = 1 };
	struct msg_step step = {
		.source = STEP_BY_OPTIMIZER, .microbatches = 4, .start_ns = 1000000000, .dur_ns = 900000, .step = 9
	};
	struct msg_drop drop = { .source = msg_text("stage"), .count = 12, .from_ns = 1, .to_ns = 2 };
	struct pb_writer w;
	size_t mark;

	pb_init(&w, data, room);
	mark = pb_begin(&w, MSG_PYTORCH_origin);
	msg_origin_pb(&w, &origin);
	msg_clock_put(&w, MSG_ORIGIN_clocks, &clock);
	pb_end(&w, mark);
	msg_pytorch_pb(&w, &top);
	mark = pb_begin(&w, MSG_PYTORCH_pytorch_stages);
	msg_stage_pb(&w, &stage);
	pb_bytes(&w, MSG_STAGE_stack_frames, "forward@model.py:12", 19);
	pb_bytes(&w, MSG_STAGE_stack_frames, "main@train.py:99", 16);
	pb_end(&w, mark);
	mark = pb_begin(&w, MSG_PYTORCH_pytorch_stages);
	msg_stage_pb(&w, &gc);
	msg_gc_debug_put(&w, MSG_STAGE_gc_debug, &debug);
	pb_end(&w, mark);
	msg_step_put(&w, MSG_PYTORCH_steps, &step);
	top = (struct msg_pytorch){ .step_id = 9 };
	msg_pytorch_pb(&w, &top);
	msg_drop_put(&w, MSG_PYTORCH_drops, &drop);
	assert_false(w.full);
	return w.used;
}

static void write_golden(const char *path, const void *data, size_t bytes)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, bytes, f), bytes);
	fclose(f);
}

static size_t read_golden(const char *path, void *data, size_t room)
{
	FILE *f = fopen(path, "rb");
	size_t n;

	if (!f)
		fail_msg("%s is missing; ST_UPDATE_GOLDEN=1 writes it", path);
	n = fread(data, 1, room, f);
	fclose(f);
	return n;
}

static void bytes_are_the_golden_ones(void **state)
{
	static uint8_t want[4096];
	size_t n = golden_timeline(buffer, sizeof(buffer));

	(void)state;
	if (getenv("ST_UPDATE_GOLDEN"))
		write_golden(GOLDEN "published_v3.timeline", buffer, n);
	assert_int_equal(read_golden(GOLDEN "published_v3.timeline", want, sizeof(want)), n);
	assert_memory_equal(buffer, want, n);
}

static void published_schema_decodes_the_golden_file(void **state)
{
	static char want[8192], got[8192];
	size_t n, m;

	(void)state;
	need_protoc();
	n = read_command("protoc --proto_path=" GOLDEN " --decode=Pytorch published_v3.proto <" GOLDEN
			 "published_v3.timeline",
			 got, sizeof(got));
	if (getenv("ST_UPDATE_GOLDEN"))
		write_golden(GOLDEN "published_v3.txt", got, n);
	m = read_golden(GOLDEN "published_v3.txt", want, sizeof(want));
	assert_int_equal(n, m);
	assert_memory_equal(got, want, n);
}

/* --- any bytes ------------------------------------------------------------------------------------------------------------- */

static void readers_survive_any_bytes(void **state)
{
	static uint8_t damaged[4096];
	size_t n = golden_timeline(buffer, sizeof(buffer));
	struct msg_pytorch top;
	struct msg_origin origin;
	struct pb_reader r;
	struct pb_field f;
	int ret;

	(void)state;
	for (size_t cut = 0; cut < n; cut++) { /* a cut tail: all fields before it, then an error or a clean end */
		uint8_t *exact = malloc(cut ? cut : 1); /* ASan sees a read behind it */

		memcpy(exact, buffer, cut);
		pb_read(&r, exact, cut);
		while ((ret = pb_next(&r, &f)) > 0)
			msg_origin_read(&origin, f.data, f.bytes);
		assert_true(ret == 0 || ret == -EBADMSG);
		assert_true(r.at <= r.end);
		free(exact);
	}
	for (int i = 0; i < 20000; i++) {
		size_t bytes = next_random() % sizeof(damaged);

		for (size_t b = 0; b < bytes && b < 64; b++)
			damaged[b] = (uint8_t)next_random();
		ret = msg_pytorch_read(&top, damaged, bytes < 64 ? bytes : 64);
		assert_true(ret == 0 || ret == -EBADMSG);
	}
}

static void a_full_buffer_is_noticed(void **state)
{
	uint8_t small[700];
	size_t n = golden_timeline(buffer, sizeof(buffer));

	(void)state;
	assert_true(n < sizeof(small));
	for (size_t room = 0; room < 60; room++) {
		struct msg_thread thread = { .pid = 1u << 31, .tid = 5, .comm = msg_text("a thread of some name") };
		struct pb_writer w;

		memset(small, 0x5a, sizeof(small));
		pb_init(&w, small, room);
		msg_thread_put(&w, 33, &thread);
		assert_true(w.full || w.used <= room);
		for (size_t i = room; i < sizeof(small); i++)
			assert_int_equal(small[i], 0x5a);
	}
}

/* --- JSON and CSV -------------------------------------------------------------------------------------------------------- */

static void json_texts_are_escaped(void **state)
{
	static const struct {
		const char *text;
		size_t bytes;
		const char *want;
	} rows[] = {
		{ "plain", 5, "\"plain\"" },
		{ "a\"b\\c\n", 6, "\"a\\\"b\\\\c\\n\"" },
		{ "\0\x1f\x7f", 3, "\"\\u0000\\u001f\\u007f\"" },
		{ "gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x99\x82", 15,
		  "\"gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x99\x82\"" },
		{ "\xff\xc3", 2, "\"\\u00ff\\u00c3\"" }, /* stray, cut */
		{ "\xc0\xaf", 2, "\"\\u00c0\\u00af\"" }, /* overlong */
		{ "\xed\xa0\x80", 3, "\"\\u00ed\\u00a0\\u0080\"" }, /* surrogate */
		{ "\xf4\x90\x80\x80", 4, "\"\\u00f4\\u0090\\u0080\\u0080\"" }, /* beyond Unicode */
		{ "", 0, "\"\"" },
	};
	char text[128];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct json_writer w;

		json_init(&w, text, sizeof(text));
		json_text(&w, rows[i].text, rows[i].bytes);
		assert_false(w.full);
		assert_int_equal(w.used, strlen(rows[i].want));
		assert_memory_equal(text, rows[i].want, w.used);
	}
}

static void json_has_published_fields_always(void **state)
{
	static const char want[] = "{\"stage_id\":0,\"stage_type\":\"GC\",\"start_us\":18446744073709551615,"
				   "\"end_us\":0,\"dur_ns\":7}";
	struct msg_stage stage = { .stage_type = msg_text("GC"), .start_us = UINT64_MAX, .dur_ns = 7 };
	struct msg_origin origin = { .wall_minus_mono_ns = INT64_MIN };
	struct json_writer w;
	char text[1024];

	(void)state;
	json_init(&w, text, sizeof(text));
	json_open(&w, '{');
	msg_stage_json(&w, &stage);
	json_close(&w, '}');
	assert_int_equal(w.used, sizeof(want) - 1);
	assert_memory_equal(text, want, w.used);

	json_init(&w, text, sizeof(text) - 1);
	msg_origin_json(&w, &origin);
	text[w.used] = 0;
	assert_non_null(strstr(text, "\"wall_minus_mono_ns\":-9223372036854775808,"));
}

static void csv_rows_are_the_documented_ones(void **state)
{
	struct csv_marker m = {
		.flag = CSV_MARKER_START, .id = 41, .wall_ns = 1760000000000000001, .first = 70000, .second = 70001
	};
	struct csv_writer w = { .data = (char *)buffer, .room = 200 };
	char name[64];
	static const char want[] =
		"2,41,1,comm:all_gather!dp!0!float32!4096,0,1760000000000000001,70000,70001,70000,70001\n"
		"4,41,1,,0,1760000000000000001,70000,70001,70000,70001\n";

	(void)state;
	m.name = name;
	m.name_bytes =
		csv_comm_name(name, sizeof(name), msg_text("all_gather"), msg_text("dp,0"), msg_text("float32"), 4096);
	csv_marker_put(&w, &m);
	m.flag = CSV_MARKER_END;
	m.name = NULL;
	csv_marker_put(&w, &m);
	assert_false(w.full);
	assert_int_equal(w.used, sizeof(want) - 1);
	assert_memory_equal(buffer, want, w.used);
	csv_marker_put(&w, &m);
	csv_marker_put(&w, &m);
	assert_true(w.full);
	assert_int_equal(((char *)buffer)[w.used - 1], '\n'); /* whole rows only */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_say_what_the_proto_says),
		cmocka_unit_test(written_is_read_back),
		cmocka_unit_test(bytes_are_the_golden_ones),
		cmocka_unit_test(published_schema_decodes_the_golden_file),
		cmocka_unit_test(readers_survive_any_bytes),
		cmocka_unit_test(a_full_buffer_is_noticed),
		cmocka_unit_test(json_texts_are_escaped),
		cmocka_unit_test(json_has_published_fields_always),
		cmocka_unit_test(csv_rows_are_the_documented_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
