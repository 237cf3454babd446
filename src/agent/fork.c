/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Forked children of the job. Most are data-loader workers: they go on putting records into the inherited pool and the
 * parent writes them, so all a child has to do is forget the parent's threads, socket and files. The guard page tells it
 * at its first hook (safe/pool.h); the atfork handlers here only do it sooner, and help where the kernel can't wipe.
 * A child that turns out to be a rank of its own gets an agent of its own.
 */
#include "agent/life.h"

#include "agent/ctl_server.h"
#include "agent/env.h"
#include "agent/hook/got.h"
#include "agent/hook/hook.h"
#include "agent/identity.h"
#include "agent/io_thread.h"
#include "agent/parent.h"
#include "agent/plugin_frame.h"
#include "agent/python/python.h"
#include "agent/threads.h"
#include "safe/siglog.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic int promoting;

/* Runs in the child, which has one thread and may hold any lock of the host's: stores only, and pool_child_enter. */
static void in_child(void)
{
	struct pool_guard *guard = agent.pool.guard;

	if (!guard || agent_state() < AGENT_STARTING)
		return;
	/* kernels without MADV_WIPEONFORK: the guard came along as it was */
	atomic_store_explicit(&guard->alive, 0, memory_order_relaxed);
	pool_child_enter(&agent.pool);
	threads_after_fork();
	ctl_after_fork();
	io_after_fork();
	plugin_frame_after_fork();
	python_child();
	hook_after_fork();
	siglog_direct(true);
	atomic_store_explicit(&promoting, 0, memory_order_relaxed);
}

static void in_forked_child(void)
{
	got_fork_child();
	in_child();
}

void fork_watch(void)
{
	pthread_atfork(got_fork_prepare, got_fork_parent, in_forked_child);
}

/* --- promotion ------------------------------------------------------------------------------------------------------- */

/*
 * The new pool takes the place of the inherited one by one mremap: hooks on other threads keep their pointers, and one
 * that is inside pool_put leaves at worst one broken record, which the drain counts. Names keep their ids, because
 * traced functions remember them.
 */
static int replace_pool(struct st_err *err)
{
	static struct spool fresh;
	struct pool temporary = { 0 };
	struct spool_options options = {
		.size = sizeof(options),
		.place = env.text[ENV_SPOOL_PATH],
		.chunks = atomic_load_explicit(&agent.pool.mapped_chunks, memory_order_relaxed),
		.max_bytes = env.spool_bytes,
	};
	struct pool_header *old = agent.pool.head;
	int ret = spool_create(&fresh, &temporary, &options, err);

	if (ret < 0)
		return ret;
	if (fresh.area_bytes != life.spool.area_bytes) {
		spool_remove(&fresh);
		return err_set(err, -ENOSPC, "the pool of a forked rank would be smaller than its parent's");
	}
	memcpy(temporary.names, agent.pool.names, sizeof(*temporary.names));
	atomic_store(&temporary.head->names_used, atomic_load(&old->names_used));
	atomic_store(&temporary.head->step, atomic_load(&old->step));
	atomic_store(&temporary.head->stage, atomic_load(&old->stage));
	atomic_store(&temporary.head->stage_id, atomic_load(&old->stage_id));
	atomic_store(&temporary.head->on_mask, PLUGIN_BIT_COMM | (env.python_tracing ? PLUGIN_BIT_STAGES : 0));
	if (mremap(fresh.area, fresh.area_bytes, fresh.area_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, life.spool.area) ==
	    MAP_FAILED) {
		spool_remove(&fresh);
		return err_set(err, -errno, "cannot move the pool of a forked rank: error %d", errno);
	}
	fresh.area = life.spool.area;
	fresh.pool = &agent.pool;
	fresh.reserved_bytes = fresh.area_bytes; /* what is reserved behind it belongs to the old mapping */
	life.spool = fresh;
	agent.pool.shared_file = temporary.shared_file;
	atomic_store_explicit(&agent.pool.guard->on, atomic_load(&agent.pool.head->on_mask), memory_order_relaxed);
	atomic_store_explicit(&agent.pool.guard->generation, 1, memory_order_release);
	return 0;
}

void fork_promote(enum agent_reason reason)
{
	struct st_err err = { 0 };
	int idle = 0;

	if (agent_state() != AGENT_READY && agent_state() != AGENT_RECORDING)
		return;
	if (!atomic_compare_exchange_strong(&promoting, &idle, 1))
		return; /* under way, or it has failed before */
	in_child(); /* _Fork and clone run no handlers */
	atomic_store(&promoting, 1);
	parent_leave();
	identity_bind_again();
	life_log_setup();
	if (replace_pool(&err) < 0) {
		siglog(SIGLOG_WARN, "fork", "%s; its records go through the parent", err.text);
		return;
	}
	life.pid = identity.pid;
	life_mark_recording(reason);
	atomic_store_explicit(&agent.state, AGENT_RECORDING, memory_order_release);
	if (life_threads_start() < 0)
		siglog(SIGLOG_WARN, "fork", "no threads in this forked rank: nothing of it is written");
	hook_take_out();
	atomic_store(&promoting, 0);
}
