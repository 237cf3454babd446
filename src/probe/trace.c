/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin Trace: `trace-cmd` with the user's arguments. It runs in a directory of root's inside Trace/, so that no
 * link that the job's user plants leads it anywhere; what it leaves there is moved to Trace/ at its end, and given to
 * that user. What it changes at the top level of tracefs is put back, also by the next start after a kill.
 */
#include "probe/child.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace/saved_state.h"
#include "probe/ftrace/tracefs.h"
#include "probe/out.h"
#include "probe/probe.h"
#include "systrace/ftrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BEGIN_MS 500 /* a trace-cmd that refuses its arguments, or that the kernel refuses, ends at once */
#define END_MS 30000 /* it gathers its CPUs' files at the end */

struct tracing {
	struct probe_session *session;
	struct child child;
	struct tracefs fs;
	struct saved_state saved;
	int folder; /* Trace/ of the target */
	int dir; /* where it works */
	char dir_name[64]; /* below folder */
	int said; /* its words */
	struct tracing *next;
};

static struct {
	struct tracing *list;
	struct probe_stats stats;
} trace;

static const char no_tracecmd[] =
	"trace-cmd is not installed: install it (apt-get install trace-cmd, dnf install trace-cmd), "
	"then try again; Ftrace and `systrace record` need no trace-cmd";

static int trace_check(struct st_err *err)
{
	static const int caps[] = { CAP_SYS_ADMIN, -1 };
	char path[512];
	int ret = probe_need_caps("trace-cmd", caps, NULL, err);

	if (ret < 0)
		return ret;
	return child_find("trace-cmd", path, sizeof(path)) < 0 ? err_set(err, -ENOENT, "%s", no_tracecmd) : 0;
}

static void say(void *ctx, int level, const char *text)
{
	probe_log("%s", text);
}

/* What a probe that was killed, or its trace-cmd, left in the kernel. */
static void trace_clean(void)
{
	struct note note = { .say = say };
	struct tracefs fs;

	if (tracefs_open(&fs, NULL, NULL) == 0) {
		instance_sweep(&fs, &note);
		saved_state_sweep(&fs, &note);
	}
	tracefs_close(&fs);
}

/* --- places ------------------------------------------------------------------------------------------------------------ */

