/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of Chrome traces that other programs wrote of a job: PyTorch profiler (Kineto) traces, one file a rank, and
 * timelines of whole jobs, in which processes and threads are named after the workers' places. What has no meaning for
 * the diagnosis is passed over. Streaming; a job's timeline is read twice, since names may stand at its end.
 * Opened by open.c.
 */
#include "trace/profile.h"
#include "trace/readers.h"
#include "trace/session.h"
#include "wire/op_family.h"
#include "wire/record.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has(const unsigned char *head, size_t len, const char *word)
{
	return memmem(head, len, word, strlen(word)) != NULL;
}

/* The profiler's begin with {"schemaVersion"; a job's timeline is an array of slices that have steps */
static bool profile_knows(const unsigned char *head, size_t len)
{
	while (len && isspace(*head)) {
		head++;
		len--;
	}
	if (len && *head == '{')
		return has(head, len < 256 ? len : 256, "\"schemaVersion\"") &&
		       (has(head, len, "\"traceEvents\"") || has(head, len, "\"deviceProperties\"") ||
			has(head, len, "\"distributedInfo\""));
	return len && *head == '[' && has(head, len, "\"ph\"") && has(head, len, "\"dur\"") &&
	       has(head, len, "\"step\"");
}

#ifdef HAVE_YAJL
#include <yajl/yajl_parse.h>

#define PIECE_BYTES (64u << 10)
#define TEXT_BYTES 512u

enum place { IN_FILE, IN_TOP, IN_EVENTS, IN_EVENT, IN_ARGS, IN_DISTRIBUTED };

/** enum key - members that mean something */
enum key {
	KEY_NONE,
	KEY_EVENTS,
	KEY_DISTRIBUTED,
	KEY_BASE,
	KEY_RANK,
	KEY_WORLD,
	KEY_PH,
	KEY_NAME,
	KEY_CAT,
	KEY_PID,
	KEY_TID,
	KEY_TS,
	KEY_DUR,
	KEY_ARGS,
	KEY_STEP,
	KEY_DEVICE,
	KEY_STREAM,
	KEY_GROUP,
	KEY_GROUP_TEXT,
	KEY_MEMBERS,
	KEY_COLLECTIVE,
	KEY_DTYPE,
	KEY_ELEMENTS,
	KEY_ARG_NAME,
};

static const struct {
	enum place in;
	const char *text;
	enum key key;
} keys[] = {
	{ IN_TOP, "traceEvents", KEY_EVENTS },
	{ IN_TOP, "distributedInfo", KEY_DISTRIBUTED },
	{ IN_TOP, "baseTimeNanoseconds", KEY_BASE },
	{ IN_DISTRIBUTED, "rank", KEY_RANK },
	{ IN_DISTRIBUTED, "world_size", KEY_WORLD },
	{ IN_EVENT, "ph", KEY_PH },
	{ IN_EVENT, "name", KEY_NAME },
	{ IN_EVENT, "cat", KEY_CAT },
	{ IN_EVENT, "pid", KEY_PID },
	{ IN_EVENT, "tid", KEY_TID },
	{ IN_EVENT, "ts", KEY_TS },
	{ IN_EVENT, "dur", KEY_DUR },
	{ IN_EVENT, "args", KEY_ARGS },
	{ IN_ARGS, "step", KEY_STEP },
	{ IN_ARGS, "device", KEY_DEVICE },
	{ IN_ARGS, "stream", KEY_STREAM },
	{ IN_ARGS, "Process Group Name", KEY_GROUP },
	{ IN_ARGS, "Process Group Description", KEY_GROUP_TEXT },
	{ IN_ARGS, "Process Group Ranks", KEY_MEMBERS },
	{ IN_ARGS, "Collective name", KEY_COLLECTIVE },
	{ IN_ARGS, "dtype", KEY_DTYPE },
	{ IN_ARGS, "In msg nelems", KEY_ELEMENTS },
	{ IN_ARGS, "name", KEY_ARG_NAME },
};

/** struct raw - one object of traceEvents */
struct raw {
	char phase;
	char name[TEXT_BYTES], cat[32], group[128], members[TEXT_BYTES], collective[64], dtype[32], arg_name[128];
	int64_t ts_ns, dur_ns;
	int64_t pid, tid, step, device, stream, elements; /* -1 = not given */
	bool has_ts;
};

