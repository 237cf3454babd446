/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Stacks of a process's threads; see cli_stacks.h. Keys of the answer: docs/formats/ctl.md. */
#include "cli/cli_stacks.h"

#include "base/cpulist.h"
#include "base/num.h"
#include "cli/become.h"
#include "cli/command.h"
#include "cli/ctl_client.h"
#include "cli/term.h"
#include "safe/clock.h"
#include "trace/symbols.h"
#include "wire/env_spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES_MAX 4096 /* answers of one process */
#define MODULES_MAX 65536u

struct module {
	char *build_id, *path;
};

/* What is printed, from the answers of one process. */
struct report {
	const struct target *target;
	const struct stacks_query *query;
	struct ctl_call *pages;
	size_t page_count;
	struct symbols *symbols;
	struct module *modules; /* of the page at hand, by number */
	size_t module_room;
	uint32_t holder; /* tid */
	unsigned int frame; /* of the thread at hand, counted */
	unsigned int threads;
	FILE *out;
};

/* --- its rank ------------------------------------------------------------------------------------------------------------ */

/* By its environment: an agent binds the rank at the first step, and a process may hang before. */
static bool rank_of_environment(pid_t pid, char *text, size_t room)
{
	char path[32], *entry = NULL;
	bool found = false;
	size_t bytes = 0, i;
	uint64_t rank;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	file = fopen(path, "re");
	while (file && !found && getdelim(&entry, &bytes, 0, file) > 0) {
		const char *value = strchr(entry, '=');

		for (i = 0; value && env_rank_names[i] && !found; i++)
			found = (size_t)(value - entry) == strlen(env_rank_names[i]) &&
				!strncmp(entry, env_rank_names[i], (size_t)(value - entry)) &&
				num_u64(value + 1, &rank) == 0;
	}
	if (file)
		fclose(file);
	free(entry);
	if (found)
		snprintf(text, room, "%" PRIu64, rank);
	return found;
}

static bool rank_of(const struct ctl_call *call, char *text, size_t room)
{
	return ctl_call_get(call, "rank", text, room) || rank_of_environment(call->target->pid, text, room);
}

/* --- asking -------------------------------------------------------------------------------------------------------------- */

static int ask_page(struct ctl_call *call, const struct target *target, const char *from, uint64_t timeout_ns)
{
	uint8_t request[CTL_FRAME_BYTES + 64];
	struct ctl_msg msg;

	*call = (struct ctl_call){ .target = target };
	ctl_begin(&msg, request, sizeof(request), CTL_STACKS, (uint32_t)getpid());
	ctl_add(&msg, "from", from);
	ctl_exchange(call, 1, request, (uint32_t)ctl_finish(&msg), timeout_ns);
	return call->err.code;
}

/* All pages. Return: 0 or -errno with @err. */
static int ask(struct report *r, struct st_err *err)
{
	uint64_t end_ns = clock_mono_ns() + r->query->timeout_ns;
	char from[16] = "0";

	do {
		struct ctl_call *more = realloc(r->pages, (r->page_count + 1) * sizeof(*more));
		uint64_t now_ns = clock_mono_ns();
		struct ctl_call *page;

		if (!more)
			return err_set(err, -ENOMEM, "out of memory");
		r->pages = more;
		page = &r->pages[r->page_count++];
		ask_page(page, r->target, from, end_ns > now_ns ? end_ns - now_ns : 1);
		if (page->err.code)
			return err_set(err, page->err.code, "%s", page->err.text);
	} while (ctl_call_get(&r->pages[r->page_count - 1], "next", from, sizeof(from)) && r->page_count < PAGES_MAX);
	return 0;
}

/* --- names ------------------------------------------------------------------------------------------------------------------- */

static void forget_modules(struct report *r)
{
	size_t i;

	for (i = 0; i < r->module_room; i++) {
		free(r->modules[i].build_id);
		free(r->modules[i].path);
	}
	free(r->modules);
	r->modules = NULL;
	r->module_room = 0;
}

/* `12 0a1b2c /usr/lib/libx.so` */
static void take_module(struct report *r, char *text)
{
	char *build_id, *path;
	unsigned long id = strtoul(text, &build_id, 10);
	struct module *grown;

	if (!id || id >= MODULES_MAX || *build_id != ' ')
		return;
	path = strchr(++build_id, ' ');
	if (!path)
		return;
	*path++ = 0;
	if (id >= r->module_room) {
		grown = realloc(r->modules, (id + 64) * sizeof(*grown));
		if (!grown)
			return;
		memset(grown + r->module_room, 0, (id + 64 - r->module_room) * sizeof(*grown));
		r->modules = grown;
		r->module_room = id + 64;
	}
	if (r->modules[id].path)
		return;
	r->modules[id].build_id = strdup(strcmp(build_id, "-") ? build_id : "");
	r->modules[id].path = strdup(path);
}

