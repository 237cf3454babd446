/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Who this process is: run, host, pids, rank. What never changes is found when the agent starts; run and rank are bound
 * at the first record, because spawned workers learn theirs late. Goes into every file's Origin, into the meta file
 * and into the answers of the control socket.
 */
#ifndef AGENT_IDENTITY_H
#define AGENT_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** enum rank_source - where the rank came from; shown in `status` and in the meta file */
enum rank_source { RANK_UNKNOWN, RANK_BY_GROUP, RANK_BY_ENV, RANK_BY_PARENT };

struct identity {
	/* fixed when the agent starts */
	char host[65];
	char boot_id[40];
	char pids[96]; /* NSpid, outermost namespace first, blank-separated */
	char job[96]; /* script, module or command */
	char ip[46];
	uint32_t pid; /* in its own namespace */
	uint32_t uid;
	uint64_t proc_start; /* clock ticks since boot */
	uint64_t proc_start_unix; /* s, from btime: the same for every reader on the host */
	uint64_t pidns; /* inode */

	/* bound later; written under the lock of identity_bind() before .bound is set */
	_Atomic bool bound;
	char run[128];
	uint32_t rank;
	bool rank_known;
	uint32_t local_rank;
	uint32_t world_size; /* 0 = unknown */
	enum rank_source source;
};

extern struct identity identity;

/** identity_start - find what is fixed. Context: thread; opens files in /proc. */
void identity_start(void);

/**
 * identity_bind - bind run and rank, once; later calls change nothing
 *
 * A worker has those of its rank (parent.h). Else in this order: torch's process group (agent_rank_hint), the environment
 * as it is now, as it was when the process started.
 * Context: thread; not in a hook.
 */
void identity_bind(void);

/**
 * identity_guess - run and rank as they would be bound now, without binding them
 *
 * For the pool's header: a process may be killed before its first record is written. Context: as identity_bind().
 */
void identity_guess(void);

/** identity_hint - what torch's process group says. Context: hook. */
void identity_hint(uint32_t rank, uint32_t world_size);

/** identity_unbind - the next identity_bind() finds run and rank anew. Context: the io thread. */
void identity_unbind(void);

/** identity_bind_again - a forked child that became a rank of its own. Context: thread of that child. */
void identity_bind_again(void);

/** identity_late_hint - a rank that came after the binding and differs from it; returns false when there is none. */
bool identity_late_hint(uint32_t *rank);

/* The parsers, reachable for tests; texts are the contents of the files they are named after. */

/** identity_parse_job - script, module or command of a /proc/<pid>/cmdline of @len bytes. */
void identity_parse_job(const char *cmdline, size_t len, char *out, size_t room);

/** identity_parse_nspid - the NSpid line of /proc/<pid>/status, blank-separated; "" when there is none. */
void identity_parse_nspid(const char *status, char *out, size_t room);

/** identity_parse_ppid - field 4 of /proc/<pid>/stat; 0 = malformed. */
uint32_t identity_parse_ppid(const char *stat);

/** identity_default_iface - interface of the default route with the lowest metric in /proc/net/route, "" = none. */
void identity_default_iface(const char *route, char *out, size_t room);

/** identity_run - compose the run id from what the launcher gave; @get: value of a variable, as env_peek() */
void identity_run(int (*get)(const char *name, char *out, size_t room), uint64_t launcher_start_unix, char *out,
		  size_t room);

#endif
