/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the recorder writes is what the reader of the converters finds: container, names, formats and the pages of each
 * CPU. Here because no storey below may include both.
 */
#include "../probe/fake_tracefs.h"
#include "probe/ftrace/stream.h"
#include "probe/ftrace/tracedat_writer.h"
#include "trace/tracedat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PAGE 4096u
#define PAGES 40u

static const char header_page[] = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
				  "\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
				  "\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
				  "\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
static const char header_event[] =
	"# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n"
	"\tarray       :   32 bits\n\n\tpadding     : type == 29\n\ttime_extend : type == 30\n"
	"\ttime_stamp : type == 31\n\tdata max type_len  == 28\n";
static const char format[] = "name: softirq_entry\nID: 77\nformat:\n"
			     "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
			     "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
			     "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
			     "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
			     "\tfield:unsigned int vec;\toffset:8;\tsize:4;\tsigned:0;\n\n"
			     "print fmt: \"vec=%u\", REC->vec\n";

static void put_pages(struct stream *stream, struct packer *packer)
{
	for (uint64_t i = 0; i < PAGES; i++) {
		uint64_t *page = stream_space(stream);

		memset(page, 0, PAGE);
		page[0] = 1000000 + i; /* time stamp */
		assert_int_equal(stream_commit(stream, packer, PAGE), 0);
	}
	assert_int_equal(stream_finish(stream, packer), 0);
}

static void check_stream(const struct tracedat *dat, const struct tracedat_stream *stream)
{
	uint64_t stamp;
	uint32_t head[3];

	if (!stream->compressed) {
		assert_int_equal(stream->bytes, PAGES * PAGE);
		assert_int_equal(pread(dat->fd, &stamp, 8, (off_t)(stream->offset + (PAGES - 1) * PAGE)), 8);
		assert_int_equal(stamp, 1000000 + PAGES - 1);
		return;
	}
	assert_int_equal(pread(dat->fd, head, sizeof(head), (off_t)stream->offset), sizeof(head));
	assert_int_equal(head[0], 2); /* chunks: 32 pages and 8 */
	uint8_t *packed = malloc(head[1]), *pages = malloc(head[2]);

	assert_int_equal(pread(dat->fd, packed, head[1], (off_t)stream->offset + 12), head[1]);
	assert_int_equal(tracedat_unpack(dat, packed, head[1], pages, head[2]), 0);
	memcpy(&stamp, pages + 31 * PAGE, 8);
	assert_int_equal(stamp, 1000031);
	free(packed);
	free(pages);
}

static void write_file(struct fake *fake, const char *path, bool zstd)
{
	char *names[] = { "irq/softirq_entry" };
	struct event_list events = { .names = names, .count = 1 };
	struct packer *packer = packer_new(zstd, PAGE);
	int dir = open(fake->path, O_RDONLY | O_DIRECTORY), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct stream streams[2];
	struct tracedat_source source = { .fs = &fake->fs,
					  .events = &events,
					  .cmdlines = "7 seven\n8 a b\n",
					  .cpustat = "CPU: 1\nentries: 0\n",
					  .clocks = "local [mono_raw] boot\n",
					  .clock = "mono_raw",
					  .cpu_count = 6,
					  .page_bytes = PAGE,
					  .zstd_version = packer_version(packer),
					  .streams = streams,
					  .stream_count = 2 };
	uint64_t bytes;

	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(stream_init(&streams[i], i * 4 + 1, dir, packer), 0);
		put_pages(&streams[i], packer);
	}
	assert_int_equal(tracedat_write(fd, &source, &bytes, NULL), 0);
	stream_fini(&streams[0]);
	stream_fini(&streams[1]);
	packer_free(packer);
	close(fd);
	close(dir);
}

static void check(void **state, bool zstd)
{
	struct fake *fake = *state;
	struct tracedat dat = { 0 };
	struct st_err err = { 0 };
	char path[128];

	fake_file(fake, "events/header_page", header_page);
	fake_file(fake, "events/header_event", header_event);
	fake_file(fake, "events/irq/softirq_entry/format", format);
	fake_path(fake, "trace.dat", path, sizeof(path));
	write_file(fake, path, zstd);
	if (tracedat_open(&dat, path, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(dat.version, 7);
	assert_int_equal(dat.page_bytes, PAGE);
	assert_int_equal(dat.cpu_count, 6);
	assert_string_equal(dat.cmdlines, "7 seven\n8 a b\n");
	assert_string_equal(dat.cpustat, "CPU: 1\nentries: 0\n");
	assert_int_equal(dat.unknown_options, 0);
	assert_non_null(tracedat_format(&dat, 77));
	assert_int_equal(dat.buffer_count, 1);
	assert_string_equal(dat.buffers[0].clock, "mono_raw");
	assert_int_equal(dat.buffers[0].count, 2);
	assert_int_equal(dat.buffers[0].streams[1].cpu, 5);
	for (uint32_t i = 0; i < 2; i++)
		check_stream(&dat, &dat.buffers[0].streams[i]);
	tracedat_close(&dat);
}

static void raw_pages(void **state)
{
	check(state, false);
}

static void packed_pages(void **state)
{
#ifndef HAVE_ZSTD
	skip();
#endif
	check(state, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(raw_pages, fake_setup, fake_teardown),
		cmocka_unit_test_setup_teardown(packed_pages, fake_setup, fake_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
