/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The tables trace_task_summary and trace_irq_detail that MindStudio Insight reads beside a converted trace; see sched.h.
 * A table that the viewer made before has four columns more: they are filled as well.
 */
#include "analyze/sched.h"

#include "trace/session.h"

#include <errno.h>
#include <string.h>

#ifdef HAVE_SQLITE
#include <sqlite3.h>

static const char tables[] =
	"CREATE TABLE IF NOT EXISTS trace_task_summary(comm TEXT, pid INTEGER, cpu_id INTEGER, "
	"running_ns INTEGER DEFAULT 0, sleeping_ns INTEGER DEFAULT 0, runnable_ns INTEGER DEFAULT 0, "
	"cs_count INTEGER DEFAULT 0, cs_involuntary_count INTEGER DEFAULT 0, PRIMARY KEY(comm, pid, cpu_id));"
	"CREATE TABLE IF NOT EXISTS trace_irq_detail(comm TEXT, pid INTEGER, cpu_id INTEGER, irq_type TEXT, "
	"irq_name TEXT, count INTEGER DEFAULT 0, time_ns INTEGER DEFAULT 0, "
	"PRIMARY KEY(comm, pid, cpu_id, irq_type, irq_name));"
	"DELETE FROM trace_task_summary; DELETE FROM trace_irq_detail;";

static const char task_sql[] =
	"INSERT INTO trace_task_summary(comm, pid, cpu_id, running_ns, sleeping_ns, runnable_ns, "
	"cs_count, cs_involuntary_count) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
static const char task_irq_sql[] =
	"INSERT INTO trace_task_summary(comm, pid, cpu_id, running_ns, sleeping_ns, runnable_ns, cs_count, "
	"cs_involuntary_count, soft_irq_count, soft_irq_duration, hard_irq_count, hard_irq_duration) "
	"VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
static const char irq_sql[] = "INSERT INTO trace_irq_detail(comm, pid, cpu_id, irq_type, irq_name, count, time_ns) "
			      "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";

static void bind_name(sqlite3_stmt *stmt, int at, const struct ev_session *session, uint32_t id)
{
	sqlite3_bind_text(stmt, at, ev_text(session, id), (int)strlen(ev_text(session, id)), SQLITE_STATIC);
}

/* Insert what was bound. Return: SQLITE_OK or the error. */
static int insert(sqlite3_stmt *stmt)
{
	int rc = sqlite3_step(stmt);

	sqlite3_reset(stmt);
	return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int insert_tasks(sqlite3 *db, const struct sched_result *result, const struct ev_session *session)
{
	sqlite3_stmt *stmt = NULL;
	int rc = sqlite3_prepare_v2(db, task_irq_sql, -1, &stmt, NULL);
	bool irqs = rc == SQLITE_OK;
	size_t i;

	if (!irqs)
		rc = sqlite3_prepare_v2(db, task_sql, -1, &stmt, NULL);
	for (i = 0; rc == SQLITE_OK && i < result->task_count; i++) {
		const struct sched_row *row = &result->tasks[i];
		const uint64_t numbers[] = { row->ns[SCHED_RUNNING],	 sched_sleeping(row),
					     row->ns[SCHED_RUNNABLE],	 row->switches,
					     row->involuntary,		 row->irq_count[SCHED_SOFTIRQ],
					     row->irq_ns[SCHED_SOFTIRQ], row->irq_count[SCHED_IRQ],
					     row->irq_ns[SCHED_IRQ] };
		int n;

		bind_name(stmt, 1, session, row->comm);
		sqlite3_bind_int(stmt, 2, row->pid);
		sqlite3_bind_int(stmt, 3, row->cpu);
		for (n = 0; n < (irqs ? 9 : 5); n++)
			sqlite3_bind_int64(stmt, 4 + n, (sqlite3_int64)numbers[n]);
		rc = insert(stmt);
	}
	sqlite3_finalize(stmt);
	return rc;
}

static int insert_irqs(sqlite3 *db, const struct sched_result *result, const struct ev_session *session)
{
	sqlite3_stmt *stmt = NULL;
	int rc = sqlite3_prepare_v2(db, irq_sql, -1, &stmt, NULL);
	size_t i;

	for (i = 0; rc == SQLITE_OK && i < result->irq_count; i++) {
		const struct sched_irq *irq = &result->irqs[i];

		bind_name(stmt, 1, session, irq->comm);
		sqlite3_bind_int(stmt, 2, irq->pid);
		sqlite3_bind_int(stmt, 3, irq->cpu);
		sqlite3_bind_text(stmt, 4, sched_irq_word(irq->type), -1, SQLITE_STATIC);
		bind_name(stmt, 5, session, irq->label);
		sqlite3_bind_int64(stmt, 6, (sqlite3_int64)irq->count);
		sqlite3_bind_int64(stmt, 7, (sqlite3_int64)irq->ns);
		rc = insert(stmt);
	}
	sqlite3_finalize(stmt);
	return rc;
}

int sched_db_write(const char *path, const struct sched_result *result, const struct ev_session *session,
		   struct st_err *err)
{
	sqlite3 *db = NULL;
	int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
	int ret = 0;

	if (rc == SQLITE_OK) {
		sqlite3_busy_timeout(db, 2000);
		rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	}
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(db, tables, NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		rc = insert_tasks(db, result, session);
	if (rc == SQLITE_OK)
		rc = insert_irqs(db, result, session);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
	if (rc != SQLITE_OK) /* closing takes an open transaction back */
		ret = err_set(err, -EIO, "cannot write the result tables into %s: %s", path,
			      db ? sqlite3_errmsg(db) : "out of memory");
	sqlite3_close(db);
	return ret;
}
#else
int sched_db_write(const char *path, const struct sched_result *result, const struct ev_session *session,
		   struct st_err *err)
{
	return err_set(err, -ENOTSUP, "cannot write %s: this build has no SQLite", path);
}
#endif
