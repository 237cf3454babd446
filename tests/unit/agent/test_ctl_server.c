/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The control thread with a system call failing now and then: it lives on, keeps no descriptor, leaves no name behind, and
 * answers whoever asks next. Needs a build with fault points.
 */
#include "agent/ctl_server.h"
#include "agent/env.h"
#include "agent/identity.h"
#include "agent/life.h"
#include "agent/threads.h"
#include "base/fault.h"
#include "safe/clock.h"
#include "wire/ctl.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef ST_FAULTS

#define LIMIT_NS 20000000000u
#define SERVER_FILES 4 /* /dev/null three times and the listening socket: no client */
#define LONG_TEXT 60000 /* a request that does not fit the server's own buffer */

static char place[] = "/tmp/st-ctl-XXXXXX";

static int set_up(void **state)
{
	struct spool_options options = { .size = sizeof(options), .place = place };
	struct st_err err;

	(void)state;
	if (!mkdtemp(place) || setenv("SYSTRACE_SOCKET_DIR", place, 1) || setenv("SYSTRACE_LOG_PATH", place, 1))
		return -1;
	env_read();
	identity_start();
	return spool_create(&life.spool, &agent.pool, &options, &err);
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	spool_remove(&life.spool);
	snprintf(command, sizeof(command), "rm -rf %s", place);
	return system(command);
}

static void pause_ms(unsigned int ms)
{
	const struct timespec ts = { .tv_nsec = (long)ms * 1000000 };

	nanosleep(&ts, NULL);
}

