/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which processes of this host have libsysTrace.so loaded, and how their agent is reached: /proc is walked once, sockets
 * inside containers are opened through the process's own root without following a link. Used by sysTrace_cli and doctor.
 */
#ifndef CLI_TARGETS_H
#define CLI_TARGETS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define TARGET_PATH 320

/** enum target_kind - what a process with the library is, as far as /proc shows */
enum target_kind {
	TARGET_AGENT, /* its control socket exists, or can't be looked at (see .err) */
	TARGET_DORMANT, /* an interpreter or a device runtime, no socket yet */
	TARGET_CHILD, /* forked from a process with an agent; records through its parent */
	TARGET_INERT /* neither: a shell, a compiler, a launcher */
};

/** struct target - one process that maps libsysTrace.so */
struct target {
	pid_t pid; /* as seen here */
	pid_t inner_pid; /* in its own pid namespace: names the socket */
	pid_t parent;
	uid_t uid; /* effective, as seen here */
	enum target_kind kind;
	bool foreign; /* other mount namespace or root: a container */
	bool python; /* maps an interpreter */
	bool runtime; /* maps a device runtime */
	bool deleted; /* its library file was replaced or deleted since it started */
	char state; /* letter of /proc/<pid>/stat: R, S, D, T, ... */
	char comm[20];
	char library[TARGET_PATH]; /* path of libsysTrace.so as the process sees it */
	char enable[8]; /* its SYSTRACE_ENABLE, "" = not set */
	char socket[TARGET_PATH]; /* as the process sees it */
	char shown[TARGET_PATH + 32]; /* for people: of containers /proc/<pid>/root<socket> */
	int socket_fd; /* O_PATH, -1 = none */
	struct st_err err; /* why the socket can't be reached; code 0 = it can */
};

struct targets {
	struct target *list; /* by pid */
	size_t count;
	size_t hidden; /* processes of other users that may not be looked into */
};

/**
 * targets_find - walk /proc
 *
 * Context: tool. Never blocks on a process. targets_free() in any case. Return: 0 or -errno with @err.
 */
int targets_find(struct targets *targets, struct st_err *err);
void targets_free(struct targets *targets);

/** targets_get - the target with this pid, or NULL. */
struct target *targets_get(const struct targets *targets, pid_t pid);

/** targets_count - how many of a kind. */
size_t targets_count(const struct targets *targets, enum target_kind kind);

#endif
