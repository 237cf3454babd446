/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Stacks of ranks that hang; see hang_stacks.h. */
#include "cli/hang_stacks.h"

#include "analyze/job_life.h"
#include "cli/cli_stacks.h"
#include "cli/term.h"
#include "safe/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#define ALL_NS 10000000000u /* for all ranks */
#define ONE_NS 5000000000u
#define ANSWER_BYTES (4u << 20)
#define FRAMES_SHOWN 16
#define THREADS_SHOWN 8

/** struct answer - what the asking process wrote: stacks where it ends with status 0, else why there are none */
struct answer {
	char *text;
	size_t bytes, room;
	bool too_long;
};

/* The asking process: stacks, or a reason, go to @fd. */
static void ask(pid_t pid, int fd)
{
	const struct stacks_query query = { .timeout_ns = ONE_NS, .json = true };
	FILE *out = fdopen(fd, "w");
	struct st_err err = { 0 };

	signal(SIGPIPE, SIG_DFL);
	if (!out)
		_exit(1);
	if (cli_stacks_of(pid, &query, out, &err) < 0) {
		fputs(err.text, out);
		fflush(out);
		_exit(1);
	}
	_exit(fflush(out) ? 1 : 0);
}

/* Return: false at the end, or where it is too long. */
static bool take(struct answer *a, int fd)
{
	ssize_t got;

	if (a->bytes == ANSWER_BYTES) {
		a->too_long = true;
		return false;
	}
	if (a->bytes == a->room) {
		char *more = realloc(a->text, a->room + 65536 + 1);

		if (!more)
			return false;
		a->text = more;
		a->room += 65536;
	}
	got = read(fd, a->text + a->bytes, a->room - a->bytes);
	if (got > 0)
		a->bytes += (size_t)got;
	return got > 0 || (got < 0 && errno == EINTR);
}

/* Until the end of what it writes, or that time. Return: did it end by itself? */
static bool collect(struct answer *a, int fd, uint64_t end_ns)
{
	for (;;) {
		uint64_t now = clock_mono_ns();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int ready = now < end_ns ? poll(&p, 1, (int)((end_ns - now) / 1000000) + 1) : 0;

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready <= 0)
			return false;
		if (!take(a, fd))
			return !a->too_long;
	}
}

/* A process that waits in the kernel outlives its SIGKILL and is not waited for. Return: its exit status, -1 = none. */
static int finish(pid_t child, bool by_itself)
{
	int status = -1, tries;

	if (!by_itself)
		kill(-child, SIGKILL);
	for (tries = 0; tries < 100; tries++) {
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		poll(NULL, 0, 2);
	}
	kill(-child, SIGKILL);
	return -1;
}

