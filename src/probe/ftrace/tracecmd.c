/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The back end that runs `trace-cmd record` as a child, as the documents describe. trace-cmd works on the top level of
 * tracefs, which this file puts back afterwards; where somebody else uses the top level, it is sent into an instance.
 * Called by recorder.c.
 */
#include "probe/ftrace/backend.h"
#include "probe/ftrace/rec_owner.h"
#include "probe/ftrace/saved_state.h"
#include "probe/ftrace/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BEGIN_MS 20000 /* until trace-cmd says that it records */
#define END_MS 600000 /* gathering the data of many CPUs takes long */
#define BEGUN "Hit Ctrl^C"

struct tracecmd {
	char program[512], part[4096];
	char *said; /* what it printed last, for messages */
	size_t said_bytes;
	int output; /* pipe from its stdout and stderr; -1 */
	pid_t pid; /* 0 = has ended */
	int status;
	struct saved_state saved;
	bool was_mounted;
};

#define SAID_ROOM 4096

/* --- can it work? ------------------------------------------------------------------------------------------------- */

static int find_program(char *path, size_t room)
{
	const char *at = getenv("PATH");

	if (!at)
		at = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	while (*at) {
		size_t len = strcspn(at, ":");

		if (len && snprintf(path, room, "%.*s/trace-cmd", (int)len, at) < (int)room && access(path, X_OK) == 0)
			return 0;
		at += len + (at[len] == ':');
	}
	return -ENOENT;
}

/* trace-cmd ends where this write is refused (containers, locked down kernels); the value stays what it is. */
static int try_write_same(int dir, const char *path)
{
	char value[64];
	int ret = file_read_line(dir, path, value, sizeof(value));

	return ret < 0 ? ret : file_write(dir, path, value);
}

static int tracecmd_check(struct recording *rec, struct st_err *err)
{
	char program[512];
	int ret;

	if (find_program(program, sizeof(program)) < 0)
		return err_set(err, -ENOENT, "trace-cmd is not installed");
	if (rec->fs.path[0] && strcmp(rec->fs.path, "/sys/kernel/tracing") != 0 &&
	    strcmp(rec->fs.path, "/sys/kernel/debug/tracing") != 0)
		return 0;
	ret = try_write_same(AT_FDCWD, "/proc/sys/kernel/ftrace_enabled");
	if (ret < 0 && ret != -ENOENT)
		return err_set(err, ret,
			       "trace-cmd needs to write kernel.ftrace_enabled, which this kernel refuses (%s)",
			       strerror(-ret));
	return 0;
}

/* --- the child ---------------------------------------------------------------------------------------------------- */

struct arguments {
	char *list[1024];
	size_t count;
	bool failed;
};

static void add(struct arguments *args, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct arguments *args, const char *format, ...)
{
	va_list ap;

	if (args->count + 1 >= sizeof(args->list) / sizeof(args->list[0])) {
		args->failed = true;
		return;
	}
	va_start(ap, format);
	if (vasprintf(&args->list[args->count], format, ap) < 0)
		args->failed = true;
	else
		args->count++;
	va_end(ap);
}

static void free_arguments(struct arguments *args)
{
	for (size_t i = 0; i < args->count; i++)
		free(args->list[i]);
}

static int make_arguments(struct arguments *args, const struct recording *rec, const struct tracecmd *child,
			  struct st_err *err)
{
	char *mask = cpus_mask(rec->cpus, rec->cpu_count);

	add(args, "%s", child->program);
	add(args, "record");
	add(args, "-o");
	add(args, "%s", child->part);
	add(args, "-C");
	add(args, "mono_raw");
	if (child->saved.in_use) {
		add(args, "-B");
		add(args, "%s", child->saved.instance);
		add(args, "-C");
		add(args, "mono_raw");
	}
	add(args, "-b");
	add(args, "%" PRIu32, rec->buffer_kb);
	add(args, "-M");
	add(args, "%s", mask ? mask : "");
	for (size_t i = 0; i < rec->events.count; i++) {
		add(args, "-e");
		add(args, "%.*s:%s", (int)strcspn(rec->events.names[i], "/"), rec->events.names[i],
		    strchr(rec->events.names[i], '/') + 1);
	}
	args->failed |= !mask;
	free(mask);
	return args->failed ? err_set(err, -E2BIG, "too many events for trace-cmd's command line") : 0;
}

/* Our own death must not leave it recording: it then ends as by Ctrl-C, and saves. */
static void become_child(const struct arguments *args, int output, pid_t parent)
{
	sigset_t none;
	int null = open("/dev/null", O_RDONLY);

	prctl(PR_SET_PDEATHSIG, SIGINT);
	if (getppid() != parent)
		_exit(127);
	setpgid(0, 0); /* Ctrl-C of the terminal is ours to pass on */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGINT, SIG_DFL);
	dup2(null, 0);
	dup2(output, 1);
	dup2(output, 2);
	execv(args->list[0], args->list);
	_exit(127);
}

