/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One poll loop over all agents; see ctl_client.h. A call walks connect, send, head, body, done; anything an agent does
 * wrong ends its own call with a reason and touches no other.
 */
#include "cli/ctl_client.h"

#include "cli/term.h"
#include "safe/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_MS 20 /* an agent whose accept queue is full, or that has made its socket and does not listen yet */
#define REFUSED_NS 1000000000ull /* so long may the latter last on a busy machine */
#define WAIT_NOTE_NS 2000000000ull

static const char not_listening[] = "its agent does not listen: it is ending, or it failed to start (see its log)";

static void call_end(struct ctl_call *call)
{
	if (call->fd >= 0)
		close(call->fd);
	call->fd = -1;
	call->state = CALL_DONE;
}

static void call_failed(struct ctl_call *call, int code, const char *text)
{
	err_set(&call->err, code, "%s", text);
	call_end(call);
}

/* The kernel's word on who listens, against who we meant to reach. */
static int check_peer(struct ctl_call *call)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(call->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return -errno;
	if (peer.pid == call->target->pid && peer.uid == call->target->uid)
		return 0;
	err_set(&call->err, -EPERM,
		"the socket belongs to process %d of user %d, not to process %d of user %d; nothing was sent. Remove the "
		"socket if it is a leftover",
		(int)peer.pid, (int)peer.uid, (int)call->target->pid, (int)call->target->uid);
	return -EPERM;
}

/* Between an agent's bind() and its listen(): asked again for a while. */
static bool may_listen_soon(struct ctl_call *call)
{
	uint64_t now_ns = clock_mono_ns();

	if (!call->refused_ns)
		call->refused_ns = now_ns;
	return now_ns - call->refused_ns < REFUSED_NS;
}

static void call_connect(struct ctl_call *call)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	if (call->fd < 0)
		call->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (call->fd < 0) {
		call_failed(call, -errno, strerror(errno));
		return;
	}
	snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d", call->target->socket_fd);
	if (connect(call->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == EINPROGRESS)
			return;
		if (errno == ECONNREFUSED && may_listen_soon(call))
			return;
		if (errno == ECONNREFUSED)
			call_failed(call, -errno, not_listening);
		else if (errno == EACCES)
			call_failed(call, -errno, "permission denied; run sysTrace_cli as root or as the job's user");
		else
			call_failed(call, -errno, strerror(errno));
		return;
	}
	if (check_peer(call) < 0) {
		call_end(call);
		return;
	}
	call->state = CALL_SEND;
}

static bool has_ended(const struct ctl_call *call)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", (int)call->target->pid);
	return access(path, F_OK) < 0;
}

static void call_broken(struct ctl_call *call, int code)
{
	if (code != 0 && code != ECONNRESET && code != EPIPE)
		call_failed(call, -code, strerror(code));
	else if (has_ended(call))
		call_failed(call, -ECONNRESET, "the process has ended");
	else
		call_failed(call, -ECONNRESET,
			    "its agent closed the connection without an answer; see its log (SYSTRACE_LOG_PATH)");
}

static void call_send(struct ctl_call *call, const uint8_t *request, uint32_t bytes)
{
	ssize_t sent = send(call->fd, request + call->at, bytes - call->at, MSG_NOSIGNAL);

	if (sent < 0) {
		if (errno != EAGAIN && errno != EINTR)
			call_broken(call, errno);
		return;
	}
	call->at += (uint32_t)sent;
	if (call->at == bytes) {
		call->state = CALL_HEAD;
		call->at = 0;
	}
}

/* Receive into @data until @want bytes are there. Return: true when they are. */
static bool receive(struct ctl_call *call, uint8_t *data, uint32_t want)
{
	ssize_t got;

	if (call->at == want)
		return true;
	got = recv(call->fd, data + call->at, want - call->at, 0);
	if (got < 0) {
		if (errno != EAGAIN && errno != EINTR)
			call_broken(call, errno);
		return false;
	}
	if (got == 0) {
		call_broken(call, 0);
		return false;
	}
	call->at += (uint32_t)got;
	return call->at == want;
}

static void call_head(struct ctl_call *call, const uint8_t *request)
{
	struct ctl_frame asked;
	int ret;

	if (!receive(call, call->head, CTL_FRAME_BYTES))
		return;
	ret = ctl_frame_decode(call->head, &call->frame);
	if (ret == -EPROTONOSUPPORT) {
		err_set(&call->err, ret,
			"its agent speaks protocol version %u, this sysTrace_cli speaks version %u; use the "
			"sysTrace_cli of the release that the job was started with",
			call->frame.version, CTL_VERSION);
		call_end(call);
		return;
	}
	if (ret < 0 || ctl_frame_decode(request, &asked) < 0 || call->frame.sequence != asked.sequence ||
	    call->frame.verb != (asked.verb | CTL_ANSWER)) {
		call_failed(call, -EPROTO, "what answered is not a sysTrace agent, or it is damaged (bad frame)");
		return;
	}
	call->payload = malloc(call->frame.payload_bytes + 1u);
	if (!call->payload) {
		call_failed(call, -ENOMEM, "out of memory");
		return;
	}
	call->state = CALL_BODY;
	call->at = 0;
}

