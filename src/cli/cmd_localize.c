/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace localize`: which rank of a job is slow, and in what. Finds the records, feeds analyze/localize, prints the
 * verdict and writes the documented result file.
 */
#include "analyze/diagnose.h"
#include "analyze/result.h"
#include "cli/become.h"
#include "cli/command.h"
#include "cli/hang_stacks.h"

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
	{ "algorithm", 'a', OPT_WORD, "robust|documented", NULL,
	  "localiser; default: the configuration's, else robust" },
	{ "timeline", 0, OPT_TEXT, "DIR", NULL, "further records, where timelines lie elsewhere" },
	{ "config", 'c', OPT_TEXT, "FILE|DIR", NULL,
	  "model_config.json, or the directory of it and metric_config.json; default: /etc/systrace/config" },
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

static int parse_range(const struct options *opts, struct diagnosis *to)
{
	const char *from = options_text(opts, "from"), *upto = options_text(opts, "to");
	const char *until = options_text(opts, "until");
	uint32_t none;

	if (from && !parse_place(from, &to->options.from_step, &to->options.from_ns))
		return cmd_usage("--from=%s is neither a step nor a time like '2026-01-31 23:59:00'", from);
	if (upto && !parse_place(upto, &to->options.to_step, &to->options.to_ns))
		return cmd_usage("--to=%s is neither a step nor a time like '2026-01-31 23:59:00'", upto);
	if (until && !strcmp(until, "now"))
		to->until_ns = (int64_t)time(NULL) * 1000000000;
	else if (until && (!parse_place(until, &none, &to->until_ns) || !to->until_ns))
		return cmd_usage("--until=%s is neither 'now' nor a time like '2026-01-31 23:59:00'", until);
	return CMD_OK;
}

static const char *result_dir(const struct options *opts, const struct model_config *config)
{
	const char *dir = options_text(opts, "output");

	return dir				  ? dir
	       : config->slow_node_detection_path ? config->slow_node_detection_path
						  : "/etc/systrace/result/slow_node";
}

static int put_result(const struct options *opts, const struct diagnosis *d)
{
	const char *dir = result_dir(opts, d->config);
	const struct ev_session *session = d->records->session;
	struct st_err err = { 0 };
	char path[PATH_MAX];
	bool fallback;
	char *text = localize_json(d->loc, &d->ranks, session, d->config, &err);

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
		localize_words(stdout, d->loc, &d->ranks, session);
		hang_stacks_words(stdout, d);
		if (d->window[0])
			printf("Looked at: %s.\n", d->window);
		printf("Result: %s\n", path);
	}
	free(text);
	return diagnose_files(d, &err) < 0 ? cmd_error("%s", err.text) : CMD_OK;
}

static int judge(const struct options *opts, const struct model_config *config, const struct metric_config *metrics,
		 const char *input, struct records *records)
{
	struct diagnosis d = { .config = config, .metrics = metrics, .records = records };
	char debug[PATH_MAX];
	struct st_err err = { 0 };
	int ret, status = parse_range(opts, &d);

	if (status != CMD_OK)
		return status;
	snprintf(debug, sizeof(debug), "%s/debug", result_dir(opts, config));
	d.debug_dir = debug;
	ret = diagnose_ranks(&d, &err);
	become_root();
	if (ret < 0)
		status = cmd_error("%s", err.text);
	else if (d.ranks.verdict == LOC_NO_DATA)
		status = cmd_nothing("%s; is %s a dump directory with timeline/ or mspti/ in it?", d.ranks.reason,
				     input);
	else {
		hang_stacks_ask(&d, input);
		status = put_result(opts, &d);
	}
	diagnosis_fini(&d);
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

/* Both configuration files; @opts may name a file, or the directory of both */
static int load_config(const struct options *opts, struct model_config *config, struct metric_config *metrics)
{
	const char *algorithm = options_text(opts, "algorithm");
	struct st_err err = { 0 };

	if (config_load_both(config, metrics, options_text(opts, "config"), &err) < 0)
		return cmd_error("%s", err.text);
	if (config->unknown[0])
		cmd_note("%s: keys not known here: %s", config->loaded_from, config->unknown);
	if (algorithm)
		config->failslow.algorithm = algorithm;
	return CMD_OK;
}

static int find(const struct options *opts, struct records *records, const char *input)
{
	const char *also = options_text(opts, "timeline");
	struct st_err err = { 0 };

	if (!records->session)
		return cmd_error("out of memory");
	if (also && records_add(records, also, &err) < 0)
		return cmd_error("%s", err.text);
	if (records_find(records, input, options_text(opts, "run"), &err) < 0)
		return cmd_error("%s", err.text);
	return CMD_OK;
}

/* What jobs left is read with their user's rights; judge() takes root's back for the result. */
static int borrow_and_find(const struct options *opts, struct records *records, const char *input)
{
	struct st_err err = { 0 };
	int status = become_borrow(input, &err) < 0 ? cmd_error("%s", err.text) : find(opts, records, input);

	if (status != CMD_OK)
		become_root();
	return status;
}

static int run(const struct options *opts)
{
	struct model_config config;
	struct metric_config metrics;
	size_t notes = 0;
	struct records records = { .note = note, .note_arg = &notes };
	const char *input = options_text(opts, "input");
	int status = load_config(opts, &config, &metrics);

	if (status == CMD_OK) {
		input = input ? input : default_input(&config);
		records.session = ev_session_new();
		status = input ? borrow_and_find(opts, &records, input) : cmd_usage("which records? give --input DIR");
		if (status == CMD_OK)
			status = judge(opts, &config, &metrics, input, &records);
		if (notes > MAX_NOTES)
			cmd_note("and %zu more remarks of this kind", notes - MAX_NOTES);
		records_fini(&records);
		ev_session_free(records.session);
	}
	model_config_fini(&config);
	return status;
}

const struct command cmd_localize = {
	.name = "localize",
	.summary = "name the rank that makes a job slow, and what it is slow in",
	.usage =
		"--input DIR [--output DIR] [--algorithm robust|documented] [--from STEP|TIME] [--to STEP|TIME] [--json]",
	.about =
		"Compares ranks that do the same work: the time each one spends on its own between collectives, its data\n"
		"loader and checkpoints, and the transfer times of groups and pipeline links. Says 'cannot tell', with the\n"
		"reason, where the records do not suffice. Exit status: 0 with a verdict, 3 without data.\n",
	.examples = "  systrace localize --input /home/sysTrace --output result   # a whole dump directory\n"
		    "  systrace localize -i dump -o result --from 200 --to 400    # only these steps\n",
	.options = options,
	.run = run,
};