/* A frame taken apart; texts point into the line, the report or the symbols. */
struct frame {
	bool python;
	const char *function, *file, *module, *build_id;
	uint64_t address, offset;
	unsigned int line;
};

/* `pname@file:line`; names may hold an @ (none known do), files may. */
static void take_python(char *text, struct frame *f)
{
	char *at = strchr(text, '@'), *line = strrchr(text, ':');

	f->python = true;
	f->function = text;
	if (!at)
		return;
	*at = 0;
	f->file = at + 1;
	if (line > at) {
		*line = 0;
		f->line = (unsigned int)strtoul(line + 1, NULL, 10);
	}
}

static void take_native(struct report *r, const char *text, struct frame *f)
{
	char *rest;
	unsigned long id = strtoul(text, &rest, 10);
	struct symbols_file *file;
	struct symbol symbol;

	f->address = *rest == '+' ? strtoull(rest + 1, NULL, 16) : 0;
	if (id >= r->module_room || !r->modules[id].path)
		return;
	f->module = r->modules[id].path;
	f->build_id = r->modules[id].build_id;
	file = r->symbols ? symbols_file(r->symbols, f->module, f->build_id ? f->build_id : "") : NULL;
	if (!file || !symbols_find(file, f->address, &symbol))
		return;
	f->function = symbol.function;
	f->offset = symbol.offset;
	f->file = symbol.file;
	f->line = symbol.line;
}

static struct frame take_frame(struct report *r, char *line)
{
	struct frame f = { 0 };

	if (line[0] == 'p')
		take_python(line + 1, &f);
	else if (line[0] == 'n')
		take_native(r, line + 1, &f);
	else
		f.address = strtoull(line + 1, NULL, 16);
	return f;
}

/* --- for people ---------------------------------------------------------------------------------------------------------------- */

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static const char *state_text(char state)
{
	switch (state) {
	case 'R':
		return "runs";
	case 'S':
		return "waits";
	case 'D':
		return "waits in the kernel";
	case 'T':
	case 't':
		return "stopped";
	case 'I':
		return "idle";
	default:
		return "ends";
	}
}

static void clean(FILE *out, const char *format, const char *text)
{
	char copy[1400];

	snprintf(copy, sizeof(copy), "%s", text);
	fprintf(out, format, term_clean(copy));
}

static void text_frame(struct report *r, char *line)
{
	struct frame f = take_frame(r, line);

	fprintf(r->out, "    #%-2u ", r->frame++);
	if (f.python) {
		clean(r->out, "py  %s", f.function);
	} else if (f.function) {
		clean(r->out, "    %s", f.function);
		fprintf(r->out, "+0x%" PRIx64, f.offset);
	} else {
		fprintf(r->out, "    0x%" PRIx64, f.address);
	}
	if (f.file) {
		clean(r->out, " at %s", f.file);
		fprintf(r->out, f.line ? ":%u" : "%.0u", f.line);
	}
	if (f.module)
		clean(r->out, " in %s", base_of(f.module));
	else if (!f.python)
		fputs(" in code made at run time", r->out);
	putc('\n', r->out);
}

/* `1234 S name` */
static void text_thread(struct report *r, const char *text)
{
	char *rest;
	uint32_t tid = (uint32_t)strtoul(text, &rest, 10);

	r->frame = 0;
	if (strlen(rest) < 4)
		return;
	fprintf(r->out, "\n  thread %" PRIu32 " ", tid);
	clean(r->out, "\"%s\"", rest + 3);
	fprintf(r->out, ", %s%s\n", state_text(rest[1]), r->holder && tid == r->holder ? ", holds the GIL" : "");
}

static void text_head(struct report *r)
{
	const struct ctl_call *first = &r->pages[0];
	char text[512];

	fprintf(r->out, "process %d", (int)r->target->pid);
	if (rank_of(first, text, sizeof(text)))
		clean(r->out, ", rank %s", text);
	if (ctl_call_get(first, "host", text, sizeof(text)))
		clean(r->out, " on %s", text);
	if (ctl_call_get(first, "job", text, sizeof(text)))
		clean(r->out, " (%s)", text);
	if (ctl_call_get(first, "threads", text, sizeof(text)))
		clean(r->out, ": %s threads", text);
	if (ctl_call_get(first, "python", text, sizeof(text)) && text[0])
		clean(r->out, ", no Python stacks: %s", text);
	if (ctl_call_get(first, "gil", text, sizeof(text))) {
		if (!strcmp(text, "free"))
			fputs(", nobody holds the GIL", r->out);
		else if (strcmp(text, "unknown"))
			clean(r->out, ", the GIL is held by thread %s", text);
	}
	putc('\n', r->out);
}

