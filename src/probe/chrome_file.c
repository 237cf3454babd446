/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See chrome_file.h. The sink writes into its own buffer, from which its bytes go to the probe's file. */
#include "probe/chrome_file.h"

#include "probe/out.h"
#include "safe/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS 1000000000u

struct chrome_file {
	struct probe_target *target;
	struct msg_origin origin;
	struct sink_env env;
	struct sink sink;
	struct probe_out out;
	bool open;
	bool said; /* that it can't be written, until it can again */
	uint64_t retry_ns; /* no attempt to make it before that */
	uint64_t unwritten; /* records in the buffer */
	uint64_t dropped; /* of own_drop: told so far */
	uint8_t scratch[SINK_SCRATCH];
};

static void say_nothing(void *ctx, const char *text)
{
}

struct chrome_file *chrome_file_new(struct probe_target *target, const struct sink_ops *ops)
{
	struct chrome_file *file = calloc(1, sizeof(*file));
	void *state = file ? calloc(1, ops->state_bytes ? ops->state_bytes : 1) : NULL;

	if (!state) {
		free(file);
		return NULL;
	}
	file->target = target;
	file->origin = target->origin;
	file->out.fd = -1;
	file->env.origin = &file->origin;
	file->env.scratch = file->scratch;
	file->env.place.segment_bytes = UINT64_MAX;
	file->env.place.say = say_nothing;
	file->sink.ops = ops;
	file->sink.env = &file->env;
	file->sink.state = state;
	out_init(&file->sink.out, &file->env.place, NULL, 0, NULL, NULL);
	return file;
}

/* What the sink has put. Return: 0 or -errno. */
static int move(struct chrome_file *file)
{
	struct out *from = &file->sink.out;
	int ret = from->used ? probe_out_put(&file->out, from->buf, from->used) : 0;

	from->used = 0;
	return ret;
}

static int open_file(struct chrome_file *file)
{
	struct sink *sink = &file->sink;
	struct clock_snapshot clocks;
	char stem[256], *slash, tail[OUT_TAIL + 1];
	const char *suffix;
	struct st_err err = { 0 };
	int ret;

	if (file->open)
		return 0;
	clock_snapshot_take(&clocks);
	if (clocks.mono_ns < file->retry_ns)
		return -EAGAIN;
	sink->ops->file_name(sink, stem, sizeof(stem), &suffix);
	slash = strchr(stem, '/');
	*slash = '\0';
	tail[sink->ops->tail(sink, tail)] = '\0';
	ret = probe_out_open(&file->out, file->target, stem, slash + 1, suffix, tail, PROBE_OUT_APPEND, &err);
	if (ret < 0) {
		if (!file->said)
			probe_log("%s", err.text);
		file->said = true;
		file->retry_ns = clocks.mono_ns + RETRY_NS;
		return ret;
	}
	file->open = true;
	sink->out.wall_minus_mono_ns = (int64_t)(clocks.realtime_ns - clocks.mono_ns);
	memset(sink->state, 0, sink->ops->state_bytes);
	sink->out.elements = !file->out.empty;
	ret = file->out.empty ? sink->ops->begin(sink, &clocks) : 0;
	if (ret == 0)
		ret = move(file);
	return ret < 0 ? ret : probe_out_write(&file->out); /* whole from the beginning */
}

int chrome_file_put(struct chrome_file *file, const struct rec_head *rec, uint32_t pid, uint32_t tid, const char *comm)
{
	struct sink_rec one = {
		.head = rec,
		.pid = pid,
		.tid = tid,
		.comm = comm,
		.worker = pid != file->origin.pid,
	};
	int ret = open_file(file);

	if (ret == 0 && comm[0])
		ret = file->sink.ops->own_thread(&file->sink, &one);
	if (ret == 0)
		ret = file->sink.ops->put(&file->sink, &one);
	if (ret == 0)
		ret = move(file);
	file->sink.out.used = 0;
	if (ret == 0)
		file->unwritten++;
	return ret;
}

int chrome_file_drops(struct chrome_file *file, uint64_t count, uint64_t from_ns, uint64_t to_ns)
{
	struct msg_drop drop = { .count = count, .from_ns = from_ns, .to_ns = to_ns };
	int ret = open_file(file);

	if (ret == 0)
		ret = file->sink.ops->own_drop(&file->sink, &drop);
	return ret == 0 ? move(file) : ret;
}

int chrome_file_write(struct chrome_file *file, uint64_t *lost)
{
	int ret = file->open ? probe_out_write(&file->out) : 0;

	if (ret < 0 && !file->said)
		probe_log("cannot write %s/%s: %s", file->target->dump_path, file->out.name, strerror(-ret));
	file->said = ret < 0;
	if (ret < 0 && lost)
		*lost += file->unwritten;
	file->unwritten = 0;
	return ret;
}

uint64_t chrome_file_bytes(const struct chrome_file *file)
{
	return file->out.bytes;
}

void chrome_file_free(struct chrome_file *file)
{
	if (!file)
		return;
	chrome_file_write(file, NULL);
	if (file->open)
		probe_out_close(&file->out);
	free(file->sink.state);
	free(file);
}
