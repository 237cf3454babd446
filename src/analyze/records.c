/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Finding the files of a run (records.h). A file's content decides what it is; its first event brings out the origin
 * that says run, host and rank.
 */
#include "analyze/records.h"
#include "trace/profile.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#define MAX_DEPTH 8

void records_note(const struct records *records, const char *format, ...)
{
	char text[1024];
	va_list ap;

	if (!records->note)
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	records->note(records->note_arg, text);
}

uint64_t records_number(const struct event *ev, uint32_t key, uint64_t otherwise)
{
	unsigned i;

	for (i = 0; i < ev->nargs; i++)
		if (ev->args[i].key == key && (ev->args[i].type == EV_ARG_U64 || ev->args[i].type == EV_ARG_I64))
			return ev->args[i].u64;
	return otherwise;
}

uint32_t records_name(const struct event *ev, uint32_t key)
{
	unsigned i;

	for (i = 0; i < ev->nargs; i++)
		if (ev->args[i].key == key && ev->args[i].type == EV_ARG_NAME)
			return ev->args[i].name;
	return 0;
}

int64_t records_wall_ns(const struct ev_reader *reader, const struct event *ev, uint64_t t_ns)
{
	return (int64_t)t_ns + (ev->clock == EV_CLOCK_MONO ? reader->origin.wall_minus_mono_ns : 0);
}

/* ---- one file ------------------------------------------------------------------------------------------------------- */

/* What a reader's file holds; 0 = nothing for the diagnosis */
static unsigned format_of(const struct ev_reader *reader)
{
	const char *format = reader->ops->format;

	if (!strncmp(format, "timeline", 8))
		return RECORD_TIMELINE;
	if (!strcmp(format, "mspti-csv"))
		return RECORD_MARKERS;
	if (!strcmp(format, PROFILE_KINETO))
		return RECORD_TIMELINE | RECORD_MARKERS;
	if (!strcmp(format, PROFILE_JOB))
		return RECORD_JOB;
	return !strncmp(format, "io-", 3) || !strncmp(format, "os-", 3) || !strncmp(format, "gil", 3) ||
			       !strncmp(format, "mutex", 5)
		       ? RECORD_LAYER
		       : 0;
}

static struct record_file *one_more(struct record_file **files, size_t *count)
{
	struct record_file *more = *files;

	if (!(*count & (*count - 1))) {
		more = reallocarray(more, *count ? 2 * *count : 1, sizeof(*more));
		if (!more)
			return NULL;
		*files = more;
	}
	return &more[*count];
}

static int add_file(struct records *records, const char *path, struct ev_reader *reader)
{
	const struct ev_origin *origin = &reader->origin;
	unsigned format = format_of(reader);
	bool layer = format & RECORD_LAYER;
	struct record_file *file = layer ? one_more(&records->layers, &records->layers_count)
					 : one_more(&records->files, &records->count);

	if (!file)
		return -ENOMEM;
	*file = (struct record_file){
		.path = strdup(path),
		.format = format,
		.rank = origin->rank,
		.run = origin->run,
		.host = origin->host,
		.ip = origin->ip,
		.world_size = origin->world_size,
		.segment = origin->segment,
		.run_start_us = origin->run_start_us,
		.shared = layer &&
			  strncmp(reader->ops->format, "io-", 3) != 0, /* ranks of a host may be folded into one */
	};
	if (!file->path)
		return -ENOMEM;
	*(layer ? &records->layers_count : &records->count) += 1;
	if (origin->world_size > records->world_size)
		records->world_size = origin->world_size;
	return 0;
}

/* @asked: the user named this very file, so that it must be readable */
static int take_file(struct records *records, const char *path, bool asked, struct st_err *err)
{
	struct st_err why = { 0 };
	struct ev_reader *reader = ev_open(records->session, path, &why);
	struct event ev;
	int ret = 0;

	if (!reader && asked)
		return err_set(err, errno ? -errno : -EINVAL, "%s", why.text);
	if (!reader || !format_of(reader)) {
		records->other++;
		ev_close(reader);
		if (asked)
			return err_set(err, -EINVAL,
				       "%s is no timeline, no file of markers and no profile of a rank or job", path);
		return 0;
	}
	ret = ev_next(reader, &ev, &why);
	if (ret < 0) {
		records_note(records, "%s", why.text);
		ret = 0;
	}
	ret = add_file(records, path, reader);
	ev_close(reader);
	return ret < 0 ? err_set(err, ret, "out of memory") : 0;
}

