/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * main() of sysTrace_cli: `enable` and `disable` of plugins and the other actions, sent to every agent of this host at
 * once. Finding agents is targets.c, talking to them ctl_client.c, what is valid the table in wire/plugin_spec.c.
 */
#include "base/cpulist.h"
#include "base/near.h"
#include "base/num.h"
#include "cli/build_info.h"
#include "cli/cli_help.h"
#include "cli/cli_stacks.h"
#include "cli/cli_status.h"
#include "cli/command.h"
#include "cli/ctl_client.h"
#include "cli/probe_order.h"
#include "cli/targets.h"
#include "cli/term.h"
#include "spool/dir.h"
#include "wire/env_spec.h"
#include "wire/plugin_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS_MAX 32
#define PIDS_MAX 1024
#define STAGES "stages" /* the always-on layer: switched like a plugin, but has no row of its own */
#define RECOVER_WAIT_MS 2000
#define TABLE_WAIT_NS 2000000000ull

extern const struct command cmd_recover;

static int run_order(const struct cli_action *action, const struct options *opts);
static int run_report(const struct cli_action *action, const struct options *opts);
static int run_stacks(const struct cli_action *action, const struct options *opts);

static const struct cli_action actions[] = {
	{ "enable", "Start or update a plugin's configuration", CTL_ENABLE, true, true, run_order },
	{ "disable", "Stop a plugin and flush data to disk", CTL_DISABLE, true, false, run_order },
	{ "status", "Show what each process records, what it lost and what that costs", CTL_STATUS, false, false,
	  run_report },
	{ "list", "Show the processes with sysTrace, dormant ones included", CTL_LIST, false, false, run_report },
	{ "flush", "Write everything recorded so far to disk", CTL_FLUSH, false, false, run_order },
	{ "dump", "Write the flight recorder (the last collectives) to disk", CTL_DUMP, false, false, run_order },
	{ "stacks", "Show the native and Python stack of every thread, also of a process that hangs", CTL_STACKS, false,
	  false, run_stacks },
	{ NULL, NULL, 0, false, false, NULL },
};

static const struct option_spec cli_options[] = {
	{ "pid", 'p', OPT_TEXT, "LIST", NULL, "Only these processes: --pid 1234,5678" },
	{ "timeout", 't', OPT_SEC, "SEC", "30", "How long to wait for answers, in seconds" },
	{ "rank", 'r', OPT_TEXT, "LIST", NULL, "stacks: only these ranks: --rank 0-3,8" },
	{ "symbols", 's', OPT_TEXT, "DIR", NULL,
	  "stacks: look for object and debug files here, too (may be repeated)" },
	{ "man", 0, OPT_FLAG, NULL, NULL, NULL },
	{ .kind = OPT_END },
};

static char running[64] = "sysTrace_cli"; /* what the hint at --help names */

/** struct order - one request, taken apart */
struct order {
	const struct cli_action *action;
	int plugin; /* enum plugin_id, -1 = none, or the always-on layer */
	const char *name; /* of the plugin, or "stages"; NULL = none */
	struct plugin_pair pairs[PAIRS_MAX];
	char *texts[PAIRS_MAX]; /* memory behind pairs */
	size_t pair_count;
	pid_t pids[PIDS_MAX]; /* --pid, or the plugin's pid= */
	size_t pid_count;
	uint64_t timeout_ns;
	bool json;
	struct st_err unknown; /* code set: our table lacks the plugin or a key; agents of another version may know it */
};

/* --- reading the command line ---------------------------------------------------------------------------------------- */

static bool wanted(const struct order *order, pid_t pid)
{
	for (size_t i = 0; i < order->pid_count; i++)
		if (order->pids[i] == pid)
			return true;
	return order->pid_count == 0;
}

static int parse_pids(struct order *order, const char *text)
{
	while (*text) {
		size_t len = strcspn(text, ",");
		uint64_t pid;

		if (num_u64_n(text, len, &pid) < 0 || pid == 0 || pid > INT32_MAX)
			return cmd_usage("--pid: '%.40s' is not a list of process ids such as 1234,5678", text);
		if (order->pid_count == PIDS_MAX)
			return cmd_usage("--pid: more than %d process ids", PIDS_MAX);
		if (!order->pid_count || !wanted(order, (pid_t)pid))
			order->pids[order->pid_count++] = (pid_t)pid;
		text += len + (text[len] == ',');
	}
	return CMD_OK;
}

