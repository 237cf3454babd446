/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin table and the checks made with it, on both sides of the control socket. Names, order and help lines follow
 * the user guide's section 7.2.3 (misprints corrected); what the guide leaves open is contract 10-18.
 */
#include "wire/plugin_spec.h"

#include "base/cpulist.h"
#include "base/near.h"
#include "base/num.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PID_MAX_LIMIT 4194304u /* the kernel's PID_MAX_LIMIT on 64 bits */
#define EVENT_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_*?.:-"

const struct param_spec common_params[] = {
	{ "duration", PARAM_SEC, "0", NULL, "duration=<sec>", "Capture duration in seconds (0 for infinite)" },
	{ "start_step", PARAM_U64, NULL, NULL, "start_step=<n>", "Begin with training step n, the same on every rank" },
	{ "steps", PARAM_U64, NULL, NULL, "steps=<n>", "Stop after n training steps" },
	{ "at", PARAM_UNIX, NULL, NULL, "at=<unix time>",
	  "Begin at this time (seconds since 1970), the same on every rank" },
	{ "sync", PARAM_BOOL, "0", NULL, "sync=1", "Make files durable (fsync) before disable answers" },
	{ .type = PARAM_END },
};

static const struct param_spec mspti_params[] = {
	{ "event", PARAM_WORDS, "marker", "marker,kernel,api", "event=<types>",
	  "Comma-separated: marker, kernel, api" },
	{ .type = PARAM_END },
};

static const struct param_spec io_params[] = {
	{ "min_us", PARAM_U64, "0", NULL, "min_us=<us>", "Keep only calls that took at least this long" },
	{ "path", PARAM_TEXT, NULL, NULL, "path=<glob>",
	  "Keep only files whose path matches (*, ?, [...]; a plain path: it and what is below)" },
	{ "rank", PARAM_CPU_LIST, NULL, NULL, "rank=<list>", "Record on these ranks only, for example 0-3,8" },
	{ .type = PARAM_END },
};

static const struct param_spec cpu_params[] = {
	{ "pid", PARAM_PID_LIST, NULL, NULL, "pid=<pid>", "trace target process" },
	{ "buffer_kb", PARAM_U64, "16384", NULL, "buffer_kb=<KB>",
	  "Kernel buffer for events not yet written (default: 16384)" },
	{ .type = PARAM_END },
};

static const struct param_spec memory_params[] = {
	{ "space", PARAM_WORD, "all", "host,device,all", "space=<space>",
	  "What to record: host, device, all (default: all)" },
	{ "sample_bytes", PARAM_U64, "524288", NULL, "sample_bytes=<n>",
	  "Record one allocation in this many bytes (default 524288; 1: every one)" },
	{ "blocks", PARAM_U64, "65536", NULL, "blocks=<n>",
	  "Remember at most this many live samples (default 65536; 1048576 below 64 KiB)" },
	{ "stack", PARAM_BOOL, "1", NULL, "stack=0", "No call stacks (default: native and Python frames)" },
	{ "pid", PARAM_PID_LIST, NULL, NULL, "pid=<pid>", "trace target process" },
	{ .type = PARAM_END },
};

static const struct param_spec cachemiss_params[] = {
	{ "args", PARAM_TEXT, NULL, NULL, "args=-p <pid> -e <events> --timeout <ms>",
	  "Standard perf-stat arguments for hardware event monitoring" },
	{ .type = PARAM_END },
};

static const struct param_spec gil_params[] = {
	{ "pid", PARAM_PID_LIST, NULL, NULL, "pid=<pid>", "trace target python process" },
	{ "aggregate", PARAM_BOOL, "1", NULL, "aggregate=0", "Keep one file per rank (default: folded into one file)" },
	{ .type = PARAM_END },
};

static const struct param_spec mutex_params[] = {
	{ "pid", PARAM_PID_LIST, NULL, NULL, "pid=<pid>", "trace target process" },
	{ "min_us", PARAM_U64, "1", NULL, "min_us=<us>",
	  "Keep only waits of at least this long (default: 1, 0 keeps all)" },
	{ "stack", PARAM_BOOL, "0", NULL, "stack=1", "Store the native and Python stack of each wait that is kept" },
	{ "aggregate", PARAM_BOOL, "1", NULL, "aggregate=0", "Keep one file per rank (default: folded into one file)" },
	{ .type = PARAM_END },
};

