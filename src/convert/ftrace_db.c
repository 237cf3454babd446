/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Exporter: the SQLite database of scheduling data that MindStudio Insight imports. Rows are sorted by their begin outside
 * of memory, put in with one prepared statement into a file without a journal, indexed at the end, and the file gets its
 * name when it is whole. Format: docs/formats/msinsight-db.md.
 */
#include "convert/decimal.h"
#include "convert/ftrace_sink.h"
#include "convert/ftrace_sort.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_SQLITE
#include <sqlite3.h>

struct db {
	struct fsink base;
	char *path, *part;
	sqlite3 *sql;
	struct frow_sort *sort;
	char args[FROW_ARGS_BYTES];
};

/*
 * AUTOINCREMENT costs a look into another table with each row: the word comes in when all of them are there. Until then ids
 * are counted from 1 by SQLite itself, which appends such rows fastest.
 */
#define SLICE_TABLE(increment)                                                                                     \
	"CREATE TABLE slice (id INTEGER PRIMARY KEY" increment ", timestamp INTEGER, duration INTEGER, name TEXT," \
	" depth INTEGER, track_id INTEGER, cat TEXT, args TEXT, cname TEXT, end_time INTEGER, flag_id TEXT)"

#define FLOW_TABLE(increment)                                                                                          \
	"CREATE TABLE flow (id INTEGER PRIMARY KEY" increment ", flow_id TEXT, name TEXT, cat TEXT, track_id INTEGER," \
	" timestamp INTEGER, type TEXT)"

/* clang-format off */
static const char schema[] =
	"CREATE TABLE process (pid TEXT PRIMARY KEY, process_name TEXT, label TEXT, process_sort_index INTEGER,"
	" parentPid TEXT DEFAULT '0');"
	"CREATE TABLE thread (track_id INTEGER PRIMARY KEY, tid TEXT, pid TEXT, thread_name TEXT,"
	" thread_sort_index INTEGER);"
	SLICE_TABLE("") ";"
	"CREATE TABLE counter (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, pid TEXT, timestamp INTEGER, cat TEXT,"
	" args TEXT);"
	FLOW_TABLE("") ";"
	"INSERT INTO process (pid, process_name) VALUES ('Process Scheduling', 'Process Scheduling'),"
	" ('CPU Scheduling', 'CPU Scheduling');";

/* Sorting in pieces that fit the processor's caches is faster than in large ones. */
static const char indices[] =
	"PRAGMA cache_size = -2048;"
	"CREATE INDEX track_id_cat_index ON slice (track_id, cat);"
	"CREATE INDEX track_id_timestamp_end_time_index ON slice (timestamp, end_time, track_id);"
	"CREATE INDEX flow_id_time_index ON flow (cat, type);";

static const char increment[] =
	"PRAGMA writable_schema = ON;"
	"UPDATE sqlite_master SET sql = '" SLICE_TABLE(" AUTOINCREMENT") "' WHERE name = 'slice';"
	"UPDATE sqlite_master SET sql = '" FLOW_TABLE(" AUTOINCREMENT") "' WHERE name = 'flow';"
	"INSERT INTO sqlite_sequence SELECT * FROM (SELECT 'slice', id FROM slice ORDER BY id DESC LIMIT 1);"
	"INSERT INTO sqlite_sequence SELECT * FROM (SELECT 'flow', id FROM flow ORDER BY id DESC LIMIT 1);"
	"PRAGMA writable_schema = OFF;";
/* clang-format on */

static int sql_errno(int code)
{
	switch (code & 0xff) {
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_READONLY:
	case SQLITE_PERM:
		return -EACCES;
	default:
		return -EIO;
	}
}

static int sql_fail(struct db *db, struct st_err *err)
{
	int code = db->sql ? sqlite3_errcode(db->sql) : SQLITE_NOMEM;

	return err_set(err, sql_errno(code), "cannot write %s: %s", db->path,
		       db->sql ? sqlite3_errmsg(db->sql) : "out of memory");
}

static int run(struct db *db, const char *text, struct st_err *err)
{
	return sqlite3_exec(db->sql, text, NULL, NULL, NULL) == SQLITE_OK ? 0 : sql_fail(db, err);
}

static void db_free(struct db *db)
{
	sqlite3_close(db->sql);
	frow_sort_free(db->sort);
	free(db->path);
	free(db->part);
	free(db);
}

