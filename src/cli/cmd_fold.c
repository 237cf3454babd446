/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace fold`: waits until a capture of GIL or Mutex has ended and folds the files of this host's ranks into one
 * (spool/fold.h, contract 7). sysTrace_cli starts it, detached; it can be run by hand as well.
 */
#include "cli/become.h"
#include "cli/command.h"
#include "cli/ctl_client.h"
#include "cli/targets.h"
#include "spool/fold.h"

#include "base/num.h"
#include "wire/plugin_spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 1024
#define ASK_NS 5000000000ull
#define POLL_MS 500 /* when the end is near */
#define POLL_LONGEST_S 60

static const struct option_spec fold_options[] = {
	{ "plugin", 0, OPT_TEXT, "GIL|Mutex", NULL, "whose files" },
	{ "pid", 'p', OPT_TEXT, "LIST", NULL, "the processes: --pid 1234,5678" },
	{ .kind = OPT_END },
};

/** struct rank - one process, as it was when it answered last */
struct rank {
	pid_t pid;
	uint32_t local_rank;
	uid_t uid;
	char path[1024]; /* of its file, "" = none yet */
};

struct folding {
	const struct plugin_spec *plugin;
	struct rank ranks[RANKS_MAX];
	size_t count;
};

static int take_pids(struct folding *f, const char *text)
{
	while (*text) {
		size_t len = strcspn(text, ",");
		uint64_t pid;

		if (num_u64_n(text, len, &pid) < 0 || !pid || pid > INT32_MAX || f->count == RANKS_MAX)
			return cmd_usage("--pid: '%.40s' is not a list of process ids such as 1234,5678", text);
		f->ranks[f->count++].pid = (pid_t)pid;
		text += len + (text[len] == ',');
	}
	return CMD_OK;
}

static struct rank *rank_of(struct folding *f, pid_t pid)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->ranks[i].pid == pid)
			return &f->ranks[i];
	return NULL;
}

/* The newest file of the plugin: <dump path>/<plugin>/<plugin>_... */
static void take_file(struct folding *f, struct rank *rank, const struct ctl_call *call)
{
	struct ctl_entry entry;
	char wanted[64];
	uint32_t at = 0;

	snprintf(wanted, sizeof(wanted), "/%s/%s_", f->plugin->name, f->plugin->name);
	while (call->payload && ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) > 0) {
		char path[sizeof(rank->path)];

		if (entry.key_bytes != 4 || memcmp(entry.key, "file", 4) != 0 || entry.value_bytes >= sizeof(path))
			continue;
		memcpy(path, entry.value, entry.value_bytes);
		path[entry.value_bytes] = 0;
		if (path[0] == '/' && strstr(path, wanted))
			memcpy(rank->path, path, sizeof(path));
	}
}

/* Return: milliseconds until asking again is worth while, 0 = its capture has ended. */
static unsigned int take_answer(struct folding *f, struct rank *rank, const struct ctl_call *call)
{
	char key[64], text[32];
	uint64_t value = 0;

	if (call->err.code)
		return 0;
	rank->uid = call->target->uid;
	if (ctl_call_get(call, "local_rank", text, sizeof(text)) && num_u64(text, &value) == 0)
		rank->local_rank = (uint32_t)value;
	take_file(f, rank, call);
	snprintf(key, sizeof(key), "plugin.%s.state", f->plugin->name);
	for (char *at = key; *at; at++)
		*at |= *at >= 'A' && *at <= 'Z' ? 32 : 0;
	if (!ctl_call_get(call, key, text, sizeof(text)) || strcmp(text, "off") == 0)
		return 0;
	memcpy(strstr(key, ".state"), ".left_s", 8);
	if (!ctl_call_get(call, key, text, sizeof(text)) || num_u64(text, &value) < 0)
		return 4 * POLL_MS;
	return value < POLL_LONGEST_S ? (unsigned int)value * 1000 + POLL_MS : POLL_LONGEST_S * 1000;
}

/* Ask everybody who is left. Return: as take_answer(), the longest; -1 = out of memory. */
static int ask(struct folding *f)
{
	struct targets targets = { 0 };
	struct ctl_call *calls = calloc(f->count + 1, sizeof(*calls));
	uint8_t request[CTL_FRAME_BYTES];
	struct ctl_msg msg;
	size_t count = 0;
	unsigned int wait = 0;

	if (!calls || targets_find(&targets, NULL) < 0) {
		free(calls);
		targets_free(&targets);
		return -1;
	}
	for (size_t i = 0; i < targets.count && count < f->count; i++) /* files of containers are not ours to touch */
		if (targets.list[i].kind == TARGET_AGENT && !targets.list[i].foreign && rank_of(f, targets.list[i].pid))
			calls[count++].target = &targets.list[i];
	ctl_begin(&msg, request, sizeof(request), CTL_STATUS, (uint32_t)getpid());
	ctl_exchange(calls, count, request, (uint32_t)ctl_finish(&msg), ASK_NS);
	for (size_t i = 0; i < count; i++) {
		unsigned int its = take_answer(f, rank_of(f, calls[i].target->pid), &calls[i]);

		wait = its > wait ? its : wait;
	}
	ctl_calls_free(calls, count);
	free(calls);
	targets_free(&targets);
	return (int)wait;
}

/* By directory, then local rank: the first of a directory is folded into. */
static int by_place(const void *a, const void *b)
{
	const struct rank *x = a, *y = b;
	size_t x_len = x->path[0] ? (size_t)(strrchr(x->path, '/') - x->path) : 0;
	size_t y_len = y->path[0] ? (size_t)(strrchr(y->path, '/') - y->path) : 0;
	int ret = x_len != y_len ? (x_len < y_len ? -1 : 1) : memcmp(x->path, y->path, x_len);

	if (!ret)
		ret = x->uid < y->uid ? -1 : x->uid > y->uid;
	if (!ret)
		ret = x->local_rank < y->local_rank ? -1 : x->local_rank > y->local_rank;
	return ret ? ret : x->pid < y->pid ? -1 : x->pid > y->pid;
}

static bool together(const struct rank *a, const struct rank *b)
{
	size_t len = (size_t)(strrchr(a->path, '/') - a->path);

	return a->uid == b->uid && strncmp(a->path, b->path, len + 1) == 0 && !strchr(b->path + len + 1, '/');
}

/* Root takes the rights of the files' user first: nothing in a job's directory is trusted with root's. */
static int fold_as(uid_t uid, const char *const *paths, size_t count)
{
	struct st_err err = { 0 };
	int status;
	pid_t pid;

	if (geteuid() != 0 || uid == 0) {
		int ret = fold_files(paths, count, &err);

		return ret < 0 && ret != -EBUSY ? cmd_error("%s", err.text) : CMD_OK;
	}
	pid = fork();
	if (pid == 0) {
		int ret = become_owner_of(paths[0], &err);

		if (ret > 0)
			ret = fold_files(paths, count, &err);
		_exit(ret < 0 && ret != -EBUSY ? cmd_error("%s", err.text) : CMD_OK);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return cmd_error("cannot start a process: %s", strerror(errno));
	return WIFEXITED(status) ? WEXITSTATUS(status) : CMD_ERROR;
}

static int fold_all(struct folding *f)
{
	const char *paths[RANKS_MAX];
	int status = CMD_OK;
	size_t i, n;

	qsort(f->ranks, f->count, sizeof(f->ranks[0]), by_place);
	for (i = 0; i < f->count; i += n) {
		n = 1;
		if (!f->ranks[i].path[0])
			continue;
		paths[0] = f->ranks[i].path;
		for (; i + n < f->count && f->ranks[i + n].path[0] && together(&f->ranks[i], &f->ranks[i + n]); n++)
			paths[n] = f->ranks[i + n].path;
		if (n > 1 && fold_as(f->ranks[i].uid, paths, n) != CMD_OK)
			status = CMD_ERROR;
	}
	return status;
}

static int run_fold(const struct options *opts)
{
	static struct folding f;
	const char *plugin = options_text(opts, "plugin"), *pids = options_text(opts, "pid");
	struct st_err err = { 0 };
	int id = plugin ? plugin_find(plugin, &err) : -1, status, wait;

	if (id != PLUGIN_GIL && id != PLUGIN_MUTEX)
		return cmd_usage("--plugin is %s: GIL or Mutex", plugin ? "not one whose files are folded" : "missing");
	if (!pids)
		return cmd_usage("--pid is missing");
	f = (struct folding){ .plugin = &plugin_specs[id] };
	status = take_pids(&f, pids);
	if (status != CMD_OK)
		return status;
	while ((wait = ask(&f)) > 0)
		usleep((useconds_t)wait * 1000);
	if (wait < 0)
		return cmd_error("out of memory");
	return fold_all(&f);
}

const struct command cmd_fold = {
	.name = "fold",
	.summary = "fold the GIL or Mutex files of a host's ranks into one, when the capture has ended",
	.usage = "--plugin GIL|Mutex --pid LIST",
	.about =
		"Started by sysTrace_cli (aggregate=1, the default). Waits until no process of the list records any more,\n"
		"then writes the records of all of them to the file of the lowest local rank and removes the others'. Files in\n"
		"containers, of other directories and closed segments stay as they are.\n",
	.examples = "  systrace fold --plugin GIL --pid 1234,1235\n",
	.options = fold_options,
	.hidden = true,
	.run = run_fold,
};
