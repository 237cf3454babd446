/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugins Mutex and GIL: files that are Chrome traces as they stand, whatever SYSTRACE_FORMAT says. One object, whose
 * traceEvents grow at the end; times are CLOCK_MONOTONIC in microseconds, the origin says what that is on the wall clock.
 * Driven by spool/drain.c.
 */
#include "spool/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAMED 1000 /* threads whose names are remembered as told; a crowded table only tells a name twice */

struct named {
	uint64_t thread[NAMED];
};

static void put_process(struct json_writer *w, uint32_t pid, uint32_t rank, const char *name)
{
	json_open(w, '{');
	json_key(w, "ph");
	json_text(w, "M", 1);
	json_key(w, "name");
	json_text(w, "process_name", 12);
	json_key(w, "pid");
	json_u64(w, pid);
	json_key(w, "args");
	json_open(w, '{');
	json_key(w, "name");
	json_text(w, name, strlen(name));
	json_key(w, "rank");
	json_u64(w, rank);
	json_close(w, '}');
	json_close(w, '}');
}

static int chrome_begin(struct sink *s, const struct clock_snapshot *clocks)
{
	struct msg_origin origin = sink_origin(s);
	struct json_writer w;
	char name[160];

	memset(s->state, 0, sizeof(struct named));
	json_init(&w, s->env->scratch, OUT_WRITE - OUT_TAIL);
	json_open(&w, '{');
	json_key(&w, "displayTimeUnit");
	json_text(&w, "ns", 2);
	json_key(&w, "records");
	json_text(&w, s->ops->name, strlen(s->ops->name));
	sink_origin_json(&w, &origin, clocks, 1);
	json_key(&w, "traceEvents");
	json_open(&w, '[');
	json_raw(&w, "\n");
	snprintf(name, sizeof(name), "rank %u (%.*s)", origin.rank, (int)(origin.host.bytes & 127), origin.host.at);
	put_process(&w, origin.pid, origin.rank, name);
	s->out.elements = true;
	return w.full ? -EMSGSIZE : out_put(&s->out, w.data, w.used);
}

static size_t chrome_tail(const struct sink *s, char *text)
{
	memcpy(text, "\n]}\n", 4);
	return 4;
}

static void put_time(struct json_writer *w, const char *key, uint64_t ns)
{
	char thousandths[8];

	json_key(w, key);
	json_u64(w, ns / 1000);
	snprintf(thousandths, sizeof(thousandths), ".%03u", (unsigned int)(ns % 1000));
	json_raw(w, thousandths);
}

static void put_hex(struct json_writer *w, const char *key, uint64_t value)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "0x%llx", (unsigned long long)value);

	json_key(w, key);
	json_text(w, text, (size_t)n);
}

/* As in the stacks file (docs/formats/stacks.md), which names the module. */
static void put_place(struct json_writer *w, const char *key, uint64_t frame)
{
	char text[40];
	int n;

	if (FRAME_KIND(frame) != FRAME_NATIVE)
		return;
	n = snprintf(text, sizeof(text), "%u+0x%llx", FRAME_MODULE(frame), (unsigned long long)FRAME_OFFSET(frame));
	json_key(w, key);
	json_text(w, text, (size_t)n);
}

static void put_number(struct json_writer *w, const char *key, int64_t value)
{
	json_key(w, key);
	json_i64(w, value);
}

static void event_open(struct sink *s, struct json_writer *w, const char *phase, const char *name, uint32_t pid,
		       uint32_t tid)
{
	sink_json(s, w);
	json_open(w, '{');
	json_key(w, "ph");
	json_text(w, phase, 1);
	json_key(w, "name");
	json_text(w, name, strlen(name));
	put_number(w, "pid", pid);
	put_number(w, "tid", tid);
}

static int event_close(struct sink *s, struct json_writer *w)
{
	json_close(w, '}'); /* of args */
	json_close(w, '}');
	return sink_put_json(s, w);
}

static void args_open(struct json_writer *w)
{
	json_key(w, "args");
	json_open(w, '{');
}

static void slice(struct sink *s, struct json_writer *w, const struct sink_rec *rec, const char *name,
		  const char *category, uint64_t begin_ns, uint64_t dur_ns)
{
	event_open(s, w, "X", name, rec->pid, rec->tid);
	json_key(w, "cat");
	json_text(w, category, strlen(category));
	put_time(w, "ts", begin_ns);
	put_time(w, "dur", dur_ns);
	args_open(w);
}