/* Wait until @what holds; fails after a long time. */
#define WAIT_FOR(what)                                                 \
	do {                                                           \
		uint64_t until_ns = clock_mono_ns() + LIMIT_NS;        \
		while (!(what)) {                                      \
			if (clock_mono_ns() > until_ns)                \
				fail_msg("waited in vain for " #what); \
			pause_ms(5);                                   \
		}                                                      \
	} while (0)

static const char *name(void)
{
	static char path[64];

	snprintf(path, sizeof(path), "%.20s/sysTrace_%u.sock", place, identity.pid);
	return path;
}

static bool name_there(void)
{
	struct stat st;

	return !lstat(name(), &st);
}

/* Descriptors of the control thread, which has a table of its own. */
static int server_files(void)
{
	char path[64];
	struct dirent *entry;
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%u/fd", thread_tid(THREAD_CTL));
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

static int connect_to_server(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = 10 };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", name());
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (!connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
		return fd;
	close(fd);
	return -1;
}

static bool receive(int fd, uint8_t *to, size_t bytes)
{
	while (bytes) {
		ssize_t n = recv(fd, to, bytes, 0);

		if (n <= 0)
			return false;
		to += n;
		bytes -= (size_t)n;
	}
	return true;
}

/* One request. Return: was there a whole answer? */
static bool ask(uint16_t verb, bool lengthy)
{
	static uint8_t request[LONG_TEXT + 4096], answer[CTL_FRAME_BYTES + CTL_MAX_PAYLOAD];
	static char text[LONG_TEXT];
	int bytes, fd = connect_to_server();
	struct ctl_frame frame;
	struct ctl_msg msg;
	bool ok;

	if (fd < 0)
		return false;
	ctl_begin(&msg, request, sizeof(request), verb, 1);
	memset(text, 'x', sizeof(text) - 1);
	if (lengthy)
		ctl_add(&msg, "unknown", text);
	bytes = ctl_finish(&msg);
	assert_true(bytes > 0);
	ok = send(fd, request, (size_t)bytes, MSG_NOSIGNAL) == bytes && receive(fd, answer, CTL_FRAME_BYTES) &&
	     ctl_frame_decode(answer, &frame) == 0 && receive(fd, answer + CTL_FRAME_BYTES, frame.payload_bytes) &&
	     ctl_check(answer + CTL_FRAME_BYTES, frame.payload_bytes) == 0;
	close(fd);
	return ok;
}

static void start(void)
{
	assert_int_equal(thread_start(THREAD_CTL, ctl_run), 0);
}

static void stop(void)
{
	thread_stop(THREAD_CTL);
	ctl_stop();
	assert_true(thread_wait_end(THREAD_CTL, clock_mono_ns() + LIMIT_NS));
	assert_false(name_there());
}

/* --- while it serves -------------------------------------------------------------------------------------------------- */

struct fault {
	const char *point;
	int error;
	uint64_t times;
	bool lengthy; /* the request that meets it */
	bool answered; /* even so: the call is made again, or its failure does not matter */
};

static const struct fault faults[] = {
	{ "ctl.accept", EMFILE, 3, false, true },    { "ctl.accept", ECONNABORTED, 1, false, true },
	{ "ctl.accept", ENOMEM, 1, false, true },    { "ctl.peer", EBADF, 1, false, false },
	{ "ctl.recv", EAGAIN, 2, false, true },	     { "ctl.recv", EINTR, 1, true, true },
	{ "ctl.recv", ECONNRESET, 1, false, false }, { "ctl.recv", ENOMEM, 1, true, false },
	{ "ctl.send", EAGAIN, 1, false, true },	     { "ctl.send", EINTR, 1, false, true },
	{ "ctl.send", EPIPE, 1, false, false },	     { "ctl.pages", ENOMEM, 1, true, false },
	{ "ctl.poll", EINTR, 3, false, true },	     { "ctl.poll", ENOMEM, 1, false, true },
};

static void serving(void **state)
{
	size_t i;

	(void)state;
	start();
	WAIT_FOR(ask(CTL_LIST, false));
	WAIT_FOR(server_files() == SERVER_FILES);
	for (i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		const struct fault *f = &faults[i];
		uint64_t before = fault_passes(f->point);

		fault_arm(f->point, 1, f->times, f->error);
		if (ask(CTL_LIST, f->lengthy) != f->answered)
			fail_msg("%s, error %d: %s", f->point, f->error, f->answered ? "no answer" : "an answer");
		WAIT_FOR(fault_passes(f->point) >= before + f->times);
		fault_arm("", 0, 0, 0);
		if (!ask(CTL_LIST, false) || !ask(CTL_STATUS, true))
			fail_msg("%s, error %d: no answer afterwards", f->point, f->error);
		WAIT_FOR(server_files() == SERVER_FILES);
	}
	stop();
}

/* The rest of an answer can't be sent, or not be kept: that client alone is hung up on. */
static void the_rest_of_an_answer(void **state)
{
	(void)state;
	start();
	WAIT_FOR(ask(CTL_LIST, false));
	fault_arm("ctl.send", 1, 1, EAGAIN);
	WAIT_FOR(ask(CTL_LIST, false));
	assert_true(fault_passes("ctl.send_more") > 0);
	stop();
}

/* --- while it opens its socket ---------------------------------------------------------------------------------------- */

static void opening(void **state)
{
	static const char *const points[] = { "ctl.socket", "ctl.chmod", "ctl.bind", "ctl.mode", "ctl.listen" };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		uint64_t before = fault_passes(points[i]), looks = fault_passes("ctl.poll");

		fault_arm(points[i], 1, 2, EACCES); /* both names */
		start();
		WAIT_FOR(fault_passes(points[i]) > before && fault_passes("ctl.poll") > looks);
		if (name_there())
			fail_msg("%s: a name is left behind", points[i]);
		assert_string_equal(ctl_socket_path(), "");
		assert_int_equal(connect_to_server(), -1);
		stop();
		fault_arm("", 0, 0, 0);
		start();
		WAIT_FOR(ask(CTL_LIST, false));
		stop();
	}
}

/* It tries again by itself, ten seconds later. */
static void opening_again(void **state)
{
	(void)state;
	fault_arm("ctl.listen", 1, 1, ENOBUFS);
	start();
	WAIT_FOR(ask(CTL_LIST, false));
	stop();
}

/* Without memory there is no control; the thread ends, the job does not. */
static void without_memory(void **state)
{
	(void)state;
	fault_arm("ctl.pages", 1, 1, ENOMEM);
	start();
	assert_true(thread_wait_end(THREAD_CTL, clock_mono_ns() + LIMIT_NS));
	assert_false(name_there());
	fault_arm("", 0, 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(serving),	 cmocka_unit_test(the_rest_of_an_answer), cmocka_unit_test(opening),
		cmocka_unit_test(opening_again), cmocka_unit_test(without_memory),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
#else
int main(void)
{
	print_message("skip: built without fault points (-DST_FAULTS=ON)\n");
	return 77;
}
#endif
