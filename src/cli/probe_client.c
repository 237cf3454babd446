/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Starting probes and talking to them; see probe_client.h. */
#include "cli/probe_client.h"

#include "cli/build_info.h"
#include "probe/frame.h"
#include "safe/clock.h"
#include "wire/env_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRIES 5
#define START_WAIT_MS 20000
#define READY_FD 3

/* --- starting ---------------------------------------------------------------------------------------------------------- */

static int open_log(const char *group)
{
	const char *dir = getenv(env_specs[ENV_LOG_PATH].name);
	char path[512];
	int fd;

	if (!dir || *dir != '/')
		dir = env_specs[ENV_LOG_PATH].initial;
	mkdir(dir, 0755);
	snprintf(path, sizeof(path), "%s/systrace_probe_%s.log", dir, group);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
	return fd >= 0 ? fd : open("/dev/null", O_WRONLY | O_CLOEXEC);
}

static void be_probe(const char *program, const char *group, int ready)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), log = open_log(group);
	char name[] = "systrace", command[] = "probe", option[] = "--ready-fd", number[8], kind[32];
	char *argv[] = { name, command, kind, option, number, NULL };
	sigset_t none;

	snprintf(kind, sizeof(kind), "%s", group);
	snprintf(number, sizeof(number), "%d", READY_FD);
	setsid();
	if (fork() != 0)
		_exit(0);
	(void)!chdir("/");
	umask(022);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (ready == READY_FD)
		fcntl(ready, F_SETFD, 0);
	else
		dup2(ready, READY_FD);
	dup2(null, 0);
	dup2(null, 1);
	dup2(log, 2);
	/* descriptors of the operator's shell are not the probe's business */
	for (int fd = READY_FD + 1; fd < 1024; fd++)
		close(fd);
	execv(program, argv);
	(void)!write(READY_FD, "cannot start the probe", 22);
	_exit(127);
}

/* Read what the probe says when it is ready, or why it will not be. */
static int wait_ready(int fd, struct st_err *err)
{
	char text[400] = "";
	size_t used = 0;
	ssize_t got = -1;

	while (used < sizeof(text) - 1) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };

		if (poll(&wait, 1, START_WAIT_MS) <= 0)
			return err_set(err, -ETIMEDOUT, "the probe did not start within %d s", START_WAIT_MS / 1000);
		got = read(fd, text + used, sizeof(text) - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	if (strcmp(text, "ready") == 0 || strcmp(text, "running") == 0)
		return 0;
	return err_set(err, -EIO, "the probe did not start: %s", text[0] ? text : "it ended at once; see its log");
}

