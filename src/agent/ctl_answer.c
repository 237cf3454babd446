/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The agent's answers; see ctl_answer.h. Keys are those of docs/formats/ctl.md. */
#include "agent/ctl_answer.h"

#include "agent/ctl_server.h"
#include "agent/env.h"
#include "agent/hook/hook.h"
#include "agent/identity.h"
#include "agent/life.h"
#include "agent/plugin_frame.h"
#include "agent/python/python.h"
#include "agent/stack/show.h"
#include "agent/stack/stack.h"
#include "agent/steps.h"
#include "agent/threads.h"
#include "safe/clock.h"
#include "safe/siglog.h"
#include "wire/plugin_spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PAIRS_MAX 40
#define PAIR_BYTES 8192
#define STAGES_DEADLINE_MS 2000
#define HOOK_OBJECTS_UPTO 48000u /* bytes of an answer */

static const char *const source_names[POOL_SRC_COUNT] = {
	[POOL_SRC_STAGE] = "stage",   [POOL_SRC_COMM] = "comm",	  [POOL_SRC_STEP] = "step",
	[POOL_SRC_IO] = "io",	      [POOL_SRC_GIL] = "gil",	  [POOL_SRC_MUTEX] = "mutex",
	[POOL_SRC_MEMORY] = "memory", [POOL_SRC_HBM] = "hbm",	  [POOL_SRC_MSPTI] = "mspti",
	[POOL_SRC_NOTE] = "note",     [POOL_SRC_OTHER] = "other", [POOL_SRC_STACK] = "stack",
};

static const char *const stage_names[STAGE_COUNT] = {
	[STAGE_UNKNOWN] = "UNKNOWN",	 [STAGE_DATALOADER] = "DATALOADER",	      [STAGE_FORWARD] = "FORWARD",
	[STAGE_BACKWARD] = "BACKWARD",	 [STAGE_SYNCHRONIZATION] = "SYNCHRONIZATION", [STAGE_GC] = "GC",
	[STAGE_OPTIMIZER] = "OPTIMIZER", [STAGE_CHECKPOINT] = "CHECKPOINT",	      [STAGE_COMM] = "COMM",
};

static void put_verdict(struct ctl_msg *answer, int code, const char *text)
{
	ctl_addf(answer, CTL_KEY_CODE, "%d", code);
	if (text && text[0])
		ctl_add(answer, CTL_KEY_TEXT, text);
}

/* --- who and where --------------------------------------------------------------------------------------------------- */

static void put_rank(struct ctl_msg *answer)
{
	/* an unbound rank is not a wrong one: it may still come from the process group */
	if (!atomic_load_explicit(&identity.bound, memory_order_acquire))
		return;
	ctl_add(answer, "run", identity.run);
	if (identity.rank_known)
		ctl_add_u64(answer, "rank", identity.rank);
	ctl_add_u64(answer, "local_rank", identity.local_rank);
	if (identity.world_size)
		ctl_add_u64(answer, "world_size", identity.world_size);
}

static void put_identity(struct ctl_msg *answer, const struct io_status *io)
{
	int by = atomic_load_explicit(&life.record_reason, memory_order_relaxed);

	ctl_add_u64(answer, "pid", identity.pid);
	ctl_add(answer, "pids", identity.pids);
	ctl_add(answer, "state", life_state_text(agent_state()));
	if (by < 0)
		by = atomic_load_explicit(&life.start_reason, memory_order_relaxed);
	ctl_add(answer, "reason", life_reason_text(by));
	put_rank(answer);
	ctl_add(answer, "host", identity.host);
	ctl_add(answer, "job", identity.job);
	ctl_add(answer, "version", ST_VERSION);
	ctl_add_u64(answer, "protocol", CTL_VERSION);
	ctl_add(answer, "socket", ctl_socket_path());
	ctl_add(answer, "dump_path", io->dump_path[0] ? io->dump_path : env.text[ENV_DUMP_PATH]);
	ctl_add(answer, "format", env.json ? "json" : "pb");
}

/* --- status ---------------------------------------------------------------------------------------------------------- */

static void put_position(struct ctl_msg *answer)
{
	const struct pool_header *head = agent_place();
	uint32_t stage = atomic_load_explicit(&head->stage, memory_order_relaxed);
	struct steps_stats stats;

	steps_stats(&stats);
	ctl_add_u64(answer, "collectives", stats.collectives);
	ctl_add_u64(answer, "stages.summed", stats.summed);
	ctl_add_u64(answer, "stages.paced_steps", stats.paced_steps);
	ctl_add_u64(answer, "step", atomic_load_explicit(&head->step, memory_order_relaxed));
	ctl_add_u64(answer, "stage_id", atomic_load_explicit(&head->stage_id, memory_order_relaxed));
	ctl_add(answer, "stage", stage_names[stage < STAGE_COUNT ? stage : 0]);
	if (head != agent.pool.head)
		ctl_add_u64(answer, "worker_of", head->owner_pid);
}

