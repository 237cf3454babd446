/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Files of a dump directory, by run and segment; see dir.h. */
#include "trace/dir.h"

#include "trace/chain.h"
#include "trace/input.h"
#include "trace/readers.h"
#include "trace/session.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 8
#define OLD_NAME 1000000000u /* `<name>.<unix time>`: left by an earlier process */

struct file {
	char *path;
	char *name; /* path without segment number and packing */
	uint64_t order; /* among files of the same name: earlier processes, closed segments, the live file */
	struct ev_origin origin;
	struct ev_reader *stream; /* a pipe, which can be opened only once */
	bool selected;
};

struct run {
	uint32_t id; /* name id, 0 = none given */
	uint64_t start_us; /* of its youngest process */
	size_t files;
};

struct dir_set {
	struct ev_session *session;
	const char *const *formats;
	struct file *files;
	size_t count, room;
	size_t others; /* files of no wanted format */
	struct run *runs;
	size_t runs_count;
	uint32_t run; /* selected */
};

struct dir_set *dir_new(struct ev_session *session, const char *const *formats)
{
	struct dir_set *set = calloc(1, sizeof(*set));

	if (!set)
		return NULL;
	set->session = session;
	set->formats = formats;
	return set;
}

void dir_free(struct dir_set *set)
{
	size_t i;

	if (!set)
		return;
	for (i = 0; i < set->count; i++) {
		ev_close(set->files[i].stream);
		free(set->files[i].path);
		free(set->files[i].name);
	}
	free(set->files);
	free(set->runs);
	free(set);
}

static bool wanted(const struct dir_set *set, const char *format)
{
	size_t i;

	if (!set->formats)
		return true;
	for (i = 0; set->formats[i]; i++)
		if (strcmp(set->formats[i], format) == 0)
			return true;
	return false;
}

static void strip(char *name, const char *suffix)
{
	size_t len = strlen(name), tail = strlen(suffix);

	if (len > tail && strcmp(name + len - tail, suffix) == 0)
		name[len - tail] = 0;
}

/* Take packing and segment number off a name. Return: place among the files of that name. */
static uint64_t split_name(char *name)
{
	char *dot;
	uint64_t n;

	strip(name, ".gz");
	strip(name, ".zst");
	dot = strrchr(name, '.');
	if (!dot || strchr(dot, '/') || !isdigit((unsigned char)dot[1]) || dot[1 + strspn(dot + 1, "0123456789")])
		return UINT64_MAX; /* the live file comes last */
	n = strtoull(dot + 1, NULL, 10);
	*dot = 0;
	return n >= OLD_NAME ? n - OLD_NAME : ((uint64_t)1 << 40) + n;
}

/* @stream: keep the reader, the file can't be opened again */
static int add_file(struct dir_set *set, const char *path, bool stream, struct st_err *err)
{
	const struct format *format = stream ? NULL : ev_sniff(path, err);
	struct ev_reader *reader;
	struct file *file;

	if (!stream && !format)
		return -errno;
	if (format && !wanted(set, format->name))
		return err_set(err, -EINVAL, "%s is %s, which this command does not take", path, format->what);
	reader = ev_open(set->session, path, err);
	if (!reader)
		return -errno;
	if (!wanted(set, reader->ops->format)) {
		ev_close(reader);
		return err_set(err, -EINVAL, "%s is of a kind that this command does not take", path);
	}
	if (set->count == set->room) {
		size_t room = set->room ? set->room * 2 : 64;
		struct file *files = realloc(set->files, room * sizeof(*files));

		if (!files)
			goto no_memory;
		set->files = files;
		set->room = room;
	}
	file = &set->files[set->count];
	*file = (struct file){ .path = strdup(path), .name = strdup(path), .origin = reader->origin };
	if (!file->path || !file->name) {
		free(file->path);
		free(file->name);
		goto no_memory;
	}
	file->order = split_name(file->name);
	set->count++;
	if (stream)
		file->stream = reader;
	else
		ev_close(reader);
	return 0;
no_memory:
	ev_close(reader);
	return err_set(err, -ENOMEM, "%s: out of memory", path);
}

