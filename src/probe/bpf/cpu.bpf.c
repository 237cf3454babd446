/* SPDX-License-Identifier: GPL-2.0-only OR MulanPSL-2.0 */
/*
 * Follows threads of chosen processes through the scheduler. One event per cycle off the CPU and on it again, handed out
 * when the thread leaves the CPU, so that the kernel's own run delay of the cycle is known. Threads that are not followed
 * cost one look at a byte. Loaded by probe/cpu.c; kernel types are declared as far as they are read.
 */
#include "probe/bpf/cpu.h"

#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef unsigned int u32;
typedef unsigned long long u64;

#define TASK_DEAD 0x80
#define CPUS 2048

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sched_info {
	unsigned long long run_delay;
};
struct sched_entity {
	unsigned long long sum_exec_runtime;
};
struct task_struct {
	int pid;
	int tgid;
	int wake_cpu;
	unsigned int __state;
	struct sched_entity se;
	struct sched_info sched_info;
	char comm[CPU_COMM];
};
struct task_struct___old { /* before 5.14 */
	long state;
};
struct irqaction {
	const char *name;
};
#pragma clang attribute pop

char LICENSE[] SEC("license") = "GPL";

/* Arrays, shared with the reader: finding a thread costs two loads, in a hash it would be several times that. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* pid_max / CPU_TIDS, set by the loader */
	__type(key, u32);
	__type(value, struct cpu_tids);
} tids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CPU_TASKS);
	__type(key, u32);
	__type(value, struct cpu_task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, CPU_TASKS);
	__type(value, u32);
} free_tasks SEC(".maps"); /* filled by the loader */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

struct irq_state {
	u64 irq_ns, softirq_ns; /* begin of what runs now; 0 = none */
	u64 inside_ns; /* hard interrupts within the soft one */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct irq_state);
} irqs SEC(".maps");

unsigned char maybe[CPU_MAYBE]; /* by the low bits of a process id: may one of its threads be followed? */
unsigned long long lost[CPU_SLOTS];
struct cpu_place places[CPUS];
volatile const unsigned long long wake_at = 8 << 20; /* bytes in the ring at which the reader is woken early */

static __always_inline bool is_followed(int tgid)
{
	return maybe[(u32)tgid & (CPU_MAYBE - 1)];
}

static __always_inline struct cpu_tids *block_of(u32 tid)
{
	u32 block = tid / CPU_TIDS;

	return bpf_map_lookup_elem(&tids, &block);
}

static __always_inline struct cpu_task *task_of(u32 tid)
{
	struct cpu_tids *block = block_of(tid);
	u32 number = block ? block->task[tid % CPU_TIDS] : 0;

	return number ? bpf_map_lookup_elem(&tasks, &number) : NULL;
}

/* Looking at the ring's fill costs as much as a clock: every 32nd time suffices, half of the ring is left then. */
static __always_inline u64 wake_flags(u64 now)
{
	if (now % 32)
		return BPF_RB_NO_WAKEUP;
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= wake_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static __always_inline void count_lost(u32 slot)
{
	__sync_fetch_and_add(&lost[slot & (CPU_SLOTS - 1)], 1);
}

static __always_inline u32 state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return (u32)BPF_CORE_READ((struct task_struct___old *)task, state);
}

/* --- who took the CPU from one that waits ---------------------------------------------------------------------------- */

static __always_inline void count_waiting(u32 cpu, u32 slot, u64 one)
{
	u32 lane = slot % CPU_LANES;

	if (cpu < CPUS)
		__sync_fetch_and_add(&places[cpu].waiting[lane / 4], one << (16 * (lane % 4)));
}

static __always_inline bool somebody_waits(const struct cpu_place *place)
{
	return place->waiting[0] | place->waiting[1] | place->waiting[2] | place->waiting[3];
}

static __always_inline void stop_waiting(struct cpu_task *task)
{
	if (task->waits_on > 0)
		count_waiting((u32)task->waits_on - 1, task->slot, (u64)-1);
	task->waits_on = 0;
}

