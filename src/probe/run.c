/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The probe's life: sessions with their timing, the kinds' regular work, cost and memory for `status`, and the end once
 * nothing is left to record. See probe.h and frame.h.
 */
#include "base/num.h"
#include "probe/frame.h"
#include "probe/loop.h"
#include "safe/clock.h"
#include "wire/plugin_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define FIRST_WAIT_NS (10 * SECOND_NS) /* for the first request after the start */
#define IDLE_NS (SECOND_NS / 2) /* between the last session's end and ours */
#define STEP_POLL_NS (SECOND_NS / 50)
#define LONGEST_MS 1000
#define NEVER UINT64_MAX

static struct {
	const char *group;
	struct probe_session *sessions;
	uint32_t last_id;
	uint64_t idle_ns; /* when we end, unless something begins */
	uint64_t tick_ns[PLUGIN_COUNT]; /* next tick of each kind */
	uint64_t began_ns;
	bool ending; /* told to by a signal */
	bool asked; /* an `enable` came since the loop last looked */
	char last_log[256];
} run;

void probe_log(const char *format, ...)
{
	struct timespec now;
	struct tm tm;
	char when[32];
	va_list ap;

	va_start(ap, format);
	vsnprintf(run.last_log, sizeof(run.last_log), format, ap);
	va_end(ap);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
	fprintf(stderr, "%s.%03ld [probe/%s %d] %s\n", when, now.tv_nsec / 1000000, run.group ? run.group : "?",
		(int)getpid(), run.last_log);
}

struct probe_session *probe_sessions(void)
{
	return run.sessions;
}

const char *probe_param(const struct probe_session *session, const char *key)
{
	const struct param_spec *row = plugin_param_find(session->kind->plugin, key);

	for (size_t i = 0; i < session->param_count; i++)
		if (strcmp(session->params[i].key, key) == 0)
			return session->params[i].value;
	return row ? row->initial : NULL;
}

/* --- a session's begin and end --------------------------------------------------------------------------------------- */

static void unlink_session(struct probe_session *session)
{
	struct probe_session **at = &run.sessions;

	while (*at && *at != session)
		at = &(*at)->next;
	if (*at)
		*at = session->next;
}

static void session_free(struct probe_session *session)
{
	for (size_t i = 0; i < session->target_count; i++)
		probe_target_release(session->targets[i]);
	free(session->targets);
	free(session->text);
	free(session);
}

static void session_end(struct probe_session *session)
{
	if (session->on) {
		session->on = false;
		session->kind->stop(session);
	}
	unlink_session(session);
	session_free(session);
}

static int session_begin(struct probe_session *session, char *note, struct st_err *err)
{
	int ret = session->kind->start(session, note, err);

	if (ret < 0)
		return ret;
	session->on = true;
	session->begun_ns = clock_mono_ns();
	run.tick_ns[session->kind->plugin] = 0;
	return 0;
}

/* What the session still waits for; NEVER: only a step, which is looked at again and again. 0: it may begin. */
static uint64_t session_due(const struct probe_session *session, uint64_t now_ns)
{
	uint64_t wall_ns = clock_ns(CLOCK_REALTIME);

	if (session->timing.at_unix_ns > wall_ns)
		return now_ns + (session->timing.at_unix_ns - wall_ns);
	return 0;
}

/* The step that runs, from 1, as start_step= names it. */
static uint64_t session_step(const struct probe_session *session)
{
	uint64_t best = 0;

	for (size_t i = 0; i < session->target_count; i++) {
		uint64_t step = probe_target_step(session->targets[i]);

		best = step > best ? step : best;
	}
	return best + 1;
}

static bool step_reached(const struct probe_session *session)
{
	return !session->timing.start_step || session_step(session) >= session->timing.start_step;
}

static bool session_over(const struct probe_session *session, uint64_t now_ns)
{
	if (session->timing.duration_ns && now_ns - session->begun_ns >= session->timing.duration_ns)
		return true;
	return session->timing.steps && session_step(session) >= session->begin_step + session->timing.steps;
}

