/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Any bytes from any number of clients through the agent's server itself: its reading of frames in pieces, its places for
 * clients, its answers. The input is a program of small steps (send so many bytes as client n, with descriptors, hang up,
 * let the server look); what comes back must be whole answers, and nothing may stay open or mapped. The server is
 * compiled in, since its steps are static; the rest of the agent is linked.
 */
#include "agent/ctl_server.c"

#include "agent/agent.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define PEERS 20 /* more than the server has places for */
#define ANSWER_ROOM (CTL_FRAME_BYTES + CTL_MAX_PAYLOAD)

enum step { STEP_SEND, STEP_SEND_WITH_FDS, STEP_HANG_UP, STEP_SHUT, STEP_LOOK, STEP_IO_DONE, STEP_LATER, STEP_CONNECT };

static struct peer {
	int fd; /* -1 = none */
	struct client *at; /* its place, while the server has not given it to another */
	uint8_t got[CTL_FRAME_BYTES];
	uint32_t used;
	uint32_t left; /* payload bytes of the answer that is coming in */
} peers[PEERS];

static uint64_t now_ns; /* the server's clock for deadlines, moved by STEP_LATER */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static struct spool spool;
	struct spool_options options = { .size = sizeof(options), .place = "/nonexistent" };
	struct st_err err;

	(void)argc;
	(void)argv;
	env_read();
	identity_start();
	if (spool_create(&spool, &agent.pool, &options, &err) < 0)
		abort();
	ctl.client = pages(sizeof(*ctl.client) * CLIENTS);
	ctl.answer = pages(ANSWER_ROOM);
	for (int i = 0; i < CLIENTS; i++)
		ctl.client[i].fd = -1;
	return 0;
}

/* A connection without a listening socket: what accept_client() does after accept4(). */
static void peer_connect(struct peer *p)
{
	struct client *c;
	int pair[2];

	if (p->fd >= 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return;
	c = peer_allowed(pair[1]) ? slot_for_new() : NULL;
	if (!c) {
		close(pair[0]);
		close(pair[1]);
		return;
	}
	for (int i = 0; i < PEERS; i++)
		if (peers[i].at == c)
			peers[i].at = NULL;
	c->fd = pair[1];
	c->used = 0;
	c->turn = ctl.turns++;
	c->deadline_ns = now_ns + CLIENT_LIMIT_NS;
	*p = (struct peer){ .fd = pair[0], .at = c };
}

static void peer_send(struct peer *p, const uint8_t *data, size_t bytes, bool with_fds)
{
	union {
		char space[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec part = { (void *)data, bytes };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
	int fds[2] = { 0, 1 };

	if (p->fd < 0 || !bytes)
		return;
	if (with_fds) {
		msg.msg_control = control.space;
		msg.msg_controllen = sizeof(control.space);
		control.align = (struct cmsghdr){ CMSG_LEN(sizeof(fds)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.align), fds, sizeof(fds));
	}
	(void)!sendmsg(p->fd, &msg, MSG_NOSIGNAL);
}

/* Take what has come: answers, whole and well formed. */
static void peer_listen(struct peer *p)
{
	static uint8_t body[CTL_MAX_PAYLOAD];
	struct ctl_frame frame;
	char code[16];
	ssize_t n;

	while (p->fd >= 0) {
		if (p->used < CTL_FRAME_BYTES) {
			n = recv(p->fd, p->got + p->used, CTL_FRAME_BYTES - p->used, 0);
			if (n <= 0)
				return;
			p->used += (uint32_t)n;
			if (p->used < CTL_FRAME_BYTES)
				continue;
			if (ctl_frame_decode(p->got, &frame) < 0 || !(frame.verb & CTL_ANSWER))
				abort();
			p->left = frame.payload_bytes;
		}
		/* a socketpair takes an answer in one piece unless it is nearly full: then only its length is followed */
		n = p->left ? recv(p->fd, body, p->left, 0) : 0;
		if (p->left && n <= 0)
			return;
		ctl_frame_decode(p->got, &frame);
		if ((uint32_t)n == frame.payload_bytes &&
		    (ctl_check(body, frame.payload_bytes) < 0 ||
		     ctl_get(body, frame.payload_bytes, CTL_KEY_CODE, code, sizeof(code)) < 0))
			abort();
		p->left -= (uint32_t)n;
		if (!p->left)
			p->used = 0;
	}
}

static void server_looks(bool io_is_done)
{
	for (int i = 0; i < CLIENTS; i++) {
		struct client *c = &ctl.client[i];
		struct pollfd fd = { .fd = c->fd, .events = c->out ? POLLOUT : POLLIN };
		struct io_result result = { 0 };

		if (c->fd >= 0 && c->wait.waits && io_is_done)
			wait_over(c, &result);
		else
			check_client(c, c->fd >= 0 && !c->wait.waits && poll(&fd, 1, 0) > 0 ? fd.revents : 0, now_ns);
	}
}

static void run_steps(const uint8_t *data, size_t size)
{
	size_t at = 0;

	while (at + 2 <= size) {
		struct peer *p = &peers[data[at] % PEERS];
		enum step step = (enum step)(data[at + 1] & 7);
		size_t want = (size_t)(data[at + 1] >> 3) * 9;

		at += 2;
		if (want > size - at)
			want = size - at;
		peer_connect(p);
		switch (step) {
		case STEP_SEND:
		case STEP_SEND_WITH_FDS:
			peer_send(p, data + at, want, step == STEP_SEND_WITH_FDS);
			at += want;
			server_looks(false);
			break;
		case STEP_HANG_UP:
			close(p->fd);
			*p = (struct peer){ .fd = -1 };
			break;
		case STEP_SHUT:
			shutdown(p->fd, SHUT_WR);
			break;
		case STEP_LOOK:
			server_looks(false);
			peer_listen(p);
			break;
		case STEP_IO_DONE:
			server_looks(true);
			break;
		case STEP_LATER:
			now_ns += CLIENT_LIMIT_NS / 2;
			server_looks(false);
			break;
		case STEP_CONNECT:
			break;
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int i = 0; i < PEERS; i++)
		peers[i] = (struct peer){ .fd = -1 };
	now_ns = clock_mono_ns();
	run_steps(data, size);
	server_looks(true);
	for (int i = 0; i < PEERS; i++) {
		peer_listen(&peers[i]);
		if (peers[i].fd >= 0)
			close(peers[i].fd);
	}
	server_looks(false);
	for (int i = 0; i < CLIENTS; i++) {
		if (ctl.client[i].fd >= 0)
			hang_up(&ctl.client[i]);
		if (ctl.client[i].big || ctl.client[i].out)
			abort();
	}
	plugin_frame_stop_all();
	return 0;
}
