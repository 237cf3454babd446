/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The control socket; see ctl_server.h. Everything is bounded: clients, frames, the time a client may take. Clients are
 * served in one poll loop and nobody is waited for, so that one who stalls, lies or sends garbage only loses its own
 * connection.
 */
#include "agent/ctl_server.h"

#include "agent/ctl_answer.h"
#include "agent/env.h"
#include "agent/identity.h"
#include "agent/life.h"
#include "agent/plugin_frame.h"
#include "agent/threads.h"
#include "base/fault.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "safe/siglog.h"
#include "spool/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 16
#define BACKLOG 128
#define CLIENT_LIMIT_NS 5000000000u /* for a whole request, and for taking the answer */
#define ANSWER_LIMIT_NS 15000000000u /* for the io thread */
#define WAIT_POLL_MS 5 /* while somebody waits for the io thread, or a plugin for a step */
#define LONG_POLL_MS 500
#define INLINE_BYTES 4096 /* requests are short; a longer one gets pages of its own */
#define REOPEN_NS 10000000000u
#define UNMAPPED_UID 65534u /* overflowuid */
#define NO_SLOT_NS 20000000u /* pause when the process has no descriptor left for a client */

struct client {
	int fd; /* -1 = slot free */
	ino_t socket; /* inode of the descriptor */
	uint64_t deadline_ns;
	uint64_t turn; /* n-th request of all clients, or connection: who came first where deadlines are the same */
	uint32_t used; /* bytes of the request so far */
	struct ctl_frame frame;
	uint8_t *big; /* whole frame when it is longer than the buffer; mmap */
	uint8_t *out; /* rest of an answer that did not go out at once; mmap */
	uint32_t out_bytes, out_sent;
	struct ctl_wait wait;
	uint8_t buffer[INLINE_BYTES];
};

static struct {
	int fd;
	ino_t socket; /* inode of the descriptor; .ino is the name's */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 512];
	dev_t dev;
	ino_t ino;
	uint64_t reopen_ns;
	bool failed; /* said once */
	uint64_t turns;
	struct client *client; /* CLIENTS of them, mmap */
	uint8_t *answer; /* CTL_FRAME_BYTES + CTL_MAX_PAYLOAD, mmap */
} ctl = { .fd = -1 };

static _Atomic uint32_t ready;

const char *ctl_socket_path(void)
{
	return ctl.fd >= 0 ? ctl.path : "";
}

static ino_t inode_of(int fd)
{
	struct stat st;

	return sys_fstat(fd, &st) ? 0 : st.st_ino;
}

/* Where our threads share the job's descriptor table, the job may have closed ours and opened another of that number. */
static bool still_ours(int fd, ino_t socket)
{
	return fd >= 0 && (threads_own_files() || inode_of(fd) == socket);
}

static void close_ours(int fd, ino_t socket)
{
	if (still_ours(fd, socket))
		close(fd);
}

static void *pages(size_t bytes)
{
	void *p = FAULT("ctl.pages") ? MAP_FAILED
				     : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* --- the socket's name ----------------------------------------------------------------------------------------------- */

/* Through the directory's descriptor; not inlined, since exit() inside a signal handler may have a tiny stack. */
static __attribute__((noinline)) int long_address_of(const char *path, struct sockaddr_un *addr, int *dir)
{
	const char *name = strrchr(path, '/') + 1;
	char parent[512];

	snprintf(parent, sizeof(parent), "%.*s", (int)(name - path), path);
	*dir = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*dir < 0)
		return -errno;
	if (snprintf(addr->sun_path, sizeof(addr->sun_path), "/proc/thread-self/fd/%d/%s", *dir, name) >=
	    (int)sizeof(addr->sun_path))
		return -ENAMETOOLONG;
	return 0;
}

/* For a path longer than sun_path @dir, which is -1 before, gets a descriptor; the caller closes it. */
static int address_of(const char *path, struct sockaddr_un *addr, int *dir)
{
	*addr = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(addr->sun_path))
		return long_address_of(path, addr, dir);
	strcpy(addr->sun_path, path);
	return 0;
}

