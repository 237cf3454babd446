/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The agent's life: what the library does when it is loaded into a process, when it starts, begins to record and ends.
 * Almost every process that loads it (shells, compilers, git) must not notice: the constructor makes a few symbol
 * look-ups and returns. Threads, control and output are in the files named after them.
 */
#include "agent/life.h"

#include "agent/ctl_server.h"
#include "agent/env.h"
#include "agent/identity.h"
#include "agent/io_thread.h"
#include "agent/last.h"
#include "agent/parent.h"
#include "agent/python/python.h"
#include "agent/stack/pyframes.h"
#include "agent/threads.h"
#include "safe/clock.h"
#include "safe/siglog.h"
#include "wire/plugin_spec.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define END_LIMIT_NS 2000000000u
#define PLUGINS_LIMIT_NS 1000000000u

struct agent agent;
struct life life = { .record_reason = -1 };

/*
 * What the constructor looks for, as weak references: ld.so answers them while it loads us, at no cost of its own. (A
 * dlsym that finds nothing allocates the text of its error, in processes that are none of our business.)
 */
extern int Py_IsInitialized(void) __attribute__((weak)); /* any CPython */
extern int cudaRuntimeGetVersion(int *) __attribute__((weak)); /* libcudart */
extern int cuDriverGetVersion(int *) __attribute__((weak)); /* libcuda */
extern int aclrtSetDevice(int) __attribute__((weak)); /* libascendcl */
extern int msptiSubscribe(void *, void *, void *) __attribute__((weak)); /* libmspti */

/* The one name this library lets out. With a second copy in the process it leads both to the first. */
static const char anchor[] = "sysTrace " ST_VERSION;
extern const char systrace_agent_anchor[sizeof(anchor)] __attribute__((alias("anchor"), visibility("default")));

const char *life_reason_text(int reason)
{
	static const char *const text[] = {
		[AGENT_BY_FRAMEWORK] = "framework", [AGENT_BY_RUNTIME] = "runtime",
		[AGENT_BY_COMMAND] = "command",	    [AGENT_BY_ENV] = "env",
		[AGENT_BY_PARENT] = "parent",	    [AGENT_BY_STEP] = "step",
		[AGENT_BY_COMM] = "comm",
	};

	return reason < 0 || reason > AGENT_BY_COMM ? "" : text[reason];
}

const char *life_state_text(enum agent_state state)
{
	static const char *const text[] = {
		[AGENT_INERT] = "inert", [AGENT_DORMANT] = "dormant",	  [AGENT_STARTING] = "starting",
		[AGENT_READY] = "ready", [AGENT_RECORDING] = "recording", [AGENT_STOPPING] = "stopping",
	};

	return text[state];
}

bool life_is_child(void)
{
	const struct pool_guard *guard = agent.pool.guard;

	/* wiped, or in a generation of its own (safe/pool.h); fork.c does the same where the kernel can't wipe */
	return guard && atomic_load_explicit(&guard->generation, memory_order_relaxed) != 1;
}

/*
 * For the exit path: also right in a child that shares our memory (vfork), and where nothing was wiped. The pid alone is
 * not enough: a child in a pid namespace of its own may have the very number that we have in ours (1, in a container).
 */
static bool other_process(void)
{
	return life_is_child() || (life.pid && life.pid != (uint32_t)syscall(SYS_getpid));
}

/* --- start ----------------------------------------------------------------------------------------------------------- */

void life_log_setup(void)
{
	char path[512], fallback[512];

	snprintf(path, sizeof(path), "%s/systrace-%s-%u.log", env.text[ENV_LOG_PATH], identity.host, identity.pid);
	fallback[0] = 0;
	if (env.state_home)
		snprintf(fallback, sizeof(fallback), "%s/sysTrace/log/systrace-%s-%u.log", env.state_home,
			 identity.host, identity.pid);
	siglog_setup(path, fallback, (enum siglog_level)env.log_level);
}

static int make_pool(void)
{
	struct spool_options options = {
		.size = sizeof(options),
		.place = env.text[ENV_SPOOL_PATH],
		.max_bytes = env.spool_bytes,
	};
	struct st_err err;
	int ret = spool_create(&life.spool, &agent.pool, &options, &err);

	if (ret < 0)
		siglog(SIGLOG_ERROR, "pool", "no memory for records, nothing is recorded: %s", err.text);
	else if (life.spool.note[0])
		siglog(SIGLOG_WARN, "pool", "%s", life.spool.note);
	agent.pool.starved = io_starved; /* before any hook may put a record */
	return ret;
}

int life_threads_start(void)
{
	struct python_options options = { .list_path = env.text[ENV_PYFUNC_LIST], .stages_on = env.python_tracing };
	int ret;

	io_announce();
	ret = thread_start(THREAD_IO, io_run);
	if (ret < 0)
		return ret;
	siglog_direct(false);
	ret = thread_start(THREAD_CTL, ctl_run);
	if (ret < 0) {
		thread_stop(THREAD_IO);
		siglog_direct(true);
		return ret;
	}
	if (python_present()) {
		python_configure(&options);
		/* without it there are no stages; everything else works */
		thread_start(THREAD_PY, python_loop);
	}
	return 0;
}

/* Nothing runs: what was queued for the io thread goes out here. */
static bool give_up(void)
{
	siglog_direct(true);
	siglog_drain();
	return false;
}

