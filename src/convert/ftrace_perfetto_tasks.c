/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Which thread belongs to which process, and the process tree made of it; see ftrace_perfetto_impl.h. */
#include "convert/ftrace_perfetto_impl.h"
#include "trace/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_THREAD ((uint64_t)3 << 40) /* + tid */

static bool grow_tasks(struct perfetto *p)
{
	uint32_t room = p->task_room ? 2 * p->task_room : 1024, i, at;
	struct ptask *fresh = calloc(room, sizeof(*fresh));

	if (!fresh) {
		p->out.failed = -ENOMEM;
		return false;
	}
	for (i = 0; i < p->task_room; i++) {
		if (!p->tasks[i].tid)
			continue;
		for (at = (uint32_t)p->tasks[i].tid * 2654435761u; fresh[at & (room - 1)].tid; at++)
			;
		fresh[at & (room - 1)] = p->tasks[i];
	}
	free(p->tasks);
	p->tasks = fresh;
	p->task_room = room;
	return true;
}

static struct ptask *task_slot(struct perfetto *p, int32_t tid)
{
	uint32_t at;

	if (2 * p->task_count >= p->task_room && !grow_tasks(p))
		return NULL;
	for (at = (uint32_t)tid * 2654435761u; p->tasks[at & (p->task_room - 1)].tid; at++)
		if (p->tasks[at & (p->task_room - 1)].tid == tid)
			break;
	return &p->tasks[at & (p->task_room - 1)];
}

void pftask_note(struct perfetto *p, int32_t tid, int32_t tgid, uint32_t comm)
{
	struct ptask *task = tid > 0 && tgid > 0 ? task_slot(p, tid) : NULL;

	if (!task)
		return;
	p->task_count += !task->tid;
	task->tid = tid;
	task->tgid = tgid;
	if (comm)
		task->comm = comm;
}

uint64_t pftask_track(struct perfetto *p, int32_t tid, uint32_t comm)
{
	const struct pid_map *pids = p->base.view->options->pids;
	const struct pid_entry *entry = pids ? pid_map_find(pids, tid) : NULL;
	struct ptask *task;

	if (entry)
		pftask_note(p, tid, entry->tgid, 0);
	task = tid > 0 ? task_slot(p, tid) : NULL;
	if (!task || !task->tid)
		return 0;
	if (!task->has_track)
		pfpacket_thread_track(p, UUID_THREAD + (uint64_t)tid, task->tgid, tid, comm);
	task->has_track = true;
	return UUID_THREAD + (uint64_t)tid;
}

static void put_thread(struct perfetto *p, int32_t tid, int32_t tgid, int32_t inside, const char *name, size_t len,
		       bool process)
{
	struct pb_writer w = pfpacket_new(p);
	size_t mark, inner;

	pb_u64(&w, PACKET_TIMESTAMP, p->base.view->first_ns);
	mark = pb_begin(&w, PACKET_PROCESS_TREE);
	inner = pb_begin(&w, process ? 1 : 2);
	pb_u64(&w, 1, (uint64_t)tid);
	if (process) {
		pb_u64(&w, 2, 0);
		pb_bytes(&w, 3, name, len);
	} else {
		pb_bytes(&w, 2, name, len);
		pb_u64(&w, 3, (uint64_t)tgid);
	}
	if (inside != tid)
		pb_u64(&w, process ? 6 : 4, (uint64_t)inside);
	pb_end(&w, inner);
	pb_end(&w, mark);
	pb_u64(&w, PACKET_CLOCK_ID, p->clock_id);
	pfpacket_put(p, &w);
}

/* Processes first: a thread without its process would be refused. */
void pftask_put_tree(struct perfetto *p)
{
	const struct pid_map *pids = p->base.view->options->pids;
	struct ev_session *session = p->base.view->session;
	size_t i;

	for (i = 0; pids && i < pid_map_count(pids); i++) {
		const struct pid_entry *entry = pid_map_entry(pids, i);

		pftask_note(p, entry->host_pid, entry->tgid, ev_namez(session, entry->name));
	}
	for (int process = 1; process >= 0; process--)
		for (i = 0; i < p->task_room; i++) {
			const struct ptask *task = &p->tasks[i], *leader;
			const struct pid_entry *entry = pids && task->tid ? pid_map_find(pids, task->tid) : NULL;
			uint32_t comm = task->comm;
			char name[TEXT_MOST];

			if (!task->tid)
				continue;
			leader = task_slot(p, task->tgid);
			if (!leader || p->out.failed)
				return;
			if (process && leader->tid && leader != task)
				continue; /* the leader's own entry names the process */
			if (!comm)
				comm = sched_state_comm(p->base.view->machine, task->tid);
			snprintf(name, sizeof(name), "%.100s", comm ? ev_text(session, comm) : "<...>");
			if (process)
				put_thread(p, task->tgid, task->tgid,
					   task->tgid == task->tid && entry ? entry->pid : task->tgid, name,
					   strlen(name), true);
			else
				put_thread(p, task->tid, task->tgid, entry ? entry->pid : task->tid, name, strlen(name),
					   false);
		}
}
