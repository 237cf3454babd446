/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The frame around the plugins; see plugin_frame.h. The control thread calls it; plugins are in agent/plugin/. */
#include "agent/plugin_frame.h"

#include "agent/agent.h"
#include "agent/budget.h"
#include "agent/env.h"
#include "agent/io_thread.h"
#include "base/num.h"
#include "safe/clock.h"
#include "safe/siglog.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ARGS_MAX 32
#define ARGS_BYTES 4096
#define STEP_POLL_NS 5000000u

extern const struct plugin plugin_mspti, plugin_io, plugin_mutex, plugin_gil,
	plugin_memory; /* one row per file in agent/plugin/ */

const struct plugin *const agent_plugins[PLUGIN_COUNT] = {
	[PLUGIN_MSPTI] = &plugin_mspti, [PLUGIN_IO] = &plugin_io,	  [PLUGIN_MUTEX] = &plugin_mutex,
	[PLUGIN_GIL] = &plugin_gil,	[PLUGIN_MEMORY] = &plugin_memory,
};

struct frame {
	enum frame_state state;
	struct plugin_timing timing;
	struct plugin_args args; /* points into .text */
	char text[ARGS_BYTES];
	uint64_t begun_ns;
	uint64_t end_ns; /* CLOCK_MONOTONIC, UINT64_MAX = not by time */
	uint64_t end_step; /* first step that is not recorded, UINT64_MAX = not by step */
	struct budget budget; /* the running window */
	uint64_t calls, cost_ns, bytes; /* since it was switched on, whole windows */
	double cost_pct; /* of the last whole window */
	unsigned int level; /* how often it has backed off; 0 = not */
	char backed_off[96]; /* what holds since; "" = nothing was given up */
};

static struct frame frames[PLUGIN_COUNT];

const char *plugin_args_get(const struct plugin_args *args, const char *key)
{
	int i;

	for (i = 0; i < args->count; i++) {
		if (!strcmp(args->key[i], key))
			return args->value[i];
	}
	return NULL;
}

bool plugin_args_bool(const struct plugin_args *args, const char *key)
{
	const char *value = plugin_args_get(args, key);
	bool yes;

	return value && num_bool(value, &yes) == 0 && yes;
}

/* The step that runs, from 1: what start_step= names. */
static uint64_t step_running(void)
{
	return 1 + (agent.pool.head ? atomic_load_explicit(&agent_place()->step, memory_order_relaxed) : 0);
}

static uint64_t unix_now_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

/* --- a request ------------------------------------------------------------------------------------------------------- */

static const char *keep(struct frame *frame, size_t *used, const char *text)
{
	size_t len = strlen(text) + 1;
	char *to = frame->text + *used;

	if (len > sizeof(frame->text) - *used)
		return NULL;
	memcpy(to, text, len);
	*used += len;
	return to;
}

/* The frame's keys into timing, the plugin's into args. */
static int take_pairs(struct frame *frame, enum plugin_id id, const struct plugin_pair *pairs, size_t count,
		      struct st_err *err)
{
	size_t i, used = 0;
	int ret;

	memset(&frame->timing, 0, sizeof(frame->timing));
	frame->args.count = 0;
	for (i = 0; i < count; i++) {
		const char *key, *value;

		ret = plugin_timing_take(&frame->timing, pairs[i].key, pairs[i].value);
		if (ret < 0)
			return err_set(err, ret, "%s: %s=%s is not valid", plugin_specs[id].name, pairs[i].key,
				       pairs[i].value);
		if (ret > 0)
			continue;
		key = keep(frame, &used, pairs[i].key);
		value = key ? keep(frame, &used, pairs[i].value) : NULL;
		if (!value || frame->args.count == ARGS_MAX)
			return err_set(err, -E2BIG, "%s: too many parameters; shorten them", plugin_specs[id].name);
		frame->args.key[frame->args.count] = key;
		frame->args.value[frame->args.count++] = value;
	}
	return 0;
}

/* Texts of @from point into from->text: make them point into @to's copy. */
static void move_frame(struct frame *to, const struct frame *from)
{
	int i;

	memcpy(to->text, from->text, sizeof(to->text));
	to->timing = from->timing;
	to->args.count = from->args.count;
	for (i = 0; i < from->args.count; i++) {
		to->args.key[i] = to->text + (from->args.key[i] - from->text);
		to->args.value[i] = to->text + (from->args.value[i] - from->text);
	}
}

