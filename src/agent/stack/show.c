/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Stacks of all threads; see show.h. */
#include "agent/stack/show.h"

#include "agent/stack/maps.h"
#include "agent/stack/memory.h"
#include "agent/stack/sample.h"
#include "agent/stack/walk.h"
#include "agent/threads.h"
#include "safe/clock.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MAX 8192u
#define FRAMES_MAX 400u
#define TEXT_BYTES (48u << 10) /* of one thread's frames */
#define ANSWER_UPTO (CTL_MAX_PAYLOAD - TEXT_BYTES - 8192u)
#define ENTRIES_UPTO (CTL_MAX_ENTRIES - 600u)
#define ALL_NS 4000000000u /* of one answer */
#define RUNNING_NS 60000000u /* for one thread that runs */
#define TRIES 3
#define HANDLE_WORDS 512 /* how far into a thread's descriptor its id is looked for */

/* One answer in the making; the control thread's alone. */
static struct show {
	struct ctl_msg *answer;
	uint32_t entries;
	uint64_t deadline_ns;
	uint32_t tids[THREADS_MAX];
	uint32_t count;
	struct pyframes_thread python[THREADS_MAX];
	size_t python_count;
	uint32_t holder; /* tid, 0 = none, or not known */
	uint8_t told[8192 / 8]; /* objects whose definitions are in the answer */
} show;

/* One thread's frames as text. */
struct lines {
	char text[TEXT_BYTES];
	size_t used;
	uint32_t frames;
	uint32_t python; /* of these */
};

static void *words; /* of the stack */

/* --- frames as text ---------------------------------------------------------------------------------------------------------- */

static void lines_clear(struct lines *lines)
{
	lines->used = lines->frames = lines->python = 0;
	lines->text[0] = 0;
}

static bool put_line(struct lines *lines, const char *line)
{
	size_t len = strlen(line);

	if (lines->frames == FRAMES_MAX || len + 2 > sizeof(lines->text) - lines->used)
		return false;
	memcpy(lines->text + lines->used, line, len);
	lines->used += len;
	lines->text[lines->used++] = '\n';
	lines->text[lines->used] = 0;
	lines->frames++;
	return true;
}

static bool put_native(void *arg, const struct unwind *u)
{
	uintptr_t pc = unwind_pc(u);
	char line[64];

	if (u->module)
		snprintf(line, sizeof(line), "n%u+0x%llx", u->module->id, (unsigned long long)(pc - u->module->bias));
	else
		snprintf(line, sizeof(line), "r0x%llx", (unsigned long long)pc);
	return put_line(arg, line);
}

static int put_python(void *arg, struct pyframes_walk *walk, bool *entry)
{
	char line[1024] = "p";

	if (!pyframes_next_text(walk, line + 1, sizeof(line) - 1, entry))
		return -1;
	((struct lines *)arg)->python++;
	return put_line(arg, line);
}

static const struct stack_out into_lines = { put_native, put_python };

/* Objects that the frames name, each once in an answer. */
static void tell_modules(const struct lines *lines)
{
	const char *at;

	for (at = lines->text; *at; at = strchr(at, '\n') + 1) {
		uint32_t id = *at == 'n' ? (uint32_t)strtoul(at + 1, NULL, 10) : 0;
		struct build_id build_id;
		char hex[2 * BUILD_ID_MAX + 1] = "-";
		size_t i;

		if (!id || id >= sizeof(show.told) * 8 || show.told[id / 8] & 1u << id % 8)
			continue;
		show.told[id / 8] |= (uint8_t)(1u << id % 8);
		maps_build_id(id, &build_id);
		for (i = 0; i < build_id.bytes; i++)
			snprintf(hex + 2 * i, 3, "%02x", build_id.byte[i]);
		ctl_addf(show.answer, "module", "%u %s %s", id, hex, maps_path(id));
		show.entries++;
	}
}

/* --- whose Python frames --------------------------------------------------------------------------------------------------------- */

/* Before 3.11 the interpreter knows its threads by pthread_self() alone; glibc keeps the kernel's id in what that points to. */
static uint32_t tid_of_handle(uintptr_t handle)
{
	static size_t at; /* in words; 0 = not known */
	const uint32_t *own = (const uint32_t *)pthread_self();
	uint32_t tid = (uint32_t)syscall(SYS_gettid), found = 0;
	size_t i;

	for (i = 1; !at && i < HANDLE_WORDS; i++)
		if (own[i] == tid)
			at = i;
	return at && memory_copy(&found, handle + at * sizeof(found), sizeof(found)) ? found : 0;
}

static const struct pyframes_thread *python_of(uint32_t tid)
{
	size_t i;

	for (i = 0; i < show.python_count; i++)
		if (show.python[i].tid == tid)
			return &show.python[i];
	return NULL;
}

static void read_python(void)
{
	const char *why = pyframes_start();
	uintptr_t holder;
	bool known;
	size_t i;

	show.python_count = pyframes_threads(show.python, THREADS_MAX);
	show.holder = 0;
	for (i = 0; i < show.python_count; i++)
		if (!show.python[i].tid)
			show.python[i].tid = tid_of_handle(show.python[i].handle);
	holder = pyframes_holder(&known);
	for (i = 0; i < show.python_count && holder; i++)
		if (show.python[i].state == holder)
			show.holder = show.python[i].tid;
	ctl_add(show.answer, "python", why ? why : "");
	if (why)
		return;
	if (show.holder)
		ctl_addf(show.answer, "gil", "%u", show.holder);
	else
		ctl_add(show.answer, "gil", known && !holder ? "free" : "unknown");
}

/* --- one thread ------------------------------------------------------------------------------------------------------------------- */

