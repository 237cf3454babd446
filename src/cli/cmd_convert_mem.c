/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace convert mem`: recorded memory as tables, flame graph, collapsed stacks or counters over time (convert/mem_out.h).
 * Reads os_trace files of the plugin Memory and hbm_trace files, also published ones.
 */
#include "cli/command.h"
#include "cli/convert_files.h"
#include "cli/term.h"
#include "convert/mem_out.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum form { FORM_TEXT, FORM_COLLAPSED, FORM_SVG, FORM_CHROME, FORM_PERFETTO };

static const struct option_spec mem_options[] = {
	{ "input", 'i', OPT_TEXT, "FILE|DIR", NULL,
	  "recorded file or dump directory, - for standard input; may be repeated" },
	{ "output", 'o', OPT_TEXT, "FILE", NULL,
	  "file to write, - for standard output; default: tables on the terminal" },
	{ "format", 'f', OPT_WORD, "text|collapsed|svg|chrome|perfetto", NULL,
	  "default: by the suffix of --output (.svg; .json chrome; .pftrace perfetto; others collapsed), else text" },
	{ "view", 'v', OPT_WORD, "inuse|allocated", "inuse",
	  "which bytes svg and collapsed show: in use at the end, or all" },
	{ "symbols", 's', OPT_TEXT, "DIR", NULL,
	  "where object files or debug files of the job's libraries are, if not at their paths here; may be repeated" },
	{ "top", 't', OPT_U64, "N", "20", "stacks in each table" },
	{ "run", 'r', OPT_TEXT, "ID", NULL, "which run of the directory; default: the newest" },
	{ .kind = OPT_END },
};

static const char *const mem_inputs[] = { "mem-pb", "mem-json", NULL };

static bool ends_with(const char *text, const char *tail)
{
	size_t len = strlen(text), tail_len = strlen(tail);

	return len >= tail_len && strcmp(text + len - tail_len, tail) == 0;
}

static enum form form_of(const struct options *opts, const char *output)
{
	static const char *const words[] = { [FORM_TEXT] = "text",
					     [FORM_COLLAPSED] = "collapsed",
					     [FORM_SVG] = "svg",
					     [FORM_CHROME] = "chrome",
					     [FORM_PERFETTO] = "perfetto" };
	const char *word = options_text(opts, "format");
	int form;

	for (form = FORM_TEXT; word && form <= FORM_PERFETTO; form++)
		if (strcmp(words[form], word) == 0)
			return (enum form)form;
	if (!output)
		return FORM_TEXT;
	if (ends_with(output, ".svg"))
		return FORM_SVG;
	if (ends_with(output, ".json"))
		return FORM_CHROME;
	return ends_with(output, ".pftrace") || ends_with(output, ".perfetto-trace") ? FORM_PERFETTO : FORM_COLLAPSED;
}

static int nothing(void)
{
	return cmd_nothing("the files hold no records of memory: nothing was written");
}

static int write_tables(const struct options *opts, const struct convert_files *files, const struct mem_sum *sum)
{
	const struct text_options how = { .most = (size_t)options_u64(opts, "top", 20), .json = opts->json };
	struct merge_stats stats;
	struct st_err err = { 0 };

	merge_stats(files->merge, &stats);
	if (mem_text_write(files->session, sum, &stats, stdout, &how, &err) < 0)
		return cmd_error("%s", err.text);
	return CMD_OK;
}

static int write_flames(const struct options *opts, const struct convert_files *files, const struct mem_sum *sum,
			const char *output, bool svg)
{
	bool all = strcmp(options_text(opts, "view"), "allocated") == 0;
	FILE *out = strcmp(output, "-") == 0 ? stderr : stdout;
	struct st_err err = { 0 };
	int64_t bytes = mem_flame_write(files->session, sum, all ? MEM_ALLOCATED : MEM_INUSE, svg, output, &err);
	char text[48];

	if (bytes < 0)
		return cmd_error("%s", err.text);
	if (!bytes)
		return cmd_nothing(all ? "nothing was allocated while Memory was on"
				       : "nothing that was allocated while Memory was on is in use at the end; "
					 "--view allocated shows what was");
	mem_bytes(text, sizeof(text), (uint64_t)bytes);
	if (opts->json)
		fprintf(out, "{\"bytes\": %" PRId64 "}\n", bytes);
	else
		fprintf(out, "%s: %s of %s\n", strcmp(output, "-") ? output : "standard output", text,
			all ? "allocations" : "memory in use at the end");
	return CMD_OK;
}

/* What readers and stacks left out, repaired or did not find. */
static void report_line(void *arg, const char *text)
{
	cmd_note("%s", text);
}

/** struct names - of stacks: by the stacks files beside the recordings, and symbol tables */
struct names {
	const char **dirs; /* --symbols */
	struct symbols *symbols;
	struct stacks *stacks;
};

static int names_open(struct names *names, const struct options *opts, struct ev_session *session)
{
	const char *dir;
	size_t count = 0;

	while (options_nth(opts, "symbols", count))
		count++;
	names->dirs = calloc(count + 1, sizeof(*names->dirs));
	for (count = 0; names->dirs && (dir = options_nth(opts, "symbols", count)) != NULL; count++)
		names->dirs[count] = dir;
	names->symbols = names->dirs ? symbols_new(names->dirs, count) : NULL;
	names->stacks = names->symbols ? stacks_new(session, names->symbols) : NULL;
	return names->stacks ? 0 : -ENOMEM;
}

static void names_close(struct names *names)
{
	if (names->stacks)
		stacks_report(names->stacks, report_line, NULL);
	stacks_free(names->stacks);
	symbols_free(names->symbols);
	free(names->dirs);
}

static int write_sums(const struct options *opts, const struct convert_files *files, const char *output, enum form form)
{
	struct names names = { 0 };
	struct mem_sum *sum = NULL;
	struct st_err err = { 0 };
	int64_t events;
	int status;

	if (names_open(&names, opts, files->session) == 0)
		sum = mem_new(files->session, names.stacks);
	events = sum ? mem_read(sum, files->merge, &err) : err_set(&err, -ENOMEM, "out of memory");
	if (events < 0)
		status = cmd_error("%s", err.text);
	else if (!events)
		status = nothing();
	else if (form == FORM_TEXT)
		status = write_tables(opts, files, sum);
	else
		status = write_flames(opts, files, sum, output, form == FORM_SVG);
	mem_free(sum);
	names_close(&names);
	return status;
}

static int write_timeline(const struct options *opts, const struct convert_files *files, const char *output,
			  const struct tsink_ops *format)
{
	FILE *out = strcmp(output, "-") == 0 ? stderr : stdout;
	struct mem_timeline_summary sum;
	struct st_err err = { 0 };
	int ret = mem_timeline_write(files->session, files->merge, format, output, &sum, &err);

	if (ret == -ENODATA)
		return nothing();
	if (ret < 0)
		return cmd_error("%s", err.text);
	if (opts->json)
		fprintf(out,
			"{\"bytes\": %" PRIu64 ", \"events\": %" PRIu64 ", \"values\": %" PRIu64
			", \"processes\": %zu, \"span_ns\": %" PRIu64 "}\n",
			sum.bytes, sum.events, sum.values, sum.processes, sum.last_ns - sum.first_ns);
	else
		fprintf(out,
			"%s: %.1f MB, %s\n  processes  %zu\n  span       %.3f s\n  values     %" PRIu64 " of %" PRIu64
			" records\n",
			strcmp(output, "-") ? output : "standard output", (double)sum.bytes / 1e6, format->help,
			sum.processes, (double)(sum.last_ns - sum.first_ns) / 1e9, sum.values, sum.events);
	return CMD_OK;
}

static void report(const struct merge *merge)
{
	size_t i;

	for (i = 0; i < merge_count(merge); i++) {
		const struct ev_reader *reader = merge_reader(merge, i);

		if (reader->ops->report)
			reader->ops->report(reader, report_line, NULL);
	}
}

static int run(const struct options *opts)
{
	const char *output = options_text(opts, "output");
	enum form form = form_of(opts, output);
	struct convert_files files = { 0 };
	int status;

	if (form == FORM_TEXT && output && strcmp(output, "-") != 0)
		return cmd_usage("tables go to standard output: leave --output away, or redirect it");
	if (form != FORM_TEXT && !output)
		return cmd_usage("--output is missing");
	status = convert_open(&files, opts, mem_inputs, "no recorded memory");
	if (status == CMD_OK) {
		if (form == FORM_CHROME || form == FORM_PERFETTO)
			status = write_timeline(opts, &files, output,
						form == FORM_CHROME ? &tsink_chrome : &tsink_perfetto);
		else
			status = write_sums(opts, &files, output, form);
		report(files.merge);
	}
	convert_close(&files);
	return status;
}

const struct command cmd_convert_mem = {
	.name = "mem",
	.summary = "recorded memory: leaks, allocations, flame graphs, and what was in use over time",
	.usage =
		"--input FILE|DIR [--output FILE] [--format text|collapsed|svg|chrome|perfetto] [--view inuse|allocated] [--top N] [--symbols DIR]",
	.about =
		"Without --output: tables of the stacks that hold memory at the end (leaks are first) and of those that allocated\n"
		"most (--json: the same for scripts). With it: a flame graph (SVG: click zooms, / searches), collapsed stacks for\n"
		"other tools, or counters over time for Perfetto and chrome://tracing. Of sampled recordings all numbers are\n"
		"unbiased estimates. Reads os_trace and hbm_trace files, also those of other versions, plain, gz or zst.\n",
	.examples = "  systrace convert mem --input /home/sysTrace\n"
		    "  systrace convert mem --input /home/sysTrace --output leaks.svg\n"
		    "  systrace convert mem --input /home/sysTrace --view allocated --output allocated.svg\n"
		    "  systrace convert mem --input /home/sysTrace --output memory.pftrace     # for Perfetto\n",
	.options = mem_options,
	.max_words = SIZE_MAX,
	.run = run,
};
