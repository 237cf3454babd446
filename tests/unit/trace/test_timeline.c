/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Timeline files: ours and old ones, protobuf and JSON, whole, cut and damaged; both forms give the same events. */
#include "trace_fixture.h"
#include "trace/os.h"

#include "wire/messages.h"

#include <errno.h>

struct out {
	uint8_t data[1 << 16];
	struct pb_writer w;
};

static void put_origin(struct pb_writer *w)
{
	const struct msg_origin origin = {
		.run = msg_text("run-1"),
		.host = msg_text("node7"),
		.rank = 3,
		.rank_known = true,
		.world_size = 8,
		.job = msg_text("train.py"),
		.wall_minus_mono_ns = 1000000000000,
		.pid = 100,
		.run_start_us = 5,
	};

	msg_origin_put(w, 100, &origin);
}

static void put_stage(struct pb_writer *w, const struct msg_stage *stage, const char *const *frames)
{
	const struct msg_gc_debug gc = { .collected = 12, .uncollectable = 1 };
	size_t mark = pb_begin(w, 1);

	msg_stage_pb(w, stage);
	for (; frames && *frames; frames++)
		pb_bytes(w, 5, *frames, strlen(*frames));
	if (stage->kind == STAGE_GC)
		msg_gc_debug_put(w, 6, &gc);
	pb_end(w, mark);
}

/* A file with one of everything. */
static void put_all(struct pb_writer *w)
{
	size_t mark;

	static const char *const frames[] = { "inner@a.py:3", "outer@b.py:10", NULL };

	put_origin(w);
	put_stage(w,
		  &(struct msg_stage){ .stage_id = 1,
				       .stage_type = msg_text("mod@forward"),
				       .start_us = 1,
				       .end_us = 2,
				       .start_ns = 5000,
				       .dur_ns = 700,
				       .step = 2,
				       .kind = STAGE_FORWARD },
		  frames);
	put_stage(w,
		  &(struct msg_stage){ .stage_id = 1,
				       .stage_type = msg_text("GC"),
				       .start_ns = 5100,
				       .dur_ns = 5,
				       .step = 2,
				       .kind = STAGE_GC,
				       .gen = 2,
				       .tid = 102 },
		  NULL);
	put_stage(w,
		  &(struct msg_stage){ .stage_id = 2,
				       .stage_type = msg_text("load"),
				       .start_ns = 5200,
				       .dur_ns = 9,
				       .kind = STAGE_DATALOADER,
				       .pid = 200,
				       .flags = STAGE_WORKER | STAGE_RAISED },
		  NULL);
	/* a clock snapshot in between: the writer stays the same */
	mark = pb_begin(w, 100);
	msg_origin_pb(w, &(struct msg_origin){ .wall_minus_mono_ns = 1000000000007, .segment = 0 });
	msg_clock_put(w, 20, &(struct msg_clock){ .mono_ns = 5500 });
	pb_end(w, mark);
	msg_comm_sum_put(w, 30,
			 &(struct msg_comm_sum){ .op = msg_text("all_reduce"),
						 .group = msg_text("tp0"),
						 .calls = 4,
						 .total_ns = 800,
						 .max_ns = 300,
						 .last_start_ns = 6500,
						 .elements = 1024,
						 .last_seq = 44,
						 .start_ns = 6000,
						 .step = 2 });
	msg_step_put(w, 31,
		     &(struct msg_step){ .source = STEP_BY_OPTIMIZER,
					 .microbatches = 2,
					 .renumbered_from = 9,
					 .start_ns = 4000,
					 .dur_ns = 3000,
					 .step = 2 });
	msg_note_put(w, 32, &(struct msg_note){ .text = msg_text("sampling 1 of 4"), .start_ns = 6600, .step = 2 });
	msg_thread_put(w, 33, &(struct msg_thread){ .pid = 100, .tid = 102, .comm = msg_text("pt_autograd_0") });
	msg_drop_put(w, 101,
		     &(struct msg_drop){ .source = msg_text("pool"), .count = 31, .from_ns = 6700, .to_ns = 6800 });
}