static bool passed_over(const char *name)
{
	static const char *const suffixes[] = { ".meta.json", ".part", ".log" };
	size_t len = strlen(name), i;

	if (name[0] == '.' || strcmp(name, "meta") == 0)
		return true;
	for (i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
		if (len > strlen(suffixes[i]) && strcmp(name + len - strlen(suffixes[i]), suffixes[i]) == 0)
			return true;
	return false;
}

static int walk(struct dir_set *set, const char *path, int depth, struct st_err *err)
{
	struct dirent *entry;
	struct stat st;
	char *name;
	DIR *dir;
	int ret = 0;

	dir = opendir(path);
	if (!dir)
		return err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
	while (ret == 0 && (entry = readdir(dir)) != NULL) {
		if (passed_over(entry->d_name))
			continue;
		if (asprintf(&name, "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", entry->d_name) < 0) {
			ret = err_set(err, -ENOMEM, "%s: out of memory", path);
			break;
		}
		if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode)) {
			if (depth < MAX_DEPTH && walk(set, name, depth + 1, NULL) < 0)
				set->others++;
		} else if (stat(name, &st) == 0 && S_ISREG(st.st_mode)) {
			if (add_file(set, name, false, NULL) < 0)
				set->others++;
		}
		free(name);
	}
	closedir(dir);
	return ret;
}