/* Is this the first time that it is told? 64 bits that are not 0 */
static bool first_time(struct sink *s, uint64_t what)
{
	struct named *named = s->state;
	uint64_t *slot = &named->thread[what % NAMED];
	bool first = *slot != what;

	*slot = what;
	return first;
}

/* A forked child is a process of its own in viewers. */
static int name_child(struct sink *s, uint32_t pid)
{
	const struct msg_origin *origin = s->env->origin;
	struct json_writer w;
	char name[160];

	if (pid == origin->pid || !first_time(s, (uint64_t)pid << 32))
		return 0;
	snprintf(name, sizeof(name), "rank %u, forked child %u (%.*s)", origin->rank, pid,
		 (int)(origin->host.bytes & 127), origin->host.at);
	sink_json(s, &w);
	put_process(&w, pid, origin->rank, name);
	return sink_put_json(s, &w);
}

/* A thread has one name in a file: the one that it had when it was seen first. */
static int name_thread(struct sink *s, uint32_t pid, uint32_t tid, const char *comm)
{
	struct json_writer w;
	int ret;

	if (!comm[0] || !first_time(s, (uint64_t)pid << 32 | tid))
		return 0;
	ret = name_child(s, pid);
	if (ret < 0)
		return ret;
	event_open(s, &w, "M", "thread_name", pid, tid);
	args_open(&w);
	json_key(&w, "name");
	json_text(&w, comm, strlen(comm));
	return event_close(s, &w);
}

static int chrome_thread(struct sink *s, const struct sink_rec *rec)
{
	bool other = rec->head->type == REC_NOTE  ? true
		     : rec->head->type == REC_GIL ? rec->head->flags & GIL_FOR_OTHER
						  : rec->head->type == REC_LOCK && rec->head->flags & LOCK_COUNTED;

	if (other)
		return 0;
	return name_thread(s, rec->pid, rec->tid, rec->comm);
}

static int chrome_drop(struct sink *s, const struct msg_drop *drop)
{
	struct json_writer w;

	event_open(s, &w, "i", "records lost", s->env->origin->pid, s->env->origin->pid);
	json_key(&w, "s");
	json_text(&w, "p", 1);
	put_time(&w, "ts", drop->to_ns);
	args_open(&w);
	put_number(&w, "count", (int64_t)drop->count);
	return event_close(s, &w);
}

/* What the plugin has given up, and when: a mark for the whole process. */
static int put_note(struct sink *s, const struct sink_rec *rec)
{
	const struct rec_note *note = (const struct rec_note *)rec->head;
	struct msg_text text = sink_text(s->env->head, note->text);
	uint32_t pid = s->env->origin->pid;
	struct json_writer w;

	event_open(s, &w, "i", "note", pid, pid);
	json_key(&w, "s");
	json_text(&w, "p", 1);
	put_time(&w, "ts", note->at_ns);
	args_open(&w);
	json_key(&w, "text");
	json_text(&w, text.at, text.bytes);
	return event_close(s, &w);
}

/* --- Mutex ----------------------------------------------------------------------------------------------------------- */

#define CALL_TEXT(name, text) [LOCK_##name] = text,
static const char *const call_texts[LOCK_CALL_COUNT] = { LOCK_CALLS(CALL_TEXT) };

static void mutex_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	snprintf(stem, room, "Mutex/Mutex_%u_rank_%u", s->env->origin->pid, s->env->origin->rank);
	*suffix = ".json";
}

/* Calls since the capture began, also those that were too short to be stored. */
static int put_calls(struct sink *s, const struct sink_rec *rec, const struct rec_lock *lock, const char *name)
{
	struct json_writer w;
	char text[64];

	snprintf(text, sizeof(text), "calls: %s", name);
	event_open(s, &w, "i", text, rec->pid, rec->pid);
	json_key(&w, "s");
	json_text(&w, "p", 1);
	put_time(&w, "ts", lock->begin_ns);
	args_open(&w);
	put_number(&w, "calls", (int64_t)lock->address);
	return event_close(s, &w);
}

static bool mutex_concerns(const struct sink *s, const struct sink_rec *rec)
{
	return rec->head->type != REC_NOTE || sink_note_of(s, rec, "Mutex");
}