static int check_start(const struct plugin_timing *timing, enum plugin_id id, struct st_err *err)
{
	uint64_t step = step_running();
	uint64_t now_ns = unix_now_ns();

	if (timing->start_step && timing->start_step < step)
		return err_set(err, -ERANGE,
			       "%s: step %llu has passed, this process is at step %llu; choose a later one",
			       plugin_specs[id].name, (unsigned long long)timing->start_step, (unsigned long long)step);
	if (timing->at_unix_ns && timing->at_unix_ns + 1000000000u < now_ns)
		return err_set(err, -ERANGE, "%s: at=%llu has passed, it is %llu now; choose a later time",
			       plugin_specs[id].name, (unsigned long long)(timing->at_unix_ns / 1000000000u),
			       (unsigned long long)(now_ns / 1000000000u));
	return 0;
}

static bool is_due(const struct frame *frame)
{
	if (frame->timing.start_step && step_running() < frame->timing.start_step)
		return false;
	return !frame->timing.at_unix_ns || unix_now_ns() >= frame->timing.at_unix_ns;
}

/* Begin, or hand new arguments to what is on already. */
static int begin(enum plugin_id id, struct frame *frame, struct st_err *err)
{
	int ret = agent_plugins[id]->start(&frame->args, err);

	if (ret < 0)
		return ret;
	if (frame->state != FRAME_ON) {
		frame->begun_ns = clock_mono_ns();
		frame->calls = frame->cost_ns = frame->bytes = 0;
		frame->cost_pct = 0;
		if (agent_plugins[id]->calls)
			budget_begin(&frame->budget, agent_plugins[id]->calls());
	}
	frame->level = 0; /* a new request: all of it again */
	frame->backed_off[0] = 0;
	frame->state = FRAME_ON;
	frame->end_ns = frame->timing.duration_ns ? clock_mono_ns() + frame->timing.duration_ns : UINT64_MAX;
	frame->end_step = frame->timing.steps ? step_running() + frame->timing.steps : UINT64_MAX;
	siglog(SIGLOG_INFO, "plugin", "%s is on", plugin_specs[id].name);
	agent_record(AGENT_BY_COMMAND);
	io_ask(IO_GROW);
	return 0;
}

static void describe_wait(const struct frame *frame, char *out, size_t room)
{
	if (frame->timing.start_step && step_running() < frame->timing.start_step)
		snprintf(out, room, "step %llu (now at %llu)", (unsigned long long)frame->timing.start_step,
			 (unsigned long long)step_running());
	else
		snprintf(out, room, "unix time %llu.%03llu",
			 (unsigned long long)(frame->timing.at_unix_ns / 1000000000u),
			 (unsigned long long)(frame->timing.at_unix_ns / 1000000u % 1000));
}

static int can_run(enum plugin_id id, struct st_err *err)
{
	const char *name = plugin_specs[id].name;

	if (agent_plugins[id])
		return 0;
	if (!(plugin_specs[id].where & RUNS_IN_AGENT))
		return err_set(err, -ENOTSUP, "%s runs in a probe, not in the process: sysTrace_cli starts it", name);
	return err_set(err, -ENOSYS, "%s is not in this build of the agent; 'systrace doctor' lists what is", name);
}

int plugin_frame_enable(enum plugin_id id, const struct plugin_pair *pairs, size_t count, struct st_err *err)
{
	static struct frame wanted; /* the control thread's alone */
	struct frame *frame = &frames[id];
	char wait[96];
	int ret;

	err->text[0] = 0;
	ret = can_run(id, err);
	if (!ret)
		ret = plugin_check_enable(id, pairs, count, err);
	if (!ret)
		ret = take_pairs(&wanted, id, pairs, count, err);
	if (!ret)
		ret = check_start(&wanted.timing, id, err);
	if (!ret && agent_plugins[id]->check)
		ret = agent_plugins[id]->check(&wanted.args, err);
	if (ret < 0)
		return ret;

	move_frame(frame, &wanted);
	err->text[0] = 0;
	if (is_due(frame)) {
		ret = begin(id, frame, err);
		if (ret < 0 && frame->state == FRAME_WAITING)
			frame->state = FRAME_OFF;
		return ret;
	}
	if (frame->state == FRAME_ON)
		agent_plugins[id]->stop();
	frame->state = FRAME_WAITING;
	describe_wait(frame, wait, sizeof(wait));
	err_set(err, 0, "armed: starts at %s", wait);
	return 0;
}

