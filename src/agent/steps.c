/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What calls of traced functions mean: stages, the step's number, per-step sums of collectives, and how much of it is
 * written. The hooks of python/ call stage_enter() and stage_leave() with the GIL held, so everything static here has
 * one writer at a time; what other threads and processes read lies in the pool's header. docs/steps.md is the contract.
 */
#include "agent/steps.h"

#include "agent/agent.h"
#include "agent/flight.h"
#include "agent/parent.h"
#include "agent/python/comm.h"
#include "agent/stage.h"
#include "safe/clock.h"
#include "wire/plugin_spec.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_STAGE UINT32_MAX /* stage_frame.outer_stage: this call did not touch the header's stage */
#define COMM_BITS (PLUGIN_BIT_COMM | PLUGIN_BIT(PLUGIN_MSPTI))
#define SHORT_STAGE_NS 100000u /* synchronisations and unnamed kinds below this are summed */
#define SHORT_GC_NS 1000000u /* young generations below this are summed */
#define LONG_NS 100000000u /* what lasts this long is written whatever the budget: it cannot come often */
#define PACE_NS 10000000000ull /* where no step ends: decide again, and write sums, that often */
#define OVERDRAFT_BYTES (128 << 10) /* a step that was begun in full may exceed the credit by this */
#define WORKER_SHARE 8

/* About what one record takes in a pb file (measured: docs/steps.md); only the pacing uses them. */
enum { STAGE_BYTES = 90, GC_BYTES = 55, STEP_BYTES = 26, SUM_BYTES = 56 };

#define SUMS 64u

struct sum {
	uint32_t op;
	uint32_t group;
	uint32_t calls; /* 0 = free slot */
	uint32_t last_seq;
	uint64_t begin_ns;
	uint64_t last_begin_ns;
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t elements;
};

/* This process's state. A forked child inherits a copy and goes on with it as a worker; a promoted one starts anew. */
static struct {
	const struct pool_header *head; /* the pool it belongs to; another one: start anew */
	uint32_t generation; /* guard's, 1 = the process that made the pool */

	enum step_source source; /* of the last step that ended */
	uint64_t begin_ns; /* of the running step; 0 = nothing seen yet */
	uint32_t microbatches; /* dataloader calls that gave data, within the running step */

	/* Optimizers, by address and never followed: a step ends when one steps that already did since the step before
	 * last. anchor ended the last step; second was the first other one after it. */
	const void *anchor;
	const void *second;
	const void *wrapper; /* an optimizer seen to call another's step: without doing so it only skips */
	const void *loop; /* &mine of the thread that runs the training loop; NULL = not known: the main thread */

	int64_t credit; /* bytes that may still be written */
	uint64_t credit_ns; /* when it was last refilled */
	bool full; /* this step's stages are written one by one */

	struct sum sums[SUMS];
	uint32_t sum_count;
	uint64_t sums_ns; /* when they were last written */
	uint32_t gc_name;

	struct steps_stats stats;
} steps;

/* This thread's nesting, by role. */
static __thread struct {
	uint32_t generation; /* of the guard when it was filled in */
	uint32_t tid;
	bool main;
	bool inner_step; /* an inner optimizer stepped within the outermost call */
	uint8_t depth[ROLE_COMM + 1];
	const void *optimizer; /* object of the outermost call */
} mine __attribute__((tls_model("initial-exec")));

/* ---- who is calling ------------------------------------------------------------------------------------------------- */

/* A forked child, or one that multiprocessing started for a rank that trains. */
static bool is_worker(void)
{
	return steps.generation != 1 || agent_place() != agent.pool.head;
}

/* What steps or calls a collective is no worker. A forked child becomes a rank by agent_record(), as its call returns. */
static void stand_alone(void)
{
	if (steps.generation == 1)
		parent_leave();
}

static void adopt_process(uint32_t generation)
{
	const struct pool_header *head = agent.pool.head;
	uint64_t now = clock_mono_ns();

	if (steps.head == head && generation != 1) {
		/* a forked child: the parent's sums and running step are the parent's to write */
		memset(steps.sums, 0, sizeof(steps.sums));
		steps.sum_count = 0;
		steps.microbatches = 0;
		memset(&steps.stats, 0, sizeof(steps.stats));
	} else {
		memset(&steps, 0, sizeof(steps));
	}
	steps.head = head;
	steps.generation = generation;
	steps.credit = is_worker() ? STEPS_BURST_BYTES / WORKER_SHARE : STEPS_BURST_BYTES;
	steps.credit_ns = now;
	steps.sums_ns = now;
	steps.full = true;
	steps.gc_name = pool_intern(&agent.pool, "GC", 2);
}

