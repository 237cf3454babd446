/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Tables and JSON of `sysTrace_cli status` and `list`; see cli_status.h. Every text of an agent passes term_clean or
 * term_json_string before it is printed: it may come from another user's process.
 */
#include "cli/cli_status.h"

#include "base/num.h"
#include "cli/probe_order.h"
#include "cli/term.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REMARK_PIDS 4
#define PROBE_WAIT_NS 2000000000ull
#define FILES_SHOWN_FOR 4 /* processes; for more only the number of files is shown */

/* --- reading an answer --------------------------------------------------------------------------------------------- */

/* One repeated key: walks with *at = 0 at first. Return: is there another? */
static bool next_of(const struct ctl_call *call, const char *key, uint32_t *at, char *out, size_t room)
{
	struct ctl_entry entry;

	while (call->payload && ctl_next(call->payload, call->frame.payload_bytes, at, &entry) == 1) {
		if (entry.key_bytes != strlen(key) || memcmp(entry.key, key, entry.key_bytes) != 0)
			continue;
		snprintf(out, room, "%.*s", (int)entry.value_bytes, entry.value);
		return true;
	}
	return false;
}

static const char *get(const struct ctl_call *call, const char *key, char *out, size_t room, const char *otherwise)
{
	if (!ctl_call_get(call, key, out, room) || !*out)
		snprintf(out, room, "%s", otherwise);
	return term_clean(out);
}