static int bind_name(int fd, const char *path)
{
	struct sockaddr_un addr;
	int dir = -1;
	int ret = address_of(path, &addr, &dir);

	if (ret < 0)
		goto out;
	if (!FAULT("ctl.bind") && !bind(fd, (struct sockaddr *)&addr, sizeof(addr)))
		goto out;
	ret = -errno;
	if (ret != -EADDRINUSE)
		goto out;
	/* left by a dead process of ours? */
	if (!socket_is_dead(path))
		goto out;
	unlink(path);
	ret = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
out:
	if (dir >= 0)
		close(dir);
	return ret;
}

/* The documented name; a second pid 1 that shares the directory (containers) adds its pid namespace. */
static int bind_socket(int fd)
{
	const char *dir = env.text[ENV_SOCKET_DIR];
	int ret;

	snprintf(ctl.path, sizeof(ctl.path), "%s/sysTrace_%u.sock", dir, identity.pid);
	mkdir(dir, 0755);
	ret = bind_name(fd, ctl.path);
	if (ret != -EADDRINUSE)
		return ret;
	snprintf(ctl.path, sizeof(ctl.path), "%s/sysTrace_%u-%llu.sock", dir, identity.pid,
		 (unsigned long long)identity.pidns);
	return bind_name(fd, ctl.path);
}