static void walk(const struct sample *s, const struct pyframes_thread *python, struct lines *lines, char *note,
		 size_t room)
{
	struct pyframes_walk frames;
	struct unwind u;
	bool all;

	lines_clear(lines);
	unwind_begin_copy(&u, &s->regs, s->low, s->high, s->words, maps_find);
	all = stack_join(&u, python && pyframes_begin_other(&frames, python) ? &frames : NULL, &into_lines, lines);
	if (!all)
		snprintf(note, room, "more than %u frames: the outer ones are left out", FRAMES_MAX);
	else if (u.cut)
		snprintf(note, room, "the native frames outside of these could not be found");
	else if (u.guessed)
		snprintf(note, room, "some native frames were guessed from what lies on the stack");
}

static void walk_python_only(const struct pyframes_thread *python, struct lines *lines)
{
	struct pyframes_walk frames;
	bool entry;

	lines_clear(lines);
	if (!python || !pyframes_begin_other(&frames, python))
		return;
	while (put_python(lines, &frames, &entry) > 0)
		;
}

/* A thread that waits did not run while its stack was read: it was given no processor. */
static bool take_waiting(uint32_t tid, struct sample *s, const struct pyframes_thread *python, struct lines *lines,
			 char *note, size_t room)
{
	int tries;

	for (tries = 0; tries < TRIES; tries++) {
		uint64_t runs = s->runs;

		note[0] = 0;
		if (sample_waiting(tid, s) == 0) {
			walk(s, python, lines, note, room);
			if (!sample_look(tid, s) || (s->runs == runs && s->state != 'R'))
				return true;
		} else if (!sample_look(tid, s) || s->state == 'R') {
			return false;
		}
	}
	return false;
}

static void take_running(uint32_t tid, struct sample *s, const struct pyframes_thread *python, struct lines *lines,
			 char *note, size_t room)
{
	uint64_t now_ns = clock_mono_ns();
	uint64_t until_ns = now_ns + RUNNING_NS < show.deadline_ns ? now_ns + RUNNING_NS : show.deadline_ns;
	int ret = sample_running(tid, s, until_ns), tries;

	note[0] = 0;
	if (ret == 0) {
		/* the native stack is a copy; its Python frames come and go while they are read */
		for (tries = 0; tries < TRIES && (!tries || (python && !lines->python)); tries++)
			walk(s, python, lines, note, room);
		if (python && !lines->python)
			snprintf(note, room, "it runs: its Python frames changed while they were read");
		else if (!note[0])
			snprintf(note, room,
				 "it runs: its Python frames may be of a later moment than the native ones");
		return;
	}
	walk_python_only(python, lines);
	if (ret == -ETIMEDOUT)
		snprintf(note, room, "it comes and goes too fast, or runs in the kernel: no native stack");
	else
		snprintf(note, room,
			 "it runs, and perf events are refused here (%s): no native stack without stopping it",
			 strerror(-ret));
}

static void put_thread(uint32_t tid)
{
	static struct lines lines;
	const struct pyframes_thread *python = python_of(tid);
	struct sample s = { .words = words };
	char note[160] = "";

	if (!sample_look(tid, &s))
		return;
	lines_clear(&lines);
	if (clock_mono_ns() >= show.deadline_ns)
		snprintf(note, sizeof(note), "not looked at: there was no time left");
	else if (!take_waiting(tid, &s, python, &lines, note, sizeof(note)))
		take_running(tid, &s, python, &lines, note, sizeof(note));
	tell_modules(&lines);
	ctl_addf(show.answer, "thread", "%u %c %s", tid, s.state ? s.state : 'X', s.name);
	if (lines.used)
		ctl_add(show.answer, "thread.frames", lines.text);
	if (note[0])
		ctl_add(show.answer, "thread.note", note);
	show.entries += 3;
}

/* --- all of them -------------------------------------------------------------------------------------------------------------------- */

static bool is_ours(uint32_t tid)
{
	int id;

	for (id = 0; id < THREAD_COUNT; id++)
		if (thread_tid((enum thread_id)id) == tid)
			return true;
	return false;
}

static int by_number(const void *a, const void *b)
{
	return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b);
}

static int list_threads(void)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc/self/task");

	if (!dir)
		return -errno;
	show.count = 0;
	while ((entry = readdir(dir)) && show.count < THREADS_MAX) {
		uint32_t tid = (uint32_t)strtoul(entry->d_name, NULL, 10);

		if (tid && !is_ours(tid))
			show.tids[show.count++] = tid;
	}
	closedir(dir);
	qsort(show.tids, show.count, sizeof(show.tids[0]), by_number);
	return 0;
}

void stack_show(struct ctl_msg *answer, uint32_t first)
{
	int ret;

	show.answer = answer;
	show.entries = 0;
	show.deadline_ns = clock_mono_ns() + ALL_NS;
	memset(show.told, 0, sizeof(show.told));
	words = malloc(SAMPLE_BYTES_MAX);
	ret = words ? list_threads() : -ENOMEM;
	if (!ret)
		ret = maps_read();
	ctl_addf(answer, CTL_KEY_CODE, "%d", ret);
	if (ret) {
		ctl_addf(answer, CTL_KEY_TEXT, "its threads cannot be listed: %s", strerror(-ret));
	} else {
		ctl_add_u64(answer, "threads", show.count);
		read_python();
		for (; first < show.count && answer->used < ANSWER_UPTO && show.entries < ENTRIES_UPTO; first++)
			put_thread(show.tids[first]);
		if (first < show.count)
			ctl_add_u64(answer, "next", first);
	}
	maps_free();
	free(words);
	words = NULL;
}