/* Value of plugin.<name>.<part>, "" when missing; keys are in lower case. */
static const char *get_plugin(const struct ctl_call *call, const char *name, const char *part, char *out, size_t room)
{
	char key[128];

	snprintf(key, sizeof(key), "plugin.%s.%s", name, part);
	for (char *c = key; *c; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c += 'a' - 'A';
	return get(call, key, out, room, "");
}

/* "IO (8 s left), Mutex (waiting for step 500)" */
static void join_plugins(const struct ctl_call *call, char *out, size_t room)
{
	char name[64], state[32], extra[64];
	uint32_t at = 0;
	size_t used = 0;

	out[0] = '\0';
	while (next_of(call, "plugin", &at, name, sizeof(name)) && used < room) {
		get_plugin(call, name, "state", state, sizeof(state));
		if (strcmp(state, "off") == 0)
			continue;
		used += (size_t)snprintf(out + used, room - used, "%s%s", used ? ", " : "", term_clean(name));
		if (used < room && strcmp(state, "waiting") == 0) {
			get_plugin(call, name, "waiting_for", extra, sizeof(extra));
			extra[strcspn(extra, "(")] =
				'\0'; /* "step 500 (now at 80)": the step has a column of its own */
			if (*extra && extra[strlen(extra) - 1] == ' ')
				extra[strlen(extra) - 1] = '\0';
			used += (size_t)snprintf(out + used, room - used, " (waiting%s%s)", *extra ? " for " : "",
						 extra);
		} else if (used < room && *get_plugin(call, name, "left_s", extra, sizeof(extra))) {
			used += (size_t)snprintf(out + used, room - used, " (%s s left)", extra);
		}
	}
	if (!out[0])
		snprintf(out, room, "none");
}

/* --- tables -------------------------------------------------------------------------------------------------------- */

static const char *clean_copy(char *out, size_t room, const char *text)
{
	snprintf(out, room, "%s", text);
	return term_clean(out);
}

static void print_failed(const struct fleet *fleet)
{
	char shown[TARGET_PATH + 32], text[sizeof(fleet->calls->err.text)];
	bool any = false;

	for (size_t i = 0; i < fleet->call_count; i++) {
		const struct ctl_call *call = &fleet->calls[i];

		if (call->err.code == 0)
			continue;
		if (!any)
			printf("\n%sFAILED%s\n", term_on(stdout, TERM_RED), term_off(stdout));
		any = true;
		printf("  %s: %s\n", clean_copy(shown, sizeof(shown), call->target->shown),
		       clean_copy(text, sizeof(text), call->err.text));
	}
}

/* Processes without a row of their own. */
static void print_others(const struct fleet *fleet)
{
	size_t dormant = targets_count(fleet->targets, TARGET_DORMANT);
	size_t children = targets_count(fleet->targets, TARGET_CHILD);
	size_t hidden = fleet->targets->hidden;

	if (fleet->chosen)
		return;
	if (dormant + children + hidden)
		putchar('\n');
	if (dormant)
		printf("%zu dormant process%s: loaded, waiting until a framework such as torch is imported (SYSTRACE_ENABLE=1 "
		       "starts at once)\n",
		       dormant, dormant == 1 ? "" : "es");
	if (children)
		printf("%zu forked child%s through the processes above\n", children,
		       children == 1 ? " records" : "ren record");
	if (hidden)
		printf("%zu process%s could not be looked at (permission denied)%s\n", hidden, hidden == 1 ? "" : "es",
		       geteuid() ? "; root sees more" : "");
}

void cli_print_list(const struct fleet *fleet)
{
	struct table table;
	char rank[24], state[24], run[64], text[TARGET_PATH + 32], comm[20];
	size_t call = 0;

	table_init(&table, 6, ">><<<<");
	for (const char *const *head =
		     (const char *const[]){ "PID", "RANK", "STATE", "COMMAND", "RUN", "SOCKET", NULL };
	     *head; head++)
		table_cell(&table, "%s", *head);
	for (size_t i = 0; i < fleet->targets->count; i++) {
		const struct target *target = &fleet->targets->list[i];
		const struct ctl_call *answer = NULL;

		if (target->kind != TARGET_AGENT && target->kind != TARGET_DORMANT)
			continue;
		if (call < fleet->call_count && fleet->calls[call].target == target)
			answer = &fleet->calls[call++];
		else if (fleet->chosen)
			continue;
		table_cell(&table, "%d", (int)target->pid);
		table_cell(&table, "%s", answer ? get(answer, "rank", rank, sizeof(rank), "-") : "-");
		table_cell(&table, "%s",
			   !answer	      ? "dormant"
			   : answer->err.code ? "no answer"
					      : get(answer, "state", state, sizeof(state), "?"));
		table_cell(&table, "%s", clean_copy(comm, sizeof(comm), target->comm));
		table_cell(&table, "%s", answer ? get(answer, "run", run, sizeof(run), "-") : "-");
		table_cell(&table, "%s", answer ? clean_copy(text, sizeof(text), target->shown) : "-");
	}
	table_print(&table, stdout, 0);
	print_failed(fleet);
	print_others(fleet);
}

static void status_row(struct table *table, const struct ctl_call *call)
{
	char text[512], other[32];

	table_cell(table, "%d", (int)call->target->pid);
	table_cell(table, "%s", get(call, "rank", text, sizeof(text), "-"));
	table_cell(table, "%s", get(call, "state", text, sizeof(text), "?"));
	table_cell(table, "%s", get(call, "step", text, sizeof(text), "-"));
	join_plugins(call, text, sizeof(text));
	table_cell(table, "%s", text);
	table_cell(table, "%s", get(call, "records", text, sizeof(text), "-"));
	table_cell(table, "%s", get(call, "dropped", text, sizeof(text), "-"));
	get(call, "cost_pct", text, sizeof(text), "-");
	table_cell(table, "%s%s", text, strcmp(text, "-") == 0 ? "" : " %");
	get(call, "dump_path", text, sizeof(text), "-");
	table_cell(table, "%s (%s)", text, get(call, "format", other, sizeof(other), "?"));
}

static void print_size(uint64_t bytes)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
	double size = (double)bytes;
	size_t unit = 0;

	for (; size >= 1000 && unit < 4; unit++)
		size /= 1000;
	printf(unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
}

static void print_files(const struct ctl_call *call)
{
	char path[512], key[32], bytes[24];
	uint32_t at = 0;
	uint64_t size;

	for (unsigned n = 0; next_of(call, "file", &at, path, sizeof(path)); n++) {
		printf("  %d: %s", (int)call->target->pid, term_clean(path));
		snprintf(key, sizeof(key), "file.%u.bytes", n);
		if (ctl_call_get(call, key, bytes, sizeof(bytes)) && num_u64(bytes, &size) == 0) {
			fputs(", ", stdout);
			print_size(size);
		}
		putchar('\n');
	}
}

static bool has_key(const struct ctl_call *call, const char *key)
{
	return ctl_call_get(call, key, NULL, 0);
}

static void heading(const char *text)
{
	printf("\n%s%s%s\n", term_on(stdout, TERM_BOLD), text, term_off(stdout));
}

/** struct remark - one sentence and the processes it holds for */
struct remark {
	char *text;
	size_t count;
	int pids[REMARK_PIDS]; /* the first of them */
};

struct remarks {
	struct remark *list;
	size_t count;
};

static void remark(struct remarks *remarks, const struct ctl_call *call, const char *text)
{
	struct remark *list;
	size_t i;

	for (i = 0; i < remarks->count && strcmp(remarks->list[i].text, text) != 0; i++)
		;
	if (i == remarks->count) {
		list = realloc(remarks->list, (i + 1) * sizeof(*list));
		if (!list)
			return;
		remarks->list = list;
		list[i] = (struct remark){ .text = strdup(text) };
		if (!list[i].text)
			return;
		remarks->count++;
	}
	if (remarks->list[i].count < REMARK_PIDS)
		remarks->list[i].pids[remarks->list[i].count] = (int)call->target->pid;
	remarks->list[i].count++;
}

static void collect_remarks(struct remarks *remarks, const struct ctl_call *call)
{
	char text[512], line[640];
	uint32_t at = 0;

	if (ctl_call_get(call, "python", text, sizeof(text)) && strcmp(text, "on") != 0) {
		snprintf(line, sizeof(line), "Python stages %s", term_clean(text));
		remark(remarks, call, line);
	}
	if (ctl_call_get(call, "untraceable", text, sizeof(text)) && strcmp(text, "0") != 0) {
		snprintf(line, sizeof(line), "%s listed Python functions cannot be traced (the log names them)",
			 term_clean(text));
		remark(remarks, call, line);
	}
	if (ctl_call_get(call, "dropped", text, sizeof(text)) && strcmp(text, "0") != 0)
		remark(remarks, call,
		       "records were lost because the pool was full; a larger SYSTRACE_SPOOL_MB holds more");
	while (next_of(call, "note", &at, text, sizeof(text)))
		remark(remarks, call, term_clean(text));
	if (call->target->deleted)
		remark(remarks, call, "runs a libsysTrace.so that was replaced since it started");
}

/* "12, 13 and 62 more: text"; frees the list. @processes: how many there are in all */
static void print_remarks(struct remarks *remarks, size_t processes)
{
	if (remarks->count)
		heading("REMARKS");
	for (size_t i = 0; i < remarks->count; i++) {
		const struct remark *one = &remarks->list[i];
		size_t named = one->count < REMARK_PIDS ? one->count : REMARK_PIDS;

		fputs("  ", stdout);
		if (one->count == processes && processes == 2)
			fputs("both processes", stdout);
		else if (one->count == processes && processes > 2)
			printf("all %zu processes", processes);
		else
			for (size_t k = 0; k < named; k++)
				printf("%s%d", k ? ", " : "", one->pids[k]);
		if (one->count > named && one->count != processes)
			printf(" and %zu more", one->count - named);
		printf(": %s\n", one->text);
		free(one->text);
	}
	free(remarks->list);
}

static void print_all_files(const struct fleet *fleet, size_t answered)
{
	bool any = false;

	for (size_t i = 0; i < fleet->call_count && answered <= FILES_SHOWN_FOR; i++) {
		if (!has_key(&fleet->calls[i], "file"))
			continue;
		if (!any)
			heading("FILES");
		any = true;
		print_files(&fleet->calls[i]);
	}
}

void cli_print_status(const struct fleet *fleet)
{
	static const char *const heads[] = { "PID",	"RANK", "STATE",    "STEP",	"PLUGINS ON",
					     "RECORDS", "LOST", "OWN COST", "WRITES TO" };
	struct remarks remarks = { 0 };
	struct table table;
	size_t answered = 0;

	table_init(&table, 9, ">><><>>><");
	for (size_t i = 0; i < 9; i++)
		table_cell(&table, "%s", heads[i]);
	for (size_t i = 0; i < fleet->call_count; i++) {
		if (fleet->calls[i].err.code)
			continue;
		status_row(&table, &fleet->calls[i]);
		collect_remarks(&remarks, &fleet->calls[i]);
		answered++;
	}
	if (answered)
		table_print(&table, stdout, 0);
	table_drop(&table);
	print_all_files(fleet, answered);
	print_remarks(&remarks, answered);
	probe_report_print(PROBE_WAIT_NS);
	print_failed(fleet);
	print_others(fleet);
}

/* --- JSON ---------------------------------------------------------------------------------------------------------- */

/* A number as it stands, anything else as a text, a missing one as null. */
static void json_value(const char *text, bool number)
{
	double value;
	char *end;

	if (!*text) {
		fputs("null", stdout);
		return;
	}
	value = strtod(text, &end);
	/* JSON knows no inf, nan, hex or leading `+` and zeros: only plain decimals stay numbers */
	if (number && *end == '\0' && strspn(text, "0123456789.-") == strlen(text) && value == value &&
	    text[strlen(text) - 1] != '.' && strchr("123456789-0", text[0]) &&
	    !(text[0] == '0' && text[1] >= '0' && text[1] <= '9') &&
	    !(text[0] == '-' && (text[1] < '0' || text[1] > '9')))
		fputs(text, stdout);
	else
		term_json_string(stdout, text);
}

static void json_member(const struct ctl_call *call, const char *key, const char *name, bool number)
{
	char text[1024];

	if (!ctl_call_get(call, key, text, sizeof(text)))
		return;
	printf(", \"%s\": ", name);
	json_value(text, number);
}

static void json_plugins(const struct ctl_call *call)
{
	static const struct {
		const char *name;
		bool number;
	} parts[] = { { "state", false }, { "text", false },   { "waiting_for", false }, { "on_s", true },
		      { "left_s", true }, { "cost_ns", true }, { "dropped", true } };
	char name[64], text[1024];
	uint32_t at = 0;
	bool first = true;

	fputs(", \"plugins\": [", stdout);
	while (next_of(call, "plugin", &at, name, sizeof(name))) {
		printf("%s{\"name\": ", first ? "" : ", ");
		term_json_string(stdout, name);
		for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
			if (!*get_plugin(call, name, parts[i].name, text, sizeof(text)))
				continue;
			printf(", \"%s\": ", parts[i].name);
			json_value(text, parts[i].number);
		}
		putchar('}');
		first = false;
	}
	putchar(']');
}

