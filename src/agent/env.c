/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reading the environment; see env.h. Called by life.c in the constructor and by identity.c when the rank is bound. */
#include "agent/env.h"

#include "base/num.h"
#include "safe/siglog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TEXT_BYTES 8192
#define REFUSED_MAX 4
#define ENVIRON_MAX 4096 /* variables looked at */

struct env env;

static char texts[TEXT_BYTES]; /* the copies; .bss, touched by processes that are not inert only */
static size_t texts_used;
static struct st_err refused[REFUSED_MAX];
static int refused_count;

static const char *keep(const char *value)
{
	size_t len = strlen(value) + 1;
	char *copy = texts + texts_used;

	if (len > TEXT_BYTES - texts_used)
		return NULL;
	memcpy(copy, value, len);
	texts_used += len;
	return copy;
}

static void refuse(const struct st_err *err)
{
	if (refused_count < REFUSED_MAX)
		refused[refused_count++] = *err;
}

enum env_switch env_switch(void)
{
	const char *value = getenv(env_specs[ENV_ENABLE].name);
	int word;

	if (!value || !*value)
		return ENV_SWITCH_AUTO;
	word = env_word(ENV_ENABLE, value);
	if (word < 0)
		return ENV_SWITCH_AUTO;
	return word % 2 ? ENV_SWITCH_OFF : ENV_SWITCH_ON; /* words: 1,0,on,off,true,false */
}

static void read_one(enum env_id id)
{
	const char *value = getenv(env_specs[id].name);
	const char *copy;
	struct st_err err;

	env.text[id] = env_specs[id].initial;
	if (!value || !*value)
		return;
	if (env_check(id, value, &err) < 0) {
		refuse(&err);
		return;
	}
	copy = keep(value);
	if (!copy) {
		err_set(&err, -ENOSPC, "%s is too long and was ignored", env_specs[id].name);
		refuse(&err);
		return;
	}
	env.text[id] = copy;
	env.given[id] = true;
}

static const char *read_state_home(void)
{
	const char *xdg = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");
	char path[512];

	if (xdg && *xdg == '/')
		return keep(xdg);
	if (!home || *home != '/' || snprintf(path, sizeof(path), "%s/.local/state", home) >= (int)sizeof(path))
		return NULL;
	return keep(path);
}

static uint64_t megabytes(enum env_id id)
{
	uint64_t number = 0;

	if (num_u64(env.text[id], &number) < 0 || number > UINT64_MAX >> 20)
		return UINT64_MAX;
	return number << 20;
}

void env_read(void)
{
	int id;

	for (id = 0; id < ENV_COUNT; id++)
		read_one((enum env_id)id);
	env.state_home = read_state_home();
	env.log_level = env_word(ENV_LOG_LEVEL, env.text[ENV_LOG_LEVEL]);
	env.json = env_word(ENV_FORMAT, env.text[ENV_FORMAT]) == 1;
	env.python_tracing = env_word(ENV_PYTHON_TRACING, env.text[ENV_PYTHON_TRACING]) % 2 == 0;
	env.spool_bytes = megabytes(ENV_SPOOL_MB);
	env.max_bytes = megabytes(ENV_MAX_MB);
	env.budget_pct = strtod(env.text[ENV_BUDGET_PCT], NULL);
}

void env_complain(void)
{
	int i;

	for (i = 0; i < refused_count; i++)
		siglog(SIGLOG_WARN, "env", "%s; the default is used", refused[i].text);
}

/* --- the environment as it is now ------------------------------------------------------------------------------------ */

extern char **environ;

/* As peek(), where its call is not allowed: write() fails instead of faulting as well. Of at most a page. */
static bool peek_by_pipe(void *to, const void *from, size_t bytes)
{
	int ends[2];
	bool got;

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return false;
	/* not write(): sanitizers look at what it is given, and a text may end before the page does */
	got = syscall(SYS_write, ends[1], from, bytes) == (long)bytes && read(ends[0], to, bytes) == (ssize_t)bytes;
	close(ends[0]);
	close(ends[1]);
	return got;
}

/* Copy our own memory; fails instead of faulting. */
static bool peek(void *to, const void *from, size_t bytes)
{
	struct iovec local = { to, bytes };
	struct iovec remote = { (void *)from, bytes };
	ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	if (got < 0 && (errno == ENOSYS || errno == EPERM))
		return peek_by_pipe(to, from, bytes);
	return got == (ssize_t)bytes;
}

/* A text of unknown length: up to the end of its page, then page by page. */
static bool peek_text(char *to, size_t room, const char *from)
{
	size_t done = 0;

	while (done < room - 1) {
		size_t step = 4096 - ((uintptr_t)(from + done) & 4095);

		if (step > room - 1 - done)
			step = room - 1 - done;
		if (!peek(to + done, from + done, step))
			return false;
		if (memchr(to + done, 0, step))
			return true;
		done += step;
	}
	to[done] = 0;
	return true;
}

int env_peek(const char *name, char *out, size_t room)
{
	size_t len = strlen(name);
	char head[64]; /* enough to tell names apart */
	const char *entry;
	char **list;
	int i;

	if (len + 2 > sizeof(head) || !peek(&list, &environ, sizeof(list)) || !list)
		return -ENOENT;
	for (i = 0; i < ENVIRON_MAX && peek(&entry, list + i, sizeof(entry)) && entry; i++) {
		if (!peek_text(head, len + 2, entry) || strncmp(head, name, len) || head[len] != '=')
			continue;
		if (!peek_text(out, room, entry + len + 1))
			return -ENOENT;
		return (int)strlen(out);
	}
	return -ENOENT;
}