static int start_probe(const char *group, struct st_err *err)
{
	char program[600] = "systrace";
	int pipes[2], ret = build_systrace(program, sizeof(program));
	pid_t pid;

	if (ret < 0)
		return err_set(err, ret, "cannot start the probe: %s: %s", program, strerror(-ret));
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return err_set(err, -errno, "%s", strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		be_probe(program, group, pipes[1]);
	close(pipes[1]);
	ret = pid < 0 ? err_set(err, -errno, "%s", strerror(errno)) : wait_ready(pipes[0], err);
	close(pipes[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return ret;
}

/* --- talking ----------------------------------------------------------------------------------------------------------- */

static int connect_to(const char *path, uint64_t timeout_ns, struct st_err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = (time_t)(timeout_ns / 1000000000u) + 1 };
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ret;

	if (strlen(path) >= sizeof(addr.sun_path)) {
		close(fd);
		return err_set(err, -ENAMETOOLONG, "%s is longer than a socket's name may be", path);
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		ret = -errno;
		if (fd >= 0)
			close(fd);
		if (ret == -ENOENT || ret == -ECONNREFUSED)
			return err_set(err, -ENOENT, "no probe runs");
		return err_set(err, ret, "cannot reach the probe at %s: %s", path, strerror(-ret));
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || (peer.uid != 0 && peer.uid != geteuid())) {
		close(fd);
		return err_set(err, -EPERM, "%s belongs to another user's process; nothing was sent", path);
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return fd;
}

static int send_request(int fd, const uint8_t *request, uint32_t bytes, const int *fds, size_t fd_count)
{
	union {
		char bytes[CMSG_SPACE(PROBE_SEND_FDS * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec io = { (void *)(uintptr_t)request, bytes };
	struct msghdr head = { .msg_iov = &io, .msg_iovlen = 1 };
	ssize_t sent;

	if (fd_count) {
		struct cmsghdr *c;

		head.msg_control = control.bytes;
		head.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		c = CMSG_FIRSTHDR(&head);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
	}
	sent = sendmsg(fd, &head, MSG_NOSIGNAL);
	while (sent > 0 && (uint32_t)sent < bytes) {
		request += sent;
		bytes -= (uint32_t)sent;
		sent = send(fd, request, bytes, MSG_NOSIGNAL);
	}
	return sent < 0 ? -errno : 0;
}

static int read_all(int fd, uint8_t *data, uint32_t bytes)
{
	while (bytes) {
		ssize_t got = recv(fd, data, bytes, 0);

		if (got <= 0)
			return got == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;
		data += got;
		bytes -= (uint32_t)got;
	}
	return 0;
}

static int read_answer(int fd, struct ctl_call *call)
{
	int ret = read_all(fd, call->head, CTL_FRAME_BYTES);
	char code[16] = "";

	if (ret == 0)
		ret = ctl_frame_decode(call->head, &call->frame);
	if (ret < 0)
		return ret;
	call->payload = malloc(call->frame.payload_bytes + 1u);
	if (!call->payload)
		return -ENOMEM;
	ret = read_all(fd, call->payload, call->frame.payload_bytes);
	if (ret < 0)
		return ret;
	if (ctl_check(call->payload, call->frame.payload_bytes) < 0 ||
	    !ctl_call_get(call, CTL_KEY_CODE, code, sizeof(code)))
		return -EPROTO;
	ctl_call_get(call, CTL_KEY_TEXT, call->text, sizeof(call->text));
	if (strcmp(code, "0") != 0)
		err_set(&call->err, atoi(code), "%s", call->text[0] ? call->text : strerror(-atoi(code)));
	return 0;
}

static void explain(struct ctl_call *call, int ret)
{
	if (ret == -ETIMEDOUT)
		err_set(&call->err, ret, "the probe does not answer; see its log (systrace_probe_*.log in %s)",
			env_specs[ENV_LOG_PATH].initial);
	else if (ret == -EPROTO || ret == -EPROTONOSUPPORT)
		err_set(&call->err, ret, "what answered is not a probe of this release");
	else
		err_set(&call->err, ret, "the probe ended without an answer: %s", strerror(-ret));
}

int probe_client_ask(const char *group, bool start, const void *request, uint32_t bytes, const int *fds,
		     size_t fd_count, uint64_t timeout_ns, struct ctl_call *call)
{
	char path[256];
	int ret = -ECONNRESET;

	probe_socket_path(group, path, sizeof(path));
	/* one that is just ending may let a connection die: then another is started */
	for (int i = 0; i < TRIES && ret == -ECONNRESET; i++) {
		struct st_err err = { 0 };
		int fd = connect_to(path, timeout_ns, &err);

		if (fd == -ENOENT && start) {
			if (start_probe(group, &err) < 0) {
				call->err = err;
				return err.code;
			}
			fd = connect_to(path, timeout_ns, &err);
		}
		if (fd < 0 && fd == -ENOENT && start) {
			usleep(20000); /* between its lock and its socket, or it has just ended */
			continue;
		}
		if (fd < 0) {
			call->err = err;
			return err.code;
		}
		ret = send_request(fd, request, bytes, fds, fd_count);
		ret = ret == -EPIPE ? -ECONNRESET : ret;
		if (ret == 0)
			ret = read_answer(fd, call);
		close(fd);
	}
	if (ret < 0)
		explain(call, ret);
	return call->err.code;
}