/** struct lane - a thread of a job's timeline: the place of its worker */
struct lane {
	int64_t pid, tid;
	int pp, tp;
};

struct part { /* process of a job's timeline */
	int64_t pid;
	int dp;
};

struct profile {
	struct ev_reader base;
	struct input input;
	yajl_handle parser;
	enum place stack[8];
	unsigned int depth, unknown_depth;
	enum key key;
	struct raw raw;
	int64_t base_ns; /* ts counts from here */
	bool job, naming; /* first pass of a job's timeline: only names are looked at */
	struct lane *lanes;
	size_t lanes_count;
	struct part *parts;
	size_t parts_count;
	int dp_size, tp_size;
	uint32_t key_kind, key_group, key_dtype, key_count;
	struct event *queue;
	size_t queue_at, queue_len, queue_room;
	bool done, no_memory;
	uint64_t bad_values, unnamed, end_offset;
	char end_why[160];
};

static enum place inside(const struct profile *p)
{
	return p->stack[p->depth];
}

/* ---- numbers and texts ---------------------------------------------------------------------------------------------- */

/* Microseconds with any fraction, to nanoseconds. Return: false = no such number. */
static bool us_to_ns(const char *text, size_t len, int64_t *ns)
{
	char copy[64], *end;
	const char *dot;
	int64_t whole;
	int scale = 100, i;

	if (!len || len >= sizeof(copy))
		return false;
	memcpy(copy, text, len);
	copy[len] = 0;
	errno = 0;
	whole = strtoll(copy, &end, 10);
	if (end == copy || errno || whole > INT64_MAX / 1001 || whole < INT64_MIN / 1001)
		return false;
	*ns = whole * 1000;
	if (*end == 'e' || *end == 'E') {
		double value = strtod(copy, &end);

		if (*end || !(value > -9e15 && value < 9e15))
			return false;
		*ns = (int64_t)(value * 1000);
		return true;
	}
	if (*end != '.')
		return *end == 0;
	dot = end + 1;
	for (i = 0; dot[i] >= '0' && dot[i] <= '9'; i++, scale /= 10)
		*ns += (copy[0] == '-' ? -1 : 1) * (dot[i] - '0') * scale;
	return dot[i] == 0;
}

static bool whole_number(const char *text, size_t len, int64_t *value)
{
	char copy[32], *end;

	if (!len || len >= sizeof(copy))
		return false;
	memcpy(copy, text, len);
	copy[len] = 0;
	errno = 0;
	*value = strtoll(copy, &end, copy[0] == '0' && (copy[1] | 32) == 'x' ? 16 : 10);
	return end != copy && !errno && (*end == 0 || *end == '.');
}

static void take_number(struct profile *p, const char *text, size_t len)
{
	struct raw *raw = &p->raw;
	int64_t value = 0;
	bool ok = true;

	switch (p->key) {
	case KEY_TS:
		ok = raw->has_ts = us_to_ns(text, len, &raw->ts_ns);
		break;
	case KEY_DUR:
		ok = us_to_ns(text, len, &raw->dur_ns);
		break;
	case KEY_PID:
	case KEY_TID:
		/* texts such as "Spans" are no threads of interest */
		*(p->key == KEY_PID ? &raw->pid : &raw->tid) = whole_number(text, len, &value) ? value : -1;
		break;
	case KEY_STEP:
		ok = whole_number(text, len, &raw->step);
		break;
	case KEY_DEVICE:
		ok = whole_number(text, len, &raw->device);
		break;
	case KEY_STREAM:
		ok = whole_number(text, len, &raw->stream);
		break;
	case KEY_ELEMENTS:
		ok = whole_number(text, len, &raw->elements);
		break;
	case KEY_BASE:
		ok = whole_number(text, len, &p->base_ns);
		break;
	case KEY_RANK:
		ok = whole_number(text, len, &value) && value >= 0 && value <= INT32_MAX;
		p->base.origin.rank = ok ? (int32_t)value : p->base.origin.rank;
		break;
	case KEY_WORLD:
		ok = whole_number(text, len, &value) && value > 0 && value <= INT32_MAX;
		p->base.origin.world_size = ok ? (uint32_t)value : p->base.origin.world_size;
		break;
	default:
		break;
	}
	p->bad_values += !ok;
}

static void copy_text(char *to, size_t room, const char *text, size_t len)
{
	if (len >= room)
		len = room - 1;
	memcpy(to, text, len);
	to[len] = 0;
}

