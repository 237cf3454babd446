/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Processes that use an accelerator, as the vendors' tools show them: targets of probes where no agent is. */
#ifndef CLI_SMI_H
#define CLI_SMI_H

#include <stddef.h>
#include <sys/types.h>

/**
 * smi_pids - ask `npu-smi info`, then nvidia-smi
 * @pids: gets at most @room, without repeats
 *
 * Context: tool; runs the programs found in PATH, with a deadline. Return: how many; 0 also when neither is installed.
 */
size_t smi_pids(pid_t *pids, size_t room);

/** smi_parse_npu - one line of `npu-smi info`. Return: the pid of a row of its process table, or 0. */
pid_t smi_parse_npu(const char *line);

/** smi_parse_nvidia - one line of `nvidia-smi --query-compute-apps=pid --format=csv,noheader`. Return: pid or 0. */
pid_t smi_parse_nvidia(const char *line);

#endif
