/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a probe must know of the processes it shall record: who they are, their user, and their dump directory as a
 * descriptor. From the agent's answer where there is one, else from /proc (contract 12). Used by probe_order.c.
 */
#ifndef CLI_PROBE_TARGETS_H
#define CLI_PROBE_TARGETS_H

#include "cli/ctl_client.h"
#include "probe/probe.h"

/**
 * probe_target_of - describe one process
 * @pid: as seen here; 0 = no process: a place for files of the whole machine, in this shell's dump path
 * @answer: the agent's answer to `status`, NULL or failed = without one
 *
 * Context: tool. Return: the target (probe_target_drop() it), or NULL with @err.
 */
struct probe_target *probe_target_of(pid_t pid, const struct ctl_call *answer, struct st_err *err);
void probe_target_drop(struct probe_target *target);

#endif
