/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of ftrace text: tracefs `trace` and `trace_pipe`, the Ftrace plugin's log and `trace-cmd report`, one line at a
 * time (ftrace_line.c), payloads of known events by their keys. Lines that are no events are counted by kind and shown;
 * nothing is skipped in silence.
 */
#include "trace/ftrace_known.h"
#include "trace/ftrace_line.h"
#include "trace/readers.h"
#include "trace/reorder.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE (1u << 20)
#define SAMPLE_BYTES 120
#define PID_SLOTS 8192 /* direct-mapped: pid -> name as last told */
#define LINE_EVENTS 3 /* most that a line becomes: a gap, a name, the event */
#define LINE_KINDS (FLINE_UNKNOWN + 1)

struct pid_slot {
	int32_t pid;
	uint32_t name;
	char text[16]; /* its first bytes, to notice a change without a look-up */
	uint32_t len;
};

struct text_reader {
	struct ev_reader base;
	struct input input;
	struct known_keys keys;
	struct reorder order; /* events on their way out */
	bool flush; /* the end is reached: they go out, then .end is told */
	int end; /* 0, or -errno with why */
	struct st_err why;
	uint64_t line_no;
	uint64_t lines[LINE_KINDS]; /* by kind, events included */
	uint64_t bad_payload; /* known events whose text was not understood: carried without arguments */
	uint64_t long_lines;
	uint64_t written, kept; /* entries-written and entries-in-buffer of the header */
	uint64_t *cpu_last_ns; /* by CPU: time of its last event, to place gaps */
	uint32_t cpu_room;
	uint64_t pending_lost; /* lost line seen, waiting for the CPU's next event */
	int32_t pending_cpu; /* -1 = none */
	char sample[SAMPLE_BYTES]; /* first line that was not understood */
	uint64_t sample_line;
	struct pid_slot pids[PID_SLOTS];
};

/* ---- payloads --------------------------------------------------------------------------------------------------------- */

static uint32_t text_name(struct text_reader *r, const char *text, size_t len)
{
	return len ? ev_name(r->base.session, text, len) : 0;
}

static void set_arg(struct text_reader *r, enum ftrace_known known, struct event *ev, uint32_t i,
		    enum known_arg_type type, const char *value, size_t len)
{
	struct ev_arg *arg = &ev->args[i];
	const char *end;

	arg->key = r->keys.arg[known][i];
	arg->type = EV_ARG_I64;
	switch (type) {
	case KA_TEXT:
	case KA_ACTION:
		if (type == KA_ACTION && len && value[len - 1] == ']')
			len--;
		arg->type = EV_ARG_NAME;
		arg->name = text_name(r, value, len);
		break;
	case KA_HANDLED:
		arg->type = EV_ARG_NAME;
		if (len && value[0] >= '0' && value[0] <= '9')
			arg->name = r->keys.handled[ftrace_number(value, len, NULL) != 0];
		else
			arg->name = text_name(r, value, len);
		break;
	case KA_STATE:
		arg->type = EV_ARG_NAME;
		if (len > 4 && !memcmp(value + len - 4, " ==>", 4))
			len -= 4;
		if (len && value[0] >= '0' && value[0] <= '9')
			arg->name =
				known_state_name(&r->keys, r->base.session, (uint64_t)ftrace_number(value, len, NULL));
		else
			arg->name = text_name(r, value, len);
		break;
	case KA_HEX:
		arg->type = EV_ARG_PTR;
		arg->u64 = len > 2 && value[1] == 'x' ? (uint64_t)ftrace_number(value, len, NULL) : 0;
		if (!(len > 2 && value[1] == 'x')) {
			char hex[20];

			snprintf(hex, sizeof(hex), "%.*s", (int)(len < 16 ? len : 16), value);
			arg->u64 = strtoull(hex, NULL, 16);
		}
		break;
	case KA_BOOL:
		arg->i64 = len && (value[0] == 't' || value[0] == '1');
		break;
	default:
		arg->i64 = ftrace_number(value, len, &end);
	}
}

/* Names of keys in text where they differ from the format's field names. */
static const char *text_key(enum ftrace_known known, uint32_t i)
{
	if (known == KNOWN_FORK && i == FORK_PARENT_COMM)
		return "comm";
	if (known == KNOWN_FORK && i == FORK_PARENT_PID)
		return "pid";
	return known_specs[known].args[i].name;
}