static __always_inline void begin_waiting(struct cpu_task *task, u32 cpu)
{
	stop_waiting(task);
	count_waiting(cpu, task->slot, 1);
	task->waits_on = (int)cpu + 1;
}

/*
 * While a followed thread waits in this CPU's queue, whoever runs here is told with the time it had; not to its own
 * process (@task, NULL: not followed), which has that in the thread's cycle.
 */
static __always_inline void tell_taker(struct cpu_task *task, struct task_struct *prev, u64 now, u32 cpu)
{
	u64 since = places[cpu].since_ns;
	u64 *lanes = (u64 *)places[cpu].waiting;
	u64 own[CPU_LANES / 4] = { 0 };
	struct cpu_hit *ev;

	if (!somebody_waits(&places[cpu]) || !prev->pid || !since)
		return;
	if (task) {
		u32 lane = task->slot % CPU_LANES;

		own[lane / 4] = 0xffffull << (16 * (lane % 4));
		if (!((lanes[0] & ~own[0]) | (lanes[1] & ~own[1]) | (lanes[2] & ~own[2]) | (lanes[3] & ~own[3])))
			return;
	}
	ev = bpf_ringbuf_reserve(&ring, sizeof(*ev), 0);
	if (!ev) {
		count_lost(CPU_SLOTS - 1);
		return;
	}
	ev->type = CPU_TAKER;
	ev->slot = 0;
	ev->tgid = (u32)prev->tgid;
	ev->tid = (u32)prev->pid;
	ev->begin_ns = since;
	ev->dur_ns = now - since;
	ev->number = 0;
	ev->cpu = cpu;
	__builtin_memcpy(ev->comm, prev->comm, CPU_COMM);
	ev->name[0] = 0;
	for (int i = 0; i < CPU_LANES / 4; i++)
		ev->lanes[i] = lanes[i] & ~own[i];
	bpf_ringbuf_submit(ev, wake_flags(now));
}

/* --- cycles ------------------------------------------------------------------------------------------------------------ */

static __always_inline void emit_cycle(struct cpu_task *task, struct task_struct *thread, u64 now, u64 delay_ns,
				       u32 cpu, u32 flags)
{
	struct cpu_cycle *ev = bpf_ringbuf_reserve(&ring, sizeof(*ev), 0);

	if (!ev) {
		count_lost(task->slot);
		return;
	}
	ev->type = CPU_CYCLE;
	ev->slot = task->slot;
	ev->tgid = task->tgid;
	ev->tid = (u32)thread->pid;
	ev->off_ns = task->off_ns;
	ev->on_ns = task->on_ns;
	ev->out_ns = now;
	ev->delay_off_ns = task->delay_off_ns;
	ev->delay_out_ns = delay_ns;
	ev->irq_ns = task->irq_ns;
	ev->softirq_ns = task->softirq_ns;
	ev->nxt_tid = task->nxt_tid;
	ev->nxt_tgid = task->nxt_tgid;
	ev->waker_tid = task->woken ? task->waker_tid : 0;
	ev->state = task->state;
	ev->irqs = task->irqs;
	ev->softirqs = task->softirqs;
	ev->cpu = (unsigned short)cpu;
	ev->from_cpu = task->from_cpu;
	ev->migrations = task->migrations;
	ev->flags = (unsigned short)(task->flags | flags | (task->woken ? CPU_F_WOKEN : 0));
	__builtin_memcpy(ev->comm, thread->comm, CPU_COMM);
	__builtin_memcpy(ev->nxt_comm, task->nxt_comm, CPU_COMM);
	__builtin_memcpy(ev->waker_comm, task->waker_comm, CPU_COMM);
	bpf_ringbuf_submit(ev, wake_flags(now));
}

static __always_inline void forget(struct cpu_task *task, u32 tid)
{
	struct cpu_tids *block = block_of(tid);
	u32 number = block ? block->task[tid % CPU_TIDS] : 0;

	if (!number)
		return;
	block->task[tid % CPU_TIDS] = 0;
	task->tid = 0;
	bpf_map_push_elem(&free_tasks, &number, BPF_ANY);
}

