/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The scheduler's state machine; see sched_state.h. */
#include "trace/sched_state.h"

#include "trace/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define IRQ_DEPTH 16
#define IDLE_PID 0
#define MAX_CPU 65536 /* larger numbers are damage */

struct task {
	int32_t pid;
	int32_t tgid;
	uint32_t comm;
	int32_t prio;
	enum sched_task_state state;
	uint64_t since_ns; /* begin of the state */
	int32_t cpu; /* of the state: where it runs, waits or last ran; -1 = unknown */
	uint32_t flags; /* of the state's span */
	uint32_t sleep; /* prev_state it went to sleep with */
	uint64_t waking_ns; /* sched_waking seen, wakeup not yet */
	uint64_t wake_ns; /* woken and not run yet: for the arrow; 0 = none */
	int32_t waker_pid, waker_cpu;
	uint32_t waker_comm;
	uint64_t futex_ns; /* inside the system call since; 0 = not */
	uint32_t next; /* hash chain, index + 1 */
	bool used;
};

struct irq {
	bool soft;
	int64_t number;
	uint32_t label;
	uint64_t begin_ns;
};

struct cpu {
	bool seen;
	int32_t pid; /* running task, -1 = unknown */
	uint32_t comm;
	int32_t prio;
	uint64_t since_ns; /* of the running task */
	uint64_t first_ns; /* first event here, or first one behind a gap */
	uint64_t event_ns; /* last event here */
	uint64_t runtime_ns;
	int64_t vruntime;
	uint32_t flags;
	int depth;
	struct irq irqs[IRQ_DEPTH];
};

struct sched_state {
	struct ev_session *session;
	sched_emit emit;
	void *arg;
	struct known_keys keys;
	struct sched_stats stats;
	struct task *tasks; /* 0 .. task_used */
	uint32_t task_used, task_room, task_free; /* task_free: chain of unused ones, index + 1 */
	uint32_t *buckets;
	uint32_t bucket_mask;
	uint32_t live;
	struct cpu *cpus;
	uint32_t cpu_room;
};

/* ---- tables ----------------------------------------------------------------------------------------------------------- */

static uint32_t bucket_of(const struct sched_state *m, int32_t pid)
{
	return ((uint32_t)pid * 2654435761u >> 7) & m->bucket_mask;
}

static struct task *task_find(const struct sched_state *m, int32_t pid)
{
	uint32_t at = m->buckets ? m->buckets[bucket_of(m, pid)] : 0;

	for (; at; at = m->tasks[at - 1].next)
		if (m->tasks[at - 1].pid == pid)
			return &m->tasks[at - 1];
	return NULL;
}

static int grow_buckets(struct sched_state *m)
{
	uint32_t mask = m->bucket_mask ? 2 * m->bucket_mask + 1 : 1023, i;
	uint32_t *fresh = calloc(mask + 1, sizeof(*fresh));

	if (!fresh)
		return -ENOMEM;
	free(m->buckets);
	m->buckets = fresh;
	m->bucket_mask = mask;
	for (i = 0; i < m->task_used; i++) {
		struct task *task = &m->tasks[i];

		if (!task->used)
			continue;
		task->next = fresh[bucket_of(m, task->pid)];
		fresh[bucket_of(m, task->pid)] = i + 1;
	}
	return 0;
}

/* The task of @pid, made when it is new. Pointers to tasks are valid until the next call. */
static struct task *task_get(struct sched_state *m, int32_t pid)
{
	struct task *task = task_find(m, pid), *more;
	uint32_t at;

	if (task)
		return task;
	if ((!m->buckets || m->live > m->bucket_mask) && grow_buckets(m))
		return NULL;
	if (m->task_free) {
		at = m->task_free - 1;
		m->task_free = m->tasks[at].next;
	} else {
		if (m->task_used == m->task_room) {
			more = realloc(m->tasks, (m->task_room ? 2 * m->task_room : 256) * sizeof(*more));
			if (!more)
				return NULL;
			m->tasks = more;
			m->task_room = m->task_room ? 2 * m->task_room : 256;
		}
		at = m->task_used++;
	}
	task = &m->tasks[at];
	*task = (struct task){
		.pid = pid, .tgid = -1, .prio = -1, .cpu = -1, .waker_pid = -1, .waker_cpu = -1, .used = true
	};
	task->next = m->buckets[bucket_of(m, pid)];
	m->buckets[bucket_of(m, pid)] = at + 1;
	m->live++;
	return task;
}

