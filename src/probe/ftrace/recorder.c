/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The public calls of systrace/ftrace.h: options are checked, left-overs removed, a back end chosen; at the end its file
 * appears as a whole under its name, with a sidecar that holds clock snapshots and losses. `systrace record`,
 * trace_record.py and programs of users all come through here.
 */
#include "probe/ftrace/backend.h"
#include "probe/ftrace/saved_state.h"
#include "probe/ftrace/sidecar.h"
#include "probe/ftrace/stream.h"
#include "probe/pidmap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_BUFFER_KB 40960u
#define BALLAST_BYTES (16 << 20) /* kept free in the output's directory, so that a full disk can still be saved to */

struct systrace_ftrace {
	struct recording rec;
	const struct backend *backend;
	struct pidmap_thread *pid_map;
	struct sidecar sidecar;
	struct saved_state claim; /* of an instance that the user named */
	char *output, *part, *instance_name;
	int ballast; /* descriptor, -1 = none */
};

static const struct backend *const order_auto[] = { &backend_native, &backend_tracecmd, &backend_text, NULL };
static const struct backend *const order_documented[] = { &backend_tracecmd, &backend_text, NULL };
static const struct backend *const order_native[] = { &backend_native, NULL };
static const struct backend *const order_tracecmd[] = { &backend_tracecmd, NULL };
static const struct backend *const order_text[] = { &backend_text, NULL };

static const struct backend *const *const orders[] = {
	[SYSTRACE_FTRACE_AUTO] = order_auto,	 [SYSTRACE_FTRACE_DOCUMENTED] = order_documented,
	[SYSTRACE_FTRACE_NATIVE] = order_native, [SYSTRACE_FTRACE_TRACE_CMD] = order_tracecmd,
	[SYSTRACE_FTRACE_DEBUGFS] = order_text,
};

/* --- options ------------------------------------------------------------------------------------------------------ */

/* Options of another version of this library: what it does not know is zero. */
static int take_options(struct systrace_ftrace_options *opts, const struct systrace_ftrace_options *from,
			struct st_err *err)
{
	memset(opts, 0, sizeof(*opts));
	if (from) {
		if (from->size < offsetof(struct systrace_ftrace_options, buffer_kb))
			return err_set(err, -EINVAL, "options: size is %zu; set it to sizeof(the structure)",
				       from->size);
		memcpy(opts, from, from->size < sizeof(*opts) ? from->size : sizeof(*opts));
	}
	if (!opts->buffer_kb)
		opts->buffer_kb = DEFAULT_BUFFER_KB;
	if (!opts->groups && !opts->events)
		opts->groups = SYSTRACE_FTRACE_SCHED | SYSTRACE_FTRACE_IRQ;
	if (opts->backend >= sizeof(orders) / sizeof(orders[0]))
		return err_set(err, -EINVAL, "options: there is no back end %" PRIu32, opts->backend);
	if (opts->compress > SYSTRACE_FTRACE_COMPRESS_ZSTD)
		return err_set(err, -EINVAL, "options: there is no compression %" PRIu32, opts->compress);
	return 0;
}

/* --- the output --------------------------------------------------------------------------------------------------- */

static int open_directory(const char *output, int *dir, struct st_err *err)
{
	char *copy = strdup(output);
	const char *name = copy ? dirname(copy) : NULL;
	int ret = 0;

	if (!copy)
		return err_set(err, -ENOMEM, "out of memory");
	*dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*dir < 0)
		ret = err_set(err, -errno, "cannot write %s: directory %s: %s", output, name, strerror(errno));
	free(copy);
	return ret;
}

/* Also finds out before the recording whether the directory can be written to and has some room. */
static int take_ballast(struct systrace_ftrace *rec, struct st_err *err)
{
	rec->ballast = nameless_file(rec->rec.dir);
	if (rec->ballast < 0)
		return err_set(err, rec->ballast, "cannot write %s: %s", rec->output, strerror(-rec->ballast));
	if (fallocate(rec->ballast, 0, 0, BALLAST_BYTES) < 0 && errno == ENOSPC)
		return err_set(err, -ENOSPC, "cannot write %s: less than %d MiB are free there", rec->output,
			       BALLAST_BYTES >> 20);
	return 0;
}

