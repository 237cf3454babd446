/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Programs that the probe runs (perf, trace-cmd): words of a text as arguments, no shell; they end when the probe does,
 * however that ends. Used by the kinds CacheMiss and Trace.
 */
#ifndef PROBE_CHILD_H
#define PROBE_CHILD_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct child_words {
	char **list; /* NULL-terminated, each malloc()ed */
	size_t count;
};

/** child_words_add - one more. Return: 0 or -ENOMEM. */
int child_words_add(struct child_words *words, const char *word);

/**
 * child_words_split - words of a text: blanks separate them, quotes and backslashes keep blanks as in a shell
 *
 * Appends to @words. Return: 0, -EINVAL with @err (a quote is not closed), -ENOMEM; child_words_free() in any case.
 */
int child_words_split(struct child_words *words, const char *text, struct st_err *err);
void child_words_free(struct child_words *words);

/** child_find - where a program is, from PATH. Return: 0 or -ENOENT. */
int child_find(const char *name, char *path, size_t room);

struct child {
	pid_t pid; /* 0 = none, or ended */
	int pid_fd; /* readable once it has ended; -1 */
	int status; /* as waitpid() gives it, when it has ended */
};

/**
 * child_start - run words->list[0], an absolute path
 * @dir: its working directory, -1 = /
 * @out, @error: its stdout and stderr; -1 = /dev/null
 * @death_signal: what it gets when the probe dies
 *
 * It has a process group of its own. Return: 0 or -errno with @err.
 */
int child_start(struct child *child, const struct child_words *words, int dir, int out, int error, int death_signal,
		struct st_err *err);

/** child_wait - has it ended, or does it within @wait_ms? */
bool child_wait(struct child *child, int wait_ms);

/** child_end - @sig, then SIGKILL to its group after @grace_ms. Idempotent. Return: did it end by itself or by @sig? */
bool child_end(struct child *child, int sig, int grace_ms);

/** child_said - end of what it wrote into a file, on one line. @from: where it began. */
const char *child_said(int fd, off_t from, char *text, size_t room);

#endif