static void put_python(struct ctl_msg *answer)
{
	const char *why = python_off_reason();
	char text[1024] = "";

	if (!python_present())
		ctl_add(answer, "python", "off: no interpreter in this process");
	else if (why)
		ctl_addf(answer, "python", "off: %s", why);
	else if (!env.python_tracing)
		ctl_add(answer, "python", "off: SYSTRACE_PYTHON_TRACING is off");
	else
		ctl_add(answer, "python", "on");
	python_status(text, sizeof(text));
	if (text[0])
		ctl_add(answer, "python.text", text);
	ctl_addf(answer, "untraceable", "%d", python_list_untraceable(text, sizeof(text)));
	if (text[0])
		ctl_add(answer, "untraceable.text", text);
}

static void lower(char *out, size_t room, const char *name)
{
	size_t i;

	for (i = 0; name[i] && i < room - 1; i++)
		out[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + 32) : name[i];
	out[i] = 0;
}

static void put_plugin_cost(struct ctl_msg *answer, const char *name, const struct plugin_frame_status *status)
{
	char key[64];

	snprintf(key, sizeof(key), "plugin.%s.calls", name);
	ctl_add_u64(answer, key, status->calls);
	snprintf(key, sizeof(key), "plugin.%s.bytes", name);
	ctl_add_u64(answer, key, status->bytes);
	snprintf(key, sizeof(key), "plugin.%s.cost_ns", name);
	ctl_add_u64(answer, key, status->cost_ns);
	snprintf(key, sizeof(key), "plugin.%s.cost_pct", name);
	ctl_addf(answer, key, "%.3f", status->cost_pct);
	if (!status->backed_off[0])
		return;
	snprintf(key, sizeof(key), "plugin.%s.backed_off", name);
	ctl_add(answer, key, status->backed_off);
}

static void put_plugin(struct ctl_msg *answer, enum plugin_id id)
{
	static const char *const states[] = { [FRAME_OFF] = "off", [FRAME_WAITING] = "waiting", [FRAME_ON] = "on" };
	struct plugin_frame_status status;
	char name[32], key[64];

	if (!agent_plugins[id])
		return;
	plugin_frame_status(id, &status);
	lower(name, sizeof(name), plugin_specs[id].name);
	if (status.state != FRAME_OFF)
		ctl_add(answer, CTL_KEY_PLUGIN, plugin_specs[id].name);
	snprintf(key, sizeof(key), "plugin.%s.state", name);
	ctl_add(answer, key, states[status.state]);
	if (status.waiting_for[0]) {
		snprintf(key, sizeof(key), "plugin.%s.waiting_for", name);
		ctl_add(answer, key, status.waiting_for);
	}
	if (status.state == FRAME_ON) {
		snprintf(key, sizeof(key), "plugin.%s.on_s", name);
		ctl_add_u64(answer, key, status.on_ns / 1000000000u);
	}
	if (status.left_ns != UINT64_MAX) {
		snprintf(key, sizeof(key), "plugin.%s.left_s", name);
		ctl_add_u64(answer, key, status.left_ns / 1000000000u);
	}
	if (status.text[0]) {
		snprintf(key, sizeof(key), "plugin.%s.text", name);
		ctl_add(answer, key, status.text);
	}
	if (agent_plugins[id]->calls)
		put_plugin_cost(answer, name, &status);
}

static void put_output(struct ctl_msg *answer, const struct io_status *io)
{
	char key[64];
	uint64_t lost = 0, n;
	int i;

	for (i = 0; i < POOL_SRC_COUNT; i++) {
		n = atomic_load_explicit(&agent.pool.head->dropped[i], memory_order_relaxed);
		lost += n;
		if (!n || !source_names[i])
			continue;
		snprintf(key, sizeof(key), "dropped.%s", source_names[i]);
		ctl_add_u64(answer, key, n);
	}
	ctl_add_u64(answer, "dropped", lost);
	ctl_add_u64(answer, "records", io->drain.records);
	ctl_add_u64(answer, "bytes", io->drain.bytes);
	ctl_add_u64(answer, "failures", io->drain.failures);
	ctl_add_u64(answer, "forgotten", io->forgotten);
	ctl_add_u64(answer, "pending_bytes", drain_pending(&agent.pool));
	for (i = 0; i < io->files; i++)
		ctl_add(answer, "file", io->file[i]);
}

