/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace failslow`: did a job become slow or hang, from which step on, and by how much. Finds step times, feeds
 * analyze/failslow, prints the verdict and writes the documented result file.
 */
#include "analyze/failslow_input.h"
#include "analyze/model_config.h"
#include "analyze/result.h"
#include "cli/become.h"
#include "cli/command.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const struct option_spec options[] = {
	{ "input", 'i', OPT_TEXT, "DIR|FILE", NULL,
	  "dump directory, a timeline, or a training log; default: training_log of the configuration" },
	{ "output", 'o', OPT_TEXT, "DIR", NULL,
	  "directory for fail_slow_perception_result_<type>_<unix time>.json; default: fail_slow_perception_path" },
	{ "algorithm", 'a', OPT_WORD, "robust|documented", NULL,
	  "detector; default: the configuration's, else robust" },
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

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static const char *result_dir(const struct options *opts, const struct model_config *config)
{
	const char *given = options_text(opts, "output");

	return result_dir_of(given ? given : config->fail_slow_perception_path, "/etc/systrace/result/fail_slow");
}

static int put_result(const struct options *opts, const struct model_config *config,
		      const struct failslow_result *result, int64_t begin_ms)
{
	const char *dir = result_dir(opts, config);
	char *text = NULL;
	char stem[64], path[PATH_MAX];
	struct st_err err = { 0 };
	int status = CMD_OK;
	bool fallback;

	snprintf(stem, sizeof(stem), "fail_slow_perception_result_%s", failslow_type_word(result->type));
	text = failslow_json(result, config->failslow.algorithm, begin_ms, now_ms(), &err);
	if (!text || result_write(dir, stem, text, path, sizeof(path), &fallback, &err) < 0) {
		status = cmd_error("%s", err.text);
		goto out;
	}
	if (fallback)
		cmd_note("%s is not writable; the result went into the user's own directory", dir);
	if (opts->json) {
		fputs(text, stdout);
	} else {
		failslow_words(stdout, result);
		printf("Result: %s\n", path);
	}
out:
	free(text);
	return status;
}

/* End of observation in Unix us, 0 = the end of the data. Return: CMD_OK or CMD_USAGE. */
static int parse_until(const struct options *opts, int64_t *us)
{
	const char *text = options_text(opts, "until");
	struct tm tm = { .tm_isdst = -1 };
	const char *end;

	if (!text)
		return CMD_OK;
	if (!strcmp(text, "now")) {
		*us = now_ms() * 1000;
		return CMD_OK;
	}
	end = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
	if (!end || *end)
		return cmd_usage("--until=%s is neither 'now' nor a time like '2026-01-31 23:59:00'", text);
	*us = (int64_t)mktime(&tm) * 1000000;
	return CMD_OK;
}

static int feed(struct failslow *fs, const struct options *opts, const char *input, int64_t *until_us,
		struct failslow_feed *fed)
{
	size_t notes = 0;
	struct records records = { .note = note, .note_arg = &notes };
	struct st_err err = { 0 };
	struct stat st;
	int status = CMD_OK;

	if (stat(input, &st) == 0 && S_ISREG(st.st_mode) && failslow_is_log(input)) {
		if (failslow_feed_log(fs, input, fed, &err) < 0)
			return cmd_error("%s", err.text);
		return CMD_OK;
	}
	records.session = ev_session_new();
	if (!records.session)
		return cmd_error("out of memory");
	if (records_find(&records, input, options_text(opts, "run"), &err) < 0)
		status = cmd_error("%s", err.text);
	else if (failslow_feed_records(fs, &records, fed) < 0)
		status = cmd_error("out of memory");
	else if (!*until_us)
		*until_us = records.capture_end_ns ? records.capture_end_ns / 1000 : fed->last_us;
	if (notes > MAX_NOTES)
		cmd_note("and %zu more remarks of this kind", notes - MAX_NOTES);
	records_fini(&records);
	ev_session_free(records.session);
	return status;
}

static int judge(const struct options *opts, const struct model_config *config, const char *input)
{
	struct failslow_result result;
	struct failslow_feed fed = { 0 };
	struct st_err err = { 0 };
	int64_t begin_ms = now_ms(), until_us = 0;
	int status = parse_until(opts, &until_us);
	struct failslow *fs;

	if (status != CMD_OK)
		return status;
	fs = failslow_new(&config->failslow, &err);
	if (!fs)
		return cmd_error("%s", err.text);
	if (become_borrow(input, &err) < 0)
		status = cmd_error("%s", err.text);
	if (status == CMD_OK)
		status = feed(fs, opts, input, &until_us, &fed);
	become_root();
	if (status == CMD_OK && !fed.steps)
		status = cmd_nothing(
			"no steps in %s: it must be a dump directory with timeline/ in it, a timeline, or a "
			"training log with 'per_step_time:' or 'elapsed time per iteration (ms):'",
			input);
	else if (status == CMD_OK && !failslow_finish(fs, until_us, &result))
		status = cmd_nothing("%zu steps in %s are too few for a verdict: %u are needed", fed.steps, input,
				     config->failslow.min_startup_detection_steps);
	else if (status == CMD_OK)
		status = put_result(opts, config, &result, begin_ms);
	failslow_free(fs);
	return status;
}

/* The configured input; where it does not exist the dump path, which is said */
static const char *default_input(const struct model_config *config)
{
	const char *input = model_config_input(config->training_log);

	if (input != config->training_log && config->training_log)
		cmd_note("%s does not exist; reading %s", config->training_log, input);
	return input;
}

static int run(const struct options *opts)
{
	const char *input = options_text(opts, "input"), *algorithm = options_text(opts, "algorithm");
	struct model_config config;
	struct st_err err = { 0 };
	int status;

	if (model_config_load(&config, options_text(opts, "config"), &err) < 0) {
		status = cmd_error("%s", err.text);
		goto out;
	}
	if (config.unknown[0])
		cmd_note("%s: keys not known here: %s", config.loaded_from, config.unknown);
	if (algorithm)
		config.failslow.algorithm = algorithm;
	input = input ? input : default_input(&config);
	status = input ? judge(opts, &config, input) : cmd_usage("which steps? give --input DIR or FILE");
out:
	model_config_fini(&config);
	return status;
}

const struct command cmd_failslow = {
	.name = "failslow",
	.summary = "tell whether a job became slow or hangs, from which step on, and by how much",
	.usage = "--input DIR|FILE [--output DIR] [--algorithm robust|documented] [--json]",
	.about =
		"Watches the times of the job's steps: of recorded steps, of data loader calls in timelines of the published\n"
		"form, or of a training log. Exit status: 0 with a verdict (also 'normal'), 3 without data.\n",
	.examples = "  systrace failslow --input /home/sysTrace --output result       # a whole dump directory\n"
		    "  systrace failslow -i train.log -o result -a documented         # the log of a training\n",
	.options = options,
	.run = run,
};