static const char all_events[] =
	"1/0 mod@forward 5000+700 c0 r3 s2 p100/100 q0 kind=2 stage_id=1 <inner@a.py:3;outer@b.py:10>\n"
	"1/0 GC 5100+5 c0 r3 s2 p100/102 q0 kind=5 stage_id=1 generation=2 collected=12 uncollectable=1\n"
	"1/0 load 5200+9 c0 r3 s0 p200/200 q24 kind=1 stage_id=2\n"
	"4/0 all_reduce 6000+500 c0 r3 s2 p100/100 q0 calls=4 total_ns=800 max_ns=300 last_start_ns=6500 elements=1024 "
	"last_seq=44 group=tp0\n"
	"2/0 step 4000+3000 c0 r3 s2 p100/100 q0 source=optimizer microbatches=2 renumbered_from=9\n"
	"24/3 sampling 1 of 4 6600+0 c0 r3 s2 p100/100 q0\n"
	"15/3 pt_autograd_0 6600+0 c0 r3 s0 p100/102 q0 what=thread\n"
	"23/0 pool 6700+100 c0 r3 s0 p100/100 q0 count=31\n";

/* the same records as our own JSON */
static const char all_json[] =
	"{\"origin\":[{\"run\":\"run-1\",\"host\":\"node7\",\"rank\":3,\"rank_known\":true,\"world_size\":8,"
	"\"job\":\"train.py\",\"wall_minus_mono_ns\":1000000000000,\"pid\":100,\"run_start_us\":5,"
	"\"clocks\":[{\"mono_ns\":7},{\"mono_ns\":8}]}],\n"
	"\"pytorch_stages\":[{\"stage_id\":1,\"stage_type\":\"mod@forward\",\"start_us\":1,\"end_us\":2,\"start_ns\":5000,"
	"\"dur_ns\":700,\"step\":2,\"kind\":2,\"stack_frames\":[\"inner@a.py:3\",\"outer@b.py:10\"]},\n"
	"{\"stage_id\":1,\"stage_type\":\"GC\",\"start_ns\":5100,\"dur_ns\":5,\"step\":2,\"kind\":5,\"gen\":2,\"tid\":102,"
	"\"gc_debug\":{\"collected\":12,\"uncollectable\":1}},\n"
	"{\"stage_id\":2,\"stage_type\":\"load\",\"start_ns\":5200,\"dur_ns\":9,\"kind\":1,\"pid\":200,\"flags\":5}],\n"
	"\"comm_sums\":[{\"op\":\"all_reduce\",\"group\":\"tp0\",\"calls\":4,\"total_ns\":800,\"max_ns\":300,"
	"\"last_start_ns\":6500,\"elements\":1024,\"last_seq\":44,\"start_ns\":6000,\"step\":2}],"
	"\"steps\":[{\"source\":1,\"microbatches\":2,\"renumbered_from\":9,\"start_ns\":4000,\"dur_ns\":3000,\"step\":2}],"
	"\"notes\":[{\"text\":\"sampling 1 of 4\",\"start_ns\":6600,\"step\":2}],"
	"\"threads\":[{\"pid\":100,\"tid\":102,\"comm\":\"pt_autograd_0\"}],"
	"\"drops\":[{\"source\":\"pool\",\"count\":31,\"from_ns\":6700,\"to_ns\":6800}]}\n";

static void protobuf_whole(void **state)
{
	struct fixture *fx = *state;
	struct out out;

	pb_init(&out.w, out.data, sizeof(out.data));
	put_all(&out.w);
	assert_false(out.w.full);
	fx_write(fx, "node7--00003.timeline", out.data, out.w.used);
	assert_int_equal(fx_read(fx), 0);
	assert_string_equal(fx->text, all_events);
	assert_string_equal(fx->lines, "");
	assert_string_equal(fx->reader->ops->format, "timeline-pb");
	assert_true(fx->reader->origin.known);
	assert_int_equal(fx->reader->origin.wall_minus_mono_ns, 1000000000000);
	assert_string_equal(ev_text(fx->session, fx->reader->origin.host), "node7");
	assert_int_equal(fx->reader->stats.lost, 31);
	assert_int_equal(fx->reader->stats.bytes, out.w.used);
}

