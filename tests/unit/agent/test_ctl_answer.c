/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Answers of the agent: every request, also a damaged one, gets a well-formed answer with a code (docs/formats/ctl.md). */
#include "agent/ctl_answer.h"
#include "agent/env.h"
#include "agent/identity.h"
#include "agent/life.h"
#include "agent/plugin_frame.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char place[] = "/tmp/st-answer-XXXXXX";
static uint8_t request[65536], reply[CTL_FRAME_BYTES + CTL_MAX_PAYLOAD];

static int set_up(void **state)
{
	struct spool_options options = { .size = sizeof(options), .place = place };
	struct st_err err;

	if (!mkdtemp(place))
		return -1;
	env_read();
	identity_start();
	return spool_create(&life.spool, &agent.pool, &options, &err);
}

static int tear_down(void **state)
{
	char command[128];

	spool_remove(&life.spool);
	snprintf(command, sizeof(command), "rm -rf %s", place);
	return system(command);
}

/* Ask; the answer must be whole. Return: its code, or 1 when it waits for the io thread. */
static int ask(const void *data, uint32_t bytes, struct ctl_frame *frame, char *text, size_t room)
{
	struct ctl_wait wait = { .verb = frame->verb };
	struct ctl_msg answer;
	struct ctl_frame back;
	char code[16];
	int len;

	frame->payload_bytes = bytes;
	ctl_begin(&answer, reply, sizeof(reply), frame->verb | CTL_ANSWER, frame->sequence);
	ctl_answer(frame, data, &answer, &wait);
	if (wait.waits)
		return 1;
	len = ctl_finish(&answer);
	assert_true(len >= CTL_FRAME_BYTES);
	assert_int_equal(ctl_frame_decode(reply, &back), 0);
	assert_int_equal(back.sequence, frame->sequence);
	assert_int_equal(ctl_check(reply + CTL_FRAME_BYTES, back.payload_bytes), 0);
	assert_true(ctl_get(reply + CTL_FRAME_BYTES, back.payload_bytes, CTL_KEY_CODE, code, sizeof(code)) > 0);
	text[0] = 0;
	ctl_get(reply + CTL_FRAME_BYTES, back.payload_bytes, CTL_KEY_TEXT, text, room);
	return atoi(code);
}

static uint32_t build(uint16_t verb, const char *const *pairs)
{
	struct ctl_msg msg;

	ctl_begin(&msg, request, sizeof(request), verb, 1);
	for (; *pairs; pairs += 2)
		ctl_add(&msg, pairs[0], pairs[1]);
	return (uint32_t)ctl_finish(&msg) - CTL_FRAME_BYTES;
}

static int ask_pairs(uint16_t verb, char *text, size_t room, const char *const *pairs)
{
	struct ctl_frame frame = { .version = CTL_VERSION, .verb = verb, .sequence = 77 };
	uint32_t bytes = build(verb, pairs);

	return ask(request + CTL_FRAME_BYTES, bytes, &frame, text, room);
}
#define ASK(verb, ...) ask_pairs(verb, text, sizeof(text), (const char *const[]){ __VA_ARGS__, NULL })

static void test_verbs(void **state)
{
	char text[600];

	assert_int_equal(ASK(CTL_LIST, "unknown", "key"), 0);
	assert_int_equal(ASK(CTL_STATUS, "unknown", "key"), 0);
	assert_int_equal(ASK(CTL_PLUGINS, "unknown", "key"), 0);
	assert_int_equal(ASK(99, "unknown", "key"), -EOPNOTSUPP);
	assert_int_equal(ASK(CTL_FLUSH, "unknown", "key"), 1);
}

static void test_refusals_say_why(void **state)
{
	char text[600];

	assert_int_equal(ASK(CTL_ENABLE, "event", "marker"), -EINVAL);
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "nothing"), -ENOENT);
	assert_non_null(strstr(text, "MSPTI"));
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "CPU"), -ENOTSUP);
	assert_non_null(strstr(text, "probe"));
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "MSPTI", "at", "1"), -ERANGE);
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "MSPTI", "duration", "x"), -EINVAL);
	assert_non_null(strstr(text, "duration"));
	assert_int_equal(ASK(CTL_DISABLE, "plugin", "MSPTI"), 0);
	assert_string_equal(text, "was off");
}

static void test_waiting_for_a_step(void **state)
{
	struct plugin_frame_status status;
	char text[600];

	atomic_store(&agent.pool.head->step, 10);
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "MSPTI", "start_step", "10"), -ERANGE);
	assert_int_equal(ASK(CTL_ENABLE, "plugin", "MSPTI", "start_step", "12", "steps", "1"), 0);
	assert_non_null(strstr(text, "armed: starts at step 12 (now at 11)"));
	plugin_frame_status(PLUGIN_MSPTI, &status);
	assert_int_equal(status.state, FRAME_WAITING);
	assert_true(plugin_frame_due(1000) < 1000 + 100000000u);
	plugin_frame_tick(1000);
	plugin_frame_status(PLUGIN_MSPTI, &status);
	assert_int_equal(status.state, FRAME_WAITING);
	assert_int_equal(ASK(CTL_DISABLE, "plugin", "MSPTI"), 0);
	assert_non_null(strstr(text, "was waiting"));
	assert_true(plugin_frame_due(1000) == UINT64_MAX);
}

static void test_damaged_requests(void **state)
{
	static const char *const pairs[] = { "plugin", "MSPTI",	 "event", "marker", "duration", "1",
					     "at",     "9e9999", "steps", "3",	    NULL };
	struct ctl_frame frame = { .version = CTL_VERSION, .sequence = 5 };
	uint32_t bytes = build(CTL_ENABLE, pairs);
	unsigned int seed = 7;
	char text[600];
	int i, n;

	for (i = 0; i < 20000; i++) {
		static uint8_t copy[4096];

		memcpy(copy, request + CTL_FRAME_BYTES, bytes);
		for (n = rand_r(&seed) % 5; n >= 0; n--)
			copy[(uint32_t)rand_r(&seed) % bytes] = (uint8_t)rand_r(&seed);
		frame.verb = (uint16_t)(1 + rand_r(&seed) % 2);
		ask(copy, i % 3 ? bytes : (uint32_t)rand_r(&seed) % bytes, &frame, text, sizeof(text));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verbs),
		cmocka_unit_test(test_refusals_say_why),
		cmocka_unit_test(test_waiting_for_a_step),
		cmocka_unit_test(test_damaged_requests),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
