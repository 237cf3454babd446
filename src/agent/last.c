/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See last.h. */
#include "agent/last.h"

#include "agent/life.h"
#include "agent/threads.h"
#include "safe/compat_glibc.h" /* the pthread functions are weak: NULL in plain C programs before glibc 2.34 */
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_NS 20000000u

static _Atomic bool gone;

/* Is this a thread of the program's? Its main thread stays in the list as a zombie until the end. */
static int of_the_program(void *ctx, const char *name, uint64_t inode)
{
	uint32_t tid = (uint32_t)strtoul(name, NULL, 10);
	int id;

	for (id = 0; id < THREAD_COUNT; id++) {
		if (thread_tid((enum thread_id)id) == tid)
			return 0;
	}
	return tid != life.pid;
}

/* Return: false also when the list cannot be read: rather one process that stays than one that ends too early. */
static bool alone(void)
{
	int dir = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret;

	if (dir < 0)
		return false;
	ret = sys_dir_each(dir, of_the_program, NULL);
	close(dir);
	return ret == 0;
}

/* Made on the main thread's way out, so its descriptors are the program's: what exit() flushes comes where it belongs. */
static void wait_for_all(void)
{
	while (!thread_stopping(THREAD_LAST)) {
		if (alone())
			exit(0);
		thread_sleep(THREAD_LAST, LOOK_NS);
	}
}

static void main_leaves(void *unused)
{
	int saved = errno;

	atomic_store_explicit(&gone, true, memory_order_relaxed);
	if (agent_state() >= AGENT_STARTING && agent_state() < AGENT_STOPPING && !life_is_child())
		thread_start(THREAD_LAST, wait_for_all);
	errno = saved;
}

void last_watch(void)
{
	pthread_key_t key;

	/* destructors of such keys run when a thread leaves, not when the process exits */
	if (pthread_key_create && pthread_setspecific && !pthread_key_create(&key, main_leaves))
		pthread_setspecific(key, &gone);
}

bool last_main_gone(void)
{
	return atomic_load_explicit(&gone, memory_order_relaxed);
}
