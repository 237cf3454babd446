/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Log lines and status file of a service (service_state.h). */
#include "cli/service_state.h"
#include "cli/command.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

void service_log(const char *level, const char *event, const char *format, ...)
{
	char when[32], text[2048];
	time_t now = time(NULL);
	struct tm tm;
	va_list ap;

	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S%z", localtime_r(&now, &tm));
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	fprintf(stderr, "time=%s level=%s event=%s%s%s\n", when, level, event, *text ? " " : "", text);
}

/* Where the status file lies: the user's runtime directory, /run for root, else below the home directory */
static void status_path(char *path, size_t room)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR"), *home = getenv("HOME");

	if (runtime && *runtime)
		snprintf(path, room, "%s/systrace-failslow.json", runtime);
	else if (geteuid() == 0)
		snprintf(path, room, "/run/systrace-failslow.json");
	else
		snprintf(path, room, "%s/.systrace-failslow.json", home && *home ? home : "/tmp");
}

#ifdef HAVE_JANSSON

int service_put(const struct service_state *state)
{
	char path[PATH_MAX], part[PATH_MAX + 8];
	json_t *root = json_pack("{s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:I}", "pid", (json_int_t)getpid(), "input",
				 state->input, "verdict", state->verdict, "last_result", state->last_result, "passes",
				 (json_int_t)state->passes, "steps", (json_int_t)state->steps, "findings",
				 (json_int_t)state->findings, "cpu_seconds", state->cpu_s, "last_pass",
				 (json_int_t)state->last_pass_unix);
	int ret;

	status_path(path, sizeof(path));
	snprintf(part, sizeof(part), "%s.part", path);
	unlink(part);
	ret = root && json_dump_file(root, part, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 ? 0 : -EIO;
	json_decref(root);
	if (!ret && rename(part, path) < 0)
		ret = -errno;
	return ret;
}

bool service_show(bool json)
{
	char path[PATH_MAX];
	const char *name;
	json_t *root, *value;
	pid_t pid;
	bool alive;

	status_path(path, sizeof(path));
	root = json_load_file(path, 0, NULL);
	pid = (pid_t)json_integer_value(json_object_get(root, "pid"));
	alive = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
	if (json) {
		json_t *out = root ? root : json_object();

		json_object_set_new(out, "running", json_boolean(alive));
		json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(out);
		return alive;
	}
	puts(alive ? "running" : "not running");
	json_object_foreach(root, name, value)
	{
		char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

		printf("  %-12s %s\n", name, text ? text : "");
		free(text);
	}
	json_decref(root);
	return alive;
}

#else

int service_put(const struct service_state *state)
{
	return -ENOTSUP;
}

bool service_show(bool json)
{
	puts("this build has no jansson: no status");
	return false;
}

#endif

void service_gone(void)
{
	char path[PATH_MAX];

	status_path(path, sizeof(path));
	unlink(path);
}
