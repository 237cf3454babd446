/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The probe's part of `sysTrace_cli enable`, `disable` and `status`: which processes it gets, what is sent, what is said.
 * sysTrace_cli.c reads the order and prints.
 */
#ifndef CLI_PROBE_ORDER_H
#define CLI_PROBE_ORDER_H

#include "cli/ctl_client.h"
#include "probe/probe.h"

/** struct probe_order - what to ask of a probe */
struct probe_order {
	const struct probe_kind *kind;
	enum ctl_verb verb; /* CTL_ENABLE or CTL_DISABLE */
	const struct plugin_pair *pairs; /* without pid= */
	size_t pair_count;
	const pid_t *pids; /* asked for by number; none = every process with an agent */
	size_t pid_count;
	const struct targets *targets; /* processes with our library */
	uint64_t timeout_ns;
};

/** struct probe_ack - how it went; one line for people */
struct probe_ack {
	bool asked; /* false: nothing to say (it does not run, and nothing was to be switched off) */
	char shown[300]; /* the probe's socket */
	struct st_err err; /* code 0 = done */
	char text[640]; /* a remark on a success: which processes */
};

/** probe_order_run - carry it out. Context: tool. Return: 0 or -errno (in ack->err). */
int probe_order_run(const struct probe_order *order, struct probe_ack *ack);

/** probe_ack_print, probe_ack_json - one line: [ACK] <socket>: SUCCESS (...); one object without a line break */
void probe_ack_print(struct probe_ack *ack);
void probe_ack_json(const struct probe_ack *ack);

/** probe_report_print - what running probes say of themselves, under a heading; nothing when none runs. Return: how many run. */
size_t probe_report_print(uint64_t timeout_ns);

/** probe_report_json - the same as elements of an open array. Return: how many. */
size_t probe_report_json(uint64_t timeout_ns);

#endif
