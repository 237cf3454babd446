/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The environment table: every variable that steers the agent or tells it who it is. The agent reads it once
 * (agent/env.c), `systrace doctor` prints it, docs/environment.md is checked against it. Checking only: reading the
 * environment is the callers' business.
 */
#ifndef WIRE_ENV_SPEC_H
#define WIRE_ENV_SPEC_H

#include "base/err.h"

/** enum env_id - the variables of sysTrace itself */
enum env_id {
	ENV_DUMP_PATH,
	ENV_LOG_PATH,
	ENV_LOG_LEVEL,
	ENV_FORMAT,
	ENV_PYTHON_TRACING,
	ENV_PYFUNC_LIST,
	ENV_SOCKET_DIR,
	ENV_SPOOL_PATH,
	ENV_SPOOL_MB,
	ENV_LOCAL_PATH,
	ENV_MAX_MB,
	ENV_BUDGET_PCT,
	ENV_HOST_IP,
	ENV_RUN_ID,
	ENV_ENABLE,
	ENV_PLUGINS,
	ENV_COUNT
};

/** enum env_type - how a value is checked */
enum env_type {
	ENV_TYPE_PATH, /* absolute path */
	ENV_TYPE_WORD, /* one of the words in .words, case ignored */
	ENV_TYPE_U64,
	ENV_TYPE_PCT, /* decimal number, 0 < value <= 100 */
	ENV_TYPE_TEXT
};

struct env_spec {
	const char *name;
	enum env_type type;
	const char *initial; /* default as printed; NULL = none */
	const char *words; /* ENV_TYPE_WORD: the valid words, comma-separated */
	const char *help;
};

extern const struct env_spec env_specs[ENV_COUNT];

/* Who the process is: variables of launchers, first found wins; each list ends with NULL. */
extern const char *const env_rank_names[];
extern const char *const env_local_rank_names[];
extern const char *const env_world_names[];

/**
 * env_check - is @value valid for that variable?
 *
 * Context: any, no allocation. Return: 0, or -EINVAL with @err naming variable, value and what is valid.
 */
int env_check(enum env_id id, const char *value, struct st_err *err);

/**
 * env_word - position of @value among the variable's words, case ignored
 *
 * Context: any. Return: 0.., or -EINVAL.
 */
int env_word(enum env_id id, const char *value);

#endif
