/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Two exporters of JSON: the form of MindStudio Insight (an array, texts for pid, tid and times) and Chrome Trace Event
 * JSON (numbers, times from a base that the metadata name, arrows from a waker to the run of whom it woke). Rows are
 * written as they come. Formats: docs/formats/mindstudio-json.md, docs/formats/chrome.md.
 */
#include "convert/decimal.h"
#include "convert/ftrace_sink.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 9000 /* most that a row takes besides its arguments */
#define CHROME_CPUS 10000001u /* made-up pids behind the kernel's largest */
#define CHROME_TASKS 10000002u
#define CHROME_FUTEX 10000003u
#define FUTEX_TIDS (1u << 24)

struct json {
	struct fsink base;
	struct outfile out;
	bool chrome, any;
	uint64_t base_ns; /* chrome: subtracted from all times */
};

static char *put(char *out, const char *text, size_t len)
{
	memcpy(out, text, len);
	return out + len;
}

#define PUT(out, literal) put(out, literal, sizeof(literal) - 1)

/* 1234567 -> 1234.567, always three decimals */
static char *put_us3(char *out, uint64_t ns)
{
	unsigned int rest = (unsigned int)(ns % 1000);

	out = decimal_u64(out, ns / 1000);
	*out++ = '.';
	*out++ = (char)('0' + rest / 100);
	*out++ = (char)('0' + rest / 10 % 10);
	*out++ = (char)('0' + rest % 10);
	return out;
}

/* Room for a row at the end of the file, behind the comma. */
static char *begin_row(struct json *json)
{
	char *at = outfile_room(&json->out, HEAD_BYTES + FROW_ARGS_BYTES);

	if (json->any)
		at = PUT(at, ",\n");
	json->any = true;
	return at;
}

/* ---- MindStudio ------------------------------------------------------------------------------------------------------- */

/* What is the same in all rows of a lane: made once. */
static const char *lane_text(struct json *json, struct ftrack *track)
{
	static const char *const groups[] = { "Process Scheduling", "CPU Scheduling" };
	int len;

	if (track->own)
		return track->own;
	len = asprintf((char **)&track->own, "\", \"ph\": \"X\", \"pid\": \"%s\", \"tid\": \"%.*s\", \"ts\": \"",
		       groups[track->is_cpu], (int)track->label.len, track->label.text);
	if (len < 0) {
		track->own = NULL;
		json->out.failed = -ENOMEM;
		return "";
	}
	track->own_len = (uint32_t)len;
	return track->own;
}

static int mindstudio_arrow(struct json *json, const struct frow *row)
{
	const struct ftrack *tracks = json->base.view->tracks, *track;
	char *at;
	int end;

	for (end = 0; end < 2; end++) {
		track = &tracks[end ? row->task : row->track];
		at = begin_row(json);
		at = PUT(at, "{\"name\": \"wake\", \"cat\": \"sched\", ");
		at = end ? PUT(at, "\"ph\": \"f\", \"bp\": \"e\", \"id\": \"") : PUT(at, "\"ph\": \"s\", \"id\": \"");
		at = decimal_u64(at, row->count);
		at = PUT(at, "\", \"pid\": \"CPU Scheduling\", \"tid\": \"");
		at = put(at, track->label.text, track->label.len);
		at = PUT(at, "\", \"ts\": \"");
		at = put_us3(at, end ? row->end_ns : row->begin_ns);
		json->out.at = PUT(at, "\"}");
	}
	return json->out.failed;
}

static int mindstudio_row(struct fsink *sink, const struct frow *row)
{
	struct json *json = (struct json *)sink;
	struct ftrack *track = &sink->view->tracks[row->track];
	struct ftext name = frow_name(sink->view, row);
	const char *lane;
	char *at, *args;

	if (row->kind == ROW_ARROW)
		return mindstudio_arrow(json, row);
	lane = lane_text(json, track);
	at = begin_row(json);
	at = PUT(at, "{\"name\": \"");
	at = put(at, name.text, name.len);
	at = put(at, lane, track->own_len);
	at = put_us3(at, row->begin_ns);
	at = PUT(at, "\", \"dur\": \"");
	at = put_us3(at, row->end_ns - row->begin_ns);
	at = PUT(at, "\", \"args\": ");
	args = at;
	at = frow_args(sink->view, row, at);
	if (at == args)
		at = PUT(at, "{}");
	*at++ = '}';
	json->out.at = at;
	return json->out.failed;
}

static void mindstudio_names(struct json *json)
{
	struct fview *view = json->base.view;
	uint32_t i, tasks = 0;
	char *at;

	for (i = 0; i < view->track_count; i++) {
		const struct ftrack *track = &view->tracks[i];

		tasks += !track->is_cpu && track->rows;
		if (!track->is_cpu || !track->rows)
			continue;
		at = begin_row(json);
		at = PUT(at, "{\"name\": \"");
		at = put(at, track->label.text, track->label.len);
		at = PUT(at, "\", \"ph\": \"M\", \"pid\": \"CPU Scheduling\", \"tid\": \"");
		at = put(at, track->label.text, track->label.len);
		json->out.at = PUT(at, "\"}");
	}
	if (!tasks)
		return;
	at = begin_row(json);
	json->out.at =
		PUT(at, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": \"Process Scheduling\", \"tid\": \"15\", "
			"\"args\": {\"name\": \"Process Scheduling\"}}");
}

