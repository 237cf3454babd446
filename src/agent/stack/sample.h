/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Registers and stack of another thread of this process while it goes on undisturbed: of one that waits in the kernel by
 * /proc, of one that runs by a perf event. No signal, no ptrace: both would cut system calls short. Used by show.c.
 */
#ifndef AGENT_STACK_SAMPLE_H
#define AGENT_STACK_SAMPLE_H

#include "agent/stack/unwind.h"

#include <stddef.h>

#define SAMPLE_BYTES_MAX (256u << 10)

/** struct sample - a thread at one moment */
struct sample {
	struct unwind_regs regs;
	uintptr_t low, high; /* of the stack, as copied */
	uint8_t *words; /* SAMPLE_BYTES_MAX of them, 8-byte aligned; the caller's */
	char state; /* of /proc/<pid>/stat; 0 = the thread has ended */
	char name[20];
	uint64_t runs; /* how often it was given a processor; 0 = not known */
};

/** sample_look - state, name and runs alone. Context: control thread. Return: false = the thread has ended. */
bool sample_look(uint32_t tid, struct sample *s);

/** sample_waiting - of a thread that does not run. Context: control thread. Return: 0, -EAGAIN = it runs, -errno. */
int sample_waiting(uint32_t tid, struct sample *s);

/**
 * sample_running - of a thread that runs its own code
 * @deadline_ns: CLOCK_MONOTONIC
 *
 * Context: control thread; sleeps. Return: 0, -ETIMEDOUT = it was not seen outside the kernel, -errno of perf_event_open.
 */
int sample_running(uint32_t tid, struct sample *s, uint64_t deadline_ns);

#endif