/* `key=value key=value`: from the right, since the first value is mostly a task's name. */
static bool by_keys(struct text_reader *r, enum ftrace_known known, const struct ftrace_line *line, struct event *ev)
{
	const struct known_spec *spec = &known_specs[known];
	const char *value;
	size_t len = line->text_len, value_len;
	uint32_t i, found = 0;

	for (i = r->keys.nargs[known]; i-- > 0;) {
		const char *key = text_key(known, i);

		if (!ftrace_key(line->text, &len, key, &value, &value_len)) {
			if (i == 0 && !(known == KNOWN_FORK &&
					ftrace_key(line->text, &len, spec->args[0].name, &value, &value_len)))
				return false;
			if (i)
				continue;
		}
		if (!found)
			found = i + 1;
		set_arg(r, known, ev, i, spec->args[i].type, value, value_len);
	}
	ev->nargs = (uint8_t)found;
	return found > 0;
}

/* trace-cmd's plugins: `bash:11018 [120] S`; *at moves behind the priority. */
static bool task_of(struct text_reader *r, const char *text, size_t len, uint32_t *name, int64_t *pid, int64_t *prio,
		    const char **rest)
{
	const char *open, *colon;

	for (open = text + len; open > text; open--)
		if (open[0] == '[' && open[-1] == ' ')
			break;
	if (open <= text + 2)
		return false;
	for (colon = open - 2; colon > text && *colon != ':'; colon--)
		;
	if (colon <= text)
		return false;
	*name = text_name(r, text, (size_t)(colon - text));
	*pid = ftrace_number(colon + 1, (size_t)(open - colon - 1), NULL);
	*prio = ftrace_number(open + 1, (size_t)(text + len - open - 1), rest);
	return *rest < text + len && **rest == ']';
}

static void put_i64(struct text_reader *r, enum ftrace_known known, struct event *ev, uint32_t i, int64_t value)
{
	ev->args[i] = (struct ev_arg){ .key = r->keys.arg[known][i], .type = EV_ARG_I64, .i64 = value };
}

static void put_name(struct text_reader *r, enum ftrace_known known, struct event *ev, uint32_t i, uint32_t name)
{
	ev->args[i] = (struct ev_arg){ .key = r->keys.arg[known][i], .type = EV_ARG_NAME, .name = name };
}

/* `bash:11018 [120] S ==> python3:10791 [120]` */
static bool plugin_switch(struct text_reader *r, const struct ftrace_line *line, struct event *ev)
{
	const char *arrow = memmem(line->text, line->text_len, " ==> ", 5), *end = line->text + line->text_len, *rest;
	int64_t pid, prio;
	uint32_t name;

	if (!arrow || !task_of(r, line->text, (size_t)(arrow - line->text), &name, &pid, &prio, &rest) ||
	    arrow - rest < 3)
		return false;
	put_name(r, KNOWN_SWITCH, ev, SWITCH_PREV_COMM, name);
	put_i64(r, KNOWN_SWITCH, ev, SWITCH_PREV_PID, pid);
	put_i64(r, KNOWN_SWITCH, ev, SWITCH_PREV_PRIO, prio);
	put_name(r, KNOWN_SWITCH, ev, SWITCH_PREV_STATE, text_name(r, rest + 2, (size_t)(arrow - rest - 2)));
	if (!task_of(r, arrow + 5, (size_t)(end - arrow - 5), &name, &pid, &prio, &rest))
		return false;
	put_name(r, KNOWN_SWITCH, ev, SWITCH_NEXT_COMM, name);
	put_i64(r, KNOWN_SWITCH, ev, SWITCH_NEXT_PID, pid);
	put_i64(r, KNOWN_SWITCH, ev, SWITCH_NEXT_PRIO, prio);
	ev->nargs = 7;
	return true;
}

/* `bash:11025 [120] CPU:001`, also with ` success=1` */
static bool plugin_wakeup(struct text_reader *r, enum ftrace_known known, const struct ftrace_line *line,
			  struct event *ev)
{
	const char *cpu = memmem(line->text, line->text_len, " CPU:", 5), *end = line->text + line->text_len, *rest;
	int64_t pid, prio;
	uint32_t name;