static int on_number(void *arg, const char *text, size_t len)
{
	struct profile *p = arg;

	if (!p->unknown_depth)
		take_number(p, text, len);
	return 1;
}

static int on_string(void *arg, const unsigned char *bytes, size_t len)
{
	struct profile *p = arg;
	struct raw *raw = &p->raw;
	const char *text = (const char *)bytes;

	if (p->unknown_depth)
		return 1;
	switch (p->key) {
	case KEY_PH:
		raw->phase = len == 1 ? *text : 0;
		return 1;
	case KEY_NAME:
		copy_text(raw->name, sizeof(raw->name), text, len);
		return 1;
	case KEY_CAT:
		copy_text(raw->cat, sizeof(raw->cat), text, len);
		return 1;
	case KEY_GROUP:
		copy_text(raw->group, sizeof(raw->group), text, len);
		return 1;
	case KEY_GROUP_TEXT:
		if (!raw->group[0])
			copy_text(raw->group, sizeof(raw->group), text, len);
		return 1;
	case KEY_MEMBERS:
		copy_text(raw->members, sizeof(raw->members), text, len);
		return 1;
	case KEY_COLLECTIVE:
		copy_text(raw->collective, sizeof(raw->collective), text, len);
		return 1;
	case KEY_DTYPE:
		copy_text(raw->dtype, sizeof(raw->dtype), text, len);
		return 1;
	case KEY_ARG_NAME:
		copy_text(raw->arg_name, sizeof(raw->arg_name), text, len);
		return 1;
	case KEY_NONE:
		return 1;
	default: /* some writers make texts of all numbers */
		take_number(p, text, len);
		return 1;
	}
}

static int on_plain(void *arg)
{
	return 1;
}

static int on_boolean(void *arg, int value)
{
	return 1;
}

/* ---- what a slice is ------------------------------------------------------------------------------------------------ */

static struct event *push(struct profile *p)
{
	struct event *ev;

	if (p->queue_len == p->queue_room) {
		size_t room = p->queue_room ? 2 * p->queue_room : 256;
		struct event *more = realloc(p->queue, room * sizeof(*more));

		if (!more) {
			p->no_memory = true;
			return NULL;
		}
		p->queue = more;
		p->queue_room = room;
	}
	ev = &p->queue[p->queue_len++];
	*ev = (struct event){
		.t_ns = (uint64_t)(p->raw.ts_ns + p->base_ns),
		.dur_ns = p->raw.dur_ns > 0 ? (uint64_t)p->raw.dur_ns : 0,
		.track = { p->base.origin.host, (int32_t)p->raw.pid, (int32_t)p->raw.tid, -1, -1, -1 },
		.rank = p->base.origin.rank,
		.phase = EV_COMPLETE,
		.clock = EV_CLOCK_REAL,
		.source = p->base.source,
	};
	return ev;
}

static void add_arg(struct event *ev, uint32_t key, enum ev_arg_type type, uint64_t value)
{
	struct ev_arg *arg = &ev->args[ev->nargs++];

	*arg = (struct ev_arg){ .key = key, .type = type };
	if (type == EV_ARG_NAME)
		arg->name = (uint32_t)value;
	else
		arg->u64 = value;
}

static int push_stage(struct profile *p, uint64_t stage)
{
	struct event *ev = push(p);

	if (!ev)
		return 0;
	ev->kind = EV_STAGE;
	ev->name = ev_namez(p->base.session, p->raw.name);
	ev->step = p->raw.step > 0 ? (uint32_t)p->raw.step : 0;
	add_arg(ev, p->key_kind, EV_ARG_U64, stage);
	return 1;
}

static int push_comm(struct profile *p, const char *name, const char *group, bool device)
{
	struct event *ev = push(p);

	if (!ev)
		return 0;
	ev->kind = EV_COMM;
	ev->name = ev_namez(p->base.session, name);
	ev->step = p->raw.step > 0 ? (uint32_t)p->raw.step : 0;
	if (device) {
		ev->track.device = p->raw.device >= 0 ? (int32_t)p->raw.device : 0;
		ev->track.stream = (int32_t)p->raw.stream;
	}
	add_arg(ev, p->key_group, EV_ARG_NAME, ev_namez(p->base.session, group));
	add_arg(ev, p->key_dtype, EV_ARG_NAME, ev_namez(p->base.session, p->raw.dtype));
	add_arg(ev, p->key_count, EV_ARG_U64, p->raw.elements > 0 ? (uint64_t)p->raw.elements : 0);
	return 1;
}