static void adopt_thread(uint32_t generation)
{
	memset(mine.depth, 0, sizeof(mine.depth));
	mine.tid = (uint32_t)syscall(SYS_gettid);
	mine.main = mine.tid == atomic_load_explicit(&agent.pool.guard->pid, memory_order_relaxed);
	mine.generation = generation;
}

static void adopt(void)
{
	uint32_t generation = atomic_load_explicit(&agent.pool.guard->generation, memory_order_relaxed);

	if (steps.head != agent.pool.head || steps.generation != generation) {
		adopt_process(generation);
		mine.generation = 0;
	}
	if (mine.generation != generation)
		adopt_thread(generation);
}

static bool in_loop(void)
{
	return !is_worker() && (steps.loop ? steps.loop == &mine : mine.main);
}

/* One writer, with the GIL; the control thread reads. */
static void tally(uint64_t *count)
{
	__atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
}

/* The step that runs, from 1: one behind the completed ones, so that its records and its step record have one number. */
static uint32_t step_running(void)
{
	return (uint32_t)atomic_load_explicit(&agent_place()->step, memory_order_relaxed) + 1;
}

/* Begins the recording, or makes a rank of a forked child: agent_record() knows what is left to do. */
static void wake(enum agent_reason reason)
{
	if (agent_state() == AGENT_RECORDING && !is_worker())
		return;
	comm_hint_rank();
	agent_record(reason);
}

/* ---- the budget ----------------------------------------------------------------------------------------------------- */

static void pace(uint64_t now)
{
	int64_t share = is_worker() ? WORKER_SHARE : 1;
	int64_t burst = STEPS_BURST_BYTES / share;
	uint64_t ns = now > steps.credit_ns ? now - steps.credit_ns : 0;

	if (ns > 3600000000000ull)
		ns = 3600000000000ull;
	steps.credit += (int64_t)(ns / 1000 * STEPS_RATE_BYTES_PER_HOUR / 3600000000u) / share;
	if (steps.credit > burst)
		steps.credit = burst;
	steps.credit_ns = now;
	steps.full = steps.credit > 0;
}

static void spend(int64_t bytes)
{
	steps.credit -= bytes;
	if (steps.credit < -(OVERDRAFT_BYTES / (is_worker() ? WORKER_SHARE : 1)))
		steps.full = false;
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

static void sum_add(uint32_t op, uint32_t group, uint64_t begin_ns, uint64_t dur_ns, uint64_t elements, uint32_t seq)
{
	uint32_t i, at = (op * 2654435761u ^ group) % SUMS;
	struct sum *sum;

	for (i = 0; i < SUMS; i++, at = (at + 1) % SUMS) {
		sum = &steps.sums[at];
		if (!sum->calls) {
			*sum = (struct sum){ .op = op, .group = group, .begin_ns = begin_ns };
			steps.sum_count++;
		} else if (sum->op != op || sum->group != group) {
			continue;
		}
		sum->calls++;
		sum->last_seq = seq;
		sum->last_begin_ns = begin_ns;
		sum->total_ns += dur_ns;
		if (dur_ns > sum->max_ns)
			sum->max_ns = dur_ns;
		sum->elements += elements;
		return;
	}
	atomic_fetch_add_explicit(&agent.pool.head->dropped[POOL_SRC_COMM], 1, memory_order_relaxed);
}

static void sums_write(uint64_t now)
{
	uint32_t i;

	steps.sums_ns = now;
	for (i = 0; i < SUMS && steps.sum_count; i++) {
		struct sum *sum = &steps.sums[i];
		struct rec_comm_sum rec = {
			.head = { .bytes = sizeof(rec), .type = REC_COMM_SUM, .step = step_running() },
			.begin_ns = sum->begin_ns,
			.last_begin_ns = sum->last_begin_ns,
			.total_ns = sum->total_ns,
			.max_ns = sum->max_ns,
			.elements = sum->elements,
			.calls = sum->calls,
			.op = sum->op,
			.group = sum->group,
			.last_seq = sum->last_seq,
		};

		if (!sum->calls)
			continue;
		pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_COMM);
		spend(SUM_BYTES);
		sum->calls = 0;
		steps.sum_count--;
	}
}

