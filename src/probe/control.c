/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The probe's control socket: the agents' protocol (wire/ctl.h), with descriptors sent along. One probe of a group per
 * host: whoever holds the lock beside the socket is it. Clients are root or the probe's own user; one who stalls loses
 * its connection. See frame.h.
 */
#include "probe/frame.h"
#include "base/num.h"
#include "safe/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 8
#define CLIENT_LIMIT_NS 10000000000ull
#define PARAM_BYTES 8192
#define NAME_BYTES 32

struct client {
	int fd; /* -1 = free */
	uint64_t deadline_ns;
	uint8_t *data; /* frame and payload, grows */
	size_t used;
	int fds[PROBE_FDS_MAX];
	size_t fd_count;
};

static struct {
	int fd, lock_fd;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	char lock[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
	struct client clients[CLIENTS];
} ctl = { .fd = -1, .lock_fd = -1 };

void probe_socket_path(const char *group, char *out, size_t room)
{
	const char *dir = getenv("SYSTRACE_SOCKET_DIR");

	snprintf(out, room, "%s/sysTrace_probe_%s.sock",
		 dir && dir[0] == '/' ? dir
		 : geteuid() == 0     ? PROBE_SOCKET_DIR
				      : "/tmp",
		 group);
}

const char *control_path(void)
{
	return ctl.path;
}

/* --- one request ------------------------------------------------------------------------------------------------------- */

/** struct order - an enable or disable, taken apart */
struct order {
	int plugin;
	struct plugin_pair pairs[PROBE_PARAMS];
	size_t pair_count;
	char text[PARAM_BYTES]; /* memory behind pairs */
	size_t text_used;
	struct probe_target **targets;
	size_t target_count;
	pid_t pids[PROBE_TARGETS_MAX]; /* disable */
	size_t pid_count;
};

static char *keep(struct order *order, const char *text, size_t bytes)
{
	char *at = order->text + order->text_used;

	if (order->text_used + bytes + 1 > sizeof(order->text))
		return NULL;
	memcpy(at, text, bytes);
	at[bytes] = '\0';
	order->text_used += bytes + 1;
	return at;
}

static int take_plugin(struct order *order, const struct ctl_entry *entry, struct st_err *err)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "%.*s", (int)entry->value_bytes, entry->value);
	order->plugin = plugin_find(name, err);
	return order->plugin < 0 ? order->plugin : 0;
}

static int take_pair(struct order *order, const struct ctl_entry *entry, struct st_err *err)
{
	char *key = keep(order, entry->key, entry->key_bytes);
	char *value = key ? keep(order, entry->value, entry->value_bytes) : NULL;

	if (!value || order->pair_count == PROBE_PARAMS)
		return err_set(err, -E2BIG, "too many parameters, or too long ones");
	order->pairs[order->pair_count++] = (struct plugin_pair){ key, value };
	return 0;
}

static int take_pid(struct order *order, const struct ctl_entry *entry)
{
	uint64_t pid;

	if (num_u64_n(entry->value, entry->value_bytes, &pid) < 0 || order->pid_count == PROBE_TARGETS_MAX)
		return -EINVAL;
	order->pids[order->pid_count++] = (pid_t)pid;
	return 0;
}

static int read_order(struct order *order, const struct client *client, uint16_t verb, struct st_err *err)
{
	const uint8_t *payload = client->data + CTL_FRAME_BYTES;
	uint32_t bytes = (uint32_t)(client->used - CTL_FRAME_BYTES), at = 0;
	struct ctl_entry entry;
	int ret = 0;

	*order = (struct order){ .plugin = -1 };
	while (ret >= 0 && ctl_next(payload, bytes, &at, &entry) == 1) {
		bool is_target = entry.key_bytes >= 6 && memcmp(entry.key, "target", 6) == 0;

		if (entry.key_bytes == strlen(CTL_KEY_PLUGIN) &&
		    memcmp(entry.key, CTL_KEY_PLUGIN, entry.key_bytes) == 0)
			ret = take_plugin(order, &entry, err);
		else if (is_target && verb == CTL_DISABLE && entry.key_bytes == 6)
			ret = take_pid(order, &entry);
		else if (is_target)
			ret = probe_target_take(&entry, &order->targets, &order->target_count, client->fds,
						client->fd_count, err);
		else
			ret = take_pair(order, &entry, err);
	}
	if (ret >= 0 && order->plugin < 0)
		ret = err_set(err, -EINVAL, "the request names no plugin");
	if (ret >= 0 && verb == CTL_ENABLE && !order->target_count)
		ret = err_set(err, -EINVAL, "the request names no process");
	return ret < 0 ? ret : 0;
}