/* ---- Chrome ------------------------------------------------------------------------------------------------------------- */

static char *put_ids(char *at, uint32_t pid, uint32_t tid)
{
	at = PUT(at, ", \"pid\": ");
	at = decimal_u64(at, pid);
	at = PUT(at, ", \"tid\": ");
	return decimal_u64(at, tid);
}

static uint64_t from_base(const struct json *json, uint64_t t_ns)
{
	return t_ns > json->base_ns ? t_ns - json->base_ns : 0;
}

static int chrome_arrow(struct json *json, const struct frow *row)
{
	char *at;
	int end;

	for (end = 0; end < 2; end++) {
		at = begin_row(json);
		at = end ? PUT(at, "{\"ph\": \"f\", \"bp\": \"e\", \"name\": \"wake\", \"cat\": \"sched\", \"id\": ")
			 : PUT(at, "{\"ph\": \"s\", \"name\": \"wake\", \"cat\": \"sched\", \"id\": ");
		at = decimal_u64(at, row->count);
		at = put_ids(at, CHROME_CPUS, (end ? row->task : row->track) + 1);
		at = PUT(at, ", \"ts\": ");
		at = decimal_us(at, from_base(json, end ? row->end_ns : row->begin_ns));
		*at++ = '}';
		json->out.at = at;
	}
	return json->out.failed;
}

/*
 * Viewers work with doubles: they add dur to ts, or to ts less that of the lane's first slice, and a sum one bit too large puts
 * the next slice inside this one. So much shorter, a slice ends before the next one begins, and behind those inside it; rounded
 * to nanoseconds nothing changes. A picosecond is 8 times the last bit at 1000 s.
 */
static uint32_t shorter_ps(const struct frow *row, uint64_t end_ns)
{
	uint32_t inside = row->kind == ROW_IRQ ? 3 : row->kind == ROW_SOFTIRQ ? 2 : 1;

	return inside * (end_ns < 1000000000000u ? 1 : end_ns < 10000000000000u ? 10 : 100);
}

static int chrome_row(struct fsink *sink, const struct frow *row)
{
	struct json *json = (struct json *)sink;
	struct fview *view = sink->view;
	struct ftrack *track = &view->tracks[row->track];
	struct ftext name = frow_name(view, row);
	bool instant = row->kind == ROW_SWITCH;
	char *at, *args;

	if (row->kind == ROW_ARROW)
		return chrome_arrow(json, row);
	at = begin_row(json);
	at = instant ? PUT(at, "{\"ph\": \"i\", \"s\": \"t\", \"name\": \"") : PUT(at, "{\"ph\": \"X\", \"name\": \"");
	at = put(at, name.text, name.len);
	*at++ = '"';
	if (row->kind == ROW_FUTEX) {
		at = put_ids(at, CHROME_FUTEX, FUTEX_TIDS + row->track);
		track->futexes++;
	} else {
		at = put_ids(at, track->is_cpu ? CHROME_CPUS : CHROME_TASKS, row->track + 1);
	}
	at = PUT(at, ", \"ts\": ");
	at = decimal_us(at, from_base(json, row->begin_ns));
	if (!instant) {
		at = PUT(at, ", \"dur\": ");
		at = decimal_us_less(at, row->end_ns - row->begin_ns, shorter_ps(row, from_base(json, row->end_ns)));
	}
	at = PUT(at, ", \"args\": ");
	args = at;
	at = frow_args(view, row, at);
	if (at == args)
		at = PUT(at, "{}");
	*at++ = '}';
	json->out.at = at;
	return json->out.failed;
}

static void put_meta(struct json *json, const char *what, uint32_t pid, uint32_t tid, const struct ftext *name)
{
	char *at = begin_row(json);

	at = PUT(at, "{\"ph\": \"M\", \"name\": \"");
	at = put(at, what, strlen(what));
	*at++ = '"';
	at = put_ids(at, pid, tid);
	at = PUT(at, ", \"args\": {\"name\": \"");
	at = put(at, name->text, name->len);
	json->out.at = PUT(at, "\"}}");
}

static void put_sort(struct json *json, const char *what, uint32_t pid, uint32_t tid, int64_t order)
{
	char *at = begin_row(json);

	at = PUT(at, "{\"ph\": \"M\", \"name\": \"");
	at = put(at, what, strlen(what));
	*at++ = '"';
	at = put_ids(at, pid, tid);
	at = PUT(at, ", \"args\": {\"sort_index\": ");
	at = decimal_i64(at, order);
	json->out.at = PUT(at, "}}");
}

