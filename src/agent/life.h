/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What life.c shares with the agent's other files: when and why the agent started, where its pool lives, and what forked
 * children have to be told. Everyone outside agent/ uses agent.h only.
 */
#ifndef AGENT_LIFE_H
#define AGENT_LIFE_H

#include "agent/agent.h"
#include "spool/dir.h"

struct life {
	struct spool spool;
	_Atomic int start_reason; /* enum agent_reason */
	_Atomic int record_reason; /* of the first record; -1 before */
	uint32_t pid; /* of the process that owns threads and pool; another one is a forked child */
};

extern struct life life;

/** life_reason_text - "framework", "runtime", "command", ...; "" for -1. Context: any. */
const char *life_reason_text(int reason);

/** life_state_text - "dormant", "ready", ... Context: any. */
const char *life_state_text(enum agent_state state);

/** life_is_child - is this a forked child of the process that owns the agent? Context: hook. */
bool life_is_child(void);

/** life_mark_recording - here, and in the pool for recover. Context: hook. */
void life_mark_recording(enum agent_reason reason);

/** life_log_setup - name the log file after this process. Context: thread. */
void life_log_setup(void);

/**
 * life_threads_start - io, ctl and, with an interpreter, py
 *
 * Context: agent_start(), and the promotion of a child. Return: 0 or -errno; what was started is stopped again then.
 */
int life_threads_start(void);

/**
 * life_end - flush and take down: at most two seconds
 *
 * Context: destructor, on the thread that ends the process. Idempotent.
 */
void life_end(void);

/** fork_watch - register what forked children and their parents must do. Context: agent_start(), once. */
void fork_watch(void);

/**
 * fork_promote - make this forked child an agent of its own, if it is one that has none yet
 *
 * Context: the job's own thread at the end of a traced Python function (agent_record), never inside a native hook.
 */
void fork_promote(enum agent_reason reason);

#endif
