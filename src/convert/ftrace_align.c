/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Time axes and pid maps for `convert ftrace`; see ftrace_align.h. */
#include "convert/ftrace_align.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#define SEARCH_DEPTH 16

uint64_t ftrace_axis_map(const struct ftrace_axis *axis, uint64_t t_ns)
{
	size_t i = 0;
	int64_t pace_trace, pace_wall;

	if (!axis->points)
		return t_ns;
	while (i + 1 < axis->points && t_ns >= axis->at[i + 1].trace_ns)
		i++;
	if (t_ns >= axis->at[i].trace_ns && i + 1 < axis->points) {
		pace_trace = (int64_t)(axis->at[i + 1].trace_ns - axis->at[i].trace_ns);
		pace_wall = (int64_t)(axis->at[i + 1].wall_ns - axis->at[i].wall_ns);
		return axis->at[i].wall_ns +
		       (uint64_t)((__int128)(int64_t)(t_ns - axis->at[i].trace_ns) * pace_wall / pace_trace);
	}
	return axis->at[i].wall_ns + (t_ns - axis->at[i].trace_ns);
}

/* ---- profiling data ----------------------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_database(const char *name)
{
	size_t len = strlen(name);

	return strcmp(name, "analysis.db") == 0 ||
	       (begins(name, "ascend_pytorch_profiler") && len > 3 && strcmp(name + len - 3, ".db") == 0);
}

/* Names in an order of their own, so that the same directory gives the same file everywhere. */
static void search(const char *dir, int depth, struct ftrace_profile *profile)
{
	struct dirent **names;
	char path[4096];
	struct stat st;
	int count = scandir(dir, &names, NULL, alphasort), i;

	for (i = 0; i < count; i++) {
		const char *name = names[i]->d_name;

		if (strcmp(name, ".") && strcmp(name, "..") &&
		    (size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) < sizeof(path) && lstat(path, &st) == 0) {
			if (S_ISREG(st.st_mode)) {
				if (begins(name, "start_info") && !*profile->start_info)
					strcpy(profile->start_info, path);
				else if (begins(name, "end_info") && !*profile->end_info)
					strcpy(profile->end_info, path);
				else if (is_database(name) && !*profile->database)
					strcpy(profile->database, path);
			} else if (S_ISDIR(st.st_mode) && depth < SEARCH_DEPTH) {
				search(path, depth + 1, profile);
			}
		}
		free(names[i]);
	}
	if (count >= 0)
		free(names);
}

#ifdef HAVE_JANSSON
static json_t *load(const char *path, struct st_err *err)
{
	json_error_t why;
	json_t *root = json_load_file(path, 0, &why);

	if (!root) {
		err_set(err, -EINVAL, "%s is no JSON: line %d, column %d: %s", path, why.line, why.column, why.text);
	} else if (!json_is_object(root)) {
		err_set(err, -EINVAL, "%s holds no JSON object at its top", path);
		json_decref(root);
		root = NULL;
	}
	return root;
}

/* A number, also as text. */
static bool number_of(const json_t *value, uint64_t *number)
{
	const char *text = json_string_value(value);
	char *end;

	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		*number = (uint64_t)json_integer_value(value);
		return true;
	}
	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	*number = strtoull(text, &end, 10);
	return !*end && !errno;
}

static int need_number(const json_t *root, const char *path, const char *key, uint64_t *number, struct st_err *err)
{
	const json_t *value = json_object_get(root, key);

	if (value && number_of(value, number))
		return 0;
	return err_set(err, -EINVAL, "%s: \"%s\" %s", path, key, value ? "is no number" : "is missing");
}

