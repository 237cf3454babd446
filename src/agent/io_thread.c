/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The thread systrace/io; see io_thread.h. The work itself is spool/drain.c's; here is when and where to. */
#include "agent/io_thread.h"

#include "agent/env.h"
#include "agent/flight.h"
#include "agent/identity.h"
#include "agent/life.h"
#include "agent/meta.h"
#include "agent/parent.h"
#include "agent/threads.h"
#include "base/fault.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "safe/siglog.h"
#include "spool/recover.h"
#include "spool/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLUSH_NS 200000000u
#define BUSY_NS 5000000u /* the shortest sleep, while the pool fills fast */
#define META_PERIOD_NS 60000000000u
#define SLOW_NS 2000000000u /* a pass that takes longer shows a slow file system */
#define RECOVER_AFTER_NS 300000000000u /* then look, once, for what killed processes left */
#define WORKERS_PERIOD_NS 5000000000u /* between looks for what this process's workers left */
#define PARENT_PERIOD_NS 1000000000u
#define END_TRIES 3

static struct {
	struct drain *drain;
	struct io_status status; /* copied under .lock for others */
	pthread_mutex_t lock;
	struct io_result result;
	_Atomic uint32_t asked; /* tickets given */
	_Atomic uint32_t done; /* highest ticket fulfilled */
	_Atomic uint32_t wishes; /* enum io_wish, or-ed */
	uint64_t meta_ns; /* when the meta file was written last, 0 = never */
	int meta_files;
	bool meta_failed; /* said once */
	bool late_rank_said;
	bool local; /* output goes below SYSTRACE_LOCAL_PATH */
	uint64_t recover_ns; /* when to look for what killed processes left; 0 = done */
	uint64_t workers_ns; /* when to look for what workers left */
	uint64_t parent_ns; /* when to look for our rank */
} io = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool recording(void)
{
	return atomic_load_explicit(&life.record_reason, memory_order_relaxed) >= 0;
}

/* --- what others ask ------------------------------------------------------------------------------------------------- */

uint32_t io_ask(unsigned wishes)
{
	uint32_t ticket;

	atomic_fetch_or_explicit(&io.wishes, wishes, memory_order_relaxed);
	/* release: the pass that sees the ticket sees the wish */
	ticket = atomic_fetch_add_explicit(&io.asked, 1, memory_order_release) + 1;
	thread_wake(THREAD_IO);
	return ticket;
}

bool io_done(uint32_t ticket, struct io_result *result)
{
	if ((int32_t)(atomic_load_explicit(&io.done, memory_order_acquire) - ticket) < 0)
		return false;
	pthread_mutex_lock(&io.lock);
	*result = io.result;
	pthread_mutex_unlock(&io.lock);
	return true;
}

void io_status(struct io_status *status)
{
	pthread_mutex_lock(&io.lock);
	*status = io.status;
	pthread_mutex_unlock(&io.lock);
}