static uint32_t note(struct ev_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

static uint32_t note(struct ev_session *session, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return ev_name(session, text, strlen(text));
}

/* Until @end_ns */
static void ask_process(struct loc_stacks *stacks, struct ev_session *session, uint64_t end_ns)
{
	struct answer a = { 0 };
	bool by_itself;
	int fds[2], status;
	pid_t child;

	if (pipe2(fds, O_CLOEXEC) < 0) {
		stacks->note = note(session, "cannot ask its process: %s", strerror(errno));
		return;
	}
	fflush(NULL);
	child = fork();
	if (child == 0) {
		setpgid(0, 0);
		close(fds[0]);
		ask(stacks->pid, fds[1]);
	}
	close(fds[1]);
	if (child < 0) {
		stacks->note = note(session, "cannot ask its process: %s", strerror(errno));
		close(fds[0]);
		return;
	}
	setpgid(child, child); /* whoever comes first */
	by_itself = collect(&a, fds[0], end_ns);
	close(fds[0]);
	status = finish(child, by_itself);
	if (a.text)
		a.text[a.bytes] = 0;
	if (by_itself && status == 0 && a.bytes)
		stacks->json = ev_name(session, a.text, a.bytes);
	else if (by_itself && status == 1 && a.bytes)
		stacks->note = note(session, "%.400s", a.text);
	else
		stacks->note = note(session, "its stacks %s: try sysTrace_cli stacks --pid %d",
				    a.too_long	 ? "are too many for a result"
				    : !by_itself ? "did not come in time"
						 : "could not be asked for",
				    (int)stacks->pid);
	free(a.text);
}

void hang_stacks_ask(struct diagnosis *d, const char *dump)
{
	struct ev_session *session = d->records->session;
	const char *run = d->records->count ? ev_text(session, d->records->files[0].run) : "";
	uint64_t end_ns = clock_mono_ns() + ALL_NS;
	size_t i;

	for (i = 0; i < d->ranks.findings_count; i++) {
		struct loc_stacks stacks = { 0 };
		uint64_t now = clock_mono_ns();
		const char *why;

		if (d->ranks.findings[i].kind != LOC_HANG)
			continue;
		stacks.pid = job_process(dump, run, d->ranks.findings[i].rank, &why);
		if (!stacks.pid)
			stacks.note = note(session, "%s", why);
		else if (now >= end_ns)
			stacks.note = note(session,
					   "other ranks took all the time there was: try sysTrace_cli stacks --pid %d",
					   (int)stacks.pid);
		else
			ask_process(&stacks, session, now + ONE_NS < end_ns ? now + ONE_NS : end_ns);
		localize_stacks(d->loc, i, &stacks);
	}
}

/* --- for people ---------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_JANSSON

static void clean(FILE *out, const char *format, const char *text)
{
	char copy[512];

	snprintf(copy, sizeof(copy), "%s", text);
	fprintf(out, format, term_clean(copy));
}

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static bool is_python(const json_t *frame)
{
	const char *kind = text_of(frame, "kind");

	return kind && !strcmp(kind, "python");
}

/* `load at data.py:12`, `read in libc.so.6` */
static void frame_words(FILE *out, const json_t *frame)
{
	const char *function = text_of(frame, "function"), *file = text_of(frame, "file"),
		   *module = text_of(frame, "module");
	const char *slash = module ? strrchr(module, '/') : NULL;

	clean(out, "%s", function ? function : "?");
	if (file)
		clean(out, " at %s", file);
	if (file && json_object_get(frame, "line"))
		fprintf(out, ":%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(frame, "line")));
	if (module)
		clean(out, " in %s", slash ? slash + 1 : module);
	fputc('\n', out);
}

static void main_words(FILE *out, const json_t *thread)
{
	const json_t *frames = json_object_get(thread, "frames");
	size_t count = json_array_size(frames), i;

	for (i = 0; i < count && i < FRAMES_SHOWN; i++) {
		const json_t *frame = json_array_get(frames, i);

		fputs(is_python(frame) ? "    py  " : "        ", out);
		frame_words(out, frame);
	}
	if (i < count)
		fprintf(out, "        and %zu frames more\n", count - i);
	if (text_of(thread, "note"))
		clean(out, "    (%s)\n", text_of(thread, "note"));
}

/* Its innermost Python frame. Return: has it one? */
static bool other_words(FILE *out, const json_t *thread)
{
	const json_t *frames = json_object_get(thread, "frames"), *frame = NULL;
	size_t i;

	for (i = 0; i < json_array_size(frames) && !is_python(frame); i++)
		frame = json_array_get(frames, i);
	if (!is_python(frame))
		return false;
	clean(out, "  Thread \"%s\": ", text_of(thread, "name") ? text_of(thread, "name") : "");
	frame_words(out, frame);
	return true;
}

static void stacks_words(FILE *out, const struct loc_finding *f, const char *text)
{
	json_t *stacks = json_loads(text, 0, NULL);
	const json_t *threads = json_object_get(stacks, "threads");
	size_t count = json_array_size(threads), first = 0, shown = 0, i;

	for (i = 0; i < count; i++)
		if (json_integer_value(json_object_get(json_array_get(threads, i), "tid")) == f->stacks.pid)
			first = i;
	fprintf(out, "Rank %d is process %d. Its main thread, innermost call first:\n", f->rank, f->stacks.pid);
	main_words(out, json_array_get(threads, first));
	for (i = 0; i < count && shown < THREADS_SHOWN; i++)
		shown += i != first && other_words(out, json_array_get(threads, i));
	fprintf(out, "  All of its %zu threads are in the result.\n", count);
	json_decref(stacks);
}

#else

static void stacks_words(FILE *out, const struct loc_finding *f, const char *text)
{
}

#endif

void hang_stacks_words(FILE *out, const struct diagnosis *d)
{
	const struct ev_session *session = d->records->session;
	char text[512];
	size_t i;

	for (i = 0; i < d->ranks.findings_count; i++) {
		const struct loc_finding *f = &d->ranks.findings[i];

		if (f->stacks.json)
			stacks_words(out, f, ev_text(session, f->stacks.json));
		if (!f->stacks.note)
			continue;
		snprintf(text, sizeof(text), "%s", ev_text(session, f->stacks.note));
		fprintf(out, "No stacks of rank %d: %s.\n", f->rank, term_clean(text));
	}
}