static void json_gives_the_same(void **state)
{
	struct fixture *fx = *state;

#ifndef HAVE_YAJL
	skip();
#endif
	fx_write(fx, "node7--00003.timeline", all_json, sizeof(all_json) - 1);
	assert_int_equal(fx_read(fx), 0);
	assert_string_equal(fx->reader->ops->format, "timeline-json");
	assert_string_equal(fx->text, all_events);
	assert_string_equal(fx->lines, "");
	assert_int_equal(fx->reader->origin.rank, 3);
}

/* The companion of a JSON file: an array of messages. */
static void json_companion(void **state)
{
	struct fixture *fx = *state;
	static const char json[] =
		"{\"rank\":0,\"comm\":\"job\",\"origin\":[{\"run\":\"r\",\"host\":\"h\",\"rank\":4,\"rank_known\":true,\"pid\":9}],"
		"\"ext\":[{\"steps\":[{\"source\":2,\"start_ns\":70,\"dur_ns\":30,\"step\":1}]},\n"
		"{\"origin\":[{\"segment\":0,\"clocks\":[{\"mono_ns\":80}]}]},\n"
		"{\"notes\":[{\"text\":\"hello\",\"start_ns\":90}]},\n{\"drops\":[{\"source\":\"comm\",\"count\":3}]}\n]}\n";

#ifndef HAVE_YAJL
	skip();
#endif
	fx_write(fx, "h--00004.timeline.ext.json", json, sizeof(json) - 1);
	assert_int_equal(fx_read(fx), 0);
	assert_string_equal(fx->text, "2/0 step 70+30 c0 r4 s1 p9/9 q0 source=dataloader microbatches=0\n"
				      "24/3 hello 90+0 c0 r4 s0 p9/9 q0\n"
				      "23/0 comm 90+0 c0 r4 s0 p9/9 q0 count=3\n");
	assert_string_equal(fx->lines, "");
	assert_false(fx->reader->stats.torn);
}

static void canonical_json(void **state)
{
	struct fixture *fx = *state;
	static const char json[] =
		"{\"pytorchStages\":[{\"stageId\":4,\"stageType\":\"dataloader\","
		"\"startUs\":\"1700000000000001\",\"endUs\":\"1700000000000011\",\"stackFrames\":[\"f@x:1\"],"
		"\"newField\":{\"a\":[1,{}]}}],\"rank\":6,\"stepId\":9,\"comm\":\"python3\"}";

#ifndef HAVE_YAJL
	skip();
#endif
	fx_write(fx, "somewhere", json, sizeof(json) - 1);
	assert_int_equal(fx_read(fx), 0);
	assert_string_equal(fx->text,
			    "1/0 dataloader 1700000000000001000+10000 c3 r6 s0 p-1/-1 q0 kind=1 stage_id=4 <f@x:1>\n");
	assert_string_equal(fx->lines, "somewhere: 1 fields of a newer version left out\n");
}

/* The published schema alone: rank and job behind the stages; several chunks appended. */
static void old_protobuf(void **state)
{
	struct fixture *fx = *state;
	struct out out;
	int i;

	pb_init(&out.w, out.data, sizeof(out.data));
	for (i = 0; i < 2; i++) {
		put_stage(&out.w,
			  &(struct msg_stage){
				  .stage_id = 1, .stage_type = msg_text("backward"), .start_us = 1000, .end_us = 1010 },
			  NULL);
		pb_u64(&out.w, 2, 12);
		pb_u64(&out.w, 3, 55);
		pb_bytes(&out.w, 4, "python3", 7);
	}
	fx_write(fx, "x.bin", out.data, out.w.used);
	assert_int_equal(fx_read(fx), 0);
	assert_string_equal(fx->text, "1/0 backward 1000000+10000 c3 r12 s0 p-1/-1 q0 kind=3 stage_id=1\n"
				      "1/0 backward 1000000+10000 c3 r12 s0 p-1/-1 q0 kind=3 stage_id=1\n");
	assert_string_equal(ev_text(fx->session, fx->reader->origin.job), "python3");
	assert_false(fx->reader->origin.known);
}

