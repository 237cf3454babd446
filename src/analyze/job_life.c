/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Meta files and /proc (job_life.h). */
#include "analyze/job_life.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#ifdef HAVE_JANSSON
#include <jansson.h>

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

/* Field 22 of /proc/<pid>/stat, 0 = no such process */
static unsigned long long start_of(long pid)
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
	for (field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		start = strtoull(at, NULL, 10);
	return start;
}

/* 1 = ended, 0 = alive or unknown, -1 = no meta file */
static int process_ended(const char *path)
{
	json_t *meta = json_load_file(path, 0, NULL);
	const char *pids;
	int ended = -1;

	if (!meta)
		return -1;
	pids = json_string_value(json_object_get(meta, "pids"));
	ended = json_is_true(json_object_get(meta, "ended"));
	if (!ended && pids && this_boot(json_string_value(json_object_get(meta, "boot_id")))) {
		/* the outermost number is the one that a service of the host sees */
		unsigned long long start = start_of(strtol(pids, NULL, 10));

		ended = start != (unsigned long long)json_integer_value(json_object_get(meta, "proc_start"));
	}
	json_decref(meta);
	return ended;
}

bool job_is_over(const char *dump, const char *run)
{
	char name[256], dir[PATH_MAX], path[PATH_MAX];
	struct dirent *entry;
	size_t ended = 0;
	bool alive = false;
	DIR *d;

	path_name(run, name, sizeof(name));
	if (snprintf(dir, sizeof(dir), "%s/meta/%s", dump, name) >= (int)sizeof(dir))
		return false;
	d = opendir(dir);
	while (d && !alive && (entry = readdir(d))) {
		size_t length = strlen(entry->d_name);
		int state;

		if (length < 5 || strcmp(entry->d_name + length - 5, ".json") ||
		    snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) >= (int)sizeof(path))
			continue;
		state = process_ended(path);
		ended += state == 1;
		alive = state == 0;
	}
	if (d)
		closedir(d);
	return ended && !alive;
}

#else

bool job_is_over(const char *dump, const char *run)
{
	return false;
}

#endif