/* A group's name is unique in its process only; with its members it is in the job */
static const char *group_of(const struct raw *raw, char *room, size_t size)
{
	if (!raw->members[0])
		return raw->group;
	snprintf(room, size, "%s %s", raw->group, raw->members);
	return room;
}

static bool starts(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* `nccl:all_reduce`, `gloo:broadcast`, `hccl:...`: what the profiler calls a collective on the host's side */
static bool is_host_call(const char *name)
{
	const char *colon = strchr(name, ':');

	return colon &&
	       (starts(name, "nccl:") || starts(name, "gloo:") || starts(name, "hccl:") || starts(name, "mpi:")) &&
	       op_family_of(colon + 1, strlen(colon + 1)) != OP_UNKNOWN;
}

static int take_annotation(struct profile *p)
{
	struct raw *raw = &p->raw;
	char group[TEXT_BYTES + 130];
	struct event *ev;

	if (starts(raw->name, "ProfilerStep#")) {
		ev = push(p);
		if (!ev)
			return 0;
		ev->kind = EV_STEP;
		ev->name = ev_namez(p->base.session, "step");
		ev->step = (uint32_t)strtoul(raw->name + 13, NULL, 10);
		return 1;
	}
	if (is_host_call(raw->name))
		return push_comm(p, raw->name, group_of(raw, group, sizeof(group)), false);
	if (starts(raw->name, "enumerate(DataLoader)"))
		return push_stage(p, STAGE_DATALOADER);
	if (starts(raw->name, "Optimizer.step#"))
		return push_stage(p, STAGE_OPTIMIZER);
	return 1;
}

static int take_kernel(struct profile *p)
{
	struct raw *raw = &p->raw;
	enum op_family family = op_family_of(raw->name, strlen(raw->name));
	char group[TEXT_BYTES + 130];
	struct event *ev;

	if (family != OP_UNKNOWN)
		return push_comm(p, raw->collective[0] ? raw->collective : op_family_name(family),
				 group_of(raw, group, sizeof(group)), true);
	ev = push(p);
	if (!ev)
		return 0;
	ev->kind = EV_KERNEL;
	ev->name = ev_namez(p->base.session, raw->name);
	ev->track.device = raw->device >= 0 ? (int32_t)raw->device : 0;
	ev->track.stream = (int32_t)raw->stream;
	return 1;
}

/* ---- timelines of jobs ---------------------------------------------------------------------------------------------- */

static int number_behind(const char *text, const char *word)
{
	const char *at = strstr(text, word);

	if (!at)
		return -1;
	at += strlen(word);
	while (*at == ' ' || *at == '[')
		at++;
	return isdigit((unsigned char)*at) ? atoi(at) : -1;
}

/* Thread `PP rank 0, TP rank 0, compute` of process `DP rank [0]` */
static int take_name(struct profile *p)
{
	const char *text = p->raw.arg_name;
	void *more;

	if (!strcmp(p->raw.name, "process_name")) {
		int dp = number_behind(text, "DP rank");

		more = dp < 0 ? NULL : reallocarray(p->parts, p->parts_count + 1, sizeof(*p->parts));
		if (!more)
			return 1;
		p->parts = more;
		p->parts[p->parts_count++] = (struct part){ p->raw.pid, dp };
		p->dp_size = dp >= p->dp_size ? dp + 1 : p->dp_size;
	} else if (!strcmp(p->raw.name, "thread_name")) {
		int pp = number_behind(text, "PP rank"), tp = number_behind(text, "TP rank");

		more = pp < 0 ? NULL : reallocarray(p->lanes, p->lanes_count + 1, sizeof(*p->lanes));
		if (!more)
			return 1;
		tp = tp < 0 ? 0 : tp;
		p->lanes = more;
		p->lanes[p->lanes_count++] = (struct lane){ p->raw.pid, p->raw.tid, pp, tp };
		p->tp_size = tp >= p->tp_size ? tp + 1 : p->tp_size;
	}
	return 1;
}

/* Groups by place: pipelines, replicas of a stage, first and last stage for shared embeddings */
static void job_group(const struct raw *raw, const struct lane *lane, int dp, bool pairwise, char *room, size_t size)
{
	if (pairwise)
		snprintf(room, size, "pipeline of DP %d, TP %d", dp, lane->tp);
	else if (strstr(raw->name, "embedding"))
		snprintf(room, size, "embedding of DP %d, TP %d", dp, lane->tp);
	else
		snprintf(room, size, "replicas of PP %d, TP %d", lane->pp, lane->tp);
}

static int take_job_slice(struct profile *p)
{
	const struct raw *raw = &p->raw;
	const struct lane *lane = NULL;
	char group[96];
	int dp = 0;
	size_t i, before = p->queue_len;
	bool pairwise = strstr(raw->name, "-send") || strstr(raw->name, "-recv");

	for (i = 0; i < p->lanes_count && !lane; i++)
		if (p->lanes[i].pid == raw->pid && p->lanes[i].tid == raw->tid)
			lane = &p->lanes[i];
	for (i = 0; i < p->parts_count; i++)
		if (p->parts[i].pid == raw->pid)
			dp = p->parts[i].dp;
	if (!lane || raw->step < 0) {
		p->unnamed++;
		return 1;
	}
	job_group(raw, lane, dp, pairwise, group, sizeof(group));
	if (starts(raw->name, "forward-compute"))
		i = (size_t)push_stage(p, STAGE_FORWARD);
	else if (starts(raw->name, "backward-compute"))
		i = (size_t)push_stage(p, STAGE_BACKWARD);
	else if (!strcmp(raw->name, "optimizer"))
		i = (size_t)push_stage(p, STAGE_OPTIMIZER);
	else if (!strcmp(raw->name, "gc"))
		i = (size_t)push_stage(p, STAGE_GC);
	else if (!strcmp(raw->name, "dataloader") || !strcmp(raw->name, "data-loader"))
		i = (size_t)push_stage(p, STAGE_DATALOADER);
	else if (pairwise)
		i = (size_t)push_comm(p, strstr(raw->name, "-send") ? "send" : "recv", group, false);
	else if (strstr(raw->name, "reduce") || strstr(raw->name, "gather") || strstr(raw->name, "all-to-all"))
		i = (size_t)push_comm(p, raw->name, group, false);
	if (p->queue_len > before)
		p->queue[before].rank =
			(lane->pp * (p->dp_size ? p->dp_size : 1) + dp) * (p->tp_size ? p->tp_size : 1) + lane->tp;
	return (int)i || p->queue_len == before;
}

static int take_slice(struct profile *p)
{
	struct raw *raw = &p->raw;

	if (p->naming)
		return raw->phase == 'M' ? take_name(p) : 1;
	if (raw->phase != 'X' || !raw->has_ts)
		return 1;
	if (p->job)
		return take_job_slice(p);
	if (!strcmp(raw->cat, "kernel"))
		return take_kernel(p);
	if (!strcmp(raw->cat, "user_annotation") || !strcmp(raw->cat, "cpu_op"))
		return take_annotation(p);
	return 1;
}

/* ---- structure ------------------------------------------------------------------------------------------------------ */

static int on_key(void *arg, const unsigned char *bytes, size_t len)
{
	struct profile *p = arg;
	size_t i;

	if (p->unknown_depth)
		return 1;
	p->key = KEY_NONE;
	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (keys[i].in == inside(p) && strlen(keys[i].text) == len && !memcmp(keys[i].text, bytes, len))
			p->key = keys[i].key;
	return 1;
}

static int enter(struct profile *p, enum place place)
{
	p->stack[++p->depth] = place;
	p->key = KEY_NONE;
	return 1;
}

static int unknown(struct profile *p)
{
	p->unknown_depth++;
	return 1;
}

static int on_start_map(void *arg)
{
	struct profile *p = arg;

	if (p->unknown_depth)
		return unknown(p);
	switch (inside(p)) {
	case IN_FILE:
		return enter(p, IN_TOP);
	case IN_TOP:
		return p->key == KEY_DISTRIBUTED ? enter(p, IN_DISTRIBUTED) : unknown(p);
	case IN_EVENTS:
		p->raw = (struct raw){ .pid = -1, .tid = -1, .step = -1, .device = -1, .stream = -1, .elements = -1 };
		return enter(p, IN_EVENT);
	case IN_EVENT:
		return p->key == KEY_ARGS ? enter(p, IN_ARGS) : unknown(p);
	default:
		return unknown(p);
	}
}

static int on_start_array(void *arg)
{
	struct profile *p = arg;

	if (!p->unknown_depth && (inside(p) == IN_FILE || (inside(p) == IN_TOP && p->key == KEY_EVENTS)))
		return enter(p, IN_EVENTS);
	return unknown(p);
}

static int on_end(void *arg)
{
	struct profile *p = arg;
	enum place place;

	if (p->unknown_depth) {
		p->unknown_depth--;
		return 1;
	}
	place = inside(p);
	p->depth--;
	p->key = KEY_NONE;
	return place == IN_EVENT ? take_slice(p) : 1;
}

static const yajl_callbacks callbacks = {
	.yajl_null = on_plain,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_map_key = on_key,
	.yajl_start_map = on_start_map,
	.yajl_end_map = on_end,
	.yajl_start_array = on_start_array,
	.yajl_end_array = on_end,
};

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static void stop(struct profile *p, const unsigned char *piece, size_t len)
{
	unsigned char *why = piece ? yajl_get_error(p->parser, 0, piece, len) : NULL;

	p->done = p->base.stats.torn = true;
	p->end_offset = p->input.offset + (piece ? yajl_get_bytes_consumed(p->parser) : 0);
	snprintf(p->end_why, sizeof(p->end_why), "%.*s", why ? (int)strcspn((char *)why, "\n") : 15,
		 why ? (const char *)why : "the file is cut");
	if (why)
		yajl_free_error(p->parser, why);
}

/* Return: 0 or -errno */
static int parse_piece(struct profile *p, struct st_err *err)
{
	struct input *input = &p->input;
	size_t len;
	int ret;

	p->queue_at = p->queue_len = 0;
	ret = input_want(input, 1, err);
	if (ret < 0)
		return ret;
	len = input->len < PIECE_BYTES ? input->len : PIECE_BYTES;
	if (!len) {
		if (yajl_complete_parse(p->parser) != yajl_status_ok || p->depth)
			stop(p, NULL, 0);
		p->done = true;
		return 0;
	}
	if (yajl_parse(p->parser, input->at, len) != yajl_status_ok && !p->no_memory)
		stop(p, input->at, len);
	input_skip(input, len);
	return p->no_memory ? err_set(err, -ENOMEM, "%s: out of memory", p->base.path) : 0;
}

static int profile_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct profile *p = (struct profile *)reader;
	int ret;

	while (p->queue_at == p->queue_len) {
		if (p->done)
			return 0;
		ret = parse_piece(p, err);
		if (ret < 0)
			return ret;
		reader_progress(reader, &p->input);
	}
	*ev = p->queue[p->queue_at++];
	reader->stats.events++;
	return 1;
}