static const struct param_spec ftrace_params[] = {
	{ "cpu_list", PARAM_CPU_LIST, NULL, NULL, "cpu_list=\"0-15\"", "Trace specific CPUs (e.g., \"0-3,5\")" },
	{ "events", PARAM_EVENT_LIST, NULL, NULL, "events=\"<group>/<event>,<group>/<event>\"",
	  "Enable tracepoints: irq, sched, syscalls, raw_syscalls, vmscan, compaction" },
	{ "function_tracer", PARAM_WORD, "nop", "nop,function,function_graph",
	  "function_tracer=\"function_graph|function\"", "Set ftrace tracer (default: nop)" },
	{ "func", PARAM_TEXT, NULL, NULL, "func=\"func1 func2\"",
	  "Filter kernel functions to trace (wildcards supported: \"*mmap\")" },
	{ "func_stack_trace", PARAM_BOOL, "0", NULL, "func_stack_trace=1",
	  "Enable kernel stack trace for functions (use with function_tracer=function)" },
	{ "event_stack_trace", PARAM_BOOL, "0", NULL, "event_stack_trace=1",
	  "Enable kernel stack trace for events (use with events!=null)" },
	{ "set_event_pid", PARAM_PID_LIST, NULL, NULL, "set_event_pid=<pid>", "Trace events of these processes only" },
	{ "set_ftrace_pid", PARAM_PID_LIST, NULL, NULL, "set_ftrace_pid=<pid>",
	  "Trace events and functions of these processes only" },
	{ "buffer_size_kb", PARAM_U64, "32768", NULL, "buffer_size_kb=<KB>", "Trace buffer per CPU (default: 32768)" },
	{ .type = PARAM_END },
};

static const struct param_spec trace_params[] = {
	{ "args", PARAM_TEXT, NULL, NULL, "args=<args>", "trace-cmd args" },
	{ .type = PARAM_END },
};

static const struct param_spec hbm_params[] = {
	{ .type = PARAM_END },
};

const struct plugin_spec plugin_specs[PLUGIN_COUNT] = {
	[PLUGIN_MSPTI] = { "MSPTI", "NVIDIA/Atlas Activity Tracing (HCCL, Kernels)", RUNS_IN_AGENT, mspti_params,
			   NULL },
	[PLUGIN_IO] = { "IO", "Disk and Network I/O Latency/Throughput", RUNS_IN_AGENT, io_params, NULL },
	[PLUGIN_CPU] = { "CPU", "CPU Utilization and Context Switch Trace", RUNS_IN_PROBE, cpu_params, NULL },
	[PLUGIN_MEMORY] = { "Memory", "Memory Allocation and Leak Detection", RUNS_IN_AGENT | RUNS_IN_PROBE,
			    memory_params, NULL },
	[PLUGIN_CACHEMISS] = { "CacheMiss", "Hardware Cache Miss Rates and Memory Access Efficiency", RUNS_IN_PROBE,
			       cachemiss_params, "args" },
	[PLUGIN_GIL] = { "GIL", "Python Global Interpreter Lock (GIL) Contention and Latency Trace",
			 RUNS_IN_AGENT | RUNS_IN_PROBE, gil_params, NULL },
	[PLUGIN_MUTEX] = { "Mutex", "Pthread Synchronization Latency (Mutex/RWLock/Spinlock/Sem)",
			   RUNS_IN_AGENT | RUNS_IN_PROBE, mutex_params, NULL },
	[PLUGIN_FTRACE] = { "Ftrace", "Linux Kernel Ftrace (Events, Function Graph, and Sched Tracing)", RUNS_IN_PROBE,
			    ftrace_params, "cpu_list" },
	[PLUGIN_TRACE] = { "Trace",
			   "A command-line interface for interacting with the Linux kernel's Ftrace subsystem to record "
			   "and analyze system performance and kernel events.",
			   RUNS_IN_PROBE, trace_params, "args" },
	[PLUGIN_HBM] = { "HBM", "Device Memory (HBM) Allocation and Release with Call Stacks", RUNS_IN_AGENT,
			 hbm_params, NULL },
};

/* --- texts -------------------------------------------------------------------------------------------------------- */

static void join(char *out, size_t room, const char *word)
{
	size_t used = strlen(out);

	snprintf(out + used, room - used, "%s%s", used ? ", " : "", word);
}

static void join_params(char *out, size_t room, const struct param_spec *row)
{
	for (; row->type != PARAM_END; row++)
		join(out, room, row->key);
}

