/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Databases of `convert ftrace` back to spans; see read_msinsight_db.h. */
#include "trace/read_msinsight_db.h"

#include "base/num.h"
#include "trace/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "SQLite format 3"

bool msdb_knows(const char *path)
{
	char head[sizeof(MAGIC)];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool same;

	if (fd < 0)
		return false;
	same = read(fd, head, sizeof(head)) == (ssize_t)sizeof(head) && memcmp(head, MAGIC, sizeof(head)) == 0;
	close(fd);
	return same;
}

#ifdef HAVE_SQLITE
#include <sqlite3.h>

#define MAX_CPU 65536

/* A lane: a CPU (comm 0) or a task. */
struct lane {
	bool known, is_cpu;
	int32_t number; /* CPU or pid */
	uint32_t comm;
};

/* What the marks said of a task last. */
struct left {
	int32_t pid;
	uint32_t next; /* hash chain, index + 1 */
	uint64_t t_ns; /* it left a CPU then; 0 = not seen */
	uint32_t state;
	uint64_t in_ns; /* it was put on a CPU then */
	int32_t cpu;
};

struct idle {
	bool idle, seen;
	uint64_t since_ns;
};

struct msdb {
	struct ev_session *session;
	char *path;
	sqlite3 *sql;
	struct msdb_info info;
	struct lane *lanes; /* by track_id */
	size_t lane_room;
	struct left *lefts;
	uint32_t left_used, left_room;
	uint32_t buckets[4096];
	struct idle *cpus; /* MAX_CPU, pages come when they are touched */
	sched_emit emit;
	void *arg;
};

/* ---- arguments: {"key": "value", "key": 0} ---------------------------------------------------------------------------- */

static size_t put_code(char *out, unsigned int code)
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		out[0] = (char)(0xc0 | code >> 6);
		out[1] = (char)(0x80 | (code & 0x3f));
		return 2;
	}
	out[0] = (char)(0xe0 | code >> 12);
	out[1] = (char)(0x80 | (code >> 6 & 0x3f));
	out[2] = (char)(0x80 | (code & 0x3f));
	return 3;
}

/* A text behind its opening quote. Return: behind the closing quote, NULL when it is cut; *len bytes in @out (NULL: none). */
static const char *json_string(const char *at, char *out, size_t room, size_t *len)
{
	static const char letters[] = "bfnrt", shorts[] = "\b\f\n\r\t";
	size_t used = 0;
	const char *found;
	unsigned int code;
	char unit[4];
	size_t n;

	for (; *at != '"'; at++) {
		unit[0] = *at;
		n = 1;
		if (!*at)
			return NULL;
		if (*at == '\\') {
			at++;
			if (!*at)
				return NULL;
			found = strchr(letters, *at);
			unit[0] = found ? shorts[found - letters] : *at;
			if (*at == 'u') {
				if (sscanf(at + 1, "%4x", &code) != 1 || strnlen(at + 1, 4) < 4)
					return NULL;
				n = put_code(unit, code);
				at += 4;
			}
		}
		if (out && used + n < room) {
			memcpy(out + used, unit, n);
			used += n;
		}
	}
	if (out)
		out[used] = '\0';
	if (len)
		*len = used;
	return at + 1;
}

/* Value of a key of a flat object as text. Return: is it there? */
static bool json_get(const char *json, const char *key, char *out, size_t room)
{
	char name[64];
	const char *at = json;

	if (!at || *at++ != '{')
		return false;
	while (*at) {
		at += strspn(at, ", \t\n");
		if (*at++ != '"')
			return false;
		at = json_string(at, name, sizeof(name), NULL);
		if (!at)
			return false;
		at += strspn(at, ": \t\n");
		if (*at == '"') {
			at = json_string(at + 1, strcmp(name, key) == 0 ? out : NULL, room, NULL);
			if (!at)
				return false;
		} else {
			size_t n = strcspn(at, ",}");

			if (strcmp(name, key) == 0)
				snprintf(out, room, "%.*s", (int)n, at);
			at += n;
		}
		if (strcmp(name, key) == 0)
			return true;
	}
	return false;
}

static uint32_t json_name(const struct msdb *db, const char *json, const char *key)
{
	char text[512];

	return json_get(json, key, text, sizeof(text)) ? ev_namez(db->session, text) : 0;
}

