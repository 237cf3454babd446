/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Describing processes to a probe; see probe_targets.h. */
#include "cli/probe_targets.h"

#include "base/num.h"
#include "cli/user_dir.h"
#include "safe/rawio.h"
#include "spool/owner.h"
#include "wire/env_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENVIRON_MAX (1u << 20)

/** struct draft - a target being described */
struct draft {
	struct probe_target *target;
	const struct ctl_call *answer; /* NULL = no agent answered */
	char *env; /* of the process, NULL = not readable */
	size_t env_bytes;
	size_t used; /* of target->texts */
};

void probe_target_drop(struct probe_target *target)
{
	if (!target)
		return;
	if (target->dir_fd >= 0)
		close(target->dir_fd);
	if (target->pool_fd >= 0)
		close(target->pool_fd);
	free(target);
}

static struct msg_text keep(struct draft *draft, const char *text)
{
	char *at = draft->target->texts + draft->used;
	size_t bytes = strlen(text);

	if (draft->used + bytes + 1 > sizeof(draft->target->texts))
		return (struct msg_text){ 0 };
	memcpy(at, text, bytes + 1);
	draft->used += bytes + 1;
	return (struct msg_text){ at, bytes };
}

/* --- where facts come from ------------------------------------------------------------------------------------------- */

static void read_environ(struct draft *draft, pid_t pid)
{
	char path[40];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	draft->env = malloc(ENVIRON_MAX);
	got = draft->env ? sys_read_file(path, draft->env, ENVIRON_MAX) : -1;
	if (got >= 0) {
		draft->env_bytes = (size_t)got;
		return;
	}
	free(draft->env);
	draft->env = NULL;
}

/* A variable of the process, or of this shell where there is no process; NULL = not set, or empty. */
static const char *variable(const struct draft *draft, const char *name)
{
	size_t len = strlen(name);
	const char *value = NULL;

	if (!draft->target->pid)
		value = getenv(name);
	for (const char *at = draft->env; at && at < draft->env + draft->env_bytes && !value; at += strlen(at) + 1)
		if (strncmp(at, name, len) == 0 && at[len] == '=')
			value = at + len + 1;
	return value && *value ? value : NULL;
}

static const char *first_variable(const struct draft *draft, const char *const *names)
{
	const char *value = NULL;

	for (; *names && !value; names++)
		value = variable(draft, *names);
	return value;
}

static bool answered(const struct draft *draft, const char *key, char *out, size_t room)
{
	return draft->answer && ctl_call_get(draft->answer, key, out, room) && *out;
}

static uint32_t number_of(const struct draft *draft, const char *key, const char *const *names, bool *known)
{
	char text[32];
	const char *value = NULL;
	uint64_t number;

	if (answered(draft, key, text, sizeof(text)))
		value = text;
	else
		value = first_variable(draft, names);
	*known = value && num_u64(value, &number) == 0 && number <= UINT32_MAX;
	return *known ? (uint32_t)number : 0;
}

/* --- who ------------------------------------------------------------------------------------------------------------- */

/* The numbers of a line of /proc/<pid>/status. Return: how many. */
static int status_numbers(const char *status, const char *key, uint64_t *out, int room)
{
	const char *at = strstr(status, key);
	int count = 0;
	char *end;

	for (at = at ? at + strlen(key) : NULL; at && *at && *at != '\n' && count < room; at = end) {
		out[count] = strtoull(at, &end, 10);
		if (end == at)
			break;
		count++;
	}
	return count;
}

static int read_process(struct draft *draft, struct st_err *err)
{
	struct probe_target *target = draft->target;
	char path[40], status[8192], pids[96] = "";
	uint64_t ids[8] = { 0 };
	struct stat st;
	int count;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)target->pid);
	if (sys_read_file(path, status, sizeof(status)) <= 0 ||
	    owner_proc_start((uint32_t)target->pid, &target->start, NULL) < 0)
		return err_set(err, -ESRCH, "there is no process %d", (int)target->pid);
	if (status_numbers(status, "\nTgid:", ids, 1) == 1 && ids[0] != (uint64_t)target->pid)
		return err_set(err, -EINVAL, "%d is a thread of process %llu; give that one", (int)target->pid,
			       (unsigned long long)ids[0]);
	if (status_numbers(status, "\nUid:", ids, 4) == 4)
		target->uid = (uid_t)ids[1];
	if (status_numbers(status, "\nGid:", ids, 4) == 4)
		target->gid = (gid_t)ids[1];
	count = status_numbers(status, "\nNSpid:", ids, 8);
	target->inner_pid = count ? (uint32_t)ids[count - 1] : (uint32_t)target->pid;
	for (int i = 0; i < count; i++)
		snprintf(pids + strlen(pids), sizeof(pids) - strlen(pids), "%s%llu", i ? " " : "",
			 (unsigned long long)ids[i]);
	target->origin.pids = keep(draft, pids);
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)target->pid);
	if (stat(path, &st) == 0)
		target->origin.pid_namespace = st.st_ino;
	return 0;
}

