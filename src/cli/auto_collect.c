/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The service's own captures; see auto_collect.h. */
#include "cli/auto_collect.h"
#include "cli/service_state.h"

#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define IN_AN_HOUR 8
#define COMMAND_S 30 /* longest run of the command; it answers when capture has begun */
#define SETTLE_S 2 /* behind the capture's end, until what it recorded is on disk */
#define WORDS 8

extern char **environ;

/* The command line that was installed beside this program, else the one that the shell would find */
static void find_cli(char *path, size_t room)
{
	ssize_t length = readlink("/proc/self/exe", path, room - 1);
	char *slash;

	path[length > 0 ? length : 0] = 0;
	slash = strrchr(path, '/');
	if (slash && (size_t)(slash + 1 - path) + sizeof("sysTrace_cli") <= room) {
		strcpy(slash + 1, "sysTrace_cli");
		if (access(path, X_OK) == 0)
			return;
	}
	snprintf(path, room, "sysTrace_cli");
}

static pid_t spawn(const char *command)
{
	char path[PATH_MAX], copy[256], *argv[WORDS + 1] = { NULL }, *rest = NULL, *word;
	posix_spawnattr_t attr;
	sigset_t none;
	size_t count = 0;
	pid_t pid = 0;

	snprintf(copy, sizeof(copy), "%s", command);
	for (word = strtok_r(copy, " ", &rest); word && count < WORDS; word = strtok_r(NULL, " ", &rest))
		argv[count++] = word;
	find_cli(path, sizeof(path));
	sigemptyset(&none);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	if (posix_spawnp(&pid, path, NULL, &attr, argv, environ) != 0)
		pid = 0;
	posix_spawnattr_destroy(&attr);
	return pid;
}

static long seconds_of(const char *command)
{
	const char *at = strstr(command, "duration=");

	return at ? atol(at + strlen("duration=")) : 0;
}

void auto_collect_start(struct auto_collect *c, const struct loc_result *result)
{
	time_t now = time(NULL);
	size_t i;

	if (c->pid || c->due || c->wanted)
		return;
	for (i = 0; i < result->findings_count; i++)
		if (!result->findings[i].cause && result->findings[i].next && seconds_of(result->findings[i].next) > 0)
			break;
	if (i == result->findings_count)
		return;
	if (now - c->hour >= 3600) {
		c->hour = now;
		c->count = 0;
	}
	if (c->count >= IN_AN_HOUR) {
		service_log("info", "auto_collect", "reason=\"%u captures in this hour are enough\"", c->count);
		return;
	}
	c->count++;
	c->command = result->findings[i].next;
	c->rank = result->findings[i].rank;
	c->wanted = true;
}

static void run_wanted(struct auto_collect *c)
{
	c->wanted = false;
	c->since = time(NULL);
	c->pid = spawn(c->command);
	service_log(c->pid ? "info" : "warn", "auto_collect", "rank=%d command=\"%s\"%s", c->rank, c->command,
		    c->pid ? "" : " reason=\"cannot be run\"");
}

/* Reap the command. Return: false while it runs. */
static bool is_over(struct auto_collect *c)
{
	int status = 0;

	if (waitpid(c->pid, &status, WNOHANG) == 0) {
		if (time(NULL) - c->since < COMMAND_S)
			return false;
		service_log("warn", "auto_collect", "reason=\"still running after %d s, killed\"", COMMAND_S);
		kill(-c->pid, SIGKILL);
		waitpid(c->pid, &status, 0);
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		c->due = time(NULL) + seconds_of(c->command) + SETTLE_S;
	else /* no agent here, or none that can: the hint stays in the result */
		service_log("warn", "auto_collect", "command=\"%s\" status=%d", c->command,
			    WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	c->pid = 0;
	return true;
}

bool auto_collect_poll(struct auto_collect *c)
{
	if (c->wanted)
		run_wanted(c);
	if (c->pid && !is_over(c))
		return false;
	if (!c->due || time(NULL) < c->due)
		return false;
	c->due = 0;
	c->done = true;
	return true;
}

bool auto_collect_done(struct auto_collect *c)
{
	bool done = c->done;

	c->done = false;
	return done;
}

void auto_collect_stop(struct auto_collect *c)
{
	if (!c->pid)
		return;
	kill(-c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	c->pid = 0;
}
