/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See proc_tasks.h. */
#include "probe/proc_tasks.h"

#include "base/num.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int walk(const char *path, int (*each)(void *ctx, int32_t id), void *ctx)
{
	struct dirent *entry;
	DIR *dir = opendir(path);
	int ret = 0;

	if (!dir)
		return -errno;
	while (ret >= 0 && (entry = readdir(dir))) {
		uint64_t id;

		if (num_u64(entry->d_name, &id) == 0 && id <= INT32_MAX)
			ret = each(ctx, (int32_t)id);
	}
	closedir(dir);
	return ret < 0 ? ret : 0;
}

struct process {
	int (*each)(void *ctx, int32_t pid, int32_t tid);
	void *ctx;
	int32_t pid;
};

static int one_task(void *ctx, int32_t tid)
{
	const struct process *process = ctx;

	return process->each(process->ctx, process->pid, tid);
}

static int one_process(void *ctx, int32_t pid)
{
	struct process *process = ctx;
	char path[40];
	int ret;

	snprintf(path, sizeof(path), "/proc/%" PRId32 "/task", pid);
	process->pid = pid;
	ret = walk(path, one_task, process);
	return ret == -ENOENT || ret == -ESRCH || ret == -EACCES ? 0 : ret; /* gone, or not shown to us */
}

int proc_tasks(int (*each)(void *ctx, int32_t pid, int32_t tid), void *ctx)
{
	struct process process = { .each = each, .ctx = ctx };

	return walk("/proc", one_process, &process);
}
