/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Interning of names and stacks: same text, same id; ids are dense and texts never move. */
#include "trace/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* behind the headers it needs */
#include <cmocka.h>

static void same_text_same_id(void **state)
{
	struct ev_session *session = ev_session_new();
	uint32_t forward = ev_name(session, "forward", 7);

	assert_int_not_equal(forward, 0);
	assert_int_equal(ev_name(session, "forward()", 7), forward);
	assert_int_not_equal(ev_name(session, "forwar", 6), forward);
	assert_int_equal(ev_namez(session, "forward"), forward);
	assert_string_equal(ev_text(session, forward), "forward");
	assert_int_equal(ev_text_len(session, forward), 7);
	assert_int_equal(ev_name(session, "", 0), 0);
	assert_string_equal(ev_text(session, 0), "");
	assert_string_equal(ev_text(session, 1000000), "");
	ev_session_free(session);
}

static void bytes_of_any_kind(void **state)
{
	struct ev_session *session = ev_session_new();
	uint32_t id = ev_name(session, "a\0b", 3);

	assert_int_not_equal(id, ev_name(session, "a", 1));
	assert_int_equal(ev_text_len(session, id), 3);
	assert_memory_equal(ev_text(session, id), "a\0b", 4);
	ev_session_free(session);
}

static void many_names_keep_their_place(void **state)
{
	struct ev_session *session = ev_session_new();
	const char *first = ev_text(session, ev_namez(session, "name 0"));
	char text[8192];
	uint32_t i;

	for (i = 0; i < 50000; i++) {
		snprintf(text, sizeof(text), "name %u", i);
		assert_int_equal(ev_namez(session, text), i + 1);
	}
	memset(text, 'x', sizeof(text));
	for (i = 0; i < 100; i++)
		assert_int_equal(ev_name(session, text, 6000 + i), 50001 + i);
	assert_ptr_equal(ev_text(session, ev_namez(session, "name 0")), first);
	assert_string_equal(ev_text(session, 49999), "name 49998");
	assert_int_equal(ev_name_count(session), 50101);
	ev_session_free(session);
}

static void stacks(void **state)
{
	struct ev_session *session = ev_session_new();
	const uint32_t frames[3] = { 7, 8, 9 };
	const uint32_t *got;
	uint32_t id = ev_stack(session, frames, 3);

	assert_int_not_equal(id, 0);
	assert_int_equal(ev_stack(session, frames, 3), id);
	assert_int_not_equal(ev_stack(session, frames, 2), id);
	assert_int_equal(ev_stack_frames(session, id, &got), 3);
	assert_memory_equal(got, frames, sizeof(frames));
	assert_int_equal(ev_stack(session, frames, 0), 0);
	assert_int_equal(ev_stack_frames(session, 0, &got), 0);
	assert_int_equal(ev_stack_frames(session, 4711, &got), 0);
	ev_session_free(session);
}

static void sources(void **state)
{
	struct ev_session *session = ev_session_new();

	assert_int_equal(ev_source_add(session, "a"), 0);
	assert_int_equal(ev_source_add(session, "b"), 1);
	assert_string_equal(ev_source_path(session, 1), "b");
	assert_string_equal(ev_source_path(session, 2), "");
	ev_session_free(session);
	ev_session_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_text_same_id),
		cmocka_unit_test(bytes_of_any_kind),
		cmocka_unit_test(many_names_keep_their_place),
		cmocka_unit_test(stacks),
		cmocka_unit_test(sources),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