	if (!cpu || !task_of(r, line->text, (size_t)(cpu - line->text), &name, &pid, &prio, &rest))
		return false;
	put_name(r, known, ev, WAKE_COMM, name);
	put_i64(r, known, ev, WAKE_PID, pid);
	put_i64(r, known, ev, WAKE_PRIO, prio);
	put_i64(r, known, ev, WAKE_CPU, ftrace_number(cpu + 5, (size_t)(end - cpu - 5), NULL));
	ev->nargs = 4;
	return true;
}

/* `sys_futex(uaddr: 7f.., op: 80, val: 0)`, `sys_enter_futex: uaddr: 0x7f.., op: 0x80`; `sys_futex -> 0x0` */
static bool futex_args(struct text_reader *r, enum ftrace_known known, const struct ftrace_line *line, struct event *ev)
{
	const char *end = line->text + line->text_len, *at, *value;
	uint32_t i;

	if (known == KNOWN_FUTEX_EXIT) {
		at = memmem(line->text, line->text_len, "-> ", 3);
		at = at ? at + 3 : line->text;
		if (end - at > 4 && !memcmp(at, "ret=", 4))
			at += 4;
		put_i64(r, known, ev, 0, ftrace_number(at, (size_t)(end - at), NULL));
		ev->nargs = 1;
		return true;
	}
	for (i = 0; i < r->keys.nargs[known]; i++) {
		const char *key = known_specs[known].args[i].name;

		at = memmem(line->text, line->text_len, key, strlen(key));
		if (!at)
			break;
		value = at + strlen(key);
		while (value < end && (*value == ':' || *value == ' ' || *value == '='))
			value++;
		for (at = value; at < end && *at != ',' && *at != ')' && *at != ' ';)
			at++;
		set_arg(r, known, ev, i, KA_HEX, value, (size_t)(at - value));
	}
	ev->nargs = (uint8_t)i;
	return i > 0;
}

/* Any other event: up to EV_MAX_ARGS `key=value` words, else its whole text. */
static void other_args(struct text_reader *r, const struct ftrace_line *line, struct event *ev)
{
	const char *at = line->text, *end = at + line->text_len;

	while (at < end && ev->nargs < EV_MAX_ARGS) {
		const char *word = at, *stop = memchr(at, ' ', (size_t)(end - at)), *equal, *after;
		struct ev_arg *arg = &ev->args[ev->nargs];

		if (!stop)
			stop = end;
		at = stop + 1;
		equal = memchr(word, '=', (size_t)(stop - word));
		if (!equal || equal == word || equal + 1 == stop)
			continue;
		arg->key = ev_name(r->base.session, word, (size_t)(equal - word));
		arg->type = EV_ARG_I64;
		arg->i64 = ftrace_number(equal + 1, (size_t)(stop - equal - 1), &after);
		if (after == stop && after > equal + 1) {
			ev->nargs++;
			continue;
		}
		arg->type = EV_ARG_NAME;
		arg->name = text_name(r, equal + 1, (size_t)(stop - equal - 1));
		ev->nargs++;
	}
	if (!ev->nargs && line->text_len) {
		ev->args[0] = (struct ev_arg){ .key = ev_name(r->base.session, "text", 4), .type = EV_ARG_NAME };
		ev->args[0].name = text_name(r, line->text, line->text_len < 4096 ? line->text_len : 4096);
		ev->nargs = 1;
	}
}

static bool payload(struct text_reader *r, enum ftrace_known known, const struct ftrace_line *line, struct event *ev)
{
	switch (known) {
	case KNOWN_SWITCH:
		return by_keys(r, known, line, ev) || plugin_switch(r, line, ev);
	case KNOWN_WAKING:
	case KNOWN_WAKEUP:
	case KNOWN_WAKEUP_NEW:
		return (by_keys(r, known, line, ev) && ev->nargs == 4) || plugin_wakeup(r, known, line, ev);
	case KNOWN_FUTEX_ENTER:
	case KNOWN_FUTEX_EXIT:
		return futex_args(r, known, line, ev);
	default:
		return by_keys(r, known, line, ev);
	}
}

static enum ftrace_known known_of(const struct ftrace_line *line)
{
	if (line->event_len == 9 && !memcmp(line->event, "sys_futex", 9))
		return line->text_len && line->text[0] == '(' ? KNOWN_FUTEX_ENTER : KNOWN_FUTEX_EXIT;
	return ftrace_known_find(line->event, line->event_len);
}

