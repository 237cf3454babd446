/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Finds processes with an agent; see targets.h. What a process says about itself (environment, paths) is its user's
 * word: a socket is opened below that process's root, without links where this program has more rights than the process,
 * and ctl_client.c believes it only when the kernel says who listens.
 */
#include "cli/targets.h"

#include "base/num.h"
#include "cli/compat_openat2.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LIBRARY "/libsysTrace.so"
#define DEFAULT_SOCKET_DIR "/tmp"
#define ENVIRON_MAX (4u << 20)

struct ns_id {
	dev_t ns_dev, root_dev;
	ino_t ns_ino, root_ino;
};

/* --- reading one process ------------------------------------------------------------------------------------------- */

/* Whole contents of a file of /proc, NUL-terminated; *bytes without the NUL. NULL with errno. */
static char *read_proc(int dir, const char *name, size_t *bytes)
{
	size_t room = 8192, used = 0;
	char *data = malloc(room);
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t got = 0;

	while (data && fd >= 0 && used < ENVIRON_MAX) {
		got = read(fd, data + used, room - used - 1);
		if (got <= 0)
			break;
		used += (size_t)got;
		if (room - used < 2048) {
			char *more = realloc(data, room *= 2);

			if (!more)
				break;
			data = more;
		}
	}
	if (!data || fd < 0 || got < 0) {
		int saved = data ? errno : ENOMEM;

		free(data);
		if (fd >= 0)
			close(fd);
		errno = saved;
		return NULL;
	}
	close(fd);
	data[used] = '\0';
	*bytes = used;
	return data;
}

static bool has_word(const char *line, const char *const *words)
{
	for (; *words; words++)
		if (strstr(line, *words))
			return true;
	return false;
}

/* Is this mapped file our library? Sets its path; one that was replaced since shows as "(deleted)". */
static void take_library(struct target *target, char *path)
{
	static const char gone[] = " (deleted)";
	size_t len = strlen(path);
	bool deleted = len > sizeof(gone) - 1 && strcmp(path + len - (sizeof(gone) - 1), gone) == 0;

	if (deleted)
		path[len - (sizeof(gone) - 1)] = '\0';
	if (strcmp(strrchr(path, '/'), LIBRARY) != 0)
		return;
	target->deleted = deleted;
	snprintf(target->library, sizeof(target->library), "%s", path);
}

/* Read the maps; true when the library is among them. */
static bool look_at_maps(struct target *target, int dir, size_t *hidden)
{
	static const char *const interpreters[] = { "/libpython3.", "/python3", "/libpython2.", NULL };
	static const char *const runtimes[] = { "/libascendcl.so", "/libcuda.so", "/libcudart.so", "/libhccl.so",
						NULL };
	FILE *maps = NULL;
	char line[4096 + 128];
	int fd = openat(dir, "maps", O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
		maps = fdopen(fd, "r");
	if (!maps) {
		if (fd >= 0)
			close(fd);
		*hidden += errno == EACCES || errno == EPERM;
		return false;
	}
	while (fgets(line, sizeof(line), maps)) {
		char *path = strchr(line, '/');

		if (!path)
			continue;
		path[strcspn(path, "\n")] = '\0';
		target->python |= has_word(path, interpreters);
		target->runtime |= has_word(path, runtimes);
		take_library(target, path);
	}
	/* a process that may not be looked into opens, but reads nothing (EACCES on older kernels) */
	*hidden += ferror(maps) && (errno == EACCES || errno == EPERM);
	fclose(maps);
	return target->library[0] != '\0';
}

static const char *status_field(const char *status, const char *name)
{
	const char *at = strstr(status, name);

	return at ? at + strlen(name) : NULL;
}

static int look_at_status(struct target *target, int dir)
{
	size_t bytes;
	char *status = read_proc(dir, "status", &bytes);
	const char *at;
	unsigned uid;

	if (!status)
		return -errno;
	if (sscanf(status, "Name:\t%15[^\n]", target->comm) != 1)
		strcpy(target->comm, "?");
	if ((at = status_field(status, "\nState:\t")))
		target->state = *at;
	if ((at = status_field(status, "\nPPid:\t")))
		target->parent = (pid_t)strtol(at, NULL, 10);
	if ((at = status_field(status, "\nUid:\t")) && sscanf(at, "%*u %u", &uid) == 1)
		target->uid = uid;
	target->inner_pid = target->pid;
	if ((at = status_field(status, "\nNSpid:")))
		for (char *end; *at && *at != '\n'; at = end) {
			long pid = strtol(at, &end, 10);

			if (end == at)
				break;
			target->inner_pid = (pid_t)pid;
		}
	free(status);
	return 0;
}

static const char *env_get(const char *env, size_t bytes, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = env; at < env + bytes; at += strlen(at) + 1)
		if (strncmp(at, name, len) == 0 && at[len] == '=')
			return at + len + 1;
	return NULL;
}

