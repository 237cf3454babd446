/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Result files, JSON and words (result.h). Documented fields come first and keep their names and forms; what is ours is
 * only added behind them.
 */
#include "analyze/result.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

const char *failslow_type_word(enum failslow_type type)
{
	static const char *const words[] = { "normal", "failSlow", "hang" };

	return words[type];
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static int make_dirs(const char *dir)
{
	char part[PATH_MAX];
	char *at;

	if (snprintf(part, sizeof(part), "%s", dir) >= (int)sizeof(part))
		return -ENAMETOOLONG;
	for (at = part + 1; *at; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return -errno;
		*at = '/';
	}
	if (mkdir(part, 0755) < 0 && errno != EEXIST)
		return -errno;
	return access(part, W_OK | X_OK) < 0 ? -errno : 0;
}

const char *result_dir_of(const char *path, const char *otherwise)
{
	static char dir[PATH_MAX];
	size_t length;
	char *slash;

	snprintf(dir, sizeof(dir), "%s", path ? path : otherwise);
	length = strlen(dir);
	if (length < 5 || strcmp(dir + length - 5, ".json"))
		return dir;
	slash = strrchr(dir, '/');
	if (!slash)
		return ".";
	slash[slash == dir] = '\0';
	return dir;
}

int result_dir_new(const char *dir, struct st_err *err)
{
	int ret = make_dirs(dir);

	return ret < 0 ? err_set(err, ret, "cannot write into %s: %s", dir, strerror(-ret)) : 0;
}

static int fallback_dir(char *dir, size_t room)
{
	const char *state = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");
	int length;

	if (state && *state)
		length = snprintf(dir, room, "%s/sysTrace/result", state);
	else
		length = snprintf(dir, room, "%s/.local/state/sysTrace/result", home && *home ? home : "/tmp");
	return length >= (int)room ? -ENAMETOOLONG : make_dirs(dir);
}

static int write_all(int fd, const char *text)
{
	size_t left = strlen(text);

	while (left) {
		ssize_t n = write(fd, text, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		left -= (size_t)n;
	}
	return 0;
}

static int write_file(const char *path, const char *text)
{
	char part[PATH_MAX];
	int fd, ret;

	if (snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part))
		return -ENAMETOOLONG;
	unlink(part); /* left by a killed run, or a link that somebody put where this name was to be expected */
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	ret = write_all(fd, text);
	if (close(fd) < 0 && !ret)
		ret = -errno;
	if (!ret && rename(part, path) < 0)
		ret = -errno;
	if (ret < 0)
		unlink(part);
	return ret;
}

int result_write(const char *dir, const char *stem, const char *text, char *path, size_t path_room, bool *fallback,
		 struct st_err *err)
{
	int64_t when = (int64_t)time(NULL);
	char other[PATH_MAX];
	int ret = dir && *dir ? make_dirs(dir) : -ENOENT;

	*fallback = ret < 0;
	if (ret < 0) {
		ret = fallback_dir(other, sizeof(other));
		if (ret < 0)
			return err_set(err, ret, "cannot write into %s: %s", other, strerror(-ret));
		dir = other;
	}
	/* names have whole seconds: a second result of one second gets the next free one, and none is lost */
	do {
		if (snprintf(path, path_room, "%s/%s_%" PRId64 ".json", dir, stem, when++) >= (int)path_room)
			return err_set(err, -ENAMETOOLONG, "%s: the name is too long", dir);
	} while (access(path, F_OK) == 0);
	ret = write_file(path, text);
	return ret < 0 ? err_set(err, ret, "cannot write %s: %s", path, strerror(-ret)) : 0;
}

static void local_time(int64_t us, char *text, size_t room)
{
	time_t seconds = (time_t)(us / 1000000);
	struct tm tm;

	if (!localtime_r(&seconds, &tm) || !strftime(text, room, "%Y-%m-%d %H:%M:%S", &tm))
		snprintf(text, room, "%" PRId64, us);
}

static const char *ip_of(const struct localize *loc, const struct ev_session *session, int32_t rank)
{
	uint32_t host, ip;
	int32_t other;
	size_t i;

	for (i = 0; localize_rank_at(loc, i, &other, &host, &ip); i++)
		if (other == rank)
			return ev_text(session, ip);
	return "";
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_JANSSON

static json_t *rounded(double value, double unit)
{
	return json_real(round(value / unit) * unit);
}

/* `2566.6ms`, as the guide prints times; at most three decimals, without zeros at the end */
static json_t *ms_text(double ms)
{
	char text[64];
	size_t length;

	snprintf(text, sizeof(text), "%.3f", ms);
	length = strlen(text);
	while (length && text[length - 1] == '0')
		length--;
	if (length && text[length - 1] == '.')
		length--;
	snprintf(text + length, sizeof(text) - length, "ms");
	return json_string(text);
}

static char *dump(json_t *root, struct st_err *err)
{
	char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10)) : NULL;
	char *line = NULL;

	json_decref(root);
	if (text && asprintf(&line, "%s\n", text) < 0)
		line = NULL;
	free(text);
	if (!line)
		err_set(err, -ENOMEM, "out of memory");
	return line;
}

