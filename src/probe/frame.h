/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Inside the frame: what run.c (loop, sessions), control.c (socket) and target.c (processes) know of each other, and what
 * sysTrace_cli needs to start a probe and to talk to it. Kinds include probe/probe.h only.
 */
#ifndef PROBE_FRAME_H
#define PROBE_FRAME_H

#include "probe/probe.h"

#define PROBE_FDS_MAX 250 /* descriptors with one request; the kernel's SCM_MAX_FD is 253 */
#define PROBE_TARGETS_MAX 1024
#define PROBE_SOCKET_DIR "/run/sysTrace"

/* --- handing over (also the command line's side) ---------------------------------------------------------------------- */

/** probe_socket_path - <SYSTRACE_SOCKET_DIR, else /run/sysTrace>/sysTrace_probe_<group>.sock */
void probe_socket_path(const char *group, char *out, size_t room);

/**
 * probe_target_put - append a target to an `enable`: entries target=<pid>, target.<field>=...
 * @dir_fd, @pool_fd of @target: index into the descriptors sent along, -1 = none
 */
void probe_target_put(struct ctl_msg *msg, const struct probe_target *target);

/**
 * probe_target_take - read one entry of a request into the target being read
 * @fds, @fd_count: descriptors that came along; copies of them are made
 *
 * Return: 1 = it began a new target (*@targets and *@count grew), 0 = taken or not a target's entry, -errno with @err.
 */
int probe_target_take(const struct ctl_entry *entry, struct probe_target ***targets, size_t *count, const int *fds,
		      size_t fd_count, struct st_err *err);

/* --- targets ---------------------------------------------------------------------------------------------------------- */

/**
 * probe_target_own - make @target known, or find the same process among the known ones (the new one is freed then)
 *
 * Opens its pidfd and checks pid and start time. Return: the target to use, one more user of it; NULL with @err.
 */
struct probe_target *probe_target_own(struct probe_target *target, struct st_err *err);

/** probe_target_release - one user less; the last one frees it */
void probe_target_release(struct probe_target *target);

/** probe_target_free - one that was never owned */
void probe_target_free(struct probe_target *target);

/* --- sessions (run.c) ------------------------------------------------------------------------------------------------- */

/** probe_enable, probe_disable - as the verbs; texts for the answer in @said (code 0 and a remark, or the error) */
int probe_enable(enum plugin_id plugin, const struct plugin_pair *pairs, size_t count, struct probe_target **targets,
		 size_t target_count, struct st_err *said);
int probe_disable(enum plugin_id plugin, const pid_t *pids, size_t count, struct st_err *said);
void probe_flush_all(void);
void probe_status_put(struct ctl_msg *answer);

/** probe_target_ended - every session loses it (target.c calls it) */
void probe_target_ended(struct probe_target *target);

/* --- the process ------------------------------------------------------------------------------------------------------ */

/** probe_run - be the probe of @group until its last session has ended. @ready_fd: gets "ready", or why not; -1 = none.
 * Return: 0, or -errno with @err. */
int probe_run(const char *group, int ready_fd, struct st_err *err);

/** control_open - listen; -EADDRINUSE: another probe of the group runs. control_close: unlink. */
int control_open(const char *group, struct st_err *err);
void control_close(void);
/** control_quiet - no client is being served */
bool control_quiet(void);
/** control_tick - hang up on clients that keep us waiting */
void control_tick(uint64_t now_ns);
const char *control_path(void);

#endif
