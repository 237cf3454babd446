/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace localize`: which rank of a job is slow, and in what. Finds the records, feeds analyze/localize, prints the
 * verdict and writes the documented result file.
 */
#include "analyze/localize_input.h"
#include "analyze/model_config.h"
#include "analyze/result.h"
#include "cli/command.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct option_spec options[] = {
	{ "input", 'i', OPT_TEXT, "DIR", NULL,
	  "dump directory with timeline/ and mspti/ files of all ranks, or one file" },
	{ "output", 'o', OPT_TEXT, "DIR", NULL,
	  "directory for slow_node_result_<unix time>.json; default: slow_node_detection_path of the configuration" },
	{ "from", 0, OPT_TEXT, "STEP|TIME", NULL, "look at steps from here on: a step, or 'YYYY-mm-dd HH:MM:SS'" },
	{ "to", 0, OPT_TEXT, "STEP|TIME", NULL, "look at steps up to here" },
	{ "until", 0, OPT_TEXT, "TIME", NULL,
	  "the job was watched until then: 'now' or 'YYYY-mm-dd HH:MM:SS'; decides whether it hangs" },
	{ "run", 0, OPT_TEXT, "ID", NULL, "look at this run; default: the newest in the directory" },
	{ "config", 'c', OPT_TEXT, "FILE", NULL, "configuration; default: " MODEL_CONFIG_PATH ", if it is there" },
	{ "once", 0, OPT_FLAG, NULL, NULL, "accepted: this command always runs once" },
	{ .kind = OPT_END },
};

#define MAX_NOTES 8

/* Remarks of readers: the first few, and how many there were. @arg: their count. */
static void note(void *arg, const char *text)
{
	size_t *count = arg;

	if (++*count <= MAX_NOTES)
		cmd_note("%s", text);
}

/* A step number, or a local time. Return: false if it is neither. */
static bool parse_place(const char *text, uint32_t *step, int64_t *ns)
{
	struct tm tm = { .tm_isdst = -1 };
	char *end;
	unsigned long value;

	value = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && value <= UINT32_MAX) {
		*step = (uint32_t)value;
		return true;
	}
	end = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
	if (!end || *end)
		return false;
	*ns = (int64_t)mktime(&tm) * 1000000000;
	return true;
}

static int parse_range(const struct options *opts, struct loc_options *to)
{
	const char *from = options_text(opts, "from"), *upto = options_text(opts, "to");
	const char *until = options_text(opts, "until");
	uint32_t none;

	if (from && !parse_place(from, &to->from_step, &to->from_ns))
		return cmd_usage("--from=%s is neither a step nor a time like '2026-01-31 23:59:00'", from);
	if (upto && !parse_place(upto, &to->to_step, &to->to_ns))
		return cmd_usage("--to=%s is neither a step nor a time like '2026-01-31 23:59:00'", upto);
	if (until && !strcmp(until, "now"))
		to->until_ns = (int64_t)time(NULL) * 1000000000;
	else if (until && (!parse_place(until, &none, &to->until_ns) || !to->until_ns))
		return cmd_usage("--until=%s is neither 'now' nor a time like '2026-01-31 23:59:00'", until);
	return CMD_OK;
}

static int put_result(const struct options *opts, const struct model_config *config, const struct localize *loc,
		      const struct loc_result *result, const struct ev_session *session)
{
	const char *dir = options_text(opts, "output");
	struct st_err err = { 0 };
	char path[PATH_MAX];
	bool fallback;
	char *text;

	dir = dir				 ? dir
	      : config->slow_node_detection_path ? config->slow_node_detection_path
						 : "/etc/systrace/result/slow_node";
	text = localize_json(loc, result, session, (size_t)config->max_num_normal_results, &err);
	if (!text)
		return cmd_error("%s", err.text);
	if (result_write(dir, "slow_node_result", text, path, sizeof(path), &fallback, &err) < 0) {
		free(text);
		return cmd_error("%s", err.text);
	}
	if (fallback)
		cmd_note("%s is not writable; the result went into the user's own directory", dir);
	if (opts->json)
		fputs(text, stdout);
	else {
		localize_words(stdout, loc, result, session);
		printf("Result: %s\n", path);
	}
	free(text);
	return CMD_OK;
}

static int judge(const struct options *opts, const struct model_config *config, const char *input,
		 struct records *records)
{
	struct loc_options how = { .off_kinds = config->off_kinds, .hang_mins = config->failslow.hang_times_mins_thr };
	struct localize *loc = NULL;
	struct loc_result result;
	int status = parse_range(opts, &how);

	if (status != CMD_OK)
		return status;
	if (!how.until_ns)
		how.until_ns = records->capture_end_ns;
	loc = localize_new(&how);
	if (!loc || localize_feed(loc, records) < 0 || localize_judge(loc, &result) < 0)
		status = cmd_error("out of memory");
	else if (result.verdict == LOC_NO_DATA)
		status =
			cmd_nothing("%s; is %s a dump directory with timeline/ or mspti/ in it?", result.reason, input);
	else
		status = put_result(opts, config, loc, &result, records->session);
	localize_free(loc);
	return status;
}

/* The configured input; where it does not exist the dump path, which is said */
static const char *default_input(const struct model_config *config)
{
	const char *input = model_config_input(config->root_path);

	if (input != config->root_path && config->root_path)
		cmd_note("%s does not exist; reading %s", config->root_path, input);
	return input;
}

static int run(const struct options *opts)
{
	struct model_config config;
	size_t notes = 0;
	struct records records = { .note = note, .note_arg = &notes };
	const char *input = options_text(opts, "input");
	struct st_err err = { 0 };
	int status;

	if (model_config_load(&config, options_text(opts, "config"), &err) < 0) {
		model_config_fini(&config);
		return cmd_error("%s", err.text);
	}
	if (config.unknown[0])
		cmd_note("%s: keys not known here: %s", config.loaded_from, config.unknown);
	input = input ? input : default_input(&config);
	records.session = ev_session_new();
	if (!input)
		status = cmd_usage("which records? give --input DIR");
	else if (!records.session)
		status = cmd_error("out of memory");
	else if (records_find(&records, input, options_text(opts, "run"), &err) < 0)
		status = cmd_error("%s", err.text);
	else
		status = judge(opts, &config, input, &records);
	if (notes > MAX_NOTES)
		cmd_note("and %zu more remarks of this kind", notes - MAX_NOTES);
	records_fini(&records);
	ev_session_free(records.session);
	model_config_fini(&config);
	return status;
}

const struct command cmd_localize = {
	.name = "localize",
	.summary = "name the rank that makes a job slow, and what it is slow in",
	.usage = "--input DIR [--output DIR] [--from STEP|TIME] [--to STEP|TIME] [--json]",
	.about =
		"Compares ranks that do the same work: the time each one spends on its own between collectives, its data\n"
		"loader and checkpoints, and the transfer times of groups and pipeline links. Says 'cannot tell', with the\n"
		"reason, where the records do not suffice. Exit status: 0 with a verdict, 3 without data.\n",
	.examples = "  systrace localize --input /home/sysTrace --output result   # a whole dump directory\n"
		    "  systrace localize -i dump -o result --from 200 --to 400    # only these steps\n",
	.options = options,
	.run = run,
};