static int open_places(struct tracing *mine, struct st_err *err)
{
	const struct probe_target *target = mine->session->targets[0];
	static unsigned number;
	char name[80];

	snprintf(name, sizeof(name), "Trace_%" PRIu32 "_rank_%" PRIu32 ".log", target->inner_pid, target->origin.rank);
	mine->said = probe_out_fd(target, "Trace", name, err); /* makes the folder, too */
	if (mine->said < 0)
		return mine->said;
	mine->folder = openat(target->dir_fd, "Trace", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (mine->folder < 0)
		return err_set(err, -errno, "cannot open %s/Trace: %s", target->dump_path, strerror(errno));
	snprintf(mine->dir_name, sizeof(mine->dir_name), "unfinished-%d-%u", (int)getpid(), ++number);
	if (mkdirat(mine->folder, mine->dir_name, 0700) < 0)
		return err_set(err, -errno, "cannot make %s/Trace/%s: %s", target->dump_path, mine->dir_name,
			       strerror(errno));
	mine->dir = openat(mine->folder, mine->dir_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return mine->dir < 0 ? err_set(err, -errno, "cannot open %s/Trace/%s: %s", target->dump_path, mine->dir_name,
				       strerror(errno))
			     : 0;
}

/* A file of an earlier run goes aside: contract 2. Return: 0 or -errno. */
static int move_one(const struct tracing *mine, const char *name)
{
	char aside[320];
	struct stat st;

	for (int i = 0; i < 8; i++) {
		if (renameat2(mine->dir, name, mine->folder, name, RENAME_NOREPLACE) == 0)
			return 0;
		if (errno != EEXIST || fstatat(mine->folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return -errno;
		snprintf(aside, sizeof(aside), i ? "%s.%lld-%d" : "%s.%lld", name, (long long)st.st_mtim.tv_sec, i);
		renameat2(mine->folder, name, mine->folder, aside, RENAME_NOREPLACE);
	}
	return -EEXIST;
}

/* Return: bytes of what trace-cmd left, moved to where the user looks for it. */
static uint64_t move_results(struct tracing *mine)
{
	const struct probe_target *target = mine->session->targets[0];
	DIR *dir = mine->dir < 0 ? NULL : fdopendir(mine->dir);
	struct dirent *entry;
	uint64_t bytes = 0;
	struct stat st;

	while (dir && (entry = readdir(dir))) {
		int ret;

		if (fstatat(mine->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
			continue;
		ret = fchownat(mine->dir, entry->d_name, target->uid, target->gid, AT_SYMLINK_NOFOLLOW) < 0
			      ? -errno
			      : move_one(mine, entry->d_name);
		if (ret < 0)
			probe_log("Trace: %s stays in %s/Trace/%s: %s", entry->d_name, target->dump_path,
				  mine->dir_name, strerror(-ret));
		bytes += (uint64_t)st.st_size;
	}
	if (dir)
		closedir(dir);
	mine->dir = -1;
	if (mine->dir_name[0])
		unlinkat(mine->folder, mine->dir_name, AT_REMOVEDIR);
	return bytes;
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

/* Does it change the top level for as long as it runs? `trace-cmd start` and the like are meant to change it for good. */
static bool puts_back(const struct child_words *words)
{
	const char *verb = words->list[1];

	for (size_t i = 2; i < words->count; i++)
		if (strncmp(words->list[i], "-B", 2) == 0)
			return false; /* an instance of the user's */
	return strcmp(verb, "record") == 0 || strcmp(verb, "profile") == 0 || strcmp(verb, "stream") == 0;
}

static int remember_state(struct tracing *mine, const struct child_words *words, struct st_err *err)
{
	struct note note = { .say = say };
	int ret;

	if (!puts_back(words))
		return 0;
	ret = tracefs_open(&mine->fs, NULL, err);
	if (ret < 0)
		return ret;
	instance_sweep(&mine->fs, &note);
	saved_state_sweep(&mine->fs, &note);
	ret = saved_state_take(&mine->saved, &mine->fs, NULL, err);
	if (ret == 0 && mine->saved.in_use) {
		saved_state_restore(&mine->saved, NULL);
		return err_set(
			err, -EBUSY,
			"somebody else is tracing at the top level of tracefs (set_event or current_tracer is not "
			"empty), which trace-cmd would change; end that first, or use Ftrace, which does not "
			"disturb it");
	}
	return ret;
}

static void end_everything(struct tracing *mine, bool begun)
{
	struct st_err err = { 0 };

	if (saved_state_restore(&mine->saved, &err) < 0)
		probe_log("Trace: %s", err.text);
	tracefs_close(&mine->fs);
	trace.stats.bytes += move_results(mine);
	if (mine->said >= 0 && begun && lseek(mine->said, 0, SEEK_END) > 0)
		close(mine->said);
	else if (mine->said >= 0)
		probe_out_unmake(mine->session->targets[0], "Trace", mine->said);
	if (mine->folder >= 0)
		close(mine->folder);
	free(mine);
}

static void tracecmd_ended(int fd, void *arg)
{
	struct tracing *mine = arg;

	probe_unwatch(fd);
	child_wait(&mine->child, 0);
	probe_session_end(mine->session);
}

static bool failed(const struct child *child)
{
	return !WIFEXITED(child->status) || WEXITSTATUS(child->status) != 0;
}

static int begin(struct tracing *mine, struct st_err *err)
{
	struct child_words words = { 0 };
	char path[512], said[300];
	int ret;

	if (child_find("trace-cmd", path, sizeof(path)) < 0)
		return err_set(err, -ENOENT, "%s", no_tracecmd);
	ret = child_words_add(&words, path) < 0 ? err_set(err, -ENOMEM, "out of memory")
						: child_words_split(&words, probe_param(mine->session, "args"), err);
	if (ret == 0 && words.count < 2)
		ret = err_set(err, -EINVAL, "args is empty; write for example args=\"record -e sched sleep 5\"");
	if (ret == 0)
		ret = open_places(mine, err);
	if (ret == 0)
		ret = remember_state(mine, &words, err);
	if (ret == 0)
		ret = child_start(&mine->child, &words, mine->dir, mine->said, mine->said, SIGINT, err);
	child_words_free(&words);
	if (ret == 0 && child_wait(&mine->child, BEGIN_MS) && failed(&mine->child))
		ret = err_set(err, -EIO, "trace-cmd ended at once: %.300s",
			      child_said(mine->said, 0, said, sizeof(said)));
	return ret;
}

static int trace_start(struct probe_session *session, char *note, struct st_err *err)
{
	struct tracing *mine = calloc(1, sizeof(*mine));
	int ret;

	if (!mine)
		return err_set(err, -ENOMEM, "out of memory");
	mine->session = session;
	mine->child.pid_fd = mine->fs.fd = mine->folder = mine->dir = mine->said = -1;
	ret = begin(mine, err);
	if (ret < 0) {
		end_everything(mine, false);
		return ret;
	}
	session->own = mine;
	mine->next = trace.list;
	trace.list = mine;
	if (!mine->child.pid)
		probe_session_end(session);
	else if (probe_watch(mine->child.pid_fd, tracecmd_ended, mine) < 0)
		probe_log("the end of trace-cmd is noticed when Trace is disabled only: out of memory");
	return 0;
}

static void trace_stop(struct probe_session *session)
{
	struct tracing *mine = session->own, **at = &trace.list;
	char said[300];

	while (*at != mine)
		at = &(*at)->next;
	*at = mine->next;
	if (mine->child.pid_fd >= 0)
		probe_unwatch(mine->child.pid_fd);
	if (!child_end(&mine->child, SIGINT, END_MS))
		probe_log("Trace: trace-cmd did not end within %d s and was killed", END_MS / 1000);
	else if (failed(&mine->child))
		probe_log("Trace: trace-cmd failed: %s", child_said(mine->said, 0, said, sizeof(said)));
	trace.stats.records++;
	end_everything(mine, true);
	session->own = NULL;
}

static void trace_remove(struct probe_session *session, struct probe_target *target)
{
}

static void trace_status(struct probe_stats *stats)
{
	*stats = trace.stats;
	if (trace.list)
		snprintf(stats->text, sizeof(stats->text), "trace-cmd runs (pid %d)", (int)trace.list->child.pid);
}

const struct probe_kind probe_trace = {
	.plugin = PLUGIN_TRACE,
	.group = "trace",
	.targets = PROBE_HOST,
	.check = trace_check,
	.clean = trace_clean,
	.start = trace_start,
	.stop = trace_stop,
	.remove = trace_remove,
	.status = trace_status,
};
