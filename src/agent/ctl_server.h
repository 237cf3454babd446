/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The thread systrace/ctl: the control socket and the plugins' timers. It never touches the dump path; where an answer
 * needs data on disk it asks the io thread and serves others meanwhile.
 */
#ifndef AGENT_CTL_SERVER_H
#define AGENT_CTL_SERVER_H

#include <stdbool.h>
#include <stdint.h>

/** ctl_run - body of the thread. */
void ctl_run(void);

/** ctl_wait_ready - wait until the plugins of SYSTRACE_PLUGINS were switched on. Context: constructor. */
void ctl_wait_ready(uint64_t deadline_ns);

/** ctl_stop - remove the socket's name; the thread ends by itself after thread_stop(). Context: exit path. */
void ctl_stop(void);

/** ctl_after_fork - the socket is the parent's. Context: fork. */
void ctl_after_fork(void);

/** ctl_socket_path - "" while there is none. Context: thread. */
const char *ctl_socket_path(void);

#endif