static void profile_close(struct ev_reader *reader)
{
	struct profile *p = (struct profile *)reader;

	input_close(&p->input);
	if (p->parser)
		yajl_free(p->parser);
	free(p->lanes);
	free(p->parts);
	free(p->queue);
	free(p);
}

static void profile_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct profile *p = (const struct profile *)reader;
	char text[512];

	if (p->end_why[0] || p->input.torn) {
		snprintf(text, sizeof(text), "%s: %s (byte %" PRIu64 "); the %" PRIu64 " events before it were read",
			 reader->path, p->input.torn ? p->input.problem : p->end_why, p->end_offset,
			 reader->stats.events);
		line(arg, text);
	}
	if (p->bad_values) {
		snprintf(text, sizeof(text), "%s: %" PRIu64 " values of the wrong type left out", reader->path,
			 p->bad_values);
		line(arg, text);
	}
	if (p->unnamed) {
		snprintf(text, sizeof(text),
			 "%s: %" PRIu64
			 " slices left out, whose threads are not named after a worker's place or which have "
			 "no step",
			 reader->path, p->unnamed);
		line(arg, text);
	}
}

static const struct ev_reader_ops kineto_ops = {
	.format = PROFILE_KINETO,
	.next = profile_next,
	.close = profile_close,
	.report = profile_report,
};

