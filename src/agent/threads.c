/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Threads of the agent's own; see threads.h. life.c, io_thread.c, ctl_server.c and python/ start theirs here. */
#include "agent/threads.h"

#include "base/fault.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "safe/siglog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define CLOSE_UNSHARE 2u /* CLOSE_RANGE_UNSHARE */
#define OWN_NICE 10
#define FEW_FILES 1024u /* the usual limit of open files */
#define STACK_BYTES (512u * 1024u)
#define AFFINITY_WORDS 128 /* 8 192 processors */

enum thread_state { THREAD_NONE, THREAD_RUNS, THREAD_ENDED };

static struct own_thread {
	const char *name;
	void (*run)(void);
	_Atomic int state; /* enum thread_state */
	_Atomic uint32_t stop;
	_Atomic uint32_t bell; /* futex word: changes with each wake-up */
	_Atomic uint32_t end; /* futex word: 1 = ended */
	_Atomic uint32_t tid;
} threads[THREAD_COUNT] = {
	[THREAD_IO] = { .name = "systrace/io" },     [THREAD_CTL] = { .name = "systrace/ctl" },
	[THREAD_PY] = { .name = "systrace/py" },     [THREAD_LAST] = { .name = "systrace/last" },
	[THREAD_HOOK] = { .name = "systrace/hook" },
};

static _Atomic bool own_files;

void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &ts, NULL, 0);
}

void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Older kernels: a copied table, emptied by hand. */
static bool leave_files_by_hand(void)
{
	struct dirent *entry;
	DIR *dir;

	if (syscall(SYS_unshare, CLONE_FILES))
		return false;
	dir = opendir("/proc/thread-self/fd");
	if (!dir)
		return true; /* ours, with copies of the host's: no harm but that they stay open */
	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fd != dirfd(dir))
			close(fd);
	}
	closedir(dir);
	return true;
}

/* The host's table it is: at its upper end, below the numbers for which the kernel would make it larger. */
static void keep_files_apart(void)
{
	struct rlimit limit = { .rlim_cur = FEW_FILES };

	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur > FEW_FILES)
		limit.rlim_cur = FEW_FILES;
	sys_keep_apart((int)(limit.rlim_cur - limit.rlim_cur / 8));
}

/*
 * From here on this thread opens and closes nothing of the host's. 0 to 2 go to /dev/null: a copy of the host's pipes
 * kept here would hide their end from whoever reads them, and no file of ours may get such a number.
 */
static void leave_files(void)
{
	int i;

	if (syscall(SYS_close_range, 0u, ~0u, CLOSE_UNSHARE) && !leave_files_by_hand()) {
		keep_files_apart();
		return;
	}
	for (i = 0; i < 3; i++) {
		if (open("/dev/null", O_RDWR | O_CLOEXEC) > 2)
			break;
	}
	atomic_store_explicit(&own_files, true, memory_order_relaxed);
}

/* The kernel cuts the mask down to what the process's cpuset allows. */
static void leave_cpus(void)
{
	unsigned long mask[AFFINITY_WORDS];

	memset(mask, 0xff, sizeof(mask));
	syscall(SYS_sched_setaffinity, 0, sizeof(mask), mask);
}

static void *thread_main(void *arg)
{
	struct own_thread *t = arg;
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

	if (pthread_setname_np)
		pthread_setname_np(pthread_self(), t->name);
	atomic_store_explicit(&t->tid, tid, memory_order_relaxed);
	if (t != &threads[THREAD_LAST])
		leave_files();
	leave_cpus();
	setpriority(PRIO_PROCESS, tid, OWN_NICE);

	t->run();

	atomic_store_explicit(&t->tid, 0, memory_order_relaxed);
	atomic_store_explicit(&t->state, THREAD_ENDED, memory_order_release);
	atomic_store_explicit(&t->end, 1, memory_order_release);
	futex_wake(&t->end);
	return NULL;
}

