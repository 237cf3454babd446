/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Opening a job's directory with the job's rights; see user_dir.h. */
#include "cli/user_dir.h"

#include "cli/compat_openat2.h"
#include "safe/clock.h"
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 5000
#define GROUPS_MAX 256
#define PATH_ROOM 1024

/** struct reply - what the child says; the descriptors come along */
struct reply {
	int code;
	int has_file;
	char what[PATH_ROOM];
};

/* Supplementary groups as the process has them: its directory may be a group's. */
static int take_groups(pid_t pid)
{
	char path[40], text[4096], *at, *end;
	gid_t groups[GROUPS_MAX];
	size_t count = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (sys_read_file(path, text, sizeof(text)) <= 0 || !(at = strstr(text, "\nGroups:")))
		return setgroups(0, NULL);
	for (at += strlen("\nGroups:"); *at && *at != '\n' && count < GROUPS_MAX; at = end) {
		unsigned long group = strtoul(at, &end, 10);

		if (end == at)
			break;
		groups[count++] = (gid_t)group;
	}
	return setgroups(count, groups);
}

static int become(pid_t pid, uid_t uid, gid_t gid)
{
	if (geteuid() != 0 && uid == geteuid())
		return 0;
	if ((pid ? take_groups(pid) : setgroups(0, NULL)) < 0 || setresgid(gid, gid, gid) < 0 ||
	    setresuid(uid, uid, uid) < 0)
		return -errno;
	return 0;
}

static int open_in(int root, const char *path, uint64_t flags)
{
	/* the user's own links are its own affair; root's lead nowhere out of the job's root */
	struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	int fd = compat_openat2(root, path, &how);

	return fd < 0 ? -errno : fd;
}

/* Open the directory step by step, making what is missing. @what: gets the part that failed. */
static int make_and_open(int root, const char *path, char *what)
{
	char part[PATH_ROOM];
	size_t len = 0;
	int dir = open_in(root, "/", O_PATH | O_DIRECTORY);

	while (dir >= 0 && path[len]) {
		size_t skip = strspn(path + len, "/"), span = strcspn(path + len + skip, "/");
		char name[256];
		int next;

		if (!span)
			break;
		if (span >= sizeof(name) || len + skip + span >= sizeof(part)) {
			close(dir);
			return -ENAMETOOLONG;
		}
		memcpy(name, path + len + skip, span);
		name[span] = '\0';
		len += skip + span;
		memcpy(part, path, len);
		part[len] = '\0';
		snprintf(what, PATH_ROOM, "%s", part);
		next = open_in(root, part, O_PATH | O_DIRECTORY);
		if (next == -ENOENT && (mkdirat(dir, name, 0755) == 0 || errno == EEXIST))
			next = open_in(root, part, O_PATH | O_DIRECTORY);
		else if (next == -ENOENT)
			next = -errno;
		close(dir);
		dir = next;
	}
	return dir;
}

static void send_reply(int out, const struct reply *reply, const int *fds, size_t count)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec io = { (void *)(uintptr_t)reply, sizeof(*reply) };
	struct msghdr head = { .msg_iov = &io, .msg_iovlen = 1 };

	if (count) {
		struct cmsghdr *c;

		head.msg_control = control.bytes;
		head.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c = CMSG_FIRSTHDR(&head);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	(void)!sendmsg(out, &head, MSG_NOSIGNAL);
}

static void child(int out, pid_t pid, uid_t uid, gid_t gid, const char *path, const char *file)
{
	struct reply reply = { 0 };
	char proc[40] = "/";
	int fds[2] = { -1, -1 }, root;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	umask(022);
	if (pid)
		snprintf(proc, sizeof(proc), "/proc/%d/root", (int)pid);
	root = open(proc, O_PATH | O_DIRECTORY | O_CLOEXEC);
	snprintf(reply.what, sizeof(reply.what), "%s", proc);
	reply.code = root < 0 ? -errno : become(pid, uid, gid);
	if (reply.code == 0) {
		fds[0] = make_and_open(root, path, reply.what);
		reply.code = fds[0] < 0 ? fds[0] : 0;
	}
	/* may it be written to at all? O_PATH asks nothing */
	if (reply.code == 0 && faccessat(fds[0], ".", W_OK | X_OK, 0) < 0)
		reply.code = -errno;
	if (reply.code == 0 && file)
		fds[1] = open_in(root, file, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
	reply.has_file = fds[1] >= 0;
	send_reply(out, &reply, fds, reply.code < 0 ? 0 : reply.has_file ? 2 : 1);
	_exit(0);
}

static int receive(int in, struct reply *reply, int *fds)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec io = { reply, sizeof(*reply) };
	struct msghdr head = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	struct pollfd wait = { .fd = in, .events = POLLIN };
	struct cmsghdr *c;

	if (poll(&wait, 1, WAIT_MS) <= 0)
		return -ETIMEDOUT;
	if (recvmsg(in, &head, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*reply))
		return -EIO;
	for (c = CMSG_FIRSTHDR(&head); c; c = CMSG_NXTHDR(&head, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	return reply->code;
}

int user_dir_open(pid_t pid, uid_t uid, gid_t gid, const char *path, const char *file, int *file_fd, struct st_err *err)
{
	struct reply reply = { 0 };
	int pair[2], fds[2] = { -1, -1 }, ret;
	pid_t one;

	*file_fd = -1;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_set(err, -errno, "%s", strerror(errno));
	fflush(NULL);
	one = fork();
	if (one == 0)
		child(pair[1], pid, uid, gid, path, file);
	close(pair[1]);
	ret = one < 0 ? -errno : receive(pair[0], &reply, fds);
	close(pair[0]);
	if (one > 0) {
		if (ret == -ETIMEDOUT)
			kill(one, SIGKILL);
		waitpid(one, NULL, ret == -ETIMEDOUT ? WNOHANG : 0);
	}
	if (ret == -ETIMEDOUT)
		return err_set(err, ret, "the file system of %s does not answer", path);
	if (ret < 0)
		return err_set(err, ret, "cannot write to %s as user %u: %s%s%s", path, (unsigned int)uid,
			       strcmp(path, reply.what) && reply.what[0] ? reply.what : "",
			       strcmp(path, reply.what) && reply.what[0] ? ": " : "", strerror(-ret));
	*file_fd = fds[1];
	return fds[0];
}
