/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What the tests of spool/ share: places of their own, records numbered from 1, and counting them in the files. */
#ifndef TEST_SPOOL_HELPERS_H
#define TEST_SPOOL_HELPERS_H

#include "safe/clock.h"
#include "spool/dir.h"
#include "spool/drain.h"
#include "spool/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STAGES 400000

static char root[64]; /* of one test: dump and spool below it */

/* Emulators know no MADV_WIPEONFORK: what the agent's atfork handler does then. */
static inline void in_child(struct pool *pool)
{
	if (getenv("ST_EMULATED"))
		atomic_store(&pool->guard->alive, 0);
}

/* --- places ---------------------------------------------------------------------------------------------------------- */

static inline int setup(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/st-spool-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static inline void run(const char *format, ...)
{
	char command[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(command, sizeof(command), format, ap);
	va_end(ap);
	assert_int_equal(system(command), 0);
}

static inline int teardown(void **state)
{
	(void)state;
	run("rm -rf %s", root);
	return 0;
}

static inline const char *dump_path(void)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/dump", root);
	return path;
}

static inline void make_spool(struct spool *spool, struct pool *pool, uint32_t chunks)
{
	struct spool_options options = { .size = sizeof(options), .place = root, .chunks = chunks };
	struct st_err err = { 0 };
	int ret = spool_create(spool, pool, &options, &err);

	if (ret < 0 || !spool->dir[0])
		fail_msg("no spool: %s %s", err.text, spool->note);
}

static inline struct msg_origin identity(void)
{
	static char boot_id[OWNER_BOOT_ID];
	struct owner self;

	owner_self(&self);
	memcpy(boot_id, self.boot_id, sizeof(boot_id));
	return (struct msg_origin){
		.run = msg_text("r1"),
		.host = msg_text("box"),
		.boot_id = msg_text(boot_id),
		.rank = 3,
		.rank_known = true,
		.world_size = 8,
		.job = msg_text("train \"x\".py"),
		.version = msg_text("0.1.0"),
		.format = 1,
		.author = msg_text("agent"),
		.ip = msg_text("10.1.2.3"),
		.pid = self.pid,
		.pid_namespace = self.pidns,
		.proc_start = self.start,
	};
}

static inline struct drain *make_drain(struct spool *spool, struct pool *pool, bool json, uint64_t segment,
				       uint64_t max)
{
	struct drain_options options = {
		.size = sizeof(options),
		.pool = pool,
		.dump_path = dump_path(),
		.lock_base = spool->base,
		.json = json,
		.keep_open = true,
		.segment_bytes = segment,
		.max_bytes = max,
	};
	struct msg_origin origin = identity();
	struct drain *d = drain_new(&options, NULL);

	assert_non_null(d);
	assert_int_equal(drain_identify(d, &origin, NULL), 0);
	return d;
}

/* --- records --------------------------------------------------------------------------------------------------------- */

/* Number n as a stage: what is read back must be 1..n once each. */
static inline bool put_stage(struct pool *pool, uint64_t n, uint32_t name)
{
	struct rec_stage rec = {
		.head = { .bytes = sizeof(rec), .type = REC_STAGE, .step = (uint32_t)n },
		.begin_ns = n * 1000,
		.dur_ns = 500,
		.name = name,
		.stage_id = 1,
		.kind = STAGE_FORWARD,
	};

	return pool_put(pool, &rec, sizeof(rec), POOL_SRC_STAGE);
}

static inline void put_comm(struct pool *pool, uint64_t n)
{
	struct rec_comm rec = {
		.head = { .bytes = sizeof(rec), .type = REC_COMM },
		.begin_ns = n * 1000,
		.dur_ns = 70,
		.count = 4096,
		.op = pool_intern(pool, "all_reduce", 10),
		.group = pool_intern(pool, "dp,0", 4),
		.dtype = pool_intern(pool, "float32", 7),
		.seq = (uint32_t)n,
	};

	pool_put(pool, &rec, sizeof(rec), POOL_SRC_COMM);
}

/* --- reading back ---------------------------------------------------------------------------------------------------- */

static inline char *slurp(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "rb");
	char *text;

	if (!f)
		fail_msg("%s is not there", path);
	fseek(f, 0, SEEK_END);
	*bytes = (size_t)ftell(f);
	rewind(f);
	text = malloc(*bytes + 1);
	assert_int_equal(fread(text, 1, *bytes, f), *bytes);
	text[*bytes] = 0;
	fclose(f);
	return text;
}

