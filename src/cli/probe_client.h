/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The command line's way to a probe: starts it when it does not run, sends one request with the descriptors of the
 * targets' directories, brings back the answer. Used by probe_order.c and cli_status.c.
 */
#ifndef CLI_PROBE_CLIENT_H
#define CLI_PROBE_CLIENT_H

#include "base/err.h"
#include "cli/ctl_client.h"

#define PROBE_SEND_FDS 250

/**
 * probe_client_ask - one request to the probe of @group
 * @start: start it when it is not there
 * @fds: sent along, @fd_count at most PROBE_SEND_FDS
 * @call: .target is not used; .payload, .err and .text are filled; ctl_calls_free()
 *
 * Context: tool. Return: 0, or -errno (also in call->err): -ENOENT = it does not run.
 */
int probe_client_ask(const char *group, bool start, const void *request, uint32_t bytes, const int *fds,
		     size_t fd_count, uint64_t timeout_ns, struct ctl_call *call);

#endif