/* Only marked: the caller may be inside one of the kind's own callbacks. */
void probe_session_end(struct probe_session *session)
{
	session->timing.duration_ns = 1;
	session->begun_ns = 0;
}

static void begin_waiting(struct probe_session *session)
{
	struct st_err err = { 0 };
	char note[256] = "";

	session->begin_step = session->timing.start_step ? session->timing.start_step : session_step(session);
	if (session_begin(session, note, &err) == 0)
		return;
	probe_log("%s could not begin: %s", plugin_specs[session->kind->plugin].name, err.text);
	session_end(session);
}

/* Sessions that begin or end by the clock or by the job's step. Return: when to look again. */
static uint64_t turn_sessions(uint64_t now_ns)
{
	struct probe_session *session, *next;
	uint64_t again = NEVER;

	for (session = run.sessions; session; session = next) {
		uint64_t due = NEVER;

		next = session->next;
		if (!session->on) {
			due = session_due(session, now_ns);
			if (!due && step_reached(session)) {
				begin_waiting(session);
				again = now_ns;
				continue;
			}
			due = due ? due : now_ns + STEP_POLL_NS;
		} else if (session_over(session, now_ns)) {
			session_end(session);
			continue;
		} else if (session->timing.steps) {
			due = now_ns + STEP_POLL_NS;
		}
		if (session->on && session->timing.duration_ns && session->begun_ns + session->timing.duration_ns < due)
			due = session->begun_ns + session->timing.duration_ns;
		again = due < again ? due : again;
	}
	return again;
}

static uint64_t turn_kinds(uint64_t now_ns)
{
	uint64_t again = NEVER;

	for (const struct probe_session *session = run.sessions; session; session = session->next) {
		const struct probe_kind *kind = session->kind;
		uint64_t *due = &run.tick_ns[kind->plugin];

		if (!session->on || !kind->tick || !kind->tick_ms)
			continue;
		if (*due <= now_ns) {
			kind->tick(now_ns);
			*due = now_ns + kind->tick_ms * 1000000ull;
		}
		again = *due < again ? *due : again;
	}
	return again;
}

/* --- targets that go --------------------------------------------------------------------------------------------------- */

/* Take one target out of a session. Return: was it the last one, so that the session is gone too? */
static bool lose_target(struct probe_session *session, struct probe_target *target)
{
	for (size_t i = 0; i < session->target_count; i++) {
		if (session->targets[i] != target)
			continue;
		if (session->target_count == 1) {
			session_end(session);
			return true;
		}
		if (session->on)
			session->kind->remove(session, target);
		memmove(&session->targets[i], &session->targets[i + 1],
			(--session->target_count - i) * sizeof(session->targets[0]));
		probe_target_release(target);
		break;
	}
	return false;
}

void probe_target_ended(struct probe_target *target)
{
	struct probe_session *session, *next;

	target->users++; /* until we are through */
	for (session = run.sessions; session; session = next) {
		next = session->next;
		if (session->kind->targets != PROBE_HOST)
			lose_target(session, target);
	}
	probe_target_release(target);
}

/* --- enable, disable ------------------------------------------------------------------------------------------------- */

static const struct probe_kind *own_kind(enum plugin_id plugin, struct st_err *err)
{
	const struct probe_kind *kind = probe_kind_of(plugin, err);

	if (kind && strcmp(kind->group, run.group) != 0) {
		err_set(err, -EINVAL, "this probe (%s) does not record %s", run.group, plugin_specs[plugin].name);
		return NULL;
	}
	return kind;
}

static int keep_params(struct probe_session *session, const struct plugin_pair *pairs, size_t count, struct st_err *err)
{
	size_t bytes = 1, used = 0;

	if (count > PROBE_PARAMS)
		return err_set(err, -E2BIG, "more than %d parameters", PROBE_PARAMS);
	for (size_t i = 0; i < count; i++)
		bytes += strlen(pairs[i].key) + strlen(pairs[i].value) + 2;
	session->text = malloc(bytes);
	if (!session->text)
		return err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		char *key = session->text + used;
		char *value = key + strlen(pairs[i].key) + 1;

		strcpy(key, pairs[i].key);
		strcpy(value, pairs[i].value);
		used = (size_t)(value - session->text) + strlen(value) + 1;
		session->params[session->param_count++] = (struct plugin_pair){ key, value };
		if (plugin_timing_take(&session->timing, key, value) < 0)
			return err_set(err, -EINVAL, "%s=%s is not valid", key, value);
	}
	return 0;
}

