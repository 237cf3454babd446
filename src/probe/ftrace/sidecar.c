/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See sidecar.h. */
#include "probe/ftrace/sidecar.h"

#include "wire/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FIXED_BYTES 4096
#define EVENT_BYTES 300 /* of one event's name */
#define CPU_BYTES 200 /* of one CPU's number and losses */

void sidecar_begin(struct sidecar *sidecar)
{
	clock_snapshot_take(&sidecar->begin);
}

void sidecar_end(struct sidecar *sidecar)
{
	clock_snapshot_take(&sidecar->end);
}

static void put_text(struct json_writer *json, const char *key, const char *text)
{
	json_key(json, key);
	json_text(json, text, strlen(text));
}

static void put_number(struct json_writer *json, const char *key, uint64_t number)
{
	json_key(json, key);
	json_u64(json, number);
}

static void put_clocks(struct json_writer *json, const struct clock_snapshot *clocks)
{
	json_open(json, '{');
	put_number(json, "mono_ns", clocks->mono_ns);
	put_number(json, "mono_raw_ns", clocks->mono_raw_ns);
	put_number(json, "boottime_ns", clocks->boottime_ns);
	put_number(json, "realtime_ns", clocks->realtime_ns);
	json_close(json, '}');
}

static void put_host(struct json_writer *json)
{
	struct utsname host;
	char boot[64] = "";

	if (uname(&host) == 0) {
		put_text(json, "host", host.nodename);
		put_text(json, "kernel", host.release);
		put_text(json, "machine", host.machine);
	}
	if (file_read_line(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) == 0)
		put_text(json, "boot_id", boot);
}

static void put_losses(struct json_writer *json, const struct recording *rec)
{
	json_key(json, "losses");
	json_open(json, '[');
	for (size_t i = 0; i < rec->loss_count; i++) {
		const struct cpu_loss *loss = &rec->losses[i];

		json_open(json, '{');
		put_number(json, "cpu", loss->cpu);
		put_number(json, "overrun", loss->stats.overrun);
		put_number(json, "commit_overrun", loss->stats.commit_overrun);
		put_number(json, "dropped", loss->stats.dropped);
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void put_all(struct json_writer *json, const struct sidecar *sidecar, const struct recording *rec,
		    const struct backend *backend, const struct systrace_ftrace_status *status)
{
	json_open(json, '{');
	put_text(json, "format", "systrace ftrace meta");
	put_number(json, "version", 1);
	put_text(json, "recorder", "sysTrace " ST_VERSION);
	put_text(json, "backend", backend->name);
	put_text(json, "trace_clock", "mono_raw");
	put_host(json);
	json_key(json, "clocks");
	json_open(json, '[');
	put_clocks(json, &sidecar->begin);
	put_clocks(json, &sidecar->end);
	json_close(json, ']');
	put_number(json, "buffer_kb", rec->buffer_kb);
	put_number(json, "events_recorded", status->events);
	put_number(json, "events_lost", status->lost);
	put_losses(json, rec);
	json_key(json, "cpus");
	json_open(json, '[');
	for (size_t i = 0; i < rec->cpu_count; i++)
		json_u64(json, rec->cpus[i]);
	json_close(json, ']');
	json_key(json, "events");
	json_open(json, '[');
	for (size_t i = 0; i < rec->events.count; i++)
		json_text(json, rec->events.names[i], strlen(rec->events.names[i]));
	json_close(json, ']');
	json_close(json, '}');
	json_raw(json, "\n");
}

/* A file of that name is replaced as a whole. */
static int save(const char *path, const char *data, size_t bytes, struct st_err *err)
{
	char part[4200];
	int fd, ret = 0;

	snprintf(part, sizeof(part), "%s.%d.part", path, (int)getpid());
	unlink(part);
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return err_set(err, -errno, "cannot create %s: %s", part, strerror(errno));
	if (write(fd, data, bytes) != (ssize_t)bytes)
		ret = errno ? -errno : -ENOSPC;
	if (close(fd) < 0 && ret == 0)
		ret = -errno;
	if (ret == 0 && rename(part, path) < 0)
		ret = -errno;
	if (ret < 0) {
		unlink(part);
		err_set(err, ret, "cannot write %s: %s", path, strerror(-ret));
	}
	return ret;
}

int sidecar_write(const struct sidecar *sidecar, const struct recording *rec, const struct backend *backend,
		  const struct systrace_ftrace_status *status, const char *output, struct st_err *err)
{
	size_t room = FIXED_BYTES + rec->events.count * EVENT_BYTES + (rec->cpu_count + rec->loss_count) * CPU_BYTES;
	char *data = malloc(room), path[4160];
	struct json_writer json;
	int ret;

	if (!data)
		return err_set(err, -ENOMEM, "out of memory");
	json_init(&json, data, room);
	put_all(&json, sidecar, rec, backend, status);
	snprintf(path, sizeof(path), "%s.meta.json", output);
	errno = 0;
	ret = json.full ? err_set(err, -E2BIG, "%s: too many events", path) : save(path, data, json.used, err);
	free(data);
	return ret;
}
