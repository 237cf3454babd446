/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lists of events in which every name must exist; see events_named() in events.h. Used by the Ftrace plugin. */
#include "base/near.h"
#include "probe/ftrace/events.h"
#include "probe/ftrace/tracefs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-*?"
#define NAME_BYTES 256

/* struct names - a walk over the directories (groups) or events below a directory */
struct names {
	DIR *dir;
	const char *needs; /* file that a group, an event must have */
};

static int names_open(struct names *names, int events, const char *group)
{
	int fd = openat(events, group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	*names = (struct names){ .dir = fd < 0 ? NULL : fdopendir(fd), .needs = strcmp(group, ".") ? "format" : "." };
	if (names->dir)
		return 0;
	if (fd >= 0)
		close(fd);
	return -errno;
}

static const char *names_next(struct names *names)
{
	struct dirent *entry;

	while ((entry = readdir(names->dir))) {
		char path[sizeof(entry->d_name) + 8];

		snprintf(path, sizeof(path), "%s/%s", entry->d_name, names->needs);
		if (entry->d_name[0] != '.' && file_exists(dirfd(names->dir), path))
			return entry->d_name;
	}
	return NULL;
}

static void names_close(struct names *names)
{
	closedir(names->dir);
}

/* --- what is near ------------------------------------------------------------------------------------------------- */

/* The name nearest to @word below a directory; "" = none. */
static void nearest(int events, const char *group, const char *word, char *found, size_t room)
{
	struct near near = { .word = word };
	struct names names;
	const char *name;

	*found = '\0';
	if (names_open(&names, events, group) < 0)
		return;
	while ((name = names_next(&names))) {
		near_offer(&near, name);
		if (near.best == name) { /* readdir's memory does not last */
			snprintf(found, room, "%s", name);
			near.best = found;
		}
	}
	names_close(&names);
}

/* The group that has an event of this name. */
static bool group_of(int events, const char *event, char *group, size_t room)
{
	struct names names;
	const char *name;
	bool found = false;

	if (names_open(&names, events, ".") < 0)
		return false;
	while (!found && (name = names_next(&names))) {
		char path[2 * NAME_BYTES + 16];

		snprintf(path, sizeof(path), "%s/%s/format", name, event);
		found = file_exists(events, path);
		if (found)
			snprintf(group, room, "%s", name);
	}
	names_close(&names);
	return found;
}

/* " (sched has sched_switch, sched_waking, ...)", as many as fit. */
static void list_group(int events, const char *group, char *text, size_t room)
{
	size_t used = (size_t)snprintf(text, room, " (%.60s has", group);
	struct names names;
	const char *name;

	if (names_open(&names, events, group) < 0)
		return;
	while ((name = names_next(&names)) && used + strlen(name) + 8 < room)
		used += (size_t)snprintf(text + used, room - used, " %s,", name);
	names_close(&names);
	snprintf(text + used - (text[used - 1] == ','), room - used + 1, name ? ", ...)" : ")");
}

/* " (did you mean ...?)" for group/event, either of which may not exist; "" = nothing is near. */
static void advise(int events, const char *group, const char *event, char *advice, size_t room)
{
	char near_group[NAME_BYTES] = "", near_event[NAME_BYTES] = "", path[2 * NAME_BYTES];
	const char *alone = event ? event : group; /* an event's name without its group */

	*advice = '\0';
	snprintf(path, sizeof(path), "%s/.", group);
	if (group_of(events, alone, near_group, sizeof(near_group)))
		snprintf(near_event, sizeof(near_event), "%s", alone);
	else if (event && file_exists(events, path))
		snprintf(near_group, sizeof(near_group), "%s", group);
	else
		nearest(events, ".", group, near_group, sizeof(near_group));
	if (near_group[0] && event && !near_event[0])
		nearest(events, near_group, event, near_event, sizeof(near_event));
	if (near_event[0])
		snprintf(advice, room, " (did you mean %s/%s?)", near_group, near_event);
	else if (near_group[0] && event)
		list_group(events, near_group, advice, room);
	else if (near_group[0])
		snprintf(advice, room, " (did you mean %s?)", near_group);
}

/* --- one name ----------------------------------------------------------------------------------------------------- */

/* Return: 0 or -errno; @found grows with what matches. */
static int add_events(struct event_list *list, int events, const char *group, const char *pattern, size_t *found)
{
	char full[2 * NAME_BYTES + 16];
	struct names names;
	const char *name;
	int ret = names_open(&names, events, group);

	if (ret < 0)
		return ret == -ENOENT ? 0 : ret;
	while (ret == 0 && (name = names_next(&names))) {
		if (fnmatch(pattern, name, 0) != 0)
			continue;
		snprintf(full, sizeof(full), "%s/%s", group, name);
		ret = events_add(list, full);
		(*found)++;
	}
	names_close(&names);
	return ret;
}

static int add_name(struct event_list *list, int events, const char *group, const char *event, size_t *found)
{
	const char *pattern = event ? event : "*", *name;
	struct names names;
	int ret;

	if (!strpbrk(group, "*?"))
		return add_events(list, events, group, pattern, found);
	ret = names_open(&names, events, ".");
	if (ret < 0)
		return ret;
	while (ret == 0 && (name = names_next(&names)))
		if (fnmatch(group, name, 0) == 0)
			ret = add_events(list, events, name, pattern, found);
	names_close(&names);
	return ret;
}

/* "sched/nope (did you mean sched/...?)", one behind the other. */
static void tell_missing(int events, const char *group, const char *event, char *text, size_t room)
{
	size_t used = strlen(text), left = room - used;
	char advice[2 * NAME_BYTES + 32];

	advise(events, group, event, advice, left < 256 ? 96 : 256);
	snprintf(text + used, left, "%s%s%s%s%s", used ? ", " : "", group, event ? "/" : "", event ? event : "",
		 advice);
}

int events_named(struct event_list *list, int events, const char *text, struct st_err *err)
{
	char missing[384] = "";

	*list = (struct event_list){ 0 };
	while (*text) {
		size_t len = strcspn(text, ","), found = 0;
		char word[NAME_BYTES], *event;
		int ret;

		if (len == 0 || len >= sizeof(word))
			return err_set(err, -EINVAL, "'%.80s' is not a list of events such as sched/sched_switch,irq",
				       text);
		snprintf(word, sizeof(word), "%.*s", (int)len, text);
		event = strpbrk(word, "/:");
		if (event)
			*event++ = '\0';
		if (!word[0] || word[strspn(word, NAME_CHARS)] ||
		    (event && (!event[0] || event[strspn(event, NAME_CHARS)])))
			return err_set(err, -EINVAL,
				       "'%.*s' is not an event; write group/name, such as "
				       "sched/sched_switch",
				       (int)len, text);
		text += len + (text[len] == ',');
		ret = add_name(list, events, word, event, &found);
		if (ret < 0)
			return err_set(err, ret, "cannot read the events of this kernel: %s", strerror(-ret));
		if (!found)
			tell_missing(events, word, event, missing, sizeof(missing));
	}
	if (*missing)
		return err_set(err, -ENOENT, "this kernel has no event %s", missing);
	return 0;
}