static int check_steps(const struct probe_session *session, struct st_err *err)
{
	if (!session->timing.start_step && !session->timing.steps)
		return 0;
	for (size_t i = 0; i < session->target_count; i++) {
		if (session->targets[i]->pool_fd < 0)
			continue;
		if (session->timing.start_step && session->timing.start_step < session_step(session))
			return err_set(err, -ERANGE,
				       "step %llu has passed, the job is at step %llu; choose a later one",
				       (unsigned long long)session->timing.start_step,
				       (unsigned long long)session_step(session));
		return 0;
	}
	return err_set(
		err, -ENOTSUP,
		"start_step and steps need the job's step, which an agent in the process publishes; use duration= "
		"or at=");
}

/* The same targets were recorded by an earlier session of the plugin: the new one takes them over. */
static void take_over(const struct probe_session *session)
{
	struct probe_session *old, *next;

	for (old = run.sessions; old; old = next) {
		next = old->next;
		if (old->kind != session->kind)
			continue;
		for (size_t i = 0; i < session->target_count; i++)
			if ((session->targets[i]->pid || session->kind->targets == PROBE_HOST) &&
			    lose_target(old, session->targets[i]))
				break;
	}
}

static int own_targets(struct probe_session *session, struct probe_target **targets, size_t count, struct st_err *err)
{
	size_t i;
	int ret = 0;

	session->targets = calloc(count, sizeof(*targets));
	for (i = 0; i < count; i++) {
		struct probe_target *target = NULL;

		if (session->targets && ret == 0)
			target = probe_target_own(targets[i], err);
		else
			probe_target_free(targets[i]);
		if (target)
			session->targets[session->target_count++] = target;
		else if (ret == 0)
			ret = session->targets ? err->code : err_set(err, -ENOMEM, "out of memory");
		/* one that has just ended does not stop the others */
		if (ret == -ESRCH && count > 1)
			ret = 0;
	}
	return ret == 0 && session->target_count == 0 ? err->code : ret;
}

static void say_enabled(const struct probe_session *session, size_t asked, const char *note, struct st_err *said)
{
	char more[96] = "";

	if (session->target_count < asked)
		snprintf(more, sizeof(more), "%s%zu of %zu processes have ended", *note ? "; " : "",
			 asked - session->target_count, asked);
	err_set(said, 0, "%.256s%s", note, more);
}

int probe_enable(enum plugin_id plugin, const struct plugin_pair *pairs, size_t count, struct probe_target **targets,
		 size_t target_count, struct st_err *said)
{
	const struct probe_kind *kind = own_kind(plugin, said);
	struct probe_session *session = kind ? calloc(1, sizeof(*session)) : NULL;
	char note[256] = "";
	int ret;

	run.asked = true;
	if (!session) {
		for (size_t i = 0; i < target_count; i++)
			probe_target_free(targets[i]);
		return kind ? err_set(said, -ENOMEM, "out of memory") : said->code;
	}
	session->kind = kind;
	session->id = ++run.last_id;
	ret = own_targets(session, targets, target_count, said);
	if (ret == 0)
		ret = plugin_check_enable(plugin, pairs, count, said);
	if (ret == 0)
		ret = keep_params(session, pairs, count, said);
	if (ret == 0)
		ret = check_steps(session, said);
	if (ret == 0 && kind->check)
		ret = kind->check(said);
	if (ret < 0)
		goto fail;
	take_over(session);
	if (session_due(session, clock_mono_ns())) {
		snprintf(note, sizeof(note), "armed: starts at unix time %s", probe_param(session, "at"));
	} else if (!step_reached(session)) {
		snprintf(note, sizeof(note), "armed: starts at step %llu (now at %llu)",
			 (unsigned long long)session->timing.start_step, (unsigned long long)session_step(session));
	} else {
		session->begin_step = session_step(session);
		ret = session_begin(session, note, said);
		if (ret < 0)
			goto fail;
	}
	session->next = run.sessions;
	run.sessions = session;
	say_enabled(session, target_count, note, said);
	return 0;
fail:
	session_free(session);
	return ret;
}