static json_t *anomaly_json(const struct failslow_anomaly *a)
{
	char when[64];

	local_time(a->at_us, when, sizeof(when));
	return json_pack("{s:I, s:s, s:o, s:o, s:o, s:I}", "training_step", (json_int_t)a->step, "anomaly_time", when,
			 "anomaly_degree", rounded(a->degree, 0.001), "anomaly_training_time", ms_text(a->ms),
			 "normal_training_time", ms_text(a->normal_ms), "detected_step", (json_int_t)a->detected_step);
}

char *failslow_json(const struct failslow_result *result, const char *algorithm, int64_t begin_ms, int64_t end_ms,
		    struct st_err *err)
{
	bool found = result->type != FAILSLOW_NORMAL;
	json_t *list = json_array();
	json_t *root;
	size_t i;

	for (i = 0; i < result->anomalies_count; i++)
		json_array_append_new(list, anomaly_json(&result->anomalies[i]));
	root = json_pack("{s:b, s:I, s:o, s:s, s:I, s:I, s:s, s:I}", "is_anomaly", found, "anomaly_count_times",
			 (json_int_t)result->count, "anomaly_info", list, "anomaly_type",
			 failslow_type_word(result->type), "start_time", (json_int_t)begin_ms, "end_time",
			 (json_int_t)end_ms, "algorithm", algorithm, "steps", (json_int_t)result->steps);
	if (root && found) {
		json_object_set_new(root, "onset_step", json_integer(result->onset_step));
		json_object_set_new(root, "detected_step", json_integer(result->detected_step));
		json_object_set_new(root, "last_step", json_integer(result->last_step));
		json_object_set_new(root, "slowdown", rounded(result->slowdown, 0.001));
		json_object_set_new(root, "lost_seconds", rounded(result->lost_ms / 1000, 0.001));
		json_object_set_new(root, "recovered", json_boolean(result->recovered));
	}
	return dump(root, err);
}

static const char *kpi_of(const struct loc_finding *f, const struct ev_session *session, char *room, size_t size)
{
	const char *op = f->op ? ev_text(session, f->op) : "";

	if (f->kpi)
		return ev_text(session, f->kpi);
	switch (f->kind) {
	case LOC_DATALOADER:
		return "Dataloader";
	case LOC_CKPT:
		return "SaveCkpt";
	case LOC_HANG:
		return "Hang";
	case LOC_LAUNCH:
		snprintf(room, size, "%s_launch", op);
		return room;
	default:
		return op;
	}
}

/* All ranks of the group but this one; without a group all ranks */
static json_t *peers_json(const struct localize *loc, int32_t rank, uint32_t group)
{
	json_t *list = json_array();
	const int32_t *ranks;
	size_t count = localize_peers(loc, group, &ranks), i;
	uint32_t host, ip;
	int32_t other;

	for (i = 0; i < count; i++)
		if (ranks[i] != rank)
			json_array_append_new(list, json_integer(ranks[i]));
	for (i = 0; !count && localize_rank_at(loc, i, &other, &host, &ip); i++)
		if (other != rank)
			json_array_append_new(list, json_integer(other));
	return list;
}

/** struct writing - what the parts of one result share */
struct writing {
	const struct localize *loc;
	const struct loc_result *result;
	const struct ev_session *session;
	const struct model_config *config;
};

/* [{"timestamp": Unix ms, "value": ms}, ...], empty unless record_kpi */
static json_t *kpi_json(const struct writing *w, int32_t rank, enum loc_kind kind)
{
	struct loc_point *points = NULL;
	json_t *list = json_array();
	size_t count = w->config->record_kpi ? localize_series(w->loc, rank, kind, &points) : 0, i;

	for (i = 0; i < count; i++)
		json_array_append_new(list,
				      json_pack("{s:I, s:o}", "timestamp", (json_int_t)(points[i].at_ns / 1000000),
						"value", rounded(points[i].value, 0.001)));
	free(points);
	return list;
}