static bool is_list(enum param_type type)
{
	return type == PARAM_PID_LIST || type == PARAM_CPU_LIST || type == PARAM_WORDS || type == PARAM_EVENT_LIST;
}

static void drop_blanks(char *text)
{
	char *to = text;

	for (; *text; text++)
		if (*text != ' ' && *text != '\t')
			*to++ = *text;
	*to = '\0';
}

/* `key=value` with the key as the table spells it; an unknown key stays as it is and is refused by the check. */
static int take_pair(struct order *order, const char *word)
{
	const struct param_spec *row;
	char *text, *value;

	if (!strchr(word, '='))
		return cmd_usage("'%.60s' is not of the form key=value", word);
	if (order->pair_count == PAIRS_MAX)
		return cmd_usage("more than %d parameters", PAIRS_MAX);
	text = strdup(word);
	if (!text)
		return cmd_error("out of memory");
	order->texts[order->pair_count] = text;
	value = strchr(text, '=');
	*value++ = '\0';
	row = order->plugin < 0 ? NULL : plugin_param_find((enum plugin_id)order->plugin, text);
	if (row && is_list(row->type))
		drop_blanks(value);
	order->pairs[order->pair_count++] = (struct plugin_pair){ row ? row->key : text, value };
	return CMD_OK;
}

static int take_params(struct order *order, const struct options *opts)
{
	struct st_err err = { 0 };
	int ret;

	for (size_t i = 2; i < opts->word_count; i++) {
		int status = take_pair(order, opts->words[i]);

		if (status != CMD_OK)
			return status;
	}
	if (order->plugin < 0)
		return CMD_OK;
	ret = plugin_check_enable((enum plugin_id)order->plugin, order->pairs, order->pair_count, &err);
	if (ret == -ENOENT)
		order->unknown = err;
	else if (ret < 0)
		return cmd_usage("%s", err.text);
	return CMD_OK;
}

static int take_order(struct order *order, const struct cli_action *action, const struct options *opts)
{
	size_t words = action->takes_plugin ? 2 : 1;
	const char *pids = options_text(opts, "pid");

	*order = (struct order){ .action = action, .plugin = -1, .json = opts->json };
	order->timeout_ns = options_u64(opts, "timeout", 0);
	if (pids) {
		int status = parse_pids(order, pids);

		if (status != CMD_OK)
			return status;
	}
	if (opts->word_count < words)
		return cmd_usage("%s needs a plugin: sysTrace_cli %s IO", action->name, action->name);
	if (!action->takes_params && opts->word_count > words)
		return cmd_usage("%s takes no '%.60s'", action->name, opts->words[words]);
	if (!action->takes_plugin)
		return CMD_OK;
	if (near_same(opts->words[1], STAGES)) {
		order->name = STAGES;
		return opts->word_count > 2 ? cmd_usage(STAGES " has no parameters") : CMD_OK;
	}
	order->plugin = plugin_find(opts->words[1], &order->unknown);
	order->name = opts->words[1];
	if (order->plugin >= 0) {
		order->name = plugin_specs[order->plugin].name;
		snprintf(running, sizeof(running), "sysTrace_cli %s %s", action->name, order->name);
	}
	return action->takes_params ? take_params(order, opts) : CMD_OK;
}

static void order_free(struct order *order)
{
	for (size_t i = 0; i < order->pair_count; i++)
		free(order->texts[i]);
	order->pair_count = 0;
}

/* --- probes -------------------------------------------------------------------------------------------------------- */

/* A plugin that only a probe can record, in a build without one. */
static int refuse_probe(const struct st_err *why)
{
	char in_agent[128];

	build_agent_plugins(in_agent, sizeof(in_agent));
	return cmd_error("%s. What the job's own agent records: %s", why->text, in_agent);
}