static void task_forget(struct sched_state *m, struct task *task)
{
	uint32_t *link = &m->buckets[bucket_of(m, task->pid)], at = (uint32_t)(task - m->tasks) + 1;

	while (*link != at)
		link = &m->tasks[*link - 1].next;
	*link = task->next;
	task->used = false;
	task->next = m->task_free;
	m->task_free = at;
	m->live--;
}

static struct cpu *cpu_get(struct sched_state *m, int32_t number, uint64_t t_ns)
{
	struct cpu *more;
	uint32_t room;

	if (number < 0 || number >= MAX_CPU)
		return NULL;
	if ((uint32_t)number >= m->cpu_room) {
		room = ((uint32_t)number | 15) + 1;
		more = realloc(m->cpus, room * sizeof(*more));
		if (!more)
			return NULL;
		memset(more + m->cpu_room, 0, (room - m->cpu_room) * sizeof(*more));
		m->cpus = more;
		m->cpu_room = room;
	}
	if (!m->cpus[number].seen) {
		m->cpus[number].seen = true;
		m->cpus[number].pid = -1;
		m->cpus[number].first_ns = t_ns;
	}
	return &m->cpus[number];
}

/* ---- spans ------------------------------------------------------------------------------------------------------------ */

static int give(struct sched_state *m, const struct sched_span *span)
{
	return m->emit(m->arg, span);
}

/* End a task's state at @t_ns. */
static int end_state(struct sched_state *m, struct task *task, uint64_t t_ns, uint32_t flags)
{
	struct sched_span span = {
		.kind = SPAN_STATE,
		.begin_ns = task->since_ns,
		.end_ns = t_ns,
		.cpu = task->cpu,
		.pid = task->pid,
		.comm = task->comm,
		.tgid = task->tgid,
		.state = task->state,
		.flags = task->flags | flags,
		.end_state = task->state == TASK_SLEEPING ? task->sleep : 0,
		.prio = task->prio,
		.waker_pid = -1,
		.waker_cpu = -1,
	};

	if (task->state == TASK_UNKNOWN || task->state == TASK_EXITED || t_ns <= task->since_ns)
		return 0;
	return give(m, &span);
}

static int set_state(struct sched_state *m, struct task *task, enum sched_task_state state, uint64_t t_ns, int32_t cpu,
		     uint32_t end_flags, uint32_t flags)
{
	int ret = end_state(m, task, t_ns, end_flags);

	task->state = state;
	task->since_ns = t_ns;
	task->cpu = cpu;
	task->flags = flags;
	return ret;
}

/* A name heard for a task. A state that is open keeps the name it began with. */
static void heard(struct sched_state *m, struct task *task, uint32_t comm)
{
	if (!comm || comm == task->comm)
		return;
	m->stats.renamed += task->comm != 0;
	task->comm = comm;
}

static int end_on_cpu(struct sched_state *m, struct cpu *cpu, int32_t number, uint64_t t_ns, uint32_t end_state_name,
		      uint32_t flags)
{
	const struct task *task = task_find(m, cpu->pid);
	struct sched_span span = {
		.kind = SPAN_ON_CPU,
		.begin_ns = cpu->since_ns,
		.end_ns = t_ns,
		.cpu = number,
		.pid = cpu->pid,
		.comm = cpu->comm,
		.tgid = task ? task->tgid : -1,
		.state = TASK_RUNNING,
		.flags = cpu->flags | flags,
		.end_state = end_state_name,
		.prio = cpu->prio,
		.runtime_ns = cpu->runtime_ns,
		.vruntime = cpu->vruntime,
		.waker_pid = -1,
		.waker_cpu = -1,
	};

	if (cpu->pid < 0 || t_ns <= cpu->since_ns)
		return 0;
	return give(m, &span);
}

static void begin_on_cpu(struct cpu *cpu, int32_t pid, uint32_t comm, int32_t prio, uint64_t t_ns, uint32_t flags)
{
	cpu->pid = pid;
	cpu->comm = comm;
	cpu->prio = prio;
	cpu->since_ns = t_ns;
	cpu->runtime_ns = 0;
	cpu->vruntime = 0;
	cpu->flags = flags;
}

