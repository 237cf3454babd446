/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Control messages: what is written is read back, and nothing malformed is accepted. */
#include "wire/ctl.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint8_t buffer[CTL_FRAME_BYTES + CTL_MAX_PAYLOAD + 64];

static void written_is_read_back(void **state)
{
	struct ctl_frame frame;
	struct ctl_msg msg;
	char out[32];
	int bytes;

	ctl_begin(&msg, buffer, sizeof(buffer), CTL_ENABLE, 77);
	ctl_add(&msg, "plugin", "IO");
	ctl_add_u64(&msg, "duration", 0);
	ctl_add_u64(&msg, "at", UINT64_MAX);
	ctl_addf(&msg, "plugin.io.text", "%d files", 3);
	ctl_add(&msg, "empty", "");
	bytes = ctl_finish(&msg);
	assert_true(bytes > CTL_FRAME_BYTES);

	assert_int_equal(ctl_frame_decode(buffer, &frame), 0);
	assert_int_equal(frame.version, CTL_VERSION);
	assert_int_equal(frame.verb, CTL_ENABLE);
	assert_int_equal(frame.sequence, 77);
	assert_int_equal(frame.payload_bytes, bytes - CTL_FRAME_BYTES);
	assert_int_equal(ctl_check(buffer + CTL_FRAME_BYTES, frame.payload_bytes), 0);

	assert_int_equal(ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "plugin", out, sizeof(out)), 2);
	assert_string_equal(out, "IO");
	ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "duration", out, sizeof(out));
	assert_string_equal(out, "0");
	ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "at", out, sizeof(out));
	assert_string_equal(out, "18446744073709551615");
	ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "plugin.io.text", out, sizeof(out));
	assert_string_equal(out, "3 files");
	assert_int_equal(ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "empty", out, sizeof(out)), 0);
	assert_string_equal(out, "");
	assert_int_equal(ctl_get(buffer + CTL_FRAME_BYTES, frame.payload_bytes, "other", out, sizeof(out)), -ENOENT);
}

static void bytes_are_as_documented(void **state)
{
	static const uint8_t want[] = { 0x73, 0x54, 0x72, 0x43, 1, 0, 2, 0, 8, 0, 0,   0,
					0x04, 0x03, 0x02, 0x01, 1, 0, 1, 0, 0, 0, 'a', 'b' };
	struct ctl_msg msg;

	ctl_begin(&msg, buffer, sizeof(buffer), CTL_DISABLE, 0x01020304);
	ctl_add(&msg, "a", "b");
	assert_int_equal(ctl_finish(&msg), sizeof(want));
	assert_memory_equal(buffer, want, sizeof(want));
}

static void a_value_is_cut_but_its_length_told(void **state)
{
	struct ctl_msg msg;
	char out[4];

	ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
	ctl_add(&msg, "text", "longer than four");
	ctl_finish(&msg);
	assert_int_equal(ctl_get(buffer + CTL_FRAME_BYTES, msg.used - CTL_FRAME_BYTES, "text", out, sizeof(out)), 16);
	assert_string_equal(out, "lon");
	assert_int_equal(ctl_get(buffer + CTL_FRAME_BYTES, msg.used - CTL_FRAME_BYTES, "text", NULL, 0), 16);
}

static void room_and_keys_are_checked(void **state)
{
	uint8_t tiny[CTL_FRAME_BYTES + 12];
	struct ctl_msg msg;

	ctl_begin(&msg, tiny, sizeof(tiny), CTL_LIST, 1);
	ctl_add(&msg, "abc", "def"); /* 6 + 3 + 3 fit exactly */
	assert_int_equal(ctl_finish(&msg), sizeof(tiny));
	ctl_add(&msg, "a", "");
	assert_int_equal(ctl_finish(&msg), -ENOSPC);

	ctl_begin(&msg, tiny, CTL_FRAME_BYTES - 1, CTL_LIST, 1);
	ctl_add(&msg, "a", "");
	assert_int_equal(ctl_finish(&msg), -ENOSPC);

	for (const char *const *key = (const char *const[]){ "", "Key", "a b", "a-b", "a/b", "\xc3\xa4", NULL }; *key;
	     key++) {
		ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
		ctl_add(&msg, *key, "x");
		assert_int_equal(ctl_finish(&msg), -EINVAL);
	}
}

