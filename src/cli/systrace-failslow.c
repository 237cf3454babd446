/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The service `systrace-failslow`: watches the steps of a job, and when they become slow or stop, finds the rank. One
 * verdict at once, then one result file per change. A pass reads what was added since the last one; the time until the next one is at least a
 * hundred times the CPU time that it took, so that the service stays below one per cent of a core however much there is to read.
 */
#include "analyze/diagnose.h"
#include "analyze/job_life.h"
#include "analyze/rank_steps.h"
#include "analyze/result.h"
#include "cli/become.h"
#include "cli/command.h"
#include "cli/auto_collect.h"
#include "cli/hang_stacks.h"
#include "cli/service_state.h"
#include "cli/term.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHARE_OF_CORE 100 /* CPU time of a pass times this until the next one */
#define ALARMS_MAX 256
#define HOOK_S 60 /* longest run of on_finding */

extern char **environ;

static const struct option_spec options[] = {
	{ "input", 'i', OPT_TEXT, "DIR|FILE", NULL,
	  "dump directory, or a training log; default: root_path, then training_log of the configuration, then the dump path" },
	{ "output", 'o', OPT_TEXT, "DIR", NULL,
	  "directory of all result files; default: fail_slow_perception_path and slow_node_detection_path" },
	{ "algorithm", 'a', OPT_WORD, "robust|documented", NULL, "default: the configuration's, else robust" },
	{ "interval", 0, OPT_SEC, "SEC", NULL,
	  "shortest time between two looks; default: 10 s, fail_slow_span_mins with algorithm documented" },
	{ "config", 'c', OPT_TEXT, "FILE|DIR", NULL,
	  "model_config.json, or the directory of it and metric_config.json; default: /etc/systrace/config" },
	{ "run", 0, OPT_TEXT, "ID", NULL, "look at this run; default: the newest in the directory" },
	{ "once", 0, OPT_FLAG, NULL, NULL, "one verdict, then return" },
	{ "status", 0, OPT_FLAG, NULL, NULL, "tell how the running service does" },
	{ .kind = OPT_END },
};

/** struct alarm - a rank and kind that was reported, for look_back */
struct alarm {
	int32_t rank;
	enum loc_kind kind;
	time_t at;
};

struct service {
	const struct options *opts;
	struct model_config config;
	struct metric_config metrics;
	struct service_state state;
	struct ev_session *session; /* of all passes, since the cache holds its names */
	struct steps_cache *cache;
	bool judged; /* some pass came to a verdict */
	enum failslow_type type; /* last one written */
	uint32_t onset;
	bool recovered;
	struct alarm alarms[ALARMS_MAX];
	size_t alarms_count;
	pid_t hook; /* on_finding that runs, 0 = none */
	time_t hook_since;
	struct auto_collect collect;
};

/* Files that are there already would be said again in each pass */
static void quiet(void *arg, const char *text)
{
	struct service *s = arg;

	if (!s->state.passes)
		service_log("info", "reading", "note=\"%s\"", text);
}

/* ---- configuration -------------------------------------------------------------------------------------------------- */

static int load_config(struct service *s)
{
	struct model_config model;
	struct metric_config metrics;
	const char *algorithm = options_text(s->opts, "algorithm");
	struct st_err err = { 0 };
	int ret = config_load_both(&model, &metrics, options_text(s->opts, "config"), &err);

	if (ret < 0) {
		service_log("error", "config", "reason=\"%s\"", err.text);
		model_config_fini(&model);
		return ret;
	}
	if (model.unknown[0])
		service_log("warn", "config", "unknown_keys=\"%s\"", model.unknown);
	if (algorithm)
		model.failslow.algorithm = algorithm;
	model_config_fini(&s->config);
	s->config = model;
	s->metrics = metrics;
	return 0;
}

static const char *input_of(const struct service *s)
{
	const char *given = options_text(s->opts, "input");

	if (given)
		return given;
	if (s->config.root_path && access(s->config.root_path, F_OK) == 0)
		return s->config.root_path;
	return model_config_input(s->config.training_log);
}

static bool is_documented(const struct model_config *config)
{
	return config->failslow.algorithm && !strcmp(config->failslow.algorithm, "documented");
}

static double interval_of(const struct service *s)
{
	if (options_given(s->opts, "interval"))
		return (double)options_u64(s->opts, "interval", 0) / 1e9;
	return is_documented(&s->config) ? s->config.failslow.fail_slow_span_mins * 60 : 10;
}

/* ---- what follows a finding ----------------------------------------------------------------------------------------- */

