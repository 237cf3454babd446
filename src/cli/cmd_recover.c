/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace recover`: finish the files of processes that were killed (spool/recover does the work). Root goes through
 * all users, each in a child that has become that user first: nothing a job left behind is trusted with root's rights.
 */
#include "cli/become.h"
#include "cli/command.h"
#include "cli/term.h"

#include "base/num.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "spool/dir.h"
#include "spool/recover.h"
#include "spool/socket.h"
#include "wire/env_spec.h"
#include "wire/json.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct option_spec recover_options[] = {
	{ "spool", 0, OPT_TEXT, "DIR", SPOOL_PLACE,
	  "where the spool directories are (SYSTRACE_SPOOL_PATH of the job)" },
	{ "sockets", 0, OPT_TEXT, "DIR", NULL,
	  "where the control sockets are (default: SYSTRACE_SOCKET_DIR; else, without --spool, /tmp)" },
	{ "timeout", 0, OPT_SEC, "SECONDS", "120", "as root: give up on a user whose file system does not answer" },
	{ "dry-run", 'n', OPT_FLAG, NULL, NULL, "say what would be done and change nothing" },
	{ .kind = OPT_END },
};

static const char *const verdicts[] = {
	[RECOVER_DONE] = "recovered",	       [RECOVER_ALIVE] = "alive",
	[RECOVER_UNKNOWN] = "unknown",	       [RECOVER_BUSY] = "busy",
	[RECOVER_CHILDREN] = "children alive", [RECOVER_FAILED] = "failed",
};

struct tally {
	bool json;
	bool dry_run;
	int found; /* directories of dead processes */
	int failed;
};

static void print_text(const struct tally *t, const struct recover_report *r)
{
	char dir[SPOOL_PATH_BYTES + 256],
		text[512]; /* both are the job's words: no control characters to the terminal */
	const char *what = t->dry_run && r->verdict == RECOVER_DONE ? "would be recovered" : verdicts[r->verdict];

	printf("pid %u: %s", r->pid, what);
	if (!t->dry_run && (r->verdict == RECOVER_DONE || r->verdict == RECOVER_CHILDREN))
		printf(", %llu records into %llu files, %llu dropped earlier", (unsigned long long)r->records,
		       (unsigned long long)r->files, (unsigned long long)r->dropped);
	snprintf(dir, sizeof(dir), "%s", r->dir);
	snprintf(text, sizeof(text), "%s", r->text);
	printf(" (%s)%s%s\n", term_clean(dir), text[0] ? ": " : "", term_clean(text));
}

static void print_report(void *ctx, const struct recover_report *r)
{
	struct tally *t = ctx;
	struct json_writer w;
	char text[4096];

	t->found += r->verdict != RECOVER_ALIVE && r->verdict != RECOVER_UNKNOWN;
	t->failed += r->verdict == RECOVER_FAILED;
	if (!t->json) {
		print_text(t, r);
		return;
	}
	json_init(&w, text, sizeof(text));
	json_open(&w, '{');
	json_key(&w, "dir");
	json_text(&w, r->dir, strlen(r->dir));
	json_key(&w, "verdict");
	json_text(&w, verdicts[r->verdict], strlen(verdicts[r->verdict]));
	json_key(&w, "dry_run");
	json_bool(&w, t->dry_run);
	json_key(&w, "pid");
	json_u64(&w, r->pid);
	json_key(&w, "records");
	json_u64(&w, r->records);
	json_key(&w, "files");
	json_u64(&w, r->files);
	json_key(&w, "dropped");
	json_u64(&w, r->dropped);
	json_key(&w, "text");
	json_text(&w, r->text, strlen(r->text));
	json_close(&w, '}');
	printf("%.*s\n", w.full ? 0 : (int)w.used, text);
}

static void print_socket(void *ctx, const char *path, int error)
{
	struct tally *t = ctx;
	struct json_writer w;
	char text[4096];

	t->found++;
	t->failed += error != 0;
	if (t->json) {
		json_init(&w, text, sizeof(text));
		json_open(&w, '{');
		json_key(&w, "socket");
		json_text(&w, path, strlen(path));
		json_key(&w, "verdict");
		json_text(&w, error ? "failed" : "removed", error ? 6 : 7);
		json_key(&w, "dry_run");
		json_bool(&w, t->dry_run);
		json_close(&w, '}');
		printf("%.*s\n", w.full ? 0 : (int)w.used, text);
		return;
	}
	snprintf(text, sizeof(text), "%s", path);
	printf("socket %s: %s%s\n", term_clean(text),
	       error	    ? "cannot be removed: "
	       : t->dry_run ? "would be removed, nobody listens there"
			    : "removed, nobody listened there",
	       error ? strerror(-error) : "");
}

/* The directory of control sockets; NULL: not asked for. Another --spool is another machine's or a test's world. */
static const char *sockets_of(const struct options *opts)
{
	const char *dir = options_text(opts, "sockets");

	if (!dir || !*dir)
		dir = getenv(env_specs[ENV_SOCKET_DIR].name);
	if (dir && *dir)
		return dir;
	return options_given(opts, "spool") ? NULL : env_specs[ENV_SOCKET_DIR].initial;
}

static void sweep_sockets(const struct options *opts, struct tally *t)
{
	struct socket_sweep sweep = {
		.dir = sockets_of(opts),
		.dry_run = t->dry_run,
		.report = print_socket,
		.ctx = t,
	};
	int ret = sweep.dir ? socket_sweep(&sweep) : 0;

	if (ret < 0 && ret != -ENOENT && ret != -EACCES)
		cmd_note("cannot look for sockets in %s: %s", sweep.dir, strerror(-ret));
}

static int recover_user(const struct options *opts, uid_t uid, struct tally *t)
{
	struct recover_options options = {
		.size = sizeof(options),
		.place = options_text(opts, "spool"),
		.uid = uid,
		.dry_run = t->dry_run,
		.report = print_report,
		.ctx = t,
	};
	struct st_err err;
	int ret = recover_run(&options, &err);

	if (ret < 0 && ret != -ENOENT) {
		cmd_error("%s", err.text);
		t->failed++;
	}
	sweep_sockets(opts, t);
	return ret;
}

enum child_exit { CHILD_NONE, CHILD_FOUND, CHILD_FAILED };

static enum child_exit as_user(const struct options *opts, uid_t uid, gid_t gid, struct tally *t)
{
	struct st_err err;

	if (become_user(uid, gid, &err) < 0) {
		cmd_error("%s", err.text);
		return CHILD_FAILED;
	}
	recover_user(opts, uid, t);
	return fflush(stdout) || t->failed ? CHILD_FAILED : t->found ? CHILD_FOUND : CHILD_NONE;
}

struct users {
	const struct options *opts;
	struct tally *tally;
	int place_fd;
};

/*
 * End of a user's recovery. One that hangs in a file system of that user is ended: what is killed anywhere may be
 * repeated. Return: its exit status, CHILD_FAILED when it did not end by itself.
 */
static int wait_child(pid_t pid, uid_t uid, uint64_t limit_ns)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	uint64_t until_ns = clock_mono_ns() + limit_ns;
	int status = CHILD_FAILED;

	for (;;) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_FAILED;
		if (got < 0 && errno != EINTR)
			return CHILD_FAILED;
		if (clock_mono_ns() >= until_ns)
			break;
		nanosleep(&pause, NULL);
	}
	kill(pid, SIGKILL); /* not waited for: in an uninterruptible wait it ends when the file system answers */
	cmd_error(
		"recovery of user %u has not ended in %llu s: does a file system of its jobs not answer? Run it again "
		"later; the other users' is done",
		(unsigned int)uid, (unsigned long long)(limit_ns / 1000000000u));
	return CHILD_FAILED;
}

static int visit_user(void *ctx, const char *name, uint64_t inode)
{
	struct users *u = ctx;
	char path[SPOOL_PATH_BYTES];
	struct stat st;
	int status;
	char *end;
	uid_t uid;
	pid_t pid;

	(void)inode;
	if (strncmp(name, "sysTrace.", 9) != 0)
		return 0;
	uid = (uid_t)strtoul(name + 9, &end, 10);
	snprintf(path, sizeof(path), "%s/%.200s", options_text(u->opts, "spool"), name);
	if (*end || sys_lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != uid)
		return 0;
	if (uid == geteuid()) {
		recover_user(u->opts, uid, u->tally);
		return 0;
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(as_user(u->opts, uid, st.st_gid, u->tally));
	if (pid < 0)
		return -errno;
	status = wait_child(pid, uid, options_u64(u->opts, "timeout", 0));
	u->tally->found += status == CHILD_FOUND;
	u->tally->failed += status == CHILD_FAILED;
	return 0;
}

static int recover_all_users(const struct options *opts, struct tally *t)
{
	struct users users = { .opts = opts, .tally = t };
	const char *place = options_text(opts, "spool");
	int fd, ret;

	fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return cmd_error("cannot open %s: %s", place, strerror(errno));
	ret = sys_dir_each(fd, visit_user, &users);
	close(fd);
	return ret < 0 ? cmd_error("cannot go through %s: %s", place, strerror(-ret)) : CMD_OK;
}

static int recover_command(const struct options *opts)
{
	struct tally tally = { .json = opts->json, .dry_run = options_flag(opts, "dry-run") };

	if (geteuid() == 0) {
		if (recover_all_users(opts, &tally) != CMD_OK)
			return CMD_ERROR;
	} else {
		recover_user(opts, geteuid(), &tally);
	}
	if (tally.failed)
		return CMD_ERROR;
	return tally.found ? CMD_OK : cmd_nothing("nothing to recover in %s", options_text(opts, "spool"));
}

const struct command cmd_recover = {
	.name = "recover",
	.summary = "finish the files of jobs that were killed",
	.usage = "[--spool DIR] [--sockets DIR] [--timeout SECONDS] [--dry-run] [--json]",
	.about =
		"A process that is killed leaves its last records in a pool below /dev/shm. This command cuts each of its\n"
		"files to the length that is known to be good, appends the records, closes JSON files and removes the pool.\n"
		"It may be repeated, interrupted and run twice at once. Processes of other pid namespaces (containers) can be\n"
		"judged only by root of the host, or from within; live ones are left alone. Control sockets that nobody\n"
		"listens at any more are removed as well. Root does it for every user, with that user's rights.\n",
	.examples = "  systrace recover            # this user's jobs; root: everybody's\n"
		    "  systrace recover --dry-run  # what is there\n",
	.options = recover_options,
	.run = recover_command,
};