static void make_event(struct text_reader *r, const struct ftrace_line *line, struct event *ev)
{
	enum ftrace_known known = known_of(line);

	known_begin(ev, &r->keys, known, line->t_ns, line->cpu, line->pid);
	ev->track.pid = line->tgid;
	ev->source = r->base.source;
	ev->clock = EV_CLOCK_UNKNOWN;
	if (known == KNOWN_NONE)
		ev->name = ev_name(r->base.session, line->event, line->event_len);
	if (known == KNOWN_NONE || !payload(r, known, line, ev)) {
		if (known != KNOWN_NONE)
			r->bad_payload++;
		ev->nargs = 0;
		other_args(r, line, ev);
		if (known != KNOWN_NONE)
			ev->kind = EV_OTHER; /* its arguments do not stand at their places */
	}
}

/* ---- names of tasks, gaps --------------------------------------------------------------------------------------------- */

/* Does the line give its task a name that was not told yet? */
static bool new_name(struct text_reader *r, const struct ftrace_line *line)
{
	struct pid_slot *slot = &r->pids[(uint32_t)line->pid % PID_SLOTS];
	uint32_t len = line->comm_len < sizeof(slot->text) ? line->comm_len : sizeof(slot->text);

	if (!line->pid || (line->comm_len == 5 && !memcmp(line->comm, "<...>", 5)))
		return false;
	if (slot->pid == line->pid && slot->len == line->comm_len && !memcmp(slot->text, line->comm, len))
		return false;
	slot->pid = line->pid;
	slot->len = line->comm_len;
	memcpy(slot->text, line->comm, len);
	slot->name = ev_name(r->base.session, line->comm, line->comm_len);
	return true;
}

static void make_task_comm(struct text_reader *r, const struct ftrace_line *line, struct event *ev)
{
	known_begin(ev, &r->keys, KNOWN_TASK_COMM, line->t_ns, -1, line->pid);
	ev->track.pid = line->tgid;
	ev->source = r->base.source;
	ev->clock = EV_CLOCK_UNKNOWN;
	put_name(r, KNOWN_TASK_COMM, ev, TASK_COMM_COMM, r->pids[(uint32_t)line->pid % PID_SLOTS].name);
	put_i64(r, KNOWN_TASK_COMM, ev, TASK_COMM_PID, line->pid);
	ev->nargs = 2;
}

static void make_gap(struct text_reader *r, const struct ftrace_line *line, struct event *ev)
{
	uint64_t begin_ns = line->t_ns;

	if ((uint32_t)line->cpu < r->cpu_room && r->cpu_last_ns[line->cpu] && r->cpu_last_ns[line->cpu] < begin_ns)
		begin_ns = r->cpu_last_ns[line->cpu];
	known_begin(ev, &r->keys, KNOWN_NONE, begin_ns, line->cpu, -1);
	ev->source = r->base.source;
	ev->clock = EV_CLOCK_UNKNOWN;
	ev->name = 0;
	ev->kind = EV_LOST;
	ev->phase = EV_COMPLETE;
	ev->dur_ns = line->t_ns - begin_ns;
	ev->nargs = 1;
	ev->args[0] = (struct ev_arg){ .key = r->keys.count, .type = EV_ARG_U64, .u64 = r->pending_lost };
	r->pending_cpu = -1;
}