static int end_irq(struct sched_state *m, const struct cpu *cpu, int32_t number, const struct irq *irq, uint64_t t_ns,
		   uint32_t result, uint32_t flags)
{
	struct sched_span span = {
		.kind = irq->soft ? SPAN_SOFTIRQ : SPAN_IRQ,
		.begin_ns = irq->begin_ns,
		.end_ns = t_ns,
		.cpu = number,
		.pid = cpu->pid,
		.comm = cpu->comm,
		.tgid = -1,
		.flags = flags,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
		.number = irq->number,
		.label = irq->label,
		.result = result,
	};

	return give(m, &span);
}

/* Interrupts that were going on when what happens on the CPU becomes unknown. */
static int cut_irqs(struct sched_state *m, struct cpu *cpu, int32_t number, uint64_t t_ns)
{
	int ret = 0;

	while (!ret && cpu->depth) {
		const struct irq *irq = &cpu->irqs[--cpu->depth];

		if (t_ns > irq->begin_ns)
			ret = end_irq(m, cpu, number, irq, t_ns, 0, SPAN_CUT_LOST);
	}
	cpu->depth = 0;
	return ret;
}

/*
 * An event says that @pid is on the CPU, the last switch said another task. The switches between them are missing (some
 * hypervisors and security modules hide tasks, too): what is known of the other task ends at the last event before.
 */
static int missed_switch(struct sched_state *m, struct cpu *cpu, int32_t number, int32_t pid, uint64_t t_ns)
{
	struct sched_span gap = {
		.kind = SPAN_GAP,
		.begin_ns = cpu->event_ns,
		.end_ns = t_ns,
		.cpu = number,
		.pid = -1,
		.tgid = -1,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
	};
	struct task *task = task_find(m, cpu->pid);
	int ret = cut_irqs(m, cpu, number, cpu->event_ns);

	m->stats.switch_mismatch++;
	if (!ret)
		ret = end_on_cpu(m, cpu, number, cpu->event_ns, 0, SPAN_CUT_LOST);
	if (!ret && task && cpu->pid != IDLE_PID && task->state == TASK_RUNNING && task->cpu == number)
		ret = set_state(m, task, TASK_UNKNOWN, cpu->event_ns, -1, SPAN_CUT_LOST, 0);
	if (!ret && t_ns > cpu->event_ns)
		ret = give(m, &gap);
	task = pid == IDLE_PID ? NULL : task_get(m, pid);
	if (ret || (!task && pid != IDLE_PID))
		return ret ? ret : -ENOMEM;
	begin_on_cpu(cpu, pid, task ? task->comm : 0, task ? task->prio : -1, t_ns, SPAN_CUT_LOST);
	if (!task)
		return 0;
	ret = set_state(m, task, TASK_UNKNOWN, cpu->event_ns, -1, SPAN_CUT_LOST, 0);
	task->wake_ns = 0;
	task->waking_ns = 0;
	return ret ? ret : set_state(m, task, TASK_RUNNING, t_ns, number, 0, SPAN_CUT_LOST);
}

/* Each event tells which task is on its CPU. */
static int on_cpu_is(struct sched_state *m, struct cpu *cpu, int32_t number, int32_t pid, uint64_t t_ns)
{
	struct task *task;
	int ret;

	if (cpu->pid == pid || pid < 0)
		return 0;
	if (cpu->pid >= 0)
		return missed_switch(m, cpu, number, pid, t_ns);
	/* it has been running since before this CPU's first event */
	task = pid == IDLE_PID ? NULL : task_get(m, pid);
	if (!task && pid != IDLE_PID)
		return -ENOMEM;
	begin_on_cpu(cpu, pid, task ? task->comm : 0, task ? task->prio : -1, cpu->first_ns, SPAN_BEGIN_UNSEEN);
	if (!task)
		return 0;
	ret = set_state(m, task, TASK_UNKNOWN, cpu->first_ns, -1, SPAN_CUT_LOST, 0);
	return ret ? ret : set_state(m, task, TASK_RUNNING, cpu->first_ns, number, 0, SPAN_BEGIN_UNSEEN);
}

/* ---- events ----------------------------------------------------------------------------------------------------------- */

