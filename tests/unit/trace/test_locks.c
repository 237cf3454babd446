/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Mutex and GIL files and I/O calls in JSON: what the agent writes becomes events; folded, cut and foreign ones. */
#include "trace_fixture.h"

#define HEAD                                                                                                           \
	"{\"displayTimeUnit\":\"ns\",\"records\":\"%s\",\"origin\":[{\"run\":\"r\",\"host\":\"h\",\"pid\":10,"         \
	"\"rank\":3,\"rank_known\":true,\"wall_minus_mono_ns\":5,\"clocks\":[{\"mono_ns\":9,\"realtime_ns\":14}]}%s]," \
	"\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":10,\"args\":{\"name\":\"rank 3 (h)\","     \
	"\"rank\":3}}"

static void write_file(struct fixture *fx, const char *records, const char *origins, const char *events,
		       const char *tail)
{
	char text[8192];
	int n = snprintf(text, sizeof(text), HEAD "%s%s", records, origins, events, tail);

	fx_write(fx, "x.json", text, (size_t)n);
}

#define THREAD ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":10,\"tid\":11,\"args\":{\"name\":\"worker\"}}"
#define HOLD                                                                                                       \
	",\n{\"ph\":\"X\",\"name\":\"GIL hold\",\"pid\":10,\"tid\":11,\"cat\":\"GIL\",\"ts\":100.001,\"dur\":2.5," \
	"\"args\":{\"forced\":1,\"step\":7}}"
#define WAIT                                                                                                         \
	",\n{\"ph\":\"X\",\"name\":\"GIL wait\",\"pid\":20,\"tid\":20,\"cat\":\"GIL\",\"ts\":101.000,\"dur\":1.000," \
	"\"args\":{\"timeouts\":2,\"interpreter\":1,\"cut\":\"went on after it\",\"step\":1}}"

static void gil(void **state)
{
	struct fixture *fx = *state;

	write_file(fx, "GIL", "", THREAD HOLD WAIT, "\n]}\n");
	fx_read(fx);
	assert_string_equal(fx->reader->ops->format, "gil-json");
	assert_int_equal(fx->reader->origin.rank, 3);
	assert_int_equal(fx->reader->origin.wall_minus_mono_ns, 5);
	assert_string_equal(fx->text, "15/3 worker 9+0 c0 r3 s0 p10/11 q0 what=thread\n"
				      "8/0 GIL hold 100001+2500 c0 r3 s7 p10/11 q0 forced=1\n"
				      "8/0 GIL wait 101000+1000 c0 r3 s1 p20/20 q4 timeouts=2 interpreter=1\n");
	assert_string_equal(fx->lines, "");
}

static void folded(void **state)
{
	struct fixture *fx = *state;

	write_file(
		fx, "GIL", ",{\"run\":\"r\",\"host\":\"h\",\"pid\":20,\"rank\":4,\"rank_known\":true}",
		",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":21,\"args\":{\"name\":\"x\",\"rank\":4}}" HOLD WAIT
		",\n{\"ph\":\"X\",\"name\":\"GIL hold\",\"pid\":21,\"tid\":21,\"cat\":\"GIL\",\"ts\":1,\"dur\":1,\"args\":{}}",
		"\n]}\n");
	fx_read(fx);
	assert_string_equal(fx->text, "8/0 GIL hold 100001+2500 c0 r3 s7 p10/11 q0 forced=1\n"
				      "8/0 GIL wait 101000+1000 c0 r4 s1 p20/20 q4 timeouts=2 interpreter=1\n"
				      "8/0 GIL hold 1000+1000 c0 r4 s0 p21/21 q16\n");
}

