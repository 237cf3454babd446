/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Control sockets that dead processes left behind; see socket.h. */
#include "spool/socket.h"
#include "base/fault.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "spool/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define YOUNG_NS 2000000000

/* A path of any length, by its directory's descriptor. Return: is nobody there to answer? */
static bool refused(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const char *name = strrchr(path, '/');
	int dir = -1, fd = -1, n;
	char parent[PATH_BYTES];
	bool dead = false;

	if (!name)
		return false;
	n = snprintf(parent, sizeof(parent), "%.*s", (int)(name - path + 1), path);
	if (n < (int)sizeof(parent))
		dir = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	n = snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/thread-self/fd/%d/%s", dir, name + 1);
	if (dir >= 0 && n < (int)sizeof(addr.sun_path))
		fd = FAULT("socket.probe") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0) {
		dead = connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) && errno == ECONNREFUSED;
		close(fd);
	}
	if (dir >= 0)
		close(dir);
	return dead;
}

static bool ours(const char *path, struct stat *st)
{
	return !sys_lstat(path, st) && S_ISSOCK(st->st_mode) && st->st_uid == geteuid();
}

bool socket_is_dead(const char *path)
{
	struct stat st;

	return ours(path, &st) && refused(path);
}

void socket_remove(const char *dir, uint32_t pid, uint64_t pidns)
{
	char path[PATH_BYTES];
	int i, n;

	for (i = 0; i < 2; i++) {
		n = i ? snprintf(path, sizeof(path), "%s/sysTrace_%u-%" PRIu64 ".sock", dir, pid, pidns)
		      : snprintf(path, sizeof(path), "%s/sysTrace_%u.sock", dir, pid);
		if (n < (int)sizeof(path) && socket_is_dead(path))
			unlink(path);
	}
}

/* sysTrace_<pid>.sock or sysTrace_<pid>-<pid namespace>.sock, and nothing else */
static bool parse_name(const char *name, struct owner *owner)
{
	char again[80];

	if (sscanf(name, "sysTrace_%" SCNu32 "-%" SCNu64 ".sock", &owner->pid, &owner->pidns) == 2)
		snprintf(again, sizeof(again), "sysTrace_%u-%" PRIu64 ".sock", owner->pid, owner->pidns);
	else if (sscanf(name, "sysTrace_%" SCNu32 ".sock", &owner->pid) == 1)
		snprintf(again, sizeof(again), "sysTrace_%u.sock", owner->pid);
	else
		return false;
	return !strcmp(name, again);
}

struct visitor {
	const struct socket_sweep *sweep;
	int removed;
};

static int visit(void *ctx, const char *name, uint64_t inode)
{
	struct visitor *v = ctx;
	struct owner owner;
	char path[PATH_BYTES];
	struct stat st;
	int64_t age_ns;
	int error = 0;

	(void)inode;
	owner_self(&owner); /* where the name does not say its namespace it is taken for ours */
	owner.start = 0;
	if (!parse_name(name, &owner) ||
	    snprintf(path, sizeof(path), "%s/%s", v->sweep->dir, name) >= (int)sizeof(path) || !ours(path, &st) ||
	    owner_life(&owner) == OWNER_ALIVE)
		return 0;
	age_ns = (int64_t)clock_ns(CLOCK_REALTIME) -
		 ((int64_t)st.st_mtim.tv_sec * 1000000000 + (int64_t)st.st_mtim.tv_nsec);
	if (age_ns < YOUNG_NS || !refused(path))
		return 0;
	if (!v->sweep->dry_run && (FAULT("socket.unlink") || unlink(path)))
		error = -errno;
	v->removed += !error;
	if (v->sweep->report)
		v->sweep->report(v->sweep->ctx, path, error);
	return 0;
}

int socket_sweep(const struct socket_sweep *sweep)
{
	struct visitor v = { .sweep = sweep };
	int fd = FAULT("socket.sweep") ? -1 : open(sweep->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret;

	if (fd < 0)
		return -errno;
	ret = sys_dir_each(fd, visit, &v);
	close(fd);
	return ret < 0 ? ret : v.removed;
}