static int64_t arg_i64(const struct event *ev, int i)
{
	return i < ev->nargs ? ev->args[i].i64 : 0;
}

static uint32_t arg_name(const struct event *ev, int i)
{
	return i < ev->nargs && ev->args[i].type == EV_ARG_NAME ? ev->args[i].name : 0;
}

/* The task that leaves: what it did until now ends, what it does next follows from prev_state. */
static int switch_out(struct sched_state *m, struct cpu *cpu, const struct event *ev)
{
	int32_t pid = (int32_t)arg_i64(ev, SWITCH_PREV_PID), number = ev->track.cpu;
	uint32_t comm = arg_name(ev, SWITCH_PREV_COMM), state = arg_name(ev, SWITCH_PREV_STATE);
	const char *letters = ev_text(m->session, state);
	bool runnable = letters[0] == 'R', dead = strchr(letters, 'X') || strchr(letters, 'Z');
	struct task *task;
	int ret;

	if (!cpu->comm)
		cpu->comm = comm;
	if (cpu->prio < 0)
		cpu->prio = (int32_t)arg_i64(ev, SWITCH_PREV_PRIO);
	ret = end_on_cpu(m, cpu, number, ev->t_ns, state, runnable ? SPAN_PREEMPTED : 0);
	if (ret || pid == IDLE_PID)
		return ret;
	task = task_get(m, pid);
	if (!task)
		return -ENOMEM;
	if (!task->comm)
		heard(m, task, comm);
	if (task->state != TASK_RUNNING || task->cpu != number) {
		/* its switch-in was not seen */
		ret = set_state(m, task, TASK_RUNNING, cpu->since_ns > task->since_ns ? cpu->since_ns : task->since_ns,
				number, SPAN_CUT_LOST, cpu->flags & (SPAN_BEGIN_UNSEEN | SPAN_CUT_LOST));
		if (ret)
			return ret;
	}
	task->prio = (int32_t)arg_i64(ev, SWITCH_PREV_PRIO);
	task->sleep = state;
	ret = set_state(m, task,
			dead	   ? TASK_EXITED
			: runnable ? TASK_RUNNABLE
				   : TASK_SLEEPING,
			ev->t_ns, number, dead ? SPAN_EXITED : 0, runnable ? SPAN_PREEMPTED : 0);
	heard(m, task, comm);
	if (dead)
		task_forget(m, task);
	return ret;
}

static int wake_arrow(struct sched_state *m, struct task *task, uint64_t t_ns, int32_t cpu)
{
	struct sched_span span = {
		.kind = SPAN_WAKE,
		.begin_ns = task->wake_ns,
		.end_ns = t_ns,
		.cpu = cpu,
		.pid = task->pid,
		.comm = task->comm,
		.tgid = task->tgid,
		.prio = task->prio,
		.flags = task->flags & SPAN_NEW_TASK,
		.waker_pid = task->waker_pid,
		.waker_comm = task->waker_comm,
		.waker_cpu = task->waker_cpu,
	};

	task->wake_ns = 0;
	return give(m, &span);
}

static int switch_in(struct sched_state *m, struct cpu *cpu, const struct event *ev)
{
	int32_t pid = (int32_t)arg_i64(ev, SWITCH_NEXT_PID), number = ev->track.cpu;
	uint32_t comm = arg_name(ev, SWITCH_NEXT_COMM), end_flags = 0;
	struct task *task;
	int ret = 0;

	begin_on_cpu(cpu, pid, comm, (int32_t)arg_i64(ev, SWITCH_NEXT_PRIO), ev->t_ns, 0);
	if (pid == IDLE_PID)
		return 0;
	task = task_get(m, pid);
	if (!task)
		return -ENOMEM;
	if (task->state == TASK_SLEEPING && task->waking_ns > task->since_ns) {
		/* only sched_waking was recorded, or its wakeup was lost: it could run since then */
		ret = set_state(m, task, TASK_RUNNABLE, task->waking_ns, number, 0, 0);
		task->wake_ns = task->waking_ns;
	} else if (task->state == TASK_SLEEPING || task->state == TASK_RUNNING) {
		end_flags = SPAN_CUT_LOST; /* nobody woke it, or it never left its CPU */
	}
	task->waking_ns = 0;
	task->prio = (int32_t)arg_i64(ev, SWITCH_NEXT_PRIO);
	if (!ret && task->wake_ns)
		ret = wake_arrow(m, task, ev->t_ns, number);
	if (!ret)
		ret = set_state(m, task, TASK_RUNNING, ev->t_ns, number, end_flags, 0);
	heard(m, task, comm);
	return ret;
}

