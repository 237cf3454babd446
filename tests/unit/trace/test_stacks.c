/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Stack ids and addresses as names: stacks files beside a recording, and object files found by path, build id and directory. */
#include "trace/stacks.h"

#include <elf.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BUILD_ID "c0ffee0102030405060708090a0b0c0d0e0f1011"

static char dir[] = "/tmp/st-stacks-XXXXXX";
static uint64_t inner_at, outer_at; /* addresses inside the two functions */
static char report[16][1024];
static int reports;

static void shell(const char *format, ...)
{
	char command[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (system(command))
		fail_msg("%s", command);
}

static uint64_t address_of(const char *name)
{
	char command[512], text[64] = "";
	FILE *nm;

	snprintf(command, sizeof(command), "nm %s/lib.so | sed -n 's/ [tT] %s$//p'", dir, name);
	nm = popen(command, "r");
	assert_non_null(nm);
	assert_non_null(fgets(text, sizeof(text), nm));
	pclose(nm);
	return strtoull(text, NULL, 16) + 1;
}

static int set_up(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	shell("cd %s && mkdir -p stacks Mutex tree/.build-id/c0 elsewhere && printf 'static int inner(int a)\\n{\\n\\treturn a * 3;\\n}\\n"
	      "int (*keep)(int) = inner;\\nint outer(int a)\\n{\\n\\treturn keep(a) + 1;\\n}\\n' > code.c && "
	      "cc -g -O0 -shared -fPIC -Wl,--build-id=0x" BUILD_ID
	      " -o lib.so code.c && objcopy --only-keep-debug lib.so "
	      "tree/.build-id/c0/ffee0102030405060708090a0b0c0d0e0f1011.debug && cp lib.so full.so && "
	      "cc -g -O0 -shared -fPIC -Wl,--build-id=0x00112233 -o other.so code.c",
	      dir);
	inner_at = address_of("inner");
	outer_at = address_of("outer");
	shell("cd %s && strip lib.so && touch Mutex/Mutex_7_rank_0.json", dir);
	return 0;
}

static int tear_down(void **state)
{
	shell("rm -r %s", dir);
	return 0;
}

static void note(void *arg, const char *text)
{
	if (reports < 16)
		snprintf(report[reports++], sizeof(report[0]), "%s", text);
}

static const char *in_dir(const char *name)
{
	static char path[4][256];
	static int next;
	char *at = path[next++ % 4];

	snprintf(at, sizeof(path[0]), "%s/%s", dir, name);
	return at;
}

static void check_symbol(const char *const *dirs, size_t count, const char *path, const char *build_id,
			 uint64_t address, const char *function, unsigned int line)
{
	struct symbols *s = symbols_new(dirs, count);
	struct symbols_file *file = symbols_file(s, path, build_id);
	struct symbol symbol;

	assert_ptr_equal(symbols_file(s, path, build_id), file);
	assert_int_equal(symbols_find(file, address, &symbol), function != NULL);
	if (function) {
		assert_string_equal(symbol.function, function);
		assert_int_equal(symbol.line, line);
		assert_int_equal(symbol.offset, 1);
	}
	reports = 0;
	symbols_report(s, note, NULL);
	symbols_free(s);
}

static void test_by_path(void **state)
{
	check_symbol(NULL, 0, in_dir("full.so"), BUILD_ID, inner_at, "inner", 2);
	assert_int_equal(reports, 0);
	check_symbol(NULL, 0, in_dir("full.so"), "", outer_at, "outer", 7);
}

static void test_stripped(void **state)
{
	/* what is exported is known still */
	check_symbol(NULL, 0, in_dir("lib.so"), BUILD_ID, outer_at, "outer", 0);
	check_symbol(NULL, 0, in_dir("lib.so"), BUILD_ID, inner_at, NULL, 0);
}

static void test_by_build_id(void **state)
{
	const char *dirs[] = { in_dir("elsewhere"), in_dir("tree") };

	check_symbol(dirs, 2, in_dir("lib.so"), BUILD_ID, inner_at, "inner", 2);
	check_symbol(dirs, 2, "/gone/lib.so", BUILD_ID, inner_at, "inner", 2);
	assert_int_equal(reports, 0);
}

static void test_another_build(void **state)
{
	check_symbol(NULL, 0, in_dir("other.so"), BUILD_ID, inner_at, NULL, 0);
	assert_int_equal(reports, 1);
	assert_non_null(strstr(report[0], "another build"));
	check_symbol(NULL, 0, "/gone/lib.so", BUILD_ID, inner_at, NULL, 0);
	assert_int_equal(reports, 1);
	assert_non_null(strstr(report[0], "--symbols"));
}

static void put_stacks_file(const char *name, const char *tail)
{
	FILE *f = fopen(in_dir(name), "w");

	assert_non_null(f);
	fprintf(f, "{\"origin\":[{\"pid\":7}],\"stack_entries\":[\n");
	fprintf(f,
		"{\"stack\":5,\"frames\":[\"2+0x%" PRIx64 "\",\"p9:88\",\"2+0x%" PRIx64
		"\",\"3+0x10\",\"0x7f0000001234\"]},\n",
		inner_at, outer_at);
	fprintf(f, "{\"module\":2,\"path\":\"%s/full.so\",\"build_id\":\"" BUILD_ID "\"},\n", dir);
	fprintf(f, "{\"function\":9,\"name\":\"Model.forward\",\"file\":\"/job/train.py\",\"first_line\":80},\n");
	fprintf(f, "{\"stack\":6,\"frames\":[\"p9:89\",\"p10:1\"],\"cut\":true}%s", tail);
	fclose(f);
}

static void check_frames(struct ev_session *session, uint32_t id, const char *const *wanted, size_t count)
{
	const uint32_t *frames;
	size_t i;

	assert_int_equal(ev_stack_frames(session, id, &frames), count);
	for (i = 0; i < count; i++)
		if (!strstr(ev_text(session, frames[i]), wanted[i]))
			fail_msg("frame %zu is %s, not %s", i, ev_text(session, frames[i]), wanted[i]);
}

static void test_stacks(void **state)
{
	static const char *const five[] = { "inner@", "Model.forward@/job/train.py:88", "outer@", "name was lost",
					    "0x7f0000001234" };
	static const char *const six[] = { "Model.forward@/job/train.py:89", "name was lost" };
	struct ev_session *session = ev_session_new();
	struct symbols *symbols = symbols_new(NULL, 0);
	struct stacks *stacks = stacks_new(session, symbols);
	const char *beside = in_dir("Mutex/Mutex_7_rank_0.json");
	uint32_t id;

	put_stacks_file("stacks/stacks_rank0_7.json", "\n],\"dropped\":0                   }\n");
	id = stacks_find(stacks, beside, 7, 5);
	check_frames(session, id, five, 5);
	assert_int_equal(stacks_find(stacks, beside, 7, 5), id);
	check_frames(session, stacks_find(stacks, beside, 7, 6), six, 2);
	assert_int_equal(stacks_find(stacks, beside, 7, 0), 0);
	reports = 0;
	stacks_report(stacks, note, NULL);
	assert_int_equal(reports, 0);
	assert_int_equal(stacks_find(stacks, beside, 7, 77), 0);
	assert_int_equal(stacks_find(stacks, beside, 8, 5), 0);
	stacks_report(stacks, note, NULL);
	assert_int_equal(reports, 2);
	stacks_free(stacks);
	symbols_free(symbols);
	ev_session_free(session);
}

/* Cut at any byte: what came before is there, nothing else happens. */
static void test_cut(void **state)
{
	struct stat st;
	off_t at;

	put_stacks_file("stacks/stacks_rank0_9.json", "\n],\"dropped\":0                   }\n");
	assert_int_equal(stat(in_dir("stacks/stacks_rank0_9.json"), &st), 0);
	for (at = st.st_size - 1; at >= 0; at -= 7) {
		struct ev_session *session = ev_session_new();
		struct stacks *stacks = stacks_new(session, NULL);
		const uint32_t *frames;
		size_t count;

		assert_int_equal(truncate(in_dir("stacks/stacks_rank0_9.json"), at), 0);
		count = ev_stack_frames(session, stacks_find(stacks, in_dir("Mutex/x"), 9, 5), &frames);
		assert_true(count == 0 || count == 5);
		assert_true(count == 5 || at < st.st_size / 2);
		stacks_free(stacks);
		ev_session_free(session);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_path),	    cmocka_unit_test(test_stripped),
		cmocka_unit_test(test_by_build_id), cmocka_unit_test(test_another_build),
		cmocka_unit_test(test_stacks),	    cmocka_unit_test(test_cut),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