static void call_body(struct ctl_call *call)
{
	char code[16] = "";

	if (!receive(call, call->payload, call->frame.payload_bytes))
		return;
	if (ctl_check(call->payload, call->frame.payload_bytes) < 0 ||
	    !ctl_call_get(call, CTL_KEY_CODE, code, sizeof(code))) {
		call_failed(call, -EPROTO, "what answered is not a sysTrace agent, or it is damaged (bad answer)");
		return;
	}
	ctl_call_get(call, CTL_KEY_TEXT, call->text, sizeof(call->text));
	if (strcmp(code, "0") != 0) {
		int number = atoi(code);

		call->err.code = number < 0 ? number : -EIO;
		snprintf(call->err.text, sizeof(call->err.text), "%s",
			 call->text[0] ? call->text : strerror(-call->err.code));
	}
	call_end(call);
}

static void call_step(struct ctl_call *call, const uint8_t *request, uint32_t bytes)
{
	/* each state falls into the next as far as it goes without waiting */
	if (call->state == CALL_CONNECT)
		call_connect(call);
	if (call->state == CALL_SEND)
		call_send(call, request, bytes);
	if (call->state == CALL_HEAD)
		call_head(call, request);
	if (call->state == CALL_BODY)
		call_body(call);
}

static void call_timed_out(struct ctl_call *call, uint64_t timeout_ns)
{
	char stat[32], line[256] = "";
	const char *paren, *why = "it may be stopped or very busy; try a longer --timeout";
	FILE *file;

	if (call->refused_ns && call->state == CALL_CONNECT) {
		call_failed(call, -ECONNREFUSED, not_listening);
		return;
	}
	snprintf(stat, sizeof(stat), "/proc/%d/stat", (int)call->target->pid);
	file = fopen(stat, "r");
	if (!file)
		why = "the process has ended";
	else if (fgets(line, sizeof(line), file) && (paren = strrchr(line, ')')) &&
		 (paren[2] == 'T' || paren[2] == 't'))
		why = "the process is stopped by a signal or a debugger; continue it first";
	if (file)
		fclose(file);
	err_set(&call->err, -ETIMEDOUT, "no answer within %g s: %s", (double)timeout_ns / 1e9, why);
	call_end(call);
}

static void waiting_note(size_t open, size_t count, uint64_t since_ns, bool *shown)
{
	if (clock_mono_ns() - since_ns < WAIT_NOTE_NS || !isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r\033[Kwaiting for %zu of %zu processes ...", open, count);
	fflush(stderr);
	*shown = true;
}

/* Fill the poll set. Return: calls that are not done; *retry: some must be tried again without an event. */
static size_t fill_polls(struct ctl_call *calls, size_t count, struct pollfd *polls, bool *retry)
{
	size_t open = 0;

	*retry = false;
	for (size_t i = 0; i < count; i++) {
		if (calls[i].state == CALL_DONE)
			continue;
		*retry |= calls[i].state == CALL_CONNECT;
		polls[open++] = (struct pollfd){
			.fd = calls[i].state == CALL_CONNECT ? -1 : calls[i].fd,
			.events = calls[i].state == CALL_SEND ? POLLOUT : POLLIN,
		};
	}
	return open;
}

static void run_calls(struct ctl_call *calls, size_t count, struct pollfd *polls, const void *request, uint32_t bytes,
		      uint64_t timeout_ns)
{
	uint64_t begin = clock_mono_ns();
	bool shown = false, retry;

	for (;;) {
		size_t open = fill_polls(calls, count, polls, &retry);
		uint64_t spent = clock_mono_ns() - begin;
		int wait_ms;

		if (open == 0 || spent >= timeout_ns)
			break;
		waiting_note(open, count, begin, &shown);
		wait_ms = (int)((timeout_ns - spent) / 1000000 + 1 > 500 ? 500 : (timeout_ns - spent) / 1000000 + 1);
		poll(polls, open, retry && wait_ms > RETRY_MS ? RETRY_MS : wait_ms);
		for (size_t i = 0; i < count; i++)
			if (calls[i].state != CALL_DONE)
				call_step(&calls[i], request, bytes);
	}
	if (shown)
		fputs("\r\033[K", stderr);
	for (size_t i = 0; i < count; i++)
		if (calls[i].state != CALL_DONE)
			call_timed_out(&calls[i], timeout_ns);
}

size_t ctl_exchange(struct ctl_call *calls, size_t count, const void *request, uint32_t bytes, uint64_t timeout_ns)
{
	struct pollfd *polls = calloc(count + 1, sizeof(*polls));
	size_t failed = 0;

	for (size_t i = 0; i < count; i++) {
		const struct target *target = calls[i].target;

		calls[i] = (struct ctl_call){ .target = target, .fd = -1 };
		if (!polls)
			call_failed(&calls[i], -ENOMEM, "out of memory");
		else if (target->err.code < 0)
			call_failed(&calls[i], target->err.code, target->err.text);
		else
			call_step(&calls[i], request, bytes);
	}
	if (polls)
		run_calls(calls, count, polls, request, bytes, timeout_ns);
	free(polls);
	for (size_t i = 0; i < count; i++)
		failed += calls[i].err.code != 0;
	return failed;
}

bool ctl_call_get(const struct ctl_call *call, const char *key, char *out, size_t room)
{
	if (room)
		out[0] = '\0';
	return call->payload && ctl_get(call->payload, call->frame.payload_bytes, key, out, room) >= 0;
}

void ctl_calls_free(struct ctl_call *calls, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (calls[i].fd >= 0)
			close(calls[i].fd);
		free(calls[i].payload);
		calls[i].payload = NULL;
	}
}