static void rank_of_the_name(void **state)
{
	struct fixture *fx = *state;
	struct out out;

	pb_init(&out.w, out.data, sizeof(out.data));
	put_stage(&out.w, &(struct msg_stage){ .stage_type = msg_text("GC"), .start_us = 1, .end_us = 2 }, NULL);
	fx_write(fx, "host-a--00021.timeline", out.data, out.w.used);
	assert_int_equal(fx_read(fx), 0);
	assert_int_equal(fx->reader->origin.rank, 21);
	fx_write(fx, "noname", out.data, out.w.used);
	assert_int_equal(fx_read(fx), 0);
	assert_int_equal(fx->reader->origin.rank, EV_NO_RANK);
}

/* Cut at every byte: never an error from next(), the whole records before the cut come out. */
static void cut_anywhere(void **state)
{
	struct fixture *fx = *state;
	struct out out;
	size_t at, opened = 0;

	pb_init(&out.w, out.data, sizeof(out.data));
	put_all(&out.w);
	for (at = 1; at < out.w.used; at++) {
		fx_write(fx, "cut--1.timeline", out.data, at);
		if (fx_read(fx) < 0) {
			assert_non_null(strstr(fx->err.text, "cut--1.timeline"));
			assert_true(fx->err.code < 0);
			continue;
		}
		opened++;
		assert_memory_equal(fx->text, all_events, strlen(fx->text));
		if (fx->reader->stats.torn)
			assert_non_null(strstr(fx->lines, "is cut at byte"));
	}
	assert_true(opened > out.w.used / 2);
	for (at = 1; at < sizeof(all_json) - 3; at++) {
		fx_write(fx, "cut--1.timeline", all_json, at);
		if (fx_read(fx) < 0)
			continue;
		assert_true(fx->reader->stats.torn);
		assert_memory_equal(fx->text, all_events, strlen(fx->text));
	}
}

static void damaged_inside(void **state)
{
	struct fixture *fx = *state;
	struct out out;

	pb_init(&out.w, out.data, sizeof(out.data));
	put_origin(&out.w);
	pb_bytes(&out.w, 1, "\x0a\xff\xff\xff", 4); /* a stage whose inside is none */
	msg_note_put(&out.w, 32, &(struct msg_note){ .text = msg_text("still here"), .start_ns = 1 });
	pb_u64(&out.w, 4000, 1);
	memset(out.data + out.w.used, 0, 9); /* zeros: no field has number 0 */
	fx_write(fx, "a--1", out.data, out.w.used + 9);
	assert_int_equal(fx_read(fx), 0);
	assert_int_equal(fx->count, 1);
	assert_non_null(strstr(fx->lines, "1 damaged records left out, the first at byte "));
	assert_non_null(strstr(fx->lines, "no protobuf field begins here at byte "));
	assert_non_null(strstr(fx->lines, "1 fields of a newer version left out"));
	assert_true(fx->reader->stats.torn);
}