/* --- for programs ---------------------------------------------------------------------------------------------------------------- */

static void json_text(struct report *r, const char *key, const char *text)
{
	if (!text)
		return;
	fprintf(r->out, ", \"%s\": ", key);
	term_json_string(r->out, text);
}

static void json_frame(struct report *r, char *line)
{
	struct frame f = take_frame(r, line);

	fprintf(r->out, "%s\n      {\"kind\": \"%s\"", r->frame++ ? "," : "",
		f.python   ? "python"
		: f.module ? "native"
			   : "unknown");
	json_text(r, "function", f.function);
	if (!f.python && f.function)
		fprintf(r->out, ", \"offset\": %" PRIu64, f.offset);
	json_text(r, "file", f.file);
	if (f.line)
		fprintf(r->out, ", \"line\": %u", f.line);
	json_text(r, "module", f.module);
	json_text(r, "build_id", f.module ? f.build_id : NULL);
	if (!f.python)
		fprintf(r->out, ", \"address\": \"0x%" PRIx64 "\"", f.address);
	putc('}', r->out);
}

static void json_thread(struct report *r, const char *text)
{
	char *rest;
	uint32_t tid = (uint32_t)strtoul(text, &rest, 10);

	r->frame = 0;
	if (strlen(rest) < 4)
		return;
	fprintf(r->out, "%s\n    {\"tid\": %" PRIu32 ", \"name\": ", r->threads++ ? "}," : "", tid);
	term_json_string(r->out, rest + 3);
	fprintf(r->out, ", \"state\": \"%c\", \"holds_gil\": %s", rest[1],
		r->holder && tid == r->holder ? "true" : "false");
}

static void json_head(struct report *r)
{
	const struct ctl_call *first = &r->pages[0];
	char text[512];

	fprintf(r->out, "{\"pid\": %d, \"rank\": ", (int)r->target->pid);
	fputs(rank_of(first, text, sizeof(text)) ? text : "null", r->out);
	if (ctl_call_get(first, "host", text, sizeof(text)))
		json_text(r, "host", text);
	if (ctl_call_get(first, "job", text, sizeof(text)))
		json_text(r, "job", text);
	if (ctl_call_get(first, "python", text, sizeof(text)) && text[0])
		json_text(r, "no_python", text);
	if (ctl_call_get(first, "gil", text, sizeof(text))) {
		if (r->holder)
			fprintf(r->out, ", \"gil_holder\": %" PRIu32, r->holder);
		else
			json_text(r, "gil", text);
	}
	fputs(", \"threads\": [", r->out);
}

/* --- a report ------------------------------------------------------------------------------------------------------------------------ */

/* A line each; the text is changed. */
static void print_frames(struct report *r, char *text)
{
	char *save = NULL, *line;

	if (r->query->json)
		fputs(", \"frames\": [", r->out);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (r->query->json)
			json_frame(r, line);
		else
			text_frame(r, line);
	}
	if (r->query->json)
		putc(']', r->out);
}

static bool is_key(const struct ctl_entry *entry, const char *key)
{
	return entry->key_bytes == strlen(key) && !memcmp(entry->key, key, entry->key_bytes);
}

static void print_entry(struct report *r, const struct ctl_entry *entry)
{
	char *text = strndup(entry->value, entry->value_bytes);

	if (!text)
		return;
	if (is_key(entry, "module")) {
		take_module(r, text);
	} else if (is_key(entry, "thread")) {
		if (r->query->json)
			json_thread(r, text);
		else
			text_thread(r, text);
	} else if (is_key(entry, "thread.frames")) {
		print_frames(r, text);
	} else if (is_key(entry, "thread.note")) {
		if (r->query->json)
			json_text(r, "note", text);
		else
			clean(r->out, "    (%s)\n", text);
	}
	free(text);
}

static void say_missing(void *arg, const char *text)
{
	clean(arg, "\n  no names: %s", text);
}