static const struct ev_reader_ops job_ops = {
	.format = PROFILE_JOB,
	.next = profile_next,
	.close = profile_close,
	.report = profile_report,
};

/* `rank-3.json.gz`, `trace_rank0.json`, `rank_12`: the number behind the last "rank" */
static int32_t rank_of_name(const char *path)
{
	const char *base = strrchr(path, '/'), *at, *found = NULL;

	base = base ? base + 1 : path;
	for (at = base; (at = strcasestr(at, "rank")) != NULL; at += 4)
		found = at + 4;
	if (found && (*found == '-' || *found == '_' || *found == '.'))
		found++;
	return found && isdigit((unsigned char)*found) ? (int32_t)strtol(found, NULL, 10) : EV_NO_RANK;
}

static int begin_parsing(struct profile *p)
{
	if (p->parser)
		yajl_free(p->parser);
	p->depth = p->unknown_depth = 0;
	p->done = false;
	p->parser = yajl_alloc(&callbacks, NULL, p);
	if (p->parser)
		yajl_config(p->parser, yajl_dont_validate_strings, 1);
	return p->parser ? 0 : -ENOMEM;
}

/* All names of a job's timeline, then back to its begin */
static int read_names(struct profile *p, struct st_err *err)
{
	struct input again;
	int ret = 0;

	p->naming = true;
	while (!ret && !p->done)
		ret = parse_piece(p, err);
	p->naming = false;
	p->end_why[0] = 0;
	p->bad_values = 0;
	p->base.stats = (struct ev_reader_stats){ 0 };
	if (!ret)
		ret = input_open(&again, p->base.path, err);
	if (ret < 0)
		return ret;
	input_close(&p->input);
	p->input = again;
	return begin_parsing(p);
}