static void json_files(const struct ctl_call *call)
{
	char path[1024], key[32];
	uint32_t at = 0;

	if (!has_key(call, "file"))
		return;
	fputs(", \"files\": [", stdout);
	for (unsigned n = 0; next_of(call, "file", &at, path, sizeof(path)); n++) {
		printf("%s{\"path\": ", n ? ", " : "");
		term_json_string(stdout, path);
		snprintf(key, sizeof(key), "file.%u.bytes", n);
		json_member(call, key, "bytes", true);
		putchar('}');
	}
	putchar(']');
}

static void json_notes(const struct ctl_call *call)
{
	char text[1024];
	uint32_t at = 0;
	bool first = true;

	if (!has_key(call, "note"))
		return;
	fputs(", \"notes\": [", stdout);
	for (; next_of(call, "note", &at, text, sizeof(text)); first = false) {
		fputs(first ? "" : ", ", stdout);
		term_json_string(stdout, text);
	}
	putchar(']');
}

/* dropped.<source> entries as one object */
static void json_lost(const struct ctl_call *call)
{
	struct ctl_entry entry;
	uint32_t at = 0;
	bool first = true;
	char text[64];

	while (call->payload && ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) == 1) {
		if (entry.key_bytes < 9 || memcmp(entry.key, "dropped.", 8) != 0)
			continue;
		printf("%s\"%.*s\": ", first ? ", \"dropped_by\": {" : ", ", (int)entry.key_bytes - 8, entry.key + 8);
		snprintf(text, sizeof(text), "%.*s", (int)entry.value_bytes, entry.value);
		json_value(text, true);
		first = false;
	}
	if (!first)
		putchar('}');
}