static int note_time(struct text_reader *r, const struct ftrace_line *line, struct st_err *err)
{
	uint64_t *more;
	uint32_t room;

	if ((uint32_t)line->cpu >= r->cpu_room && line->cpu < 65536) {
		room = ((uint32_t)line->cpu | 63) + 1;
		more = realloc(r->cpu_last_ns, room * sizeof(*more));
		if (!more)
			return err_set(err, -ENOMEM, "%s: out of memory", r->base.path);
		memset(more + r->cpu_room, 0, (room - r->cpu_room) * sizeof(*more));
		r->cpu_last_ns = more;
		r->cpu_room = room;
	}
	if ((uint32_t)line->cpu < r->cpu_room)
		r->cpu_last_ns[line->cpu] = line->t_ns;
	return 0;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------ */

/* Next line into text/len (valid until the next call). 1, 0 at the end, -errno. */
static int next_line(struct text_reader *r, const char **text, size_t *len, size_t *consume, struct st_err *err)
{
	size_t seen = 0;

	for (;;) {
		const unsigned char *stop = memchr(r->input.at + seen, '\n', r->input.len - seen);
		int ret;

		if (stop) {
			*len = (size_t)(stop - r->input.at);
			*consume = *len + 1;
			break;
		}
		seen = r->input.len;
		if (seen >= MAX_LINE) {
			r->long_lines++;
			*len = seen;
			*consume = seen;
			break;
		}
		ret = input_more(&r->input, err);
		if (ret < 0)
			return ret;
		if (!ret) {
			if (!r->input.len)
				return 0;
			*len = r->input.len;
			*consume = *len;
			break;
		}
	}
	*text = (const char *)r->input.at;
	r->line_no++;
	return 1;
}

/* `# entries-in-buffer/entries-written: 100/200   #P:2`: what was overwritten before the file was read */
static void header_line(struct text_reader *r, const char *text, size_t len)
{
	static const char key[] = "entries-in-buffer/entries-written: ";
	const char *at = memmem(text, len, key, sizeof(key) - 1), *end = text + len;
	uint64_t kept, written;

	if (!at)
		return;
	kept = (uint64_t)ftrace_number(at + sizeof(key) - 1, (size_t)(end - at) - (sizeof(key) - 1), &at);
	if (at >= end || *at != '/')
		return;
	written = (uint64_t)ftrace_number(at + 1, (size_t)(end - at - 1), NULL);
	r->kept += kept;
	r->written += written;
	if (written > kept)
		r->base.stats.lost += written - kept;
}

static int refuse(struct text_reader *r, enum ftrace_line_kind kind, struct st_err *err)
{
	if (kind == FLINE_LATENCY)
		return err_set(err, -ENOTSUP,
			       "%s, line %" PRIu64
			       ": latency format, which holds no absolute times; record again after "
			       "`echo 0 > /sys/kernel/tracing/options/latency-format`",
			       r->base.path, r->line_no);
	return err_set(err, -ENOTSUP,
		       "%s, line %" PRIu64 ": raw format, which holds no event names; record again after "
		       "`echo 0 > /sys/kernel/tracing/options/raw`",
		       r->base.path, r->line_no);
}

static void keep_sample(struct text_reader *r, const char *text, size_t len)
{
	size_t i;

	if (r->sample_line)
		return;
	r->sample_line = r->line_no;
	snprintf(r->sample, sizeof(r->sample), "%.*s", (int)(len < SAMPLE_BYTES - 1 ? len : SAMPLE_BYTES - 1), text);
	for (i = 0; r->sample[i]; i++)
		if ((unsigned char)r->sample[i] < ' ' || (unsigned char)r->sample[i] == 127)
			r->sample[i] = '?';
}

/* The event of an event line; a gap and its task's name stand before it. */
static int emit(struct text_reader *r, const struct ftrace_line *line, struct st_err *err)
{
	if (r->pending_cpu == line->cpu) {
		r->base.stats.lost += r->pending_lost;
		make_gap(r, line, reorder_next(&r->order));
		reorder_put(&r->order);
	}
	if (new_name(r, line)) {
		make_task_comm(r, line, reorder_next(&r->order));
		reorder_put(&r->order);
	}
	make_event(r, line, reorder_next(&r->order));
	reorder_put(&r->order);
	return note_time(r, line, err);
}

/* One line. Return: 1, 0 at the end of the file, -errno. */
static int take_line(struct text_reader *r, struct st_err *err)
{
	struct ftrace_line line;
	const char *text;
	size_t len, consume;
	int ret = next_line(r, &text, &len, &consume, err);

	if (ret <= 0) {
		reader_progress(&r->base, &r->input);
		return ret;
	}
	r->lines[ftrace_line_parse(text, len, &line)]++;
	switch (line.kind) {
	case FLINE_EVENT:
		ret = emit(r, &line, err);
		if (ret < 0)
			return ret;
		break;
	case FLINE_HEADER:
		header_line(r, text, len);
		break;
	case FLINE_LOST:
		r->pending_cpu = line.cpu;
		r->pending_lost = line.lost;
		break;
	case FLINE_LATENCY:
	case FLINE_RAW:
		return refuse(r, line.kind, err);
	case FLINE_UNKNOWN:
	case FLINE_FUNCTION:
		r->base.stats.skipped++;
		keep_sample(r, text, len);
		break;
	default:
		break;
	}
	input_skip(&r->input, consume);
	if (!(r->line_no & 1023))
		reader_progress(&r->base, &r->input);
	return 1;
}

/* What was read before the end, or before a failure, goes out first; the failure is kept for then. */
static int text_next(struct ev_reader *base, struct event *ev, struct st_err *err)
{
	struct text_reader *r = (struct text_reader *)base;

	while (!reorder_take(&r->order, r->flush || !reorder_room(&r->order, LINE_EVENTS), ev)) {
		if (r->flush) {
			if (r->end < 0 && err)
				*err = r->why;
			return r->end;
		}
		r->end = take_line(r, &r->why);
		r->flush = r->end <= 0;
	}
	base->stats.events++;
	return 1;
}

static void text_close(struct ev_reader *base)
{
	struct text_reader *r = (struct text_reader *)base;

	input_close(&r->input);
	free(r->cpu_last_ns);
	free(r);
}

static void text_report(const struct ev_reader *base, void (*line)(void *arg, const char *text), void *arg)
{
	const struct text_reader *r = (const struct text_reader *)base;
	char text[320];

#define SAY(count, ...)                                            \
	do {                                                       \
		if (count) {                                       \
			snprintf(text, sizeof(text), __VA_ARGS__); \
			line(arg, text);                           \
		}                                                  \
	} while (0)
	SAY(r->lines[FLINE_UNKNOWN], "%" PRIu64 " lines were not understood, first (line %" PRIu64 "): %s",
	    r->lines[FLINE_UNKNOWN], r->sample_line, r->sample);
	SAY(r->lines[FLINE_FUNCTION], "%" PRIu64 " lines of the function tracer were skipped",
	    r->lines[FLINE_FUNCTION]);
	SAY(r->lines[FLINE_STACK], "%" PRIu64 " lines of stack traces were skipped", r->lines[FLINE_STACK]);
	SAY(r->bad_payload, "%" PRIu64 " known events had a text in an unknown form: carried without meaning",
	    r->bad_payload);
	SAY(r->order.moved, "%" PRIu64 " events came up to 1 ms after later ones (trace_pipe does so): put in order",
	    r->order.moved);
	SAY(r->order.late, "%" PRIu64 " events with a time stamp before the one of the event before", r->order.late);
	SAY(r->long_lines, "%" PRIu64 " lines of over 1 MiB were cut", r->long_lines);
	SAY(r->written > r->kept,
	    "the header says that %" PRIu64 " of %" PRIu64 " events were overwritten before saving",
	    r->written - r->kept, r->written);
#undef SAY
}

static const struct ev_reader_ops text_ops = {
	.format = "ftrace-text",
	.next = text_next,
	.close = text_close,
	.report = text_report,
};

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

/* Does one of the first whole lines tell? */
static bool text_knows(const unsigned char *head, size_t len)
{
	const char *at = (const char *)head, *end = at + len, *stop;
	struct ftrace_line line;
	int i;

	if (len > 9 && !memcmp(head, "# tracer:", 9))
		return true;
	for (i = 0; i < 64 && at < end; i++, at = stop + 1) {
		stop = memchr(at, '\n', (size_t)(end - at));
		if (!stop)
			stop = end;
		if (stop - at > 4096 || memchr(at, 0, (size_t)(stop - at)))
			return false;
		switch (ftrace_line_parse(at, (size_t)(stop - at), &line)) {
		case FLINE_EVENT:
		case FLINE_LOST:
		case FLINE_LATENCY:
		case FLINE_RAW:
			return true;
		default:
			break;
		}
	}
	return false;
}

static struct ev_reader *text_open(struct ev_session *session, struct input *input, const char *path,
				   struct st_err *err)
{
	struct text_reader *r = calloc(1, sizeof(*r));

	if (!r) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		return NULL;
	}
	if (reader_init(&r->base, &text_ops, session, path, err)) {
		free(r);
		return NULL;
	}
	if (known_keys_init(&r->keys, session)) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		free(r->base.path);
		free(r);
		return NULL;
	}
	r->input = *input;
	memset(input, 0, sizeof(*input));
	input->fd = -1;
	r->pending_cpu = -1;
	r->base.window_ns = 0; /* CPUs are merged already, and what is slightly off is put in order */
	return &r->base;
}

const struct format format_ftrace_text = {
	.name = "ftrace-text",
	.what = "ftrace text (tracefs trace, trace_pipe, trace-cmd report)",
	.knows = text_knows,
	.open = text_open,
};