static void db_discard(struct fsink *sink)
{
	struct db *db = (struct db *)sink;

	if (!sink)
		return;
	if (db->part)
		unlink(db->part);
	db_free(db);
}

static struct fsink *db_open(struct fview *view, const char *path, struct st_err *err)
{
	struct db *db = calloc(1, sizeof(*db));
	struct stat st;

	if (!db || !(db->path = strdup(path)) || asprintf(&db->part, "%s.part", path) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		err_set(err, -EINVAL, "%s is no regular file: a database cannot be written there", path);
		goto fail;
	}
	db->base = (struct fsink){ .ops = &fsink_db, .view = view };
	db->sort = frow_sort_new(path, err);
	if (!db->sort)
		goto fail;
	sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	unlink(db->part); /* of a run that was killed */
	if (sqlite3_open_v2(db->part, &db->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
			    NULL) != SQLITE_OK) {
		sql_fail(db, err);
		goto fail;
	}
	if (run(db,
		"PRAGMA page_size = 4096; PRAGMA encoding = 'UTF-8'; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
		"PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -8192; PRAGMA temp_store = FILE;"
		"BEGIN",
		err) ||
	    run(db, schema, err))
		goto fail;
	return &db->base;
fail:
	if (db)
		db_discard(&db->base);
	return NULL;
}

static int db_row(struct fsink *sink, const struct frow *row)
{
	return frow_sort_put(((struct db *)sink)->sort, row);
}

/* The lanes get their numbers in the order of their names; frow.track is an index of view->tracks. */
static int put_threads(struct db *db, int64_t *ids, struct st_err *err)
{
	static const char text[] = "INSERT INTO thread VALUES (?, ?2, ?, ?2, 0)";
	struct fview *view = db->base.view;
	sqlite3_stmt *put = NULL;
	uint32_t *order, count = fview_order(view, &order), i;
	int ret = 0;

	if (view->failed || sqlite3_prepare_v2(db->sql, text, -1, &put, NULL) != SQLITE_OK)
		ret = view->failed ? err_set(err, view->failed, "%s: out of memory", db->path) : sql_fail(db, err);
	for (i = 0; !ret && i < count; i++) {
		const struct ftrack *track = &view->tracks[order[i]];
		char *name = fview_utf8(view, track);

		ids[order[i]] = i + 1;
		sqlite3_bind_int64(put, 1, i + 1);
		sqlite3_bind_text(put, 2, name, -1, free);
		sqlite3_bind_text(put, 3, track->is_cpu ? "CPU Scheduling" : "Process Scheduling", -1, SQLITE_STATIC);
		if (!name || sqlite3_step(put) != SQLITE_DONE)
			ret = sql_fail(db, err);
		sqlite3_reset(put);
	}
	sqlite3_finalize(put);
	free(order);
	return ret;
}

/* Texts of names are escaped for JSON, columns are not: the few that differ are unescaped once, when they are met. */
static void bind_name(sqlite3_stmt *put, struct fview *view, const struct frow *row)
{
	struct ftext name = frow_name(view, row);

	if (memchr(name.text, '\\', name.len))
		sqlite3_bind_text(put, 3, fview_utf8(view, &view->tracks[row->task]), -1, free);
	else
		sqlite3_bind_text(put, 3, name.text, (int)name.len, SQLITE_STATIC);
}

static int put_slice(struct db *db, sqlite3_stmt *put, const int64_t *ids, const struct frow *row)
{
	size_t len = (size_t)(frow_args(db->base.view, row, db->args) - db->args);

	sqlite3_bind_int64(put, 1, (int64_t)row->begin_ns);
	sqlite3_bind_int64(put, 2, (int64_t)(row->end_ns - row->begin_ns));
	bind_name(put, db->base.view, row);
	sqlite3_bind_int64(put, 4, ids[row->track]);
	if (len)
		sqlite3_bind_text(put, 5, db->args, (int)len, SQLITE_STATIC);
	else
		sqlite3_bind_null(put, 5);
	sqlite3_bind_int64(put, 6, (int64_t)row->end_ns);
	return sqlite3_step(put) == SQLITE_DONE ? sqlite3_reset(put) : SQLITE_ERROR;
}