/* A small stack; static TLS of the host's libraries is taken from it too, so the usual size where that does not fit. */
static int create_detached(struct own_thread *t)
{
	pthread_attr_t attr;
	pthread_t handle;
	int ret;

	if (FAULT("thread.create"))
		return errno;
	if (pthread_attr_init(&attr))
		return ENOMEM;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_attr_setstacksize)
		pthread_attr_setstacksize(&attr, STACK_BYTES);
	ret = pthread_create(&handle, &attr, thread_main, t);
	pthread_attr_destroy(&attr);
	if (ret != EINVAL)
		return ret;
	if (pthread_attr_init(&attr))
		return ENOMEM;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	ret = pthread_create(&handle, &attr, thread_main, t);
	pthread_attr_destroy(&attr);
	return ret;
}

int thread_start(enum thread_id id, void (*run)(void))
{
	struct own_thread *t = &threads[id];
	int state = atomic_load_explicit(&t->state, memory_order_acquire);
	sigset_t all, before;
	int ret;

	if (!pthread_create || !pthread_sigmask)
		return -ENOSYS;
	if (state == THREAD_RUNS || !atomic_compare_exchange_strong_explicit(
					    &t->state, &state, THREAD_RUNS, memory_order_acq_rel, memory_order_acquire))
		return -EALREADY;
	t->run = run;
	atomic_store_explicit(&t->stop, 0, memory_order_relaxed);
	atomic_store_explicit(&t->end, 0, memory_order_relaxed);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = create_detached(t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret) {
		atomic_store_explicit(&t->state, THREAD_NONE, memory_order_release);
		siglog(SIGLOG_ERROR, "threads", "cannot start %s: error %d", t->name, ret);
	}
	return -ret;
}

void thread_stop(enum thread_id id)
{
	atomic_store_explicit(&threads[id].stop, 1, memory_order_release);
	thread_wake(id);
}

bool thread_stopping(enum thread_id id)
{
	return atomic_load_explicit(&threads[id].stop, memory_order_acquire);
}

bool thread_wait_end(enum thread_id id, uint64_t deadline_ns)
{
	struct own_thread *t = &threads[id];

	while (thread_running(id)) {
		uint64_t now_ns = clock_mono_ns();

		if (now_ns >= deadline_ns)
			return false;
		futex_wait(&t->end, 0, deadline_ns - now_ns);
	}
	return true;
}

void thread_wake(enum thread_id id)
{
	atomic_fetch_add_explicit(&threads[id].bell, 1, memory_order_release);
	futex_wake(&threads[id].bell);
}

void thread_sleep(enum thread_id id, uint64_t ns)
{
	static uint32_t heard[THREAD_COUNT]; /* each thread its own element */
	uint32_t bell = atomic_load_explicit(&threads[id].bell, memory_order_acquire);

	if (bell == heard[id])
		futex_wait(&threads[id].bell, bell, ns);
	heard[id] = atomic_load_explicit(&threads[id].bell, memory_order_acquire);
}

uint64_t thread_cpu_ns(enum thread_id id)
{
	uint32_t tid = thread_tid(id);
	char path[64], text[96];
	ssize_t len;
	int fd;

	if (!tid)
		return 0;
	snprintf(path, sizeof(path), "/proc/self/task/%u/schedstat", tid);
	fd = sys_open_apart(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	len = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (len <= 0)
		return 0;
	text[len] = 0;
	return strtoull(text, NULL, 10);
}

uint32_t thread_tid(enum thread_id id)
{
	return atomic_load_explicit(&threads[id].tid, memory_order_relaxed);
}

bool thread_running(enum thread_id id)
{
	return atomic_load_explicit(&threads[id].state, memory_order_acquire) == THREAD_RUNS;
}

bool threads_own_files(void)
{
	return atomic_load_explicit(&own_files, memory_order_relaxed);
}

void threads_after_fork(void)
{
	int i;

	for (i = 0; i < THREAD_COUNT; i++) {
		atomic_store_explicit(&threads[i].state, THREAD_NONE, memory_order_relaxed);
		atomic_store_explicit(&threads[i].tid, 0, memory_order_relaxed);
	}
}