static bool listed(const pid_t *pids, size_t count, pid_t pid)
{
	for (size_t i = 0; i < count; i++)
		if (pids[i] == pid)
			return true;
	return count == 0;
}

int probe_disable(enum plugin_id plugin, const pid_t *pids, size_t count, struct st_err *said)
{
	const struct probe_kind *kind = own_kind(plugin, said);
	struct probe_session *session, *next;
	bool any = false;

	if (!kind)
		return said->code;
	for (session = run.sessions; session; session = next) {
		bool gone = false;

		next = session->next;
		if (session->kind != kind)
			continue;
		for (size_t i = session->target_count; i > 0 && !gone; i--)
			if (kind->targets == PROBE_HOST || listed(pids, count, session->targets[i - 1]->pid)) {
				any = true;
				gone = lose_target(session, session->targets[i - 1]);
			}
	}
	err_set(said, 0, "%s", any ? "" : "was off");
	return 0;
}

void probe_flush_all(void)
{
	for (size_t i = 0; probe_kinds[i]; i++)
		if (strcmp(probe_kinds[i]->group, run.group) == 0 && probe_kinds[i]->flush)
			probe_kinds[i]->flush();
}

/* --- status ---------------------------------------------------------------------------------------------------------- */

static uint64_t cpu_ns(void)
{
	struct rusage self, children;
	uint64_t us = 0;

	getrusage(RUSAGE_SELF, &self);
	getrusage(RUSAGE_CHILDREN, &children);
	us += (uint64_t)(self.ru_utime.tv_sec + self.ru_stime.tv_sec) * 1000000u;
	us += (uint64_t)(children.ru_utime.tv_sec + children.ru_stime.tv_sec) * 1000000u;
	us += (uint64_t)(self.ru_utime.tv_usec + self.ru_stime.tv_usec);
	us += (uint64_t)(children.ru_utime.tv_usec + children.ru_stime.tv_usec);
	return us * 1000u;
}

static uint64_t memory_bytes(void)
{
	unsigned long long pages = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	if (fscanf(file, "%llu %llu", &pages, &resident) != 2)
		resident = 0;
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void put_key(struct ctl_msg *answer, const char *plugin, const char *part, uint64_t value)
{
	char key[80];

	snprintf(key, sizeof(key), "plugin.%s.%s", plugin, part);
	for (char *c = key; *c; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c += 'a' - 'A';
	ctl_add_u64(answer, key, value);
}

static void put_session(struct ctl_msg *answer, const struct probe_session *session, uint64_t now_ns)
{
	const char *plugin = plugin_specs[session->kind->plugin].name;
	char ranks[160] = "", left[48] = "";
	size_t used = 0;

	for (size_t i = 0; i < session->target_count && used < sizeof(ranks) - 24; i++)
		used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%d", i ? "," : "",
					 (int)session->targets[i]->pid);
	if (session->on && session->timing.duration_ns)
		snprintf(left, sizeof(left), ", %.1f s left",
			 (double)(int64_t)(session->begun_ns + session->timing.duration_ns - now_ns) / 1e9);
	ctl_addf(answer, "session", "%s: %s, pid %s%s%s", plugin, session->on ? "on" : "waiting", ranks,
		 used >= sizeof(ranks) - 24 ? ",..." : "", left);
}

void probe_status_put(struct ctl_msg *answer)
{
	uint64_t now_ns = clock_mono_ns(), spent = cpu_ns();

	ctl_add_u64(answer, "pid", (uint64_t)getpid());
	ctl_add(answer, "probe", run.group);
	ctl_add(answer, "version", ST_VERSION);
	ctl_add_u64(answer, "protocol", CTL_VERSION);
	ctl_add_u64(answer, "cost_ns", spent);
	ctl_addf(answer, "cost_pct", "%.3f", 100.0 * (double)spent / (double)(now_ns - run.began_ns + 1));
	ctl_add_u64(answer, "memory_bytes", memory_bytes());
	for (size_t i = 0; probe_kinds[i]; i++) {
		const struct probe_kind *kind = probe_kinds[i];
		const char *name = plugin_specs[kind->plugin].name;
		struct probe_stats stats = { 0 };

		if (strcmp(kind->group, run.group) != 0)
			continue;
		kind->status(&stats);
		put_key(answer, name, "records", stats.records);
		put_key(answer, name, "lost", stats.lost);
		put_key(answer, name, "bytes", stats.bytes);
		put_key(answer, name, "failures", stats.failures);
		put_key(answer, name, "buffer_bytes", stats.buffer_bytes);
		if (stats.text[0])
			ctl_addf(answer, "note", "%s: %s", name, stats.text);
	}
	for (const struct probe_session *session = run.sessions; session; session = session->next)
		put_session(answer, session, now_ns);
	if (run.last_log[0])
		ctl_add(answer, "last_log", run.last_log);
}

/* --- the process ------------------------------------------------------------------------------------------------------- */

static void told_to_end(int fd, void *arg)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		run.ending = true;
}