static void look_at_environ(struct target *target, int dir)
{
	size_t bytes = 0;
	char *env = read_proc(dir, "environ", &bytes);
	const char *place = env ? env_get(env, bytes, "SYSTRACE_SOCKET_DIR") : NULL;
	const char *enable = env ? env_get(env, bytes, "SYSTRACE_ENABLE") : NULL;

	if (!place || !*place)
		place = DEFAULT_SOCKET_DIR;
	if (*place != '/')
		err_set(&target->err, -EINVAL, "its SYSTRACE_SOCKET_DIR=%.80s is not an absolute path", place);
	if (strlen(place) > sizeof(target->socket) - 48)
		err_set(&target->err, -ENAMETOOLONG, "its SYSTRACE_SOCKET_DIR is longer than %zu bytes",
			sizeof(target->socket) - 48);
	snprintf(target->socket, sizeof(target->socket), "%.*s/sysTrace_%d.sock", (int)(sizeof(target->socket) - 48),
		 strcmp(place, "/") == 0 ? "" : place, (int)target->inner_pid);
	snprintf(target->enable, sizeof(target->enable), "%s", enable ? enable : "");
	free(env);
}

static int ns_of(int dir, struct ns_id *id)
{
	struct stat ns, root;

	if (fstatat(dir, "ns/mnt", &ns, 0) < 0 || fstatat(dir, "root", &root, 0) < 0)
		return -errno;
	*id = (struct ns_id){ ns.st_dev, root.st_dev, ns.st_ino, root.st_ino };
	return 0;
}

static bool same_ns(const struct ns_id *a, const struct ns_id *b)
{
	return a->ns_dev == b->ns_dev && a->ns_ino == b->ns_ino && a->root_dev == b->root_dev &&
	       a->root_ino == b->root_ino;
}

/* --- its socket ---------------------------------------------------------------------------------------------------- */

/*
 * Open the socket file below the process's root. Links are refused where following one could lead this program to
 * something the process itself may not reach: in containers, and for root at another user's process.
 */
static int open_socket(const struct target *target, int dir, const char *path)
{
	bool guarded = target->foreign || (geteuid() == 0 && target->uid != 0);
	struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (guarded ? RESOLVE_NO_SYMLINKS : 0),
	};
	int root = target->foreign ? openat(dir, "root", O_PATH | O_DIRECTORY | O_CLOEXEC)
				   : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	int fd, saved;

	if (root < 0)
		return -errno;
	fd = compat_openat2(root, path, &how);
	if (fd < 0 && (errno == ENOSYS || errno == EPERM) && !guarded)
		fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	saved = errno;
	close(root);
	if (fd < 0)
		return -saved;
	if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode)) {
		close(fd);
		return -ENOTSOCK;
	}
	return fd;
}

static void socket_failed(struct target *target, int code)
{
	switch (-code) {
	case ELOOP:
		err_set(&target->err, code,
			"its socket path contains a symbolic link, which root does not follow; set "
			"SYSTRACE_SOCKET_DIR to the real path, or run sysTrace_cli as the job's user");
		break;
	case EACCES:
	case EPERM:
		err_set(&target->err, code, "permission denied; run sysTrace_cli as root or as the job's user");
		break;
	case ENOSYS:
		err_set(&target->err, code,
			"containers need openat2, which this kernel lacks (5.6 or newer has it); run "
			"sysTrace_cli inside the container");
		break;
	default:
		err_set(&target->err, code, "cannot open its socket: %s", strerror(-code));
		break;
	}
}

/* Is it this process that listens there? A connection that is closed at once, made without waiting. */
static bool listens(const struct target *target, int socket_fd)
{
	int fd = socket_fd < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t len = sizeof(peer);

	if (fd < 0)
		return false;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d", socket_fd);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		peer.pid = 0;
	close(fd);
	return peer.pid == target->pid;
}

/*
 * An agent whose name somebody else has (another container that shares the directory, or a squatter) adds its pid
 * namespace. @fd: of the usual name or -errno; the same is returned, or that of the other name if it is the better one.
 */
static int try_other_name(struct target *target, int dir, int fd)
{
	char path[sizeof(target->socket)];
	struct stat st;
	int other;

	if (fstatat(dir, "ns/pid", &st, 0) < 0)
		return fd;
	snprintf(path, sizeof(path), "%.*s-%llu.sock", (int)(strlen(target->socket) - strlen(".sock")), target->socket,
		 (unsigned long long)st.st_ino);
	other = open_socket(target, dir, path);
	if (other < 0)
		return fd;
	if (fd == -ENOENT || (!listens(target, fd) && listens(target, other))) {
		if (fd >= 0)
			close(fd);
		memcpy(target->socket, path, sizeof(path));
		return other;
	}
	close(other);
	return fd;
}