/* Are processes without an agent the probe's? */
static bool probe_takes(const struct order *order)
{
	const struct probe_kind *kind = order->plugin < 0 ? NULL : probe_kind_of((enum plugin_id)order->plugin, NULL);

	return kind && kind->targets != PROBE_HOST;
}

static struct probe_order probe_part(const struct order *order, const struct targets *targets)
{
	return (struct probe_order){
		.kind = order->plugin < 0 ? NULL : probe_kind_of((enum plugin_id)order->plugin, NULL),
		.verb = (enum ctl_verb)order->action->verb,
		.pairs = order->pairs,
		.pair_count = order->pair_count,
		.pids = order->pids,
		.pid_count = order->pid_count,
		.targets = targets,
		.timeout_ns = order->timeout_ns,
	};
}

/* --- choosing processes ---------------------------------------------------------------------------------------------- */

/* A process that was asked for by its pid and has no agent: a target that fails with the reason. */
static void stand_in(struct target *target, const struct targets *targets, pid_t pid)
{
	const struct target *found = targets_get(targets, pid);
	char proc[32];

	*target = (struct target){ .pid = pid, .socket_fd = -1 };
	snprintf(target->shown, sizeof(target->shown), "process %d", (int)pid);
	snprintf(proc, sizeof(proc), "/proc/%d", (int)pid);
	if (found && found->kind == TARGET_CHILD)
		err_set(&target->err, -EINVAL,
			"it was forked from process %d and records through that one; use its pid", (int)found->parent);
	else if (found && found->kind == TARGET_DORMANT)
		err_set(&target->err, -EAGAIN,
			"dormant: no framework such as torch was imported yet; start the job with "
			"SYSTRACE_ENABLE=1 to record from the beginning");
	else if (found)
		err_set(&target->err, -EINVAL,
			"libsysTrace.so is loaded but stays inert: neither a Python interpreter nor a "
			"device runtime is in this process");
	else if (access(proc, F_OK) < 0)
		err_set(&target->err, -ESRCH, "there is no such process");
	else
		err_set(&target->err, -ENOENT,
			"libsysTrace.so is not loaded there%s; start the job with "
			"LD_PRELOAD=<path>/libsysTrace.so",
			geteuid() ? ", or the process belongs to another user" : "");
}

/** struct choice - the targets an order goes to, and calls to them */
struct choice {
	struct ctl_call *calls;
	struct target *stand_ins;
	size_t count;
};

static int choose(struct choice *choice, const struct order *order, const struct targets *targets)
{
	size_t most = targets->count + order->pid_count;
	size_t extra = 0;

	*choice = (struct choice){ .calls = calloc(most + 1, sizeof(*choice->calls)),
				   .stand_ins = calloc(order->pid_count + 1, sizeof(*choice->stand_ins)) };
	if (!choice->calls || !choice->stand_ins)
		return cmd_error("out of memory");
	for (size_t i = 0; i < targets->count; i++)
		if (targets->list[i].kind == TARGET_AGENT && wanted(order, targets->list[i].pid))
			choice->calls[choice->count++].target = &targets->list[i];
	for (size_t i = 0; i < order->pid_count; i++) {
		const struct target *found = targets_get(targets, order->pids[i]);

		if ((found && found->kind == TARGET_AGENT) || probe_takes(order))
			continue;
		stand_in(&choice->stand_ins[extra], targets, order->pids[i]);
		choice->calls[choice->count++].target = &choice->stand_ins[extra++];
	}
	return CMD_OK;
}

static void choice_free(struct choice *choice)
{
	if (choice->calls)
		ctl_calls_free(choice->calls, choice->count);
	free(choice->calls);
	free(choice->stand_ins);
}

static int no_agent(const struct order *order, const struct targets *targets)
{
	size_t dormant = targets_count(targets, TARGET_DORMANT);
	char library[512], hidden[128] = "";

	if (order->json)
		puts("{\"agents\": []}");
	if (targets->hidden)
		snprintf(hidden, sizeof(hidden), "\n%zu process%s could not be looked at (permission denied)%s.",
			 targets->hidden, targets->hidden == 1 ? "" : "es",
			 geteuid() ? "; run as root to reach them" : "");
	if (dormant)
		return cmd_nothing(
			"no agent is running yet: %zu process%s libsysTrace.so loaded, but dormant until a framework "
			"such as torch is imported.\nTo record from the start, begin the job with SYSTRACE_ENABLE=1 in "
			"its environment.%s",
			dormant, dormant == 1 ? " has" : "es have", hidden);
	build_library(library, sizeof(library));
	return cmd_nothing("no process on this host has libsysTrace.so loaded. Start the job with it:\n"
			   "  LD_PRELOAD=%s python train.py%s",
			   library, hidden);
}

