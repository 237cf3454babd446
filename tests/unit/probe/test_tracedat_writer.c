/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Streams of pages and the file made of them: read back here by the format's page, pages byte for byte. */
#include "fake_tracefs.h"
#include "probe/ftrace/stream.h"
#include "probe/ftrace/tracedat_writer.h"
#include "wire/tracedat_format.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define PAGE 4096u

static void fill(uint8_t *page, uint32_t cpu, uint32_t number)
{
	for (uint32_t i = 0; i < PAGE; i++)
		page[i] = (uint8_t)(cpu * 31 + number * 7 + i / 16);
}

static void put_pages(struct stream *stream, struct packer *packer, uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++) {
		fill(stream_space(stream), stream->cpu, i);
		assert_int_equal(stream_commit(stream, packer, PAGE), 0);
	}
	assert_int_equal(stream_finish(stream, packer), 0);
}

/* --- reading back ------------------------------------------------------------------------------------------------- */

struct file {
	uint8_t *data;
	size_t bytes;
};

static uint64_t number(const struct file *file, size_t at, size_t bytes)
{
	uint64_t value = 0;

	assert_true(at + bytes <= file->bytes);
	memcpy(&value, file->data + at, bytes); /* little endian only, as all machines of the tests */
	return value;
}

static void check_pages(const struct file *file, uint64_t at, uint32_t cpu, uint32_t pages)
{
	uint8_t want[PAGE];

	for (uint32_t i = 0; i < pages; i++) {
		fill(want, cpu, i);
		assert_memory_equal(file->data + at + i * PAGE, want, PAGE);
	}
}

#ifdef HAVE_ZSTD
static void check_chunks(const struct file *file, uint64_t at, uint64_t bytes, uint32_t cpu, uint32_t pages)
{
	struct file unpacked = { .bytes = pages * PAGE, .data = malloc(pages * PAGE) };
	uint64_t count = number(file, at, 4), end = at + bytes;
	size_t done = 0;

	at += 4;
	for (uint64_t i = 0; i < count; i++) {
		size_t packed = number(file, at, 4), size = number(file, at + 4, 4);

		assert_int_equal(size % PAGE, 0);
		assert_true(done + size <= unpacked.bytes);
		assert_int_equal(ZSTD_decompress(unpacked.data + done, size, file->data + at + 8, packed), size);
		at += 8 + packed;
		done += size;
	}
	assert_int_equal(at, end);
	assert_int_equal(done, unpacked.bytes);
	check_pages(&unpacked, 0, cpu, pages);
	free(unpacked.data);
}
#endif

struct want {
	uint32_t cpu, pages;
};

/* The option BUFFER: offset, "", clock, page size, number of CPUs, then each of them */
static void check_buffer(const struct file *file, size_t at, bool zstd, const struct want *want, size_t count)
{
	assert_int_equal(number(file, number(file, at, 8), 2), TRACEDAT_SECTION_BUFFER);
	assert_int_equal(number(file, number(file, at, 8) + 2, 2), zstd ? TRACEDAT_SECTION_COMPRESSED : 0);
	assert_string_equal((char *)file->data + at + 9, "mono_raw");
	at += 9 + sizeof("mono_raw");
	assert_int_equal(number(file, at, 4), PAGE);
	assert_int_equal(number(file, at + 4, 4), count);
	at += 8;
	for (size_t i = 0; i < count; i++, at += 20) {
		uint64_t offset = number(file, at + 4, 8), bytes = number(file, at + 12, 8);

		assert_int_equal(number(file, at, 4), want[i].cpu);
		assert_int_equal(offset % PAGE, 0);
#ifdef HAVE_ZSTD
		if (zstd) {
			check_chunks(file, offset, bytes, want[i].cpu, want[i].pages);
			continue;
		}
#endif
		assert_int_equal(bytes, want[i].pages * PAGE);
		check_pages(file, offset, want[i].cpu, want[i].pages);
	}
}

/* Walk the options; each that points at a section must hit one of that id. Return: where BUFFER's data is. */
static size_t check_options(const struct file *file, size_t at)
{
	size_t end, buffer = 0;
	bool seen[32] = { false };

	assert_int_equal(number(file, at, 2), TRACEDAT_SECTION_OPTIONS);
	end = at + 16 + number(file, at + 8, 8);
	assert_int_equal(end, file->bytes);
	for (at += 16; at < end;) {
		size_t id = number(file, at, 2), bytes = number(file, at + 2, 4);

		at += 6;
		assert_true(id < 32 && !seen[id % 32]);
		seen[id % 32] = true;
		if (id == TRACEDAT_OPTION_BUFFER)
			buffer = at;
		if (id >= TRACEDAT_SECTION_HEADER_INFO && id <= TRACEDAT_SECTION_CMDLINES)
			assert_int_equal(number(file, number(file, at, 8), 2), id);
		if (id == TRACEDAT_OPTION_CPUCOUNT)
			assert_int_equal(number(file, at, 4), 4);
		if (id == TRACEDAT_OPTION_TRACECLOCK)
			assert_string_equal((char *)file->data + at, "local [mono_raw]\n");
		if (id == TRACEDAT_SECTION_CMDLINES)
			assert_memory_equal(file->data + number(file, at, 8) + 24, "7 seven\n", 8);
		at += bytes;
	}
	assert_int_equal(at, end);
	for (size_t id = TRACEDAT_SECTION_HEADER_INFO; id <= TRACEDAT_SECTION_CMDLINES; id++)
		assert_true(seen[id]);
	assert_true(seen[TRACEDAT_OPTION_DONE] && seen[TRACEDAT_OPTION_CPUSTAT] && buffer);
	return buffer;
}

