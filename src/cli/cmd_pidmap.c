/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace pidmap`: write pid_mapping.json (probe/pidmap.h does the work), once or again and again until a signal.
 * ContainerPidMapper of trace_record.py runs it and ends it by closing its stdin.
 */
#include "cli/command.h"

#include "probe/pidmap.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const struct option_spec pidmap_options[] = {
	{ "output", 'o', OPT_TEXT, "FILE", "pid_mapping.json", "file to write" },
	{ "period", 0, OPT_U64, "SECONDS", NULL, "write it again that often, until Ctrl-C; without it once" },
	{ "control", 0, OPT_FLAG, NULL, NULL, NULL },
	{ .kind = OPT_END },
};

static int write_once(const char *output)
{
	struct pidmap *map = pidmap_new();
	struct st_err err = { 0 };
	int count = map ? pidmap_write(map, output, &err) : err_set(&err, -ENOMEM, "out of memory");

	pidmap_free(map);
	if (count < 0)
		return cmd_error("%s", err.text);
	printf("%s: %d tasks\n", output, count);
	return CMD_OK;
}

/* Until a signal, or until whoever started us closes our stdin. */
static void wait_for_end(int signals, bool control)
{
	struct pollfd fds[2] = {
		{ .fd = signals, .events = POLLIN },
		{ .fd = control ? STDIN_FILENO : -1, .events = POLLIN },
	};

	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		;
}

static int write_often(const char *output, uint32_t period_s, bool control)
{
	struct pidmap_thread *thread;
	struct st_err err = { 0 };
	sigset_t set;
	int signals, ret;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (signals < 0)
		return cmd_error("signalfd: %s", strerror(errno));
	thread = pidmap_start(output, period_s, &err);
	if (thread && control) {
		puts("writing");
		fflush(stdout);
	}
	if (thread)
		wait_for_end(signals, control);
	ret = thread ? pidmap_stop(thread, &err) : -EIO;
	close(signals);
	return ret < 0 ? cmd_error("%s", err.text) : CMD_OK;
}

static int pidmap_run(const struct options *opts)
{
	uint64_t period_s = options_u64(opts, "period", 0);

	if (!options_given(opts, "period"))
		return write_once(options_text(opts, "output"));
	if (period_s == 0 || period_s > UINT32_MAX)
		return cmd_usage("--period=%s: it must be at least 1 second", options_text(opts, "period"));
	return write_often(options_text(opts, "output"), (uint32_t)period_s, options_flag(opts, "control"));
}

const struct command cmd_pidmap = {
	.name = "pidmap",
	.summary = "write which pids the tasks of containers have inside (pid_mapping.json)",
	.usage = "[--output FILE] [--period SECONDS]",
	.about =
		"Traces of the kernel show pids of the host, profiles taken in a container show those inside. The file that\n"
		"this writes lets `systrace convert ftrace --pid_mapping` put both on one axis. Tasks that end meanwhile\n"
		"stay in it.\n",
	.examples = "  systrace pidmap               # once\n"
		    "  systrace pidmap --period=5    # every 5 s until Ctrl-C, while a trace is recorded\n",
	.options = pidmap_options,
	.run = pidmap_run,
};