int dir_add(struct dir_set *set, const char *path, struct st_err *err)
{
	struct stat st;
	bool stdin_wanted = strcmp(path, "-") == 0;

	if (!stdin_wanted && stat(path, &st) < 0)
		return err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
	if (!stdin_wanted && S_ISDIR(st.st_mode))
		return walk(set, path, 0, err);
	return add_file(set, path, stdin_wanted || !S_ISREG(st.st_mode), err);
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

static int collect_runs(struct dir_set *set)
{
	size_t i, k;

	for (i = 0; i < set->count; i++) {
		const struct ev_origin *origin = &set->files[i].origin;
		struct run *runs;

		if (!origin->known)
			continue;
		for (k = 0; k < set->runs_count && set->runs[k].id != origin->run; k++)
			;
		if (k == set->runs_count) {
			runs = realloc(set->runs, (k + 1) * sizeof(*runs));
			if (!runs)
				return -ENOMEM;
			set->runs = runs;
			runs[set->runs_count++] = (struct run){ .id = origin->run };
		}
		set->runs[k].files++;
		if (origin->run_start_us > set->runs[k].start_us)
			set->runs[k].start_us = origin->run_start_us;
	}
	return 0;
}

const char *dir_run(const struct dir_set *set)
{
	return ev_text(set->session, set->run);
}

static const char *run_text(const struct dir_set *set, const struct run *run)
{
	return run->id ? ev_text(set->session, run->id) : "(no run id)";
}

/* "a, b, c and 12 more" */
static void list_runs(const struct dir_set *set, const struct run *but, char *out, size_t room)
{
	size_t i, used = 0, named = 0;

	out[0] = 0;
	for (i = 0; i < set->runs_count; i++) {
		if (&set->runs[i] == but)
			continue;
		if (named == 8 || used + 80 > room) {
			snprintf(out + used, room - used, " and %zu more", set->runs_count - (but != NULL) - named);
			return;
		}
		used += (size_t)snprintf(out + used, room - used, "%s%.60s", named ? ", " : "",
					 run_text(set, &set->runs[i]));
		named++;
	}
}

static const struct run *choose_run(const struct dir_set *set, const char *id)
{
	const struct run *best = NULL;
	size_t i;

	for (i = 0; i < set->runs_count; i++) {
		if (id && strcmp(run_text(set, &set->runs[i]), id) == 0)
			return &set->runs[i];
		if (!id && (!best || set->runs[i].start_us > best->start_us))
			best = &set->runs[i];
	}
	return best;
}

static void tell(void (*note)(void *arg, const char *text), void *arg, const char *format, ...)
{
	char text[1024];
	va_list args;

	if (!note)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	note(arg, text);
}

/* Was a file folded into another one, and stayed because whoever did it was killed? What is in both is read once. */
static bool was_folded(const struct dir_set *set, const struct file *file)
{
	const char *base = strrchr(file->path, '/') ? strrchr(file->path, '/') + 1 : file->path;
	size_t dir = (size_t)(base - file->path), i;
	char name[300];
	struct stat own, its;

	snprintf(name, sizeof(name), "/%.255s/", base);
	for (i = 0; i < set->count; i++) {
		const struct file *other = &set->files[i];

		if (other->origin.folded && other != file && strncmp(other->path, file->path, dir) == 0 &&
		    !strchr(other->path + dir, '/') && strstr(ev_text(set->session, other->origin.folded), name) &&
		    stat(file->path, &own) == 0 && stat(other->path, &its) == 0)
			return own.st_mtim.tv_sec < its.st_mtim.tv_sec ||
			       (own.st_mtim.tv_sec == its.st_mtim.tv_sec && own.st_mtim.tv_nsec <= its.st_mtim.tv_nsec);
	}
	return false;
}

int dir_select(struct dir_set *set, const char *run, void (*note)(void *arg, const char *text), void *arg,
	       struct st_err *err)
{
	const struct run *chosen;
	char names[700];
	size_t i, orphans = 0;
	int selected = 0;

	if (collect_runs(set) < 0)
		return err_set(err, -ENOMEM, "out of memory for %zu files", set->count);
	chosen = choose_run(set, run);
	if (run && !chosen) {
		list_runs(set, NULL, names, sizeof(names));
		return err_set(err, -ENOENT, "there is no run '%.60s'; there is: %.400s", run,
			       set->runs_count ? names : "none with a run id");
	}
	set->run = chosen ? chosen->id : 0;
	for (i = 0; i < set->count; i++) {
		struct file *file = &set->files[i];

		file->selected = file->origin.known ? chosen && file->origin.run == chosen->id : set->runs_count <= 1;
		orphans += !file->origin.known && !file->selected;
		if (file->selected && was_folded(set, file))
			file->selected = false;
		selected += file->selected;
	}
	if (set->runs_count > 1) {
		list_runs(set, chosen, names, sizeof(names));
		tell(note, arg, "run %s of %zu is shown; the others (--run): %s", run_text(set, chosen),
		     set->runs_count, names);
	}
	if (orphans)
		tell(note, arg, "%zu files that do not say their run are left out, as there are several runs", orphans);
	if (set->others)
		tell(note, arg, "%zu files of other kinds were passed over", set->others);
	return selected;
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static int by_name(const void *left, const void *right)
{
	const struct file *a = left, *b = right;
	int ret = (int)b->selected - (int)a->selected; /* the selected ones first */

	if (!ret)
		ret = strcmp(a->name, b->name);
	return ret ? ret : a->order < b->order ? -1 : a->order > b->order;
}

static void raise_descriptors(size_t files)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > files + 64)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int dir_open(struct dir_set *set, struct merge *merge, void (*note)(void *arg, const char *text), void *arg,
	     struct st_err *err)
{
	struct st_err why = { 0 };
	struct ev_reader *reader;
	const char **paths;
	size_t i, n, count = 0;
	int opened = 0;

	paths = malloc((set->count + 1) * sizeof(*paths));
	if (!paths)
		return err_set(err, -ENOMEM, "out of memory for %zu files", set->count);
	qsort(set->files, set->count, sizeof(*set->files), by_name);
	while (count < set->count && set->files[count].selected)
		count++;
	raise_descriptors(count);
	input_share(count);
	for (i = 0; i < count; i += n) {
		for (n = 0; i + n < count && strcmp(set->files[i].name, set->files[i + n].name) == 0; n++)
			paths[n] = set->files[i + n].path;
		reader = set->files[i].stream;
		set->files[i].stream = NULL;
		if (!reader)
			reader = chain_open(set->session, paths, n, &why);
		if (!reader) {
			tell(note, arg, "%s", why.text);
			continue;
		}
		if (merge_add(merge, reader) < 0) {
			free(paths);
			return err_set(err, -ENOMEM, "out of memory for %zu files", count);
		}
		opened++;
	}
	free(paths);
	if (!opened && count)
		return err_set(err, why.code, "%s", why.text);
	return opened;
}