/* --- asking -------------------------------------------------------------------------------------------------------- */

/* Does the agent itself read this pair? `pid` chooses whom we talk to. */
static bool for_agent(const struct plugin_pair *pair)
{
	return strcmp(pair->key, "pid") != 0;
}

static size_t ask(struct choice *choice, const struct order *order)
{
	static uint8_t request[64 * 1024];
	struct ctl_msg msg;
	int bytes;

	ctl_begin(&msg, request, sizeof(request), order->action->verb, (uint32_t)getpid());
	if (order->name)
		ctl_add(&msg, CTL_KEY_PLUGIN, order->name);
	for (size_t i = 0; i < order->pair_count; i++)
		if (for_agent(&order->pairs[i]))
			ctl_add(&msg, order->pairs[i].key, order->pairs[i].value);
	bytes = ctl_finish(&msg);
	if (bytes < 0) {
		cmd_error("the parameters are too long");
		return choice->count;
	}
	return ctl_exchange(choice->calls, choice->count, request, (uint32_t)bytes, order->timeout_ns);
}

/* Is @word one of the comma list @words? */
static bool listed(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (; *words; words += strcspn(words, ","), words += *words == ',')
		if (strcspn(words, ",") == len && strncmp(words, word, len) == 0)
			return true;
	return false;
}

/* Has this agent the plugin and all keys of the order, by its answer to CTL_PLUGINS? */
static bool agent_knows(const struct ctl_call *call, const struct order *order)
{
	char key[64], keys[1024];

	snprintf(key, sizeof(key), "plugin.%.40s.keys", order->name);
	for (char *at = key; *at; at++)
		if (*at >= 'A' && *at <= 'Z')
			*at += 'a' - 'A';
	if (!ctl_call_get(call, key, keys, sizeof(keys)))
		return false;
	for (size_t i = 0; i < order->pair_count; i++) {
		bool common = false;

		for (const struct param_spec *row = common_params; row->type != PARAM_END; row++)
			common |= strcmp(row->key, order->pairs[i].key) == 0;
		if (!common && !listed(keys, order->pairs[i].key))
			return false;
	}
	return true;
}

/* An order that our own table does not know: ask the agents, which may be of a neighbouring version, for theirs. */
static bool any_agent_knows(const struct order *order, const struct targets *targets)
{
	uint8_t request[CTL_FRAME_BYTES];
	struct choice choice = { 0 };
	struct ctl_msg msg;
	bool known = false;

	ctl_begin(&msg, request, sizeof(request), CTL_PLUGINS, (uint32_t)getpid());
	if (choose(&choice, order, targets) == CMD_OK)
		ctl_exchange(choice.calls, choice.count, request, (uint32_t)ctl_finish(&msg),
			     order->timeout_ns < TABLE_WAIT_NS ? order->timeout_ns : TABLE_WAIT_NS);
	for (size_t i = 0; choice.calls && i < choice.count; i++)
		known |= choice.calls[i].err.code == 0 && agent_knows(&choice.calls[i], order);
	choice_free(&choice);
	return known;
}

/* --- the probe's part -------------------------------------------------------------------------------------------------- */

/* Of Memory a probe records the kernel's part; where it cannot the user is told (contract 11). */
static void note_agent_only(struct choice *choice, const char *why)
{
	for (size_t i = 0; i < choice->count; i++)
		if (choice->calls[i].err.code == 0 && !choice->calls[i].text[0])
			snprintf(choice->calls[i].text, sizeof(choice->calls[i].text), "agent part only: %.480s", why);
}

static bool any_succeeded(const struct choice *choice)
{
	for (size_t i = 0; i < choice->count; i++)
		if (choice->calls[i].err.code == 0)
			return true;
	return false;
}