static int start_child(struct recording *rec, struct tracecmd *child, struct st_err *err)
{
	struct arguments args = { .count = 0 };
	int pipes[2] = { -1, -1 };
	pid_t self = getpid();
	int ret;

	ret = make_arguments(&args, rec, child, err);
	if (ret == 0 && pipe2(pipes, O_CLOEXEC) < 0)
		ret = err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
	if (ret < 0)
		goto out;
	child->pid = fork();
	if (child->pid == 0)
		become_child(&args, pipes[1], self);
	if (child->pid < 0) {
		child->pid = 0;
		ret = err_set(err, -errno, "cannot start trace-cmd: %s", strerror(errno));
	}
out:
	free_arguments(&args);
	if (pipes[1] >= 0)
		close(pipes[1]);
	if (ret < 0 && pipes[0] >= 0)
		close(pipes[0]);
	child->output = ret < 0 ? -1 : pipes[0];
	return ret;
}

/* Take what it says, up to @wait_ms. Return: false at its end. */
static bool listen_child(struct tracecmd *child, int wait_ms)
{
	struct pollfd fd = { .fd = child->output, .events = POLLIN };
	char text[1024];
	ssize_t got;

	if (poll(&fd, 1, wait_ms) <= 0)
		return true;
	got = read(child->output, text, sizeof(text));
	if (got <= 0)
		return got < 0 && errno == EINTR;
	if (child->said_bytes + (size_t)got >= SAID_ROOM) /* the newest matters */
		child->said_bytes = 0;
	memcpy(child->said + child->said_bytes, text, (size_t)got);
	child->said_bytes += (size_t)got;
	child->said[child->said_bytes] = '\0';
	return true;
}

static bool child_ended(struct tracecmd *child)
{
	if (child->pid && waitpid(child->pid, &child->status, WNOHANG) == child->pid)
		child->pid = 0;
	return child->pid == 0;
}

/* Its last words on one line. */
static const char *last_words(struct tracecmd *child)
{
	char *text = child->said;

	while (listen_child(child, 0) && poll(&(struct pollfd){ .fd = child->output, .events = POLLIN }, 1, 0) > 0)
		;
	if (strlen(text) > 300)
		text += strlen(text) - 300;
	for (char *at = text; *at; at++)
		if (*at == '\n' || *at == '\t' || *at == '\r')
			*at = ' ';
	return text[strspn(text, " ")] ? text + strspn(text, " ") : "it said nothing";
}

static int await_begin(struct tracecmd *child, struct st_err *err)
{
	for (int waited = 0; waited < BEGIN_MS; waited += 50) {
		bool more = listen_child(child, 50);

		if (strstr(child->said, BEGUN))
			return 0;
		if (child_ended(child) || !more)
			return err_set(err, -EIO, "trace-cmd ended at once: %s", last_words(child));
	}
	return err_set(err, -ETIMEDOUT, "trace-cmd did not begin within %d s: %s", BEGIN_MS / 1000, last_words(child));
}

static int end_child(struct recording *rec, struct tracecmd *child, int sig, struct st_err *err)
{
	int waited;

	for (waited = 0; !child_ended(child) && waited < END_MS; waited += 50) {
		if (waited == 0)
			kill(child->pid, sig);
		if (!listen_child(child, 50))
			usleep(50000);
	}
	if (child->pid) {
		kill(child->pid, SIGKILL);
		waitpid(child->pid, &child->status, 0);
		child->pid = 0;
		return err_set(err, -ETIMEDOUT, "trace-cmd did not end within %d s", END_MS / 1000);
	}
	if (!WIFEXITED(child->status) || WEXITSTATUS(child->status) != 0)
		return err_set(err, -EIO, "trace-cmd failed: %s", last_words(child));
	return 0;
}

/* --- start, status, stop ------------------------------------------------------------------------------------------ */

/* trace-cmd's per-CPU files of a run that failed */
static void remove_parts(const struct recording *rec, const struct tracecmd *child)
{
	char path[4200];

	unlink(child->part);
	for (size_t i = 0; i < rec->cpu_count; i++) {
		snprintf(path, sizeof(path), "%s.cpu%" PRIu32, child->part, rec->cpus[i]);
		unlink(path);
	}
}

static int tracecmd_free(struct recording *rec, struct tracecmd *child, struct st_err *err)
{
	int ret;

	if (child->output >= 0)
		close(child->output);
	ret = saved_state_restore(&child->saved, err);
	free(child->said);
	free(child);
	rec->state = NULL;
	return ret;
}