static void hook_reap(struct service *s)
{
	int status;

	if (!s->hook)
		return;
	if (waitpid(s->hook, &status, WNOHANG) == 0) {
		if (time(NULL) - s->hook_since < HOOK_S)
			return;
		service_log("warn", "on_finding", "reason=\"still running after %d s, killed\"", HOOK_S);
		kill(-s->hook, SIGKILL);
		waitpid(s->hook, &status, 0);
	} else if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		service_log("warn", "on_finding", "status=%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	}
	s->hook = 0;
}

/* The configured command through the shell, the result file as its first argument; in a process group of its own */
static void hook_run(struct service *s, const char *path)
{
	char *argv[] = { "sh", "-c", s->config.on_finding, "systrace-failslow", (char *)path, NULL };
	posix_spawnattr_t attr;
	sigset_t none;
	int ret;

	hook_reap(s);
	if (!s->config.on_finding)
		return;
	if (s->hook) {
		service_log("warn", "on_finding", "reason=\"the one before still runs\" result=\"%s\"", path);
		return;
	}
	sigemptyset(&none);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	ret = posix_spawn(&s->hook, "/bin/sh", NULL, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	s->hook_since = time(NULL);
	if (ret) {
		s->hook = 0;
		service_log("warn", "on_finding", "reason=\"%s\"", strerror(ret));
	}
}

static int put(struct service *s, const char *configured, const char *stem, const char *text, bool finding)
{
	const char *dir = options_text(s->opts, "output");
	char path[PATH_MAX];
	struct st_err err = { 0 };
	bool fallback;

	if (result_write(dir ? dir : configured, stem, text, path, sizeof(path), &fallback, &err) < 0) {
		service_log("error", "result", "reason=\"%s\"", err.text);
		return -EIO;
	}
	if (fallback)
		service_log("warn", "result", "reason=\"%s is not writable\"", dir ? dir : configured);
	service_log(finding ? "warn" : "info", "result", "file=\"%s\"", path);
	snprintf(s->state.last_result, sizeof(s->state.last_result), "%s", path);
	s->state.findings += finding;
	if (finding)
		hook_run(s, path);
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Is this what was written last? A fault that lasts is one finding until it ends. */
static bool is_news(const struct service *s, const struct failslow_result *now)
{
	return !s->judged || now->type != s->type ||
	       (now->type == FAILSLOW_SLOW && (now->onset_step != s->onset || now->recovered != s->recovered));
}

static int report_steps(struct service *s, struct diagnosis *d, int64_t begin_ms)
{
	char stem[64], *text;
	struct st_err err = { 0 };
	int ret;

	snprintf(stem, sizeof(stem), "fail_slow_perception_result_%s", failslow_type_word(d->steps.type));
	text = failslow_json(&d->steps, s->config.failslow.algorithm, begin_ms, now_ms(), &err);
	if (!text) {
		service_log("error", "result", "reason=\"%s\"", err.text);
		return -ENOMEM;
	}
	ret = put(s, result_dir_of(s->config.fail_slow_perception_path, "/etc/systrace/result/fail_slow"), stem, text,
		  d->steps.type != FAILSLOW_NORMAL);
	free(text);
	if (ret < 0)
		return ret; /* written again with the next pass */
	s->judged = true;
	s->type = d->steps.type;
	s->onset = d->steps.onset_step;
	s->recovered = d->steps.recovered;
	return 0;
}

/* Was this rank and kind reported within look_back? If not it is now. */
static bool is_suppressed(struct service *s, const struct loc_finding *f)
{
	time_t now = time(NULL);
	size_t i;

	for (i = 0; i < s->alarms_count; i++) {
		struct alarm *a = &s->alarms[i];

		if (a->rank != f->rank || a->kind != f->kind)
			continue;
		if (now - a->at < (time_t)s->config.look_back * 60)
			return true;
		a->at = now;
		return false;
	}
	if (s->alarms_count < ALARMS_MAX)
		s->alarms[s->alarms_count++] = (struct alarm){ f->rank, f->kind, now };
	return false;
}

static int report_ranks(struct service *s, struct diagnosis *d, int64_t begin_ms)
{
	struct st_err err = { 0 };
	bool news = (s->opts && options_given(s->opts, "once")) || auto_collect_done(&s->collect);
	char *text;
	size_t i;
	int ret;

	for (i = 0; i < d->ranks.findings_count; i++)
		news |= !is_suppressed(s, &d->ranks.findings[i]);
	if (!news)
		return 0;
	hang_stacks_ask(d, s->state.input);
	text = localize_json(d->loc, &d->ranks, d->records->session, &s->config, &err);
	if (!text) {
		service_log("error", "result", "reason=\"%s\"", err.text);
		return -ENOMEM;
	}
	ret = put(s,
		  s->config.slow_node_detection_path ? s->config.slow_node_detection_path
						     : "/etc/systrace/result/slow_node",
		  "slow_node_result", text, d->ranks.findings_count > 0);
	free(text);
	if (!ret && diagnose_files(d, &err) < 0)
		service_log("warn", "files", "reason=\"%s\"", err.text);
	if (s->config.auto_collect && !options_given(s->opts, "once"))
		auto_collect_start(&s->collect, &d->ranks);
	return ret;
}

/* ---- one pass ------------------------------------------------------------------------------------------------------- */

/* A job that is over does not hang, and recorded data end where they end */
static int64_t watched_until(const struct service *s, const struct records *records, const char *input)
{
	const char *run = records->count ? ev_text(records->session, records->files[0].run) : "";

	if (records->capture_end_ns || options_given(s->opts, "once") || job_is_over(input, run))
		return 0;
	return now_ms() * 1000000;
}

/* Jobs' files are read with their user's rights, results are root's to write. */
static int with_roots_rights(int (*report)(struct service *s, struct diagnosis *d, int64_t begin_ms), struct service *s,
			     struct diagnosis *d, int64_t begin_ms)
{
	int ret, back;

	become_root();
	ret = report(s, d, begin_ms);
	back = become_borrow_again();
	return ret < 0 ? ret : back < 0 ? back : ret;
}

static int judge(struct service *s, struct diagnosis *d, const char *input)
{
	int64_t begin_ms = now_ms();
	struct st_err err = { 0 };
	int ret, early;

	if (!d->log) {
		become_root(); /* whether a container's process lives only root can see */
		d->until_ns = watched_until(s, d->records, input);
		become_borrow_again();
	}
	ret = diagnose_steps(d, &err);
	if (ret < 0)
		goto out;
	early = diagnose_early_hang(d, &err);
	if (early < 0) {
		ret = early;
		goto out;
	}
	s->state.steps = d->judged ? d->steps.steps : d->fed.steps;
	snprintf(s->state.verdict, sizeof(s->state.verdict), "%s",
		 d->judged ? failslow_type_word(d->steps.type) : "waiting");
	if (d->judged && is_news(s, &d->steps))
		ret = with_roots_rights(report_steps, s, d, begin_ms);
	/* without its own window the search follows a finding; with one it is made whenever there are records */
	if (!ret && !d->log && d->records->count &&
	    (s->config.with_fail_slow == 0 || (d->judged && d->steps.type != FAILSLOW_NORMAL && !d->steps.recovered) ||
	     (d->judged && d->steps.type != FAILSLOW_NORMAL && options_given(s->opts, "once")))) {
		ret = early ? 0 : diagnose_ranks(d, &err);
		if (!ret && d->ranks.verdict != LOC_NO_DATA)
			ret = with_roots_rights(report_ranks, s, d, begin_ms);
	}
out:
	if (ret < 0 && err.text[0])
		service_log("error", "pass", "reason=\"%s\"", err.text);
	return ret;
}

static double cpu_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Read what is there and judge it. Return: 0 or -errno, said in the log. */
static int pass(struct service *s)
{
	struct model_config config = s->config;
	struct records records = { .session = s->session, .cache = s->cache, .note = quiet, .note_arg = s };
	struct diagnosis d = { .config = &config, .metrics = &s->metrics, .records = &records };
	const char *input = input_of(s);
	struct st_err err = { 0 };
	double cpu = cpu_seconds();
	struct stat st;
	int ret = -ENOENT;

	/* the service searches where FailSlow found something, unless the file says otherwise */
	config.with_fail_slow = config.with_fail_slow < 0 ? 1 : config.with_fail_slow;
	if (!input || !records.session || !records.cache) {
		service_log("error", "pass", "reason=\"%s\"", input ? "out of memory" : "no input: give --input DIR");
		goto out;
	}
	snprintf(s->state.input, sizeof(s->state.input), "%s", input);
	ret = become_borrow(input, &err);
	if (ret < 0) {
		service_log("error", "pass", "reason=\"%s\"", err.text);
		goto out;
	}
	if (stat(input, &st) == 0 && S_ISREG(st.st_mode) && failslow_is_log(input)) {
		d.log = input;
		ret = judge(s, &d, input);
	} else {
		ret = records_find(&records, input, options_text(s->opts, "run"), &err);
		if (ret < 0)
			service_log("error", "pass", "reason=\"%s\"", err.text);
		else
			ret = judge(s, &d, input);
	}
out:
	become_root();
	diagnosis_fini(&d);
	records_fini(&records);
	cpu = cpu_seconds() - cpu;
	s->state.passes++;
	s->state.cpu_s += cpu;
	s->state.last_pass_unix = time(NULL);
	service_log(ret < 0 ? "warn" : "info", "pass",
		    "number=%" PRIu64 " verdict=%s steps=%" PRIu64 " read_bytes=%" PRIu64 " cpu_ms=%.1f",
		    s->state.passes, s->state.verdict[0] ? s->state.verdict : "waiting", s->state.steps,
		    s->cache ? steps_cache_bytes(s->cache) : 0, cpu * 1e3);
	return ret;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------- */

/* Wait for a signal. Return: its number, 0 = the time is over. */
static int wait_for(const sigset_t *signals, double seconds)
{
	struct timespec left = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
	int number = sigtimedwait(signals, NULL, &left);

	return number > 0 ? number : 0;
}

/* Until the next pass; a reload comes at once. Return: false = stop. */
static bool rest(struct service *s, const sigset_t *signals, double pause_s)
{
	double end = (double)now_ms() / 1e3 + pause_s;
	int number;

	for (;;) {
		double left = end - (double)now_ms() / 1e3;

		if (left <= 0)
			return true;
		number = wait_for(signals, left < 5 ? left : 5);
		hook_reap(s);
		if (!number && auto_collect_poll(&s->collect))
			return true;
		if (number == SIGTERM || number == SIGINT)
			return false;
		if (number != SIGHUP)
			continue;
		if (load_config(s) == 0)
			service_log("info", "reload", "from=\"%s\"",
				    s->config.loaded_from ? s->config.loaded_from : "defaults");
		return true;
	}
}

static int watch(struct service *s)
{
	sigset_t signals;
	double before = 0, pause_s;
	bool go_on = true;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	service_log("info", "start", "pid=%d", (int)getpid());
	while (go_on) {
		pass(s);
		if (service_put(&s->state) < 0 && s->state.passes == 1)
			service_log("warn", "status", "reason=\"the status file cannot be written\"");
		pause_s = interval_of(s);
		if (SHARE_OF_CORE * (s->state.cpu_s - before) > pause_s)
			pause_s = SHARE_OF_CORE * (s->state.cpu_s - before);
		before = s->state.cpu_s;
		go_on = rest(s, &signals, pause_s);
	}
	if (s->hook) {
		kill(-s->hook, SIGKILL);
		waitpid(s->hook, NULL, 0);
	}
	auto_collect_stop(&s->collect);
	service_gone();
	service_log("info", "stop", "passes=%" PRIu64, s->state.passes);
	return CMD_OK;
}

static int once(struct service *s)
{
	int ret = pass(s);

	while (s->hook) {
		wait_for(&(sigset_t){ 0 }, 0.05);
		hook_reap(s);
	}
	if (ret < 0)
		return CMD_ERROR;
	return s->judged ? CMD_OK : cmd_nothing("no verdict: %" PRIu64 " steps in %s", s->state.steps, s->state.input);
}

static int run(const struct options *opts)
{
	static struct service s;
	int status;

	if (options_given(opts, "status"))
		return service_show(opts->json) ? CMD_OK : CMD_NOTHING;
	s = (struct service){ .opts = opts, .session = ev_session_new(), .cache = steps_cache_new() };
	if (load_config(&s) < 0)
		status = CMD_ERROR;
	else
		status = options_given(opts, "once") ? once(&s) : watch(&s);
	steps_cache_free(s.cache);
	ev_session_free(s.session);
	model_config_fini(&s.config);
	return status;
}

static const struct command service = {
	.name = "systrace-failslow",
	.summary = "watch a job's steps; when they become slow or stop, find the rank",
	.usage = "[--input DIR|FILE] [--output DIR] [--config FILE|DIR] [--once] [--status]",
	.about =
		"The service of the user guide: a verdict at once, then one result file per change. SIGHUP reads the configuration\n"
		"again, SIGTERM ends it. on_finding of the configuration is a command that gets each finding's file as $1;\n"
		"auto_collect switches the layers that could tell the cause on for ten seconds each, and the result is written again.\n"
		"Exit status with --once: 0 with a verdict, 3 without data.\n",
	.examples = "  systrace-failslow --input /home/sysTrace            # watch the jobs that write there\n"
		    "  systrace-failslow --once -i /home/sysTrace -o out   # one verdict\n"
		    "  systrace-failslow --status                          # how does it do?\n",
	.options = options,
	.run = run,
};

int main(int argc, char **argv)
{
	return command_main(&service, "", argc - 1, argv + 1);
}