/* A umask that takes rights from us too: put them back, on the socket's own file and on no other. */
static int repair_mode(void)
{
	int fd = FAULT("ctl.mode") ? -1 : open(ctl.path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char link[48];
	struct stat st;
	int ret = fd < 0 ? -errno : sys_fstat(fd, &st);

	if (!ret && (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid()))
		ret = -ESTALE;
	snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", fd);
	if (!ret && (st.st_mode & 0777) != 0600 && chmod(link, 0600))
		ret = -errno;
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Right after bind(): which file the name is. */
static bool note_name(void)
{
	struct stat st;

	if (lstat(ctl.path, &st))
		return false;
	ctl.dev = st.st_dev;
	ctl.ino = st.st_ino;
	return true;
}

static bool name_is_ours(void)
{
	struct stat st;

	return ctl.path[0] && !lstat(ctl.path, &st) && st.st_ino == ctl.ino && st.st_dev == ctl.dev;
}

static void open_socket(void)
{
	bool bound = false;
	int fd = FAULT("ctl.socket") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int ret = fd < 0 ? -errno : 0;

	ctl.reopen_ns = clock_mono_ns() + REOPEN_NS;
	/* bind() gives the file the mode of the unbound socket: a chmod by name could meet what somebody put there since */
	if (!ret && (FAULT("ctl.chmod") || fchmod(fd, 0600)))
		ret = -errno;
	if (!ret)
		ret = bind_socket(fd);
	if (!ret)
		bound = note_name();
	if (!ret)
		ret = repair_mode();
	if (!ret && (FAULT("ctl.listen") || listen(fd, BACKLOG)))
		ret = -errno;
	if (ret) {
		if (!ctl.failed)
			siglog(SIGLOG_ERROR, "ctl",
			       "no control socket %s: error %d; set SYSTRACE_SOCKET_DIR to a "
			       "directory this user may write to",
			       ctl.path, -ret);
		ctl.failed = true;
		if (bound && name_is_ours())
			unlink(ctl.path);
		if (fd >= 0)
			close(fd);
		return;
	}
	ctl.failed = false;
	ctl.socket = inode_of(fd);
	ctl.fd = fd;
}

/* Cleaners of /tmp remove sockets, too. */
static void keep_socket(uint64_t now_ns)
{
	if (ctl.fd >= 0 && !still_ours(ctl.fd, ctl.socket)) {
		ctl.fd = -1;
		ctl.reopen_ns = 0;
	}
	if (now_ns < ctl.reopen_ns)
		return;
	ctl.reopen_ns = now_ns + REOPEN_NS;
	if (ctl.fd >= 0) {
		if (name_is_ours())
			return;
		close_ours(ctl.fd, ctl.socket);
		ctl.fd = -1;
	}
	open_socket();
}

/* Its descriptors are out of reach for other threads: a connection ends the thread's poll. */
static void ring(void)
{
	struct sockaddr_un addr;
	int dir = -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && !address_of(ctl.path, &addr, &dir))
		(void)!connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
}

void ctl_stop(void)
{
	if (!name_is_ours())
		return;
	ring();
	unlink(ctl.path);
}

void ctl_after_fork(void)
{
	ctl.fd = -1;
	ctl.path[0] = 0;
	ctl.ino = 0;
	ctl.client = NULL;
	ctl.answer = NULL;
	ctl.failed = false;
	atomic_store_explicit(&ready, 0, memory_order_relaxed);
}

/* --- clients --------------------------------------------------------------------------------------------------------- */

static void drop_big(struct client *c)
{
	if (c->big)
		munmap(c->big, CTL_FRAME_BYTES + (size_t)c->frame.payload_bytes);
	c->big = NULL;
}

static void drop_out(struct client *c)
{
	if (c->out)
		munmap(c->out, c->out_bytes);
	c->out = NULL;
	c->out_bytes = 0;
	c->out_sent = 0;
}

static void hang_up(struct client *c)
{
	drop_big(c);
	drop_out(c);
	close_ours(c->fd, c->socket);
	c->fd = -1;
	c->used = 0;
	c->wait.waits = false;
}

/* Are there users without a number here (a user namespace that maps but some)? They all show as UNMAPPED_UID. */
static bool some_are_unmapped(void)
{
	char map[128];

	return sys_read_file("/proc/self/uid_map", map, sizeof(map)) > 0 && !strstr(map, "4294967295");
}

/*
 * Our own user and root. Root of the host has no number in a container that maps users; that it got through the
 * socket's mode 0600, which the kernel checks with real identities, shows who it is.
 */
static bool peer_allowed(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (FAULT("ctl.peer") || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return false;
	return peer.uid == 0 || peer.uid == geteuid() || (peer.uid == UNMAPPED_UID && some_are_unmapped());
}

static bool earlier(const struct client *a, const struct client *b)
{
	return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->turn < b->turn;
}

/* The client that has kept us waiting for longest; NULL: nobody does, all are being served. */
static struct client *longest_silent(void)
{
	struct client *best = NULL;
	int i;

	for (i = 0; i < CLIENTS; i++) {
		struct client *c = &ctl.client[i];

		if (c->fd >= 0 && !c->wait.waits && !c->out && (!best || earlier(c, best)))
			best = c;
	}
	return best;
}

/* A free slot; with none, that of the client that has said least for longest. NULL: all are being served. */
static struct client *slot_for_new(void)
{
	struct client *silent;
	int i;

	for (i = 0; i < CLIENTS; i++) {
		if (ctl.client[i].fd < 0)
			return &ctl.client[i];
	}
	silent = longest_silent();
	if (silent)
		hang_up(silent);
	return silent;
}

/* accept4, making room when the limit of open descriptors (the host's RLIMIT_NOFILE) is reached before CLIENTS is. */
static int accept_one(void)
{
	int fd = FAULT("ctl.accept") ? -1 : accept4(ctl.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct pollfd door = { .fd = ctl.fd, .events = POLLIN };
	struct client *silent;

	if (fd >= 0 || (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS))
		return fd;
	if (poll(&door, 1, 0) <= 0)
		return -1; /* a number is looked for before a connection is */
	silent = longest_silent();
	if (!silent) {
		thread_sleep(THREAD_CTL, NO_SLOT_NS); /* the listening socket stays readable: do not spin on it */
		return -1;
	}
	hang_up(silent);
	return accept4(ctl.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* One that waits at the door. Return: was there one? */
static bool accept_client(uint64_t now_ns)
{
	struct client *c;
	int fd = accept_one();

	if (fd < 0)
		return false;
	c = peer_allowed(fd) ? slot_for_new() : NULL;
	if (!c) {
		close(fd);
		return true;
	}
	c->fd = fd;
	c->socket = inode_of(fd);
	c->used = 0;
	c->turn = ctl.turns++;
	c->deadline_ns = now_ns + CLIENT_LIMIT_NS;
	return true;
}

static void send_more(struct client *c)
{
	ssize_t sent = FAULT("ctl.send_more")
			       ? -1
			       : send(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent, MSG_NOSIGNAL);

	if (sent < 0 && errno != EAGAIN && errno != EINTR) {
		hang_up(c);
		return;
	}
	if (sent > 0)
		c->out_sent += (uint32_t)sent;
	if (c->out_sent == c->out_bytes)
		drop_out(c);
}

/* What the socket does not take at once is kept: the answer's memory is shared by all clients. */
static void send_answer(struct client *c, struct ctl_msg *answer)
{
	int bytes = ctl_finish(answer);
	ssize_t sent;

	if (bytes < 0) {
		hang_up(c);
		return;
	}
	c->deadline_ns = clock_mono_ns() + CLIENT_LIMIT_NS;
	sent = FAULT("ctl.send") ? -1 : send(c->fd, answer->data, (size_t)bytes, MSG_NOSIGNAL);
	if (sent == bytes)
		return;
	if (sent < 0 && errno != EAGAIN && errno != EINTR) {
		hang_up(c);
		return;
	}
	c->out_bytes = (uint32_t)(bytes - (sent > 0 ? sent : 0));
	c->out = pages(c->out_bytes);
	if (!c->out) {
		hang_up(c);
		return;
	}
	memcpy(c->out, answer->data + (sent > 0 ? sent : 0), c->out_bytes);
}

static void begin_answer(struct ctl_msg *answer, const struct ctl_frame *frame)
{
	ctl_begin(answer, ctl.answer, CTL_FRAME_BYTES + CTL_MAX_PAYLOAD, frame->verb | CTL_ANSWER, frame->sequence);
}

static void serve(struct client *c)
{
	const uint8_t *frame = c->big ? c->big : c->buffer;
	struct ctl_msg answer;

	c->wait = (struct ctl_wait){ .verb = c->frame.verb };
	begin_answer(&answer, &c->frame);
	ctl_answer(&c->frame, frame + CTL_FRAME_BYTES, &answer, &c->wait);
	drop_big(c);
	c->used = 0;
	if (c->wait.waits)
		c->deadline_ns = clock_mono_ns() + ANSWER_LIMIT_NS;
	else
		send_answer(c, &answer);
}

/* Another version, or no client of ours at all: say so if it may understand, and hang up. */
static void refuse(struct client *c, int code)
{
	struct ctl_msg answer;

	begin_answer(&answer, &c->frame);
	ctl_addf(&answer, CTL_KEY_CODE, "%d", code);
	ctl_add(&answer, CTL_KEY_TEXT,
		code == -EPROTONOSUPPORT ? "another protocol version is spoken here; use the "
					   "sysTrace_cli of the same release as libsysTrace.so"
					 : "the request is not a valid control message");
	send_answer(c, &answer);
	hang_up(c);
}

static void read_client(struct client *c)
{
	uint32_t want = CTL_FRAME_BYTES;
	uint8_t *to = c->big ? c->big : c->buffer;
	ssize_t got;
	int ret;

	if (c->used >= CTL_FRAME_BYTES)
		want += c->frame.payload_bytes;
	/* without room for control data the kernel closes descriptors that a client sends along: nothing of it gets here */
	got = FAULT("ctl.recv") ? -1 : recv(c->fd, to + c->used, want - c->used, 0);
	if (got <= 0) {
		if (got == 0 || (errno != EAGAIN && errno != EINTR))
			hang_up(c);
		return;
	}
	c->used += (uint32_t)got;
	if (c->used < want)
		return;
	if (want == CTL_FRAME_BYTES) {
		ret = ctl_frame_decode(c->buffer, &c->frame);
		if (ret < 0) {
			refuse(c, ret);
			return;
		}
		want += c->frame.payload_bytes;
		if (want > INLINE_BYTES) {
			c->big = pages(want);
			if (!c->big) {
				hang_up(c);
				return;
			}
			memcpy(c->big, c->buffer, CTL_FRAME_BYTES);
		}
		if (c->used < want)
			return;
	}
	serve(c);
}

static void wait_over(struct client *c, const struct io_result *result)
{
	struct ctl_msg answer;

	begin_answer(&answer, &c->frame);
	ctl_answer_late(&c->frame, &c->wait, result, &answer);
	c->wait.waits = false;
	send_answer(c, &answer);
}

static void check_client(struct client *c, short events, uint64_t now_ns)
{
	struct io_result result;

	if (c->fd < 0)
		return;
	if (!still_ours(c->fd, c->socket)) {
		hang_up(c);
		return;
	}
	if (c->wait.waits) {
		if (io_done(c->wait.ticket, &result))
			wait_over(c, &result);
		else if (now_ns > c->deadline_ns)
			wait_over(c, NULL);
		return;
	}
	if (events && c->out)
		send_more(c);
	else if (events)
		read_client(c);
	if (c->fd >= 0 && now_ns > c->deadline_ns)
		hang_up(c);
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

static int poll_timeout(uint64_t now_ns)
{
	uint64_t due_ns = plugin_frame_due(now_ns);
	uint64_t ms = LONG_POLL_MS;
	int i;

	for (i = 0; i < CLIENTS; i++) {
		if (ctl.client[i].fd >= 0 && ctl.client[i].wait.waits)
			return WAIT_POLL_MS;
	}
	if (due_ns <= now_ns)
		return 0;
	if (due_ns != UINT64_MAX && (due_ns - now_ns) / 1000000u < ms)
		ms = (due_ns - now_ns) / 1000000u + 1;
	return (int)ms;
}

/*
 * Who is waited for: poll refuses more entries than the process may have descriptors, which can be fewer than CLIENTS.
 * One who waits for us is not listened to: what it sends meanwhile stays in the socket. @at: each client's entry, -1 = none
 */
static nfds_t fill_poll(struct pollfd *fds, int *at)
{
	nfds_t used = 0;
	int i;

	fds[used++] = (struct pollfd){ .fd = ctl.fd, .events = POLLIN };
	for (i = 0; i < CLIENTS; i++) {
		const struct client *c = &ctl.client[i];

		at[i] = -1;
		if (c->fd < 0 || c->wait.waits)
			continue;
		at[i] = (int)used;
		fds[used++] = (struct pollfd){ .fd = c->fd, .events = c->out ? POLLOUT : POLLIN };
	}
	return used;
}

static void loop_once(void)
{
	struct pollfd fds[CLIENTS + 1];
	uint64_t now_ns = clock_mono_ns();
	int i, at[CLIENTS];

	keep_socket(now_ns);
	if (FAULT("ctl.poll") || poll(fds, fill_poll(fds, at), poll_timeout(now_ns)) < 0) {
		if (errno == EINTR)
			return;
		thread_sleep(THREAD_CTL, LONG_POLL_MS * 1000000u);
		return;
	}
	now_ns = clock_mono_ns();
	plugin_frame_tick(now_ns);
	for (i = 0; i < CLIENTS; i++)
		check_client(&ctl.client[i], at[i] >= 0 ? fds[at[i]].revents : 0, now_ns);
	if (!still_ours(ctl.fd, ctl.socket))
		return;
	for (i = 0; i < CLIENTS / 2 && fds[0].revents && accept_client(now_ns); i++)
		;
}

void ctl_wait_ready(uint64_t deadline_ns)
{
	uint64_t now_ns = clock_mono_ns();

	while (!atomic_load_explicit(&ready, memory_order_acquire) && now_ns < deadline_ns) {
		futex_wait(&ready, 0, deadline_ns - now_ns);
		now_ns = clock_mono_ns();
	}
}

static void say_ready(void)
{
	atomic_store_explicit(&ready, 1, memory_order_release);
	futex_wake(&ready);
}

void ctl_run(void)
{
	int i;

	while (agent_state() == AGENT_STARTING && !thread_stopping(THREAD_CTL))
		thread_sleep(THREAD_CTL, 1000000);
	if (env.given[ENV_PLUGINS])
		plugin_frame_from_text(env.text[ENV_PLUGINS]);
	say_ready();
	ctl.client = pages(sizeof(*ctl.client) * CLIENTS);
	ctl.answer = pages(CTL_FRAME_BYTES + CTL_MAX_PAYLOAD);
	if (!ctl.client || !ctl.answer) {
		siglog(SIGLOG_ERROR, "ctl", "out of memory: this process cannot be controlled");
		return;
	}
	for (i = 0; i < CLIENTS; i++)
		ctl.client[i].fd = -1;
	open_socket();
	while (!thread_stopping(THREAD_CTL))
		loop_once();
	plugin_frame_stop_all();
	if (name_is_ours())
		unlink(ctl.path);
	for (i = 0; i < CLIENTS; i++)
		hang_up(&ctl.client[i]);
	close_ours(ctl.fd, ctl.socket);
	ctl.fd = -1;
}