/* Has the probe anything to do with this order? GIL and Mutex of processes with an agent are the agent's own. */
static bool probe_concerned(const struct order *order, const struct choice *choice, const struct probe_kind *kind)
{
	if (order->action->verb != CTL_ENABLE && order->action->verb != CTL_DISABLE)
		return false;
	if (kind->targets == PROBE_WITHOUT_AGENT && order->action->verb == CTL_ENABLE)
		return order->pid_count > choice->count || (!order->pid_count && !choice->count);
	for (size_t i = 0; i < order->pair_count; i++)
		if (strcmp(order->pairs[i].key, "space") == 0 && strcmp(order->pairs[i].value, "device") == 0)
			return false;
	return true;
}

static void ask_probe(const struct order *order, const struct targets *targets, struct choice *choice,
		      struct probe_ack *ack)
{
	struct probe_order part = probe_part(order, targets);
	bool shared = order->plugin >= 0 && plugin_specs[order->plugin].where != RUNS_IN_PROBE;

	*ack = (struct probe_ack){ 0 };
	if (!part.kind) {
		if (order->plugin == PLUGIN_MEMORY && order->action->verb == CTL_ENABLE)
			note_agent_only(choice, "'systrace probe' is not in this build");
		return;
	}
	if (!probe_concerned(order, choice, part.kind))
		return;
	probe_order_run(&part, ack);
	if (!shared)
		return;
	if (order->action->verb == CTL_DISABLE && ack->err.code == 0 && strcmp(ack->text, "was off") == 0)
		ack->asked = false; /* the agents' answers say it all */
	if (part.kind->targets == PROBE_EVERY && ack->err.code && any_succeeded(choice)) {
		note_agent_only(choice, ack->err.text);
		*ack = (struct probe_ack){ 0 };
	}
}

/* --- enable, disable, flush, dump ------------------------------------------------------------------------------------ */

/* What a success is worth knowing: the agent's remark, or where a dump went. */
static void success_text(const struct ctl_call *call, enum ctl_verb verb, char *out, size_t room)
{
	char records[24], file[512];

	snprintf(out, room, "%s", call->text);
	if (!*out && verb == CTL_DUMP && ctl_call_get(call, "records", records, sizeof(records))) {
		if (strcmp(records, "0") == 0)
			snprintf(out, room, "no collective in the last minute, nothing to write");
		else if (ctl_call_get(call, "file", file, sizeof(file)))
			snprintf(out, room, "%s markers in %s", records, file);
	}
	term_clean(out);
}

static void print_ack(struct ctl_call *call, enum ctl_verb verb)
{
	char shown[TARGET_PATH + 32], text[640];
	bool ok = call->err.code == 0;

	snprintf(shown, sizeof(shown), "%s", call->target->shown);
	success_text(call, verb, text, sizeof(text));
	printf("[ACK] %s: %s%s%s", term_clean(shown), term_on(stdout, ok ? TERM_GREEN : TERM_RED),
	       ok ? "SUCCESS" : "FAILED", term_off(stdout));
	if (!ok)
		printf(": %s", term_clean(call->err.text));
	else if (*text)
		printf(" (%s)", text);
	putchar('\n');
}

static void print_acks_json(const struct choice *choice, const struct order *order, const struct probe_ack *ack,
			    bool failed)
{
	printf("{\"action\": \"%s\", \"plugin\": ", order->action->name);
	if (order->name)
		term_json_string(stdout, order->name);
	else
		fputs("null", stdout);
	printf(", \"ok\": %s, \"agents\": [", failed ? "false" : "true");
	for (size_t i = 0; i < choice->count; i++) {
		const struct ctl_call *call = &choice->calls[i];

		printf("%s\n  {\"pid\": %d, \"socket\": ", i ? "," : "", (int)call->target->pid);
		term_json_string(stdout, call->target->shown);
		printf(", \"ok\": %s, \"text\": ", call->err.code ? "false" : "true");
		term_json_string(stdout, call->err.code ? call->err.text : call->text);
		putchar('}');
	}
	fputs("]", stdout);
	if (ack->asked) {
		fputs(", \"probes\": [", stdout);
		probe_ack_json(ack);
		fputs("]", stdout);
	}
	puts("}");
}