static int on_switch(struct sched_state *m, const struct event *ev)
{
	struct cpu *cpu = cpu_get(m, ev->track.cpu, ev->t_ns);
	struct sched_span mark = {
		.kind = SPAN_SWITCH,
		.begin_ns = ev->t_ns,
		.end_ns = ev->t_ns,
		.cpu = ev->track.cpu,
		.pid = (int32_t)arg_i64(ev, SWITCH_NEXT_PID),
		.comm = arg_name(ev, SWITCH_NEXT_COMM),
		.tgid = -1,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
		.event = ev,
	};
	int ret;

	if (!cpu || ev->nargs < 7)
		return cpu ? 0 : -ENOMEM;
	ret = switch_out(m, cpu, ev);
	if (!ret)
		ret = give(m, &mark);
	return ret ? ret : switch_in(m, cpu, ev);
}

static int on_wakeup(struct sched_state *m, const struct event *ev)
{
	struct task *task = task_get(m, (int32_t)arg_i64(ev, WAKE_PID));
	const struct task *waker;
	bool fresh = ev->name == m->keys.name[KNOWN_WAKEUP_NEW];
	int ret;

	if (!task)
		return -ENOMEM;
	if (ev->name == m->keys.name[KNOWN_WAKING] || !task->waking_ns) {
		/* sched_waking happens on the waker's CPU; sched_wakeup may come from an interrupt on the target's */
		waker = task_find(m, ev->track.tid);
		task->waker_pid = ev->track.tid;
		task->waker_comm = waker ? waker->comm : 0;
		task->waker_cpu = ev->track.cpu;
	}
	if (ev->name == m->keys.name[KNOWN_WAKING]) {
		task->waking_ns = ev->t_ns;
		return 0;
	}
	task->waking_ns = 0;
	if (task->state == TASK_RUNNING || task->state == TASK_RUNNABLE) {
		heard(m, task, arg_name(ev, WAKE_COMM));
		return 0; /* it was not asleep */
	}
	if (!task->comm)
		heard(m, task, arg_name(ev, WAKE_COMM));
	task->wake_ns = ev->t_ns;
	task->prio = (int32_t)arg_i64(ev, WAKE_PRIO);
	ret = set_state(m, task, TASK_RUNNABLE, ev->t_ns, (int32_t)arg_i64(ev, WAKE_CPU), 0, fresh ? SPAN_NEW_TASK : 0);
	heard(m, task, arg_name(ev, WAKE_COMM));
	return ret;
}

static int on_task(struct sched_state *m, const struct event *ev)
{
	struct task *task;

	if (ev->name == m->keys.name[KNOWN_FORK]) {
		task = task_find(m, (int32_t)arg_i64(ev, FORK_CHILD_PID));
		if (task && task->state != TASK_RUNNABLE) /* the number was used before */
			task_forget(m, task);
		task = task_get(m, (int32_t)arg_i64(ev, FORK_CHILD_PID));
		if (!task)
			return -ENOMEM;
		heard(m, task, arg_name(ev, FORK_CHILD_COMM));
		return 0;
	}
	if (ev->name != m->keys.name[KNOWN_TASK_COMM] || arg_i64(ev, TASK_COMM_PID) <= IDLE_PID)
		return 0; /* exec tells a file, not the new name: the next event with a name does; exit: the last switch */
	task = task_get(m, (int32_t)arg_i64(ev, TASK_COMM_PID));
	if (!task)
		return -ENOMEM;
	if (ev->track.pid > 0)
		task->tgid = ev->track.pid;
	/* saved_cmdlines holds the names of the end of the trace: they only fill holes */
	if (!task->comm)
		heard(m, task, arg_name(ev, TASK_COMM_COMM));
	return 0;
}

