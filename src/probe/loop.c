/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The probe's one poll loop: descriptors and whom to call for them; see probe_watch() in probe.h. run.c drives it. */
#include "probe/loop.h"
#include "probe/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 32

struct watch {
	int fd;
	void (*ready)(int fd, void *arg); /* NULL = taken back while events were being handed out */
	void *arg;
	struct watch *next;
};

static struct {
	int epoll;
	struct watch *list;
	bool stale; /* some are taken back and not yet freed */
} loop = { .epoll = -1 };

int probe_watch(int fd, void (*ready)(int fd, void *arg), void *arg)
{
	struct watch *watch = malloc(sizeof(*watch));
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = watch };

	if (!watch)
		return -ENOMEM;
	if (loop.epoll < 0)
		loop.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (loop.epoll < 0 || epoll_ctl(loop.epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
		int ret = -errno;

		free(watch);
		return ret;
	}
	*watch = (struct watch){ fd, ready, arg, loop.list };
	loop.list = watch;
	return 0;
}

void probe_unwatch(int fd)
{
	for (struct watch *watch = loop.list; watch; watch = watch->next) {
		if (watch->fd != fd || !watch->ready)
			continue;
		epoll_ctl(loop.epoll, EPOLL_CTL_DEL, fd, NULL);
		watch->ready = NULL;
		loop.stale = true;
	}
}

static void sweep(void)
{
	struct watch **at = &loop.list;

	while (*at) {
		struct watch *watch = *at;

		if (watch->ready) {
			at = &watch->next;
			continue;
		}
		*at = watch->next;
		free(watch);
	}
	loop.stale = false;
}

void loop_once(int timeout_ms)
{
	struct epoll_event events[EVENTS];
	int count = epoll_wait(loop.epoll, events, EVENTS, timeout_ms);

	for (int i = 0; i < count; i++) {
		struct watch *watch = events[i].data.ptr;

		if (watch->ready)
			watch->ready(watch->fd, watch->arg);
	}
	if (loop.stale)
		sweep();
}
