/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Life of a tracing instance; see instance.h. */
#include "probe/ftrace/instance.h"

#include "base/cpulist.h"
#include "probe/ftrace/rec_owner.h"
#include "systrace/ftrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT_MINIMUM_MS 10u /* how long rmdir of a busy instance is tried: readers of other programs come and go */
#define KEPT_TRIES 50

/* --- left-overs --------------------------------------------------------------------------------------------------- */

/* Its events go off with it; the kernel refuses while somebody holds a file of it open. */
static bool sweep_one(int dir, const char *name, const struct note *note)
{
	if (!rec_owner_gone(name))
		return false;
	if (unlinkat(dir, name, AT_REMOVEDIR) < 0) {
		if (errno != ENOENT)
			note_say(note, SYSTRACE_FTRACE_WARNING,
				 "tracing instance %s of a recorder that was killed cannot be removed: %s", name,
				 strerror(errno));
		return false;
	}
	note_say(note, SYSTRACE_FTRACE_INFO, "removed tracing instance %s of a recorder that was killed", name);
	return true;
}

int instance_sweep(const struct tracefs *fs, const struct note *note)
{
	struct dirent *entry;
	int fd, removed = 0;
	DIR *dir;

	fd = openat(fs->fd, "instances", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while ((entry = readdir(dir)))
		removed += sweep_one(fd, entry->d_name, note);
	closedir(dir);
	return removed;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static int name_instance(struct instance *in, const char *name, struct st_err *err)
{
	static atomic_uint number;

	if (name) {
		if (!*name || strchr(name, '/') || name[0] == '.' || strlen(name) >= sizeof(in->name))
			return err_set(err, -EINVAL, "'%.80s' cannot be the name of a tracing instance", name);
		strcpy(in->name, name);
		return 0;
	}
	rec_owner_name(atomic_fetch_add_explicit(&number, 1, memory_order_relaxed), in->name, sizeof(in->name));
	return 0;
}

int instance_create(struct instance *in, const struct tracefs *fs, const char *name, struct st_err *err)
{
	char path[160];
	int ret;

	*in = (struct instance){ .fs = fs, .fd = -1 };
	ret = name_instance(in, name, err);
	if (ret < 0)
		return ret;
	snprintf(path, sizeof(path), "instances/%s", in->name);
	if (mkdirat(fs->fd, path, 0700) < 0) {
		ret = -errno;
		in->name[0] = '\0'; /* not ours to remove */
		if (ret == -EEXIST)
			return err_set(err, ret,
				       "tracing instance %s is there already; choose another name, or remove it "
				       "(rmdir .../tracing/%s) if nobody uses it",
				       name, path);
		if (ret == -EPERM || ret == -EACCES)
			return err_set(err, ret,
				       "cannot make a tracing instance: %s; this needs root and a tracefs "
				       "that may be written",
				       strerror(-ret));
		return err_set(err, ret, "cannot make a tracing instance: %s", strerror(-ret));
	}
	in->fd = openat(fs->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (in->fd < 0)
		return err_set(err, -errno, "cannot open tracing instance %s: %s", in->name, strerror(errno));
	ret = file_write(in->fd, "tracing_on", "0");
	return ret < 0 ? err_set(err, ret, "cannot write tracing_on of instance %s: %s", in->name, strerror(-ret)) : 0;
}

int instance_remove(struct instance *in, struct st_err *err)
{
	char path[160];
	int ret = 0;

	if (in->fd >= 0) {
		file_write(in->fd, "tracing_on", "0");
		close(in->fd);
		in->fd = -1;
	}
	if (!in->name[0])
		return 0;
	snprintf(path, sizeof(path), "instances/%s", in->name);
	for (int i = 0; i < KEPT_TRIES; i++) {
		if (unlinkat(in->fs->fd, path, AT_REMOVEDIR) == 0 || errno == ENOENT) {
			ret = 0;
			break;
		}
		ret = -errno;
		if (ret != -EBUSY)
			break;
		usleep(KEPT_MINIMUM_MS * 1000);
	}
	if (ret < 0)
		err_set(err, ret, "cannot remove tracing instance %s: %s", in->name, strerror(-ret));
	in->name[0] = '\0';
	return ret;
}

/* --- CPUs --------------------------------------------------------------------------------------------------------- */

static bool has_cpu(int have, uint32_t cpu)
{
	char name[24];

	snprintf(name, sizeof(name), "cpu%" PRIu32, cpu);
	return file_exists(have, name);
}

static int highest_cpu(int have, uint32_t *highest)
{
	int fd = openat(have, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	bool found = false;

	if (!dir) {
		int ret = -errno;

		if (fd >= 0)
			close(fd);
		return ret;
	}
	*highest = 0;
	while ((entry = readdir(dir))) {
		uint32_t cpu;

		if (sscanf(entry->d_name, "cpu%" SCNu32, &cpu) == 1) {
			found = true;
			*highest = cpu > *highest ? cpu : *highest;
		}
	}
	closedir(dir);
	return found ? 0 : -ENOENT;
}

/* Mark the CPUs of the list; what lies beyond is only noted. */
static int mark_cpus(bool *marked, uint32_t highest, const char *list, bool *beyond, struct st_err *err)
{
	const char *at = list;
	uint32_t first, last;
	int ret;

	if (cpulist_check(list) < 0)
		return err_set(err, -EINVAL, "'%.100s' is not a list of CPUs; write it like 0-3,8", list);
	while ((ret = cpulist_next(&at, &first, &last)) == 1) {
		for (uint32_t cpu = first; cpu <= last && cpu <= highest; cpu++)
			marked[cpu] = true;
		*beyond |= last > highest;
	}
	return 0;
}

int cpus_choose(int have, const char *list, uint32_t **cpus, size_t *count, const struct note *note, struct st_err *err)
{
	bool *marked = NULL, beyond = false;
	uint32_t highest = 0;
	int ret;

	*cpus = NULL;
	*count = 0;
	ret = highest_cpu(have, &highest);
	if (ret < 0)
		return err_set(err, ret, "the kernel shows no CPUs in per_cpu: %s", strerror(-ret));
	marked = calloc(highest + 1, sizeof(*marked));
	*cpus = calloc(highest + 1, sizeof(**cpus));
	if (!marked || !*cpus) {
		ret = err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	if (list)
		ret = mark_cpus(marked, highest, list, &beyond, err);
	else
		memset(marked, true, highest + 1);
	for (uint32_t cpu = 0; ret == 0 && cpu <= highest; cpu++)
		if (marked[cpu] && has_cpu(have, cpu))
			(*cpus)[(*count)++] = cpu;
	if (ret == 0 && *count == 0)
		ret = err_set(err, -ENOENT, "none of the CPUs %.100s is in this machine: it has 0-%" PRIu32, list,
			      highest);
	else if (ret == 0 && beyond)
		note_say(note, SYSTRACE_FTRACE_WARNING,
			 "CPU list %.100s reaches beyond this machine (0-%" PRIu32 "): recording those that exist",
			 list, highest);
out:
	free(marked);
	return ret;
}

char *cpus_mask(const uint32_t *cpus, size_t count)
{
	size_t words = count ? cpus[count - 1] / 32 + 1 : 1;
	uint32_t *bits = calloc(words, sizeof(*bits));
	char *text = malloc(words * 9 + 1);
	size_t used = 0;

	if (!bits || !text) {
		free(bits);
		free(text);
		return NULL;
	}
	for (size_t i = 0; i < count; i++)
		bits[cpus[i] / 32] |= 1u << cpus[i] % 32;
	for (size_t i = words; i-- > 0;)
		used += (size_t)sprintf(text + used, "%08" PRIx32 "%s", bits[i], i ? "," : "");
	free(bits);
	return text;
}

/* --- setting up --------------------------------------------------------------------------------------------------- */

/* Only the recorded CPUs get a buffer: 40 MB on each of 192 would be 7.5 GB. */
static int set_buffers(struct instance *in, uint32_t buffer_kb, struct st_err *err)
{
	char path[64], value[16];
	int ret;

	snprintf(value, sizeof(value), "%" PRIu32, buffer_kb);
	for (size_t i = 0; i < in->cpu_count; i++) {
		snprintf(path, sizeof(path), "per_cpu/cpu%" PRIu32 "/buffer_size_kb", in->cpus[i]);
		ret = file_write(in->fd, path, value);
		if (ret < 0)
			return err_set(err, ret,
				       "the kernel refuses a buffer of %" PRIu32 " KB for CPU %" PRIu32 ": %s; "
				       "choose a smaller buffer (--bf_size, buffer_size_kb) or fewer CPUs",
				       buffer_kb, in->cpus[i], strerror(-ret));
	}
	return 0;
}

static int set_mask(struct instance *in, struct st_err *err)
{
	char *mask = cpus_mask(in->cpus, in->cpu_count);
	int ret = mask ? file_write(in->fd, "tracing_cpumask", mask) : -ENOMEM;

	free(mask);
	return ret < 0 ? err_set(err, ret, "cannot set tracing_cpumask: %s", strerror(-ret)) : 0;
}

/* One that does not go on (switched off by lockdown, for example) is left out like one that does not exist. */
static int set_events(struct instance *in, struct event_list *events, const struct note *note, struct st_err *err)
{
	size_t kept = 0;
	int ret;

	if (!events->count) /* functions alone */
		return 0;
	for (size_t i = 0; i < events->count; i++) {
		char path[320];

		snprintf(path, sizeof(path), "events/%s/enable", events->names[i]);
		ret = file_write(in->fd, path, "1");
		if (ret < 0) {
			note_say(note, SYSTRACE_FTRACE_WARNING, "event %s skipped: it cannot be switched on: %s",
				 events->names[i], strerror(-ret));
			free(events->names[i]);
			continue;
		}
		events->names[kept++] = events->names[i];
	}
	events->count = kept;
	return kept ? 0 : err_set(err, -ENOENT, "none of the events can be switched on");
}

/* A new instance has the top level's options. Not every kernel has each of them in instances: what is not there is right. */
static void set_options(struct instance *in)
{
	static const struct {
		const char *path, *value;
	} rows[] = {
		{ "options/record-cmd", "1" }, { "options/overwrite", "1" }, { "options/context-info", "1" },
		{ "options/stacktrace", "0" }, { "options/raw", "0" },	     { "options/hex", "0" },
		{ "options/bin", "0" },	       { "options/fields", "0" },    { "options/userstacktrace", "0" },
		{ "options/event-fork", "0" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		file_write(in->fd, rows[i].path, rows[i].value);
}

int instance_setup(struct instance *in, const uint32_t *cpus, size_t cpu_count, uint32_t buffer_kb,
		   struct event_list *events, const struct note *note, struct st_err *err)
{
	int ret;

	in->cpus = cpus;
	in->cpu_count = cpu_count;
	ret = file_write(in->fd, "trace_clock", "mono_raw");
	if (ret < 0)
		return err_set(err, ret, "this kernel has no trace clock mono_raw (Linux 4.2 or newer): %s",
			       strerror(-ret));
	set_options(in);
	ret = set_mask(in, err);
	if (ret == 0)
		ret = set_buffers(in, buffer_kb, err);
	if (ret == 0)
		ret = set_events(in, events, note, err);
	return ret;
}

int instance_on(const struct instance *in, bool on, struct st_err *err)
{
	int ret = file_write(in->fd, "tracing_on", on ? "1" : "0");

	return ret < 0 ? err_set(err, ret, "cannot write tracing_on of instance %s: %s", in->name, strerror(-ret)) : 0;
}

size_t instance_page_bytes(const struct instance *in)
{
	char line[32];

	if (file_read_line(in->fd, "buffer_subbuf_size_kb", line, sizeof(line)) == 0 && atoi(line) > 0)
		return (size_t)atoi(line) * 1024;
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* --- counters ----------------------------------------------------------------------------------------------------- */

void cpu_stats_parse(const char *text, struct cpu_stats *stats)
{
	const struct {
		const char *name;
		uint64_t *value;
	} keys[] = {
		{ "entries: ", &stats->entries },
		{ "overrun: ", &stats->overrun },
		{ "commit overrun: ", &stats->commit_overrun },
		{ "dropped events: ", &stats->dropped },
		{ "read events: ", &stats->read },
	};

	*stats = (struct cpu_stats){ 0 };
	for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
			if (strncmp(line, keys[i].name, strlen(keys[i].name)) == 0)
				*keys[i].value = strtoull(line + strlen(keys[i].name), NULL, 10);
}

int instance_stats(const struct instance *in, uint32_t cpu, struct cpu_stats *stats, char *text, size_t room)
{
	char path[64], *data;
	int ret;

	snprintf(path, sizeof(path), "per_cpu/cpu%" PRIu32 "/stats", cpu);
	ret = file_read(in->fd, path, &data, NULL);
	if (ret < 0)
		return ret;
	cpu_stats_parse(data, stats);
	if (text)
		snprintf(text, room, "%s", data);
	free(data);
	return 0;
}

void instance_sum(const struct instance *in, struct cpu_stats *sum)
{
	struct cpu_stats one;

	*sum = (struct cpu_stats){ 0 };
	for (size_t i = 0; i < in->cpu_count; i++) {
		if (instance_stats(in, in->cpus[i], &one, NULL, 0) < 0)
			continue;
		sum->entries += one.entries;
		sum->read += one.read;
		sum->overrun += one.overrun;
		sum->commit_overrun += one.commit_overrun;
		sum->dropped += one.dropped;
	}
}