static void json_agent(const struct ctl_call *call)
{
	static const struct {
		const char *key;
		bool number;
	} members[] = {
		{ "state", false },	 { "reason", false }, { "rank", true },	       { "local_rank", true },
		{ "world_size", true },	 { "host", false },   { "run", false },	       { "version", false },
		{ "dump_path", false },	 { "format", false }, { "step", true },	       { "stage_id", true },
		{ "stage", false },	 { "python", false }, { "untraceable", true }, { "records", true },
		{ "dropped", true },	 { "cost_ns", true }, { "cost_pct", true },    { "pool_bytes", true },
		{ "pool_shared", true }, { "bytes", true },   { "failures", true },    { "log", false },
	};
	const struct target *target = call->target;

	printf("{\"pid\": %d, \"inner_pid\": %d, \"uid\": %u, \"container\": %s, \"socket\": ", (int)target->pid,
	       (int)target->inner_pid, (unsigned)target->uid, target->foreign ? "true" : "false");
	term_json_string(stdout, target->shown);
	fputs(", \"command\": ", stdout);
	term_json_string(stdout, target->comm);
	printf(", \"ok\": %s", call->err.code ? "false" : "true");
	if (call->err.code) {
		fputs(", \"text\": ", stdout);
		term_json_string(stdout, call->err.text);
	}
	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]) && call->err.code == 0; i++)
		json_member(call, members[i].key, members[i].key, members[i].number);
	if (call->err.code == 0) {
		json_plugins(call);
		json_lost(call);
		json_files(call);
		json_notes(call);
	}
	putchar('}');
}

void cli_print_json(const struct fleet *fleet)
{
	bool first = true;

	fputs("{\"agents\": [", stdout);
	for (size_t i = 0; i < fleet->call_count; i++) {
		fputs(i ? ",\n  " : "\n  ", stdout);
		json_agent(&fleet->calls[i]);
	}
	fputs("], \"dormant\": [", stdout);
	for (size_t i = 0; i < fleet->targets->count; i++) {
		const struct target *target = &fleet->targets->list[i];

		if (target->kind != TARGET_DORMANT)
			continue;
		printf("%s{\"pid\": %d, \"uid\": %u, \"command\": ", first ? "" : ", ", (int)target->pid,
		       (unsigned)target->uid);
		term_json_string(stdout, target->comm);
		putchar('}');
		first = false;
	}
	fputs("], \"probes\": [", stdout);
	probe_report_json(PROBE_WAIT_NS);
	printf("], \"children\": %zu, \"inert\": %zu, \"hidden\": %zu}\n", targets_count(fleet->targets, TARGET_CHILD),
	       targets_count(fleet->targets, TARGET_INERT), fleet->targets->hidden);
}