/* A number that is not negative, -1 when it is none. */
static int32_t number_of(const char *text)
{
	uint64_t value;

	return num_u64(text, &value) == 0 && value <= INT32_MAX ? (int32_t)value : -1;
}

static int32_t json_number(const char *json, const char *key)
{
	char text[32];

	return json_get(json, key, text, sizeof(text)) ? number_of(text) : -1;
}

/* "comm:pid": the pid is behind the last colon. Return: is it one? */
static bool split_label(const struct msdb *db, const char *label, uint32_t *comm, int32_t *pid)
{
	const char *colon = label ? strrchr(label, ':') : NULL;

	*comm = 0;
	*pid = -1;
	if (!colon)
		return false;
	*pid = number_of(colon + 1);
	*comm = *pid ? ev_name(db->session, label, (size_t)(colon - label)) : 0;
	return *pid >= 0;
}

/* ---- what the marks say ----------------------------------------------------------------------------------------------- */

static struct left *left_of(struct msdb *db, int32_t pid)
{
	uint32_t *head = &db->buckets[((uint32_t)pid * 2654435761u >> 7) % 4096], at;
	uint32_t room = db->left_room ? 2 * db->left_room : 256;
	struct left *more;

	for (at = *head; at; at = db->lefts[at - 1].next)
		if (db->lefts[at - 1].pid == pid)
			return &db->lefts[at - 1];
	if (db->left_used == db->left_room) {
		more = realloc(db->lefts, room * sizeof(*more));
		if (!more)
			return NULL;
		db->lefts = more;
		db->left_room = room;
	}
	db->lefts[db->left_used] = (struct left){ .pid = pid, .next = *head, .cpu = -1 };
	*head = ++db->left_used;
	return &db->lefts[*head - 1];
}

/* The idle task has no slices: it is on the CPU from a switch to it until the next switch. */
static int idle_until(struct msdb *db, int32_t number, uint64_t t_ns, bool was_idle)
{
	struct idle *cpu = &db->cpus[number];
	struct sched_span span = {
		.kind = SPAN_ON_CPU,
		.begin_ns = cpu->seen ? cpu->since_ns : db->info.first_ns,
		.end_ns = t_ns,
		.cpu = number,
		.tgid = -1,
		.state = TASK_RUNNING,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
	};

	if (!was_idle || (cpu->seen && !cpu->idle) || t_ns <= span.begin_ns)
		return 0;
	return db->emit(db->arg, &span);
}

static void put_arg(struct event *ev, int at, enum ev_arg_type type, int64_t value)
{
	ev->args[at].type = type;
	if (type == EV_ARG_NAME)
		ev->args[at].name = (uint32_t)value;
	else
		ev->args[at].i64 = value;
}

static int give_switch(struct msdb *db, struct sched_span *span, const char *args)
{
	int32_t prev = json_number(args, "prev_pid"), next = json_number(args, "next_pid");
	struct left *left = prev > 0 ? left_of(db, prev) : NULL;
	struct event ev = { .kind = EV_SCHED_SWITCH, .t_ns = span->begin_ns, .phase = EV_INSTANT, .nargs = 7 };
	uint32_t state = json_name(db, args, "prev_state");
	int ret;

	if (prev < 0 || next < 0) {
		db->info.skipped++;
		return 0;
	}
	if (left) {
		left->t_ns = span->begin_ns;
		left->state = state;
	}
	left = next > 0 ? left_of(db, next) : NULL;
	if (left) {
		left->in_ns = span->begin_ns;
		left->cpu = span->cpu;
	}
	ret = idle_until(db, span->cpu, span->begin_ns, prev == 0);
	db->cpus[span->cpu] = (struct idle){ .idle = next == 0, .seen = true, .since_ns = span->begin_ns };
	ev.track.cpu = span->cpu;
	ev.track.tid = prev;
	put_arg(&ev, SWITCH_PREV_COMM, EV_ARG_NAME, json_name(db, args, "prev_comm"));
	put_arg(&ev, SWITCH_PREV_PID, EV_ARG_I64, prev);
	put_arg(&ev, SWITCH_PREV_PRIO, EV_ARG_I64, json_number(args, "prev_prio"));
	put_arg(&ev, SWITCH_PREV_STATE, EV_ARG_NAME, state);
	put_arg(&ev, SWITCH_NEXT_COMM, EV_ARG_NAME, json_name(db, args, "next_comm"));
	put_arg(&ev, SWITCH_NEXT_PID, EV_ARG_I64, next);
	put_arg(&ev, SWITCH_NEXT_PRIO, EV_ARG_I64, json_number(args, "next_prio"));
	span->kind = SPAN_SWITCH;
	span->end_ns = span->begin_ns;
	span->pid = next;
	span->comm = ev.args[SWITCH_NEXT_COMM].name;
	span->event = &ev;
	return ret ? ret : db->emit(db->arg, span);
}

