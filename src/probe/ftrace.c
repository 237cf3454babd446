/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The plugin Ftrace as a kind of probe: ftrace_log.c does the work, this hands it parameters, a file and time. */
#include "probe/ftrace_log.h"

#include "base/num.h"
#include "probe/out.h"
#include "probe/probe.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace/saved_state.h"
#include "probe/ftrace/tracefs.h"
#include "systrace/ftrace.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TICK_MS 50u
#define DEFAULT_KB 32768u

struct ftrace_session {
	struct ftrace_log *log;
	int fd;
	uint32_t buffer_kb;
	struct ftrace_session *next;
};

static struct {
	struct ftrace_session *sessions;
	struct probe_stats stats; /* of sessions that ended */
} ftrace;

static void say(void *ctx, int level, const char *text)
{
	char *note = ctx;

	probe_log("%s", text);
	if (note && level != SYSTRACE_FTRACE_INFO && !*note)
		snprintf(note, 256, "%s", text);
}

static int ftrace_check(struct st_err *err)
{
	static const int caps[] = { CAP_SYS_ADMIN, -1 };

	return probe_need_caps("recording kernel events", caps, NULL, err);
}

/* What a probe that was killed left in the kernel. */
static void ftrace_clean(void)
{
	struct note note = { .say = say };
	struct tracefs fs;

	if (tracefs_open(&fs, NULL, NULL) == 0) {
		instance_sweep(&fs, &note);
		saved_state_sweep(&fs, &note);
	}
	tracefs_close(&fs);
}

static bool yes(const struct probe_session *session, const char *key)
{
	const char *text = probe_param(session, key);
	bool value = false;

	return text && num_bool(text, &value) == 0 && value;
}

static int take_buffer(const struct probe_session *session, uint32_t *buffer_kb, struct st_err *err)
{
	const char *text = probe_param(session, "buffer_size_kb");
	uint64_t kb = DEFAULT_KB;

	if (text && (num_u64(text, &kb) < 0 || kb == 0 || kb > UINT32_MAX / 1024))
		return err_set(err, -EINVAL, "buffer_size_kb=%s: write KB per CPU, from 1 to %u", text,
			       UINT32_MAX / 1024);
	*buffer_kb = (uint32_t)kb;
	return 0;
}

static int begin(struct ftrace_session *mine, struct probe_session *session, char *note, struct st_err *err)
{
	const struct probe_target *target = session->targets[0];
	struct note notes = { .say = say, .ctx = note };
	struct ftrace_log_options opts = {
		.cpu_list = probe_param(session, "cpu_list"),
		.events = probe_param(session, "events"),
		.function_tracer = probe_param(session, "function_tracer"),
		.func = probe_param(session, "func"),
		.set_event_pid = probe_param(session, "set_event_pid"),
		.set_ftrace_pid = probe_param(session, "set_ftrace_pid"),
		.func_stack_trace = yes(session, "func_stack_trace"),
		.event_stack_trace = yes(session, "event_stack_trace"),
	};
	char name[80];
	int ret = take_buffer(session, &opts.buffer_kb, err);

	if (ret < 0)
		return ret;
	mine->buffer_kb = opts.buffer_kb;
	snprintf(name, sizeof(name), "Ftrace_%u_rank_%u.log", target->inner_pid, target->origin.rank);
	mine->log = ftrace_log_new(&opts, &notes, err);
	if (!mine->log)
		return err->code;
	mine->fd = probe_out_fd(target, "Ftrace", name, err);
	ret = mine->fd < 0 ? mine->fd : ftrace_log_begin(mine->log, mine->fd, &(struct note){ .say = say }, err);
	if (ret == 0)
		return 0;
	ftrace_log_free(mine->log);
	if (mine->fd >= 0)
		close(mine->fd);
	return ret;
}

static int ftrace_start(struct probe_session *session, char *note, struct st_err *err)
{
	struct ftrace_session *mine = calloc(1, sizeof(*mine));
	int ret;

	if (!mine)
		return err_set(err, -ENOMEM, "out of memory");
	ret = begin(mine, session, note, err);
	if (ret < 0) {
		free(mine);
		return ret;
	}
	mine->next = ftrace.sessions;
	ftrace.sessions = mine;
	session->own = mine;
	return 0;
}

static void add_stats(struct probe_stats *stats, const struct ftrace_log_status *now)
{
	stats->records += now->events;
	stats->lost += now->lost + now->unwritten;
	stats->bytes += now->bytes;
	stats->failures += now->failed != 0;
}

static void ftrace_stop(struct probe_session *session)
{
	struct ftrace_session *mine = session->own, **at = &ftrace.sessions;
	struct ftrace_log_status now = { 0 };
	struct st_err err = { 0 };

	while (*at != mine)
		at = &(*at)->next;
	*at = mine->next;
	if (ftrace_log_stop(mine->log, &now, &err) < 0)
		probe_log("Ftrace: %s", err.text);
	add_stats(&ftrace.stats, &now);
	if (session->timing.sync)
		fsync(mine->fd);
	close(mine->fd);
	free(mine);
	session->own = NULL;
}

/* The host is its only target. */
static void ftrace_remove(struct probe_session *session, struct probe_target *target)
{
}

static void ftrace_tick(uint64_t now_ns)
{
	for (struct ftrace_session *mine = ftrace.sessions; mine; mine = mine->next)
		ftrace_log_pump(mine->log);
}

static void ftrace_flush(void)
{
	ftrace_tick(0);
}

static void ftrace_status(struct probe_stats *stats)
{
	struct ftrace_log_status now;

	*stats = ftrace.stats;
	for (struct ftrace_session *mine = ftrace.sessions; mine; mine = mine->next) {
		ftrace_log_status(mine->log, &now);
		add_stats(stats, &now);
		stats->buffer_bytes += (uint64_t)mine->buffer_kb * 1024 * ftrace_log_cpus(mine->log);
	}
}

const struct probe_kind probe_ftrace = {
	.plugin = PLUGIN_FTRACE,
	.group = "ftrace",
	.targets = PROBE_HOST,
	.tick_ms = TICK_MS,
	.check = ftrace_check,
	.clean = ftrace_clean,
	.start = ftrace_start,
	.stop = ftrace_stop,
	.remove = ftrace_remove,
	.tick = ftrace_tick,
	.flush = ftrace_flush,
	.status = ftrace_status,
};