static void a_payload_never_exceeds_its_limit(void **state)
{
	static char value[CTL_MAX_PAYLOAD];
	struct ctl_frame frame;
	struct ctl_msg msg;

	memset(value, 'x', sizeof(value) - 1);
	ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
	ctl_add(&msg, "a", value); /* with its head a little too long, though the buffer has room */
	assert_int_equal(ctl_finish(&msg), -ENOSPC);

	value[CTL_MAX_PAYLOAD - 7] = '\0';
	ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
	ctl_add(&msg, "a", value);
	assert_int_equal(ctl_finish(&msg), CTL_FRAME_BYTES + CTL_MAX_PAYLOAD);
	assert_int_equal(ctl_frame_decode(buffer, &frame), 0);
}

static void frames_are_checked(void **state)
{
	struct ctl_frame frame;
	struct ctl_msg msg;

	ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
	ctl_finish(&msg);
	buffer[4] = CTL_VERSION + 1;
	assert_int_equal(ctl_frame_decode(buffer, &frame), 0);
	buffer[4] = CTL_VERSION + 2;
	assert_int_equal(ctl_frame_decode(buffer, &frame), -EPROTONOSUPPORT);
	assert_int_equal(frame.version, CTL_VERSION + 2); /* for the message */
	buffer[4] = CTL_VERSION;
	buffer[10] = 4; /* 256 KiB */
	assert_int_equal(ctl_frame_decode(buffer, &frame), 0);
	buffer[8] = 1;
	assert_int_equal(ctl_frame_decode(buffer, &frame), -EMSGSIZE);
	buffer[0] ^= 1;
	assert_int_equal(ctl_frame_decode(buffer, &frame), -EPROTO);
}

static void malformed_payloads_are_refused(void **state)
{
	static const uint8_t bad[][9] = {
		{ 1, 0, 1, 0, 0, 0, 'a' }, /* value missing */
		{ 9, 0, 0, 0, 0, 0, 'a', 'b', 'c' }, /* key longer than the rest */
		{ 1, 0, 0xff, 0xff, 0xff, 0xff, 'a' }, /* value longer than anything */
		{ 0, 0, 0, 0, 0, 0 }, /* empty key */
		{ 1, 0, 0, 0, 0, 0, 'A' }, /* not a key character */
		{ 1, 0, 0 }, /* cut head */
	};
	static const uint32_t len[] = { 7, 9, 7, 6, 7, 3 };

	for (size_t i = 0; i < sizeof(len) / sizeof(len[0]); i++) {
		uint8_t *copy = malloc(len[i]); /* so that a sanitizer sees each byte too many */

		memcpy(copy, bad[i], len[i]);
		assert_int_equal(ctl_check(copy, len[i]), -EPROTO);
		assert_int_equal(ctl_get(copy, len[i], "a", NULL, 0), -ENOENT);
		free(copy);
	}
	assert_int_equal(ctl_check(NULL, 0), 0);
}

static void too_many_entries_are_refused(void **state)
{
	struct ctl_msg msg;

	ctl_begin(&msg, buffer, sizeof(buffer), CTL_LIST, 1);
	for (int i = 0; i < CTL_MAX_ENTRIES; i++)
		ctl_add(&msg, "a", "");
	assert_int_equal(ctl_check(buffer + CTL_FRAME_BYTES, msg.used - CTL_FRAME_BYTES), 0);
	ctl_add(&msg, "a", "");
	assert_int_equal(ctl_check(buffer + CTL_FRAME_BYTES, msg.used - CTL_FRAME_BYTES), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_is_read_back),
		cmocka_unit_test(bytes_are_as_documented),
		cmocka_unit_test(a_value_is_cut_but_its_length_told),
		cmocka_unit_test(room_and_keys_are_checked),
		cmocka_unit_test(a_payload_never_exceeds_its_limit),
		cmocka_unit_test(frames_are_checked),
		cmocka_unit_test(malformed_payloads_are_refused),
		cmocka_unit_test(too_many_entries_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