static int mutex_put(struct sink *s, const struct sink_rec *rec)
{
	const struct rec_lock *lock = (const struct rec_lock *)rec->head;
	const char *name = lock->call < LOCK_CALL_COUNT ? call_texts[lock->call] : "unknown";
	const char *stage = stage_type_name(lock->stage);
	struct json_writer w;

	if (rec->head->type == REC_NOTE)
		return put_note(s, rec);
	if (lock->head.flags & LOCK_COUNTED)
		return put_calls(s, rec, lock, name);
	slice(s, &w, rec, name, "lock", lock->begin_ns, lock->dur_ns);
	if (lock->address)
		put_hex(&w, "lock", lock->address);
	put_place(&w, "lock_at", lock->lock_at);
	put_hex(&w, "caller", lock->caller);
	put_place(&w, "caller_at", lock->caller_at);
	if (lock->owner)
		put_number(&w, "owner_tid", lock->owner);
	if (lock->repeats)
		put_number(&w, "failures", lock->repeats);
	if (lock->result)
		put_number(&w, "errno", lock->result);
	if (lock->stack)
		put_number(&w, "stack", lock->stack);
	put_number(&w, "step", lock->head.step);
	put_number(&w, "stage_id", lock->stage_id);
	json_key(&w, "stage_type");
	json_text(&w, stage, strlen(stage));
	return event_close(s, &w);
}

const struct sink_ops sink_mutex = {
	.kind = SINK_MUTEX,
	.name = "Mutex",
	.for_pb = true,
	.for_json = true,
	.types = 1u << REC_LOCK | 1u << REC_NOTE,
	.concerns = mutex_concerns,
	.sources = 1u << POOL_SRC_MUTEX,
	.file_name = mutex_name,
	.begin = chrome_begin,
	.tail = chrome_tail,
	.put = mutex_put,
	.own_thread = chrome_thread,
	.own_drop = chrome_drop,
	.state_bytes = sizeof(struct named),
};

/* --- GIL ------------------------------------------------------------------------------------------------------------- */

static void gil_name(const struct sink *s, char *stem, size_t room, const char **suffix)
{
	snprintf(stem, room, "GIL/GIL_%u_rank_%u", s->env->origin->pid, s->env->origin->rank);
	*suffix = ".json";
}

static bool gil_concerns(const struct sink *s, const struct sink_rec *rec)
{
	return rec->head->type != REC_NOTE || sink_note_of(s, rec, "GIL");
}

static int gil_put(struct sink *s, const struct sink_rec *rec)
{
	/* of another thread: what had not ended */
	const struct rec_gil_for *other = rec->head->flags & GIL_FOR_OTHER && rec->head->bytes >= sizeof(*other)
						  ? (const struct rec_gil_for *)rec->head
						  : NULL;
	char comm[sizeof(other->comm) + 1] = "";
	struct sink_rec whose = *rec;
	static const char *const names[] = {
		[GIL_HOLD] = "GIL hold", [GIL_WAIT] = "GIL wait", [GIL_FORCED] = "GIL forced drop"
	};
	const struct rec_gil *gil = (const struct rec_gil *)rec->head;
	struct json_writer w;
	int ret;

	if (rec->head->type == REC_NOTE)
		return put_note(s, rec);
	if (other) {
		memcpy(comm, other->comm, sizeof(other->comm));
		whose.tid = other->tid;
		ret = name_thread(s, rec->pid, other->tid, comm);
		if (ret < 0)
			return ret;
	}
	slice(s, &w, &whose, names[gil->what <= GIL_FORCED ? gil->what : GIL_WAIT], "GIL", gil->begin_ns, gil->dur_ns);
	if (gil->what == GIL_WAIT)
		put_number(&w, "timeouts", gil->timeouts);
	if (gil->head.flags & GIL_ASKED)
		put_number(&w, "forced", 1);
	if (gil->lock)
		put_number(&w, "interpreter", gil->lock);
	if (gil->head.flags & (GIL_CUT_BEGIN | GIL_CUT_END)) {
		const char *cut = gil->head.flags & GIL_CUT_BEGIN ? "begun before the capture" : "went on after it";

		json_key(&w, "cut");
		json_text(&w, cut, strlen(cut));
	}
	put_number(&w, "step", gil->head.step);
	return event_close(s, &w);
}

const struct sink_ops sink_gil = {
	.kind = SINK_GIL,
	.name = "GIL",
	.for_pb = true,
	.for_json = true,
	.types = 1u << REC_GIL | 1u << REC_NOTE,
	.concerns = gil_concerns,
	.sources = 1u << POOL_SRC_GIL,
	.file_name = gil_name,
	.begin = chrome_begin,
	.tail = chrome_tail,
	.put = gil_put,
	.own_thread = chrome_thread,
	.own_drop = chrome_drop,
	.state_bytes = sizeof(struct named),
};
