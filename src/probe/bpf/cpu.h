/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What cpu.bpf.c, in the kernel, and probe/cpu.c share: events of the ring and the state of one followed thread. */
#ifndef PROBE_BPF_CPU_H
#define PROBE_BPF_CPU_H

#define CPU_COMM 16
#define CPU_SLOTS 1024 /* targets at once */
#define CPU_MAYBE 65536 /* bytes of the filter by process id */
#define CPU_TASKS 32768 /* threads at once; number 0 is not used */
#define CPU_TIDS 32 /* thread ids in one block of the index */
#define CPU_LANES 16 /* slots told apart among those that wait for a CPU */
#define CPU_IRQ_MIN_NS 10000ull /* shorter interrupts are only summed up */

enum cpu_event_type { CPU_CYCLE = 1, CPU_IRQ, CPU_SOFTIRQ, CPU_TAKER };

#define CPU_F_FIRST 1u /* first event of this thread */
#define CPU_F_UNSEEN 2u /* the span's begin was not seen: it is the capture's */
#define CPU_F_PREEMPTED 4u /* left the CPU though it could run on: preempted, or it yielded */
#define CPU_F_EXITED 8u
#define CPU_F_NEW 16u /* the thread was born with this span */
#define CPU_F_GUESSED 64u /* on_ns is told by its CPU time: its coming on was not reported */
#define CPU_F_WOKEN 32u /* it was woken in this span; waker_tid 0: by the idle CPU's interrupt */

/** struct cpu_cycle - a thread was off a CPU from off_ns, on one from on_ns, and left it at out_ns; CLOCK_MONOTONIC */
struct cpu_cycle {
	unsigned int type;
	unsigned int slot;
	unsigned int tgid, tid;
	unsigned long long off_ns, on_ns, out_ns;
	unsigned long long delay_off_ns; /* the kernel's sum of run delays at off_ns, ... */
	unsigned long long delay_out_ns; /* ... and at out_ns */
	unsigned long long irq_ns, softirq_ns;
	unsigned int nxt_tid, nxt_tgid; /* who ran from off_ns on; 0 = nobody */
	unsigned int waker_tid, state;
	unsigned int irqs, softirqs;
	unsigned short cpu, from_cpu, migrations, flags;
	char comm[CPU_COMM], nxt_comm[CPU_COMM], waker_comm[CPU_COMM];
};

/** struct cpu_hit - an interrupt while a followed thread was on the CPU, or (CPU_TAKER) somebody who ran while one waited */
struct cpu_hit {
	unsigned int type;
	unsigned int slot;
	unsigned int tgid, tid;
	unsigned long long begin_ns, dur_ns;
	unsigned int number; /* of the interrupt or vector */
	unsigned int cpu;
	char comm[CPU_COMM];
	char name[CPU_COMM]; /* of the interrupt */
	unsigned long long
		lanes[CPU_LANES / 4]; /* CPU_TAKER: 16 bits each: threads of slots n, n + CPU_LANES, ... that wait */
};

/** struct cpu_tids - by thread id: number of its cpu_task, 0 = not followed */
struct cpu_tids {
	unsigned short task[CPU_TIDS];
};

/** struct cpu_task - a followed thread */
struct cpu_task {
	unsigned int tid; /* 0 = this entry is free */
	unsigned int spare;
	unsigned long long off_ns, on_ns; /* the later one says what it is now */
	unsigned long long delay_off_ns;
	unsigned long long irq_ns, softirq_ns;
	unsigned int slot, tgid;
	unsigned int nxt_tid, nxt_tgid;
	unsigned int waker_tid, state;
	unsigned int irqs, softirqs;
	unsigned short cpu, from_cpu, migrations, flags;
	int waits_on; /* 1 + CPU on whose queue it is counted as waiting, 0 = none */
	unsigned int woken; /* in this span off the CPU */
	unsigned long long ran_ns; /* CPU time it had at off_ns, by the kernel's account */
	char nxt_comm[CPU_COMM], waker_comm[CPU_COMM];
};

/** struct cpu_place - one CPU: a cache line of its own, since it is written at every switch */
struct cpu_place {
	unsigned long long since_ns; /* when what runs there came on it */
	unsigned long long
		waiting[CPU_LANES / 4]; /* by slot, 16 bits each: how many followed threads wait in its queue */
} __attribute__((aligned(128)));

#endif
