/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace collect`: bring what jobs wrote below SYSTRACE_LOCAL_PATH to their dump path (spool/collect does the work).
 * Runs outside the job, so that a remote file system can take its time. Root becomes the owner of the local directory.
 */
#include "cli/become.h"
#include "cli/command.h"

#include "spool/collect.h"
#include "spool/dir.h"
#include "spool/recover.h"
#include "wire/env_spec.h"
#include "wire/json.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct option_spec collect_options[] = {
	{ "from", 0, OPT_TEXT, "DIR", NULL, "local directory (default: SYSTRACE_LOCAL_PATH)" },
	{ "to", 0, OPT_TEXT, "DIR", NULL, "dump directory (default: SYSTRACE_DUMP_PATH, else /home/sysTrace)" },
	{ "spool", 0, OPT_TEXT, "DIR", SPOOL_PLACE,
	  "where the spool directories are (SYSTRACE_SPOOL_PATH of the job)" },
	{ "every", 0, OPT_SEC, "SECONDS", "0", "do it again and again until interrupted; 0 = once" },
	{ "dry-run", 'n', OPT_FLAG, NULL, NULL, "say what would be done and change nothing" },
	{ .kind = OPT_END },
};

static const char *const verdicts[] = {
	[COLLECT_MOVED] = "moved",
	[COLLECT_LIVE] = "still written",
	[COLLECT_WAITS] = "waits for recover",
	[COLLECT_FAILED] = "failed",
};

struct tally {
	bool json;
	bool dry_run;
	int moved;
	int failed;
};

static void text_member(struct json_writer *w, const char *key, const char *text)
{
	json_key(w, key);
	json_text(w, text, strlen(text));
}

static void print_report(void *ctx, const struct collect_report *r)
{
	struct tally *t = ctx;
	struct json_writer w;
	char text[8192];

	t->moved += r->verdict == COLLECT_MOVED;
	t->failed += r->verdict == COLLECT_FAILED;
	if (!t->json) {
		printf("%s: %s%s%s%s%s\n", r->from,
		       t->dry_run && r->verdict == COLLECT_MOVED ? "would be moved" : verdicts[r->verdict],
		       r->to[0] ? " to " : "", r->to, r->text[0] ? ": " : "", r->text);
		return;
	}
	json_init(&w, text, sizeof(text));
	json_open(&w, '{');
	text_member(&w, "from", r->from);
	text_member(&w, "to", r->to);
	text_member(&w, "verdict", verdicts[r->verdict]);
	json_key(&w, "dry_run");
	json_bool(&w, t->dry_run);
	json_key(&w, "bytes");
	json_u64(&w, r->bytes);
	text_member(&w, "text", r->text);
	json_close(&w, '}');
	printf("%.*s\n", (int)w.used, (char *)w.data);
}

static const char *place(const struct options *opts, const char *option, enum env_id id)
{
	const char *text = options_text(opts, option);

	if (!text)
		text = getenv(env_specs[id].name);
	return text && *text ? text : env_specs[id].initial;
}

/* Nothing that a job left is touched with root's rights. */
static int become_owner(const char *from)
{
	struct st_err err;
	struct stat st;

	if (geteuid() != 0)
		return CMD_OK;
	if (lstat(from, &st) || !S_ISDIR(st.st_mode))
		return cmd_error("cannot open %s: %s", from, errno ? strerror(errno) : "not a directory");
	if (st.st_uid == 0)
		return CMD_OK;
	if (become_user(st.st_uid, st.st_gid, &err) < 0)
		return cmd_error("%s", err.text);
	return CMD_OK;
}

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	(void)sig;
	interrupted = 1;
}

static void pause_for(uint64_t ns)
{
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	nanosleep(&ts, NULL); /* a signal ends it */
}

static int collect_once(const struct collect_options *what, const char *spool)
{
	struct recover_options recover = { .size = sizeof(recover), .place = spool, .uid = geteuid() };
	struct st_err err;

	if (!what->dry_run)
		recover_run(&recover, &err); /* finished files can go; what can't be recovered stays */
	return collect_run(what, &err) < 0 ? cmd_error("%s", err.text) : CMD_OK;
}

static int collect_command(const struct options *opts)
{
	struct tally tally = { .json = opts->json, .dry_run = options_flag(opts, "dry-run") };
	const char *from = place(opts, "from", ENV_LOCAL_PATH), *to = place(opts, "to", ENV_DUMP_PATH);
	uint64_t every_ns = options_u64(opts, "every", 0);
	struct collect_options what = {
		.size = sizeof(what),
		.from = from,
		.to = to,
		.spool = options_text(opts, "spool"),
		.dry_run = tally.dry_run,
		.report = print_report,
		.ctx = &tally,
	};
	int status;

	if (!from || !*from)
		return cmd_usage("where from? Give --from or set SYSTRACE_LOCAL_PATH");
	status = become_owner(from);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	while (status == CMD_OK) {
		status = collect_once(&what, what.spool);
		if (!every_ns || interrupted)
			break;
		fflush(stdout);
		if (status == CMD_OK)
			pause_for(every_ns);
		if (interrupted)
			break;
	}
	if (status != CMD_OK || tally.failed)
		return CMD_ERROR;
	return tally.moved ? CMD_OK : cmd_nothing("nothing to collect in %s", from);
}

const struct command cmd_collect = {
	.name = "collect",
	.summary = "bring what jobs wrote locally to their dump path",
	.usage = "[--from DIR] [--to DIR] [--spool DIR] [--every SECONDS] [--dry-run] [--json]",
	.about =
		"Where the dump path is on a network file system, or slow, agents write below SYSTRACE_LOCAL_PATH. This command\n"
		"moves those files to the dump path, from outside the job: closed segments at any time, a live file once its\n"
		"process has ended. Nothing is overwritten. It may be repeated, interrupted and run twice at once.\n",
	.examples = "  systrace collect --from=/var/tmp/sysTrace --to=/mnt/nfs/sysTrace\n"
		    "  systrace collect --every=60      # beside the job, on each host\n",
	.options = collect_options,
	.run = collect_command,
};
