/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace doctor --pid`: why a process records, or does not. What /proc shows from outside, then what its agent answers
 * to `status`.
 */
#include "cli/doctor.h"

#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/ctl_client.h"
#include "cli/targets.h"
#include "wire/env_spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESS "Process"
#define AGENT "Its agent"
#define VARIABLES "Its environment"
#define ANSWER_WAIT_NS 5000000000ull

/* --- its environment ------------------------------------------------------------------------------------------------- */

static char *read_environ(pid_t pid, size_t *bytes)
{
	char path[32], *data = NULL;
	size_t room = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	file = fopen(path, "r");
	*bytes = 0;
	while (file && !feof(file) && !ferror(file) && room < (4u << 20)) {
		char *more = realloc(data, room + 65536 + 1);

		if (!more)
			break;
		data = more;
		room += 65536;
		*bytes += fread(data + *bytes, 1, room - *bytes, file);
	}
	if (file)
		fclose(file);
	if (data)
		data[*bytes] = '\0';
	return data;
}

static const char *env_value(const char *env, size_t bytes, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = env; at && at < env + bytes; at += strlen(at) + 1)
		if (strncmp(at, name, len) == 0 && at[len] == '=')
			return at + len + 1;
	return NULL;
}

static void show_variables(struct diagnosis *d, const char *env, size_t bytes)
{
	const char *value = env_value(env, bytes, "LD_PRELOAD");

	if (!env) {
		diagnosis_add(d, VARIABLES, FINDING_INFO, "not readable", "%s", strerror(errno));
		return;
	}
	diagnosis_add(d, VARIABLES, FINDING_INFO, "LD_PRELOAD", "%s", value && *value ? value : "not set");
	for (int id = 0; id < ENV_COUNT; id++) {
		struct st_err err = { 0 };

		value = env_value(env, bytes, env_specs[id].name);
		if (!value || !*value)
			continue;
		if (env_check((enum env_id)id, value, &err) < 0)
			diagnosis_add(d, VARIABLES, FINDING_NO, env_specs[id].name, "%s", err.text);
		else
			diagnosis_add(d, VARIABLES, FINDING_OK, env_specs[id].name, "%s", value);
	}
}

/* --- a process without the library --------------------------------------------------------------------------------- */

static void not_loaded(struct diagnosis *d, pid_t pid, const char *env, size_t bytes)
{
	const char *preload = env_value(env, bytes, "LD_PRELOAD");
	char library[512], maps[32];
	FILE *file;

	snprintf(maps, sizeof(maps), "/proc/%d/maps", (int)pid);
	file = fopen(maps, "r");
	if (!file) {
		diagnosis_add(d, PROCESS, FINDING_NO, "library",
			      "its memory map is not readable (%s); run as root or as its user", strerror(errno));
		return;
	}
	fclose(file);
	build_library(library, sizeof(library));
	if (!preload || !strstr(preload, "libsysTrace.so"))
		diagnosis_add(d, PROCESS, FINDING_NO, "library",
			      "not loaded, and not in its LD_PRELOAD; start it with LD_PRELOAD=%s", library);
	else
		diagnosis_add(
			d, PROCESS, FINDING_NO, "library",
			"in its LD_PRELOAD, but not loaded: the program is static or set-uid, the file was missing or for "
			"another CPU, or LD_PRELOAD was set after its start");
}

/* --- a process with it --------------------------------------------------------------------------------------------- */

static void show_kind(struct diagnosis *d, const struct target *target)
{
	diagnosis_add(d, PROCESS, target->deleted ? FINDING_LIMITED : FINDING_OK, "library", "%s%s", target->library,
		      target->deleted ? " (replaced since the process started; it keeps the old one)" : "");
	if (target->foreign)
		diagnosis_add(d, PROCESS, FINDING_INFO, "container", "in another mount namespace, there as process %d",
			      (int)target->inner_pid);
	if (target->state == 'T' || target->state == 't')
		diagnosis_add(d, PROCESS, FINDING_NO, "stopped", "by a signal or a debugger: it cannot answer");
	if (strcmp(target->enable, "0") == 0 || strcmp(target->enable, "off") == 0)
		diagnosis_add(d, PROCESS, FINDING_NO, "state", "off: SYSTRACE_ENABLE=%s forbids recording",
			      target->enable);
	else if (target->kind == TARGET_DORMANT)
		diagnosis_add(
			d, PROCESS, FINDING_NO, "state",
			"dormant: %s is here, but no framework such as torch was imported; SYSTRACE_ENABLE=1 starts at once",
			target->python ? "an interpreter" : "a device runtime");
	else if (target->kind == TARGET_CHILD)
		diagnosis_add(d, PROCESS, FINDING_OK, "state", "forked from process %d, records through that one",
			      (int)target->parent);
	else if (target->kind == TARGET_INERT)
		diagnosis_add(
			d, PROCESS, FINDING_NO, "state",
			"inert: neither a Python interpreter nor a device runtime is loaded; SYSTRACE_ENABLE=1 starts anyway");
}

static void show_answer(struct diagnosis *d, const struct ctl_call *call)
{
	static const char *const keys[][2] = {
		{ "state", "state" },
		{ "rank", "rank" },
		{ "step", "step" },
		{ "python", "Python" },
		{ "dump_path", "output" },
		{ "records", "records" },
		{ "dropped", "records lost" },
		{ "cost_pct", "own cost in %" },
		{ "hooks.slots", "hooked slots" },
		{ "hooks.foreign", "slots of others" },
		{ "hooks.refused", "slots refused" },
		{ "log", "log" },
	};
	char text[512];

	diagnosis_add(d, AGENT, FINDING_OK, "socket", "%s", call->target->shown);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (ctl_call_get(call, keys[i][0], text, sizeof(text)))
			diagnosis_add(d, AGENT, FINDING_INFO, keys[i][1], "%s", text);
	for (uint32_t at = 0;;) {
		struct ctl_entry entry;

		if (ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) != 1)
			break;
		if (entry.key_bytes == 4 && memcmp(entry.key, "note", 4) == 0)
			diagnosis_add(d, AGENT, FINDING_LIMITED, "remark", "%.*s", (int)entry.value_bytes, entry.value);
		if (entry.key_bytes == 11 && memcmp(entry.key, "hook.object", 11) == 0)
			diagnosis_add(d, AGENT, FINDING_INFO, "hooks in", "%.*s", (int)entry.value_bytes, entry.value);
	}
}

static int ask_agent(struct diagnosis *d, const struct target *target)
{
	struct ctl_call call = { .target = target };
	uint8_t request[CTL_FRAME_BYTES];
	struct ctl_msg msg;
	size_t failed;

	ctl_begin(&msg, request, sizeof(request), CTL_STATUS, (uint32_t)getpid());
	failed = ctl_exchange(&call, 1, request, (uint32_t)ctl_finish(&msg), ANSWER_WAIT_NS);
	if (failed)
		diagnosis_add(d, AGENT, FINDING_NO, target->shown, "%s", call.err.text);
	else
		show_answer(d, &call);
	ctl_calls_free(&call, 1);
	return failed ? CMD_ERROR : CMD_OK;
}

int doctor_pid(struct diagnosis *diagnosis, pid_t pid)
{
	struct targets targets = { 0 };
	struct target *target;
	struct st_err err = { 0 };
	char path[32], *env;
	int status = CMD_ERROR;
	size_t bytes;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (access(path, F_OK) < 0)
		return cmd_nothing("there is no process %d", (int)pid);
	env = read_environ(pid, &bytes);
	if (targets_find(&targets, &err) < 0)
		diagnosis_add(diagnosis, PROCESS, FINDING_NO, "library", "%s", err.text);
	target = targets_get(&targets, pid);
	if (target) {
		diagnosis_add(diagnosis, PROCESS, FINDING_INFO, "command", "%s, user %u", target->comm,
			      (unsigned)target->uid);
		show_kind(diagnosis, target);
	} else {
		not_loaded(diagnosis, pid, env, bytes);
	}
	if (target && target->kind == TARGET_AGENT)
		status = ask_agent(diagnosis, target);
	show_variables(diagnosis, env, bytes);
	free(env);
	targets_free(&targets);
	return status;
}