static json_t *device_json(const struct writing *w, int32_t rank, const struct loc_finding *like, json_t *peers)
{
	const char *ip = ip_of(w->loc, w->session, rank), *table = model_config_ip(w->config, rank);
	char id[16], device[24], room[256];

	snprintf(id, sizeof(id), "%d", rank);
	snprintf(device, sizeof(device), "rank_%d", rank);
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:[]}", "objectId", id, "serverIp",
			 *ip || !table ? ip : table, "deviceInfo", device, "kpiId",
			 like ? kpi_of(like, w->session, room, sizeof(room)) : "", "methodType",
			 like && like->in_time ? "TIME" : "SPACE", "kpiData",
			 kpi_json(w, rank, like ? like->kind : LOC_COMPUTE), "relaIds", peers, "omittedDevices");
}

/* What explains it; a cause only where one source explains most of the loss, else what to switch on */
static void put_sources(json_t *evidence, const struct loc_finding *f, const struct ev_session *session)
{
	json_t *list = json_array();
	size_t i;

	if (!f->judged) {
		json_decref(list);
		return;
	}
	for (i = 0; i < f->sources_count; i++) {
		json_t *source = json_pack("{s:s, s:o, s:o}", "source", f->sources[i].name, "seconds_per_step",
					   rounded(f->sources[i].ms / 1000, 0.0001), "share",
					   rounded(f->sources[i].share, 0.001));

		if (source && f->sources[i].detail)
			json_object_set_new(source, "detail", json_string(ev_text(session, f->sources[i].detail)));
		json_array_append_new(list, source);
	}
	json_object_set_new(evidence, "sources", list);
	json_object_set_new(evidence, "cause", json_string(f->cause ? f->cause : "cannot tell"));
	if (f->cause_detail)
		json_object_set_new(evidence, "cause_detail", json_string(ev_text(session, f->cause_detail)));
	if (!f->cause && f->next)
		json_object_set_new(evidence, "next", json_string(f->next));
}

/* Where a rank that hangs is: its last stage, and what its process answered */
static void put_whereabouts(json_t *evidence, const struct loc_finding *f, const struct ev_session *session)
{
	json_t *stacks = f->stacks.json ? json_loads(ev_text(session, f->stacks.json), 0, NULL) : NULL;

	if (f->last_stage)
		json_object_set_new(evidence, "last_stage",
				    json_pack("{s:s, s:I, s:I}", "name", ev_text(session, f->last_stage), "step",
					      (json_int_t)f->last_stage_step, "ended",
					      (json_int_t)(f->last_stage_ns / 1000000)));
	if (f->stacks.pid)
		json_object_set_new(evidence, "pid", json_integer(f->stacks.pid));
	if (stacks)
		json_object_set_new(evidence, "stacks", stacks);
	else if (f->stacks.json)
		json_object_set_new(evidence, "no_stacks", json_string("the answer of its process is no JSON"));
	else if (f->stacks.note)
		json_object_set_new(evidence, "no_stacks", json_string(ev_text(session, f->stacks.note)));
}

static json_t *finding_json(const struct writing *w, const struct loc_finding *f)
{
	json_t *entry = device_json(w, f->rank, f, peers_json(w->loc, f->rank, f->group));
	json_t *evidence = json_pack("{s:s, s:o, s:o}", "kind", loc_kind_word(f->kind), "lost_seconds_per_step",
				     rounded(f->lost_ms / 1000, 0.0001), "share_of_step", rounded(f->share, 0.001));

	if (!entry || !evidence) {
		json_decref(entry);
		json_decref(evidence);
		return NULL;
	}
	if (f->kind == LOC_HANG && f->last_op) {
		json_object_set_new(evidence, "last_operation", json_string(ev_text(w->session, f->last_op)));
		json_object_set_new(evidence, "last_operation_id", json_integer((json_int_t)f->last_serial));
		json_object_set_new(evidence, "waiting_ranks", json_integer(f->waiting));
	}
	if (f->kind == LOC_HANG)
		put_whereabouts(evidence, f, w->session);
	if (f->level == 1) {
		json_object_set_new(evidence, "came_last_share", rounded(f->last_share, 0.001));
		json_object_set_new(evidence, "waited", peers_json(w->loc, f->rank, f->group));
	}
	if (f->level == 2)
		json_object_set_new(evidence, "whole_group", json_true());
	json_object_set_new(entry, "onset_step", json_integer(f->onset_step));
	json_object_set_new(entry, "detected_step", json_integer(f->detected_step));
	json_object_set_new(entry, "last_step", json_integer(f->last_step));
	json_object_set_new(entry, "slowdown", rounded(f->share < 1 ? 1 / (1 - f->share) : 1, 0.001));
	if (f->kind != LOC_HANG)
		json_object_set_new(entry, "what_if",
				    json_pack("{s:o, s:o, s:o}", "saved_seconds", rounded(f->saved_ms / 1000, 0.001),
					      "saved_share", rounded(f->saved_share, 0.0001), "cost_seconds",
					      rounded(f->cost_ms / 1000, 0.001)));
	put_sources(evidence, f, w->session);
	json_object_set_new(entry, "evidence", evidence);
	return entry;
}