static uint64_t process_cpu_ns(void)
{
	return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static void put_cost(struct ctl_msg *answer)
{
	static const char *const keys[THREAD_COUNT] = { [THREAD_IO] = "thread.io.cpu_ns",
							[THREAD_CTL] = "thread.ctl.cpu_ns",
							[THREAD_PY] = "thread.py.cpu_ns",
							[THREAD_LAST] = "thread.last.cpu_ns",
							[THREAD_HOOK] = "thread.hook.cpu_ns" };
	uint64_t wall_ns = clock_ns(CLOCK_REALTIME) - identity.proc_start_unix * 1000000000u;
	uint64_t cpu_ns = process_cpu_ns();
	uint64_t sum_ns = 0;
	int i;

	for (i = 0; i < THREAD_COUNT; i++) {
		uint64_t ns = thread_cpu_ns((enum thread_id)i);

		sum_ns += ns;
		if (thread_running((enum thread_id)i))
			ctl_add_u64(answer, keys[i], ns);
	}
	ctl_add_u64(answer, "cost_ns", sum_ns);
	ctl_addf(answer, "cost_pct", "%.3f", 100.0 * (double)sum_ns / (double)(cpu_ns > wall_ns ? cpu_ns : wall_ns));
}

/* One line an object, for `systrace doctor --pid`; a long list is cut, the sums are not. */
static void put_hook_object(void *arg, const char *path, uint32_t slots, uint32_t foreign, uint32_t refused)
{
	struct ctl_msg *answer = arg;
	char more[80] = "";

	if (foreign)
		snprintf(more, sizeof(more), ", %u of somebody else's", foreign);
	if (refused)
		snprintf(more + strlen(more), sizeof(more) - strlen(more), ", %u not writable", refused);
	if (answer->used < HOOK_OBJECTS_UPTO)
		ctl_addf(answer, "hook.object", "%s: %u slots%s", path, slots, more);
}

static void put_hooks(struct ctl_msg *answer)
{
	struct hook_status hooks;

	hook_status(&hooks, NULL, NULL);
	if (!hooks.passes)
		return;
	ctl_add_u64(answer, "hooks.objects", hooks.objects);
	ctl_add_u64(answer, "hooks.slots", hooks.slots);
	ctl_add_u64(answer, "hooks.foreign", hooks.foreign);
	ctl_add_u64(answer, "hooks.refused", hooks.refused);
	ctl_add_u64(answer, "hooks.missing", hooks.missing);
	ctl_add_u64(answer, "hooks.passes", hooks.passes);
	ctl_add_u64(answer, "hooks.pass_ns", hooks.pass_ns);
	ctl_add(answer, "hooks.pending", hooks.pending ? "1" : "0");
	hook_status(&hooks, put_hook_object, answer);
}

static void put_pool(struct ctl_msg *answer, const struct io_status *io)
{
	ctl_add_u64(answer, "pool_bytes",
		    pool_area_bytes(atomic_load_explicit(&agent.pool.mapped_chunks, memory_order_relaxed)));
	ctl_add(answer, "pool_shared", agent.pool.shared_file ? "1" : "0");
	ctl_add(answer, "spool", life.spool.dir);
	ctl_add(answer, "log", siglog_path());
	if (life.spool.note[0])
		ctl_add(answer, "note", life.spool.note);
	if (io->pool_text[0])
		ctl_add(answer, "note", io->pool_text);
	if (io->drain.given_up[0])
		ctl_addf(answer, "note", "given up for now: %s", io->drain.given_up);
	if (io->drain.last_error)
		ctl_add(answer, "note", io->drain.last_text);
	if (!threads_own_files())
		ctl_add(answer, "note", "descriptors are shared with the job: this system allows no table of our own");
}

static void put_stacks(struct ctl_msg *answer)
{
	struct stack_status stacks;

	stack_status(&stacks);
	if (!stacks.unwinder[0])
		return;
	ctl_add_u64(answer, "stacks", stacks.stacks);
	ctl_add_u64(answer, "stacks.full", stacks.full);
	ctl_add(answer, "stacks.unwinder", stacks.unwinder);
	if (stacks.full)
		ctl_addf(answer, "note", "%llu records have no stack: the table of stacks is full (%u kept)",
			 (unsigned long long)stacks.full, stacks.stacks);
}

static void answer_status(struct ctl_msg *answer)
{
	struct io_status io;
	int id;

	io_status(&io);
	put_verdict(answer, 0, NULL);
	put_identity(answer, &io);
	put_position(answer);
	put_python(answer);
	for (id = 0; id < PLUGIN_COUNT; id++)
		put_plugin(answer, (enum plugin_id)id);
	put_output(answer, &io);
	put_cost(answer);
	put_pool(answer, &io);
	put_hooks(answer);
	put_stacks(answer);
}

static void answer_list(struct ctl_msg *answer)
{
	struct io_status io;

	io_status(&io);
	put_verdict(answer, 0, NULL);
	put_identity(answer, &io);
}

static void answer_plugins(struct ctl_msg *answer)
{
	int id;

	put_verdict(answer, 0, NULL);
	for (id = 0; id < PLUGIN_COUNT; id++) {
		const struct param_spec *row;
		char key[64], name[32], keys[1024] = "";

		if (!agent_plugins[id])
			continue;
		lower(name, sizeof(name), plugin_specs[id].name);
		ctl_add(answer, CTL_KEY_PLUGIN, plugin_specs[id].name);
		for (row = plugin_specs[id].params; row->type != PARAM_END; row++) {
			size_t used = strlen(keys);

			snprintf(keys + used, sizeof(keys) - used, "%s%s", used ? "," : "", row->key);
		}
		snprintf(key, sizeof(key), "plugin.%s.keys", name);
		ctl_add(answer, key, keys);
	}
}

static void answer_stacks(const void *payload, uint32_t bytes, struct ctl_msg *answer)
{
	char from[16] = "0";
	struct io_status io;

	ctl_get(payload, bytes, "from", from, sizeof(from));
	stack_show(answer, (uint32_t)strtoul(from, NULL, 10));
	io_status(&io);
	put_identity(answer, &io);
}

static void answer_debug(struct ctl_msg *answer)
{
#ifdef ST_FAULTS
	const struct pool_header *head = agent.pool.head;

	put_verdict(answer, 0, NULL);
	ctl_add_u64(answer, "next_seq", atomic_load(&((struct pool_header *)head)->next_seq));
	ctl_add_u64(answer, "committed", atomic_load(&((struct pool_header *)head)->committed));
	ctl_add_u64(answer, "generations", atomic_load(&((struct pool_header *)head)->generations));
#else
	put_verdict(answer, -ENOSYS, "built without fault points; configure with -DST_FAULTS=ON");
#endif
}

/* --- enable and disable ---------------------------------------------------------------------------------------------- */

struct request {
	struct plugin_pair pairs[PAIRS_MAX];
	size_t count;
	char text[PAIR_BYTES]; /* terminated copies of keys and values */
	size_t used;
	int plugin; /* enum plugin_id */
};

static const char *copy_text(struct request *req, const char *text, uint32_t bytes)
{
	char *to = req->text + req->used;

	if (bytes >= sizeof(req->text) - req->used || memchr(text, 0, bytes))
		return NULL;
	memcpy(to, text, bytes);
	to[bytes] = 0;
	req->used += bytes + 1;
	return to;
}

static int read_request(struct request *req, const void *payload, uint32_t bytes, struct st_err *err)
{
	struct ctl_entry entry;
	uint32_t at = 0;

	req->count = 0;
	req->used = 0;
	req->plugin = -ENOENT;
	err_set(err, -EINVAL, "the request names no plugin");
	while (ctl_next(payload, bytes, &at, &entry) > 0) {
		const char *key = copy_text(req, entry.key, entry.key_bytes);
		const char *value = key ? copy_text(req, entry.value, entry.value_bytes) : NULL;

		if (!value)
			return err_set(err, -E2BIG, "the request is too long or holds a zero byte");
		if (!strcmp(key, CTL_KEY_PLUGIN)) {
			req->plugin = plugin_find(value, err);
			continue;
		}
		if (req->count == PAIRS_MAX)
			return err_set(err, -E2BIG, "more than %d parameters", PAIRS_MAX);
		req->pairs[req->count++] = (struct plugin_pair){ key, value };
	}
	return req->plugin < 0 ? err->code : 0;
}

static void answer_enable(const struct request *req, struct ctl_msg *answer)
{
	struct st_err err = { 0 };
	int ret = plugin_frame_enable((enum plugin_id)req->plugin, req->pairs, req->count, &err);

	put_verdict(answer, ret, err.text);
}

static void wait_for_io(struct ctl_wait *wait, unsigned wishes)
{
	wait->ticket = io_ask(wishes);
	wait->waits = true;
}

static void answer_disable(const struct request *req, struct ctl_msg *answer, struct ctl_wait *wait)
{
	bool sync = false;
	size_t i;
	int ret = plugin_frame_disable((enum plugin_id)req->plugin, &sync, &wait->said);

	for (i = 0; i < req->count; i++)
		sync |= !strcmp(req->pairs[i].key, "sync") && req->pairs[i].value[0] == '1';
	if (ret > 0)
		wait_for_io(wait, sync ? IO_FLUSH | IO_SYNC : IO_FLUSH);
	else
		put_verdict(answer, ret, wait->said.text);
}

/* The always-on layer is no plugin, but can be switched like one: bits first on the way out, last on the way in. */
static void answer_stages(bool on, struct ctl_msg *answer)
{
	const char *why = python_off_reason();
	int ret;

	if (!on)
		pool_switch(&agent.pool, PLUGIN_BIT_STAGES | PLUGIN_BIT_COMM, false);
	ret = python_stages_switch(on, STAGES_DEADLINE_MS);
	if (on)
		pool_switch(&agent.pool, PLUGIN_BIT_STAGES | PLUGIN_BIT_COMM, true);
	if (ret == -ETIMEDOUT)
		put_verdict(answer, 0, "the job holds the interpreter lock: carried out as soon as it lets go");
	else
		put_verdict(answer, ret, ret < 0 ? why ? why : "no Python functions are traced in this process" : NULL);
}

static bool names_stages(const void *payload, uint32_t bytes)
{
	char name[16];

	return ctl_get(payload, bytes, CTL_KEY_PLUGIN, name, sizeof(name)) > 0 && !strcasecmp(name, "stages");
}

static void answer_request(const struct ctl_frame *frame, const void *payload, struct ctl_msg *answer,
			   struct ctl_wait *wait)
{
	static struct request req; /* the control thread's alone */
	struct st_err err = { 0 };

	if (names_stages(payload, frame->payload_bytes))
		answer_stages(frame->verb == CTL_ENABLE, answer);
	else if (read_request(&req, payload, frame->payload_bytes, &err) < 0)
		put_verdict(answer, err.code, err.text);
	else if (frame->verb == CTL_ENABLE)
		answer_enable(&req, answer);
	else
		answer_disable(&req, answer, wait);
}

void ctl_answer(const struct ctl_frame *frame, const void *payload, struct ctl_msg *answer, struct ctl_wait *wait)
{
	if (ctl_check(payload, frame->payload_bytes) < 0) {
		put_verdict(answer, -EPROTO, "the request is malformed");
		return;
	}
	switch (frame->verb) {
	case CTL_ENABLE:
	case CTL_DISABLE:
		answer_request(frame, payload, answer, wait);
		break;
	case CTL_STATUS:
		answer_status(answer);
		break;
	case CTL_LIST:
		answer_list(answer);
		break;
	case CTL_PLUGINS:
		answer_plugins(answer);
		break;
	case CTL_FLUSH:
		wait_for_io(wait, IO_FLUSH);
		break;
	case CTL_DUMP:
		agent_record(AGENT_BY_COMMAND);
		wait_for_io(wait, IO_FLUSH | IO_DUMP);
		break;
	case CTL_STACKS:
		answer_stacks(payload, frame->payload_bytes, answer);
		break;
	case CTL_DEBUG:
		answer_debug(answer);
		break;
	default:
		put_verdict(answer, -EOPNOTSUPP,
			    "this agent (" ST_VERSION ") does not know the request; use the "
			    "sysTrace_cli of the same release");
	}
}

static const char *markers_file(const struct io_status *io)
{
	int i;

	for (i = 0; i < io->files; i++) {
		if (strstr(io->file[i], "/mspti/"))
			return io->file[i];
	}
	return NULL;
}

void ctl_answer_late(const struct ctl_frame *frame, const struct ctl_wait *wait, const struct io_result *result,
		     struct ctl_msg *answer)
{
	struct io_status io;

	if (!result) {
		put_verdict(answer, -ETIMEDOUT,
			    "not written yet: the dump path is slow or does not answer; the data "
			    "stays in the pool and is written when it does");
		return;
	}
	if (result->code < 0) {
		put_verdict(answer, result->code, result->err.text[0] ? result->err.text : strerror(-result->code));
		return;
	}
	put_verdict(answer, 0, wait->said.text);
	if (frame->verb != CTL_DUMP)
		return;
	io_status(&io);
	ctl_add_u64(answer, "records", (uint64_t)result->dumped);
	if (markers_file(&io))
		ctl_add(answer, "file", markers_file(&io));
}
