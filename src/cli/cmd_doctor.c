/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace doctor`: says what can be recorded here and why not, prints the table of environment variables, and examines
 * one process with --pid. Prints only; the examinations are in doctor_host.c and doctor_pid.c.
 */
#include "base/num.h"
#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/term.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_names[] = {
	[FINDING_INFO] = "info", [FINDING_OK] = "ok", [FINDING_LIMITED] = "limited", [FINDING_NO] = "no"
};
static const enum term_colour level_colours[] = {
	[FINDING_INFO] = TERM_DIM, [FINDING_OK] = TERM_GREEN, [FINDING_LIMITED] = TERM_YELLOW, [FINDING_NO] = TERM_RED
};

void diagnosis_add(struct diagnosis *diagnosis, const char *section, enum finding_level level, const char *name,
		   const char *format, ...)
{
	struct finding finding = { .section = section, .level = level, .name = strdup(name) };
	va_list ap;

	va_start(ap, format);
	if (vasprintf(&finding.text, format, ap) < 0)
		finding.text = NULL;
	va_end(ap);
	if (diagnosis->count == diagnosis->room) {
		size_t room = diagnosis->room ? 2 * diagnosis->room : 32;
		struct finding *list = realloc(diagnosis->list, room * sizeof(*list));

		if (list) {
			diagnosis->list = list;
			diagnosis->room = room;
		}
	}
	if (!finding.name || !finding.text || diagnosis->count == diagnosis->room) {
		free(finding.name);
		free(finding.text);
		diagnosis->failed = 1;
		return;
	}
	diagnosis->list[diagnosis->count++] = finding;
}

void diagnosis_free(struct diagnosis *diagnosis)
{
	for (size_t i = 0; i < diagnosis->count; i++) {
		free(diagnosis->list[i].name);
		free(diagnosis->list[i].text);
	}
	free(diagnosis->list);
	*diagnosis = (struct diagnosis){ 0 };
}

/* Width of the longest name of the section that begins at @from. */
static int section_width(const struct diagnosis *diagnosis, size_t from)
{
	size_t wide = 0;

	for (size_t i = from; i < diagnosis->count && diagnosis->list[i].section == diagnosis->list[from].section; i++)
		if (strlen(diagnosis->list[i].name) > wide)
			wide = strlen(diagnosis->list[i].name);
	return (int)wide;
}

static void print_text(const struct diagnosis *diagnosis)
{
	const char *section = NULL;
	int wide = 0;

	for (size_t i = 0; i < diagnosis->count; i++) {
		const struct finding *one = &diagnosis->list[i];

		if (one->section != section) {
			printf("%s%s%s%s\n", section ? "\n" : "", term_on(stdout, TERM_BOLD), one->section,
			       term_off(stdout));
			section = one->section;
			wide = section_width(diagnosis, i);
		}
		term_clean(one->name);
		term_clean(one->text);
		printf("  %s%-7s%s  %-*s  %s\n", term_on(stdout, level_colours[one->level]), level_names[one->level],
		       term_off(stdout), wide, one->name, one->text);
	}
}

static void print_json(const struct diagnosis *diagnosis)
{
	fputs("{\"findings\": [", stdout);
	for (size_t i = 0; i < diagnosis->count; i++) {
		const struct finding *one = &diagnosis->list[i];

		printf("%s\n  {\"section\": ", i ? "," : "");
		term_json_string(stdout, one->section);
		printf(", \"level\": \"%s\", \"name\": ", level_names[one->level]);
		term_json_string(stdout, one->name);
		fputs(", \"text\": ", stdout);
		term_json_string(stdout, one->text);
		putchar('}');
	}
	puts("]}");
}

static int run(const struct options *opts)
{
	struct diagnosis diagnosis = { 0 };
	int status = CMD_OK;

	if (options_given(opts, "pid")) {
		uint64_t pid = options_u64(opts, "pid", 0);

		if (pid == 0 || pid > INT32_MAX)
			return cmd_usage("--pid: %s is not a process id", options_text(opts, "pid"));
		status = doctor_pid(&diagnosis, (pid_t)pid);
	} else {
		doctor_host(&diagnosis);
	}
	if (opts->json)
		print_json(&diagnosis);
	else
		print_text(&diagnosis);
	if (diagnosis.failed)
		status = cmd_error("out of memory: findings are missing");
	diagnosis_free(&diagnosis);
	return status;
}

static const struct option_spec doctor_options[] = {
	{ "pid", 'p', OPT_U64, "PID", NULL, "Examine this process instead of the machine" },
	{ .kind = OPT_END },
};

const struct command cmd_doctor = {
	.name = "doctor",
	.summary = "say what can be recorded here, and why not",
	.usage = "[--pid PID] [--json]",
	.about =
		"Examines the machine: system, output directories, what jobs are protected from, Python interpreters,\n"
		"environment variables, and for each plugin whether it can record here and what is missing. With --pid it\n"
		"examines one process: is the library loaded, does its agent answer, and if not, why.\n",
	.examples = "  systrace doctor                # this machine\n"
		    "  systrace doctor --pid 18164    # why is nothing recorded in this process?\n"
		    "  systrace doctor --json         # for programs\n",
	.options = doctor_options,
	.run = run,
};
