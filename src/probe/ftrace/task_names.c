/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See task_names.h. */
#include "probe/ftrace/task_names.h"

#include "probe/proc_tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct task_names *names, int32_t pid, const char *comm, size_t bytes)
{
	struct task_name *row;

	if (names->count == names->room) {
		size_t room = names->room * 2 + 256;
		struct task_name *more = realloc(names->rows, room * sizeof(*more));

		if (!more) {
			names->failed = true;
			return;
		}
		names->rows = more;
		names->room = room;
	}
	row = &names->rows[names->count++];
	*row = (struct task_name){ .pid = pid };
	for (size_t i = 0; i < bytes && i < sizeof(row->comm) - 1; i++)
		row->comm[i] = comm[i] == '\n' ? '?' : comm[i]; /* lines of the table end with it */
}

/* /proc shows what a worker works on behind its name ("kworker/u8:3-events"); the events have the name alone. */
static size_t name_bytes(const char *comm)
{
	const char *colon = strncmp(comm, "kworker/", 8) == 0 ? strchr(comm, ':') : NULL;

	return colon ? (size_t)(colon - comm) + strcspn(colon, "-+") : strlen(comm);
}

static int add_task(void *ctx, int32_t pid, int32_t tid)
{
	char path[64], comm[32];

	snprintf(path, sizeof(path), "/proc/%" PRId32 "/task/%" PRId32 "/comm", pid, tid);
	if (file_read_line(AT_FDCWD, path, comm, sizeof(comm)) == 0 && comm[0])
		add(ctx, tid, comm, name_bytes(comm));
	return 0;
}

/* "PID comm" lines of the kernel; <...> means that it has forgotten. */
static void add_saved(struct task_names *names, const struct tracefs *fs)
{
	char *text, *line, *rest;

	if (file_read(fs->fd, "saved_cmdlines", &text, NULL) < 0)
		return;
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *comm;
		long pid = strtol(line, &comm, 10);

		if (comm != line && *comm == ' ' && strcmp(comm + 1, "<...>") != 0)
			add(names, (int32_t)pid, comm + 1, strlen(comm + 1));
	}
	free(text);
}

void task_names_scan(struct task_names *names, const struct tracefs *fs)
{
	add_saved(names, fs); /* also tasks that have ended; of the others /proc is newer */
	proc_tasks(add_task, names);
}

/* By pid; among equal ones by the order of adding, so that the newest comes last. */
static int by_pid(const void *a, const void *b)
{
	const struct task_name *const *left = a, *const *right = b;

	if ((*left)->pid != (*right)->pid)
		return (*left)->pid < (*right)->pid ? -1 : 1;
	return *left < *right ? -1 : *left > *right; /* position in the table = order of adding */
}

char *task_names_text(const struct task_names *names)
{
	const struct task_name **order;
	char *text = NULL;
	size_t bytes;
	FILE *out;

	order = calloc(names->count + 1, sizeof(*order));
	out = order ? open_memstream(&text, &bytes) : NULL;
	if (!out) {
		free(order);
		return NULL;
	}
	for (size_t i = 0; i < names->count; i++)
		order[i] = &names->rows[i];
	qsort(order, names->count, sizeof(*order), by_pid);
	for (size_t i = 0; i < names->count; i++)
		if (i + 1 == names->count || order[i + 1]->pid != order[i]->pid)
			fprintf(out, "%" PRId32 " %s\n", order[i]->pid, order[i]->comm);
	free(order);
	return fclose(out) == 0 ? text : NULL;
}

void task_names_fini(struct task_names *names)
{
	free(names->rows);
	*names = (struct task_names){ 0 };
}
