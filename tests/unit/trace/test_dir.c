/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Files of a directory: runs are kept apart, segments come in order, what is no file of ours is passed over. */
#include "trace_fixture.h"

#include "trace/dir.h"
#include "wire/messages.h"

#include <errno.h>
#include <sys/stat.h>

static const char *const pb_only[] = { "timeline-pb", NULL };

/* One stage named @stage in a file of @run. */
static void make_file(struct fixture *fx, const char *name, const char *run, uint64_t start_us, const char *stage,
		      uint64_t at_ns)
{
	uint8_t data[512];
	struct pb_writer w;

	pb_init(&w, data, sizeof(data));
	if (run)
		msg_origin_put(&w, 100,
			       &(struct msg_origin){ .run = msg_text(run),
						     .host = msg_text("h"),
						     .rank_known = true,
						     .run_start_us = start_us,
						     .wall_minus_mono_ns = 1 });
	msg_stage_put(&w, 1, &(struct msg_stage){ .stage_type = msg_text(stage), .start_ns = at_ns, .start_us = 1 });
	fx_write(fx, name, data, w.used);
}

struct notes {
	char text[2048];
};

static void note(void *arg, const char *text)
{
	struct notes *notes = arg;

	strncat(notes->text, text, sizeof(notes->text) - strlen(notes->text) - 2);
	strcat(notes->text, "\n");
}

/* Names of the stages of the selected run, in the order read. */
static int names(struct fixture *fx, const char *run, char *out, size_t room, struct notes *notes)
{
	struct dir_set *set = dir_new(fx->session, pb_only);
	struct merge *merge = merge_new(fx->session);
	struct event ev;
	int ret;

	*out = 0;
	*notes = (struct notes){ { 0 } };
	assert_int_equal(dir_add(set, fx->dir, &fx->err), 0);
	ret = dir_select(set, run, note, notes, &fx->err);
	if (ret > 0)
		assert_true(dir_open(set, merge, note, notes, &fx->err) > 0);
	while (ret > 0 && merge_next(merge, &ev, NULL) == 1) {
		strncat(out, ev_text(fx->session, ev.name), room - strlen(out) - 2);
		strcat(out, " ");
	}
	merge_free(merge);
	dir_free(set);
	return ret;
}

static void newest_run_or_the_one_asked_for(void **state)
{
	struct fixture *fx = *state;
	struct notes notes;
	char got[256];

	make_file(fx, "h--0.timeline", "new", 20, "n0", 100);
	make_file(fx, "h--1.timeline", "new", 21, "n1", 200);
	make_file(fx, "h--0.timeline.1700000000", "old", 10, "o0", 50);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 2);
	assert_string_equal(got, "n0 n1 ");
	assert_string_equal(notes.text, "run new of 2 is shown; the others (--run): old\n");
	assert_int_equal(names(fx, "old", got, sizeof(got), &notes), 1);
	assert_string_equal(got, "o0 ");
	assert_int_equal(names(fx, "none", got, sizeof(got), &notes), -ENOENT);
	assert_non_null(strstr(fx->err.text, "there is: "));
	assert_non_null(strstr(fx->err.text, "new"));
}

/* .2 before .10 before the live file, also where only the order of the files tells (times are the same). */
static void segments_in_order(void **state)
{
	struct fixture *fx = *state;
	struct notes notes;
	char got[256];

	make_file(fx, "h--0.timeline", "r", 1, "live", 100);
	make_file(fx, "h--0.timeline.10", "r", 1, "ten", 100);
	make_file(fx, "h--0.timeline.2", "r", 1, "two", 100);
	make_file(fx, "h--0.timeline.1700000000", "r", 1, "earlier", 100);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 4);
	assert_string_equal(got, "earlier two ten live ");
	assert_string_equal(notes.text, "");
}

static void files_without_a_run(void **state)
{
	struct fixture *fx = *state;
	struct notes notes;
	char got[256];

	make_file(fx, "old--0.timeline", NULL, 0, "plain", 100);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 1);
	assert_string_equal(got, "plain ");
	make_file(fx, "h--1.timeline", "r1", 1, "one", 200);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 2);
	assert_string_equal(got, "plain one ");
	make_file(fx, "h--2.timeline", "r2", 2, "two", 300);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 1);
	assert_string_equal(got, "two ");
	assert_non_null(strstr(notes.text, "1 files that do not say their run are left out"));
}

static void other_files_are_passed_over(void **state)
{
	struct fixture *fx = *state;
	struct notes notes;
	char got[256], path[128];

	make_file(fx, "h--0.timeline", "r", 1, "s", 100);
	fx_write(fx, "notes.txt", "hello", 5);
	fx_write(fx, "half.part", "x", 1);
	fx_write(fx, "m-1.csv", "Flag,Id,Kind,Name,SourceKind,Timestamp\n", 39);
	snprintf(path, sizeof(path), "%s/meta", fx->dir);
	assert_int_equal(mkdir(path, 0700), 0);
	make_file(fx, "meta/h--0.timeline", "r", 1, "never", 100);
	assert_int_equal(names(fx, NULL, got, sizeof(got), &notes), 1);
	assert_string_equal(got, "s ");
	assert_string_equal(notes.text, "2 files of other kinds were passed over\n");
}

static void single_files(void **state)
{
	struct fixture *fx = *state;
	struct dir_set *set = dir_new(fx->session, pb_only);

	fx_write(fx, "m-1.csv", "Flag,Id,Kind,Name,SourceKind,Timestamp\n", 39);
	assert_int_equal(dir_add(set, fx->path, &fx->err), -EINVAL);
	assert_non_null(strstr(fx->err.text, "MSPTI"));
	snprintf(fx->path, sizeof(fx->path), "%s/absent", fx->dir);
	assert_int_equal(dir_add(set, fx->path, &fx->err), -ENOENT);
	assert_int_equal(dir_select(set, NULL, NULL, NULL, &fx->err), 0);
	dir_free(set);
	dir_free(NULL);
}

/* A file that went away between the look and the opening is said, the others are read. */
static void file_that_vanished(void **state)
{
	struct fixture *fx = *state;
	struct dir_set *set = dir_new(fx->session, NULL);
	struct merge *merge = merge_new(fx->session);
	struct notes notes = { { 0 } };

	make_file(fx, "h--0.timeline", "r", 1, "a", 100);
	make_file(fx, "h--1.timeline", "r", 1, "b", 100);
	assert_int_equal(dir_add(set, fx->dir, &fx->err), 0);
	assert_int_equal(dir_select(set, NULL, NULL, NULL, &fx->err), 2);
	assert_int_equal(unlink(fx->path), 0);
	assert_int_equal(dir_open(set, merge, note, &notes, &fx->err), 1);
	assert_non_null(strstr(notes.text, "h--1.timeline"));
	merge_free(merge);
	dir_free(set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(newest_run_or_the_one_asked_for, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(segments_in_order, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(files_without_a_run, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(other_files_are_passed_over, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(single_files, fx_setup, fx_teardown),
		cmocka_unit_test_setup_teardown(file_that_vanished, fx_setup, fx_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