/* An arrow is two rows, each on a slice of its track. */
static int put_flow(sqlite3_stmt *put, const int64_t *ids, const struct frow *row)
{
	char id[DECIMAL_BYTES];
	int end, ret = SQLITE_OK;

	sqlite3_bind_text(put, 1, id, (int)(decimal_u64(id, row->count) - id), SQLITE_STATIC);
	for (end = 0; end < 2 && !ret; end++) {
		sqlite3_bind_int64(put, 2, ids[end ? row->task : row->track]);
		sqlite3_bind_int64(put, 3, (int64_t)(end ? row->end_ns : row->begin_ns));
		sqlite3_bind_text(put, 4, end ? "f" : "s", 1, SQLITE_STATIC);
		ret = sqlite3_step(put) == SQLITE_DONE ? sqlite3_reset(put) : SQLITE_ERROR;
	}
	return ret;
}

static int put_rows(struct db *db, const int64_t *ids, struct st_err *err)
{
	static const char slices[] = "INSERT INTO slice (timestamp, duration, name, track_id, args, end_time)"
				     " VALUES (?, ?, ?, ?, ?, ?)";
	static const char flows[] = "INSERT INTO flow (flow_id, name, cat, track_id, timestamp, type)"
				    " VALUES (?, 'wake', 'sched', ?, ?, ?)";
	sqlite3_stmt *slice = NULL, *flow = NULL;
	struct frow row;
	int ret = frow_sort_done(db->sort);

	if (ret)
		return err_set(err, ret, "cannot sort %s: %s", db->path, strerror(-ret));
	if (sqlite3_prepare_v2(db->sql, slices, -1, &slice, NULL) != SQLITE_OK ||
	    sqlite3_prepare_v2(db->sql, flows, -1, &flow, NULL) != SQLITE_OK)
		ret = sql_fail(db, err);
	while (!ret && (ret = frow_sort_next(db->sort, &row)) == 1) {
		ret = row.kind == ROW_ARROW ? put_flow(flow, ids, &row) : put_slice(db, slice, ids, &row);
		if (ret)
			ret = sql_fail(db, err);
	}
	if (ret < 0 && !err->code)
		err_set(err, ret, "cannot sort %s: %s", db->path, strerror(-ret));
	sqlite3_finalize(slice);
	sqlite3_finalize(flow);
	return ret;
}

/* A journal of an older file of that name would be played into the new one. */
static int take_name(struct db *db, struct st_err *err)
{
	static const char *const tails[] = { "-journal", "-wal", "-shm" };
	char path[4200];
	size_t i;

	for (i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", db->path, tails[i]);
		unlink(path);
	}
	if (rename(db->part, db->path) < 0)
		return err_set(err, -errno, "cannot write %s: %s", db->path, strerror(errno));
	return 0;
}

static int db_finish(struct fsink *sink, uint64_t *bytes, struct st_err *err)
{
	struct db *db = (struct db *)sink;
	int64_t *ids = calloc((size_t)sink->view->track_count + 1, sizeof(*ids));
	struct stat st;
	int ret;

	err->code = 0;
	ret = ids ? put_threads(db, ids, err) : err_set(err, -ENOMEM, "%s: out of memory", db->path);
	if (!ret)
		ret = put_rows(db, ids, err);
	frow_sort_free(db->sort);
	db->sort = NULL;
	free(ids);
	if (!ret)
		ret = run(db, indices, err);
	if (!ret)
		ret = run(db, increment, err);
	if (!ret)
		ret = run(db, "COMMIT; PRAGMA user_version = 0; PRAGMA journal_mode = DELETE", err);
	if (!ret && sqlite3_close(db->sql) != SQLITE_OK)
		ret = sql_fail(db, err);
	else if (!ret)
		db->sql = NULL;
	if (!ret)
		ret = take_name(db, err);
	if (ret) {
		db_discard(sink);
		return ret;
	}
	*bytes = stat(db->path, &st) == 0 ? (uint64_t)st.st_size : 0;
	db_free(db);
	return 0;
}

#else

static struct fsink *db_open(struct fview *view, const char *path, struct st_err *err)
{
	err_set(err, -ENOTSUP, "%s: this build has no SQLite; build with it, or use --format=json", path);
	return NULL;
}

static int db_row(struct fsink *sink, const struct frow *row)
{
	return -ENOTSUP;
}

static int db_finish(struct fsink *sink, uint64_t *bytes, struct st_err *err)
{
	return -ENOTSUP;
}

static void db_discard(struct fsink *sink)
{
}

#endif

const struct fsink_ops fsink_db = {
	.name = "db",
	.output = "ftrace_data.db",
	.help = "SQLite database for MindStudio Insight",
	.arrows = true,
	.open = db_open,
	.row = db_row,
	.finish = db_finish,
	.discard = db_discard,
};