static void print(struct report *r)
{
	char holder[16] = "";
	size_t i;

	r->symbols = symbols_new(r->query->symbol_dirs, r->query->symbol_dir_count);
	if (r->symbols && r->target->foreign)
		symbols_given_only(r->symbols); /* its paths are not ours */
	if (ctl_call_get(&r->pages[0], "gil", holder, sizeof(holder)))
		r->holder = (uint32_t)strtoul(holder, NULL, 10);
	if (r->query->json)
		json_head(r);
	else
		text_head(r);
	for (i = 0; i < r->page_count; i++) {
		struct ctl_entry entry;
		uint32_t at = 0;

		while (ctl_next(r->pages[i].payload, r->pages[i].frame.payload_bytes, &at, &entry) > 0)
			print_entry(r, &entry);
		forget_modules(r);
	}
	if (r->query->json) {
		fputs(r->threads ? "}\n  ]}" : "]}", r->out);
	} else if (r->symbols) {
		symbols_report(r->symbols, say_missing, r->out);
		putc('\n', r->out);
	}
	symbols_free(r->symbols);
}

/* What an object file holds is its user's: root reads it with that user's rights, in a process of its own. */
static int print_as_user(struct report *r, struct st_err *err)
{
	char proc[32];
	struct stat st;
	int status;
	pid_t pid;

	snprintf(proc, sizeof(proc), "/proc/%d", (int)r->target->pid);
	if (geteuid() || !r->target->uid || stat(proc, &st)) {
		print(r);
		return 0;
	}
	fflush(r->out);
	pid = fork();
	if (pid < 0)
		return err_set(err, -errno, "cannot start a process: %s", strerror(errno));
	if (pid == 0) {
		if (become_user(r->target->uid, st.st_gid, err) == 0)
			print(r);
		_exit(fflush(r->out) ? 1 : 0);
	}
	if (waitpid(pid, &status, 0) < 0 || status)
		return err_set(err, -EIO, "its stacks could not be printed");
	return 0;
}

int cli_stacks_print(const struct target *target, const struct stacks_query *query, FILE *out, struct st_err *err)
{
	struct report r = { .target = target, .query = query, .out = out };
	int ret = ask(&r, err);

	if (!ret)
		ret = print_as_user(&r, err);
	ctl_calls_free(r.pages, r.page_count);
	free(r.pages);
	return ret;
}

int cli_stacks_of(pid_t pid, const struct stacks_query *query, FILE *out, struct st_err *err)
{
	struct targets targets = { 0 };
	const struct target *target;
	int ret = targets_find(&targets, err);

	target = ret < 0 ? NULL : targets_get(&targets, pid);
	if (ret == 0 && (!target || target->kind != TARGET_AGENT))
		ret = err_set(err, -ESRCH, "process %d has no agent", (int)pid);
	else if (ret == 0 && target->err.code)
		ret = err_set(err, target->err.code, "%s", target->err.text);
	else if (ret == 0)
		ret = cli_stacks_print(target, query, out, err);
	targets_free(&targets);
	return ret;
}

/* --- many processes ------------------------------------------------------------------------------------------------------ */

static bool rank_wanted(const struct ctl_call *call, const char *ranks)
{
	uint32_t first, last;
	char text[16];
	uint64_t rank;

	if (!ranks)
		return true;
	if (!rank_of(call, text, sizeof(text)) || num_u64(text, &rank) < 0)
		return false;
	while (cpulist_next(&ranks, &first, &last) > 0)
		if (rank >= first && rank <= last)
			return true;
	return false;
}

static void say_failed(const struct ctl_call *call, bool json, char *text)
{
	if (!json) {
		cmd_error("%s: %s", call->target->shown, term_clean(text));
		return;
	}
	printf("{\"pid\": %d, \"error\": ", (int)call->target->pid);
	term_json_string(stdout, text);
	putchar('}');
}

int cli_stacks_all(const struct ctl_call *calls, size_t count, const char *ranks, const struct stacks_query *query)
{
	size_t i, shown = 0, failed = 0;

	for (i = 0; i < count; i++) {
		struct st_err err = calls[i].err;

		if (!err.code && !rank_wanted(&calls[i], ranks))
			continue;
		if (query->json)
			fputs(shown++ ? ",\n" : "{\"processes\": [\n", stdout);
		else if (shown++)
			putchar('\n');
		if (!err.code)
			cli_stacks_print(calls[i].target, query, stdout, &err);
		if (err.code) {
			failed++;
			say_failed(&calls[i], query->json, err.text);
		}
	}
	if (query->json)
		puts(shown ? "\n]}" : "{\"processes\": []}");
	if (!shown)
		return cmd_nothing("no agent has such a rank: 'sysTrace_cli list' shows which there are");
	return failed ? CMD_ERROR : CMD_OK;
}