const char *plugin_where_text(enum plugin_id id)
{
	static const char *const texts[] = { "", "agent", "probe", "agent and probe" };

	return texts[plugin_specs[id].where & 3u];
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

int plugin_find(const char *name, struct st_err *err)
{
	struct near near = { .word = name };
	char all[160] = "";

	for (int id = 0; id < PLUGIN_COUNT; id++) {
		if (near_same(plugin_specs[id].name, name))
			return id;
		near_offer(&near, plugin_specs[id].name);
		join(all, sizeof(all), plugin_specs[id].name);
	}
	if (near.best)
		return err_set(err, -ENOENT, "there is no plugin '%.40s'; did you mean %s? The plugins are %s", name,
			       near.best, all);
	return err_set(err, -ENOENT, "there is no plugin '%.40s'; the plugins are %s", name, all);
}

static const struct param_spec *find_in(const struct param_spec *row, const char *key)
{
	for (; row->type != PARAM_END; row++)
		if (near_same(row->key, key))
			return row;
	return NULL;
}

const struct param_spec *plugin_param_find(enum plugin_id id, const char *key)
{
	const struct param_spec *row = find_in(plugin_specs[id].params, key);

	return row ? row : find_in(common_params, key);
}

static int unknown_param(enum plugin_id id, const char *key, struct st_err *err)
{
	const struct plugin_spec *spec = &plugin_specs[id];
	struct near near = { .word = key };
	char all[256] = "";

	for (const struct param_spec *row = spec->params; row->type != PARAM_END; row++)
		near_offer(&near, row->key);
	for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
		near_offer(&near, row->key);
	join_params(all, sizeof(all), spec->params);
	join_params(all, sizeof(all), common_params);
	if (near.best)
		return err_set(err, -ENOENT, "%s has no parameter '%.40s'; did you mean %s? It takes %s", spec->name,
			       key, near.best, all);
	return err_set(err, -ENOENT, "%s has no parameter '%.40s'; it takes %s", spec->name, key, all);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Is the @len bytes long word one of the comma list @words? */
static bool word_in(const char *word, size_t len, const char *words)
{
	while (*words) {
		size_t span = strcspn(words, ",");

		if (span == len && strncmp(words, word, len) == 0)
			return true;
		words += span + (words[span] == ',');
	}
	return false;
}

static bool words_valid(const char *value, const char *words)
{
	for (;;) {
		size_t len = strcspn(value, ",");

		if (!word_in(value, len, words))
			return false;
		if (value[len] == '\0')
			return true;
		value += len + 1;
	}
}

static bool pid_list_valid(const char *value)
{
	for (;;) {
		size_t len = strcspn(value, ",");
		uint64_t pid;

		if (num_u64_n(value, len, &pid) < 0 || pid == 0 || pid > PID_MAX_LIMIT)
			return false;
		if (value[len] == '\0')
			return true;
		value += len + 1;
	}
}

static bool event_list_valid(const char *value)
{
	for (;;) {
		size_t group = strspn(value, EVENT_CHARS);

		if (group == 0)
			return false;
		value += group;
		if (*value == '/') {
			size_t event = strspn(value + 1, EVENT_CHARS);

			if (event == 0)
				return false;
			value += 1 + event;
		}
		if (*value == '\0')
			return true;
		if (*value++ != ',')
			return false;
	}
}

static bool value_valid(const struct param_spec *row, const char *value)
{
	uint64_t number;
	bool yes;

	switch (row->type) {
	case PARAM_SEC:
	case PARAM_UNIX:
		return num_sec_ns(value, &number) == 0;
	case PARAM_U64:
		return num_u64(value, &number) == 0;
	case PARAM_BOOL:
		return num_bool(value, &yes) == 0;
	case PARAM_PID_LIST:
		return pid_list_valid(value);
	case PARAM_CPU_LIST:
		return cpulist_check(value) == 0;
	case PARAM_WORDS:
		return words_valid(value, row->words);
	case PARAM_WORD:
		return word_in(value, strlen(value), row->words);
	case PARAM_EVENT_LIST:
		return event_list_valid(value);
	case PARAM_TEXT:
		return value[strspn(value, " \t\n")] != '\0';
	case PARAM_END:
		break;
	}
	return false;
}

/* What a valid value looks like, after "it must be"; PARAM_WORD and PARAM_WORDS name their words besides. */
static const char *const wanted[] = {
	[PARAM_END] = "",
	[PARAM_SEC] = "a number of seconds, such as 10 or 2.5 (0 = until disabled)",
	[PARAM_U64] = "a whole number, such as 100",
	[PARAM_BOOL] = "1, 0, true, false, on or off",
	[PARAM_UNIX] = "a Unix time in seconds, such as the output of: date -d '+1 minute' +%s",
	[PARAM_PID_LIST] = "process ids separated by commas, such as 1234 or 1234,5678",
	[PARAM_CPU_LIST] = "CPU numbers, such as 0-3,5",
	[PARAM_WORDS] = "one or more, separated by commas, of",
	[PARAM_EVENT_LIST] = "events or groups separated by commas without blanks, such as sched/sched_switch,irq",
	[PARAM_TEXT] = "a text that is not empty",
	[PARAM_WORD] = "one of",
};

static int bad_value(const char *plugin, const struct param_spec *row, const char *value, struct st_err *err)
{
	bool words = row->type == PARAM_WORDS || row->type == PARAM_WORD;
	char all[96] = "";

	for (const char *at = words ? row->words : ""; *at;) {
		size_t len = strcspn(at, ",");
		char word[32];

		snprintf(word, sizeof(word), "%.*s", (int)len, at);
		join(all, sizeof(all), word);
		at += len + (at[len] == ',');
	}
	if (*value == '\0')
		return err_set(err, -EINVAL, "%s: %s has no value; it must be %s%s%s", plugin, row->key,
			       wanted[row->type], words ? " " : "", all);
	return err_set(err, -EINVAL, "%s: %s=%.60s is not valid; it must be %s%s%s", plugin, row->key, value,
		       wanted[row->type], words ? " " : "", all);
}

int plugin_check_param(enum plugin_id id, const char *key, const char *value, struct st_err *err)
{
	const struct param_spec *row = plugin_param_find(id, key);

	if (!row || strcmp(row->key, key) != 0)
		return unknown_param(id, key, err);
	if (!value_valid(row, value))
		return bad_value(plugin_specs[id].name, row, value, err);
	return 0;
}

/* --- the whole request -------------------------------------------------------------------------------------------- */

static const char *pair_get(const struct plugin_pair *pairs, size_t count, const char *key)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(pairs[i].key, key) == 0)
			return pairs[i].value;
	return NULL;
}