static bool start(enum agent_reason reason)
{
	identity_start();
	life.pid = identity.pid;
	life_log_setup();
	/* queued from the first line on: a thread of the job's may close our descriptor between open and write */
	siglog_direct(false);
	env_complain();
	atomic_store_explicit(&life.start_reason, reason, memory_order_relaxed);
	if (make_pool() < 0)
		return give_up();
	parent_find(); /* before the first record, so that it has the right step */
	agent.pool.head->worker_of = parent_pid();
	if (env.python_tracing)
		pool_switch(&agent.pool, PLUGIN_BIT_STAGES, true);
	pool_switch(&agent.pool, PLUGIN_BIT_COMM, true);
	fork_watch();
	if (life_threads_start() < 0) {
		pool_switch(&agent.pool, PLUGIN_BIT_STAGES | PLUGIN_BIT_COMM, false);
		spool_remove(&life.spool);
		return give_up();
	}
	return true;
}

void agent_start(enum agent_reason reason)
{
	int state = agent_state();
	int saved = errno;

	/* acquire and release: whoever sees READY sees pool and identity */
	if (state >= AGENT_STARTING || last_main_gone() ||
	    !atomic_compare_exchange_strong_explicit(&agent.state, &state, AGENT_STARTING, memory_order_acq_rel,
						     memory_order_relaxed))
		return;
	if (!start(reason)) {
		atomic_store_explicit(&agent.state, AGENT_INERT, memory_order_release);
		errno = saved;
		return;
	}
	atomic_store_explicit(&agent.state, AGENT_READY, memory_order_release);
	siglog(SIGLOG_INFO, "agent", "sysTrace %s started by %s in pid %u (%s)", ST_VERSION, life_reason_text(reason),
	       identity.pid, identity.job);
	if (reason == AGENT_BY_RUNTIME)
		agent_record(reason);
	if (reason == AGENT_BY_ENV && env.given[ENV_PLUGINS])
		ctl_wait_ready(clock_mono_ns() + PLUGINS_LIMIT_NS);
	errno = saved;
}

void life_mark_recording(enum agent_reason reason)
{
	atomic_store_explicit(&life.record_reason, reason, memory_order_relaxed);
	atomic_store_explicit(&agent.pool.head->recording, POOL_RECORDS, memory_order_relaxed);
}

void agent_record(enum agent_reason reason)
{
	int state = AGENT_READY;
	int saved = errno;

	if (reason >= AGENT_BY_STEP && life_is_child()) {
		fork_promote(reason);
		errno = saved;
		return;
	}
	if (!atomic_compare_exchange_strong_explicit(&agent.state, &state, AGENT_RECORDING, memory_order_acq_rel,
						     memory_order_relaxed))
		return;
	life_mark_recording(reason);
	thread_wake(THREAD_IO);
	errno = saved;
}

void agent_bind_rank(void)
{
	int saved = errno;

	if (agent_state() >= AGENT_READY && !life_is_child())
		identity_bind();
	errno = saved;
}

void agent_rank_hint(uint32_t rank, uint32_t world_size)
{
	identity_hint(rank, world_size);
}

/* --- load ------------------------------------------------------------------------------------------------------------ */

/*
 * A copy that was here first, of whatever version: the reference leads to it, or, where this one was loaded with
 * RTLD_DEEPBIND and sees itself first, a search that begins at the program.
 */
static bool another_copy(void)
{
	const void *first;
	void *global; /* the program's own handle: it is never unloaded, so a reference to it costs nothing */

	if (&systrace_agent_anchor[0] != &anchor[0])
		return true;
	global = dlopen ? dlopen(NULL, RTLD_LAZY) : NULL;
	first = global ? dlsym(global, "systrace_agent_anchor") : NULL;
	return first && first != &anchor[0];
}

static void load(void)
{
	enum env_switch wish = env_switch();
	/* a program linked with a device runtime is a job whatever its language */
	bool runtime = cudaRuntimeGetVersion || cuDriverGetVersion || aclrtSetDevice || msptiSubscribe;

	/* weak too: a process without libdl or libpthread, before glibc 2.34, is no job of ours */
	if (wish == ENV_SWITCH_OFF || !dlsym || !pthread_create)
		return;
	if (!Py_IsInitialized && !runtime && wish != ENV_SWITCH_ON)
		return;
	if (another_copy())
		return;
	env_read();
	last_watch();
	atomic_store_explicit(&agent.state, AGENT_DORMANT, memory_order_relaxed);
	if (wish == ENV_SWITCH_ON)
		agent_start(AGENT_BY_ENV);
	else if (runtime)
		agent_start(AGENT_BY_RUNTIME);
	else if (python_watch() < 0)
		atomic_store_explicit(&agent.state, AGENT_INERT, memory_order_relaxed);
}

__attribute__((constructor)) static void construct(void)
{
	int saved = errno;

	load();
	errno = saved;
}

/* --- end ------------------------------------------------------------------------------------------------------------- */

void life_end(void)
{
	uint64_t deadline_ns = clock_mono_ns() + END_LIMIT_NS;
	int state = agent_state();

	if (state < AGENT_READY || state == AGENT_STOPPING || other_process())
		return;
	atomic_store_explicit(&agent.state, AGENT_STOPPING, memory_order_release);
	/* here only: a forked child may live on (daemons), and must still be able to become an agent of its own */
	atomic_store_explicit(&agent.pool.guard->on, 0, memory_order_release);
	thread_stop(THREAD_PY);
	thread_stop(THREAD_HOOK);
	python_stop(0);
	thread_stop(THREAD_CTL);
	ctl_stop();
	thread_stop(THREAD_IO);
	/* the io thread removes the spool; here the stack may be that of a signal handler, and tiny */
	thread_wait_end(THREAD_CTL, deadline_ns);
	thread_wait_end(THREAD_IO, deadline_ns);
	siglog_direct(true);
}

void agent_python_ends(void)
{
	pyframes_stop();
	life_end();
}

__attribute__((destructor)) static void destruct(void)
{
	int saved = errno;

	life_end();
	errno = saved;
}