static int tracecmd_start(struct recording *rec, struct st_err *err)
{
	struct tracecmd *child = calloc(1, sizeof(*child));
	int ret;

	if (child)
		child->said = calloc(1, SAID_ROOM + 1);
	if (!child || !child->said) {
		free(child);
		return err_set(err, -ENOMEM, "out of memory");
	}
	child->output = -1;
	ret = find_program(child->program, sizeof(child->program));
	if (ret < 0)
		err_set(err, ret, "trace-cmd is not installed");
	snprintf(child->part, sizeof(child->part), "%s", rec->part);
	if (ret == 0)
		ret = saved_state_take(&child->saved, &rec->fs, rec->instance_name, err);
	if (ret == 0 && child->saved.in_use)
		note_say(&rec->note, SYSTRACE_FTRACE_INFO,
			 "the top level of ftrace is in use by others: trace-cmd records in instance %s",
			 child->saved.instance);
	if (ret == 0)
		ret = start_child(rec, child, err);
	if (ret == 0)
		ret = await_begin(child, err);
	if (ret < 0) {
		if (child->pid)
			end_child(rec, child, SIGKILL, NULL);
		remove_parts(rec, child);
		tracecmd_free(rec, child, NULL);
		return ret;
	}
	note_say(&rec->note, SYSTRACE_FTRACE_INFO, "trace-cmd record process started, pid %d", (int)child->pid);
	rec->state = child;
	return 0;
}

static void tracecmd_status(struct recording *rec, struct systrace_ftrace_status *status)
{
	struct tracecmd *child = rec->state;
	char path[4200];
	struct stat st;

	for (size_t i = 0; i < rec->cpu_count; i++) {
		snprintf(path, sizeof(path), "%s.cpu%" PRIu32, child->part, rec->cpus[i]);
		if (stat(path, &st) == 0)
			status->bytes += (uint64_t)st.st_size;
	}
	if (child_ended(child))
		status->failed = -EPIPE;
	else
		listen_child(child, 0);
}

/* The kernel's figures, before trace-cmd resets them: of the top level, or of the instance that it works in. */
static void sum_losses(struct recording *rec, struct tracecmd *child, struct systrace_ftrace_status *status)
{
	struct instance in = { .fs = &rec->fs, .fd = -1, .cpus = rec->cpus, .cpu_count = rec->cpu_count };
	struct cpu_stats sum;
	char path[160] = ".";

	if (child->saved.in_use)
		snprintf(path, sizeof(path), "instances/%s", child->saved.instance);
	in.fd = openat(rec->fs.fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (in.fd < 0)
		return;
	instance_sum(&in, &sum);
	status->events = sum.entries + sum.read;
	status->lost = cpu_stats_lost(&sum);
	recording_losses(rec, &in);
	close(in.fd);
}

/* Another name was asked for at the end, perhaps on another file system. */
static int take_file(struct recording *rec, const struct tracecmd *child, uint64_t *bytes, struct st_err *err)
{
	struct stat st;
	int from, to, ret;

	if (stat(child->part, &st) < 0)
		return err_set(err, -errno, "trace-cmd left no file %s: %s", child->part, strerror(errno));
	*bytes = (uint64_t)st.st_size;
	if (strcmp(child->part, rec->part) == 0 || rename(child->part, rec->part) == 0)
		return 0;
	from = open(child->part, O_RDWR | O_CLOEXEC);
	if (from < 0)
		return err_set(err, -errno, "cannot open %s: %s", child->part, strerror(errno));
	to = recording_part(rec, err);
	ret = to < 0 ? to : move_bytes(from, *bytes, to, 0);
	close(from);
	if (to >= 0 && close(to) < 0 && ret == 0)
		ret = -errno;
	if (ret < 0)
		return err_set(err, ret, "cannot move %s to %s: %s", child->part, rec->part, strerror(-ret));
	unlink(child->part);
	return 0;
}

static int tracecmd_stop(struct recording *rec, struct systrace_ftrace_status *status, struct st_err *err)
{
	struct tracecmd *child = rec->state;
	struct st_err later = { 0 };
	int ret, one;

	tracecmd_status(rec, status);
	sum_losses(rec, child, status);
	note_say(&rec->note, SYSTRACE_FTRACE_INFO, "Stopping trace-cmd record process");
	ret = end_child(rec, child, SIGINT, err);
	note_say(&rec->note, SYSTRACE_FTRACE_INFO, "trace-cmd record process stopped");
	one = take_file(rec, child, &status->file_bytes, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	if (one < 0)
		remove_parts(rec, child);
	one = tracecmd_free(rec, child, ret == 0 ? err : &later);
	return ret < 0 ? ret : one;
}

const struct backend backend_tracecmd = {
	.id = SYSTRACE_FTRACE_TRACE_CMD,
	.name = "trace-cmd",
	.output = "trace.dat",
	.check = tracecmd_check,
	.start = tracecmd_start,
	.status = tracecmd_status,
	.stop = tracecmd_stop,
};
