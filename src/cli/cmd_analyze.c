/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace analyze sched`: sums of a scheduling trace. Opens the input (trace.dat, ftrace text or a converted database),
 * feeds analyze/sched, and prints or writes the report.
 */
#include "analyze/sched.h"
#include "base/cpulist.h"
#include "cli/command.h"
#include "cli/sched_text.h"
#include "cli/term.h"
#include "convert/outfile.h"
#include "trace/read_msinsight_db.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRESS_EVENTS 65536

static const struct option_spec sched_options[] = {
	{ "input", 'i', OPT_TEXT, "FILE", "trace.dat", "trace.dat, ftrace text, or a database of 'convert ftrace'" },
	{ "output", 'o', OPT_TEXT, "FILE", "-", "file to write, - for standard output" },
	{ "format", 'f', OPT_WORD, "text|json|xlsx", NULL,
	  "default: by the suffix of --output (.json, .xlsx), else text" },
	{ "write-db", 'w', OPT_TEXT, "FILE", NULL,
	  "put the tables trace_task_summary and trace_irq_detail into this database as well" },
	{ "cpu", 'c', OPT_TEXT, "LIST", NULL, "only these CPUs, like 0-3,8" },
	{ "pid", 'p', OPT_TEXT, "LIST", NULL, "only these tasks (thread ids as in the trace)" },
	{ "top", 'n', OPT_U64, "N", "10", "rows of each table of the text, and longest waits kept" },
	{ "from", 0, OPT_SEC, "S", NULL, "look at what happened from here on, seconds after the trace's first event" },
	{ "to", 0, OPT_SEC, "S", NULL, "look at what happened up to here" },
	{ .kind = OPT_END },
};

enum report_format { REPORT_TEXT, REPORT_JSON, REPORT_XLSX };

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	interrupted = 1;
}

/* Remarks of a reader. */
static void note_line(void *arg, const char *text)
{
	cmd_note("%s", text);
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static int feed_events(struct ev_reader *reader, struct sched_sum *sum, struct st_err *err)
{
	struct progress progress;
	struct event ev;
	uint64_t count = 0;
	int ret;

	progress_begin(&progress, "reading", reader->stats.total_bytes);
	while ((ret = ev_next(reader, &ev, err)) > 0) {
		ret = sched_event(sum, &ev);
		if (ret < 0)
			err_set(err, ret, "out of memory");
		if (ret)
			break;
		if (++count % PROGRESS_EVENTS)
			continue;
		progress.total = reader->stats.total_bytes;
		progress_at(&progress, reader->stats.consumed_bytes);
		if (interrupted) {
			ret = err_set(err, -EINTR, "interrupted: nothing was written");
			break;
		}
	}
	progress_end(&progress);
	return ret;
}

/* Return: enum cmd_exit. */
static int read_events(const char *input, struct ev_session *session, struct sched_sum *sum)
{
	struct st_err err = { 0 };
	struct ev_reader *reader = ev_open(session, input, &err);
	int ret;

	if (!reader)
		return err.code == -ENODATA ? cmd_nothing("%s", err.text) : cmd_error("%s", err.text);
	if (strcmp(reader->ops->format, "trace.dat") != 0 && strcmp(reader->ops->format, "ftrace-text") != 0) {
		ret = cmd_error("%s: is no scheduling trace (%s): name a trace.dat, trace.txt or ftrace_data.db", input,
				reader->ops->format);
		ev_close(reader);
		return ret;
	}
	ret = feed_events(reader, sum, &err);
	if (reader->ops->report)
		reader->ops->report(reader, note_line, NULL);
	ev_close(reader);
	if (ret == -EINTR || ret == -ENOMEM)
		return cmd_error("%s", err.text);
	if (ret < 0)
		cmd_note("%s; the report covers what came before", err.text);
	return CMD_OK;
}

struct feed {
	struct sched_sum *sum;
	struct progress progress;
	uint64_t spans;
};

static int on_span(void *arg, const struct sched_span *span)
{
	struct feed *feed = arg;

	if (++feed->spans % PROGRESS_EVENTS == 0)
		progress_at(&feed->progress, feed->spans);
	return interrupted ? -EINTR : sched_span_add(feed->sum, span);
}

static int read_database(const char *input, struct ev_session *session, struct sched_sum *sum)
{
	struct feed feed = { .sum = sum };
	struct st_err err = { 0 };
	struct msdb *db = msdb_open(session, input, &err);
	const struct msdb_info *info;
	int ret;

	if (!db)
		return cmd_error("%s", err.text);
	info = msdb_info(db);
	if (info->slices)
		sched_begin(sum, info->first_ns, info->last_ns);
	progress_begin(&feed.progress, "reading", 0);
	ret = msdb_read(db, on_span, &feed, &err);
	progress_end(&feed.progress);
	if (!ret && info->skipped)
		cmd_note("%s: %" PRIu64 " slices were not understood and are left out", input, info->skipped);
	msdb_close(db);
	if (ret == -EINTR)
		return cmd_error("interrupted: nothing was written");
	if (ret)
		return cmd_error("%s", err.code ? err.text : strerror(-ret));
	return CMD_OK;
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static ssize_t cookie_write(void *cookie, const char *data, size_t bytes)
{
	outfile_put(cookie, data, bytes);
	return (ssize_t)bytes;
}

struct job {
	const struct options *opts;
	const struct sched_result *result;
	const struct ev_session *session;
	const char *input, *output;
	enum report_format format;
};

static void print(const struct job *job, FILE *out)
{
	if (job->format == REPORT_JSON)
		sched_json(out, job->result, job->session, job->input);
	else
		sched_text(out, job->result, job->session, job->input, options_u64(job->opts, "top", 10));
}

static int write_file(const struct job *job, struct st_err *err)
{
	struct outfile file;
	FILE *out;
	int ret = outfile_open(&file, job->output, err);

	if (ret < 0)
		return ret;
	out = fopencookie(&file, "w", (cookie_io_functions_t){ .write = cookie_write });
	if (!out) {
		outfile_discard(&file);
		return err_set(err, -ENOMEM, "out of memory");
	}
	print(job, out);
	fclose(out);
	return outfile_finish(&file, err);
}

/* The library writes a file of its own; it gets its name when it is whole. */
static int write_xlsx(const struct job *job, struct st_err *err)
{
	size_t left_out = 0;
	char *part;
	int ret;

	if (asprintf(&part, "%s.part", job->output) < 0)
		return err_set(err, -ENOMEM, "out of memory");
	ret = sched_xlsx(part, job->result, job->session, &left_out, err);
	if (!ret && rename(part, job->output) < 0)
		ret = err_set(err, -errno, "cannot write %s: %s", job->output, strerror(errno));
	if (ret < 0)
		unlink(part);
	free(part);
	if (left_out)
		cmd_note("%zu rows are beyond what a sheet can hold; they are left out", left_out);
	return ret;
}

static int write_report(const struct job *job)
{
	const char *db = options_text(job->opts, "write-db");
	struct st_err err = { 0 };
	int ret = 0;

	if (db) {
		ret = sched_db_write(db, job->result, job->session, &err);
		if (ret < 0)
			return cmd_error("%s", err.text);
		cmd_note("%s: %zu rows in trace_task_summary, %zu in trace_irq_detail", db, job->result->task_count,
			 job->result->irq_count);
	}
	if (job->format == REPORT_XLSX)
		ret = write_xlsx(job, &err);
	else if (strcmp(job->output, "-") == 0)
		print(job, stdout);
	else
		ret = write_file(job, &err);
	return ret < 0 ? cmd_error("%s", err.text) : CMD_OK;
}

/* ---- the command ---------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *tail)
{
	size_t len = strlen(text), tail_len = strlen(tail);

	return len >= tail_len && strcmp(text + len - tail_len, tail) == 0;
}

static enum report_format choose_format(const struct options *opts)
{
	const char *word = options_text(opts, "format"), *output = options_text(opts, "output");

	if (!word && opts->json)
		return REPORT_JSON;
	if (!word)
		word = ends_with(output, ".json") ? "json" : ends_with(output, ".xlsx") ? "xlsx" : "text";
	return strcmp(word, "json") == 0 ? REPORT_JSON : strcmp(word, "xlsx") == 0 ? REPORT_XLSX : REPORT_TEXT;
}

static int check_usage(const struct options *opts)
{
	static const char *const lists[] = { "cpu", "pid" };
	uint64_t from = options_u64(opts, "from", 0), to = options_u64(opts, "to", UINT64_MAX);
	const char *text;
	size_t i;

	for (i = 0; i < 2; i++) {
		text = options_text(opts, lists[i]);
		if (text && cpulist_check(text))
			return cmd_usage("--%s=%s is no list of numbers like 0-3,8", lists[i], text);
	}
	if (to <= from)
		return cmd_usage("--to must lie behind --from");
	if (options_u64(opts, "top", 10) == 0 || options_u64(opts, "top", 10) > 1000000)
		return cmd_usage("--top is between 1 and 1000000");
	if (choose_format(opts) == REPORT_XLSX && strcmp(options_text(opts, "output"), "-") == 0)
		return cmd_usage("a workbook cannot go to standard output: give --output FILE.xlsx");
	if (opts->word_count && options_given(opts, "input"))
		return cmd_usage("unexpected '%.60s': one input at a time", opts->words[0]);
	return CMD_OK;
}

/* Why there is nothing in the report, if so. */
static int check_result(const struct options *opts, const struct sched_result *result, const char *input)
{
	double length = (double)(result->trace_last_ns - result->trace_first_ns) / 1e9;

	if (!result->trace_first_ns)
		return cmd_nothing("%s holds no events", input);
	if (result->begin_ns > result->end_ns)
		return cmd_nothing("%s: the trace is %.6f s long, all of it before --from=%s", input, length,
				   options_text(opts, "from"));
	if (result->task_count || result->irq_name_count)
		return CMD_OK;
	if (opts->set_count && (options_given(opts, "cpu") || options_given(opts, "pid")))
		return cmd_nothing("%s: nothing is known of the CPUs or tasks asked for", input);
	return cmd_nothing("%s holds no scheduling and no interrupt events: record with --sched and --irq", input);
}

static int run_sched(const struct options *opts)
{
	struct sched_options how = {
		.size = sizeof(how),
		.cpus = options_text(opts, "cpu"),
		.pids = options_text(opts, "pid"),
		.from_ns = options_u64(opts, "from", 0),
		.to_ns = options_u64(opts, "to", UINT64_MAX),
		.top = options_u64(opts, "top", 10),
	};
	struct job job = { .opts = opts, .output = options_text(opts, "output"), .format = choose_format(opts) };
	struct ev_session *session;
	struct sched_sum *sum;
	int status = check_usage(opts);

	if (status != CMD_OK)
		return status;
	signal(SIGINT, on_interrupt);
	signal(SIGTERM, on_interrupt);
	session = ev_session_new();
	sum = session ? sched_new(session, &how) : NULL;
	job.session = session;
	job.input = opts->word_count ? opts->words[0] : options_text(opts, "input");
	if (!sum)
		status = cmd_error("out of memory");
	else if (msdb_knows(job.input))
		status = read_database(job.input, session, sum);
	else
		status = read_events(job.input, session, sum);
	if (status == CMD_OK) {
		job.result = sched_finish(sum);
		status = job.result ? check_result(opts, job.result, job.input) : cmd_error("out of memory");
	}
	if (status == CMD_OK)
		status = write_report(&job);
	sched_free(sum);
	ev_session_free(session);
	return status;
}

static const struct command analyze_sched = {
	.name = "sched",
	.summary = "who ran, waited and slept where, who disturbed whom, from an ftrace recording",
	.usage =
		"[--input FILE] [--format text|json|xlsx] [--output FILE] [--write-db FILE] [--cpu LIST] [--pid LIST]\n"
		"                         [--from S] [--to S] [--top N]",
	.about =
		"Sums a trace.dat, an ftrace text, or a database of 'convert ftrace': running, runnable and sleeping time,\n"
		"switches, interrupts and wake-up latencies per command, task and CPU; who preempted whom; the longest waits\n"
		"with their moments; what the recording lost.\n",
	.examples = "  systrace analyze sched --input trace.dat                              # report for people\n"
		    "  systrace analyze sched --input trace.dat --pid 4711-4720 --from 2.5 --to 3\n"
		    "  systrace analyze sched --input trace.dat --output report.xlsx         # workbook with charts\n"
		    "  systrace analyze sched --input ftrace_data.db --write-db ftrace_data.db > report.txt\n",
	.options = sched_options,
	.max_words = 1,
	.run = run_sched,
};

static const struct command *const analyze_kinds[] = { &analyze_sched, NULL };

const struct command cmd_analyze = {
	.name = "analyze",
	.summary = "sums and findings of a recording",
	.kinds = analyze_kinds,
};