static void look_at_socket(struct target *target, int dir)
{
	int fd = -1;

	target->kind = TARGET_AGENT;
	if (target->err.code == 0)
		fd = try_other_name(target, dir, open_socket(target, dir, target->socket));
	snprintf(target->shown, sizeof(target->shown), "%s", target->socket);
	if (target->foreign)
		snprintf(target->shown, sizeof(target->shown), "/proc/%d/root%s", (int)target->pid, target->socket);
	if (target->err.code < 0)
		return;
	if (fd >= 0)
		target->socket_fd = fd;
	else if (fd == -ENOENT || fd == -ENOTDIR)
		target->kind = target->python || target->runtime ? TARGET_DORMANT : TARGET_INERT;
	else
		socket_failed(target, fd);
}

/* --- all of them --------------------------------------------------------------------------------------------------- */

static int add_target(struct targets *targets, const struct target *target)
{
	struct target *list = realloc(targets->list, (targets->count + 1) * sizeof(*list));

	if (!list)
		return -ENOMEM;
	targets->list = list;
	list[targets->count++] = *target;
	return 0;
}

/* One process; those that vanish meanwhile are left out. Return: 0 or -ENOMEM. */
static int look_at(struct targets *targets, pid_t pid, int dir, const struct ns_id *own)
{
	struct target target = { .pid = pid, .socket_fd = -1 };
	struct ns_id ns = { 0 };
	int ret;

	if (!look_at_maps(&target, dir, &targets->hidden))
		return 0;
	if (look_at_status(&target, dir) < 0)
		return 0;
	if (ns_of(dir, &ns) == 0)
		target.foreign = !same_ns(&ns, own);
	look_at_environ(&target, dir);
	look_at_socket(&target, dir);
	ret = add_target(targets, &target);
	if (ret < 0 && target.socket_fd >= 0)
		close(target.socket_fd);
	return ret;
}

static int by_pid(const void *a, const void *b)
{
	const struct target *left = a, *right = b;

	return (left->pid > right->pid) - (left->pid < right->pid);
}

/* A process without a socket whose parent has one was forked from it: its records go through the parent's pool. */
static void mark_children(struct targets *targets)
{
	for (size_t i = 0; i < targets->count; i++) {
		struct target *target = &targets->list[i];
		const struct target *parent = targets_get(targets, target->parent);

		if (target->kind == TARGET_DORMANT && parent && parent->inner_pid != target->inner_pid &&
		    (parent->kind == TARGET_AGENT || parent->kind == TARGET_CHILD) &&
		    strcmp(parent->library, target->library) == 0)
			target->kind = TARGET_CHILD;
	}
}

int targets_find(struct targets *targets, struct st_err *err)
{
	struct dirent *entry;
	struct ns_id own;
	int self, ret = 0;
	DIR *proc;

	*targets = (struct targets){ 0 };
	proc = opendir("/proc");
	if (!proc)
		return err_set(err, -errno, "cannot read /proc: %s", strerror(errno));
	self = openat(dirfd(proc), "self", O_PATH | O_DIRECTORY | O_CLOEXEC);
	ret = self < 0 ? -errno : ns_of(self, &own);
	if (self >= 0)
		close(self);
	if (ret < 0)
		err_set(err, ret, "cannot read /proc/self: %s", strerror(-ret));
	while (ret == 0 && (entry = readdir(proc))) {
		uint64_t pid;
		int dir;

		if (num_u64(entry->d_name, &pid) < 0 || (pid_t)pid == getpid())
			continue;
		dir = openat(dirfd(proc), entry->d_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (dir < 0)
			continue;
		ret = look_at(targets, (pid_t)pid, dir, &own);
		if (ret < 0)
			err_set(err, ret, "out of memory");
		close(dir);
	}
	closedir(proc);
	if (targets->count)
		qsort(targets->list, targets->count, sizeof(*targets->list), by_pid);
	mark_children(targets);
	return ret;
}

void targets_free(struct targets *targets)
{
	for (size_t i = 0; i < targets->count; i++)
		if (targets->list[i].socket_fd >= 0)
			close(targets->list[i].socket_fd);
	free(targets->list);
	*targets = (struct targets){ 0 };
}

struct target *targets_get(const struct targets *targets, pid_t pid)
{
	struct target key = { .pid = pid };

	if (!targets->count)
		return NULL;
	return bsearch(&key, targets->list, targets->count, sizeof(key), by_pid);
}

size_t targets_count(const struct targets *targets, enum target_kind kind)
{
	size_t count = 0;

	for (size_t i = 0; i < targets->count; i++)
		count += targets->list[i].kind == kind;
	return count;
}
