/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin table: one row says everything about a plugin that a person or a program on either side of the control
 * socket must know. The command line's help, the check of keys and values (on both sides) and the manual page come from
 * it; what a plugin does is in agent/plugin/ or probe/.
 */
#ifndef WIRE_PLUGIN_SPEC_H
#define WIRE_PLUGIN_SPEC_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plugin_id {
	PLUGIN_MSPTI,
	PLUGIN_IO,
	PLUGIN_CPU,
	PLUGIN_MEMORY,
	PLUGIN_CACHEMISS,
	PLUGIN_GIL,
	PLUGIN_MUTEX,
	PLUGIN_FTRACE,
	PLUGIN_TRACE,
	PLUGIN_HBM,
	PLUGIN_COUNT
};
#define PLUGIN_BIT(id) (1u << (id))
#define PLUGIN_BIT_STAGES (1u << 16) /* Python stages: not a plugin of the table, always on unless switched off */
#define PLUGIN_BIT_COMM (1u << 17) /* per-step sums and flight ring of collectives: always on */

/** enum param_type - how a value is checked; docs/commands/sysTrace_cli.md explains each for people */
enum param_type {
	PARAM_END,
	PARAM_SEC, /* seconds, integer or decimal, >= 0 */
	PARAM_U64,
	PARAM_BOOL, /* 1|0|true|false|on|off */
	PARAM_UNIX, /* Unix time in seconds, decimals allowed */
	PARAM_PID_LIST, /* 1,2,3 */
	PARAM_CPU_LIST, /* 0-3,5 */
	PARAM_WORDS, /* comma list of the words in .words */
	PARAM_EVENT_LIST, /* group/event,group/event or group */
	PARAM_TEXT,
	PARAM_WORD /* one of .words */
};

struct param_spec {
	const char *key;
	enum param_type type;
	const char *initial; /* default, NULL = none */
	const char *words; /* PARAM_WORDS: the valid words, comma-separated */
	const char *syntax; /* as printed in the help, for example "duration=<sec>" */
	const char *help;
};

enum plugin_where { RUNS_IN_AGENT = 1, RUNS_IN_PROBE = 2 };

struct plugin_spec {
	const char *name; /* as documented; matching ignores case */
	const char *help;
	unsigned where; /* enum plugin_where, or-ed */
	const struct param_spec *params; /* ends with PARAM_END */
	const char *required; /* key without which enable is refused, or NULL */
};

extern const struct plugin_spec plugin_specs[PLUGIN_COUNT];
/** common_params - duration, start_step, steps, at, sync: the frame's own, valid for every plugin */
extern const struct param_spec common_params[];

/** plugin_find - id of a name, ignoring case. Return: id, or -ENOENT with @err naming the valid ones. */
int plugin_find(const char *name, struct st_err *err);

/**
 * plugin_check_param - is `key=value` valid for that plugin?
 *
 * Context: any, no allocation. Return: 0, -ENOENT (unknown key; err names the valid ones) or -EINVAL (bad value; err
 * says what is valid).
 */
int plugin_check_param(enum plugin_id id, const char *key, const char *value, struct st_err *err);

/**
 * plugin_param_find - row of a parameter, own or common
 * @key: case and `-` against `_` do not count; the row's .key is the name that goes over the wire
 *
 * Context: any. Return: the row, or NULL.
 */
const struct param_spec *plugin_param_find(enum plugin_id id, const char *key);

/** struct plugin_pair - one `key=value` of a request */
struct plugin_pair {
	const char *key;
	const char *value;
};

/**
 * plugin_check_enable - are these the parameters of a valid `enable`: each one valid, none given twice, none missing?
 *
 * Context: any, no allocation. Return: 0, -ENOENT or -EINVAL as plugin_check_param(), -EINVAL for the set.
 */
int plugin_check_enable(enum plugin_id id, const struct plugin_pair *pairs, size_t count, struct st_err *err);

/** plugin_where_text - "agent", "probe" or "agent and probe". Context: any. */
const char *plugin_where_text(enum plugin_id id);

/** struct plugin_timing - the frame's parameters, parsed */
struct plugin_timing {
	uint64_t duration_ns; /* 0 = until disabled */
	uint64_t start_step; /* first step to record, 0 = now */
	uint64_t steps; /* how many steps, 0 = no limit */
	uint64_t at_unix_ns; /* wall clock of the start, 0 = now */
	bool sync; /* fsync before `disable` answers */
};

/**
 * plugin_timing_take - store one pair if it is the frame's
 *
 * Context: any. Return: 1 stored, 0 not one of common_params, -EINVAL bad value.
 */
int plugin_timing_take(struct plugin_timing *timing, const char *key, const char *value);

#endif