static void chrome_names(struct json *json)
{
	static const struct {
		uint32_t pid;
		struct ftext name;
	} groups[] = {
		{ CHROME_CPUS, { (char *)"CPU Scheduling", 14 } },
		{ CHROME_TASKS, { (char *)"Process Scheduling", 18 } },
		{ CHROME_FUTEX, { (char *)"futex", 5 } },
	};
	struct fview *view = json->base.view;
	bool used[3] = { false, false, false };
	uint32_t i;

	for (i = 0; i < view->track_count; i++) {
		const struct ftrack *track = &view->tracks[i];

		if (track->futexes) {
			put_meta(json, "thread_name", CHROME_FUTEX, FUTEX_TIDS + i, &track->label);
			used[2] = true;
		}
		if (track->rows <= track->futexes)
			continue;
		used[!track->is_cpu] = true;
		put_meta(json, "thread_name", track->is_cpu ? CHROME_CPUS : CHROME_TASKS, i + 1, &track->label);
		if (track->is_cpu)
			put_sort(json, "thread_sort_index", CHROME_CPUS, i + 1, track->number);
	}
	for (i = 0; i < 3; i++) {
		if (!used[i])
			continue;
		put_meta(json, "process_name", groups[i].pid, groups[i].pid, &groups[i].name);
		put_sort(json, "process_sort_index", groups[i].pid, groups[i].pid, i);
	}
}

static void chrome_tail(struct json *json)
{
	static const char *const clocks[] = {
		[EV_CLOCK_MONO] = "MONOTONIC", [EV_CLOCK_MONO_RAW] = "MONOTONIC_RAW",
		[EV_CLOCK_BOOT] = "BOOTTIME",  [EV_CLOCK_REAL] = "REALTIME",
		[EV_CLOCK_DEVICE] = "device",  [EV_CLOCK_UNKNOWN] = "trace clock",
	};
	const struct fview *view = json->base.view;
	const char *clock = view->options->axis.points ? clocks[EV_CLOCK_REAL] : clocks[view->clock];
	char *at = outfile_room(&json->out, HEAD_BYTES);

	at = PUT(at, "\n], \"metadata\": {\"tool\": \"sysTrace " ST_VERSION "\", \"clock\": \"");
	at = put(at, clock, strlen(clock));
	at = PUT(at, "\", \"base_time_ns\": \""); /* text: it has more digits than a double */
	at = decimal_u64(at, json->base_ns);
	json->out.at = PUT(at, "\"}}\n");
}

/* ---- begin and end ------------------------------------------------------------------------------------------------------ */

static struct fsink *json_open(struct fview *view, const char *path, bool chrome, struct st_err *err)
{
	struct json *json = calloc(1, sizeof(*json));
	uint64_t first_ns = fview_time(view, view->first_ns);

	if (!json) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	json->base = (struct fsink){ .ops = chrome ? &fsink_chrome : &fsink_json, .view = view };
	json->chrome = chrome;
	json->base_ns = chrome ? first_ns - first_ns % 1000000000u : 0;
	if (outfile_open(&json->out, path, err) < 0) {
		free(json);
		return NULL;
	}
	json->out.at = chrome ? PUT(json->out.at, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")
			      : PUT(json->out.at, "[\n");
	return &json->base;
}

static struct fsink *mindstudio_open(struct fview *view, const char *path, struct st_err *err)
{
	return json_open(view, path, false, err);
}

static struct fsink *chrome_open(struct fview *view, const char *path, struct st_err *err)
{
	return json_open(view, path, true, err);
}

static int json_finish(struct fsink *sink, uint64_t *bytes, struct st_err *err)
{
	struct json *json = (struct json *)sink;
	int ret;

	if (json->chrome) {
		chrome_names(json);
		chrome_tail(json);
	} else {
		mindstudio_names(json);
		json->out.at = PUT(outfile_room(&json->out, HEAD_BYTES), "\n]\n");
	}
	ret = outfile_finish(&json->out, err);
	*bytes = json->out.bytes;
	free(json);
	return ret;
}

static void json_discard(struct fsink *sink)
{
	if (!sink)
		return;
	outfile_discard(&((struct json *)sink)->out);
	free(sink);
}

const struct fsink_ops fsink_json = {
	.name = "json",
	.output = "ftrace_data.json",
	.help = "JSON for MindStudio Insight",
	.arrows = true,
	.open = mindstudio_open,
	.row = mindstudio_row,
	.finish = json_finish,
	.discard = json_discard,
};

const struct fsink_ops fsink_chrome = {
	.name = "chrome",
	.output = "ftrace_data.trace.json",
	.help = "Chrome Trace Event JSON",
	.futexes = true,
	.gaps = true,
	.arrows = true,
	.open = chrome_open,
	.row = chrome_row,
	.finish = json_finish,
	.discard = json_discard,
};