int plugin_frame_disable(enum plugin_id id, bool *sync, struct st_err *err)
{
	struct frame *frame = &frames[id];
	enum frame_state was = frame->state;
	int ret = can_run(id, err);

	*sync = frame->timing.sync;
	if (ret < 0)
		return ret;
	err->text[0] = 0;
	frame->state = FRAME_OFF;
	if (was == FRAME_ON) {
		agent_plugins[id]->stop();
		siglog(SIGLOG_INFO, "plugin", "%s is off", plugin_specs[id].name);
		return 1;
	}
	err_set(err, 0, was == FRAME_WAITING ? "was waiting for its start" : "was off");
	return 0;
}

/* --- time and steps -------------------------------------------------------------------------------------------------- */

static void start_waiting(enum plugin_id id, struct frame *frame)
{
	struct st_err err = { 0 };

	if (!is_due(frame) || !begin(id, frame, &err))
		return;
	frame->state = FRAME_OFF;
	siglog(SIGLOG_ERROR, "plugin", "%s did not start: %s", plugin_specs[id].name, err.text);
	drain_note(&agent.pool, "%s did not start: %s", plugin_specs[id].name, err.text);
}

static void end_running(enum plugin_id id, struct frame *frame, uint64_t now_ns)
{
	if (now_ns < frame->end_ns && step_running() < frame->end_step)
		return;
	frame->state = FRAME_OFF;
	agent_plugins[id]->stop();
	siglog(SIGLOG_INFO, "plugin", "%s is off: its time is over", plugin_specs[id].name);
	io_ask(frame->timing.sync ? IO_FLUSH | IO_SYNC : IO_FLUSH);
}

/* --- the overhead budget --------------------------------------------------------------------------------------------- */

/* One level further down; said in the log and in the file, so that nobody takes what is missing for what was not there. */
static void back_off(enum plugin_id id, struct frame *frame)
{
	const struct plugin *plugin = agent_plugins[id];
	const char *name = plugin_specs[id].name;
	bool further;

	frame->level++;
	further = plugin->back_off && !plugin->back_off(frame->level, frame->backed_off, sizeof(frame->backed_off));
	if (!further)
		snprintf(frame->backed_off, sizeof(frame->backed_off), "switched off");
	siglog(SIGLOG_WARN, "plugin", "%s took %u.%03u %% of the process's time, more than SYSTRACE_BUDGET_PCT: %s",
	       name, (unsigned int)frame->cost_pct, (unsigned int)(frame->cost_pct * 1000) % 1000, frame->backed_off);
	drain_note(&agent.pool, "%s took %.3f %% of the process's time, more than SYSTRACE_BUDGET_PCT=%g: %s", name,
		   frame->cost_pct, env.budget_pct, frame->backed_off);
	if (further)
		return;
	frame->state = FRAME_OFF;
	plugin->stop();
	io_ask(IO_FLUSH);
}

static void watch_budget(enum plugin_id id, struct frame *frame)
{
	struct budget_use use;

	if (!agent_plugins[id]->calls || !budget_window(&frame->budget, agent_plugins[id]->calls(), &use))
		return;
	frame->calls += use.calls;
	frame->cost_ns += use.cost_ns;
	frame->bytes += use.bytes;
	frame->cost_pct = use.pct;
	if (use.calls && use.pct > env.budget_pct && !use.first)
		back_off(id, frame);
}

void plugin_frame_tick(uint64_t now_ns)
{
	int id;

	for (id = 0; id < PLUGIN_COUNT; id++) {
		struct frame *frame = &frames[id];

		if (frame->state == FRAME_WAITING)
			start_waiting((enum plugin_id)id, frame);
		else if (frame->state == FRAME_ON)
			end_running((enum plugin_id)id, frame, now_ns);
		if (frame->state == FRAME_ON)
			watch_budget((enum plugin_id)id, frame);
	}
}

static uint64_t due_of(const struct frame *frame, uint64_t now_ns)
{
	uint64_t unix_ns;

	if (frame->state == FRAME_ON) {
		if (frame->end_step != UINT64_MAX && frame->end_ns > now_ns + STEP_POLL_NS)
			return now_ns + STEP_POLL_NS;
		return frame->end_ns;
	}
	if (frame->state != FRAME_WAITING)
		return UINT64_MAX;
	if (frame->timing.start_step)
		return now_ns + STEP_POLL_NS;
	/* the wall clock may be set meanwhile: the poll loop wakes at least twice a second and asks again */
	unix_ns = unix_now_ns();
	return frame->timing.at_unix_ns > unix_ns ? now_ns + (frame->timing.at_unix_ns - unix_ns) : now_ns;
}