/* --- folding --------------------------------------------------------------------------------------------------------- */

static const char *pair_of(const struct order *order, const char *key)
{
	for (size_t i = 0; i < order->pair_count; i++)
		if (strcmp(order->pairs[i].key, key) == 0)
			return order->pairs[i].value;
	return NULL;
}

/* Files of GIL and Mutex are folded (contract 7) by whoever switches them off, or who says now when they shall end. */
static bool to_be_folded(const struct order *order)
{
	const char *aggregate = pair_of(order, "aggregate"), *duration = pair_of(order, "duration");
	uint64_t ns = 0;
	bool on = true;

	if (order->plugin != PLUGIN_GIL && order->plugin != PLUGIN_MUTEX)
		return false;
	if (order->action->verb == CTL_DISABLE)
		return true;
	if (duration)
		num_sec_ns(duration, &ns);
	if (aggregate)
		num_bool(aggregate, &on);
	return order->action->verb == CTL_ENABLE && on && (ns || pair_of(order, "steps"));
}

/* A process of its own, which outlives this one. */
static void be_folder(const char *program, const char *plugin, char *pids)
{
	char name[] = "systrace", command[] = "fold", option[] = "--plugin", list[] = "--pid", kind[16];
	char *argv[] = { name, command, option, kind, list, pids, NULL };
	int null = open("/dev/null", O_RDWR);

	snprintf(kind, sizeof(kind), "%s", plugin);
	setsid();
	if (fork() != 0)
		_exit(0);
	for (int fd = 0; fd <= 2; fd++)
		dup2(null, fd);
	for (int fd = 3; fd < 1024; fd++) /* of the operator's shell */
		close(fd);
	(void)!chdir("/");
	execv(program, argv);
	_exit(127);
}