/* Jobs without steps (inference without listed calls, evaluation) still get sums and a refilled budget. */
static void tick(uint64_t now)
{
	if (now - steps.sums_ns < PACE_NS || now < steps.sums_ns)
		return;
	pace(now);
	if (steps.full || is_worker())
		sums_write(now);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* A better source takes over for good: optimizers, then model calls, then the dataloader. */
static const uint8_t source_rank[] = {
	[STEP_BY_UNKNOWN] = 0,
	[STEP_BY_DATALOADER] = 1,
	[STEP_BY_MODEL_CALL] = 2,
	[STEP_BY_OPTIMIZER] = 3,
};

static void step_end(enum step_source source, uint64_t now)
{
	struct pool_header *head = agent.pool.head;
	uint64_t done = atomic_load_explicit(&head->step, memory_order_relaxed);
	struct rec_step rec = { .head = { .bytes = sizeof(rec), .type = REC_STEP }, .source = source };

	if (source_rank[source] < source_rank[steps.source])
		return;
	if (steps.source != source) {
		rec.renumbered_from = (uint32_t)done;
		done = 0;
		steps.source = source;
	}
	if (!steps.full)
		tally(&steps.stats.paced_steps);
	pace(now);
	if (steps.full)
		sums_write(now);

	rec.head.step = (uint32_t)(done + 1);
	rec.begin_ns = steps.begin_ns && steps.begin_ns < now ? steps.begin_ns : now;
	rec.dur_ns = now - rec.begin_ns;
	rec.microbatches = steps.microbatches;
	pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_STEP);
	spend(STEP_BYTES);

	steps.begin_ns = now;
	steps.microbatches = 0;
	/* release: who reads the new number (a plugin's start_step, a probe) finds the step's record before it */
	atomic_store_explicit(&head->step, done + 1, memory_order_release);
	wake(AGENT_BY_STEP);
}

/* Has this optimizer's turn come again? */
static bool optimizer_again(const void *object)
{
	if (!steps.anchor || object == steps.anchor) {
		steps.anchor = object;
		steps.second = NULL;
		return true;
	}
	if (object == steps.second) { /* the anchor is gone */
		steps.anchor = object;
		steps.second = NULL;
		return true;
	}
	if (!steps.second)
		steps.second = object;
	return false;
}

static void optimizer_done(uint64_t now)
{
	const void *object = mine.optimizer;

	if (is_worker()) {
		wake(AGENT_BY_STEP);
		return;
	}
	if (mine.inner_step)
		steps.wrapper = object;
	else if (object && object == steps.wrapper)
		return; /* gradient accumulation: it did not step this time */
	steps.loop = &mine;
	if (optimizer_again(object))
		step_end(STEP_BY_OPTIMIZER, now);
}

/* ---- collectives ---------------------------------------------------------------------------------------------------- */

static void comm_enter(const struct stage_fn *fn, struct stage_frame *frame, void *const *args, size_t nargsf,
		       void *kwnames)
{
	struct comm_flight open = { .begin_ns = frame->begin_ns, .op = fn->op_name };
	struct comm_call call;

	frame->group = frame->dtype = frame->seq = 0;
	frame->count = 0;
	if (!frame->outermost)
		return;
	stand_alone();
	comm_read(fn, args, nargsf, kwnames, &call);
	if (call.outside) {
		frame->outermost = false;
		return;
	}
	frame->group = call.group;
	frame->dtype = call.dtype;
	frame->seq = call.seq;
	frame->count = call.count;
	open.group = call.group;
	open.dtype = call.dtype;
	open.seq = call.seq;
	open.count = call.count;
	open.step = step_running();
	open.pid = atomic_load_explicit(&agent.pool.guard->pid, memory_order_relaxed);
	open.tid = mine.tid;
	flight_enter(frame, &open);
	wake(AGENT_BY_COMM);
}

static _Atomic uint32_t markers_every = 1;

void steps_markers_every(uint32_t n)
{
	atomic_store_explicit(&markers_every, n, memory_order_relaxed);
}

/* Calls without a number of their own (no such group any more) are counted as they come. */
static bool marker_left_out(uint32_t seq)
{
	uint32_t every = atomic_load_explicit(&markers_every, memory_order_relaxed);

	if (every <= 1 || (seq ? seq : steps.stats.collectives) % every == 0)
		return false;
	tally(&steps.stats.left_out);
	return true;
}

static bool marker_put(const struct stage_fn *fn, const struct stage_frame *frame, uint64_t dur_ns, bool raised)
{
	struct rec_comm rec = {
		.head = { .bytes = sizeof(rec), .type = REC_COMM, .step = step_running() },
		.begin_ns = frame->begin_ns,
		.dur_ns = dur_ns,
		.count = frame->count,
		.op = fn->op_name,
		.group = frame->group,
		.dtype = frame->dtype,
		.seq = frame->seq,
	};

	if (!pool_on(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI)) || marker_left_out(frame->seq))
		return false;
	if (raised)
		rec.head.flags |= STAGE_RAISED;
	if (is_worker())
		rec.head.flags |= STAGE_WORKER;
	tally(&steps.stats.markers);
	return pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_COMM);
}