static bool is_accused(const struct loc_result *result, int32_t rank)
{
	size_t i;

	for (i = 0; i < result->findings_count; i++)
		if (result->findings[i].rank == rank)
			return true;
	return false;
}

static json_t *normal_json(const struct writing *w)
{
	const struct loc_finding *like = w->result->findings_count ? w->result->findings : NULL;
	size_t most = (size_t)w->config->max_num_normal_results, i;
	json_t *list = json_array();
	uint32_t host, ip;
	int32_t rank;

	for (i = 0; localize_rank_at(w->loc, i, &rank, &host, &ip) && json_array_size(list) < most; i++)
		if (!is_accused(w->result, rank))
			json_array_append_new(list, device_json(w, rank, like, json_array()));
	return list;
}

char *localize_json(const struct localize *loc, const struct loc_result *result, const struct ev_session *session,
		    const struct model_config *config, struct st_err *err)
{
	const struct writing w = { loc, result, session, config };
	static const char *const verdicts[] = { "no data", "healthy", "found", "cannot tell" };
	bool compute = false, network = false, storage = false;
	json_t *abnormal = json_array();
	int64_t when = result->end_ns;
	size_t i;

	for (i = 0; i < result->findings_count; i++) {
		const struct loc_finding *f = &result->findings[i];

		compute |= f->kind == LOC_COMPUTE || f->kind == LOC_LAUNCH || f->kind == LOC_HANG;
		network |= f->kind == LOC_COMM;
		storage |= f->kind == LOC_DATALOADER || f->kind == LOC_CKPT;
		if (!i || f->onset_ns < when)
			when = f->onset_ns;
		json_array_append_new(abnormal, finding_json(&w, f));
	}
	return dump(json_pack("{s:i, s:b, s:b, s:b, s:o, s:o, s:s, s:I, s:s, s:I, s:I, s:I, s:o}", "resultCode",
			      result->findings_count ? 201 : 200, "compute", compute, "network", network, "storage",
			      storage, "abnormalDetail", abnormal, "normalDetail", normal_json(&w), "errorMsg",
			      result->reason, "timestamp", (json_int_t)(when / 1000000000), "verdict",
			      verdicts[result->verdict], "ranks", (json_int_t)result->ranks, "first_step",
			      (json_int_t)result->first_step, "last_step", (json_int_t)result->last_step,
			      "step_seconds", rounded(result->step_ms / 1000, 0.0001)),
		    err);
}

#else

char *failslow_json(const struct failslow_result *result, const char *algorithm, int64_t begin_ms, int64_t end_ms,
		    struct st_err *err)
{
	err_set(err, -ENOTSUP, "this build has no jansson and cannot write JSON results");
	return NULL;
}

char *localize_json(const struct localize *loc, const struct loc_result *result, const struct ev_session *session,
		    const struct model_config *config, struct st_err *err)
{
	err_set(err, -ENOTSUP, "this build has no jansson and cannot write JSON results");
	return NULL;
}

#endif

/* ---- words ---------------------------------------------------------------------------------------------------------- */

void failslow_words(FILE *out, const struct failslow_result *result)
{
	char when[64];

	switch (result->type) {
	case FAILSLOW_NORMAL:
		fprintf(out, "The job ran evenly: %" PRIu64 " steps, normally %.1f ms each, none of them slow.\n",
			result->steps, result->normal_ms);
		return;
	case FAILSLOW_HANG:
		local_time(result->anomalies[0].at_us, when, sizeof(when));
		fprintf(out,
			"The job hangs: step %u did not end. The last finished step ended at %s, %.1f minutes before the "
			"end of the data; a step normally takes %.1f ms.\n",
			result->last_step, when, result->silent_ms / 60e3, result->anomalies[0].normal_ms);
		return;
	case FAILSLOW_SLOW:
		break;
	}
	local_time(result->onset_us, when, sizeof(when));
	fprintf(out, "The job became slow at step %u (%s%s): slow steps took %.2f times the normal time.\n",
		result->onset_step, when, result->count > result->anomalies_count ? " or earlier" : "",
		result->slowdown);
	fprintf(out, "Slow steps: %" PRIu64 " of %" PRIu64 ", %.1f seconds lost; noticed with step %u; %s.\n",
		result->count, result->steps, result->lost_ms / 1000, result->detected_step,
		result->recovered ? "the last steps were normal again" : "still slow at the end");
}

