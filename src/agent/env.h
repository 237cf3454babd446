/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The process's environment as it was when the agent looked: once, in the constructor, into memory of the agent's own
 * (a host may change or free its environment at any time). Rank variables are the exception: they are read again when
 * the rank is bound, because spawned workers learn theirs late.
 */
#ifndef AGENT_ENV_H
#define AGENT_ENV_H

#include "wire/env_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct env - parsed; texts are NULL when the variable is unset, empty or was refused, and there is no default */
struct env {
	const char *text[ENV_COUNT]; /* value or default; for the paths too */
	bool given[ENV_COUNT]; /* set by the user, and valid */
	int log_level; /* enum siglog_level */
	bool json;
	bool python_tracing;
	uint64_t spool_bytes;
	uint64_t max_bytes;
	double budget_pct;
	const char *state_home; /* $XDG_STATE_HOME, else $HOME/.local/state; NULL = neither; the fallback's parent */
};

extern struct env env;

/** enum env_switch - SYSTRACE_ENABLE */
enum env_switch { ENV_SWITCH_AUTO, ENV_SWITCH_ON, ENV_SWITCH_OFF };

/** env_switch - what SYSTRACE_ENABLE says; reads that one variable only. Context: constructor. */
enum env_switch env_switch(void);

/**
 * env_read - fill env
 *
 * A value that is refused is replaced by the default and kept for env_complain(). Context: constructor.
 */
void env_read(void);

/** env_complain - log what env_read refused. Context: thread, after siglog_setup(). */
void env_complain(void);

/**
 * env_peek - value of a variable now, also while another thread changes the environment
 *
 * Reads this process's memory by process_vm_readv, or where that is not allowed through a pipe: both fail where a stale
 * pointer would kill the job.
 * Context: thread; not in a hook (tens of system calls). Return: length of the value, cut to @room - 1, or -ENOENT.
 */
int env_peek(const char *name, char *out, size_t room);

#endif