/* ---- directories ---------------------------------------------------------------------------------------------------- */

static int walk(struct records *records, const char *dir, int depth, struct st_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	int ret = 0;

	if (!d)
		return err_set(err, -errno, "cannot read %s: %s", dir, strerror(errno));
	while (!ret && (entry = readdir(d))) {
		char path[4096];
		struct stat st;

		if (entry->d_name[0] == '.' ||
		    snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) >= (int)sizeof(path) ||
		    stat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH)
			ret = walk(records, path, depth + 1, err);
		else if (S_ISREG(st.st_mode) && st.st_size > 0)
			ret = take_file(records, path, false, err);
	}
	closedir(d);
	return ret;
}

#ifdef HAVE_JANSSON
/* A capture may say when it ended and how large the job is: meta.json beside the records */
static void read_meta(struct records *records, const char *dir)
{
	char path[4096];
	json_t *meta;
	json_int_t end, world;

	if (snprintf(path, sizeof(path), "%s/meta.json", dir) >= (int)sizeof(path))
		return;
	meta = json_load_file(path, 0, NULL);
	if (!meta)
		return;
	end = json_integer_value(json_object_get(meta, "capture_end_ns"));
	world = json_integer_value(json_object_get(meta, "world_size"));
	if (end > 0)
		records->capture_end_ns = end;
	if (world > 0 && world <= INT32_MAX)
		records->world_size = (uint32_t)world;
	json_decref(meta);
}
#else
static void read_meta(struct records *records, const char *dir)
{
}
#endif

static int by_place(const void *a, const void *b)
{
	const struct record_file *x = a, *y = b;

	if (x->rank != y->rank)
		return (x->rank > y->rank) - (x->rank < y->rank);
	if (x->format != y->format)
		return (x->format > y->format) - (x->format < y->format);
	if (x->segment != y->segment)
		return (x->segment > y->segment) - (x->segment < y->segment);
	return strcmp(x->path, y->path);
}

/* Files of other runs go; files without a run stay only where no file has one */
static size_t keep_run(struct record_file *files, size_t count, uint32_t chosen, bool asked)
{
	size_t i, kept = 0;

	for (i = 0; i < count; i++) {
		if (files[i].run == chosen || (!asked && !files[i].run))
			files[kept++] = files[i];
		else
			free(files[i].path);
	}
	return kept;
}

static int choose_run(struct records *records, const char *run, struct st_err *err)
{
	uint32_t chosen = run ? ev_name(records->session, run, strlen(run)) : 0;
	uint64_t newest = 0;
	size_t i, before = records->count;

	for (i = 0; !run && i < records->count; i++) {
		if (records->files[i].run && (!chosen || records->files[i].run_start_us > newest)) {
			chosen = records->files[i].run;
			newest = records->files[i].run_start_us;
		}
	}
	records->count = keep_run(records->files, records->count, chosen, run);
	records->layers_count = keep_run(records->layers, records->layers_count, chosen, run);
	records->other_runs += before - records->count;
	if (run && !records->count && records->other_runs)
		return err_set(err, -ENOENT, "no file belongs to run %s", run);
	if (records->other_runs)
		records_note(records, "%zu files of other runs left out; looked at run %s", records->other_runs,
			     ev_text(records->session, chosen));
	return 0;
}

int records_add(struct records *records, const char *path, struct st_err *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return err_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return take_file(records, path, true, err);
	read_meta(records, path);
	return walk(records, path, 0, err);
}

int records_find(struct records *records, const char *path, const char *run, struct st_err *err)
{
	int ret = records_add(records, path, err);

	if (ret < 0)
		return ret;
	ret = choose_run(records, run, err);
	if (ret < 0)
		return ret;
	if (records->count)
		qsort(records->files, records->count, sizeof(records->files[0]), by_place);
	return 0;
}

void records_fini(struct records *records)
{
	size_t i;

	for (i = 0; i < records->count; i++)
		free(records->files[i].path);
	for (i = 0; i < records->layers_count; i++)
		free(records->layers[i].path);
	free(records->files);
	free(records->layers);
	records->files = records->layers = NULL;
	records->count = records->layers_count = 0;
}