/* ---- slices ------------------------------------------------------------------------------------------------------------- */

static uint32_t note_flags(const char *args)
{
	static const struct {
		const char *note;
		uint32_t flags;
	} notes[] = {
		{ "cut by lost events", SPAN_CUT_LOST },
		{ "open at the end", SPAN_END_UNSEEN },
		{ "begin not seen", SPAN_BEGIN_UNSEEN },
		{ "whole trace", SPAN_BEGIN_UNSEEN | SPAN_END_UNSEEN },
	};
	char text[64];
	size_t i;

	if (!json_get(args, "note", text, sizeof(text)))
		return 0;
	for (i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
		if (strcmp(notes[i].note, text) == 0)
			return notes[i].flags;
	return 0;
}

static int give_irq(struct msdb *db, struct sched_span *span, const char *args, bool soft)
{
	char task[600];

	span->kind = soft ? SPAN_SOFTIRQ : SPAN_IRQ;
	span->number = json_number(args, soft ? "vec" : "irq");
	span->label = json_name(db, args, soft ? "action" : "name");
	span->result = soft ? 0 : json_name(db, args, "ret");
	span->pid = -1;
	if (json_get(args, "task", task, sizeof(task)))
		split_label(db, task, &span->comm, &span->pid);
	return db->emit(db->arg, span);
}

/* A slice on the lane of a CPU. */
static int cpu_slice(struct msdb *db, struct sched_span *span, const struct lane *lane, const char *name,
		     const char *args)
{
	char runtime[32];

	span->cpu = lane->number;
	if (strcmp(name, "sched_switch") == 0)
		return give_switch(db, span, args);
	if (strcmp(name, "irq") == 0 || strcmp(name, "softirq") == 0)
		return give_irq(db, span, args, *name == 's');
	if (strcmp(name, "lost events") == 0) {
		int32_t count = json_number(args, "count");

		span->kind = SPAN_GAP;
		span->count = count > 0 ? (uint64_t)count : 0;
		return db->emit(db->arg, span);
	}
	if (!split_label(db, name, &span->comm, &span->pid)) {
		db->info.skipped++;
		return 0;
	}
	span->kind = SPAN_ON_CPU;
	span->state = TASK_RUNNING;
	if (json_get(args, "total_runtime", runtime, sizeof(runtime)) &&
	    num_u64_n(runtime, strspn(runtime, "0123456789"), &span->runtime_ns) < 0)
		span->runtime_ns = 0;
	span->end_state = json_name(db, args, "end_state");
	return db->emit(db->arg, span);
}

/* The wake-up that ends with this wait, if it was one. */
static int give_wake(struct msdb *db, const struct sched_span *wait, const struct left *left, const char *args)
{
	struct sched_span wake = *wait;
	char waker[600];

	if ((wait->flags & (SPAN_PREEMPTED | SPAN_BEGIN_UNSEEN)) || left->in_ns != wait->end_ns)
		return 0;
	wake.kind = SPAN_WAKE;
	wake.cpu = left->cpu;
	if (json_get(args, "waker", waker, sizeof(waker)))
		split_label(db, waker, &wake.waker_comm, &wake.waker_pid);
	return db->emit(db->arg, &wake);
}

/* A slice on the lane of a task. */
static int task_slice(struct msdb *db, struct sched_span *span, const struct lane *lane, const char *name,
		      const char *args)
{
	struct left *left = left_of(db, lane->number);
	char why[32];
	int ret = 0;

	if (!left)
		return -ENOMEM;
	span->kind = SPAN_STATE;
	span->pid = lane->number;
	span->comm = lane->comm;
	span->cpu = json_number(args, "cpu");
	if (strcmp(name, "Running") == 0) {
		span->state = TASK_RUNNING;
	} else if (strcmp(name, "Runnable") == 0) {
		span->state = TASK_RUNNABLE;
		if (left->t_ns == span->begin_ns && *ev_text(db->session, left->state) == 'R')
			span->flags |= SPAN_PREEMPTED;
		if (json_get(args, "why", why, sizeof(why)))
			span->flags |= strcmp(why, "preempted") == 0 ? SPAN_PREEMPTED : SPAN_NEW_TASK;
		ret = give_wake(db, span, left, args);
	} else if (strcmp(name, "Sleeping") == 0) {
		span->state = TASK_SLEEPING;
		span->end_state = json_name(db, args, "sleep");
		if (!span->end_state && left->t_ns == span->begin_ns)
			span->end_state = left->state;
	} else {
		return 0; /* futex and mmap_lock slices lie on top of the states */
	}
	return ret ? ret : db->emit(db->arg, span);
}

static int give_slice(struct msdb *db, sqlite3_stmt *row)
{
	struct sched_span span = {
		.begin_ns = (uint64_t)sqlite3_column_int64(row, 0),
		.end_ns = (uint64_t)sqlite3_column_int64(row, 1),
		.cpu = -1,
		.pid = -1,
		.tgid = -1,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
	};
	const char *name = (const char *)sqlite3_column_text(row, 2), *args = (const char *)sqlite3_column_text(row, 3);
	int64_t track = sqlite3_column_int64(row, 4);
	const struct lane *lane = track >= 0 && (uint64_t)track < db->lane_room ? &db->lanes[track] : NULL;

	if (!lane || !lane->known || !name || span.end_ns < span.begin_ns) {
		db->info.skipped++;
		return 0;
	}
	span.flags = note_flags(args);
	return lane->is_cpu ? cpu_slice(db, &span, lane, name, args) : task_slice(db, &span, lane, name, args);
}

/* ---- tables ------------------------------------------------------------------------------------------------------------- */

static int sql_fail(struct msdb *db, struct st_err *err)
{
	return err_set(err, -EIO, "cannot read %s: %s", db->path, sqlite3_errmsg(db->sql));
}

static int add_lane(struct msdb *db, sqlite3_stmt *row)
{
	int64_t track = sqlite3_column_int64(row, 0);
	const char *tid = (const char *)sqlite3_column_text(row, 1), *pid = (const char *)sqlite3_column_text(row, 2);
	struct lane lane = { .known = true };
	struct lane *more;
	size_t room;

	if (track < 0 || track > 1 << 26 || !tid || !pid)
		return 0;
	if (strcmp(pid, "CPU Scheduling") == 0 && strncmp(tid, "CPU ", 4) == 0) {
		lane.is_cpu = true;
		lane.number = number_of(tid + 4);
		lane.known = lane.number >= 0 && lane.number < MAX_CPU;
	} else {
		lane.known = strcmp(pid, "Process Scheduling") == 0 && split_label(db, tid, &lane.comm, &lane.number);
	}
	if ((size_t)track >= db->lane_room) {
		room = ((size_t)track | 255) + 1;
		room = room > 2 * db->lane_room ? room : 2 * db->lane_room;
		more = realloc(db->lanes, room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		memset(more + db->lane_room, 0, (room - db->lane_room) * sizeof(*more));
		db->lanes = more;
		db->lane_room = room;
	}
	db->lanes[track] = lane;
	return 0;
}

static int read_lanes(struct msdb *db, struct st_err *err)
{
	sqlite3_stmt *row = NULL;
	int ret = 0, rc = sqlite3_prepare_v2(db->sql, "SELECT track_id, tid, pid FROM thread", -1, &row, NULL);

	while (!ret && rc == SQLITE_OK && (rc = sqlite3_step(row)) == SQLITE_ROW) {
		ret = add_lane(db, row);
		rc = SQLITE_OK;
	}
	if (ret)
		err_set(err, ret, "%s: out of memory", db->path);
	else if (rc != SQLITE_DONE)
		ret = err_set(err, -EINVAL, "%s is no scheduling database of 'convert ftrace': %s", db->path,
			      sqlite3_errmsg(db->sql));
	sqlite3_finalize(row);
	return ret;
}

static int read_range(struct msdb *db, struct st_err *err)
{
	static const char text[] = "SELECT min(timestamp), max(end_time), count(*) FROM slice";
	sqlite3_stmt *row = NULL;
	int ret = 0;

	if (sqlite3_prepare_v2(db->sql, text, -1, &row, NULL) != SQLITE_OK)
		ret = err_set(err, -EINVAL, "%s is no scheduling database of 'convert ftrace': %s", db->path,
			      sqlite3_errmsg(db->sql));
	else if (sqlite3_step(row) != SQLITE_ROW)
		ret = sql_fail(db, err);
	if (!ret) {
		db->info.first_ns = (uint64_t)sqlite3_column_int64(row, 0);
		db->info.last_ns = (uint64_t)sqlite3_column_int64(row, 1);
		db->info.slices = (uint64_t)sqlite3_column_int64(row, 2);
	}
	sqlite3_finalize(row);
	return ret;
}

struct msdb *msdb_open(struct ev_session *session, const char *path, struct st_err *err)
{
	struct msdb *db = calloc(1, sizeof(*db));

	if (db) {
		db->session = session;
		db->path = strdup(path);
		db->cpus = calloc(MAX_CPU, sizeof(*db->cpus));
	}
	if (!db || !db->path || !db->cpus) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	if (sqlite3_open_v2(path, &db->sql, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) {
		sql_fail(db, err);
		goto fail;
	}
	sqlite3_exec(db->sql, "PRAGMA cache_size = -8192; PRAGMA temp_store = FILE", NULL, NULL, NULL);
	if (read_lanes(db, err) || read_range(db, err))
		goto fail;
	return db;
fail:
	msdb_close(db);
	errno = err && err->code ? -err->code : EIO;
	return NULL;
}

const struct msdb_info *msdb_info(const struct msdb *db)
{
	return &db->info;
}

/* CPUs that were idle when the trace ended */
static int give_idle_ends(struct msdb *db)
{
	int32_t cpu;
	int ret = 0;

	for (cpu = 0; !ret && cpu < MAX_CPU; cpu++)
		if (db->cpus[cpu].idle)
			ret = idle_until(db, cpu, db->info.last_ns, true);
	return ret;
}

int msdb_read(struct msdb *db, sched_emit emit, void *arg, struct st_err *err)
{
	/* at one moment: what ends, then the switch, then the wait that it ends */
	static const char text[] = "SELECT timestamp, end_time, name, args, track_id FROM slice ORDER BY end_time, "
				   "CASE name WHEN 'sched_switch' THEN 1 WHEN 'Runnable' THEN 2 ELSE 0 END";
	sqlite3_stmt *row = NULL;
	int ret = 0, rc = sqlite3_prepare_v2(db->sql, text, -1, &row, NULL);

	db->emit = emit;
	db->arg = arg;
	while (!ret && rc == SQLITE_OK && (rc = sqlite3_step(row)) == SQLITE_ROW) {
		ret = give_slice(db, row);
		rc = SQLITE_OK;
	}
	if (!ret && rc != SQLITE_DONE)
		ret = sql_fail(db, err);
	sqlite3_finalize(row);
	return ret ? ret : give_idle_ends(db);
}

void msdb_close(struct msdb *db)
{
	if (!db)
		return;
	sqlite3_close(db->sql);
	free(db->lanes);
	free(db->lefts);
	free(db->cpus);
	free(db->path);
	free(db);
}
#else
struct msdb *msdb_open(struct ev_session *session, const char *path, struct st_err *err)
{
	err_set(err, -ENOTSUP, "cannot read %s: this build has no SQLite; give the trace itself", path);
	errno = ENOTSUP;
	return NULL;
}

const struct msdb_info *msdb_info(const struct msdb *db)
{
	static const struct msdb_info none;

	return &none;
}

int msdb_read(struct msdb *db, sched_emit emit, void *arg, struct st_err *err)
{
	return -ENOTSUP;
}

void msdb_close(struct msdb *db)
{
}
#endif