static int read_start(const char *path, struct ftrace_axis *axis, struct st_err *err)
{
	uint64_t raw_ns, wall_us;
	json_t *root = load(path, err);
	int ret;

	if (!root)
		return -EINVAL;
	ret = need_number(root, path, "clockMonotonicRaw", &raw_ns, err);
	if (!ret)
		ret = need_number(root, path, "collectionTimeBegin", &wall_us, err);
	json_decref(root);
	if (!ret && wall_us > INT64_MAX / 1000)
		ret = err_set(err, -EINVAL, "%s: collectionTimeBegin is %llu, which are no microseconds since 1970",
			      path, (unsigned long long)wall_us);
	if (ret)
		return ret;
	*axis = (struct ftrace_axis){ .points = 1, .window = true, .begin_ns = raw_ns, .end_ns = UINT64_MAX };
	axis->at[0].trace_ns = raw_ns;
	axis->at[0].wall_ns = wall_us * 1000;
	return 0;
}

static int read_end(const char *path, struct ftrace_axis *axis, struct st_err *err)
{
	json_t *root = load(path, err);
	int ret;

	if (!root)
		return -EINVAL;
	ret = need_number(root, path, "clockMonotonicRaw", &axis->end_ns, err);
	json_decref(root);
	if (!ret && axis->end_ns < axis->begin_ns)
		ret = err_set(err, -EINVAL, "%s: the end (%llu ns) lies before the begin in start_info (%llu ns)", path,
			      (unsigned long long)axis->end_ns, (unsigned long long)axis->begin_ns);
	return ret;
}

static int add_clock(const json_t *clocks, const char *path, const char *key, struct ftrace_axis *axis,
		     struct st_err *err)
{
	uint64_t trace_ns, wall_ns;
	int ret;

	if (!json_is_object(clocks))
		return err_set(err, -EINVAL, "%s: \"clocks\" is neither an object nor an array of objects", path);
	ret = need_number(clocks, path, key, &trace_ns, err);
	if (!ret)
		ret = need_number(clocks, path, "realtime_ns", &wall_ns, err);
	if (ret)
		return ret;
	/* equal ones say nothing new; more than fit in are left out, the last one counts */
	if (axis->points && trace_ns <= axis->at[axis->points - 1].trace_ns)
		return 0;
	if (axis->points == FTRACE_AXIS_POINTS)
		axis->points--;
	axis->at[axis->points].trace_ns = trace_ns;
	axis->at[axis->points++].wall_ns = wall_ns;
	return 0;
}

int ftrace_align_clocks(const char *path, const char *trace_clock, struct ftrace_axis *axis, struct st_err *err)
{
	const char *key = strcmp(trace_clock, "mono") == 0   ? "mono_ns"
			  : strcmp(trace_clock, "boot") == 0 ? "boottime_ns"
							     : "mono_raw_ns";
	json_t *root = load(path, err), *clocks;
	size_t i;
	int ret = 0;

	if (!root)
		return -EINVAL;
	*axis = (struct ftrace_axis){ 0 };
	clocks = json_object_get(root, "clocks");
	if (!clocks)
		ret = err_set(err, -EINVAL, "%s: \"clocks\" is missing: no meta file of systrace", path);
	else if (!json_is_array(clocks))
		ret = add_clock(clocks, path, key, axis, err);
	for (i = 0; !ret && clocks && i < json_array_size(clocks); i++)
		ret = add_clock(json_array_get(clocks, i), path, key, axis, err);
	if (!ret && !axis->points)
		ret = err_set(err, -EINVAL, "%s: \"clocks\" is empty", path);
	json_decref(root);
	return ret;
}
#else
static int no_jansson(const char *path, struct st_err *err)
{
	return err_set(err, -ENOTSUP, "%s: this build cannot read JSON; build with jansson", path);
}

static int read_start(const char *path, struct ftrace_axis *axis, struct st_err *err)
{
	return no_jansson(path, err);
}

static int read_end(const char *path, struct ftrace_axis *axis, struct st_err *err)
{
	return no_jansson(path, err);
}

int ftrace_align_clocks(const char *path, const char *trace_clock, struct ftrace_axis *axis, struct st_err *err)
{
	return no_jansson(path, err);
}
#endif

