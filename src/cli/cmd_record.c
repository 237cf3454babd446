/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace record`: record the kernel's scheduling and interrupt events into a file (systrace/ftrace.h does the work),
 * for a time or until a signal, with a progress line on terminals. trace_record.py runs it too and talks to it over stdin.
 */
#include "cli/command.h"

#include "base/num.h"
#include "cli/term.h"
#include "safe/clock.h"
#include "systrace/ftrace.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define MANY_CPUS 64 /* above that, or above MANY_SECONDS, the size advice of the documents is printed */
#define MANY_SECONDS 30
#define TICK_MS 200
#define SHOW_NS 1000000000u /* between two states of the progress line */

static const struct option_spec record_options[] = {
	{ "cpu", 0, OPT_TEXT, "LIST", NULL, "CPUs to record, such as 0-3,8; without it all of them" },
	{ "output", 'o', OPT_TEXT, "FILE", NULL, "file to write (default: trace.dat, of --backend=debugfs trace.txt)" },
	{ "record-time", 0, OPT_TEXT, "SECONDS", "30", "how long; 0 or less: until Ctrl-C" },
	{ "bf-size", 0, OPT_U64, "KB", "40960", "ring buffer of each CPU" },
	{ "backend", 0, OPT_WORD, "auto|native|trace-cmd|debugfs", "auto",
	  "what records; auto: the first of native, trace-cmd, debugfs that works here" },
	{ "sched", 0, OPT_FLAG, NULL, "on", "scheduling events; --sched=0 leaves them out" },
	{ "irq", 0, OPT_FLAG, NULL, "on", "interrupts and soft interrupts; --irq=0 leaves them out" },
	{ "futex", 0, OPT_FLAG, NULL, NULL, "futex system calls" },
	{ "event", 'e', OPT_TEXT, "GROUP/NAME", NULL, "one more event, or a whole GROUP; may be repeated" },
	{ "NSpid", 0, OPT_FLAG, NULL, NULL,
	  "write pid_mapping.json as well: the pids that tasks of containers have inside" },
	{ "pid-map-period", 0, OPT_U64, "SECONDS", "10", "how often --NSpid reads them again; 0: at start and end" },
	{ "pid-map", 0, OPT_TEXT, "FILE", "pid_mapping.json", "where --NSpid writes" },
	{ "instance", 0, OPT_TEXT, "NAME", NULL, "name of the tracing instance (default: systrace-PID-...)" },
	{ "compress", 0, OPT_WORD, "auto|none|zstd", "auto", "of the native back end" },
	{ "quiet", 'q', OPT_FLAG, NULL, NULL, "no progress line and no information, warnings only" },
	/* of trace_record.py and tests */
	{ "documented-order", 0, OPT_FLAG, NULL, NULL, NULL },
	{ "control", 0, OPT_FLAG, NULL, NULL, NULL },
	{ "tracefs", 0, OPT_TEXT, "DIR", NULL, NULL },
	{ .kind = OPT_END },
};

struct session {
	struct systrace_ftrace *rec;
	bool quiet, control; /* stdin: a line "stop [FILE]" or its end stops */
	uint64_t duration_ns; /* 0 = until stopped */
	uint64_t begin_ns, shown_ns;
	int signals; /* signalfd */
	bool shown; /* the progress line is there */
	char line[4200]; /* of stdin, so far */
	size_t line_bytes;
	const char *final_output; /* in line; NULL = as at start */
};

/* --- log lines ---------------------------------------------------------------------------------------------------- */

static void wipe_progress(struct session *session)
{
	if (session->shown)
		fputs("\r\033[K", stderr);
	session->shown = false;
}

/* In the form of the documents: [2026-02-11 08:16:24,486] [INFO]:text */
static void say(void *ctx, int level, const char *text)
{
	static const char *const names[] = { "INFO", "WARNING", "ERROR" };
	struct session *session = ctx;
	struct timespec now;
	struct tm local;
	char date[32];

	if (session->quiet && level == SYSTRACE_FTRACE_INFO)
		return;
	wipe_progress(session);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local);
	fprintf(stderr, "[%s,%03ld] [%s]:%s\n", date, now.tv_nsec / 1000000, names[level], text);
	fflush(stderr);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static int read_duration(const char *text, uint64_t *ns)
{
	if (text[0] == '-') {
		*ns = 0;
		return num_sec_ns(text + 1, &(uint64_t){ 0 });
	}
	return num_sec_ns(text, ns);
}

static uint32_t read_groups(const struct options *opts)
{
	return (options_flag(opts, "sched") ? SYSTRACE_FTRACE_SCHED : 0) |
	       (options_flag(opts, "irq") ? SYSTRACE_FTRACE_IRQ : 0) |
	       (options_flag(opts, "futex") ? SYSTRACE_FTRACE_FUTEX : 0);
}

static uint32_t read_backend(const struct options *opts)
{
	static const struct {
		const char *word;
		uint32_t id;
	} rows[] = {
		{ "native", SYSTRACE_FTRACE_NATIVE },
		{ "trace-cmd", SYSTRACE_FTRACE_TRACE_CMD },
		{ "debugfs", SYSTRACE_FTRACE_DEBUGFS },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (strcmp(options_text(opts, "backend"), rows[i].word) == 0)
			return rows[i].id;
	return options_flag(opts, "documented-order") ? SYSTRACE_FTRACE_DOCUMENTED : SYSTRACE_FTRACE_AUTO;
}

static uint32_t read_compress(const struct options *opts)
{
	const char *word = options_text(opts, "compress");

	if (strcmp(word, "none") == 0)
		return SYSTRACE_FTRACE_COMPRESS_NONE;
	return strcmp(word, "zstd") == 0 ? SYSTRACE_FTRACE_COMPRESS_ZSTD : SYSTRACE_FTRACE_COMPRESS_AUTO;
}

/* The documents' advice; nothing is refused. */
static void advise(struct session *session, const struct options *opts)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	bool many = !options_given(opts, "cpu") && cpus > MANY_CPUS;
	char text[200];

	if (!many && session->duration_ns <= MANY_SECONDS * UINT64_C(1000000000) && session->duration_ns)
		return;
	snprintf(text, sizeof(text),
		 "the more CPUs and the longer, the more data to write and convert: at most %d CPUs and about %d s "
		 "are advised",
		 MANY_CPUS, MANY_SECONDS);
	say(session, SYSTRACE_FTRACE_INFO, text);
}

/* --- while it records --------------------------------------------------------------------------------------------- */

/* "12.3 s left, 1834211 events, 21.4 MB, 0 lost" */
static void show_progress(struct session *session)
{
	struct systrace_ftrace_status status = { .size = sizeof(status) };
	uint64_t now_ns = clock_mono_ns(), gone_ns = now_ns - session->begin_ns;
	char left[40];

	if (session->quiet || !isatty(STDERR_FILENO) || now_ns - session->shown_ns < SHOW_NS)
		return;
	session->shown_ns = now_ns;
	if (systrace_ftrace_status(session->rec, &status) < 0)
		return;
	if (!session->duration_ns)
		snprintf(left, sizeof(left), "%.0f s, Ctrl-C ends", (double)gone_ns / 1e9);
	else
		snprintf(left, sizeof(left), "%.0f s left",
			 gone_ns < session->duration_ns ? (double)(session->duration_ns - gone_ns) / 1e9 : 0.0);
	fprintf(stderr, "\r\033[K%s, %" PRIu64 " events, %.1f MB, %s%" PRIu64 " lost%s", left, status.events,
		(double)status.bytes / 1e6, status.lost ? term_on(stderr, TERM_YELLOW) : "", status.lost,
		status.lost ? term_off(stderr) : "");
	fflush(stderr);
	session->shown = true;
}

/* Return: true when the other end wants it to stop, or is gone. */
static bool read_control(struct session *session)
{
	ssize_t got = read(STDIN_FILENO, session->line + session->line_bytes,
			   sizeof(session->line) - 1 - session->line_bytes);
	char *end;

	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return false;
	if (got <= 0)
		return true;
	session->line_bytes += (size_t)got;
	session->line[session->line_bytes] = '\0';
	end = strchr(session->line, '\n');
	if (!end)
		return session->line_bytes + 1 >= sizeof(session->line);
	*end = '\0';
	if (strncmp(session->line, "stop ", 5) == 0 && session->line[5])
		session->final_output = session->line + 5;
	return true;
}

static bool has_failed(struct session *session)
{
	struct systrace_ftrace_status status = { .size = sizeof(status) };

	return systrace_ftrace_status(session->rec, &status) == 0 && status.failed;
}

/* Until its time is over, a signal, the word from stdin, or a failure. */
static void wait_for_end(struct session *session)
{
	struct pollfd fds[2] = {
		{ .fd = session->signals, .events = POLLIN },
		{ .fd = session->control ? STDIN_FILENO : -1, .events = POLLIN },
	};
	uint64_t checked_ns = session->begin_ns;

	for (;;) {
		uint64_t now_ns = clock_mono_ns(), gone_ns = now_ns - session->begin_ns;
		int wait_ms = TICK_MS;

		if (session->duration_ns && gone_ns >= session->duration_ns)
			return;
		if (session->duration_ns && (session->duration_ns - gone_ns) / 1000000 < TICK_MS)
			wait_ms = (int)((session->duration_ns - gone_ns) / 1000000) + 1;
		if (poll(fds, 2, wait_ms) > 0) {
			if (fds[0].revents)
				return;
			if (fds[1].revents && read_control(session))
				return;
		}
		show_progress(session);
		if (now_ns - checked_ns > SHOW_NS) {
			checked_ns = now_ns;
			if (has_failed(session))
				return;
		}
	}
}

/* Blocked before the recorder starts its thread, which inherits that; the second Ctrl-C does not hurt the saving. */
static int take_signals(void)
{
	struct sigaction hangup;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (sigaction(SIGHUP, NULL, &hangup) < 0 || hangup.sa_handler != SIG_IGN) /* nohup */
		sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Two descriptors per CPU: the usual limit of 1024 is too low for the largest machines. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static void print_result(const struct options *opts, const struct systrace_ftrace_status *status)
{
	if (opts->json) {
		fputs("{\"output\": ", stdout);
		term_json_string(stdout, status->output);
		printf(", \"events\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"bytes\": %" PRIu64 "}\n", status->events,
		       status->lost, status->file_bytes);
	} else if (status->file_bytes) {
		printf("%s: %" PRIu64 " events, %.1f MB, %" PRIu64 " lost\n", status->output, status->events,
		       (double)status->file_bytes / 1e6, status->lost);
	}
}

static int record(const struct options *opts, struct session *session, const struct systrace_ftrace_options *how)
{
	struct systrace_ftrace_status status = { .size = sizeof(status) };
	char error[512] = "";
	int ret;

	raise_file_limit();
	session->signals = take_signals();
	if (session->signals < 0)
		return cmd_error("signalfd: %s", strerror(errno));
	session->rec = systrace_ftrace_start(how, error, sizeof(error));
	if (!session->rec) {
		close(session->signals);
		if (session->control)
			printf("failed %s\n", error);
		return cmd_error("%s", error);
	}
	if (session->control) {
		systrace_ftrace_status(session->rec, &status);
		printf("recording %s\n", status.output);
		fflush(stdout);
	}
	session->begin_ns = session->shown_ns = clock_mono_ns();
	say(session, SYSTRACE_FTRACE_INFO,
	    session->duration_ns ? "recording; Ctrl-C ends it early and saves" : "recording until Ctrl-C");
	wait_for_end(session);
	wipe_progress(session);
	ret = systrace_ftrace_stop(session->rec, session->final_output, &status, error, sizeof(error));
	close(session->signals);
	if (session->control)
		printf("%s %s\n", ret < 0 ? "failed" : "saved", ret < 0 ? error : status.output);
	else
		print_result(opts, &status);
	return ret < 0 ? cmd_error("%s", error) : CMD_OK;
}

static int record_run(const struct options *opts)
{
	struct session session = { .quiet = options_flag(opts, "quiet"), .control = options_flag(opts, "control") };
	const char *events[OPTIONS_MAX_SET + 1] = { NULL };
	struct systrace_ftrace_options how = {
		.size = sizeof(how),
		.output = options_text(opts, "output"),
		.cpus = options_text(opts, "cpu"),
		.backend = read_backend(opts),
		.groups = read_groups(opts),
		.compress = read_compress(opts),
		.instance = options_text(opts, "instance"),
		.pid_map = options_flag(opts, "NSpid") ? options_text(opts, "pid-map") : NULL,
		.tracefs = options_text(opts, "tracefs"),
		.log = say,
		.log_ctx = &session,
	};
	uint64_t buffer_kb = options_u64(opts, "bf-size", 0), period_s = options_u64(opts, "pid-map-period", 0);

	if (read_duration(options_text(opts, "record-time"), &session.duration_ns) < 0)
		return cmd_usage("--record-time=%.60s: it must be a number of seconds, such as 30, or -1 until Ctrl-C",
				 options_text(opts, "record-time"));
	if (buffer_kb == 0 || buffer_kb > UINT32_MAX)
		return cmd_usage("--bf-size=%s: it must be a size in KB, such as 40960", options_text(opts, "bf-size"));
	if (period_s > UINT32_MAX)
		return cmd_usage("--pid-map-period=%s is too long", options_text(opts, "pid-map-period"));
	for (size_t i = 0; options_nth(opts, "event", i); i++)
		events[i] = options_nth(opts, "event", i);
	if (!how.groups && !events[0])
		return cmd_usage("nothing to record: --sched=0 and --irq=0 without --futex or --event");
	how.buffer_kb = (uint32_t)buffer_kb;
	how.pid_map_period_s = (uint32_t)period_s;
	how.events = events[0] ? events : NULL;
	advise(&session, opts);
	return record(opts, &session, &how);
}

const struct command cmd_record = {
	.name = "record",
	.summary = "record scheduling and interrupt events of the kernel (ftrace)",
	.usage = "[--cpu LIST] [--record-time SECONDS] [--output FILE] [options]",
	.about =
		"Records which task ran where and when, wake-ups, interrupts and soft interrupts, of the whole machine or\n"
		"of some CPUs. Needs root. Recording takes place in a tracing instance of its own: other users of ftrace\n"
		"are not disturbed, and nothing is left behind, however it ends. `systrace convert ftrace` turns the file\n"
		"into a database or a timeline; `trace-cmd report` and KernelShark read trace.dat as well.\n",
	.examples = "  systrace record                              # all CPUs, 30 s, into trace.dat\n"
		    "  systrace record --cpu=0-15 --record-time=-1  # until Ctrl-C\n"
		    "  systrace record --NSpid                      # a job in a container: pid_mapping.json as well\n"
		    "  systrace record --event=block --futex        # more than scheduling and interrupts\n",
	.options = record_options,
	.run = record_run,
};