static int on_irq(struct sched_state *m, const struct event *ev, bool soft)
{
	struct cpu *cpu = cpu_get(m, ev->track.cpu, ev->t_ns);
	struct irq *top;

	if (!cpu)
		return -ENOMEM;
	if (ev->phase == EV_INSTANT)
		return 0;
	if (ev->phase == EV_BEGIN) {
		if (cpu->depth == IRQ_DEPTH) {
			m->stats.irq_unpaired++;
			return 0;
		}
		cpu->irqs[cpu->depth++] = (struct irq){
			.soft = soft,
			.number = arg_i64(ev, IRQ_IRQ),
			.label = arg_name(ev, 1),
			.begin_ns = ev->t_ns,
		};
		return 0;
	}
	/* entries whose exit is missing lie above the one that ends now */
	while (cpu->depth) {
		top = &cpu->irqs[cpu->depth - 1];
		if (top->soft == soft && top->number == arg_i64(ev, IRQ_IRQ)) {
			cpu->depth--;
			return end_irq(m, cpu, ev->track.cpu, top, ev->t_ns, soft ? 0 : arg_name(ev, IRQ_RET), 0);
		}
		if (cpu->depth == 1 && !soft && top->soft)
			break; /* a hard interrupt whose entry is missing, inside a softirq that goes on */
		cpu->depth--;
		m->stats.irq_unpaired++;
	}
	m->stats.irq_unpaired++;
	return 0;
}

static int on_runtime(struct sched_state *m, const struct event *ev)
{
	struct cpu *cpu = cpu_get(m, ev->track.cpu, ev->t_ns);

	if (!cpu)
		return -ENOMEM;
	if (cpu->pid == (int32_t)arg_i64(ev, RUNTIME_PID)) {
		cpu->runtime_ns += (uint64_t)arg_i64(ev, RUNTIME_NS);
		if (ev->nargs > RUNTIME_VRUNTIME)
			cpu->vruntime = arg_i64(ev, RUNTIME_VRUNTIME);
	}
	return 0;
}

/* Events of a CPU are missing in [t_ns, t_ns + dur_ns]: nothing that went on there is known to have gone on. */
static int on_lost(struct sched_state *m, const struct event *ev)
{
	struct sched_span gap = {
		.kind = SPAN_GAP,
		.begin_ns = ev->t_ns,
		.end_ns = ev->t_ns + ev->dur_ns,
		.cpu = ev->track.cpu,
		.pid = -1,
		.tgid = -1,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
		.count = (uint64_t)arg_i64(ev, 0),
	};
	struct cpu *cpu = cpu_get(m, ev->track.cpu, gap.end_ns);
	uint32_t i;
	int ret;

	if (!cpu)
		return -ENOMEM;
	m->stats.gaps++;
	m->stats.lost += gap.count;
	ret = cut_irqs(m, cpu, ev->track.cpu, ev->t_ns);
	if (!ret)
		ret = end_on_cpu(m, cpu, ev->track.cpu, ev->t_ns, 0, SPAN_CUT_LOST);
	cpu->pid = -1;
	cpu->first_ns = gap.end_ns;
	for (i = 0; !ret && i < m->task_used; i++) {
		struct task *task = &m->tasks[i];

		if (!task->used || task->cpu != ev->track.cpu)
			continue;
		ret = set_state(m, task, TASK_UNKNOWN, ev->t_ns, -1, SPAN_CUT_LOST, 0);
		task->since_ns = gap.end_ns;
		task->wake_ns = 0;
		task->waking_ns = 0;
	}
	return ret ? ret : give(m, &gap);
}

static int on_futex(struct sched_state *m, const struct event *ev)
{
	struct task *task = task_get(m, ev->track.tid);
	struct sched_span span = {
		.kind = SPAN_FUTEX,
		.end_ns = ev->t_ns,
		.cpu = ev->track.cpu,
		.pid = ev->track.tid,
		.prio = -1,
		.waker_pid = -1,
		.waker_cpu = -1,
	};

	if (!task)
		return -ENOMEM;
	if (ev->phase == EV_BEGIN) {
		task->futex_ns = ev->t_ns;
		return 0;
	}
	if (!task->futex_ns)
		return 0; /* entered before the trace began */
	span.begin_ns = task->futex_ns;
	span.comm = task->comm;
	span.tgid = task->tgid;
	task->futex_ns = 0;
	return give(m, &span);
}

