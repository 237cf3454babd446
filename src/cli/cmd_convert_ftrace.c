/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace convert ftrace`: a kernel trace for MindStudio Insight, Chrome or Perfetto. Settles names and formats, finds the
 * clocks of profiling data and the pid map, warns of what would not import (docs/commands/systrace-convert.md), converts
 * (convert/ftrace.h) and prints what came out and what is missing.
 */
#include "cli/become.h"
#include "cli/command.h"
#include "cli/term.h"
#include "convert/ftrace.h"
#include "convert/ftrace_sink.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct option_spec ftrace_options[] = {
	{ "input", 'i', OPT_TEXT, "FILE", "trace.dat",
	  "trace.dat or ftrace text, told by content; - for standard input" },
	{ "output", 'o', OPT_TEXT, "FILE", NULL,
	  "file to write; default: ftrace_data.db, .json, .trace.json or .pftrace by format" },
	{ "format", 'f', OPT_WORD, "db|json|chrome|perfetto", NULL,
	  "db (MindStudio Insight), json (the same as text), chrome, perfetto; default: by the suffix of --output, else db" },
	{ "profiling-data", 'p', OPT_TEXT, "DIR", NULL,
	  "PROF_* or *_ascend_pt directory, or one above: take its clock and its time window" },
	{ "pid-mapping", 'm', OPT_TEXT, "FILE", NULL, "pid_mapping.json: show the pids inside the container" },
	{ "align", 'a', OPT_TEXT, "FILE", NULL, "clock snapshots (trace.dat.meta.json): show the wall clock's time" },
	{ "type", 't', OPT_WORD, "sched|mmaplock", "sched", "sched, or waits for and holds of mmap_lock" },
	{ "hide-kernel", 0, OPT_FLAG, NULL, NULL, "leave kernel threads out: kworker, migration, ksoftirqd, ..." },
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

static struct progress progress;

static bool on_progress(void *arg, const struct ev_reader *reader)
{
	progress.total = reader->stats.total_bytes;
	progress_at(&progress, reader->stats.consumed_bytes);
	return interrupted;
}

static bool ends_with(const char *text, const char *tail)
{
	size_t len = strlen(text), tail_len = strlen(tail);

	return len >= tail_len && strcmp(text + len - tail_len, tail) == 0;
}

/* --format, else the suffix of --output, else the database. */
static const struct fsink_ops *choose_format(const struct options *opts)
{
	static const struct {
		const char *suffix;
		const struct fsink_ops *format;
	} suffixes[] = {
		{ ".db", &fsink_db },	    { ".trace.json", &fsink_chrome }, { ".chrome.json", &fsink_chrome },
		{ ".json", &fsink_json },   { ".pftrace", &fsink_perfetto },  { ".perfetto-trace", &fsink_perfetto },
		{ ".pb", &fsink_perfetto },
	};
	const char *word = options_text(opts, "format"), *output = options_text(opts, "output");
	size_t i;

	for (i = 0; word && ftrace_formats[i]; i++)
		if (strcmp(ftrace_formats[i]->name, word) == 0)
			return ftrace_formats[i];
	for (i = 0; output && i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
		if (ends_with(output, suffixes[i].suffix))
			return suffixes[i].format;
	return &fsink_db;
}

/* ---- warnings --------------------------------------------------------------------------------------------------------- */

/* trace.txt beside the default trace.dat and newer: the text back end's recording was meant. */
static void warn_input(const struct options *opts, const char *input)
{
	struct stat dat, text;

	if (options_given(opts, "input") || stat("trace.txt", &text) < 0)
		return;
	if (stat(input, &dat) < 0)
		cmd_note("there is no %s but a trace.txt: give --input=trace.txt to convert it", input);
	else if (text.st_mtim.tv_sec > dat.st_mtim.tv_sec ||
		 (text.st_mtim.tv_sec == dat.st_mtim.tv_sec && text.st_mtim.tv_nsec > dat.st_mtim.tv_nsec))
		cmd_note("converting %s, but trace.txt is newer: give --input=trace.txt if that is the recording",
			 input);
}

/* MindStudio Insight knows the database by its name: ftrace_data[0-9]*.db */
static void warn_name(const char *output)
{
	const char *name = strrchr(output, '/');

	name = name ? name + 1 : output;
	if (strncmp(name, "ftrace_data", 11) == 0 && strcmp(name + 11 + strspn(name + 11, "0123456789"), ".db") == 0)
		return;
	cmd_note(
		"MindStudio Insight imports only databases named ftrace_data.db or ftrace_data<number>.db, not %s: rename it",
		name);
}

static void warn_profile(const struct ftrace_profile *profile, const struct fsink_ops *format)
{
	if (!*profile->end_info)
		cmd_note("there is no end_info beside %s: events to the end of the trace are taken",
			 profile->start_info);
	if (*profile->database)
		cmd_note(
			"for a joint import into MindStudio Insight delete analysis.db and ascend_pytorch_profiler_*.db "
			"from the profile first (%s)",
			profile->database);
	else if (format == &fsink_db)
		cmd_note("the profile is of type text: if MindStudio Insight reports a file conflict, convert with "
			 "--format=json");
}

static void warn_clock(const struct ftrace_options *how, const struct ftrace_summary *sum)
{
	if (how->axis.window && sum->clock != EV_CLOCK_MONO_RAW && sum->clock != EV_CLOCK_UNKNOWN)
		cmd_note("profiling data count CLOCK_MONOTONIC_RAW, this trace another clock: record with trace_clock "
			 "mono_raw, or the times do not line up");
	if (how->axis.window && sum->before + sum->after)
		cmd_note("%" PRIu64 " events before and %" PRIu64 " after the profiling data's time were left out",
			 sum->before, sum->after);
}

/* ---- results ---------------------------------------------------------------------------------------------------------- */

static void print_json(FILE *out, const struct ftrace_options *how, const struct ftrace_summary *sum)
{
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{ "bytes", sum->bytes },
		{ "events", sum->events },
		{ "slices", sum->slices },
		{ "switches", sum->switches },
		{ "irqs", sum->irqs },
		{ "states", sum->states },
		{ "arrows", sum->arrows },
		{ "futexes", sum->futexes },
		{ "cpus", sum->cpus },
		{ "tasks", sum->tasks },
		{ "span_ns", sum->last_ns - sum->first_ns },
		{ "lost", sum->lost },
		{ "gaps", sum->sched.gaps + sum->sched.switch_mismatch },
		{ "cut", sum->cut },
		{ "open", sum->open },
		{ "skipped", sum->skipped },
		{ "before", sum->before },
		{ "after", sum->after },
		{ "hidden", sum->hidden },
		{ "unpaired", sum->sched.irq_unpaired },
		{ "backwards", sum->sched.backwards },
		{ "bad_cpu", sum->sched.bad_cpu },
		{ "renamed", sum->sched.renamed },
	};
	size_t i;

	fputs("{\"output\": ", out);
	term_json_string(out, how->output);
	fputs(", \"format\": ", out);
	term_json_string(out, how->format->name);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		fprintf(out, ", \"%s\": %" PRIu64, numbers[i].key, numbers[i].value);
	fputs("}\n", out);
}

static void print_words(FILE *out, const struct ftrace_options *how, const struct ftrace_summary *sum)
{
	fprintf(out, "%s: %.1f MB, %s\n", strcmp(how->output, "-") ? how->output : "standard output",
		(double)sum->bytes / 1e6, how->format->help);
	fprintf(out, "  span       %.3f s, %u CPUs, %u tasks\n", (double)(sum->last_ns - sum->first_ns) / 1e9,
		sum->cpus, sum->tasks);
	fprintf(out, "  events     %" PRIu64 "\n", sum->events);
	if (how->format != &fsink_perfetto)
		fprintf(out,
			"  slices     %" PRIu64 " (%" PRIu64 " states, %" PRIu64 " interrupts), %" PRIu64 " switches\n",
			sum->slices, sum->states, sum->irqs, sum->switches);
	if (sum->lost || sum->sched.gaps)
		fprintf(out,
			"  lost       %" PRIu64 " events while recording: %" PRIu64 " gaps, %" PRIu64
			" slices cut there; "
			"record with a larger --bf-size\n",
			sum->lost, sum->sched.gaps, sum->cut);
	if (sum->open)
		fprintf(out, "  open       %" PRIu64 " slices go on at the end of the trace\n", sum->open);
	if (sum->skipped)
		fprintf(out, "  left out   %" PRIu64 " lines or records that were not understood\n", sum->skipped);
}

/* ---- the whole --------------------------------------------------------------------------------------------------------- */

/* Time axis and pid map. Return: CMD_OK or the exit status. */
static int prepare(const struct options *opts, struct ftrace_options *how, struct pid_map **pids)
{
	const char *profile_dir = options_text(opts, "profiling-data"), *align = options_text(opts, "align");
	const char *map = options_text(opts, "pid-mapping");
	struct ftrace_profile *profile;
	struct st_err err = { 0 };
	int ret;

	if (profile_dir && align)
		return cmd_usage("--profiling-data and --align both say which clock to use: give one of them");
	if (profile_dir) {
		profile = malloc(sizeof(*profile));
		ret = profile ? ftrace_align_profile(profile_dir, &how->axis, profile, &err)
			      : err_set(&err, -ENOMEM, "out of memory");
		if (!ret)
			warn_profile(profile, how->format);
		free(profile);
		if (ret)
			return cmd_error("%s", err.text);
	}
	if (align && ftrace_align_clocks(align, "mono_raw", &how->axis, &err) < 0)
		return cmd_error("%s", err.text);
	if (map) {
		*pids = pid_map_load(map, &err);
		if (!*pids)
			return cmd_error("%s", err.text);
		how->pids = *pids;
	}
	return CMD_OK;
}

static int convert(const struct options *opts, const struct ftrace_options *how)
{
	FILE *out = strcmp(how->output, "-") == 0 ? stderr : stdout;
	struct ftrace_summary sum;
	struct st_err err = { 0 };
	int ret;

	progress = (struct progress){ 0 };
	progress_begin(&progress, "converting", 0);
	ret = ftrace_convert(how, &sum, &err);
	progress_end(&progress);
	if (ret == -ENODATA)
		return cmd_nothing("%s: nothing was written", err.text);
	if (ret < 0)
		return cmd_error("%s", err.text);
	warn_clock(how, &sum);
	if (opts->json)
		print_json(out, how, &sum);
	else
		print_words(out, how, &sum);
	return CMD_OK;
}

static int run_ftrace(const struct options *opts)
{
	const struct fsink_ops *format = choose_format(opts);
	struct ftrace_options how = {
		.size = sizeof(how),
		.format = format,
		.input = opts->word_count ? opts->words[0] : options_text(opts, "input"),
		.output = options_text(opts, "output") ? options_text(opts, "output") : format->output,
		.type = strcmp(options_text(opts, "type"), "mmaplock") == 0 ? FTRACE_MMAPLOCK : FTRACE_SCHED,
		.hide_kernel = options_flag(opts, "hide-kernel"),
		.progress = on_progress,
		.note = note,
	};
	struct pid_map *pids = NULL;
	int status;

	if (format == &fsink_db && strcmp(how.output, "-") == 0)
		return cmd_usage("a database cannot go to standard output: give --output FILE or another --format");
	if (!opts->word_count)
		warn_input(opts, how.input);
	if (format == &fsink_db)
		warn_name(how.output);
	signal(SIGINT, on_interrupt);
	signal(SIGTERM, on_interrupt);
	status = become_reader(how.input);
	if (status == CMD_OK)
		status = prepare(opts, &how, &pids);
	if (status == CMD_OK)
		status = convert(opts, &how);
	pid_map_free(pids);
	return status;
}

const struct command cmd_convert_ftrace = {
	.name = "ftrace",
	.summary = "a kernel trace (trace.dat, ftrace text) for MindStudio Insight, Chrome or Perfetto",
	.usage = "[--input FILE] [--output FILE] [--format db|json|chrome|perfetto] [--profiling-data DIR] ...",
	.about =
		"Reads a trace.dat (versions 6 and 7, any byte order, compressed or not) or ftrace text (tracefs, trace-cmd\n"
		"report, the Ftrace plugin's log) and shows for each CPU what ran and which interrupts came, for each task when it\n"
		"ran, waited for a CPU or slept. Where events were lost there are gaps. With --profiling-data times become those\n"
		"of the profile, and only what lies inside its window is written.\n",
	.examples =
		"  systrace convert ftrace                                               # trace.dat -> ftrace_data.db\n"
		"  systrace convert ftrace --profiling_data=result_dir/xxxx_ascend_pt    # on the profile's time axis\n"
		"  systrace convert ftrace --input=trace.txt --output=ftrace_data.json --pid_mapping=pid_mapping.json\n"
		"  systrace convert ftrace --input=trace.dat --output=trace.pftrace      # for ui.perfetto.dev\n"
		"  systrace convert ftrace --type=mmaplock --input=ftrace.log --format=chrome\n",
	.options = ftrace_options,
	.max_words = 1,
	.run = run_ftrace,
};