static void drop_ballast(struct systrace_ftrace *rec)
{
	if (rec->ballast >= 0)
		close(rec->ballast);
	rec->ballast = -1;
}

static int set_output(struct systrace_ftrace *rec, const char *output, struct st_err *err)
{
	char *name = strdup(output), *part = NULL;

	if (!name || asprintf(&part, "%s.%d.part", output, (int)getpid()) < 0) {
		free(name);
		return err_set(err, -ENOMEM, "out of memory");
	}
	free(rec->output);
	free(rec->part);
	rec->output = name;
	rec->part = part;
	rec->rec.part = part;
	return 0;
}

int recording_part(const struct recording *rec, struct st_err *err)
{
	int fd;

	unlink(rec->part); /* of a recorder with our pid that was killed */
	fd = open(rec->part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	return fd < 0 ? err_set(err, -errno, "cannot create %s: %s", rec->part, strerror(errno)) : fd;
}

/* --- losses ------------------------------------------------------------------------------------------------------- */

static void say_losses(const struct recording *rec, uint64_t total)
{
	note_say(&rec->note, SYSTRACE_FTRACE_WARNING,
		 "tracefs stats report lost/overwritten events before reset: total_loss_counters=%" PRIu64
		 ". Consider increasing --bf-size",
		 total);
	for (size_t i = 0; i < rec->loss_count; i++) {
		const struct cpu_stats *stats = &rec->losses[i].stats;

		note_say(&rec->note, SYSTRACE_FTRACE_WARNING,
			 "CPU %" PRIu32 ": overrun=%" PRIu64 ", commit overrun=%" PRIu64 ", dropped events=%" PRIu64
			 ", recorded events=%" PRIu64,
			 rec->losses[i].cpu, stats->overrun, stats->commit_overrun, stats->dropped,
			 stats->entries + stats->read);
	}
}

void recording_losses(struct recording *rec, const struct instance *in)
{
	uint64_t total = 0;

	free(rec->losses);
	rec->loss_count = 0;
	rec->losses = calloc(in->cpu_count + 1, sizeof(*rec->losses));
	for (size_t i = 0; i < in->cpu_count; i++) {
		struct cpu_stats stats;

		if (instance_stats(in, in->cpus[i], &stats, NULL, 0) < 0 || !cpu_stats_lost(&stats))
			continue;
		total += cpu_stats_lost(&stats);
		if (rec->losses)
			rec->losses[rec->loss_count++] = (struct cpu_loss){ .cpu = in->cpus[i], .stats = stats };
	}
	if (total)
		say_losses(rec, total);
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static int choose_cpus(struct recording *rec, const char *list, struct st_err *err)
{
	int have = openat(rec->fs.fd, "per_cpu", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret;

	if (have < 0)
		return err_set(err, -errno, "tracefs has no per_cpu: %s", strerror(errno));
	ret = cpus_choose(have, list, &rec->cpus, &rec->cpu_count, &rec->note, err);
	close(have);
	return ret;
}

static int choose_events(struct recording *rec, const struct systrace_ftrace_options *opts, struct st_err *err)
{
	int events = openat(rec->fs.fd, "events", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret;

	if (events < 0)
		return err_set(err, -errno, "tracefs has no events: %s", strerror(errno));
	ret = events_choose(&rec->events, events, opts->groups, opts->events, &rec->note, err);
	close(events);
	return ret;
}

/* Of no back end in particular: a failure here is the user's to mend, another back end would not help. */
static int prepare_output(struct systrace_ftrace *rec, const char *output, struct st_err *err)
{
	int ret = set_output(rec, output ? output : rec->backend->output, err);

	if (ret < 0 || rec->ballast >= 0)
		return ret;
	ret = open_directory(rec->output, &rec->rec.dir, err);
	return ret < 0 ? ret : take_ballast(rec, err);
}

/* In order, until one records. */
static int choose_backend(struct systrace_ftrace *rec, const struct systrace_ftrace_options *opts, struct st_err *err)
{
	const struct backend *const *order = orders[opts->backend];
	int ret = -ENOTSUP;

	for (; *order; order++) {
		rec->backend = *order;
		ret = prepare_output(rec, opts->output, err);
		if (ret < 0)
			return ret;
		ret = rec->backend->check(&rec->rec, err);
		if (ret == 0)
			ret = rec->backend->start(&rec->rec, err);
		if (ret == 0 || !order[1])
			break;
		note_say(&rec->rec.note, SYSTRACE_FTRACE_WARNING, "back end %s does not work here: %s; trying %s",
			 order[0]->name, err->text, order[1]->name);
	}
	if (ret < 0)
		return ret;
	if (opts->instance && rec->backend != &backend_tracecmd && /* that one remembers more */
	    saved_state_claim(&rec->claim, &rec->rec.fs, opts->instance, err) < 0)
		note_say(&rec->rec.note, SYSTRACE_FTRACE_WARNING, "%s; if this recorder is killed instance %s stays",
			 err->text, opts->instance);
	note_say(&rec->rec.note, SYSTRACE_FTRACE_INFO,
		 "recording %zu kinds of events on %zu CPUs, %" PRIu32 " KB of buffer each, back end %s, output %s",
		 rec->rec.events.count, rec->rec.cpu_count, rec->rec.buffer_kb, rec->backend->name, rec->output);
	return 0;
}

static void recording_free(struct systrace_ftrace *rec)
{
	drop_ballast(rec);
	if (rec->rec.dir >= 0)
		close(rec->rec.dir);
	events_free(&rec->rec.events);
	tracefs_close(&rec->rec.fs);
	free(rec->rec.cpus);
	free(rec->rec.losses);
	free(rec->output);
	free(rec->part);
	free(rec->instance_name);
	free(rec);
}

static int start(struct systrace_ftrace *rec, const struct systrace_ftrace_options *from, struct st_err *err)
{
	struct systrace_ftrace_options opts;
	int ret;

	rec->ballast = rec->rec.dir = rec->rec.fs.fd = -1;
	ret = take_options(&opts, from, err);
	if (ret < 0)
		return ret;
	rec->rec.note = (struct note){ .say = opts.log, .ctx = opts.log_ctx };
	rec->rec.buffer_kb = opts.buffer_kb;
	rec->rec.compress = opts.compress;
	if (opts.instance) {
		rec->instance_name = strdup(opts.instance);
		rec->rec.instance_name = rec->instance_name;
		if (!rec->instance_name)
			return err_set(err, -ENOMEM, "out of memory");
	}
	ret = tracefs_open(&rec->rec.fs, opts.tracefs, err);
	if (ret == 0) {
		instance_sweep(&rec->rec.fs, &rec->rec.note);
		saved_state_sweep(&rec->rec.fs, &rec->rec.note);
	}
	if (ret == 0)
		ret = choose_cpus(&rec->rec, opts.cpus, err);
	if (ret == 0)
		ret = choose_events(&rec->rec, &opts, err);
	if (ret == 0 && opts.pid_map) {
		rec->pid_map = pidmap_start(opts.pid_map, opts.pid_map_period_s, err);
		ret = rec->pid_map ? 0 : -errno;
	}
	if (ret < 0)
		return ret;
	sidecar_begin(&rec->sidecar);
	ret = choose_backend(rec, &opts, err);
	if (ret < 0)
		pidmap_stop(rec->pid_map, NULL);
	return ret;
}

static void give_error(const struct st_err *err, char *error, size_t error_bytes)
{
	if (error && error_bytes)
		snprintf(error, error_bytes, "%s", err->text);
}

struct systrace_ftrace *systrace_ftrace_start(const struct systrace_ftrace_options *opts, char *error,
					      size_t error_bytes)
{
	struct systrace_ftrace *rec = calloc(1, sizeof(*rec));
	struct st_err err = { 0 };
	int ret;

	ret = rec ? start(rec, opts, &err) : err_set(&err, -ENOMEM, "out of memory");
	if (ret == 0)
		return rec;
	give_error(&err, error, error_bytes);
	if (rec)
		recording_free(rec);
	errno = -ret;
	return NULL;
}

/* --- status and stop ---------------------------------------------------------------------------------------------- */

/* Callers may know fewer fields than we do. */
static int give_status(const struct systrace_ftrace *rec, struct systrace_ftrace_status *own,
		       struct systrace_ftrace_status *status)
{
	size_t size = status->size;

	if (size < offsetof(struct systrace_ftrace_status, events))
		return -EINVAL;
	own->backend = rec->backend->id;
	snprintf(own->output, sizeof(own->output), "%s", rec->output);
	memcpy(status, own, size < sizeof(*own) ? size : sizeof(*own));
	status->size = size;
	return 0;
}

int systrace_ftrace_status(struct systrace_ftrace *rec, struct systrace_ftrace_status *status)
{
	struct systrace_ftrace_status own = { 0 };

	rec->backend->status(&rec->rec, &own);
	return give_status(rec, &own, status);
}

/* The name of start is kept unless another one is given that can be written to. */
static int change_output(struct systrace_ftrace *rec, const char *output, struct st_err *err)
{
	int dir = -1, ret;

	if (!output)
		return 0;
	ret = open_directory(output, &dir, err);
	if (ret < 0) {
		note_say(&rec->rec.note, SYSTRACE_FTRACE_ERROR, "%s; saving to %s", err->text, rec->output);
		return ret;
	}
	close(dir);
	return set_output(rec, output, err);
}

/* What was recorded is saved even if something failed, as far as it goes. */
static int publish(struct systrace_ftrace *rec, const struct systrace_ftrace_status *own, struct st_err *err)
{
	if (!own->file_bytes) {
		unlink(rec->part);
		return 0;
	}
	if (rename(rec->part, rec->output) < 0)
		return err_set(err, -errno, "cannot rename %s to %s: %s", rec->part, rec->output, strerror(errno));
	note_say(&rec->rec.note, SYSTRACE_FTRACE_INFO, "Trace data saved to %s", rec->output);
	return sidecar_write(&rec->sidecar, &rec->rec, rec->backend, own, rec->output, err);
}

static int stop(struct systrace_ftrace *rec, const char *output, struct systrace_ftrace_status *own, struct st_err *err)
{
	struct st_err later = { 0 };
	int ret, one;

	note_say(&rec->rec.note, SYSTRACE_FTRACE_INFO, "Ending record, cleaning up...");
	ret = change_output(rec, output, err);
	drop_ballast(rec);
	sidecar_end(&rec->sidecar);
	one = rec->backend->stop(&rec->rec, own, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	saved_state_restore(&rec->claim, NULL); /* the instance has gone already */
	one = publish(rec, own, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	one = pidmap_stop(rec->pid_map, ret == 0 ? err : &later);
	ret = ret < 0 ? ret : one;
	note_say(&rec->rec.note, SYSTRACE_FTRACE_INFO, "Cleanup finished");
	return ret;
}

int systrace_ftrace_stop(struct systrace_ftrace *rec, const char *output, struct systrace_ftrace_status *status,
			 char *error, size_t error_bytes)
{
	struct systrace_ftrace_status own = { 0 };
	struct st_err err = { 0 };
	int ret;

	ret = stop(rec, output, &own, &err);
	if (ret < 0)
		give_error(&err, error, error_bytes);
	if (status)
		give_status(rec, &own, status);
	recording_free(rec);
	return ret;
}

int systrace_pid_map_write(const char *path, char *error, size_t error_bytes)
{
	struct pidmap *map = pidmap_new();
	struct st_err err = { 0 };
	int ret;

	ret = map ? pidmap_write(map, path, &err) : err_set(&err, -ENOMEM, "out of memory");
	pidmap_free(map);
	if (ret < 0)
		give_error(&err, error, error_bytes);
	return ret;
}