static void check_file(const struct file *file, bool zstd, const struct want *want, size_t count)
{
	const char *name = (char *)file->data + 18;
	size_t at = 18 + strlen(name) + 1;

	assert_memory_equal(file->data, TRACEDAT_MAGIC, TRACEDAT_MAGIC_BYTES);
	assert_string_equal((char *)file->data + 10, "7");
	assert_int_equal(number(file, 14, 4), PAGE);
	assert_string_equal(name, zstd ? "zstd" : "none");
	at += strlen((char *)file->data + at) + 1;
	check_buffer(file, check_options(file, number(file, at, 8)), zstd, want, count);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void write_and_check(struct fake *fake, bool zstd, const struct want *want, size_t count)
{
	char *names[] = { "sched/sched_switch", "irq/softirq_entry", "sched/sched_waking" };
	struct event_list events = { .names = names, .count = 3 };
	struct packer *packer = packer_new(zstd, PAGE);
	int dir = open(fake->path, O_RDONLY | O_DIRECTORY), fd = nameless_file(dir);
	struct stream streams[4];
	struct tracedat_source source = { .fs = &fake->fs,
					  .events = &events,
					  .cmdlines = "7 seven\n",
					  .cpustat = "CPU: 0\n",
					  .clocks = "local [mono_raw]\n",
					  .clock = "mono_raw",
					  .cpu_count = 4,
					  .page_bytes = PAGE,
					  .streams = streams,
					  .stream_count = count };
	struct want with_data[4];
	size_t data_count = 0;
	struct file file;
	uint64_t bytes = 0;

	assert_non_null(packer);
	source.zstd_version = packer_version(packer);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(stream_init(&streams[i], want[i].cpu, dir, packer), 0);
		put_pages(&streams[i], packer, want[i].pages);
		if (want[i].pages)
			with_data[data_count++] = want[i];
	}
	assert_int_equal(tracedat_write(fd, &source, &bytes, NULL), 0);
	file.bytes = (size_t)lseek(fd, 0, SEEK_END);
	assert_int_equal(file.bytes, bytes);
	file.data = malloc(file.bytes + 1);
	assert_int_equal(pread(fd, file.data, file.bytes, 0), (ssize_t)file.bytes);
	file.data[file.bytes] = '\0';
	check_file(&file, zstd, with_data, data_count);
	free(file.data);
	for (size_t i = 0; i < count; i++)
		stream_fini(&streams[i]);
	packer_free(packer);
	close(fd);
	close(dir);
}

/* less than a chunk, none at all, exactly one, several and a rest */
static const struct want shapes[] = { { 0, 3 }, { 1, 0 }, { 2, 32 }, { 3, 1501 } };

static void raw_pages(void **state)
{
	write_and_check(*state, false, shapes, 4);
}

static void packed_pages(void **state)
{
#ifdef HAVE_ZSTD
	write_and_check(*state, true, shapes, 4);
#else
	assert_null(packer_new(true, PAGE));
	assert_int_equal(errno, ENOTSUP);
	skip();
#endif
}

static void no_pages(void **state)
{
	write_and_check(*state, false, shapes + 1, 1);
}

static void missing_format_is_said(void **state)
{
	struct fake *fake = *state;
	char *names[] = { "sched/none" };
	struct event_list events = { .names = names, .count = 1 };
	struct tracedat_source source = { .fs = &fake->fs,
					  .events = &events,
					  .cmdlines = "",
					  .cpustat = "",
					  .clocks = "",
					  .clock = "mono_raw",
					  .page_bytes = PAGE };
	int dir = open(fake->path, O_RDONLY | O_DIRECTORY), fd = nameless_file(dir);
	struct st_err err = { 0 };
	uint64_t bytes;

	assert_int_equal(tracedat_write(fd, &source, &bytes, &err), -ENOENT);
	assert_string_equal(err.text, "cannot read events/sched/none/format of tracefs: No such file or directory");
	close(fd);
	close(dir);
}

/* The disk is full for one chunk: it is dropped as a whole, what came before is kept. */
static void full_disk_drops_whole_chunks(void **state)
{
	struct fake *fake = *state;
	struct packer *packer = packer_new(false, PAGE);
	int dir = open(fake->path, O_RDONLY | O_DIRECTORY), full = open("/dev/full", O_RDWR);
	struct stream stream;
	int ret = 0;

	assert_int_equal(stream_init(&stream, 0, dir, packer), 0);
	stream.fd = full;
	for (uint32_t i = 0; i < 32 && ret == 0; i++) {
		fill(stream_space(&stream), 0, i);
		ret = stream_commit(&stream, packer, PAGE);
	}
	assert_int_equal(ret, -ENOSPC);
	assert_int_equal(stream.bytes, 0);
	assert_int_equal(stream.used, 0);
	stream_fini(&stream);
	packer_free(packer);
	close(dir);
}

static void nameless_files_leave_no_name(void **state)
{
	struct fake *fake = *state;
	char path[128];
	int dir, fd;

	fake_dir(fake, "empty");
	fake_path(fake, "empty", path, sizeof(path));
	dir = open(path, O_RDONLY | O_DIRECTORY);
	fd = nameless_file(dir);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "x", 1), 1);
	assert_int_equal(rmdir(path), 0);
	close(fd);
	close(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(raw_pages, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(packed_pages, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(no_pages, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(missing_format_is_said, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(full_disk_drops_whole_chunks, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(nameless_files_leave_no_name, fake_setup, fake_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