uint64_t plugin_frame_due(uint64_t now_ns)
{
	uint64_t due_ns = UINT64_MAX;
	int id;

	for (id = 0; id < PLUGIN_COUNT; id++) {
		uint64_t own_ns = due_of(&frames[id], now_ns);

		if (own_ns < due_ns)
			due_ns = own_ns;
	}
	return due_ns;
}

void plugin_frame_stop_all(void)
{
	int id;

	for (id = 0; id < PLUGIN_COUNT; id++) {
		if (frames[id].state == FRAME_ON)
			agent_plugins[id]->stop();
		frames[id].state = FRAME_OFF;
	}
}

void plugin_frame_after_fork(void)
{
	int id;

	for (id = 0; id < PLUGIN_COUNT; id++)
		frames[id].state = FRAME_OFF;
}

void plugin_frame_status(enum plugin_id id, struct plugin_frame_status *status)
{
	const struct frame *frame = &frames[id];
	uint64_t now_ns = clock_mono_ns();

	memset(status, 0, sizeof(*status));
	status->state = frame->state;
	status->left_ns = UINT64_MAX;
	status->calls = frame->calls;
	status->cost_ns = frame->cost_ns;
	status->bytes = frame->bytes;
	status->cost_pct = frame->cost_pct;
	snprintf(status->backed_off, sizeof(status->backed_off), "%s", frame->backed_off);
	if (frame->state == FRAME_WAITING)
		describe_wait(frame, status->waiting_for, sizeof(status->waiting_for));
	if (frame->state == FRAME_ON) {
		status->on_ns = now_ns - frame->begun_ns;
		if (frame->end_ns != UINT64_MAX)
			status->left_ns = frame->end_ns > now_ns ? frame->end_ns - now_ns : 0;
	}
	if (agent_plugins[id] && agent_plugins[id]->status)
		agent_plugins[id]->status(status->text, sizeof(status->text));
}

/* --- SYSTRACE_PLUGINS ------------------------------------------------------------------------------------------------ */

/* One word up to a blank or ';', quotes removed. Return: bytes stored with the 0, or -EINVAL. */
static int take_word(const char **at, char *out, size_t room)
{
	const char *p = *at;
	size_t len = 0;
	char quote = 0;

	for (; *p && (quote || !strchr(" \t\n;", *p)); p++) {
		if (quote ? *p == quote : *p == '"' || *p == '\'') {
			quote = quote ? 0 : *p;
			continue;
		}
		if (len + 1 >= room)
			return -EINVAL;
		out[len++] = *p;
	}
	if (quote)
		return -EINVAL;
	out[len] = 0;
	*at = p;
	return (int)len + 1;
}

int plugin_text_next(const char **at, char *text, size_t room, const char **word, int max)
{
	size_t used = 0;
	int count = 0;

	*at += strspn(*at, " \t\n;");
	while (**at && **at != ';') {
		int len = count < max ? take_word(at, text + used, room - used) : -EINVAL;

		if (len < 0)
			return len;
		word[count++] = text + used;
		used += (size_t)len;
		*at += strspn(*at, " \t\n");
	}
	return count;
}

static int enable_words(const char **word, int count, struct st_err *err)
{
	struct plugin_pair pairs[ARGS_MAX];
	int i, id = plugin_find(word[0], err);

	if (id < 0)
		return id;
	for (i = 1; i < count; i++) {
		char *equals = strchr(word[i], '=');

		if (!equals)
			return err_set(err, -EINVAL, "'%s' is not key=value", word[i]);
		*equals = 0;
		pairs[i - 1] = (struct plugin_pair){ word[i], equals + 1 };
	}
	return plugin_frame_enable((enum plugin_id)id, pairs, (size_t)count - 1, err);
}

void plugin_frame_from_text(const char *text)
{
	const char *word[ARGS_MAX + 1];
	char copy[1024];
	struct st_err err;
	int count;

	while ((count = plugin_text_next(&text, copy, sizeof(copy), word, ARGS_MAX + 1)) > 0) {
		if (enable_words(word, count, &err) < 0)
			siglog(SIGLOG_ERROR, "env", "SYSTRACE_PLUGINS: %s", err.text);
	}
	if (count < 0)
		siglog(SIGLOG_ERROR, "env", "SYSTRACE_PLUGINS: an open quote or too many words near '%.40s'", text);
}
