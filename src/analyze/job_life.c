/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Meta files and /proc (job_life.h). */
#include "analyze/job_life.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>

#define META_BYTES (16 << 20)

/* Characters that the agent replaces in names of directories */
static void path_name(const char *run, char *to, size_t room)
{
	size_t i;

	for (i = 0; run[i] && i + 1 < room; i++)
		to[i] = strchr(" /:", run[i]) || (unsigned char)run[i] < ' ' ? '_' : run[i];
	to[i] = '\0';
}

static bool this_boot(const char *boot_id)
{
	char text[64] = "";
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	text[strcspn(text, "\n")] = '\0';
	return boot_id && text[0] && !strcmp(text, boot_id);
}

/* Field 22 of /proc/<pid>/stat, 0 = no such process. @state: gets field 3; may be NULL. */
static unsigned long long start_of(long pid, char *state)
{
	char path[64], text[1024] = "", *at;
	unsigned long long start = 0;
	size_t got = 0;
	FILE *file;
	int field;

	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	file = fopen(path, "r");
	if (!file)
		return 0;
	got = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[got] = '\0';
	at = strrchr(text, ')'); /* the name may hold anything */
	if (at && state && strlen(at) > 2)
		*state = at[2];
	for (field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		start = strtoull(at, NULL, 10);
	return start;
}

/* A file that a job left: no link, pipe or endless thing is followed. @st: gets whose it is. */
static json_t *load_meta(const char *path, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	json_t *meta = NULL;

	if (fd < 0)
		return NULL;
	if (fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_size <= META_BYTES)
		meta = json_loadfd(fd, 0, NULL);
	close(fd);
	return meta;
}

/* 1 = ended, 0 = alive or unknown, -1 = no meta file */
static int process_ended(const char *path)
{
	struct stat st;
	json_t *meta = load_meta(path, &st);
	const char *pids;
	int ended = -1;

	if (!meta)
		return -1;
	pids = json_string_value(json_object_get(meta, "pids"));
	ended = json_is_true(json_object_get(meta, "ended"));
	if (!ended && pids && this_boot(json_string_value(json_object_get(meta, "boot_id")))) {
		/* the outermost number is the one that a service of the host sees */
		unsigned long long start = start_of(strtol(pids, NULL, 10), NULL);

		ended = start != (unsigned long long)json_integer_value(json_object_get(meta, "proc_start"));
	}
	json_decref(meta);
	return ended;
}

/** struct meta_dir - a walk over the meta files of a run */
struct meta_dir {
	DIR *dir;
	char name[PATH_MAX], path[PATH_MAX]; /* directory, file at hand */
};

static bool meta_open(struct meta_dir *m, const char *dump, const char *run)
{
	char name[256];

	m->dir = NULL;
	path_name(run, name, sizeof(name));
	if (snprintf(m->name, sizeof(m->name), "%s/meta/%s", dump, name) < (int)sizeof(m->name))
		m->dir = opendir(m->name);
	return m->dir;
}

/* Return: false behind the last file. */
static bool meta_next(struct meta_dir *m)
{
	struct dirent *entry;

	while ((entry = readdir(m->dir))) {
		size_t length = strlen(entry->d_name);

		if (length >= 5 && !strcmp(entry->d_name + length - 5, ".json") &&
		    snprintf(m->path, sizeof(m->path), "%s/%s", m->name, entry->d_name) < (int)sizeof(m->path))
			return true;
	}
	return false;
}

bool job_is_over(const char *dump, const char *run)
{
	struct meta_dir m;
	size_t ended = 0;
	bool alive = false;

	if (!meta_open(&m, dump, run))
		return false;
	while (!alive && meta_next(&m)) {
		int state = process_ended(m.path);

		ended += state == 1;
		alive = state == 0;
	}
	closedir(m.dir);
	return ended && !alive;
}

static bool is_of_rank(const json_t *meta, int32_t rank)
{
	return json_is_true(json_object_get(meta, "rank_known")) && !json_object_get(meta, "worker_of") &&
	       json_integer_value(json_object_get(meta, "rank")) == rank;
}

/* The process that wrote a meta file of @uid. Return: its id, 0 with *why = it is not to be found here. */
static pid_t process_of(const json_t *meta, uid_t uid, const char **why)
{
	const char *pids = json_string_value(json_object_get(meta, "pids"));
	long pid = pids ? strtol(pids, NULL, 10) : 0; /* outermost, as above */
	char path[64], state = 0;
	struct stat st;

	if (json_is_true(json_object_get(meta, "ended"))) {
		*why = "its process ended";
	} else if (!this_boot(json_string_value(json_object_get(meta, "boot_id")))) {
		*why = "its process runs on another machine, or ran before this one was started anew";
	} else if (pid <= 0 || start_of(pid, &state) !=
				       (unsigned long long)json_integer_value(json_object_get(meta, "proc_start"))) {
		*why = "its process is gone, or cannot be seen from here";
	} else if (state == 'Z') {
		*why = "its process ended, and its parent has not noticed yet";
	} else {
		snprintf(path, sizeof(path), "/proc/%ld", pid);
		if (stat(path, &st) == 0 && st.st_uid == uid)
			return (pid_t)pid;
		*why = "its process belongs to another user than what it recorded";
	}
	return 0;
}

pid_t job_process(const char *dump, const char *run, int32_t rank, const char **why)
{
	struct meta_dir m;
	pid_t pid = 0;

	*why = "no meta file below the dump path says which process it is";
	if (!meta_open(&m, dump, run))
		return 0;
	while (!pid && meta_next(&m)) {
		struct stat st;
		json_t *meta = load_meta(m.path, &st);

		if (meta && is_of_rank(meta, rank))
			pid = process_of(meta, st.st_uid, why);
		json_decref(meta);
	}
	closedir(m.dir);
	return pid;
}

#else

bool job_is_over(const char *dump, const char *run)
{
	return false;
}

pid_t job_process(const char *dump, const char *run, int32_t rank, const char **why)
{
	*why = "this build has no jansson and reads no meta files";
	return 0;
}

#endif
