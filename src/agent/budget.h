/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a plugin costs the job, window by window: its calls at a cost measured in this process, and its part of what the
 * io thread needed to write. The plugin frame asks, compares with SYSTRACE_BUDGET_PCT and decides what to do about it.
 */
#ifndef AGENT_BUDGET_H
#define AGENT_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#define BUDGET_WINDOW_NS 1000000000u

/** struct budget - where the running window began; the counters as they were then */
struct budget {
	uint64_t mono_ns;
	uint64_t process_ns; /* processor time of the whole process */
	uint64_t io_ns; /* and of the io thread */
	uint64_t calls; /* recorded by the plugin */
	uint64_t records; /* written by the io thread, all sources */
	uint64_t bytes;
	bool first; /* the running window is the first one */
};

/** struct budget_use - what the plugin took in a window that is over */
struct budget_use {
	uint64_t calls;
	uint64_t cost_ns; /* calls x budget_call_ns(), and the part of the io thread's time that was its records' */
	uint64_t bytes; /* written for it, by the same part */
	bool first; /* since budget_begin(): the pool has grown in it, once. No reason to record less from then on */
	double pct; /* of max(processor time of the process, time that passed) */
};

/**
 * budget_call_ns - cost of one recorded call: two clock reads and a record put into a pool
 *
 * Measured at the first call, about 1 ms, in memory of its own. Context: thread. Return: ns, at least 1.
 */
uint64_t budget_call_ns(void);

/** budget_begin - a window begins. @calls: of the plugin so far. Context: control thread. */
void budget_begin(struct budget *budget, uint64_t calls);

/**
 * budget_window - is the window over? Then say what was used, and begin the next one
 *
 * Context: control thread. Return: false while it runs; @use is not touched then.
 */
bool budget_window(struct budget *budget, uint64_t calls, struct budget_use *use);

#endif