/* Command of a process without an agent: its last path component, as the agent would shorten it. */
static void keep_job(struct draft *draft)
{
	char path[40], line[256], comm[32];

	if (answered(draft, "job", line, sizeof(line))) {
		draft->target->origin.job = keep(draft, line);
		return;
	}
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)draft->target->pid);
	if (draft->target->pid && sys_read_file(path, comm, sizeof(comm)) > 0) {
		comm[strcspn(comm, "\n")] = '\0';
		draft->target->origin.job = keep(draft, comm);
	}
}

static void keep_who(struct draft *draft)
{
	struct msg_origin *origin = &draft->target->origin;
	char text[256], boot[64];
	bool known;

	if (answered(draft, "run", text, sizeof(text)))
		origin->run = keep(draft, text);
	else if (variable(draft, env_specs[ENV_RUN_ID].name))
		origin->run = keep(draft, variable(draft, env_specs[ENV_RUN_ID].name));
	if (!answered(draft, "host", text, sizeof(text)) && gethostname(text, sizeof(text)) < 0)
		text[0] = '\0';
	text[sizeof(text) - 1] = '\0';
	origin->host = keep(draft, text);
	if (sys_read_file("/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) > 0) {
		boot[strcspn(boot, "\n")] = '\0';
		origin->boot_id = keep(draft, boot);
	}
	keep_job(draft);
	origin->rank = number_of(draft, "rank", env_rank_names, &origin->rank_known);
	origin->local_rank = number_of(draft, "local_rank", env_local_rank_names, &known);
	origin->world_size = number_of(draft, "world_size", env_world_names, &known);
}

/* --- where to ---------------------------------------------------------------------------------------------------------- */

static void find_place(struct draft *draft)
{
	struct probe_target *target = draft->target;
	const char *path = variable(draft, env_specs[ENV_DUMP_PATH].name);
	const char *format = variable(draft, env_specs[ENV_FORMAT].name);
	char text[sizeof(target->dump_path)];

	if (answered(draft, "dump_path", text, sizeof(text)))
		path = text;
	if (!path)
		path = getenv(env_specs[ENV_DUMP_PATH].name);
	if (!path || *path != '/')
		path = env_specs[ENV_DUMP_PATH].initial;
	snprintf(target->dump_path, sizeof(target->dump_path), "%s", path);
	if (answered(draft, "format", text, sizeof(text)))
		format = text;
	if (!format)
		format = getenv(env_specs[ENV_FORMAT].name);
	target->json = strcasecmp(format ? format : ST_DEFAULT_FORMAT, "json") == 0;
}

static int open_place(struct draft *draft, struct st_err *err)
{
	struct probe_target *target = draft->target;
	char pool[512] = "", spool[480];

	if (answered(draft, "spool", spool, sizeof(spool)))
		snprintf(pool, sizeof(pool), "%s/pool", spool);
	target->dir_fd = user_dir_open(target->pid, target->uid, target->gid, target->dump_path, pool[0] ? pool : NULL,
				       &target->pool_fd, err);
	return target->dir_fd < 0 ? target->dir_fd : 0;
}

struct probe_target *probe_target_of(pid_t pid, const struct ctl_call *answer, struct st_err *err)
{
	struct draft draft = { .target = calloc(1, sizeof(*draft.target)) };
	int ret = 0;

	if (!draft.target) {
		err_set(err, -ENOMEM, "out of memory");
		return NULL;
	}
	draft.answer = answer && answer->err.code == 0 ? answer : NULL;
	draft.target->pid = pid;
	draft.target->dir_fd = draft.target->pool_fd = draft.target->pid_fd = -1;
	draft.target->has_agent = answer != NULL;
	draft.target->uid = geteuid();
	draft.target->gid = getegid();
	draft.target->inner_pid = (uint32_t)getpid();
	if (pid) {
		ret = read_process(&draft, err);
		read_environ(&draft, pid);
	}
	if (ret == 0) {
		keep_who(&draft);
		find_place(&draft);
		ret = open_place(&draft, err);
	}
	free(draft.env);
	if (ret == 0)
		return draft.target;
	probe_target_drop(draft.target);
	return NULL;
}