static int dispatch(struct sched_state *m, const struct event *ev)
{
	switch (ev->kind) {
	case EV_SCHED_SWITCH:
		return on_switch(m, ev);
	case EV_SCHED_WAKEUP:
		return ev->nargs > WAKE_CPU ? on_wakeup(m, ev) : 0;
	case EV_TASK:
		return on_task(m, ev);
	case EV_IRQ:
		return on_irq(m, ev, false);
	case EV_SOFTIRQ:
		return on_irq(m, ev, true);
	case EV_LOST:
		return ev->track.cpu >= 0 && ev->track.cpu < MAX_CPU ? on_lost(m, ev) : 0;
	case EV_SYSCALL:
		if (ev->name == m->keys.name[KNOWN_FUTEX_ENTER] || ev->name == m->keys.name[KNOWN_FUTEX_EXIT])
			return on_futex(m, ev);
		return 0;
	default:
		return ev->name == m->keys.name[KNOWN_STAT_RUNTIME] && ev->nargs > RUNTIME_NS ? on_runtime(m, ev) : 0;
	}
}

int sched_state_feed(struct sched_state *m, const struct event *ev)
{
	bool placed = ev->kind != EV_LOST && ev->kind != EV_TASK; /* the CPU that it names matters */
	uint64_t end_ns = ev->t_ns + (ev->kind == EV_LOST ? ev->dur_ns : 0);
	struct event now;
	struct cpu *cpu;
	int ret;

	m->stats.events++;
	if (placed && (ev->track.cpu < 0 || ev->track.cpu >= MAX_CPU)) {
		m->stats.bad_cpu++;
		return 0;
	}
	if (!m->stats.first_ns)
		m->stats.first_ns = ev->t_ns;
	if (end_ns < m->stats.last_ns) {
		/* a span must not end before it begins */
		m->stats.backwards++;
		now = *ev;
		now.t_ns = m->stats.last_ns;
		now.dur_ns = 0;
		return dispatch(m, &now);
	}
	m->stats.last_ns = end_ns;
	if (ev->kind == EV_LOST || ev->track.cpu < 0 || ev->track.cpu >= MAX_CPU)
		return dispatch(m, ev);
	cpu = cpu_get(m, ev->track.cpu, ev->t_ns);
	if (!cpu)
		return -ENOMEM;
	ret = on_cpu_is(m, cpu, ev->track.cpu, ev->track.tid, ev->t_ns);
	cpu->event_ns = ev->t_ns;
	return ret ? ret : dispatch(m, ev);
}

int sched_state_finish(struct sched_state *m)
{
	uint64_t t_ns = m->stats.last_ns;
	uint32_t i;
	int ret = 0;

	for (i = 0; !ret && i < m->cpu_room; i++) {
		struct cpu *cpu = &m->cpus[i];

		while (!ret && cpu->depth) {
			const struct irq *irq = &cpu->irqs[--cpu->depth];

			if (t_ns > irq->begin_ns)
				ret = end_irq(m, cpu, (int32_t)i, irq, t_ns, 0, SPAN_END_UNSEEN);
		}
		if (!ret && cpu->seen)
			ret = end_on_cpu(m, cpu, (int32_t)i, t_ns, 0, SPAN_END_UNSEEN);
		cpu->pid = -1;
	}
	for (i = 0; !ret && i < m->task_used; i++)
		if (m->tasks[i].used)
			ret = set_state(m, &m->tasks[i], TASK_UNKNOWN, t_ns, -1, SPAN_END_UNSEEN, 0);
	return ret;
}

struct sched_state *sched_state_new(struct ev_session *session, sched_emit emit, void *arg)
{
	struct sched_state *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->session = session;
	m->emit = emit;
	m->arg = arg;
	if (known_keys_init(&m->keys, session)) {
		free(m);
		errno = ENOMEM;
		return NULL;
	}
	return m;
}

const struct sched_stats *sched_state_stats(const struct sched_state *m)
{
	return &m->stats;
}

uint32_t sched_state_comm(const struct sched_state *m, int32_t pid)
{
	const struct task *task = task_find(m, pid);

	return task ? task->comm : 0;
}

void sched_state_free(struct sched_state *m)
{
	if (!m)
		return;
	free(m->tasks);
	free(m->buckets);
	free(m->cpus);
	free(m);
}
