/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * How fast timelines and MSPTI markers are read and written (per second of processor time), beside a plain copy of the
 * same bytes in the same run.
 * usage: bench_convert [million stages] [million marker rows]; makes its files in $TMPDIR and removes them.
 */
#include "convert/timeline.h"
#include "safe/clock.h"
#include "trace/session.h"
#include "wire/messages.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[256];

static const char *file_name(const char *name)
{
	static char paths[4][320];
	int slot = name[0] == 'b' ? 0 : name[0] == 'm' ? 1 : name[0] == 'c' ? 2 : 3;

	snprintf(paths[slot], sizeof(paths[slot]), "%s/%s", dir, name);
	return paths[slot];
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static FILE *create(const char *path)
{
	FILE *file = fopen(path, "w");

	if (!file)
		die(path);
	setvbuf(file, NULL, _IOFBF, 1 << 20);
	return file;
}

static uint64_t size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* A rank's file: 20 stages a step, nested in pairs, and the step itself. */
static void make_timeline(const char *path, uint64_t stages)
{
	static const char *const names[] = { "torch.utils.data@DataLoader@__next__", "model@Transformer@forward",
					     "model@Attention@forward", "engine@Engine@backward", "GC" };
	FILE *file = create(path);
	uint8_t buffer[512];
	uint64_t i;

	for (i = 0; i < stages; i++) {
		struct msg_stage stage = { .stage_id = (uint32_t)(i / 20),
					   .stage_type = msg_text(names[i % 5]),
					   .start_ns = 90000000000 + i * 5000000,
					   .dur_ns = 4000000 + i % 7 * 1001,
					   .step = (uint32_t)(i / 20 + 1),
					   .kind = (uint32_t)(i % 5 + 1) };
		struct pb_writer w;

		stage.start_us = (stage.start_ns + 1760000000000000000) / 1000;
		stage.end_us = stage.start_us + stage.dur_ns / 1000;
		pb_init(&w, buffer, sizeof(buffer));
		if (i == 0)
			msg_origin_put(&w, 100,
				       &(struct msg_origin){ .run = msg_text("bench"),
							     .rank_known = true,
							     .pid = 77,
							     .wall_minus_mono_ns = 1760000000000000000 });
		msg_stage_put(&w, 1, &stage);
		if (i % 20 == 19)
			msg_step_put(&w, 31,
				     &(struct msg_step){ .source = 1,
							 .start_ns = stage.start_ns - 95000000,
							 .dur_ns = 100000000,
							 .step = stage.step });
		fwrite(buffer, 1, w.used, file);
	}
	if (fclose(file))
		die(path);
}

static void make_markers(const char *path, uint64_t rows)
{
	FILE *file = create(path);
	uint64_t i, t;

	fputs("Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId,"
	      "msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n",
	      file);
	for (i = 0; i < rows / 4; i++) {
		static const char *const ops[] = { "HcclAllReduce", "HcclAllGather", "HcclReduceScatter", "HcclSend" };
		char label[128];

		t = 1760000000000000000 + i * 100000;
		snprintf(label, sizeof(label), "comm:%s!10.13.0.%d%%enp189s0f0_60000_%d_1760000000!fp32!%d", ops[i % 4],
			 (int)(i % 2), (int)(i % 2), 1048576 << (i % 3));
		fprintf(file, "2,%" PRIu64 ",1,%s,0,%" PRIu64 ",70000,70000,70000,70000\n", i + 1, label, t);
		fprintf(file, "4,%" PRIu64 ",1,,0,%" PRIu64 ",70000,70000,70000,70000\n", i + 1, t + 20000);
		fprintf(file, "16,%" PRIu64 ",1,%s,1,%" PRIu64 ",3,5,3,5\n", i + 1, label, t + 25000);
		fprintf(file, "32,%" PRIu64 ",1,,1,%" PRIu64 ",3,5,3,5\n", i + 1, t + 95000);
	}
	if (fclose(file))
		die(path);
}

/* Processor time: per core, and steadier than wall time on a machine that does other things too. */
static uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static double seconds_since(uint64_t begin_ns)
{
	return (double)(cpu_ns() - begin_ns) / 1e9;
}

static double bench_copy(const char *from, const char *to)
{
	static char buffer[1 << 20];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	uint64_t begin_ns = cpu_ns();
	ssize_t n;

	if (in < 0 || out < 0)
		die(from);
	while ((n = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, (size_t)n) != n)
			die(to);
	close(in);
	close(out);
	return seconds_since(begin_ns);
}

static uint64_t bench_read(const char *path, double *seconds)
{
	struct ev_session *session = ev_session_new();
	struct st_err err;
	struct ev_reader *reader = ev_open(session, path, &err);
	struct event ev;
	uint64_t begin_ns = cpu_ns(), events = 0;

	if (!reader) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	while (ev_next(reader, &ev, &err) == 1)
		events++;
	*seconds = seconds_since(begin_ns);
	ev_close(reader);
	ev_session_free(session);
	return events;
}

static uint64_t bench_write(const char *path, const struct tsink_ops *format, const char *to, double *seconds,
			    struct timeline_summary *sum)
{
	struct ev_session *session = ev_session_new();
	struct merge *merge = merge_new(session);
	struct timeline_options options = { .size = sizeof(options), .format = format, .output = to };
	struct st_err err;
	uint64_t begin_ns;

	if (merge_add(merge, ev_open(session, path, &err)) < 0)
		die(path);
	begin_ns = cpu_ns();
	if (timeline_write(session, merge, &options, sum, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	*seconds = seconds_since(begin_ns);
	merge_free(merge);
	ev_session_free(session);
	return sum->bytes;
}

static void bench_file(const char *what, const char *path, uint64_t rows)
{
	uint64_t in_bytes = size_of(path), events, bytes;
	struct timeline_summary sum;
	double seconds, copy;
	char label[64];
	size_t i;

	bench_read(path, &seconds); /* into the page cache */
	copy = bench_copy(path, file_name("copy"));
	printf("%-28s %8.1f MB in    %8.0f MB/s\n", "plain copy", (double)in_bytes / 1e6,
	       (double)in_bytes / 1e6 / copy);
	events = bench_read(path, &seconds);
	snprintf(label, sizeof(label), "read %s", what);
	printf("%-28s %8.2f M rows   %8.2f M rows/s, %.2f M events/s, %.0f MB/s\n", label, (double)rows / 1e6,
	       (double)rows / 1e6 / seconds, (double)events / 1e6 / seconds, (double)in_bytes / 1e6 / seconds);
	for (i = 0; tsink_formats[i]; i++) {
		bytes = bench_write(path, tsink_formats[i], file_name("out"), &seconds, &sum);
		copy = bench_copy(file_name("out"), file_name("copy"));
		snprintf(label, sizeof(label), "%s to %s", what, tsink_formats[i]->name);
		printf("%-28s %8.1f MB out   %8.0f MB/s, %.2f M events/s; plain copy of it %.0f MB/s\n", label,
		       (double)bytes / 1e6, (double)bytes / 1e6 / seconds, (double)sum.events / 1e6 / seconds,
		       (double)bytes / 1e6 / copy);
	}
}

int main(int argc, char **argv)
{
	const char *tmp = getenv("TMPDIR");
	double stages = argc > 1 ? atof(argv[1]) : 1, rows = argc > 2 ? atof(argv[2]) : 4;

	snprintf(dir, sizeof(dir), "%.200s/st-bench-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		die(dir);
	make_timeline(file_name("bench--0.timeline"), (uint64_t)(stages * 1e6));
	bench_file("timeline", file_name("bench--0.timeline"), (uint64_t)(stages * 1e6));
	make_markers(file_name("mspti-marker-10.0.0.1-0.csv"), (uint64_t)(rows * 1e6));
	bench_file("markers", file_name("mspti-marker-10.0.0.1-0.csv"), (uint64_t)(rows * 1e6));
	unlink(file_name("bench--0.timeline"));
	unlink(file_name("mspti-marker-10.0.0.1-0.csv"));
	unlink(file_name("copy"));
	unlink(file_name("out"));
	return rmdir(dir) < 0;
}