static void no_cause_words(FILE *out, const struct loc_finding *f)
{
	if (f->sources_count)
		fprintf(out, "  Cannot tell why; %.0f %% of it lies in %s", 100 * f->sources[0].share,
			f->sources[0].name);
	else
		fprintf(out, "  Nothing recorded tells why");
	fprintf(out, "; %s%s\n", f->next ? "next: " : "all layers that could tell were recorded",
		f->next ? f->next : "");
}

static void hang_words(FILE *out, const struct loc_finding *f, const struct ev_session *session)
{
	char when[64];

	fprintf(out, " in step %u: others wait for it, and it waits for nobody.", f->onset_step);
	if (f->last_op)
		fprintf(out, " Its last operation was %s (number %" PRIu64 "); %u ranks wait in a later one.",
			ev_text(session, f->last_op), f->last_serial, f->waiting);
	if (f->last_stage) {
		local_time(f->last_stage_ns / 1000, when, sizeof(when));
		fprintf(out, " The last stage that it finished was %s, at %s.", ev_text(session, f->last_stage), when);
	}
	fputc('\n', out);
}

static void finding_words(FILE *out, const struct localize *loc, const struct loc_finding *f,
			  const struct ev_session *session)
{
	static const char *const what[LOC_KINDS] = {
		[LOC_COMPUTE] = "computes slowly",	     [LOC_LAUNCH] = "launches its operators late",
		[LOC_COMM] = "has a slow network",	     [LOC_DATALOADER] = "waits for its data loader",
		[LOC_CKPT] = "saves its checkpoints slowly", [LOC_HANG] = "hangs",
	};
	const char *ip = ip_of(loc, session, f->rank);
	const int32_t *peers;
	size_t count = localize_peers(loc, f->group, &peers);

	fprintf(out, "Rank %d%s%s %s", f->rank, *ip ? " on " : "", ip, what[f->kind]);
	if (f->kind == LOC_HANG) {
		hang_words(out, f, session);
		return;
	}
	fprintf(out, " from step %u to step %u: %.1f ms more per step than its peers, %.1f %% of a step.",
		f->onset_step, f->last_step, f->lost_ms, 100 * f->share);
	if (f->level == 1 && count > 1)
		fprintf(out, " It came last in %.0f %% of these steps, and %zu ranks waited for it.",
			100 * f->last_share, count - 1);
	if (f->level == 2)
		fprintf(out, " Its whole group of %zu is slow.", count);
	if (f->kind == LOC_COMM)
		fprintf(out, " The operation is %s.", ev_text(session, f->op));
	if (f->saved_ms > 0)
		fprintf(out, " Without it the job would have been %.1f s (%.1f %%) faster in these steps.",
			f->saved_ms / 1000, 100 * f->saved_share);
	else if (f->cost_ms > 0)
		fprintf(out, " It alone would cost %.1f s; another finding hides that.", f->cost_ms / 1000);
	fputc('\n', out);
	if (f->cause)
		fprintf(out, "  Cause: %s%s%s%s, %.0f %% of what is lost.\n", f->cause, f->cause_detail ? " (" : "",
			f->cause_detail ? ev_text(session, f->cause_detail) : "", f->cause_detail ? ")" : "",
			100 * fmin(1, f->cause_ms / f->lost_ms));
	else if (f->judged)
		no_cause_words(out, f);
}

void localize_words(FILE *out, const struct localize *loc, const struct loc_result *result,
		    const struct ev_session *session)
{
	size_t i;

	switch (result->verdict) {
	case LOC_NO_DATA:
		fprintf(out, "Nothing to compare: %s.\n", result->reason);
		return;
	case LOC_CANNOT_TELL:
		fprintf(out, "Cannot tell which rank is slow: %s.\n", result->reason);
		return;
	case LOC_HEALTHY:
		fprintf(out, "No rank is slower than its peers (%zu ranks, steps %u to %u).\n", result->ranks,
			result->first_step, result->last_step);
		break;
	case LOC_FOUND:
		for (i = 0; i < result->findings_count; i++)
			finding_words(out, loc, &result->findings[i], session);
		break;
	}
	if (result->reason[0])
		fprintf(out, "Note: %s.\n", result->reason);
}
