/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The processes that are recorded: one entry however many sessions want it, its end noticed through a pidfd, the job's
 * step read from the agent's pool with pread (a mapping could be cut short under us). See frame.h.
 */
#include "probe/frame.h"
#include "safe/pool.h"
#include "safe/rawio.h"
#include "spool/owner.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same on every architecture */
#endif

static struct {
	struct probe_target **list;
	size_t count;
} known;

void probe_target_free(struct probe_target *target)
{
	if (!target)
		return;
	if (target->dir_fd >= 0)
		close(target->dir_fd);
	if (target->pool_fd >= 0)
		close(target->pool_fd);
	if (target->pid_fd >= 0) {
		probe_unwatch(target->pid_fd);
		close(target->pid_fd);
	}
	free(target);
}

static void ended(int fd, void *arg)
{
	struct probe_target *target = arg;

	probe_unwatch(fd);
	target->ended = true;
	probe_target_ended(target);
}

static struct probe_target *find(const struct probe_target *like)
{
	for (size_t i = 0; i < known.count; i++) {
		struct probe_target *one = known.list[i];

		if (like->pid && one->pid == like->pid && one->start == like->start && !one->ended)
			return one;
	}
	return NULL;
}

/* The pidfd first, then the start time: what the number meant before we held it does not matter. */
static int hold(struct probe_target *target, struct st_err *err)
{
	uint64_t start = 0;
	char state = 0;

	target->origin.author = msg_text("probe");
	target->origin.version = msg_text(ST_VERSION);
	target->origin.format = 1;
	target->origin.pid = target->inner_pid;
	if (!target->pid)
		return 0;
	target->pid_fd = (int)syscall(SYS_pidfd_open, target->pid, 0);
	if (target->pid_fd < 0 && errno == ESRCH)
		return err_set(err, -ESRCH, "process %d has ended", (int)target->pid);
	if (target->pid_fd < 0)
		return err_set(err, -errno, "cannot watch process %d: %s", (int)target->pid, strerror(errno));
	if (owner_proc_start((uint32_t)target->pid, &start, &state) < 0 || state == 'Z' || state == 'X' ||
	    (target->start && start != target->start))
		return err_set(err, -ESRCH, "process %d has ended%s", (int)target->pid,
			       target->start && start != target->start ? " (another one has its number now)" : "");
	target->start = start;
	target->origin.proc_start = start;
	if (probe_watch(target->pid_fd, ended, target) < 0)
		return err_set(err, -ENOMEM, "out of memory");
	return 0;
}

struct probe_target *probe_target_own(struct probe_target *target, struct st_err *err)
{
	struct probe_target *same = find(target), **list;

	if (same) {
		probe_target_free(target);
		same->users++;
		return same;
	}
	list = realloc(known.list, (known.count + 1) * sizeof(*list));
	if (!list) {
		err_set(err, -ENOMEM, "out of memory");
		goto fail;
	}
	known.list = list;
	if (target->dir_fd < 0) {
		err_set(err, -EINVAL, "process %d came without a dump directory", (int)target->pid);
		goto fail;
	}
	if (hold(target, err) < 0)
		goto fail;
	target->users = 1;
	known.list[known.count++] = target;
	return target;
fail:
	probe_target_free(target);
	return NULL;
}

void probe_target_release(struct probe_target *target)
{
	if (--target->users)
		return;
	for (size_t i = 0; i < known.count; i++)
		if (known.list[i] == target) {
			known.list[i] = known.list[--known.count];
			break;
		}
	probe_target_free(target);
}

uint64_t probe_target_step(const struct probe_target *target)
{
	struct {
		uint64_t magic;
		uint32_t version;
	} head;
	uint64_t step = 0;

	if (target->pool_fd < 0 || pread(target->pool_fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    head.magic != POOL_MAGIC || head.version != POOL_VERSION ||
	    pread(target->pool_fd, &step, sizeof(step), offsetof(struct pool_header, step)) != (ssize_t)sizeof(step))
		return 0;
	return step;
}

#define FIRST_PID_NAMESPACE 0xeffffffcu /* the kernel's PROC_PID_INIT_INO */

bool probe_sees_host(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) < 0 || st.st_ino == FIRST_PID_NAMESPACE;
}

int probe_need_host(const char *what, struct st_err *err)
{
	if (probe_sees_host())
		return 0;
	return err_set(
		err, -ENOTSUP,
		"%s works from the host's process namespace, and this one is a container's: run sysTrace_cli on the "
		"host, or in a container that shares its processes (hostPID: true, --pid=host)",
		what);
}

uint32_t probe_inner_tid(const struct probe_target *target, uint32_t tgid, uint32_t tid)
{
	char path[64], text[4096], *at, *end;
	unsigned long inner = 0;

	if (target->inner_pid == (uint32_t)target->pid)
		return 0;
	snprintf(path, sizeof(path), "/proc/%u/task/%u/status", tgid, tid);
	if (sys_read_file(path, text, sizeof(text)) <= 0 || !(at = strstr(text, "\nNSpid:")))
		return 0;
	for (at += strlen("\nNSpid:"); *at && *at != '\n'; at = end) {
		unsigned long id = strtoul(at, &end, 10);

		if (end == at)
			break;
		inner = id;
	}
	return (uint32_t)inner;
}
