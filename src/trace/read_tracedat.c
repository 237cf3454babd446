/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * trace.dat reader: merges the pages of all CPUs and buffers in time order and turns each record into an event of the
 * model, by the format files that the trace.dat carries. Memory: one small window of pages per CPU, whatever the file's
 * size. The container is tracedat.c's, the pages are ring_page.c's.
 */
#include "trace/ftrace_known.h"
#include "trace/readers.h"
#include "trace/session.h"
#include "trace/tracedat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_BYTES (64u << 10) /* read-ahead of a CPU's pages */
#define MAX_CHUNK (64u << 20)
#define COMM_BITS 12 /* direct-mapped cache of comm texts, 2^12 slots */
#define HASH 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

/* One CPU of one buffer: its window of pages and the next event. */
struct stream {
	const struct tracedat_stream *where;
	const struct tracedat_buffer *buffer;
	uint64_t done; /* bytes of where->bytes consumed */
	uint8_t *window;
	uint32_t window_len, window_at, window_room;
	uint32_t chunks_left; /* compressed: chunks not read yet */
	bool begun, ended;
	struct ring_page page;
	struct ring_event next; /* peeked; valid unless ended */
	uint64_t last_ns; /* time of the event before, to place a gap */
	uint64_t lost; /* to be told before next */
	bool lost_before, lost_known;
};

/* What a format becomes; parallel to dat.formats. */
struct shape {
	const struct ftrace_format *format;
	enum ftrace_known known;
	uint32_t name;
	uint8_t nargs;
	const struct ftrace_field *field[EV_MAX_ARGS];
	uint8_t type[EV_MAX_ARGS]; /* enum known_arg_type */
	uint32_t key[EV_MAX_ARGS];
};

struct comm_slot {
	char text[16];
	uint32_t name;
};

struct dat_reader {
	struct ev_reader base;
	struct tracedat dat;
	struct known_keys keys;
	struct shape *shapes; /* sorted by format id, as dat.formats */
	struct shape *by_id[4096]; /* the usual ids directly */
	struct stream *streams;
	uint32_t *heap; /* streams by time of their next event */
	uint32_t heap_len;
	uint32_t stream_count;
	enum ev_clock clock;
	const struct ftrace_field *common_type, *common_pid;
	uint32_t unknown_name; /* "unknown" */
	const char *cmdline_at; /* rows of saved_cmdlines not told yet */
	uint64_t first_ns;
	uint64_t unknown_ids, broken_pages, backwards;
	uint64_t last_out_ns;
	char release[64];
	struct comm_slot comm[1u << COMM_BITS];
};

/* ---- pages ------------------------------------------------------------------------------------------------------------ */

