/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names of tasks for a trace.dat: the kernel remembers only the last 128 that it switched (saved_cmdlines_size belongs to
 * the top level and is left alone), so /proc is read at the start and at the end of a recording as well.
 */
#ifndef PROBE_FTRACE_TASK_NAMES_H
#define PROBE_FTRACE_TASK_NAMES_H

#include "probe/ftrace/tracefs.h"

struct task_name {
	int32_t pid;
	char comm[16]; /* as /proc has it, at most 15 bytes */
};

struct task_names {
	struct task_name *rows;
	size_t count, room;
	bool failed; /* out of memory: names are missing, the recording is not the worse for it */
};

/** task_names_scan - note the names of all tasks that the kernel remembers or /proc shows now. */
void task_names_scan(struct task_names *names, const struct tracefs *fs);

/** task_names_text - lines "PID comm", of each task the newest name. malloc()ed; NULL: no memory. */
char *task_names_text(const struct task_names *names);

void task_names_fini(struct task_names *names);

#endif
