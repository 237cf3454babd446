/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The meta file; see meta.h. */
#include "agent/meta.h"

#include "agent/identity.h"
#include "agent/life.h"
#include "safe/clock.h"
#include "spool/out.h"
#include "wire/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define META_FORMAT 1
#define META_BYTES 16384

void meta_part(char *out, size_t room, const char *text)
{
	size_t i;

	for (i = 0; text[i] && i < room - 1; i++) {
		unsigned char c = (unsigned char)text[i];

		out[i] = c <= ' ' || c == '/' || c == ':' || c == 127 || (c == '.' && !i) ? '_' : (char)c;
	}
	out[i] = 0;
}

void meta_origin(struct msg_origin *origin)
{
	*origin = (struct msg_origin){
		.run = msg_text(identity.run),
		.host = msg_text(identity.host),
		.boot_id = msg_text(identity.boot_id),
		.pids = msg_text(identity.pids),
		.proc_start = identity.proc_start,
		.rank = identity.rank,
		.rank_known = identity.rank_known,
		.local_rank = identity.local_rank,
		.world_size = identity.world_size,
		.job = msg_text(identity.job),
		.version = msg_text(ST_VERSION),
		.format = META_FORMAT,
		.author = msg_text("agent"),
		.ip = msg_text(identity.ip),
		.pid = identity.pid,
		.pid_namespace = identity.pidns,
		.run_start_us = identity.proc_start_unix * 1000000u,
	};
}

static void text(struct json_writer *w, const char *key, const char *value)
{
	json_key(w, key);
	json_text(w, value, strlen(value));
}

static void number(struct json_writer *w, const char *key, uint64_t value)
{
	json_key(w, key);
	json_u64(w, value);
}

static void flag(struct json_writer *w, const char *key, bool value)
{
	json_key(w, key);
	json_bool(w, value);
}

static void put_identity(struct json_writer *w)
{
	text(w, "run", identity.run);
	text(w, "host", identity.host);
	text(w, "boot_id", identity.boot_id);
	number(w, "pid", identity.pid);
	text(w, "pids", identity.pids);
	number(w, "pid_namespace", identity.pidns);
	number(w, "proc_start", identity.proc_start);
	number(w, "start_unix", identity.proc_start_unix);
	number(w, "rank", identity.rank);
	flag(w, "rank_known", identity.rank_known);
	number(w, "local_rank", identity.local_rank);
	number(w, "world_size", identity.world_size);
	text(w, "job", identity.job);
	if (agent.pool.head->worker_of & POOL_WORKER)
		number(w, "worker_of", agent.pool.head->worker_of & ~POOL_WORKER);
	text(w, "ip", identity.ip);
}

static void put_clocks(struct json_writer *w)
{
	struct clock_snapshot now;

	clock_snapshot_take(&now);
	json_key(w, "clocks");
	json_open(w, '{');
	number(w, "mono_ns", now.mono_ns);
	number(w, "mono_raw_ns", now.mono_raw_ns);
	number(w, "boottime_ns", now.boottime_ns);
	number(w, "realtime_ns", now.realtime_ns);
	json_close(w, '}');
}

static void put_files(struct json_writer *w, const struct io_status *status)
{
	size_t root = strlen(status->dump_path);
	int i;

	json_key(w, "files");
	json_open(w, '[');
	for (i = 0; i < status->files; i++) {
		const char *path = status->file[i];

		/* relative: the tree may be moved */
		if (!strncmp(path, status->dump_path, root) && path[root] == '/')
			path += root + 1;
		json_text(w, path, strlen(path));
	}
	json_close(w, ']');
}

static size_t encode(const struct io_status *status, bool ended, char *out, size_t room)
{
	struct json_writer w;

	json_init(&w, out, room);
	json_open(&w, '{');
	number(&w, "meta", META_FORMAT);
	text(&w, "author", "agent");
	text(&w, "version", ST_VERSION);
	put_identity(&w);
	text(&w, "started_by", life_reason_text(atomic_load_explicit(&life.start_reason, memory_order_relaxed)));
	text(&w, "recorded_by", life_reason_text(atomic_load_explicit(&life.record_reason, memory_order_relaxed)));
	text(&w, "spool", life.spool.dir);
	put_clocks(&w);
	put_files(&w, status);
	number(&w, "records", status->drain.records);
	number(&w, "dropped", status->drain.dropped);
	flag(&w, "ended", ended);
	json_close(&w, '}');
	json_raw(&w, "\n");
	return w.full ? 0 : w.used;
}

int meta_write(const struct io_status *status, bool ended, struct st_err *err)
{
	static char data[META_BYTES]; /* the io thread's alone */
	char run[140], host[80], path[POOL_PATH + 300];
	size_t bytes = encode(status, ended, data, sizeof(data));
	int ret;

	if (!bytes)
		return err_set(err, -EMSGSIZE, "the meta file would be longer than %d bytes", META_BYTES);
	meta_part(run, sizeof(run), identity.run);
	meta_part(host, sizeof(host), identity.host);
	snprintf(path, sizeof(path), "%s/meta", status->dump_path);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/meta/%s", status->dump_path, run);
	if (mkdir(path, 0755) && errno != EEXIST)
		return err_set(err, -errno, "cannot make %s: %s", path, strerror(errno));
	snprintf(path, sizeof(path), "%s/meta/%s/%s--%u--%u.json", status->dump_path, run, host, identity.rank,
		 identity.pid);
	ret = out_replace(path, data, bytes);
	return ret < 0 ? err_set(err, ret, "cannot write %s: %s", path, strerror(-ret)) : 0;
}