static void carry_out(const struct client *client, uint16_t verb, struct st_err *said)
{
	struct order *order = malloc(sizeof(*order));
	int ret = order ? read_order(order, client, verb, said) : err_set(said, -ENOMEM, "out of memory");

	if (ret == 0 && verb == CTL_ENABLE) {
		/* the targets are the frame's from here on, whatever becomes of them */
		ret = probe_enable((enum plugin_id)order->plugin, order->pairs, order->pair_count, order->targets,
				   order->target_count, said);
		order->target_count = 0;
	} else if (ret == 0) {
		ret = probe_disable((enum plugin_id)order->plugin, order->pids, order->pid_count, said);
	}
	said->code = ret;
	for (size_t i = 0; order && i < order->target_count; i++)
		probe_target_free(order->targets[i]);
	if (order)
		free(order->targets);
	free(order);
}

static void answer(struct client *client, const struct ctl_frame *frame, struct ctl_msg *msg)
{
	struct st_err said = { 0 };

	switch (frame->verb) {
	case CTL_ENABLE:
	case CTL_DISABLE:
		carry_out(client, frame->verb, &said);
		break;
	case CTL_FLUSH:
		probe_flush_all();
		break;
	case CTL_STATUS:
	case CTL_LIST:
		probe_status_put(msg);
		break;
	default:
		err_set(&said, -EOPNOTSUPP, "this probe (" ST_VERSION ") does not know the request");
		break;
	}
	ctl_addf(msg, CTL_KEY_CODE, "%d", said.code);
	if (said.text[0])
		ctl_add(msg, CTL_KEY_TEXT, said.text);
}

/* --- clients ----------------------------------------------------------------------------------------------------------- */

static void hang_up(struct client *client)
{
	if (client->fd < 0)
		return;
	probe_unwatch(client->fd);
	close(client->fd);
	for (size_t i = 0; i < client->fd_count; i++)
		close(client->fds[i]);
	free(client->data);
	*client = (struct client){ .fd = -1 };
}

/* Answers are short and the client reads at once: one that does not within a second is left. */
static void send_all(int fd, const uint8_t *data, size_t bytes)
{
	struct timeval limit = { .tv_sec = 1 };
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	while (bytes) {
		ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		data += sent;
		bytes -= (size_t)sent;
	}
}

static void serve(struct client *client, const struct ctl_frame *frame)
{
	uint8_t *data = malloc(CTL_FRAME_BYTES + CTL_MAX_PAYLOAD);
	struct ctl_msg msg;
	int bytes;

	if (!data)
		return;
	ctl_begin(&msg, data, CTL_FRAME_BYTES + CTL_MAX_PAYLOAD, frame->verb | CTL_ANSWER, frame->sequence);
	if (ctl_check(client->data + CTL_FRAME_BYTES, frame->payload_bytes) < 0) {
		ctl_addf(&msg, CTL_KEY_CODE, "%d", -EPROTO);
		ctl_add(&msg, CTL_KEY_TEXT, "the request is malformed");
	} else {
		answer(client, frame, &msg);
	}
	bytes = ctl_finish(&msg);
	if (bytes > 0)
		send_all(client->fd, data, (size_t)bytes);
	free(data);
}

static void take_fds(struct client *client, struct msghdr *head)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(head); c; c = CMSG_NXTHDR(head, c)) {
		size_t count = c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS
				       ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int)
				       : 0;
		int fds[PROBE_FDS_MAX];

		memcpy(fds, CMSG_DATA(c), count * sizeof(int));
		for (size_t i = 0; i < count; i++) {
			if (client->fd_count < PROBE_FDS_MAX)
				client->fds[client->fd_count++] = fds[i];
			else
				close(fds[i]);
		}
	}
}