static __always_inline void leaves(struct cpu_task *task, struct task_struct *prev, struct task_struct *next,
				   bool preempt, u64 now, u32 cpu)
{
	u32 state;

	state = preempt ? 0 : state_of(prev);
	/* some switches are not reported to anybody (those away from certain tasks): the CPU time it had tells when it came */
	if (task->on_ns < task->off_ns && task->ran_ns) {
		task->on_ns = now - (prev->se.sum_exec_runtime - task->ran_ns);
		if (task->on_ns < task->off_ns)
			task->on_ns = task->off_ns;
		task->flags |= CPU_F_GUESSED;
	}
	task->ran_ns = prev->se.sum_exec_runtime;
	emit_cycle(task, prev, now, prev->sched_info.run_delay, cpu, state & TASK_DEAD ? CPU_F_EXITED : 0);
	if (state & TASK_DEAD) {
		stop_waiting(task);
		forget(task, (u32)prev->pid);
		return;
	}
	task->off_ns = now;
	task->delay_off_ns = prev->sched_info.run_delay;
	task->woken = 0;
	task->state = state;
	task->flags = state == 0 ? CPU_F_PREEMPTED : 0;
	task->migrations = 0;
	task->from_cpu = (unsigned short)cpu;
	task->nxt_tid = (u32)next->pid;
	task->nxt_tgid = (u32)next->tgid;
	__builtin_memcpy(task->nxt_comm, next->comm, CPU_COMM);
	if (state == 0)
		begin_waiting(task, cpu);
}

static __always_inline void comes(struct task_struct *next, u64 now, u32 cpu)
{
	struct cpu_task *task = task_of((u32)next->pid);

	if (!task)
		return;
	stop_waiting(task);
	task->on_ns = now;
	task->cpu = (unsigned short)cpu;
	task->irq_ns = 0;
	task->softirq_ns = 0;
	task->irqs = 0;
	task->softirqs = 0;
}

/* Reading the clock is the dearest part: where nobody is concerned it is left out, and when who came on is unknown. */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	bool comes_on = is_followed(next->tgid), goes = is_followed(prev->tgid);
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_task *task;
	u64 now;

	if (cpu >= CPUS)
		return 0;
	if (!comes_on && !goes && !somebody_waits(&places[cpu])) {
		if (places[cpu].since_ns)
			places[cpu].since_ns = 0;
		return 0;
	}
	now = bpf_ktime_get_ns();
	task = goes ? task_of((u32)prev->pid) : NULL;
	tell_taker(task, prev, now, cpu);
	places[cpu].since_ns = now;
	if (task)
		leaves(task, prev, next, preempt, now, cpu);
	if (comes_on)
		comes(next, now, cpu);
	return 0;
}