int ftrace_align_profile(const char *dir, struct ftrace_axis *axis, struct ftrace_profile *profile, struct st_err *err)
{
	struct stat st;
	int ret;

	*profile = (struct ftrace_profile){ 0 };
	if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
		return err_set(err, -ENOENT, "--profiling_data: %s is no directory", dir);
	search(dir, 0, profile);
	if (!*profile->start_info)
		return err_set(
			err, -ENOENT,
			"there is no start_info below %s: give a PROF_* or *_ascend_pt directory whose data were "
			"collected on this host, or one that holds several",
			dir);
	ret = read_start(profile->start_info, axis, err);
	if (!ret && *profile->end_info)
		ret = read_end(profile->end_info, axis, err);
	return ret;
}

/* ---- pid map -------------------------------------------------------------------------------------------------------- */

struct pid_map {
	struct pid_entry *entries; /* by host_pid */
	size_t count;
};

const struct pid_entry *pid_map_find(const struct pid_map *map, int32_t host_pid)
{
	size_t low = 0, high = map->count, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (map->entries[mid].host_pid < host_pid)
			low = mid + 1;
		else
			high = mid;
	}
	return low < map->count && map->entries[low].host_pid == host_pid ? &map->entries[low] : NULL;
}

size_t pid_map_count(const struct pid_map *map)
{
	return map->count;
}

const struct pid_entry *pid_map_entry(const struct pid_map *map, size_t i)
{
	return &map->entries[i];
}

void pid_map_free(struct pid_map *map)
{
	size_t i;

	if (!map)
		return;
	for (i = 0; i < map->count; i++)
		free((char *)map->entries[i].name);
	free(map->entries);
	free(map);
}

#ifdef HAVE_JANSSON
static int32_t pid_of(const json_t *value, int32_t otherwise)
{
	uint64_t number;

	return value && number_of(value, &number) && number <= INT32_MAX ? (int32_t)number : otherwise;
}

static int by_host_pid(const void *left, const void *right)
{
	const struct pid_entry *a = left, *b = right;

	return (a->host_pid > b->host_pid) - (a->host_pid < b->host_pid);
}

static int add_entry(struct pid_map *map, const char *key, const json_t *value)
{
	struct pid_entry *entry = &map->entries[map->count];
	const char *name = json_string_value(json_object_get(value, "name"));
	char *end;
	long host = strtol(key, &end, 10);

	if (*end || end == key || host < 0 || host > INT32_MAX || !json_is_object(value))
		return -EINVAL;
	*entry = (struct pid_entry){ .host_pid = (int32_t)host };
	/* "" and nothing at all: not in a namespace of its own */
	entry->pid = pid_of(json_object_get(value, "NSpid"), (int32_t)host);
	entry->tgid = pid_of(json_object_get(value, "Tgid"), -1);
	entry->ppid = pid_of(json_object_get(value, "PPid"), -1);
	entry->name = strdup(name ? name : "");
	map->count++;
	return entry->name ? 0 : -ENOMEM;
}

struct pid_map *pid_map_load(const char *path, struct st_err *err)
{
	json_t *root = load(path, err), *value;
	struct pid_map *map = NULL;
	const char *key;
	int ret = 0;

	if (!root) {
		errno = EINVAL;
		return NULL;
	}
	map = calloc(1, sizeof(*map));
	if (map)
		map->entries = calloc(json_object_size(root) + 1, sizeof(*map->entries));
	if (!map || !map->entries)
		ret = err_set(err, -ENOMEM, "%s: out of memory", path);
	if (!ret) {
		json_object_foreach(root, key, value)
		{
			ret = add_entry(map, key, value);
			if (ret) {
				err_set(err, ret, "%s: entry \"%s\" is not of the form \"pid\": {\"NSpid\": ...}", path,
					key);
				break;
			}
		}
	}
	json_decref(root);
	if (ret) {
		pid_map_free(map);
		errno = -ret;
		return NULL;
	}
	qsort(map->entries, map->count, sizeof(*map->entries), by_host_pid);
	return map;
}
#else
struct pid_map *pid_map_load(const char *path, struct st_err *err)
{
	errno = -no_jansson(path, err);
	return NULL;
}
#endif