/* Return: bytes read, 0 = the client is gone or makes no sense, -EAGAIN. */
static ssize_t receive(struct client *client, size_t want)
{
	union {
		char bytes[CMSG_SPACE(PROBE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec io = { client->data + client->used, want - client->used };
	struct msghdr head = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	ssize_t got = recvmsg(client->fd, &head, MSG_CMSG_CLOEXEC);

	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : 0;
	take_fds(client, &head);
	client->used += (size_t)got;
	return got;
}

static void client_ready(int fd, void *arg)
{
	struct client *client = arg;
	struct ctl_frame frame = { 0 };
	size_t want = CTL_FRAME_BYTES;
	ssize_t got;

	if (client->used >= CTL_FRAME_BYTES && ctl_frame_decode(client->data, &frame) == 0)
		want += frame.payload_bytes;
	got = client->used < want ? receive(client, want) : 1;
	if (got == -EAGAIN)
		return;
	if (got == 0) {
		hang_up(client);
		return;
	}
	if (client->used < want)
		return;
	if (want == CTL_FRAME_BYTES && frame.verb == 0) {
		if (ctl_frame_decode(client->data, &frame) < 0) {
			hang_up(client);
			return;
		}
		if (frame.payload_bytes)
			return; /* the rest wakes us again */
	}
	serve(client, &frame);
	hang_up(client);
}

static bool peer_allowed(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

static void accept_ready(int fd, void *arg)
{
	int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *client = NULL;

	if (peer < 0)
		return;
	for (size_t i = 0; i < CLIENTS && !client; i++)
		if (ctl.clients[i].fd < 0)
			client = &ctl.clients[i];
	if (!client || !peer_allowed(peer)) {
		close(peer);
		return;
	}
	*client = (struct client){ .fd = peer, .deadline_ns = clock_mono_ns() + CLIENT_LIMIT_NS };
	client->data = malloc(CTL_FRAME_BYTES + CTL_MAX_PAYLOAD);
	if (!client->data || probe_watch(peer, client_ready, client) < 0)
		hang_up(client);
}

bool control_quiet(void)
{
	for (size_t i = 0; i < CLIENTS; i++)
		if (ctl.clients[i].fd >= 0)
			return false;
	return true;
}

void control_tick(uint64_t now_ns)
{
	for (size_t i = 0; i < CLIENTS; i++)
		if (ctl.clients[i].fd >= 0 && now_ns > ctl.clients[i].deadline_ns)
			hang_up(&ctl.clients[i]);
}

/* --- the name ---------------------------------------------------------------------------------------------------------- */

/* A directory where others can put names would let them stand in our way, not more: the client checks who listens. */
static int make_dir(const char *path, struct st_err *err)
{
	char dir[sizeof(ctl.path)];

	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
	if (mkdir(dir, 0755) < 0 && errno != EEXIST)
		return err_set(err, -errno, "cannot make %s: %s", dir, strerror(errno));
	return 0;
}

int control_open(const char *group, struct st_err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char path[256];

	for (size_t i = 0; i < CLIENTS; i++)
		ctl.clients[i].fd = -1;
	probe_socket_path(group, path, sizeof(path));
	if (strlen(path) >= sizeof(ctl.path))
		return err_set(err, -ENAMETOOLONG, "%s is longer than a socket's name may be", path);
	memcpy(ctl.path, path, strlen(path) + 1);
	snprintf(ctl.lock, sizeof(ctl.lock), "%s.lock", ctl.path);
	if (make_dir(ctl.path, err) < 0)
		return err->code;
	ctl.lock_fd = open(ctl.lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (ctl.lock_fd < 0)
		return err_set(err, -errno, "cannot make %s: %s", ctl.lock, strerror(errno));
	if (flock(ctl.lock_fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(err, -EADDRINUSE, "running");
	unlink(ctl.path); /* a dead one's: we hold the lock */
	memcpy(addr.sun_path, ctl.path, strlen(ctl.path) + 1);
	ctl.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ctl.fd < 0 || fchmod(ctl.fd, 0600) < 0 || bind(ctl.fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(ctl.fd, 64) < 0)
		return err_set(err, -errno, "cannot listen on %s: %s", ctl.path, strerror(errno));
	return probe_watch(ctl.fd, accept_ready, NULL);
}

void control_close(void)
{
	if (ctl.fd < 0)
		return;
	unlink(ctl.path);
	for (size_t i = 0; i < CLIENTS; i++)
		hang_up(&ctl.clients[i]);
	probe_unwatch(ctl.fd);
	close(ctl.fd);
	ctl.fd = -1;
	/* the lock file stays: who unlinks one may unlink what another has just locked */
	close(ctl.lock_fd);
}