/* SIGTERM and SIGINT end all sessions in order; SIGCHLD is the kinds' (waitpid). */
static int watch_signals(void)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : probe_watch(fd, told_to_end, NULL);
}

/* The starter may have been bound to the training core. */
static void use_all_cpus(void)
{
	cpu_set_t *set = CPU_ALLOC(4096);

	if (!set)
		return;
	memset(set, 0xff, CPU_ALLOC_SIZE(4096));
	(void)!sched_setaffinity(0, CPU_ALLOC_SIZE(4096), set);
	CPU_FREE(set);
}

static int timeout_ms(uint64_t now_ns, uint64_t due_ns)
{
	if (due_ns <= now_ns)
		return 0;
	if (due_ns == NEVER || due_ns - now_ns > LONGEST_MS * 1000000ull)
		return LONGEST_MS;
	return (int)((due_ns - now_ns) / 1000000u) + 1;
}

static void serve(void)
{
	run.idle_ns = clock_mono_ns() + FIRST_WAIT_NS;
	while (!run.ending) {
		uint64_t now_ns = clock_mono_ns();
		uint64_t due = turn_sessions(now_ns);
		uint64_t tick = turn_kinds(now_ns);

		control_tick(now_ns);
		if (run.sessions || run.asked)
			run.idle_ns = now_ns + IDLE_NS;
		else if (now_ns >= run.idle_ns && control_quiet())
			break;
		run.asked = false;
		due = tick < due ? tick : due;
		due = !run.sessions && run.idle_ns < due ? run.idle_ns : due;
		loop_once(timeout_ms(now_ns, due));
	}
}

static void tell_starter(int fd, const char *text)
{
	if (fd < 0)
		return;
	(void)!write(fd, text, strlen(text));
	close(fd);
}

int probe_run(const char *group, int ready_fd, struct st_err *err)
{
	bool known = false;
	int ret = 0;

	run.group = group;
	run.began_ns = clock_mono_ns();
	for (size_t i = 0; probe_kinds[i]; i++)
		known |= strcmp(probe_kinds[i]->group, group) == 0;
	if (!known)
		ret = err_set(err, -ENOENT, "there is no probe '%s' in this build", group);
	if (ret == 0)
		ret = watch_signals();
	if (ret == 0)
		ret = control_open(group, err);
	if (ret < 0) {
		tell_starter(ready_fd, err->text[0] ? err->text : strerror(-ret));
		return ret;
	}
	use_all_cpus();
	for (size_t i = 0; probe_kinds[i]; i++)
		if (strcmp(probe_kinds[i]->group, group) == 0 && probe_kinds[i]->clean)
			probe_kinds[i]->clean();
	tell_starter(ready_fd, "ready");
	serve();
	while (run.sessions)
		session_end(run.sessions);
	control_close();
	return 0;
}