static void comm_leave(const struct stage_fn *fn, const struct stage_frame *frame, uint64_t now, bool raised)
{
	struct comm_flight flight = {
		.begin_ns = frame->begin_ns,
		.dur_ns = now - frame->begin_ns,
		.count = frame->count,
		.op = fn->op_name,
		.group = frame->group,
		.dtype = frame->dtype,
		.seq = frame->seq,
		.step = step_running(),
		.pid = atomic_load_explicit(&agent.pool.guard->pid, memory_order_relaxed),
		.tid = mine.tid,
		.flags = raised ? FLIGHT_RAISED : 0,
	};

	if (!frame->outermost)
		return;
	tally(&steps.stats.collectives);
	if (marker_put(fn, frame, flight.dur_ns, raised))
		flight.flags |= FLIGHT_WRITTEN;
	flight_leave(frame, &flight);
	sum_add(fn->op_name, frame->group, frame->begin_ns, flight.dur_ns, frame->count, frame->seq);
	tick(now);
}

/* ---- stages --------------------------------------------------------------------------------------------------------- */

/* Kinds of which a job may make hundreds of short calls in a step. */
static bool kind_is_frequent(enum stage_type kind)
{
	return kind == STAGE_SYNCHRONIZATION || kind == STAGE_UNKNOWN || kind == STAGE_FORWARD ||
	       kind == STAGE_CHECKPOINT; /* torch.load of single samples */
}

static void stage_put(const struct stage_fn *fn, const struct stage_frame *frame, uint64_t now, bool raised)
{
	const struct pool_header *head = agent_place();
	struct rec_stage rec = {
		.head = { .bytes = sizeof(rec), .type = REC_STAGE, .step = step_running() },
		.begin_ns = frame->begin_ns,
		.dur_ns = now - frame->begin_ns,
		.name = fn->name,
		.stage_id = atomic_load_explicit(&head->stage_id, memory_order_relaxed),
		.kind = fn->kind,
	};

	if (fn->kind == STAGE_SYNCHRONIZATION && mine.depth[ROLE_COMM])
		return; /* a collective's own waiting is in the collective */
	tick(now);
	if (rec.dur_ns < LONG_NS && (!steps.full || (rec.dur_ns < SHORT_STAGE_NS && kind_is_frequent(fn->kind)))) {
		tally(&steps.stats.summed);
		sum_add(fn->name, 0, rec.begin_ns, rec.dur_ns, 0, 0);
		return;
	}
	if (raised)
		rec.head.flags |= STAGE_RAISED;
	if (is_worker())
		rec.head.flags |= STAGE_WORKER;
	pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_STAGE);
	spend(STAGE_BYTES);
}

static void dataloader_enter(struct stage_frame *frame)
{
	if (is_worker() || !frame->outermost)
		return;
	if (!steps.loop)
		steps.loop = &mine;
	if (steps.microbatches)
		step_end(STEP_BY_DATALOADER, frame->begin_ns);
	atomic_fetch_add_explicit(&agent.pool.head->stage_id, 1, memory_order_relaxed);
}

static void optimizer_enter(struct stage_frame *frame, void *const *args, size_t nargsf)
{
	if (!frame->outermost)
		return;
	stand_alone();
	mine.inner_step = false;
	mine.optimizer = args && nargsf << 1 ? args[0] : NULL;
}

/* Other threads, forked workers and probes stamp their events with what the training loop is doing. */
static void stage_show(const struct stage_fn *fn, struct stage_frame *frame)
{
	frame->outer_stage = NO_STAGE;
	if (fn->kind == STAGE_UNKNOWN || !in_loop())
		return;
	frame->outer_stage = atomic_load_explicit(&agent.pool.head->stage, memory_order_relaxed);
	atomic_store_explicit(&agent.pool.head->stage, (uint32_t)fn->kind, memory_order_relaxed);
}

/* Unless another thread, which took over the loop meanwhile, shows its own. */
static void stage_hide(const struct stage_fn *fn, const struct stage_frame *frame)
{
	struct pool_header *head = agent.pool.head;

	if (frame->outer_stage != NO_STAGE && !is_worker() &&
	    atomic_load_explicit(&head->stage, memory_order_relaxed) == (uint32_t)fn->kind)
		atomic_store_explicit(&head->stage, frame->outer_stage, memory_order_relaxed);
}

