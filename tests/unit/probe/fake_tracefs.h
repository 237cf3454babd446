/* SPDX-License-Identifier: MulanPSL-2.0 */
/* A directory that looks like tracefs to the recorder, for unit tests on any machine; made afresh for every test. */
#ifndef TESTS_FAKE_TRACEFS_H
#define TESTS_FAKE_TRACEFS_H

#include "probe/ftrace/tracefs.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake {
	char path[64];
	struct tracefs fs;
};

static inline void fake_path(const struct fake *fake, const char *name, char *path, size_t room)
{
	if (snprintf(path, room, "%s/%s", fake->path, name) >= (int)room)
		abort();
}

/* A directory with those above it */
static inline void fake_dir(const struct fake *fake, const char *name)
{
	char path[512];

	fake_path(fake, name, path, sizeof(path));
	for (char *at = path + strlen(fake->path) + 1; *at; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		mkdir(path, 0700);
		*at = '/';
	}
	mkdir(path, 0700);
}

static inline void fake_file(const struct fake *fake, const char *name, const char *text)
{
	char path[512], dir[512];
	FILE *out;

	snprintf(dir, sizeof(dir), "%s", name);
	if (strrchr(dir, '/')) {
		*strrchr(dir, '/') = '\0';
		fake_dir(fake, dir);
	}
	fake_path(fake, name, path, sizeof(path));
	out = fopen(path, "w");
	if (!out)
		abort();
	fputs(text, out);
	fclose(out);
}

static inline void fake_event(const struct fake *fake, const char *event)
{
	char name[256], text[300];

	snprintf(name, sizeof(name), "events/%s/format", event);
	snprintf(text, sizeof(text), "name: %s\n", strchr(event, '/') + 1);
	fake_file(fake, name, text);
}

static inline int fake_setup(void **state)
{
	struct fake *fake = calloc(1, sizeof(*fake));

	strcpy(fake->path, "/tmp/st-fake-tracefs-XXXXXX");
	if (!mkdtemp(fake->path))
		return -1;
	fake_dir(fake, "instances");
	fake_dir(fake, "per_cpu/cpu0");
	fake_dir(fake, "per_cpu/cpu1");
	fake_dir(fake, "per_cpu/cpu3");
	fake_file(fake, "events/header_page", "page\n");
	fake_file(fake, "events/header_event", "event\n");
	fake_event(fake, "sched/sched_switch");
	fake_event(fake, "sched/sched_waking");
	fake_event(fake, "irq/softirq_entry");
	*state = fake;
	return tracefs_open(&fake->fs, fake->path, NULL);
}

static inline int fake_remove(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

static inline int fake_teardown(void **state)
{
	struct fake *fake = *state;

	tracefs_close(&fake->fs);
	nftw(fake->path, fake_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(fake);
	return 0;
}

#endif
