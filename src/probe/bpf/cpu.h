/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What cpu.bpf.c, in the kernel, and probe/cpu.c share: events of the ring and the state of one followed thread. */
#ifndef PROBE_BPF_CPU_H
#define PROBE_BPF_CPU_H

#define CPU_COMM 16
#define CPU_SLOTS 1024 /* targets at once */
#define CPU_MAYBE 65536 /* bytes of the filter by process id */
#define CPU_TASKS 32768 /* threads at once */
#define CPU_LANES 16 /* slots told apart among those that wait for a CPU */
#define CPU_IRQ_MIN_NS 10000ull /* shorter interrupts are only summed up */

enum cpu_event_type { CPU_CYCLE = 1, CPU_IRQ, CPU_SOFTIRQ, CPU_TAKER };

#define CPU_F_FIRST 1u /* first event of this thread */
#define CPU_F_UNSEEN 2u /* the span's begin was not seen: it is the capture's */
#define CPU_F_PREEMPTED 4u /* left the CPU though it could run on */
#define CPU_F_EXITED 8u
#define CPU_F_NEW 16u /* the thread was born with this span */

/** struct cpu_cycle - a thread was off a CPU from off_ns, on one from on_ns, and left it at out_ns; CLOCK_MONOTONIC */
struct cpu_cycle {
	unsigned int type;
	unsigned int slot;
	unsigned int tgid, tid;
	unsigned long long off_ns, on_ns, out_ns;
	unsigned long long delay_off_ns; /* the kernel's sum of run delays at off_ns, ... */
	unsigned long long delay_out_ns; /* ... and at out_ns */
	unsigned long long wake_ns; /* 0 = not woken: preempted, or not seen */
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

/** struct cpu_task - a followed thread */
struct cpu_task {
	unsigned long long off_ns, on_ns; /* the later one says what it is now */
	unsigned long long delay_off_ns;
	unsigned long long wake_ns;
	unsigned long long irq_ns, softirq_ns;
	unsigned int slot, tgid;
	unsigned int nxt_tid, nxt_tgid;
	unsigned int waker_tid, state;
	unsigned int irqs, softirqs;
	unsigned short cpu, from_cpu, migrations, flags;
	int waits_on; /* 1 + CPU on whose queue it is counted as waiting, 0 = none */
	unsigned int pad;
	unsigned long long ran_ns; /* of one that was there before the capture: CPU time it had then */
	char nxt_comm[CPU_COMM], waker_comm[CPU_COMM];
};

#endif