/* The base of all times stands at the end of the file as a rule: look for its name without parsing what is before it */
static int find_base(struct profile *p, struct st_err *err)
{
	static const char name[] = "\"baseTimeNanoseconds\"";
	const size_t need = sizeof(name) + 32; /* name and number */
	struct input scan;
	int more = input_open(&scan, p->base.path, err);

	if (more < 0)
		return more;
	for (;;) {
		const unsigned char *at;
		size_t left;

		more = input_want(&scan, PIECE_BYTES, err);
		at = more < 0 ? NULL : memmem(scan.at, scan.len, name, sizeof(name) - 1);
		left = at ? (size_t)(scan.at + scan.len - at) : 0;
		if (at && (left >= need || !more)) {
			char text[64];
			const char *digits;

			copy_text(text, sizeof(text), (const char *)at, left);
			digits = text + strcspn(text, "0123456789");
			whole_number(digits, strspn(digits, "0123456789"), &p->base_ns);
			break;
		}
		if (more <= 0)
			break;
		input_skip(&scan, scan.len > need ? scan.len - need : 0);
	}
	input_close(&scan);
	return more < 0 ? more : 0;
}

static int profile_start(struct profile *p, struct st_err *err)
{
	struct ev_session *session = p->base.session;
	size_t i;

	p->key_kind = ev_namez(session, "kind");
	p->key_group = ev_namez(session, "group");
	p->key_dtype = ev_namez(session, "dtype");
	p->key_count = ev_namez(session, "count");
	p->base.origin.rank = rank_of_name(p->base.path);
	for (i = 0; i < p->input.len && isspace(p->input.at[i]); i++)
		;
	p->job = i < p->input.len && p->input.at[i] == '[';
	if (p->job) {
		p->base.ops = &job_ops;
		p->base.origin.rank = EV_NO_RANK;
	}
	if (!p->key_count || begin_parsing(p) < 0)
		return err_set(err, -ENOMEM, "%s: out of memory", p->base.path);
	if (!strcmp(p->base.path, "-")) /* can be read once only */
		return 0;
	return p->job ? read_names(p, err) : find_base(p, err);
}

static struct ev_reader *profile_open(struct ev_session *session, struct input *input, const char *path,
				      struct st_err *err)
{
	struct profile *p = calloc(1, sizeof(*p));

	if (!p || reader_init(&p->base, &kineto_ops, session, path, err) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		free(p);
		return NULL;
	}
	p->input = *input;
	*input = (struct input){ .fd = -1 };
	if (profile_start(p, err) < 0) {
		ev_close(&p->base);
		return NULL;
	}
	return &p->base;
}

#else

static struct ev_reader *profile_open(struct ev_session *session, struct input *input, const char *path,
				      struct st_err *err)
{
	err_set(err, -ENOTSUP, "%s is a Chrome trace; this build has no libyajl and cannot read it", path);
	return NULL;
}

#endif

const struct format format_profile = {
	.name = PROFILE_KINETO,
	.what = "a PyTorch profiler trace or a job's timeline (Chrome JSON)",
	.knows = profile_knows,
	.open = profile_open,
};