/* Is @option, `-e` or `--timeout`, one of the words of @args (also as -eX or --timeout=X)? */
static bool args_has(const char *args, const char *option)
{
	size_t len = strlen(option);

	while (*args) {
		args += strspn(args, " \t\n");
		if (strncmp(args, option, len) == 0 && (args[len] == '\0' || args[len] == '=' ||
							strchr(" \t\n", args[len]) || (len == 2 && option[1] != '-')))
			return true;
		args += strcspn(args, " \t\n");
	}
	return false;
}

static int check_cachemiss(const struct plugin_pair *pairs, size_t count, struct st_err *err)
{
	const char *args = pair_get(pairs, count, "args");
	const char *duration = pair_get(pairs, count, "duration");
	uint64_t ns = 0;

	if (!args_has(args, "-e") && !args_has(args, "--event"))
		return err_set(
			err, -EINVAL,
			"CacheMiss needs the events to count: args=\"-e cache-misses,cache-references --timeout 5000\"");
	if (duration)
		num_sec_ns(duration, &ns);
	if (ns == 0 && !args_has(args, "--timeout"))
		return err_set(err, -EINVAL,
			       "CacheMiss needs an end: add duration=10, or --timeout 10000 (ms) to args");
	return 0;
}

static int check_ftrace(const struct plugin_pair *pairs, size_t count, struct st_err *err)
{
	const char *tracer = pair_get(pairs, count, "function_tracer");

	if (!pair_get(pairs, count, "events") && (!tracer || strcmp(tracer, "nop") == 0))
		return err_set(
			err, -EINVAL,
			"Ftrace has nothing to record: add events=sched/sched_switch or function_tracer=function");
	return 0;
}

int plugin_check_enable(enum plugin_id id, const struct plugin_pair *pairs, size_t count, struct st_err *err)
{
	const struct plugin_spec *spec = &plugin_specs[id];

	for (size_t i = 0; i < count; i++) {
		int ret = plugin_check_param(id, pairs[i].key, pairs[i].value, err);

		if (ret < 0)
			return ret;
		if (pair_get(pairs, i, pairs[i].key))
			return err_set(err, -EINVAL, "%s: %s is given twice; give it once", spec->name, pairs[i].key);
	}
	if (spec->required && !pair_get(pairs, count, spec->required))
		return err_set(err, -EINVAL, "%s needs %s: add %s", spec->name, spec->required,
			       find_in(spec->params, spec->required)->syntax);
	if (id == PLUGIN_CACHEMISS)
		return check_cachemiss(pairs, count, err);
	if (id == PLUGIN_FTRACE)
		return check_ftrace(pairs, count, err);
	return 0;
}

int plugin_timing_take(struct plugin_timing *timing, const char *key, const char *value)
{
	int ret = 0;

	if (strcmp(key, "duration") == 0)
		ret = num_sec_ns(value, &timing->duration_ns);
	else if (strcmp(key, "start_step") == 0)
		ret = num_u64(value, &timing->start_step);
	else if (strcmp(key, "steps") == 0)
		ret = num_u64(value, &timing->steps);
	else if (strcmp(key, "at") == 0)
		ret = num_sec_ns(value, &timing->at_unix_ns);
	else if (strcmp(key, "sync") == 0)
		ret = num_bool(value, &timing->sync);
	else
		return 0;
	return ret < 0 ? -EINVAL : 1;
}