static void mutex_cut(void **state)
{
	struct fixture *fx = *state;

	write_file(
		fx, "Mutex", "",
		",\n{\"ph\":\"X\",\"name\":\"sem_wait\",\"pid\":10,\"tid\":10,\"cat\":\"lock\",\"ts\":5.5,\"dur\":0.25,"
		"\"args\":{\"lock\":\"0x10\",\"lock_at\":\"3+0x8\",\"caller\":\"0x20\",\"owner_tid\":12,\"errno\":110,\"step\":2}}"
		",\n{\"ph\":\"i\",\"name\":\"calls: sem_wait\",\"pid\":10,\"tid\":10,\"s\":\"p\",\"ts\":9,\"args\":{\"calls\":77}}"
		",\n{\"ph\":\"i\",\"name\":\"records lost\",\"pid\":10,\"tid\":10,\"s\":\"p\",\"ts\":9,\"args\":{\"count\":4}}",
		",\n{\"ph\":\"X\",\"na");
	fx_read(fx);
	assert_string_equal(fx->reader->ops->format, "mutex-json");
	assert_string_equal(
		fx->text,
		"9/0 sem_wait 5500+250 c0 r3 s2 p10/10 q0 lock=0x10 3+0x8 caller=0x20 owner_tid=12 errno=110\n"
		"22/3 sem_wait 9000+0 c0 r3 s0 p10/10 q0 calls=77\n"
		"23/3 Mutex 9000+0 c0 r3 s0 p10/10 q0 count=4\n");
	assert_int_equal(fx->reader->stats.lost, 4);
	assert_non_null(strstr(fx->lines, "the file is cut"));
}

static void values_of_the_wrong_kind(void **state)
{
	struct fixture *fx = *state;

	write_file(
		fx, "Mutex", "",
		",\n{\"ph\":\"X\",\"name\":\"sem_wait\",\"pid\":10,\"tid\":10,\"cat\":\"lock\",\"ts\":5,\"dur\":\"long\","
		"\"args\":{\"lock\":\"0x10\",\"more\":{\"deep\":[1,{}]},\"errno\":1e99}},7,\"x\",[1],{}",
		"\n]}\n");
	fx_read(fx);
	assert_string_equal(fx->text, "9/0 sem_wait 5000+0 c0 r3 s0 p10/10 q0 lock=0x10\n");
	assert_non_null(strstr(fx->lines, "values of the wrong type"));
}

static void io_calls(void **state)
{
	static const char text[] =
		"{\"origin\":[{\"host\":\"h\",\"pid\":10,\"rank\":3,\"rank_known\":true}],\"IO_entries\":[\n"
		"{\"start_us\":1,\"dur\":2,\"stage_id\":1,\"stage_type\":\"STAGE_DATALOADER\",\"io_type\":\"IO_READ\","
		"\"rank\":3,\"file_name\":\"/a\",\"start_ns\":1500,\"dur_ns\":2500,\"step\":4,\"bytes\":512,\"fd\":8},\n"
		"{\"start_us\":1,\"io_type\":\"IO_SEND\",\"start_ns\":5000,\"bytes\":-32,\"peer\":\"unix:/s\",\"pid\":11,"
		"\"tid\":12,\"worker\":true,\"is_socket\":true}\n],\"dropped\":5                   }\n";
	struct fixture *fx = *state;

	fx_write(fx, "io.json", text, sizeof(text) - 1);
	fx_read(fx);
	assert_string_equal(fx->reader->ops->format, "io-json");
	assert_string_equal(fx->text, "7/0 read 1500+2500 c0 r3 s4 p10/10 q0 file=/a bytes=512 errno=0 stage_id=1 "
				      "stage_type=STAGE_DATALOADER fd=7\n"
				      "26/0 send 5000+0 c0 r3 s0 p11/12 q16 peer=unix:/s bytes=0 errno=32 stage_id=0\n"
				      "23/0 io 0+0 c0 r3 s0 p10/10 q0 count=5\n");
	assert_int_equal(fx->reader->stats.lost, 5);
}

static void not_ours(void **state)
{
	static const char *const texts[] = {
		"{\"traceEvents\":[]}",
		"{\"displayTimeUnit\":\"ns\",\"records\":\"Other\",\"traceEvents\":[]}",
		"{\"displayTimeUnit\":\"ns\",\"records\":\"GI",
	};
	struct fixture *fx = *state;
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		fx_write(fx, "x.json", texts[i], strlen(texts[i]));
		assert_int_equal(fx_read(fx), -1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(gil, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(folded, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(mutex_cut, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(values_of_the_wrong_kind, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(io_calls, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(not_ours, fx_setup, fx_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