static void fold_at_end(const struct order *order, const struct choice *choice)
{
	char program[PATH_MAX], pids[PIDS_MAX * 12] = "";
	size_t used = 0, ranks = 0;
	pid_t pid;

	for (size_t i = 0; i < choice->count && used < sizeof(pids) - 12; i++) {
		if (choice->calls[i].err.code || choice->calls[i].target->foreign)
			continue;
		used += (size_t)snprintf(pids + used, sizeof(pids) - used, "%s%d", ranks++ ? "," : "",
					 (int)choice->calls[i].target->pid);
	}
	if (ranks < 2 || !to_be_folded(order) || build_systrace(program, sizeof(program)) < 0)
		return;
	fflush(stdout);
	fflush(stderr);
	pid = fork();
	if (pid == 0)
		be_folder(program, plugin_specs[order->plugin].name, pids);
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

/* `pid=` of a plugin: agents of these processes; the others would need a probe. */
static int take_plugin_pids(struct order *order)
{
	for (size_t i = 0; i < order->pair_count; i++)
		if (!for_agent(&order->pairs[i])) {
			order->pid_count = 0;
			return parse_pids(order, order->pairs[i].value);
		}
	return CMD_OK;
}

static int send_order(const struct order *order, const struct targets *targets)
{
	bool in_agent = order->plugin < 0 || (plugin_specs[order->plugin].where & RUNS_IN_AGENT);
	struct choice choice = { 0 };
	struct probe_ack ack = { 0 };
	size_t failed = 0;
	int status = in_agent ? choose(&choice, order, targets) : CMD_OK;

	if (status != CMD_OK)
		goto out;
	if (choice.count)
		failed = ask(&choice, order);
	ask_probe(order, targets, &choice, &ack);
	if (!choice.count && !ack.asked) {
		status = no_agent(order, targets);
		goto out;
	}
	for (size_t i = 0; i < choice.count && !order->json; i++)
		print_ack(&choice.calls[i], (enum ctl_verb)order->action->verb);
	if (ack.asked && !order->json)
		probe_ack_print(&ack);
	if (order->json)
		print_acks_json(&choice, order, &ack, failed || ack.err.code);
	status = failed || ack.err.code ? CMD_ERROR : CMD_OK;
	fold_at_end(order, &choice);
out:
	choice_free(&choice);
	return status;
}

static int find_targets(struct targets *targets)
{
	struct st_err err = { 0 };

	return targets_find(targets, &err) < 0 ? cmd_error("%s", err.text) : CMD_OK;
}

static int run_order(const struct cli_action *action, const struct options *opts)
{
	struct targets targets = { 0 };
	struct st_err why = { 0 };
	struct order order;
	bool for_probe;
	int status = take_order(&order, action, opts);

	if (status != CMD_OK)
		goto out;
	for_probe = order.plugin >= 0 && plugin_specs[order.plugin].where == RUNS_IN_PROBE;
	if (for_probe && !probe_kind_of((enum plugin_id)order.plugin, &why))
		status = refuse_probe(&why);
	else
		status = take_plugin_pids(&order);
	if (status == CMD_OK)
		status = find_targets(&targets);
	if (status == CMD_OK && order.unknown.code && !any_agent_knows(&order, &targets))
		status = cmd_usage("%s", order.unknown.text);
	else if (status == CMD_OK)
		status = send_order(&order, &targets);
out:
	targets_free(&targets);
	order_free(&order);
	return status;
}

/* --- status, list ---------------------------------------------------------------------------------------------------- */

static int report(const struct order *order, const struct targets *targets)
{
	struct choice choice = { 0 };
	struct fleet fleet;
	size_t failed = 0;
	int status = choose(&choice, order, targets);

	if (status != CMD_OK)
		goto out;
	if (choice.count == 0 && (order->action->verb != CTL_LIST || !targets_count(targets, TARGET_DORMANT))) {
		/* a probe may record processes without an agent */
		if (order->action->verb != CTL_STATUS || order->json || !probe_report_print(TABLE_WAIT_NS))
			status = no_agent(order, targets);
		goto out;
	}
	failed = ask(&choice, order);
	fleet = (struct fleet){ targets, choice.calls, choice.count, order->pid_count > 0 };
	if (order->json)
		cli_print_json(&fleet);
	else if (order->action->verb == CTL_LIST)
		cli_print_list(&fleet);
	else
		cli_print_status(&fleet);
	status = failed ? CMD_ERROR : CMD_OK;
out:
	choice_free(&choice);
	return status;
}

/*
 * Finish the files of killed processes, silently: whoever asks for the state wants to find the data, too. In a child, so
 * that a slow file system delays nobody longer than RECOVER_WAIT_MS; it goes on by itself then.
 */
static void recover_quietly(void)
{
	const char *place = getenv(env_specs[ENV_SPOOL_PATH].name);
	char option[] = "--spool", path[PATH_MAX], *argv[] = { option, path, NULL };
	int status;
	pid_t pid;

	fflush(stdout);
	fflush(stderr);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		for (int fd = 0; fd <= 2 && null >= 0; fd++)
			dup2(null, fd);
		snprintf(path, sizeof(path), "%s", place && *place ? place : SPOOL_PLACE);
		command_main(&cmd_recover, "systrace", place && *place ? 2 : 0, argv);
		_exit(0);
	}
	for (int waited_ms = 0; pid > 0 && waited_ms < RECOVER_WAIT_MS; waited_ms += 5) {
		if (waitpid(pid, &status, WNOHANG) != 0)
			break;
		usleep(5000);
	}
}

static int run_report(const struct cli_action *action, const struct options *opts)
{
	struct targets targets = { 0 };
	struct order order;
	int status = take_order(&order, action, opts);

	if (status == CMD_OK)
		status = find_targets(&targets);
	if (status == CMD_OK)
		status = report(&order, &targets);
	if (status != CMD_USAGE)
		recover_quietly();
	targets_free(&targets);
	order_free(&order);
	return status;
}

/* --- stacks ------------------------------------------------------------------------------------------------------------ */

