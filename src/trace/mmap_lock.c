/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Waits for and holds of mmap_lock; see mmap_lock.h. */
#include "trace/mmap_lock.h"

#include <errno.h>
#include <stdlib.h>

enum { LOCK_MM, LOCK_WRITE, LOCK_SUCCESS };

/* A task at one address space: it waits, or it holds. */
struct use {
	uint64_t mm;
	int32_t tid, tgid, cpu;
	bool holds, write;
	uint64_t since_ns;
};

struct mmap_lock {
	sched_emit emit;
	void *arg;
	struct known_keys keys;
	struct use *uses; /* open ones: as many as threads are inside at a time */
	size_t count, room;
	uint64_t last_ns;
};

struct mmap_lock *mmap_lock_new(struct ev_session *session, sched_emit emit, void *arg)
{
	struct mmap_lock *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->emit = emit;
	m->arg = arg;
	if (known_keys_init(&m->keys, session)) {
		free(m);
		errno = ENOMEM;
		return NULL;
	}
	return m;
}

static int end_use(struct mmap_lock *m, const struct use *use, uint64_t t_ns, uint32_t flags)
{
	struct sched_span span = {
		.kind = use->holds ? SPAN_LOCK_HOLD : SPAN_LOCK_WAIT,
		.begin_ns = use->since_ns,
		.end_ns = t_ns > use->since_ns ? t_ns : use->since_ns,
		.cpu = use->cpu,
		.pid = use->tid,
		.tgid = use->tgid,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
		.number = (int64_t)use->mm,
		.flags = flags | (use->write ? SPAN_WRITE : 0),
	};

	return m->emit(m->arg, &span);
}

static struct use *find(struct mmap_lock *m, int32_t tid, uint64_t mm)
{
	size_t i;

	for (i = m->count; i-- > 0;)
		if (m->uses[i].tid == tid && m->uses[i].mm == mm)
			return &m->uses[i];
	return NULL;
}

static struct use *add(struct mmap_lock *m, const struct event *ev, bool holds)
{
	size_t room = m->room ? 2 * m->room : 64;
	struct use *more;

	if (m->count == m->room) {
		more = realloc(m->uses, room * sizeof(*more));
		if (!more)
			return NULL;
		m->uses = more;
		m->room = room;
	}
	m->uses[m->count] = (struct use){
		.mm = ev->args[LOCK_MM].u64,
		.tid = ev->track.tid,
		.tgid = ev->track.pid,
		.cpu = ev->track.cpu,
		.holds = holds,
		.write = ev->args[LOCK_WRITE].i64 != 0,
		.since_ns = ev->t_ns,
	};
	return &m->uses[m->count++];
}

static void drop(struct mmap_lock *m, struct use *use)
{
	*use = m->uses[--m->count];
}

/* Between the lost events anything may have happened to anyone. */
static int cut_all(struct mmap_lock *m, uint64_t t_ns, uint32_t flags)
{
	int ret = 0;

	while (!ret && m->count)
		ret = end_use(m, &m->uses[--m->count], t_ns, flags);
	return ret;
}

int mmap_lock_feed(struct mmap_lock *m, const struct event *ev)
{
	struct use *use;
	int ret = 0;

	if (ev->kind == EV_LOST)
		return cut_all(m, ev->t_ns, SPAN_CUT_LOST);
	if (ev->kind != EV_LOCK || ev->nargs <= LOCK_WRITE)
		return 0;
	m->last_ns = ev->t_ns > m->last_ns ? ev->t_ns : m->last_ns;
	use = find(m, ev->track.tid, ev->args[LOCK_MM].u64);
	if (ev->name == m->keys.name[KNOWN_MMAP_LOCK_START]) {
		if (use) /* its end is missing: unknown until when */
			drop(m, use);
		return add(m, ev, false) ? 0 : -ENOMEM;
	}
	if (ev->name == m->keys.name[KNOWN_MMAP_LOCK_ACQUIRED]) {
		bool success = ev->nargs <= LOCK_SUCCESS || ev->args[LOCK_SUCCESS].i64;

		if (use && !use->holds)
			ret = end_use(m, use, ev->t_ns, success ? 0 : SPAN_FAILED);
		if (use)
			drop(m, use);
		if (!ret && success && !add(m, ev, true))
			ret = -ENOMEM;
		return ret;
	}
	if (use && use->holds)
		ret = end_use(m, use, ev->t_ns, 0);
	if (use)
		drop(m, use);
	return ret;
}

int mmap_lock_finish(struct mmap_lock *m)
{
	return cut_all(m, m->last_ns, SPAN_END_UNSEEN);
}

void mmap_lock_free(struct mmap_lock *m)
{
	if (!m)
		return;
	free(m->uses);
	free(m);
}
