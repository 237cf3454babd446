/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See saved_state.h. The file has lines "key value". */
#include "probe/ftrace/saved_state.h"

#include "probe/ftrace/rec_owner.h"
#include "systrace/ftrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STATE_DIR "/run/systrace"
#define STATE_PREFIX "ftrace-"
#define USUAL_MOUNT "/sys/kernel/tracing"
#define TRACEFS_SUPER_MAGIC 0x74726163

/* Files that are written back, in this order: the clock first, since it empties the buffer. */
static const struct {
	const char *path;
	size_t offset, room; /* in struct saved_state */
} kept[] = {
	{ "trace_clock", offsetof(struct saved_state, trace_clock), sizeof(((struct saved_state *)0)->trace_clock) },
	{ "buffer_size_kb", offsetof(struct saved_state, buffer_kb), sizeof(((struct saved_state *)0)->buffer_kb) },
	{ "tracing_cpumask", offsetof(struct saved_state, cpumask), sizeof(((struct saved_state *)0)->cpumask) },
	{ "tracing_on", offsetof(struct saved_state, tracing_on), sizeof(((struct saved_state *)0)->tracing_on) },
};

#define KEPT (sizeof(kept) / sizeof(kept[0]))

static char *value_of(const struct saved_state *state, size_t at)
{
	return (char *)state + kept[at].offset;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

bool trace_clock_current(const char *clocks, char *clock, size_t room)
{
	const char *begin = strchr(clocks, '['), *end = begin ? strchr(begin, ']') : NULL;

	if (!end || (size_t)(end - begin) > room)
		return false;
	snprintf(clock, room, "%.*s", (int)(end - begin - 1), begin + 1);
	return true;
}

bool buffer_kb_current(const char *shown, char *kb, size_t room)
{
	const char *expanded = strstr(shown, "expanded: ");
	const char *number = expanded ? expanded + strlen("expanded: ") : shown;
	size_t digits = strspn(number, "0123456789");

	if (digits == 0 || digits >= room)
		return false;
	snprintf(kb, room, "%.*s", (int)digits, number);
	return true;
}

static bool top_level_used(const struct tracefs *fs)
{
	char line[256];

	if (file_read_line(fs->fd, "current_tracer", line, sizeof(line)) == 0 && strcmp(line, "nop") != 0)
		return true;
	return file_read_line(fs->fd, "set_event", line, sizeof(line)) == 0 && line[0];
}

static bool usual_mounted(void)
{
	struct statfs st;

	return statfs(USUAL_MOUNT, &st) == 0 && (unsigned long)st.f_type == TRACEFS_SUPER_MAGIC;
}

static int read_values(struct saved_state *state, struct st_err *err)
{
	char line[512];
	int ret;

	for (size_t i = 0; i < KEPT; i++) {
		char *value = value_of(state, i);

		ret = file_read_line(state->fs->fd, kept[i].path, line, sizeof(line));
		if (ret < 0)
			return err_set(err, ret, "cannot read %s of tracefs: %s", kept[i].path, strerror(-ret));
		if (value == state->trace_clock) {
			if (!trace_clock_current(line, value, kept[i].room))
				return err_set(err, -EINVAL, "trace_clock of tracefs reads '%.60s'", line);
		} else if (value == state->buffer_kb) {
			if (!buffer_kb_current(line, value, kept[i].room))
				state->in_use = true; /* sizes that differ by CPU are somebody's work */
		} else {
			snprintf(value, kept[i].room, "%.*s", (int)kept[i].room - 1, line);
		}
	}
	return 0;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static int remember(struct saved_state *state, struct st_err *err)
{
	static atomic_uint number;
	char name[128];
	FILE *out;
	int fd, ret;

	rec_owner_name(atomic_fetch_add_explicit(&number, 1, memory_order_relaxed), name, sizeof(name));
	mkdir(STATE_DIR, 0700);
	snprintf(state->file, sizeof(state->file), STATE_DIR "/" STATE_PREFIX "%s", name);
	fd = open(state->file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out) {
		ret = err_set(err, -errno, "cannot create %s, which puts tracing back after a kill: %s", state->file,
			      strerror(errno));
		state->file[0] = '\0';
		return ret;
	}
	fprintf(out, "mounted %d\nin_use %d\n", state->mounted, state->in_use);
	if (state->instance[0])
		fprintf(out, "instance %s\n", state->instance);
	for (size_t i = 0; i < KEPT; i++)
		fprintf(out, "%s %s\n", kept[i].path, value_of(state, i));
	return fclose(out) == 0 ? 0 : err_set(err, -errno, "cannot write %s: %s", state->file, strerror(errno));
}

static void recall_line(struct saved_state *state, char *line)
{
	char *value = strchr(line, ' ');

	if (!value)
		return;
	*value++ = '\0';
	if (strcmp(line, "mounted") == 0)
		state->mounted = atoi(value) != 0;
	else if (strcmp(line, "in_use") == 0)
		state->in_use = atoi(value) != 0;
	else if (strcmp(line, "instance") == 0)
		snprintf(state->instance, sizeof(state->instance), "%s", value);
	for (size_t i = 0; i < KEPT; i++)
		if (strcmp(line, kept[i].path) == 0)
			snprintf(value_of(state, i), kept[i].room, "%s", value);
}

static int recall(struct saved_state *state, const struct tracefs *fs, const char *path)
{
	char *text, *line, *rest;
	int ret = file_read(AT_FDCWD, path, &text, NULL);

	if (ret < 0)
		return ret;
	*state = (struct saved_state){ .fs = fs };
	snprintf(state->file, sizeof(state->file), "%s", path);
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		recall_line(state, line);
	free(text);
	return 0;
}

/* --- taking and putting back -------------------------------------------------------------------------------------- */

static void name_instance(struct saved_state *state, const char *instance)
{
	if (instance) {
		state->in_use = true;
		snprintf(state->instance, sizeof(state->instance), "%s", instance);
	} else if (state->in_use) {
		rec_owner_name(1000, state->instance, sizeof(state->instance)); /* apart from those of instance.c */
	}
}

int saved_state_take(struct saved_state *state, const struct tracefs *fs, const char *instance, struct st_err *err)
{
	int ret;

	*state = (struct saved_state){ .fs = fs, .in_use = top_level_used(fs), .mounted = usual_mounted() };
	ret = read_values(state, err);
	if (ret == 0)
		name_instance(state, instance);
	if (ret == 0)
		ret = remember(state, err);
	if (ret < 0)
		state->fs = NULL;
	return ret;
}

int saved_state_claim(struct saved_state *state, const struct tracefs *fs, const char *instance, struct st_err *err)
{
	int ret;

	*state = (struct saved_state){ .fs = fs, .mounted = true };
	name_instance(state, instance);
	ret = remember(state, err);
	if (ret < 0)
		state->fs = NULL;
	return ret;
}

static int put_back(const struct saved_state *state, struct st_err *err)
{
	char now[512];
	int ret = 0, one;

	file_write(state->fs->fd, "tracing_on", "0");
	file_write(state->fs->fd, "set_event", ""); /* it was empty, or the top level would have been left alone */
	for (size_t i = 0; i < KEPT; i++) {
		const char *value = value_of(state, i);

		if (!*value)
			continue;
		if (value == state->trace_clock &&
		    file_read_line(state->fs->fd, "trace_clock", now, sizeof(now)) == 0 &&
		    trace_clock_current(now, now, sizeof(now)) && strcmp(now, value) == 0)
			continue;
		one = file_write(state->fs->fd, kept[i].path, value);
		if (one < 0 && ret == 0)
			ret = err_set(err, one, "cannot put %s of tracefs back to %s: %s", kept[i].path, value,
				      strerror(-one));
	}
	return ret;
}

int saved_state_restore(struct saved_state *state, struct st_err *err)
{
	char path[160];
	int ret = 0;

	if (!state->fs)
		return 0;
	if (state->in_use && state->instance[0]) {
		snprintf(path, sizeof(path), "instances/%s", state->instance);
		if (unlinkat(state->fs->fd, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
			ret = err_set(err, -errno, "cannot remove tracing instance %s: %s", state->instance,
				      strerror(errno));
	}
	if (!state->in_use)
		ret = put_back(state, err);
	if (!state->mounted && usual_mounted()) /* trace-cmd mounts it when nobody has */
		umount2(USUAL_MOUNT, MNT_DETACH);
	if (state->file[0])
		unlink(state->file);
	state->fs = NULL;
	return ret;
}

static bool sweep_one(const struct tracefs *fs, const char *name, const struct note *note)
{
	struct saved_state state;
	struct st_err err = { 0 };
	char path[192];

	if (strncmp(name, STATE_PREFIX, strlen(STATE_PREFIX)) != 0 || strlen(name) > 128 ||
	    !rec_owner_gone(name + strlen(STATE_PREFIX)))
		return false;
	snprintf(path, sizeof(path), STATE_DIR "/%s", name);
	if (recall(&state, fs, path) < 0)
		return false;
	if (saved_state_restore(&state, &err) < 0)
		note_say(note, SYSTRACE_FTRACE_WARNING, "after a recorder that was killed: %s", err.text);
	else
		note_say(note, SYSTRACE_FTRACE_INFO, "put tracing back as it was before a recorder that was killed");
	return true;
}

int saved_state_sweep(const struct tracefs *fs, const struct note *note)
{
	struct dirent *entry;
	DIR *dir = opendir(STATE_DIR);
	struct stat st;
	int swept = 0;

	if (!dir)
		return 0;
	if (fstat(dirfd(dir), &st) == 0 && st.st_uid == geteuid()) /* nobody else's words reach tracefs */
		while ((entry = readdir(dir)))
			swept += sweep_one(fs, entry->d_name, note);
	closedir(dir);
	rmdir(STATE_DIR); /* when empty */
	return swept;
}
