/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The table of event groups and its comparison with the kernel; see events.h. */
#include "probe/ftrace/events.h"

#include "probe/ftrace/tracefs.h"
#include "systrace/ftrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One row per event of a group; the first line of each group is what it is for. */
static const struct {
	uint32_t group;
	const char *name;
} rows[] = {
	{ SYSTRACE_FTRACE_SCHED, "sched/sched_switch" },       { SYSTRACE_FTRACE_SCHED, "sched/sched_wakeup" },
	{ SYSTRACE_FTRACE_SCHED, "sched/sched_wakeup_new" },   { SYSTRACE_FTRACE_SCHED, "sched/sched_waking" },
	{ SYSTRACE_FTRACE_SCHED, "sched/sched_migrate_task" }, { SYSTRACE_FTRACE_SCHED, "sched/sched_stat_runtime" },
	{ SYSTRACE_FTRACE_SCHED, "sched/sched_process_fork" }, { SYSTRACE_FTRACE_SCHED, "sched/sched_process_exec" },
	{ SYSTRACE_FTRACE_SCHED, "sched/sched_process_exit" }, { SYSTRACE_FTRACE_IRQ, "irq/irq_handler_entry" },
	{ SYSTRACE_FTRACE_IRQ, "irq/irq_handler_exit" },       { SYSTRACE_FTRACE_IRQ, "irq/softirq_entry" },
	{ SYSTRACE_FTRACE_IRQ, "irq/softirq_exit" },	       { SYSTRACE_FTRACE_IRQ, "irq/softirq_raise" },
	{ SYSTRACE_FTRACE_FUTEX, "syscalls/sys_enter_futex" }, { SYSTRACE_FTRACE_FUTEX, "syscalls/sys_exit_futex" },
};

static bool has(const struct event_list *list, const char *name)
{
	for (size_t i = 0; i < list->count; i++)
		if (strcmp(list->names[i], name) == 0)
			return true;
	return false;
}

int events_add(struct event_list *list, const char *name)
{
	char **more;

	if (has(list, name))
		return 0;
	if (list->count == list->room) {
		more = realloc(list->names, (list->room * 2 + 16) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		list->names = more;
		list->room = list->room * 2 + 16;
	}
	list->names[list->count] = strdup(name);
	return list->names[list->count] ? (int)(list->count++, 0) : -ENOMEM;
}

static bool in_kernel(int events, const char *name)
{
	char path[640];

	snprintf(path, sizeof(path), "%s/format", name);
	return file_exists(events, path);
}

/* A bare group: all of its events. */
static int add_group(struct event_list *list, int events, const char *group)
{
	struct dirent *entry;
	int fd, ret = 0;
	DIR *dir;

	fd = openat(events, group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		ret = -errno;
		if (fd >= 0)
			close(fd);
		return ret;
	}
	while (ret == 0 && (entry = readdir(dir))) {
		char name[600];

		snprintf(name, sizeof(name), "%s/%s", group, entry->d_name);
		if (entry->d_name[0] != '.' && in_kernel(events, name))
			ret = events_add(list, name);
	}
	closedir(dir);
	return ret;
}

/* What the user named. It becomes a path below tracefs, so dots are refused. */
static int add_named(struct event_list *list, int events, const char *asked, const struct note *note,
		     struct st_err *err)
{
	char name[256];
	int ret;

	snprintf(name, sizeof(name), "%s", asked);
	if (strchr(name, ':'))
		*strchr(name, ':') = '/';
	if (strlen(asked) >= sizeof(name) ||
	    name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
			      "0123456789_-/")] ||
	    name[0] == '/' || !name[0])
		return err_set(err, -EINVAL, "'%.80s' is not an event; write group/name, such as sched/sched_switch",
			       asked);
	if (!strchr(name, '/'))
		ret = add_group(list, events, name);
	else
		ret = in_kernel(events, name) ? events_add(list, name) : -ENOENT;
	if (ret == 0 || ret == -ENOMEM)
		return ret;
	note_say(note, SYSTRACE_FTRACE_WARNING, "event %s skipped: this kernel does not have it", name);
	return 0;
}

static int add_rows(struct event_list *list, int events, uint32_t groups, const struct note *note)
{
	char missing[512] = "";
	int ret = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && ret == 0; i++) {
		if (!(rows[i].group & groups))
			continue;
		if (in_kernel(events, rows[i].name)) {
			ret = events_add(list, rows[i].name);
			continue;
		}
		snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing), "%s%s", *missing ? ", " : "",
			 strchr(rows[i].name, '/') + 1);
	}
	if (*missing)
		note_say(note, SYSTRACE_FTRACE_INFO, "events that this kernel does not have are skipped: %s", missing);
	return ret;
}

int events_choose(struct event_list *list, int events, uint32_t groups, const char *const *names,
		  const struct note *note, struct st_err *err)
{
	int ret;

	*list = (struct event_list){ 0 };
	ret = add_rows(list, events, groups, note);
	for (; ret == 0 && names && *names; names++)
		ret = add_named(list, events, *names, note, err);
	if (ret == -ENOMEM)
		return err_set(err, ret, "out of memory");
	if (ret == 0 && list->count == 0)
		return err_set(err, -ENOENT, "no events to record: %s",
			       groups || names ? "this kernel has none of those asked for" : "none were asked for");
	return ret;
}

void events_free(struct event_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->names[i]);
	free(list->names);
	*list = (struct event_list){ 0 };
}