static void packed(void **state)
{
	struct fixture *fx = *state;
	struct out out;
	char command[400];
	static const char *const packers[] = { "gzip -k", "zstd -q -k" };
	static const char *const suffixes[] = { "gz", "zst" };
	size_t i;

	pb_init(&out.w, out.data, sizeof(out.data));
	put_all(&out.w);
	for (i = 0; i < 2; i++) {
		fx_write(fx, "p--3.timeline", out.data, out.w.used);
		snprintf(command, sizeof(command),
			 "cd %s && %s p--3.timeline 2>/dev/null && cat p--3.timeline.%s p--3.timeline.%s > two",
			 fx->dir, packers[i], suffixes[i], suffixes[i]);
		if (system(command) != 0) {
			print_message("no %s here\n", packers[i]);
			continue;
		}
		snprintf(fx->path, sizeof(fx->path), "%s/p--3.timeline.%s", fx->dir, suffixes[i]);
		assert_int_equal(fx_read(fx), 0);
		assert_string_equal(fx->text, all_events);
		assert_int_equal(fx->reader->stats.bytes, out.w.used);
		snprintf(fx->path, sizeof(fx->path), "%s/two", fx->dir);
		assert_int_equal(fx_read(fx), 0);
		assert_int_equal(fx->count, 16);
		/* a cut packed file: a warning, no error */
		assert_int_equal(truncate(fx->path, (off_t)fx->reader->stats.total_bytes - 9), 0);
		assert_int_equal(fx_read(fx), 0);
		assert_true(fx->reader->stats.torn);
		assert_non_null(strstr(fx->lines, "stream"));
	}
}

/* An entry of the probe: 3 ms off the CPU, of which it could have run 2; `cc1` ran instead */
static void probe_entry(void **state)
{
	static const unsigned char file[] = { 0x0a, 0x1b, 0x08, 0x07, 0x10, 0x80, 0x08, 0x18, 0xb8, 0x17,
					      0x28, 0x04, 0x30, 0x05, 0x3a, 0x01, 0x70, 0x42, 0x03, 0x63,
					      0x63, 0x31, 0x48, 0x09, 0xb8, 0x01, 0x80, 0x89, 0x7a };
	struct fixture *fx = *state;
	struct event ev;

	fx_write(fx, "os", file, sizeof(file));
	fx->reader = ev_open(fx->session, fx->path, &fx->err);
	assert_non_null(fx->reader);
	assert_string_equal(fx->reader->ops->format, "os-pb");
	assert_int_equal(ev_next(fx->reader, &ev, &fx->err), 1);
	assert_int_equal(ev.kind, EV_OFFCPU);
	assert_int_equal(ev.t_ns, 1024000);
	assert_int_equal(ev.dur_ns, 3000000);
	assert_int_equal(ev.rank, 5);
	assert_int_equal(ev.track.tid, 7);
	assert_string_equal(ev_text(fx->session, ev.args[OS_ARG_WHO].name), "cc1 9");
	assert_int_equal(ev.args[OS_ARG_MORE].u64, 2000000);
	assert_int_equal(ev_next(fx->reader, &ev, &fx->err), 0);
}

static void what_is_none_of_ours(void **state)
{
	struct fixture *fx = *state;
	static const struct {
		const char *data;
		size_t len;
		const char *want;
	} files[] = {
		{ "", 0, "is empty" },
		{ "{\"traceEvents\": []}", 19, "Chrome trace already" },
		{ "\x7f"
		  "ELF0000",
		  8, "7f 45 4c 46" },
		{ "{\"Whatever\": []}", 16, "none of the known formats" },
		{ "\x0a\x02\x0a\x00", 4, "none of the known formats" }, /* a text where all of them have a number */
	};
	size_t i;

	for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		fx_write(fx, "odd", files[i].data, files[i].len);
		assert_int_equal(fx_read(fx), -1);
		assert_non_null(strstr(fx->err.text, files[i].want));
	}
	snprintf(fx->path, sizeof(fx->path), "%s/absent", fx->dir);
	assert_int_equal(fx_read(fx), -1);
	assert_int_equal(fx->err.code, -ENOENT);
	strcpy(fx->path, fx->dir);
	assert_int_equal(fx_read(fx), -1);
	assert_int_equal(fx->err.code, -EISDIR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(protobuf_whole, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(json_gives_the_same, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(json_companion, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(canonical_json, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(old_protobuf, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(rank_of_the_name, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(cut_anywhere, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(damaged_inside, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(packed, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(probe_entry, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(what_is_none_of_ours, fx_setup, fx_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
