/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a plugin of the agent implements, and the frame around it: the frame parses and keeps duration, start_step, steps
 * and at, and calls start and stop at the right moment; a plugin only ever sees "begin now" and "stop now". All calls
 * come from the control thread, one at a time.
 */
#ifndef AGENT_PLUGIN_H
#define AGENT_PLUGIN_H

#include "base/err.h"
#include "wire/plugin_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct plugin_args - the request's keys without the frame's; texts valid during the call only */
struct plugin_args {
	const char *key[32];
	const char *value[32];
	int count;
};

struct plugin {
	enum plugin_id id;
	/* can it run here with these arguments? 0, or -errno with err saying why and what to do; changes nothing */
	int (*check)(const struct plugin_args *args, struct st_err *err);
	/* begin, or take new arguments while running; reserves everything it will need. A note for the ACK may be put in
	 * err even on success ("agent part only: ..."). */
	int (*start)(const struct plugin_args *args, struct st_err *err);
	/* idempotent; returns when no hook records any more (the frame then flushes) */
	void (*stop)(void);
	/* calls recorded since the process began, for the overhead budget; NULL: it records none call by call */
	uint64_t (*calls)(void);
	/* over budget: record less from now on; @level 1, 2, ... since start; @what says for people what holds now.
	 * Not 0: nothing is left but to stop, which the frame then does. NULL: as if so from the first level on */
	int (*back_off)(unsigned int level, char *what, size_t room);
	/* one line for `status`, for example "1234 markers, 0 dropped"; may be NULL */
	void (*status)(char *text, size_t room);
};

/** plugin_args_get - value of a key, or NULL. */
const char *plugin_args_get(const struct plugin_args *args, const char *key);

/** plugin_args_bool - is a PARAM_BOOL given and on? */
bool plugin_args_bool(const struct plugin_args *args, const char *key);

/** agent_plugins - rows by id; NULL = not in this build. One row per file in agent/plugin/. */
extern const struct plugin *const agent_plugins[PLUGIN_COUNT];

#endif