void stage_enter(const struct stage_fn *fn, struct stage_frame *frame, void *const *args, size_t nargsf, void *kwnames)
{
	frame->begin_ns = 0;
	if (!pool_on(&agent.pool, fn->role == ROLE_COMM ? COMM_BITS : PLUGIN_BIT_STAGES))
		return;
	adopt();
	frame->outermost = !mine.depth[fn->role]++;
	frame->begin_ns = clock_mono_ns();
	if (!steps.begin_ns)
		steps.begin_ns = frame->begin_ns;
	switch (fn->role) {
	case ROLE_DATALOADER:
		dataloader_enter(frame);
		break;
	case ROLE_OPTIMIZER_STEP:
		optimizer_enter(frame, args, nargsf);
		break;
	case ROLE_COMM:
		comm_enter(fn, frame, args, nargsf, kwnames);
		break;
	case ROLE_MODEL_CALL:
		if (frame->outermost)
			stand_alone();
		break;
	case ROLE_PLAIN:
		break;
	}
	stage_show(fn, frame);
}

static void role_done(const struct stage_fn *fn, const struct stage_frame *frame, uint64_t now)
{
	switch (fn->role) {
	case ROLE_DATALOADER:
		if (frame->outermost && !is_worker())
			steps.microbatches++;
		break;
	case ROLE_OPTIMIZER_STEP:
		if (!frame->outermost)
			mine.inner_step = true;
		else
			optimizer_done(now);
		break;
	case ROLE_MODEL_CALL:
		if (!frame->outermost || is_worker())
			break;
		if (!steps.loop)
			steps.loop = &mine;
		step_end(STEP_BY_MODEL_CALL, now);
		break;
	case ROLE_COMM:
	case ROLE_PLAIN:
		break;
	}
}

void stage_leave(const struct stage_fn *fn, struct stage_frame *frame, bool raised)
{
	uint64_t now;

	if (!frame->begin_ns)
		return;
	now = clock_mono_ns();
	adopt(); /* it may return in a forked child */
	if (mine.depth[fn->role])
		mine.depth[fn->role]--;
	stage_hide(fn, frame);
	if (fn->role == ROLE_COMM) {
		comm_leave(fn, frame, now, raised);
		return;
	}
	stage_put(fn, frame, now, raised);
	if (!raised)
		role_done(fn, frame, now);
}

void stage_gc(uint64_t begin_ns, uint64_t end_ns, uint32_t gen, uint32_t collected, uint32_t uncollectable)
{
	struct rec_gc rec = {
		.head = { .bytes = sizeof(rec), .type = REC_GC },
		.begin_ns = begin_ns,
		.dur_ns = end_ns - begin_ns,
		.gen = gen,
		.collected = collected,
		.uncollectable = uncollectable,
	};

	if (!pool_on(&agent.pool, PLUGIN_BIT_STAGES))
		return;
	adopt();
	tick(end_ns);
	if (rec.dur_ns < LONG_NS && (!steps.full || (rec.dur_ns < SHORT_GC_NS && gen < 2))) {
		tally(&steps.stats.summed);
		sum_add(steps.gc_name, 0, begin_ns, rec.dur_ns, collected, 0);
		return;
	}
	rec.head.step = step_running();
	rec.stage_id = atomic_load_explicit(&agent_place()->stage_id, memory_order_relaxed);
	if (is_worker())
		rec.head.flags |= STAGE_WORKER;
	pool_put(&agent.pool, &rec, sizeof(rec), POOL_SRC_STAGE);
	spend(GC_BYTES);
}

/* ---- roles ---------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *spec)
{
	const char *at = strrchr(spec, '@');

	return at ? at + 1 : spec;
}

enum stage_role stage_role_of(const char *spec, enum stage_type kind)
{
	const char *name = last_part(spec);

	/* vLLM's workers and runners, and MindSpore's cell that holds a whole training step */
	if (!strcmp(name, "execute_model") || strstr(spec, "TrainOneStepCell@__call__"))
		return ROLE_MODEL_CALL;
	switch (kind) {
	case STAGE_DATALOADER:
		return ROLE_DATALOADER;
	case STAGE_OPTIMIZER:
		return strcmp(name, "step") ? ROLE_PLAIN : ROLE_OPTIMIZER_STEP;
	case STAGE_COMM:
		return comm_knows(name) ? ROLE_COMM : ROLE_PLAIN;
	default:
		return ROLE_PLAIN;
	}
}

void steps_stats(struct steps_stats *stats)
{
	const uint64_t *from = (const uint64_t *)&steps.stats;
	uint64_t *to = (uint64_t *)stats;
	size_t i;

	for (i = 0; i < sizeof(*stats) / sizeof(*to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void steps_reset(void)
{
	memset(&steps, 0, sizeof(steps));
}