void io_after_fork(void)
{
	pthread_mutex_init(&io.lock, NULL);
	io.drain = NULL;
	memset(&io.status, 0, sizeof(io.status));
	io.meta_ns = 0;
	io.meta_files = 0;
	io.meta_failed = false;
	io.late_rank_said = false;
	io.local = false;
	atomic_store_explicit(&io.done, atomic_load_explicit(&io.asked, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&io.wishes, 0, memory_order_relaxed);
}

/* --- before recording begins ----------------------------------------------------------------------------------------- */

static struct pool_chunk *chunk_at(uint32_t i)
{
	return (struct pool_chunk *)(agent.pool.chunks + (size_t)i * POOL_CHUNK_BYTES);
}

/* The full chunk that was taken first, NULL when none is full. */
static struct pool_chunk *oldest_full(uint32_t chunks)
{
	struct pool_chunk *best = NULL;
	uint32_t i;

	for (i = 0; i < chunks; i++) {
		struct pool_chunk *chunk = chunk_at(i);

		if (CHUNK_STATE(atomic_load_explicit(&chunk->state, memory_order_acquire)) != CHUNK_FULL)
			continue;
		if (!best || chunk->seq < best->seq)
			best = chunk;
	}
	return best;
}

static void forget(struct pool_chunk *chunk)
{
	uint64_t word = atomic_load_explicit(&chunk->state, memory_order_acquire);
	uint32_t at, used = atomic_load_explicit(&chunk->used, memory_order_acquire);
	const struct rec_head *rec;

	for (at = 0; at + sizeof(*rec) <= used; at += rec->bytes) {
		rec = (const struct rec_head *)(chunk->data + at);
		if (!rec->bytes)
			break;
		io.status.forgotten++;
	}
	atomic_store_explicit(&chunk->used, 0, memory_order_relaxed);
	chunk->taken = 0;
	/* release: the next owner writes after our last look */
	atomic_store_explicit(&chunk->state, CHUNK_WORD(CHUNK_TICKET(word), CHUNK_FREE), memory_order_release);
}

/* Nothing records yet: the newest half of the pool is kept for the moment when something does. */
static void keep_half(void)
{
	uint32_t chunks = atomic_load_explicit(&agent.pool.mapped_chunks, memory_order_acquire);
	uint32_t i, taken = 0;

	for (i = 0; i < chunks; i++) {
		if (CHUNK_STATE(atomic_load_explicit(&chunk_at(i)->state, memory_order_relaxed)) != CHUNK_FREE)
			taken++;
	}
	for (; taken > chunks / 2; taken--) {
		struct pool_chunk *chunk = oldest_full(chunks);

		if (!chunk)
			return;
		forget(chunk);
	}
}

/* --- where to -------------------------------------------------------------------------------------------------------- */

static bool make_dirs(char *path)
{
	char *p;

	for (p = path + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		mkdir(path, 0755);
		*p = '/';
	}
	return (!mkdir(path, 0755) || errno == EEXIST) && !access(path, W_OK | X_OK);
}

/* The dump path, or the user's own directory when that one cannot be made. */
static void choose_dump_path(char *out, size_t room)
{
	char other[POOL_PATH];
	int why;

	snprintf(out, room, "%s", env.text[ENV_DUMP_PATH]);
	if (env.given[ENV_LOCAL_PATH] && drain_remote(out)) {
		siglog(SIGLOG_INFO, "io", "%s is remote; output goes below %s, `systrace collect` moves it", out,
		       env.text[ENV_LOCAL_PATH]);
		snprintf(out, room, "%s", env.text[ENV_LOCAL_PATH]);
		io.local = true;
	}
	if (make_dirs(out))
		return;
	why = errno;
	if (!env.state_home)
		return; /* the drain says what is wrong, and retries */
	snprintf(other, sizeof(other), "%s/sysTrace", env.state_home);
	if (!make_dirs(other))
		return;
	siglog(SIGLOG_WARN, "io", "cannot write to %s (error %d); output goes to %s", out, why, other);
	snprintf(out, room, "%s", other);
}

static void say(void *ctx, const char *text)
{
	siglog(SIGLOG_WARN, "io", "%s", text);
}

void io_announce(void)
{
	struct msg_origin origin;
	struct st_err err;

	identity_guess();
	meta_origin(&origin);
	if (drain_announce(&agent.pool, &origin, env.text[ENV_DUMP_PATH], env.json, &err) < 0)
		siglog(SIGLOG_WARN, "io", "%s: nothing can be recovered if this process is killed early", err.text);
}

/* Recording has begun: bind the rank and make the drain; false: not possible, said, tried again later. */
static bool open_drain(void)
{
	char dump_path[POOL_PATH];
	struct drain_options options = {
		.size = sizeof(options),
		.pool = &agent.pool,
		.dump_path = dump_path,
		.lock_base = life.spool.base,
		.json = env.json,
		.keep_open = threads_own_files(),
		.max_bytes = env.max_bytes,
		.say = say,
	};
	struct msg_origin origin;
	struct st_err err;

	if (io.drain)
		return true;
	identity_bind();
	if (!atomic_load_explicit(&identity.bound, memory_order_acquire))
		return false; /* another thread is at it */
	choose_dump_path(dump_path, sizeof(dump_path));
	io.drain = drain_new(&options, &err);
	if (!io.drain) {
		siglog(SIGLOG_ERROR, "io", "%s", err.text);
		return false;
	}
	meta_origin(&origin);
	if (drain_identify(io.drain, &origin, &err) < 0)
		siglog(SIGLOG_ERROR, "io", "%s", err.text);
	pthread_mutex_lock(&io.lock);
	snprintf(io.status.dump_path, sizeof(io.status.dump_path), "%s", dump_path);
	pthread_mutex_unlock(&io.lock);
	return true;
}

/* The files of this process as a worker are done; what follows is a rank's. */
static void part(void)
{
	struct msg_origin origin;
	struct st_err err;

	identity_unbind();
	if (!io.drain)
		return; /* open_drain() binds */
	identity_bind();
	meta_origin(&origin);
	if (drain_part(io.drain, &origin, &err) < 0)
		siglog(SIGLOG_ERROR, "io", "%s", err.text);
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

static void publish(void)
{
	const char *path[POOL_FILES];
	int i, n = io.drain ? drain_files(io.drain, path) : 0;

	pthread_mutex_lock(&io.lock);
	if (io.drain)
		drain_stats(io.drain, &io.status.drain);
	for (i = 0; i < n; i++)
		snprintf(io.status.file[i], sizeof(io.status.file[i]), "%s", path[i]);
	io.status.files = n;
	pthread_mutex_unlock(&io.lock);
}

static void write_meta(bool ended)
{
	uint64_t now_ns = clock_mono_ns();
	struct st_err err;

	if (!io.status.files)
		return;
	if (!ended && io.meta_ns && io.status.files == io.meta_files && now_ns - io.meta_ns < META_PERIOD_NS)
		return;
	io.meta_ns = now_ns;
	io.meta_files = io.status.files;
	if (meta_write(&io.status, ended, &err) < 0 && !io.meta_failed) {
		io.meta_failed = true;
		siglog(SIGLOG_WARN, "io", "%s", err.text);
	}
}

/* Chunks that no thread can take now. */
static uint64_t taken_bytes(void)
{
	uint32_t i, taken = 0, chunks = atomic_load_explicit(&agent.pool.mapped_chunks, memory_order_acquire);

	for (i = 0; i < chunks; i++) {
		uint64_t word = atomic_load_explicit(&chunk_at(i)->state, memory_order_relaxed);

		taken += CHUNK_STATE(word) != CHUNK_FREE;
	}
	return (uint64_t)taken * POOL_CHUNK_BYTES;
}

/* Its record is lost, the next need not be. */
void io_starved(void)
{
	thread_wake(THREAD_IO);
}

/* A larger pool, as far as it can be had; what can't is in `status`. */
static void grow(uint64_t bytes)
{
	uint64_t want = bytes < env.spool_bytes ? bytes : env.spool_bytes;
	struct st_err err = { 0 };
	int64_t have = spool_grow(&life.spool, want, &err);
	bool enough = have >= 0 && (uint64_t)have >= want / POOL_CHUNK_BYTES * POOL_CHUNK_BYTES;

	if (have >= 0 && !enough)
		err_set(&err, -ENOSPC, "pool is %llu KiB instead of %llu: 1/8 of what %s has free is no more",
			(unsigned long long)(have >> 10), (unsigned long long)(want >> 10), life.spool.base);
	pthread_mutex_lock(&io.lock);
	snprintf(io.status.pool_text, sizeof(io.status.pool_text), "%.159s", enough ? "" : err.text);
	pthread_mutex_unlock(&io.lock);
}

/*
 * How long to sleep after this pass: half as long while the pool fills by an eighth between two passes, twice as long
 * while it does not. A pool more than half full is made larger, up to SYSTRACE_SPOOL_MB.
 */
static uint64_t pace(uint64_t sleep_ns)
{
	uint64_t bytes =
		(uint64_t)atomic_load_explicit(&agent.pool.mapped_chunks, memory_order_relaxed) * POOL_CHUNK_BYTES;
	uint64_t pending = drain_pending(&agent.pool), taken = taken_bytes();

	if (taken > pending)
		pending = taken; /* many threads with a little in each chunk */
	if (pending < bytes / 8)
		return sleep_ns < FLUSH_NS / 2 ? sleep_ns * 2 : FLUSH_NS;
	if (pending >= bytes / 2) {
		grow(bytes * 2);
		return BUSY_NS;
	}
	return sleep_ns > 2 * BUSY_NS ? sleep_ns / 2 : BUSY_NS;
}

/* The dump path has kept us waiting: from now on local segments, if there is a place for them. */
static void leave_slow_path(uint64_t took_ns)
{
	char path[POOL_PATH];
	struct st_err err;

	if (took_ns < SLOW_NS || io.local || !env.given[ENV_LOCAL_PATH])
		return;
	io.local = true;
	snprintf(path, sizeof(path), "%s", env.text[ENV_LOCAL_PATH]);
	if (!make_dirs(path) || drain_redirect(io.drain, path, &err) < 0)
		return;
	siglog(SIGLOG_WARN, "io", "writing to %s took %llu ms; output goes below %s from now on", io.status.dump_path,
	       (unsigned long long)(took_ns / 1000000u), path);
	drain_note(&agent.pool, "the dump path was slow (%llu ms for one write): continued below %s",
		   (unsigned long long)(took_ns / 1000000u), path);
	pthread_mutex_lock(&io.lock);
	snprintf(io.status.dump_path, sizeof(io.status.dump_path), "%s", path);
	pthread_mutex_unlock(&io.lock);
}

/*
 * Killed processes of this user, whose files go where ours go: those of another dump path might be on a server that does
 * not answer, and this thread is needed here.
 */
static void recover_others(void)
{
	struct recover_options options = {
		.size = sizeof(options),
		.place = env.text[ENV_SPOOL_PATH],
		.uid = identity.uid,
		.dump_path = io.status.dump_path,
	};
	struct st_err err;
	int done;

	if (!io.recover_ns || !io.status.dump_path[0] || (clock_mono_ns() < io.recover_ns && !FAULT("io.recover_now")))
		return;
	io.recover_ns = 0;
	done = recover_run(&options, &err);
	if (done > 0)
		siglog(SIGLOG_INFO, "io", "recovered the records of %d killed processes", done);
}

static void worker_gone(void *ctx, const struct recover_report *report)
{
	if (report->verdict == RECOVER_DONE)
		socket_remove(env.text[ENV_SOCKET_DIR], report->pid, identity.pidns);
}

/*
 * Workers of a forkserver leave by _exit, others by a signal: what they had not written yet is finished soon, in their
 * files, and their pools do not pile up in a memory file system that the job may need.
 */
static void recover_workers(void)
{
	struct recover_options options = {
		.size = sizeof(options),
		.place = env.text[ENV_SPOOL_PATH],
		.uid = identity.uid,
		.dump_path = io.status.dump_path[0] ? io.status.dump_path : env.text[ENV_DUMP_PATH],
		.worker_of = identity.pid,
		.report = worker_gone,
	};
	struct st_err ignored;

	recover_run(&options, &ignored);
	io.workers_ns = clock_mono_ns() + WORKERS_PERIOD_NS;
}

/*
 * A worker says so in its pool, for recover and for the names of its files, and records when its rank does. One that has
 * come to step by itself is a rank of its own, also in its files.
 */
static void follow_parent(void)
{
	struct pool_header *head = agent.pool.head;
	bool worker;

	if (!parent_pid() && clock_mono_ns() >= io.parent_ns) {
		io.parent_ns = clock_mono_ns() + PARENT_PERIOD_NS;
		parent_find();
		head->worker_of = parent_pid();
	}
	worker = agent_place() != head;
	if (worker != !!(head->worker_of & POOL_WORKER) && (!worker || !recording())) {
		head->worker_of = parent_pid() | (worker ? POOL_WORKER : 0);
		if (recording())
			part();
		else
			io_announce();
	}
	if (!recording() && parent_records())
		agent_record(AGENT_BY_PARENT);
}

static int sync_files(void)
{
	int i, ret = 0;

	for (i = 0; i < io.status.files; i++) {
		/* a pipe that somebody put there would make us wait for its writer */
		int fd = sys_open_apart(io.status.file[i], O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);

		if (fd < 0 || fsync(fd))
			ret = -errno;
		if (fd >= 0)
			close(fd);
	}
	return ret;
}

static void mention_late_rank(void)
{
	uint32_t rank;

	if (io.late_rank_said || !identity_late_hint(&rank))
		return;
	io.late_rank_said = true;
	siglog(SIGLOG_WARN, "io", "the process group says rank %u, but the files were begun as rank %u", rank,
	       identity.rank);
	drain_note(&agent.pool, "rank of the process group: %u (the files were begun as rank %u)", rank, identity.rank);
}

/* One pass while recording. Fulfils the wishes that were there when it began. */
static void pass(bool last)
{
	uint32_t ticket = atomic_load_explicit(&io.asked, memory_order_acquire);
	unsigned wishes = atomic_exchange_explicit(&io.wishes, 0, memory_order_relaxed);
	struct io_result result = { 0 };
	uint64_t begin_ns;
	int ret = 0;

	if (wishes & IO_GROW)
		grow(env.spool_bytes);
	atomic_store_explicit(&agent.pool.starving, 0, memory_order_relaxed);
	if (!open_drain()) {
		atomic_fetch_or_explicit(&io.wishes, wishes, memory_order_relaxed);
		return;
	}
	mention_late_rank();
	if (wishes || last)
		drain_retry_now(io.drain);
	if (wishes & IO_DUMP) {
		uint64_t now_ns = clock_mono_ns();

		flight_put_open();
		result.dumped =
			drain_dump_flight(io.drain, now_ns > FLIGHT_SPAN_NS ? now_ns - FLIGHT_SPAN_NS : 0, &result.err);
		if (result.dumped < 0)
			ret = result.dumped;
	}
	begin_ns = clock_mono_ns();
	if (!ret) {
		ret = drain_step(io.drain, true, &result.err);
		ret = ret < 0 ? ret : 0;
	}
	publish();
	leave_slow_path(clock_mono_ns() - begin_ns);
	if (!ret && (wishes & IO_SYNC))
		ret = sync_files();
	write_meta(false);
	result.code = ret;
	pthread_mutex_lock(&io.lock);
	io.result = result;
	pthread_mutex_unlock(&io.lock);
	atomic_store_explicit(&io.done, ticket, memory_order_release);
}

/* Not recording: there is nothing to write, so every wish is fulfilled. */
static void pass_idle(void)
{
	uint32_t ticket = atomic_load_explicit(&io.asked, memory_order_acquire);

	keep_half();
	pthread_mutex_lock(&io.lock);
	io.result = (struct io_result){ 0 };
	pthread_mutex_unlock(&io.lock);
	atomic_store_explicit(&io.done, ticket, memory_order_release);
}

void io_run(void)
{
	uint64_t sleep_ns = FLUSH_NS;
	bool all_written;
	int tries;

	follow_parent();
	io.recover_ns = clock_mono_ns() + RECOVER_AFTER_NS;
	io.workers_ns = clock_mono_ns() + WORKERS_PERIOD_NS;
	while (!thread_stopping(THREAD_IO)) {
		thread_sleep(THREAD_IO, sleep_ns);
		follow_parent();
		if (!recording()) {
			pass_idle();
		} else {
			sleep_ns = pace(sleep_ns);
			pass(false);
		}
		recover_others();
		if (clock_mono_ns() >= io.workers_ns)
			recover_workers();
		siglog_drain();
	}
	follow_parent();
	if (!recording() && agent.pool.head->worker_of & POOL_WORKER)
		life_mark_recording(AGENT_BY_PARENT); /* it ends before its rank's first step does */
	/* the hooks are off: what is in the pool now is all there will be */
	for (tries = 0; recording() && tries < END_TRIES; tries++) {
		pass(true);
		if (!drain_pending(&agent.pool))
			break;
	}
	write_meta(true);
	all_written = !recording() || !drain_pending(&agent.pool);
	drain_free(io.drain);
	io.drain = NULL;
	recover_workers();
	siglog(SIGLOG_INFO, "agent", "ended: %llu records written, %llu dropped",
	       (unsigned long long)io.status.drain.records, (unsigned long long)io.status.drain.dropped);
	siglog_drain();
	if (all_written && agent_state() == AGENT_STOPPING)
		spool_remove(&life.spool);
}