static uint8_t seen[MAX_STAGES];

static inline void see(uint64_t n)
{
	assert_true(n < MAX_STAGES);
	seen[n]++;
}

static inline size_t read_pb(const char *data, size_t bytes)
{
	struct pb_reader reader;
	struct pb_field field;
	bool first = true;
	size_t count = 0;
	int ret;

	pb_read(&reader, data, bytes);
	while ((ret = pb_next(&reader, &field)) > 0) {
		struct msg_stage stage;

		if (first)
			assert_int_equal(field.number, MSG_PYTORCH_origin);
		first = false;
		if (field.number != MSG_PYTORCH_pytorch_stages)
			continue;
		assert_int_equal(msg_stage_read(&stage, field.data, field.bytes), 0);
		see(stage.start_ns / 1000);
		count++;
	}
	assert_int_equal(ret, 0);
	return count;
}

/* Each file must be one JSON object: python says so. @pattern as in glob */
static inline void check_json(const char *pattern)
{
	run("python3 -c \"import json, glob, sys\nfiles = glob.glob('%s')\nassert files\n"
	    "for p in files: assert isinstance(json.load(open(p)), dict), p\"",
	    pattern);
}

static inline size_t read_json(const char *text)
{
	const char *at = text;
	size_t count = 0;

	while ((at = strstr(at, "\"start_ns\":"))) {
		at += strlen("\"start_ns\":");
		see(strtoull(at, NULL, 10) / 1000);
		count++;
	}
	return count;
}

/* All files of the timeline directory; segments and files moved aside too. */
static inline size_t read_timeline(bool json)
{
	char dir[128], path[512];
	struct dirent *entry;
	size_t count = 0, bytes;
	char *text;
	DIR *list;

	memset(seen, 0, sizeof(seen));
	snprintf(dir, sizeof(dir), "%s/timeline", dump_path());
	list = opendir(dir);
	assert_non_null(list);
	while ((entry = readdir(list))) {
		if (entry->d_name[0] == '.' || strstr(entry->d_name, ".ext.json"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		text = slurp(path, &bytes);
		count += json ? read_json(text) : read_pb(text, bytes);
		free(text);
	}
	closedir(list);
	if (json) {
		snprintf(path, sizeof(path), "%s/*", dir);
		check_json(path);
	}
	return count;
}

static inline void check_once(uint64_t upto)
{
	uint64_t n;

	for (n = 1; n <= upto; n++) {
		if (seen[n] != 1)
			fail_msg("record %llu is there %d times", (unsigned long long)n, seen[n]);
	}
}

static inline void count_done(void *ctx, const struct recover_report *report)
{
	if (report->verdict == RECOVER_FAILED)
		print_message("%s: %d %s (%d records, %d files)\n", report->dir, report->verdict, report->text,
			      (int)report->records, (int)report->files);
	*(int *)ctx += report->verdict == RECOVER_DONE;
}

static inline int recover(void)
{
	int done = 0;
	struct recover_options options = {
		.size = sizeof(options),
		.place = root,
		.uid = geteuid(),
		.report = count_done,
		.ctx = &done,
	};

	assert_true(recover_run(&options, NULL) >= 0);
	return done;
}

static inline void wait_us(long us)
{
	struct timespec ts = { 0, us * 1000 };

	nanosleep(&ts, NULL);
}

#endif
