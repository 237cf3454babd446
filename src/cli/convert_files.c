/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Input files of `systrace convert`; see convert_files.h. */
#include "cli/convert_files.h"

#include "cli/become.h"

static void note(void *arg, const char *text)
{
	cmd_note("%s", text);
}

/* As root: read what jobs wrote, and write beside it, with their user's rights only. */
static int leave_root(const struct options *opts)
{
	const char *path;
	int status = CMD_OK;
	size_t i;

	for (i = 0; status == CMD_OK && (path = options_nth(opts, "input", i)) != NULL; i++)
		status = become_reader(path);
	for (i = 0; status == CMD_OK && i < opts->word_count; i++)
		status = become_reader(opts->words[i]);
	return status;
}

static int add_inputs(const struct options *opts, struct dir_set *set)
{
	struct st_err err = { 0 };
	const char *path;
	size_t i;

	for (i = 0; (path = options_nth(opts, "input", i)) != NULL; i++)
		if (dir_add(set, path, &err) < 0)
			return cmd_error("%s", err.text);
	for (i = 0; i < opts->word_count; i++)
		if (dir_add(set, opts->words[i], &err) < 0)
			return cmd_error("%s", err.text);
	return CMD_OK;
}

int convert_open(struct convert_files *files, const struct options *opts, const char *const *formats,
		 const char *missing)
{
	struct st_err err = { 0 };
	int status, count;

	if (!options_given(opts, "input") && !opts->word_count)
		return cmd_usage("--input is missing");
	files->session = ev_session_new();
	files->set = files->session ? dir_new(files->session, formats) : NULL;
	files->merge = files->set ? merge_new(files->session) : NULL;
	if (!files->merge)
		return cmd_error("out of memory");
	status = leave_root(opts);
	if (status == CMD_OK)
		status = add_inputs(opts, files->set);
	if (status != CMD_OK)
		return status;
	count = dir_select(files->set, options_text(opts, "run"), note, NULL, &err);
	if (count > 0)
		count = dir_open(files->set, files->merge, note, NULL, &err);
	if (count < 0)
		return cmd_error("%s", err.text);
	return count ? CMD_OK : cmd_nothing("there is no file to convert: %s below the directory given", missing);
}

void convert_close(struct convert_files *files)
{
	merge_free(files->merge);
	dir_free(files->set);
	ev_session_free(files->session);
}