/*
 * Which CPU it will wait for is known once it moves to another (on_migrate, before it runs), else it is the last one. How
 * long it then waits is the kernel's to tell (run_delay), so no clock is read unless who runs there came unseen.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	u32 cpu = (u32)p->wake_cpu, waker;
	struct cpu_task *task;

	if (!is_followed(p->tgid))
		return 0;
	task = task_of((u32)p->pid);
	if (!task || task->on_ns > task->off_ns || task->woken)
		return 0;
	task->woken = 1;
	waker = (u32)bpf_get_current_pid_tgid();
	if (waker != task->waker_tid) {
		task->waker_tid = waker;
		bpf_get_current_comm(task->waker_comm, CPU_COMM);
	}
	if (cpu < CPUS && !places[cpu].since_ns)
		places[cpu].since_ns = bpf_ktime_get_ns();
	begin_waiting(task, cpu);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest_cpu)
{
	struct cpu_task *task;

	if (!is_followed(p->tgid))
		return 0;
	task = task_of((u32)p->pid);
	if (!task)
		return 0;
	task->migrations++;
	if (task->waits_on)
		begin_waiting(task, (u32)dest_cpu);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct cpu_task *task, *born;
	struct cpu_tids *block;
	u32 number = 0;

	if (!is_followed(parent->tgid))
		return 0;
	task = task_of((u32)parent->pid);
	block = block_of((u32)child->pid);
	if (!task || !block || block->task[(u32)child->pid % CPU_TIDS])
		return 0;
	if (bpf_map_pop_elem(&free_tasks, &number) < 0 || !(born = bpf_map_lookup_elem(&tasks, &number))) {
		count_lost(task->slot);
		return 0;
	}
	__builtin_memset(born, 0, sizeof(*born));
	born->flags = CPU_F_FIRST | CPU_F_NEW;
	born->slot = task->slot;
	born->tgid = (u32)child->tgid;
	born->off_ns = bpf_ktime_get_ns();
	born->woken = 1;
	born->waker_tid = (u32)parent->pid;
	born->from_cpu = (unsigned short)bpf_get_smp_processor_id();
	__builtin_memcpy(born->waker_comm, parent->comm, CPU_COMM);
	born->tid = (u32)child->pid;
	maybe[(u32)child->tgid & (CPU_MAYBE - 1)] = 1;
	block->task[(u32)child->pid % CPU_TIDS] = (unsigned short)number;
	return 0;
}

/* --- interrupts -------------------------------------------------------------------------------------------------------- */

static __always_inline struct irq_state *irq_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&irqs, &zero);
}

static __always_inline void hit(u32 type, u64 begin_ns, u64 dur_ns, u32 number, const char *name)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id;
	struct cpu_task *task = task_of(tid);
	struct cpu_hit *ev;

	if (!task)
		return;
	if (type == CPU_IRQ) {
		task->irq_ns += dur_ns;
		task->irqs++;
	} else {
		task->softirq_ns += dur_ns;
		task->softirqs++;
	}
	if (dur_ns < CPU_IRQ_MIN_NS)
		return;
	ev = bpf_ringbuf_reserve(&ring, sizeof(*ev), 0);
	if (!ev) {
		count_lost(task->slot);
		return;
	}
	ev->type = type;
	ev->slot = task->slot;
	ev->tgid = (u32)(id >> 32);
	ev->tid = tid;
	ev->begin_ns = begin_ns;
	ev->dur_ns = dur_ns;
	ev->number = number;
	ev->cpu = bpf_get_smp_processor_id();
	bpf_get_current_comm(ev->comm, CPU_COMM);
	ev->name[0] = 0;
	if (name)
		bpf_probe_read_kernel_str(ev->name, CPU_COMM, name);
	bpf_ringbuf_submit(ev, wake_flags(begin_ns));
}

static __always_inline bool hits_followed(void)
{
	return is_followed((int)(bpf_get_current_pid_tgid() >> 32));
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq, int irq, struct irqaction *action)
{
	struct irq_state *state = irq_state();

	if (state)
		state->irq_ns = hits_followed() ? bpf_ktime_get_ns() : 0;
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_end, int irq, struct irqaction *action)
{
	struct irq_state *state = irq_state();
	u64 dur;

	if (!state || !state->irq_ns)
		return 0;
	dur = bpf_ktime_get_ns() - state->irq_ns;
	if (state->softirq_ns)
		state->inside_ns += dur;
	hit(CPU_IRQ, state->irq_ns, dur, (u32)irq, action->name);
	state->irq_ns = 0;
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq, unsigned int vec)
{
	struct irq_state *state = irq_state();

	if (!state)
		return 0;
	state->softirq_ns = hits_followed() ? bpf_ktime_get_ns() : 0;
	state->inside_ns = 0;
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_end, unsigned int vec)
{
	struct irq_state *state = irq_state();
	u64 dur;

	if (!state || !state->softirq_ns)
		return 0;
	dur = bpf_ktime_get_ns() - state->softirq_ns;
	hit(CPU_SOFTIRQ, state->softirq_ns, dur - (state->inside_ns < dur ? state->inside_ns : dur), vec, 0);
	state->softirq_ns = 0;
	return 0;
}