static int run_stacks(const struct cli_action *action, const struct options *opts)
{
	static const struct cli_action who = { "stacks", NULL, CTL_LIST, false, false, NULL };
	const char *ranks = options_text(opts, "rank"), *dirs[OPTIONS_MAX_SET], *dir;
	struct stacks_query query = { .symbol_dirs = dirs, .json = opts->json };
	struct targets targets = { 0 };
	struct choice choice = { 0 };
	struct order order;
	int status = take_order(&order, action, opts);

	if (status == CMD_OK && ranks && cpulist_check(ranks) < 0)
		status = cmd_usage("--rank: '%.40s' is not a list of ranks such as 0-3,8", ranks);
	if (status == CMD_OK)
		status = find_targets(&targets);
	if (status == CMD_OK)
		status = choose(&choice, &order, &targets);
	if (status == CMD_OK && !choice.count) {
		status = no_agent(&order, &targets);
	} else if (status == CMD_OK) {
		order.action = &who; /* which ranks they are, and who answers at all */
		ask(&choice, &order);
		query.timeout_ns = order.timeout_ns;
		while ((dir = options_nth(opts, "symbols", query.symbol_dir_count)))
			dirs[query.symbol_dir_count++] = dir;
		status = cli_stacks_all(choice.calls, choice.count, ranks, &query);
	}
	choice_free(&choice);
	targets_free(&targets);
	order_free(&order);
	return status;
}

/* --- main ------------------------------------------------------------------------------------------------------------ */

static const struct cli_action *find_action(const char *name)
{
	for (const struct cli_action *action = actions; action->name; action++)
		if (near_same(action->name, name))
			return action;
	return NULL;
}

static int unknown_action(const char *name)
{
	struct near near = { .word = name };

	for (const struct cli_action *action = actions; action->name; action++)
		near_offer(&near, action->name);
	if (near.best)
		return cmd_usage("there is no action '%.60s'; did you mean %s?", name, near.best);
	return cmd_usage(
		"there is no action '%.60s'; the actions are enable, disable, status, list, flush, dump, stacks", name);
}

static int print_help(const struct options *opts)
{
	int plugin = opts->word_count > 1 ? plugin_find(opts->words[1], NULL) : -1;

	if (plugin >= 0)
		cli_help_plugin((enum plugin_id)plugin);
	else
		cli_help(actions, cli_options);
	return CMD_OK;
}

static int run(const struct options *opts)
{
	const struct cli_action *action;

	if (options_flag(opts, "help"))
		return print_help(opts);
	if (options_flag(opts, "version")) {
		puts("sysTrace " ST_VERSION);
		return CMD_OK;
	}
	if (options_flag(opts, "man")) {
		cli_man(actions, cli_options);
		return CMD_OK;
	}
	if (opts->word_count && strcmp(opts->words[0], "help") == 0)
		return print_help(opts);
	if (opts->word_count == 0)
		return cmd_usage("nothing to do: give an action, such as: sysTrace_cli enable IO duration=10");
	action = find_action(opts->words[0]);
	return action ? action->run(action, opts) : unknown_action(opts->words[0]);
}

/* `--duration 10`: a parameter written like an option. Return: is it one? */
static bool looks_like_param(int argc, char **argv, const char **key)
{
	char name[64];

	for (int i = 1; i < argc; i++) {
		const struct param_spec *row = NULL;

		if (strncmp(argv[i], "--", 2) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(argv[i] + 2, "="), argv[i] + 2);
		for (int id = 0; id < PLUGIN_COUNT && !row; id++)
			row = plugin_param_find((enum plugin_id)id, name);
		if (!row || strcmp(row->key, "pid") == 0)
			continue;
		*key = row->key;
		return true;
	}
	return false;
}

static int wrong_option(int argc, char **argv, const struct st_err *err)
{
	const char *key;

	if (looks_like_param(argc, argv, &key))
		return cmd_usage("%s is a parameter of a plugin and is written without dashes: %s=VALUE", key, key);
	return cmd_usage("%s", err->text);
}

static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

int main(int argc, char **argv)
{
	struct options opts;
	struct st_err err = { 0 };
	int status, ret;

	cmd_running(running);
	raise_file_limit();
	if (options_parse(&opts, cli_options, false, argc - 1, argv + 1, &err) < 0)
		status = wrong_option(argc, argv, &err);
	else
		status = run(&opts);
	options_free(&opts);
	ret = term_finish();
	if (ret < 0)
		status = cmd_error("cannot write the output: %s", strerror(-ret));
	return status;
}
