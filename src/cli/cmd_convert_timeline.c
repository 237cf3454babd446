/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace convert timeline` and `systrace convert mspti` (the same with another kind of input): recorded steps, stages and
 * collectives as a trace that opens in Perfetto or chrome://tracing. Finds the files (trace/dir.h), merges and writes them
 * (convert/timeline.h), prints what came out and what is missing.
 */
#include "cli/command.h"
#include "cli/convert_files.h"
#include "cli/term.h"
#include "convert/gil_text.h"
#include "convert/io_text.h"
#include "convert/lock_text.h"
#include "convert/os_text.h"
#include "convert/timeline.h"
#include "trace/session.h"
#include "trace/stacks.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

static const struct option_spec timeline_options[] = {
	{ "input", 'i', OPT_TEXT, "FILE|DIR", NULL,
	  "recorded file or dump directory, - for standard input; may be repeated" },
	{ "output", 'o', OPT_TEXT, "FILE", NULL, "file to write, - for standard output" },
	{ "format", 'f', OPT_WORD, "chrome|perfetto", NULL,
	  "chrome (JSON) or perfetto (protobuf); default: by the suffix of --output, else chrome" },
	{ "run", 'r', OPT_TEXT, "ID", NULL, "which run of the directory; default: the newest" },
	{ .kind = OPT_END },
};

/* what each kind reads: ev_reader_ops.format, NULL-terminated */
static const char *const timeline_inputs[] = { "timeline-pb", "timeline-json", "mspti-csv", NULL };
static const char *const mspti_inputs[] = { "mspti-csv", NULL };
static const char *const io_inputs[] = { "io-pb", "io-json", NULL };
static const char *const gil_inputs[] = { "gil-json", NULL };
static const char *const os_inputs[] = { "os-pb", "os-json", NULL };
static const char *const mutex_inputs[] = { "mutex-json", NULL };

/** struct text_kind - a kind that has tables, too */
struct text_kind {
	const char *const *inputs;
	const char *what; /* for people, when there is none */
	int64_t (*write)(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
			 struct st_err *err);
};

static const struct text_kind io_kind = { io_inputs, "no I/O trace", io_text_write };
static const struct text_kind gil_kind = { gil_inputs, "no GIL recording", gil_text_write };
static const struct text_kind os_kind = { os_inputs, "no recording of the CPU plugin", os_text_write };
static const struct text_kind mutex_kind = { mutex_inputs, "no recording of lock waits", lock_text_write };

#define TEXT_ROWS 30 /* of the long tables */

#define TEXT_OPTIONS                                                                                                      \
	{ "input",    'i',  OPT_TEXT,                                                                                     \
	  "FILE|DIR", NULL, "recorded file or dump directory, - for standard input; may be repeated" },                   \
		{ "output", 'o',  OPT_TEXT,                                                                               \
		  "FILE",   NULL, "file to write, - for standard output; default: tables on the terminal" },              \
		{ "format",                                                                                               \
		  'f',                                                                                                    \
		  OPT_WORD,                                                                                               \
		  "text|chrome|perfetto",                                                                                 \
		  NULL,                                                                                                   \
		  "text (tables), chrome (JSON) or perfetto (protobuf); default: by the suffix of --output, else text" }, \
	{                                                                                                                 \
		"run", 'r', OPT_TEXT, "ID", NULL, "which run of the directory; default: the newest"                       \
	}

static const struct option_spec text_options[] = { TEXT_OPTIONS, { .kind = OPT_END } };
static const struct option_spec mutex_options[] = {
	TEXT_OPTIONS,
	{ "symbols", 's', OPT_TEXT, "DIR", NULL,
	  "where to look for object and debug files that name the frames of stacks; may be repeated" },
	{ .kind = OPT_END },
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	interrupted = 1;
}

static void note(void *arg, const char *text)
{
	cmd_note("%s", text);
}

static bool on_progress(void *arg, const struct merge *merge)
{
	struct progress *progress = arg;
	struct merge_stats stats;

	merge_stats(merge, &stats);
	progress->total = stats.read.total_bytes;
	progress_at(progress, stats.read.consumed_bytes);
	return interrupted;
}

static bool ends_with(const char *text, const char *tail)
{
	size_t len = strlen(text), tail_len = strlen(tail);

	return len >= tail_len && strcmp(text + len - tail_len, tail) == 0;
}

/* --format, else the suffix of --output, else the first of the table. */
static const struct tsink_ops *choose_format(const struct options *opts, const char *output)
{
	static const struct {
		const char *suffix;
		const struct tsink_ops *format;
	} suffixes[] = {
		{ ".json", &tsink_chrome },
		{ ".pftrace", &tsink_perfetto },
		{ ".perfetto-trace", &tsink_perfetto },
		{ ".pb", &tsink_perfetto },
	};
	const char *word = options_text(opts, "format");
	size_t i;

	for (i = 0; word && tsink_formats[i]; i++)
		if (strcmp(tsink_formats[i]->name, word) == 0)
			return tsink_formats[i];
	for (i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
		if (ends_with(output, suffixes[i].suffix))
			return suffixes[i].format;
	return tsink_formats[0];
}

static void print_json(FILE *out, const struct timeline_summary *sum, const struct merge_stats *stats, const char *run,
		       const char *output)
{
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{ "bytes", sum->bytes },   { "events", sum->events },
		{ "slices", sum->slices }, { "instants", sum->instants },
		{ "values", sum->values }, { "steps", sum->steps },
		{ "ranks", sum->ranks },   { "processes", sum->processes },
		{ "tracks", sum->tracks }, { "span_ns", sum->last_ns - sum->first_ns },
		{ "lost", sum->lost },	   { "skipped", stats->read.skipped },
		{ "open", sum->open },	   { "squeezed", sum->squeezed },
		{ "late", stats->late },
	};
	size_t i;

	fputs("{\"output\": ", out);
	term_json_string(out, output);
	fputs(", \"run\": ", out);
	term_json_string(out, run);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		fprintf(out, ", \"%s\": %" PRIu64, numbers[i].key, numbers[i].value);
	fprintf(out, ", \"torn\": %s}\n", stats->read.torn ? "true" : "false");
}

static void print_words(FILE *out, const struct timeline_summary *sum, const struct merge_stats *stats, const char *run,
			const char *output, const char *format)
{
	fprintf(out, "%s: %.1f MB, %s\n", strcmp(output, "-") ? output : "standard output", (double)sum->bytes / 1e6,
		format);
	if (*run)
		fprintf(out, "  run        %s\n", run);
	fprintf(out, "  ranks      %zu, %zu tracks\n", sum->ranks, sum->tracks);
	fprintf(out, "  span       %.3f s\n", (double)(sum->last_ns - sum->first_ns) / 1e9);
	fprintf(out, "  events     %" PRIu64 " (%" PRIu64 " slices, %" PRIu64 " instants, %" PRIu64 " steps)\n",
		sum->events, sum->slices, sum->instants, sum->steps);
	fprintf(out, "  lost       %" PRIu64 " records while recording\n", sum->lost);
	if (stats->read.skipped)
		fprintf(out, "  left out   %" PRIu64 " records that could not be read\n", stats->read.skipped);
	if (sum->open)
		fprintf(out, "  open       %" PRIu64 " operations whose end was not seen\n", sum->open);
}

/* Read the merge, write the file, say what came out. Return: exit status. */
static int write_out(const struct options *opts, struct ev_session *session, struct merge *merge, const char *run)
{
	const char *output = options_text(opts, "output");
	struct progress progress = { 0 };
	struct timeline_options how = {
		.size = sizeof(how),
		.format = choose_format(opts, output),
		.output = output,
		.progress = on_progress,
		.note = note,
		.arg = &progress,
	};
	FILE *out = strcmp(output, "-") == 0 ? stderr : stdout;
	struct timeline_summary sum;
	struct merge_stats stats;
	struct st_err err = { 0 };
	int ret;

	progress_begin(&progress, "converting", 0);
	ret = timeline_write(session, merge, &how, &sum, &err);
	progress_end(&progress);
	if (ret == -ENODATA)
		return cmd_nothing("%s: nothing was written", err.text);
	if (ret < 0)
		return cmd_error("%s", err.text);
	merge_stats(merge, &stats);
	if (opts->json)
		print_json(out, &sum, &stats, run, output);
	else
		print_words(out, &sum, &stats, run, output, how.format->help);
	return CMD_OK;
}

/* Tables instead of a picture. */
static int write_text(const struct options *opts, const struct text_kind *kind, struct ev_session *session,
		      struct merge *merge)
{
	const struct text_options how = { .most = TEXT_ROWS, .json = opts->json, .note = note };
	struct st_err err = { 0 };
	int64_t records = kind->write(session, merge, stdout, &how, &err);

	if (records < 0)
		return cmd_error("%s", err.text);
	return records ? CMD_OK : cmd_nothing("the files hold no records");
}

/** struct names - what gives recorded stacks their names */
struct names {
	const char *dirs[OPTIONS_MAX_SET];
	size_t count;
	struct symbols *symbols;
	struct stacks *stacks;
};

static void names_init(struct names *names, const struct options *opts, struct ev_session *session)
{
	const char *dir;

	while ((dir = options_nth(opts, "symbols", names->count)) != NULL)
		names->dirs[names->count++] = dir;
	names->symbols = symbols_new(names->dirs, names->count);
	names->stacks = stacks_new(session, names->symbols);
	ev_session_set_stacks(session, names->stacks);
}

static void names_fini(struct names *names)
{
	if (names->stacks)
		stacks_report(names->stacks, note, NULL);
	stacks_free(names->stacks);
	symbols_free(names->symbols);
}

/* @kind: one that has tables, NULL = none; @text: they are wanted */
static int convert(const struct options *opts, const char *const *formats, const struct text_kind *kind, bool text)
{
	struct convert_files files = { 0 };
	struct names names = { .count = 0 };
	int status;

	if (!text && !options_text(opts, "output"))
		return cmd_usage("--output is missing");
	status = convert_open(&files, opts, formats,
			      kind	   ? kind->what
			      : formats[1] ? "no timeline and no marker CSV"
					   : "no marker CSV");
	if (status == CMD_OK && kind == &mutex_kind)
		names_init(&names, opts, files.session);
	if (status == CMD_OK)
		status = text ? write_text(opts, kind, files.session, files.merge)
			      : write_out(opts, files.session, files.merge, dir_run(files.set));
	names_fini(&names);
	convert_close(&files);
	return status;
}

static int run_timeline(const struct options *opts)
{
	signal(SIGINT, on_interrupt);
	signal(SIGTERM, on_interrupt);
	return convert(opts, timeline_inputs, NULL, false);
}

static int run_mspti(const struct options *opts)
{
	signal(SIGINT, on_interrupt);
	signal(SIGTERM, on_interrupt);
	return convert(opts, mspti_inputs, NULL, false);
}

static int run_text(const struct options *opts, const struct text_kind *kind)
{
	const char *format = options_text(opts, "format");
	bool text = format ? strcmp(format, "text") == 0 : !options_text(opts, "output");

	if (text && options_text(opts, "output") && strcmp(options_text(opts, "output"), "-") != 0)
		return cmd_usage("tables go to standard output: leave --output away, or redirect it");
	signal(SIGINT, on_interrupt);
	signal(SIGTERM, on_interrupt);
	return convert(opts, kind->inputs, kind, text);
}

static int run_io(const struct options *opts)
{
	return run_text(opts, &io_kind);
}

static int run_gil(const struct options *opts)
{
	return run_text(opts, &gil_kind);
}

static int run_osprobe(const struct options *opts)
{
	return run_text(opts, &os_kind);
}

static int run_mutex(const struct options *opts)
{
	return run_text(opts, &mutex_kind);
}

const struct command cmd_convert_io = {
	.name = "io",
	.summary = "file and socket calls as tables, or as a Perfetto or Chrome trace",
	.usage = "--input FILE|DIR [--output FILE] [--format text|chrome|perfetto] [--run ID]",
	.about =
		"Without --output: tables per call, file and peer with calls, errors, bytes and percentiles of the time they\n"
		"took, and throughput over time (--json: the same for scripts). Else a trace: a track of files and a track of\n"
		"sockets for each thread.\n",
	.examples = "  systrace convert io --input /home/sysTrace\n"
		    "  systrace convert io --input io_trace_rank0_1234.pb --output io.json\n",
	.options = text_options,
	.max_words = SIZE_MAX,
	.run = run_io,
};

const struct command cmd_convert_gil = {
	.name = "gil",
	.summary = "who held Python's interpreter lock and who waited, as tables or a trace",
	.usage = "--input FILE|DIR [--output FILE] [--format text|chrome|perfetto] [--run ID]",
	.about =
		"Without --output: tables per thread of holds, forced switches and waits, and the convoy: who held the lock\n"
		"while which others waited for it (--json: the same for scripts). Else a trace: slices 'GIL hold' and 'GIL wait'\n"
		"on a track for each thread, and a counter of waiting threads.\n",
	.examples = "  systrace convert gil --input /home/sysTrace\n"
		    "  systrace convert gil --input GIL_1234_rank_0.json --output gil.pftrace\n",
	.options = text_options,
	.max_words = SIZE_MAX,
	.run = run_gil,
};

const struct command cmd_convert_mutex = {
	.name = "mutex",
	.summary = "which locks were waited for, how long and for whom, as tables or a trace",
	.usage = "--input FILE|DIR [--output FILE] [--format text|chrome|perfetto] [--run ID]",
	.about =
		"Without --output: tables per function of all calls and of the waits that were recorded, and per lock of waits,\n"
		"percentiles, the threads that held it meanwhile and the places that waited (--json: the same for scripts).\n"
		"Else a trace with a track of waits for each thread.\n",
	.examples = "  systrace convert mutex --input /home/sysTrace\n"
		    "  systrace convert mutex --input Mutex_1234_rank_0.json --output locks.json\n",
	.options = mutex_options,
	.max_words = SIZE_MAX,
	.run = run_mutex,
};

const struct command cmd_convert_timeline = {
	.name = "timeline",
	.summary = "steps, Python stages and collectives of all ranks as a Perfetto or Chrome trace",
	.usage = "--input FILE|DIR --output FILE [--format chrome|perfetto] [--run ID]",
	.about =
		"Reads timeline files (protobuf or JSON, of this version or older) and MSPTI marker CSV, plain, gz or zst,\n"
		"told by their content. A directory is searched; of several runs in it the newest is taken. All ranks are put\n"
		"on one time axis. What was lost while recording or cannot be read is counted and shown.\n",
	.examples =
		"  systrace convert timeline --input /home/sysTrace --output job.json      # for chrome://tracing or Perfetto\n"
		"  systrace convert timeline --input /home/sysTrace --output job.pftrace   # smaller, for Perfetto\n"
		"  systrace convert timeline --input node7--00003.timeline --output -      # one rank, to standard output\n",
	.options = timeline_options,
	.max_words = SIZE_MAX,
	.run = run_timeline,
};

const struct command cmd_convert_mspti = {
	.name = "mspti",
	.summary = "MSPTI marker CSV as a Perfetto or Chrome trace",
	.usage = "--input FILE|DIR --output FILE [--format chrome|perfetto] [--run ID]",
	.about = "Begin and end rows of a marker become one slice, host and device side each on tracks of their own;\n"
		 "collectives carry group, data type and element count.\n",
	.examples = "  systrace convert mspti --input mspti-marker-10.0.0.1-0.csv --output rank0.json\n"
		    "  systrace convert mspti --input /home/sysTrace/mspti --output all.pftrace\n",
	.options = timeline_options,
	.max_words = SIZE_MAX,
	.run = run_mspti,
};

const struct command cmd_convert_osprobe = {
	.name = "osprobe",
	.summary = "CPU scheduling of the job's threads as tables, or as a Perfetto or Chrome trace",
	.usage = "--input FILE|DIR [--output FILE] [--format text|chrome|perfetto] [--run ID]",
	.about =
		"Without --output: for each rank who took the CPU from its threads and for how long, and for each thread how long\n"
		"it ran, waited for a CPU and slept (--json: the same for scripts). Else a trace: what each thread did, what ran on\n"
		"each CPU, and arrows from threads that lost their CPU to who took it.\n",
	.examples = "  systrace convert osprobe --input /home/sysTrace\n"
		    "  systrace convert osprobe --input /home/sysTrace --output osprobe.pftrace\n",
	.options = text_options,
	.max_words = SIZE_MAX,
	.run = run_osprobe,
};