static int read_at(struct dat_reader *r, uint64_t offset, void *out, size_t bytes, struct st_err *err)
{
	uint8_t *to = out;

	while (bytes) {
		ssize_t got = pread(r->dat.fd, to, bytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return err_set(err, got ? -errno : -ENODATA, "%s: cannot read at offset %" PRIu64 ": %s",
				       r->base.path, offset, got ? strerror(errno) : "the file ends there");
		to += got;
		offset += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return 0;
}

static int window_room(struct stream *s, size_t bytes, struct st_err *err)
{
	uint8_t *more;

	if (bytes <= s->window_room)
		return 0;
	more = realloc(s->window, bytes);
	if (!more)
		return err_set(err, -ENOMEM, "out of memory for %zu bytes of trace", bytes);
	s->window = more;
	s->window_room = (uint32_t)bytes;
	return 0;
}

/* Next chunk of a compressed stream into the window: u32 packed bytes, u32 unpacked bytes, data. */
static int fill_chunk(struct dat_reader *r, struct stream *s, struct st_err *err)
{
	struct ftrace_endian endian = r->dat.endian;
	uint32_t packed, unpacked;
	uint8_t head[8], *in;
	int ret;

	if (!s->begun) {
		ret = read_at(r, s->where->offset, head, 4, err);
		if (ret)
			return ret;
		s->chunks_left = (uint32_t)ftrace_uint(head, 4, endian);
		s->done = 4;
		s->begun = true;
	}
	s->window_len = 0;
	s->window_at = 0;
	if (!s->chunks_left || s->done + 8 > s->where->bytes)
		return 0;
	s->chunks_left--;
	ret = read_at(r, s->where->offset + s->done, head, 8, err);
	if (ret)
		return ret;
	packed = (uint32_t)ftrace_uint(head, 4, endian);
	unpacked = (uint32_t)ftrace_uint(head + 4, 4, endian);
	s->done += 8;
	if (packed > s->where->bytes - s->done || unpacked > MAX_CHUNK)
		return err_set(err, -EINVAL,
			       "%s: chunk at offset %" PRIu64 " of CPU %u claims %u bytes: the file is damaged",
			       r->base.path, s->where->offset + s->done - 8, s->where->cpu, packed);
	in = malloc(packed ? packed : 1);
	ret = in ? window_room(s, unpacked, err)
		 : err_set(err, -ENOMEM, "out of memory for a chunk of %u bytes", packed);
	if (!ret)
		ret = read_at(r, s->where->offset + s->done, in, packed, err);
	if (!ret && tracedat_unpack(&r->dat, in, packed, s->window, unpacked))
		ret = err_set(err, -EINVAL, "%s: chunk at offset %" PRIu64 " does not unpack: the file is damaged",
			      r->base.path, s->where->offset + s->done - 8);
	free(in);
	s->done += packed;
	if (!ret)
		s->window_len = unpacked;
	return ret;
}

static int fill_raw(struct dat_reader *r, struct stream *s, struct st_err *err)
{
	uint32_t page = s->buffer->page_bytes;
	uint64_t want = WINDOW_BYTES > page ? WINDOW_BYTES / page * page : page;
	int ret;

	if (want > s->where->bytes - s->done)
		want = s->where->bytes - s->done;
	s->window_len = 0;
	s->window_at = 0;
	if (!want)
		return 0;
	ret = window_room(s, want, err);
	if (!ret)
		ret = read_at(r, s->where->offset + s->done, s->window, want, err);
	if (!ret) {
		s->done += want;
		s->window_len = (uint32_t)want;
	}
	return ret;
}

/* Start on the stream's next page. 1, 0 at the end of the stream, -errno. */
static int next_page(struct dat_reader *r, struct stream *s, struct st_err *err)
{
	uint32_t left = s->window_len - s->window_at;
	uint64_t before = s->done;
	int ret;

	if (!left) {
		ret = s->where->compressed ? fill_chunk(r, s, err) : fill_raw(r, s, err);
		if (ret)
			return ret;
		r->base.stats.consumed_bytes += s->done - before;
		left = s->window_len;
		if (!left)
			return 0;
	}
	if (left > s->buffer->page_bytes)
		left = s->buffer->page_bytes;
	if (s->page.broken)
		r->broken_pages++;
	if (ring_page_begin(&s->page, &r->dat.layout, s->window + s->window_at, left) < 0 && !s->page.len)
		r->broken_pages++;
	s->window_at += left;
	r->base.stats.bytes += left;
	if (s->page.lost_before) {
		s->lost_before = true;
		s->lost_known = s->page.lost_known;
		s->lost += s->page.lost;
	}
	return 1;
}

static int advance(struct dat_reader *r, struct stream *s, struct st_err *err)
{
	while (!ring_page_next(&s->page, &r->dat.layout, &s->next)) {
		int ret = next_page(r, s, err);

		if (ret <= 0) {
			s->ended = true;
			return ret;
		}
	}
	if (r->dat.has_tsc)
		s->next.t_ns = (uint64_t)(((unsigned __int128)s->next.t_ns * r->dat.tsc_mult) >> r->dat.tsc_shift) +
			       r->dat.tsc_offset;
	s->next.t_ns += (uint64_t)r->dat.offset_ns;
	return 0;
}

/* ---- heap of streams -------------------------------------------------------------------------------------------------- */

static bool earlier(const struct dat_reader *r, uint32_t a, uint32_t b)
{
	const struct stream *x = &r->streams[a], *y = &r->streams[b];

	return x->next.t_ns != y->next.t_ns ? x->next.t_ns < y->next.t_ns : a < b;
}

static void sift_down(struct dat_reader *r, uint32_t at)
{
	uint32_t moving = r->heap[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= r->heap_len)
			break;
		if (child + 1 < r->heap_len && earlier(r, r->heap[child + 1], r->heap[child]))
			child++;
		if (!earlier(r, r->heap[child], moving))
			break;
		r->heap[at] = r->heap[child];
		at = child;
	}
	r->heap[at] = moving;
}

/* ---- records -> events ------------------------------------------------------------------------------------------------ */

/* Name id of a comm; texts repeat all the time, so a small cache saves the session's hash. */
static uint32_t comm_name(struct dat_reader *r, const char *text, uint32_t len)
{
	struct comm_slot *slot;
	char key[16] = { 0 };
	uint64_t a, b;

	if (len > sizeof(key) - 1)
		return ev_name(r->base.session, text, len);
	memcpy(key, text, len);
	memcpy(&a, key, 8);
	memcpy(&b, key + 8, 8);
	slot = &r->comm[((a ^ (b * HASH)) * HASH) >> (64 - COMM_BITS)];
	if (!slot->name || memcmp(slot->text, key, sizeof(key))) {
		memcpy(slot->text, key, sizeof(key));
		slot->name = len ? ev_name(r->base.session, text, len) : 0;
	}
	return slot->name;
}

static void put_arg(struct dat_reader *r, const struct shape *shape, uint32_t i, const struct ring_event *rec,
		    struct ev_arg *arg)
{
	const struct ftrace_field *field = shape->field[i];
	struct ftrace_endian endian = r->dat.endian;
	const char *text;
	uint32_t len;
	int64_t value;

	arg->key = shape->key[i];
	if (shape->type[i] == KA_TEXT) {
		text = ftrace_string(field, rec->payload, rec->len, endian, &len);
		arg->type = EV_ARG_NAME;
		arg->name = comm_name(r, text, len);
		return;
	}
	value = ftrace_int(field, rec->payload, rec->len, endian);
	switch (shape->type[i]) {
	case KA_STATE:
		arg->type = EV_ARG_NAME;
		arg->name = known_state_name(&r->keys, r->base.session, (uint64_t)value);
		break;
	case KA_ACTION:
		arg->type = EV_ARG_NAME;
		arg->name = r->keys.softirq[(uint64_t)value < 16 ? value : 15];
		break;
	case KA_HANDLED:
		arg->type = EV_ARG_NAME;
		arg->name = r->keys.handled[value != 0];
		break;
	case KA_HEX:
		arg->type = EV_ARG_PTR;
		arg->u64 = (uint64_t)value;
		break;
	default:
		arg->type = field->is_signed || field->size < 8 ? EV_ARG_I64 : EV_ARG_U64;
		arg->i64 = value;
	}
}

static uint32_t format_index(const struct dat_reader *r, const struct ftrace_format *format)
{
	uint32_t i = 0;

	while (r->dat.formats[i] != format)
		i++;
	return i;
}

static const struct shape *shape_of(struct dat_reader *r, uint32_t id)
{
	const struct ftrace_format *format;

	if (id < sizeof(r->by_id) / sizeof(r->by_id[0]))
		return r->by_id[id];
	/* ids above are rare: search the sorted formats, whose order the shapes share */
	format = tracedat_format(&r->dat, id);
	return format ? &r->shapes[format_index(r, format)] : NULL;
}

static void make_event(struct dat_reader *r, const struct stream *s, struct event *ev)
{
	const struct ring_event *rec = &s->next;
	uint32_t id = (uint32_t)ftrace_int(r->common_type, rec->payload, rec->len, r->dat.endian);
	int32_t pid = (int32_t)ftrace_int(r->common_pid, rec->payload, rec->len, r->dat.endian);
	const struct shape *shape = shape_of(r, id);
	uint32_t i;

	known_begin(ev, &r->keys, shape ? shape->known : KNOWN_NONE, rec->t_ns, (int32_t)s->where->cpu, pid);
	ev->source = r->base.source;
	ev->clock = (uint8_t)r->clock;
	if (!shape) {
		r->unknown_ids++;
		ev->name = r->unknown_name;
		return;
	}
	ev->name = shape->name;
	for (i = 0; i < shape->nargs; i++)
		put_arg(r, shape, i, rec, &ev->args[i]);
	ev->nargs = shape->nargs;
}

/* ---- what comes between the records: names of tasks, gaps ---------------------------------------------------------------- */

/* Next row "PID comm" of saved_cmdlines as a task_comm event. */
static bool next_cmdline(struct dat_reader *r, struct event *ev)
{
	while (r->cmdline_at && *r->cmdline_at) {
		const char *line = r->cmdline_at, *stop = strchr(line, '\n');
		size_t len = stop ? (size_t)(stop - line) : strlen(line);
		char *comm;
		long pid = strtol(line, &comm, 10);

		r->cmdline_at = stop ? stop + 1 : line + len;
		if (comm == line || *comm != ' ' || comm + 1 >= line + len || pid < 0)
			continue;
		comm++;
		known_begin(ev, &r->keys, KNOWN_TASK_COMM, r->first_ns, -1, (int32_t)pid);
		ev->source = r->base.source;
		ev->clock = (uint8_t)r->clock;
		ev->nargs = 2;
		ev->args[TASK_COMM_COMM] =
			(struct ev_arg){ .key = r->keys.arg[KNOWN_TASK_COMM][0], .type = EV_ARG_NAME };
		ev->args[TASK_COMM_COMM].name = ev_name(r->base.session, comm, (size_t)(line + len - comm));
		ev->args[TASK_COMM_PID] = (struct ev_arg){ .key = r->keys.arg[KNOWN_TASK_COMM][1], .type = EV_ARG_I64 };
		ev->args[TASK_COMM_PID].i64 = pid;
		return true;
	}
	return false;
}

static void make_gap(struct dat_reader *r, struct stream *s, struct event *ev)
{
	uint64_t begin_ns = s->last_ns && s->last_ns < s->next.t_ns ? s->last_ns : s->next.t_ns;

	known_begin(ev, &r->keys, KNOWN_NONE, begin_ns, (int32_t)s->where->cpu, -1);
	ev->source = r->base.source;
	ev->clock = (uint8_t)r->clock;
	ev->kind = EV_LOST;
	ev->phase = EV_COMPLETE;
	ev->dur_ns = s->next.t_ns - begin_ns;
	ev->nargs = 1;
	ev->args[0] = (struct ev_arg){ .key = r->keys.count, .type = EV_ARG_U64 };
	ev->args[0].u64 = s->lost_known ? s->lost : 0;
	r->base.stats.lost += s->lost;
	s->lost = 0;
	s->lost_before = false;
}

static int dat_next(struct ev_reader *base, struct event *ev, struct st_err *err)
{
	struct dat_reader *r = (struct dat_reader *)base;
	struct stream *s;
	int ret;

	if (next_cmdline(r, ev)) {
		base->stats.events++;
		return 1;
	}
	if (!r->heap_len)
		return 0;
	s = &r->streams[r->heap[0]];
	base->stats.events++;
	if (s->lost_before) {
		make_gap(r, s, ev);
		return 1;
	}
	make_event(r, s, ev);
	s->last_ns = ev->t_ns;
	if (ev->t_ns < r->last_out_ns)
		r->backwards++;
	else
		r->last_out_ns = ev->t_ns;
	ret = advance(r, s, err);
	if (ret < 0)
		return ret;
	if (s->ended) {
		free(s->window);
		s->window = NULL;
		r->heap[0] = r->heap[--r->heap_len];
	}
	if (r->heap_len)
		sift_down(r, 0);
	return 1;
}

static void dat_close(struct ev_reader *base)
{
	struct dat_reader *r = (struct dat_reader *)base;
	uint32_t i;

	for (i = 0; i < r->stream_count; i++)
		free(r->streams[i].window);
	free(r->streams);
	free(r->heap);
	free(r->shapes);
	tracedat_close(&r->dat);
	free(r);
}

static void dat_report(const struct ev_reader *base, void (*line)(void *arg, const char *text), void *arg)
{
	const struct dat_reader *r = (const struct dat_reader *)base;
	char text[640];

#define SAY(condition, ...)                                        \
	do {                                                       \
		if (condition) {                                   \
			snprintf(text, sizeof(text), __VA_ARGS__); \
			line(arg, text);                           \
		}                                                  \
	} while (0)
	SAY(r->unknown_ids, "%" PRIu64 " events of types that the file does not describe", r->unknown_ids);
	SAY(r->broken_pages, "%" PRIu64 " damaged pages, read as far as they make sense", r->broken_pages);
	SAY(r->backwards, "%" PRIu64 " events with a time stamp before the one of the event before", r->backwards);
	SAY(r->dat.bad_formats, "%u event formats could not be read, first: %s", r->dat.bad_formats,
	    r->dat.bad_format.text);
	SAY(r->dat.unknown_options, "%u options of a newer trace-cmd were skipped", r->dat.unknown_options);
#undef SAY
}

static const struct ev_reader_ops dat_ops = {
	.format = "trace.dat",
	.next = dat_next,
	.close = dat_close,
	.report = dat_report,
};

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static uint8_t other_type(const struct ftrace_field *field)
{
	if (field->type == FTRACE_CHARS || field->type == FTRACE_DYN_CHARS)
		return KA_TEXT;
	return field->is_pointer ? KA_HEX : KA_INT;
}

static void shape_known(struct dat_reader *r, struct shape *shape)
{
	const struct known_spec *spec = &known_specs[shape->known];
	int i;

	for (i = 0; i < EV_MAX_ARGS && spec->args[i].type != KA_END; i++) {
		const char *name = spec->args[i].type == KA_ACTION ? "vec" : spec->args[i].name;
		const struct ftrace_field *field = ftrace_format_field(shape->format, name);

		if (!field)
			break; /* an older or newer kernel lacks it: later arguments would change their places */
		shape->field[i] = field;
		shape->type[i] = (uint8_t)spec->args[i].type;
		shape->key[i] = r->keys.arg[shape->known][i];
	}
	shape->nargs = (uint8_t)i;
}

static void shape_other(struct dat_reader *r, struct shape *shape)
{
	const struct ftrace_format *format = shape->format;
	uint32_t i;

	for (i = format->common; i < format->count && shape->nargs < EV_MAX_ARGS; i++) {
		const struct ftrace_field *field = &format->fields[i];

		if (field->type == FTRACE_BYTES)
			continue;
		shape->field[shape->nargs] = field;
		shape->type[shape->nargs] = other_type(field);
		shape->key[shape->nargs++] = ev_name(r->base.session, field->name, strlen(field->name));
	}
}

static int make_shapes(struct dat_reader *r, struct st_err *err)
{
	uint32_t i;

	r->shapes = calloc(r->dat.format_count ? r->dat.format_count : 1, sizeof(*r->shapes));
	if (!r->shapes || known_keys_init(&r->keys, r->base.session))
		return err_set(err, -ENOMEM, "%s: out of memory", r->base.path);
	r->unknown_name = ev_name(r->base.session, "unknown event", 13);
	for (i = 0; i < r->dat.format_count; i++) {
		struct shape *shape = &r->shapes[i];

		shape->format = r->dat.formats[i];
		shape->known = ftrace_known_find(shape->format->name, strlen(shape->format->name));
		shape->name = ev_name(r->base.session, shape->format->name, strlen(shape->format->name));
		if (shape->known != KNOWN_NONE)
			shape_known(r, shape);
		else
			shape_other(r, shape);
		if (shape->format->id < sizeof(r->by_id) / sizeof(r->by_id[0]))
			r->by_id[shape->format->id] = shape;
		if (!r->common_type)
			r->common_type = ftrace_format_field(shape->format, "common_type");
		if (!r->common_pid)
			r->common_pid = ftrace_format_field(shape->format, "common_pid");
	}
	if (!r->common_type || !r->common_pid)
		return err_set(err, -EINVAL,
			       "%s holds no event formats with common_type and common_pid: its events cannot be read",
			       r->base.path);
	return 0;
}

static enum ev_clock clock_of(const char *name)
{
	static const struct {
		const char *name;
		enum ev_clock clock;
	} clocks[] = { { "mono_raw", EV_CLOCK_MONO_RAW }, { "mono", EV_CLOCK_MONO }, { "boot", EV_CLOCK_BOOT } };
	size_t i;

	for (i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++)
		if (!strcmp(clocks[i].name, name))
			return clocks[i].clock;
	return EV_CLOCK_UNKNOWN;
}

static int start_streams(struct dat_reader *r, struct st_err *err)
{
	uint32_t i, j, n = 0;
	int ret;

	for (i = 0; i < r->dat.buffer_count; i++)
		r->stream_count += r->dat.buffers[i].count;
	r->streams = calloc(r->stream_count ? r->stream_count : 1, sizeof(*r->streams));
	r->heap = calloc(r->stream_count ? r->stream_count : 1, sizeof(*r->heap));
	if (!r->streams || !r->heap)
		return err_set(err, -ENOMEM, "%s: out of memory", r->base.path);
	for (i = 0; i < r->dat.buffer_count; i++)
		for (j = 0; j < r->dat.buffers[i].count; j++, n++) {
			struct stream *s = &r->streams[n];

			s->where = &r->dat.buffers[i].streams[j];
			s->buffer = &r->dat.buffers[i];
			ret = advance(r, s, err);
			if (ret < 0)
				return ret;
			if (!s->ended)
				r->heap[r->heap_len++] = n;
		}
	for (i = r->heap_len / 2; i-- > 0;)
		sift_down(r, i);
	if (r->heap_len)
		r->first_ns = r->streams[r->heap[0]].next.t_ns;
	return 0;
}

const char *tracedat_release(const struct ev_reader *reader)
{
	const struct dat_reader *r = (const struct dat_reader *)reader;

	return reader->ops == &dat_ops && *r->release ? r->release : NULL;
}

static bool dat_knows(const unsigned char *head, size_t len)
{
	return len >= 10 && !memcmp(head, "\x17\x08\x44tracing", 10);
}

/* Texts of formats and pages do not know which file they are from. */
static void name_file(struct st_err *err, const char *path)
{
	char text[sizeof(err->text)];

	if (!err || !strcmp(path, "-") || strstr(err->text, path))
		return;
	memcpy(text, err->text, sizeof(text));
	err_set(err, err->code, "%s: %s", path, text);
}

/* Pipes and packed files are spooled: pages are read at many places at once. */
static int open_container(struct dat_reader *r, struct input *input, const char *path, struct st_err *err)
{
	int fd;

	if (input_seekable(input))
		return tracedat_open(&r->dat, path, err);
	fd = input_spool(input, err);
	return fd < 0 ? fd : tracedat_open_fd(&r->dat, fd, strcmp(path, "-") ? path : "standard input", err);
}

static struct ev_reader *dat_open(struct ev_session *session, struct input *input, const char *path, struct st_err *err)
{
	struct dat_reader *r = calloc(1, sizeof(*r));
	int ret;

	if (!r) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	r->dat.fd = -1;
	ret = reader_init(&r->base, &dat_ops, session, path, err);
	if (!ret)
		ret = open_container(r, input, path, err);
	if (!ret && r->dat.latency_text)
		ret = err_set(
			err, -ENOTSUP,
			"%s is a latency trace: it holds text without absolute times; record with `trace-cmd record`",
			path);
	if (!ret)
		ret = make_shapes(r, err);
	if (!ret) {
		r->clock = clock_of(r->dat.buffer_count ? r->dat.buffers[0].clock : "");
		r->base.window_ns = 0;
		if (r->dat.uname) /* "Linux host release machine" */
			sscanf(r->dat.uname, "%*s %*s %63s", r->release);
		r->base.stats.total_bytes = r->dat.file_bytes;
		ret = start_streams(r, err);
		r->cmdline_at = r->dat.cmdlines;
	}
	if (ret) {
		name_file(err, path);
		free(r->base.path);
		dat_close(&r->base);
		return NULL;
	}
	input_close(input);
	return &r->base;
}

const struct format format_tracedat = {
	.name = "trace.dat",
	.what = "trace.dat of trace-cmd or systrace record",
	.knows = dat_knows,
	.open = dat_open,
};
