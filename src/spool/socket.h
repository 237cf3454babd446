/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Control sockets that dead processes left behind: a name of ours nobody listens under. Used by the agent when its name
 * is taken, by recover and by ranks whose workers left by _exit. Removes what belongs to this user and to nobody alive.
 */
#ifndef SPOOL_SOCKET_H
#define SPOOL_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

/** socket_is_dead - is @path a socket of this user (no link), and does nobody listen there? Context: thread, tool. */
bool socket_is_dead(const char *path);

/** socket_remove - the names of process @pid, known to be dead, of pid namespace @pidns. Context: thread, tool. */
void socket_remove(const char *dir, uint32_t pid, uint64_t pidns);

/** struct socket_sweep - what socket_sweep() is to do */
struct socket_sweep {
	const char *dir; /* SYSTRACE_SOCKET_DIR */
	bool dry_run;
	void (*report)(void *ctx, const char *path, int error); /* removed (0), or why not */
	void *ctx;
};

/**
 * socket_sweep - remove all dead control sockets of this user from one directory
 *
 * One whose process is alive, as far as its pid can tell from here, is left; so is one younger than two seconds: its
 * process may be about to listen. Context: tool. Return: how many were removed (or would be), or -errno.
 */
int socket_sweep(const struct socket_sweep *sweep);

#endif
