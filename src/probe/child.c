/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See child.h. */
#include "probe/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- words -------------------------------------------------------------------------------------------------------- */

int child_words_add(struct child_words *words, const char *word)
{
	char **more = realloc(words->list, (words->count + 2) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	words->list = more;
	words->list[words->count] = strdup(word);
	if (!words->list[words->count])
		return -ENOMEM;
	words->list[++words->count] = NULL;
	return 0;
}

/* One word into @word. Return: what follows it, NULL = a quote is not closed. */
static const char *take_word(const char *text, char *word)
{
	char quote = 0;

	for (; *text && (quote || !strchr(" \t\n", *text)); text++) {
		if (*text == '\\' && quote != '\'' && text[1]) {
			*word++ = *++text;
		} else if (quote && *text == quote) {
			quote = 0;
		} else if (!quote && (*text == '\'' || *text == '"')) {
			quote = *text;
		} else {
			*word++ = *text;
		}
	}
	*word = '\0';
	return quote ? NULL : text;
}

int child_words_split(struct child_words *words, const char *text, struct st_err *err)
{
	char *word = malloc(strlen(text) + 1);
	const char *at = text;
	int ret = word ? 0 : -ENOMEM;

	while (ret == 0 && *(at += strspn(at, " \t\n"))) {
		at = take_word(at, word);
		if (!at) {
			free(word);
			return err_set(err, -EINVAL, "args: a quote is not closed in: %.200s", text);
		}
		ret = child_words_add(words, word);
	}
	free(word);
	return ret < 0 ? err_set(err, ret, "out of memory") : 0;
}

void child_words_free(struct child_words *words)
{
	for (size_t i = 0; i < words->count; i++)
		free(words->list[i]);
	free(words->list);
	*words = (struct child_words){ 0 };
}

int child_find(const char *name, char *path, size_t room)
{
	const char *at = getenv("PATH");
	struct stat st;

	for (at = at && *at ? at : "/usr/sbin:/usr/bin:/sbin:/bin"; *at; at += *at == ':') {
		size_t len = strcspn(at, ":");

		if (at[0] == '/' && snprintf(path, room, "%.*s/%s", (int)len, at, name) < (int)room &&
		    access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
			return 0;
		at += len;
	}
	return -ENOENT;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void give(int from, int to)
{
	int null;

	if (from >= 0) {
		dup2(from, to);
		return;
	}
	null = open("/dev/null", O_RDWR);
	dup2(null, to);
}

static void become(const struct child_words *words, int dir, int out, int error, int death_signal, pid_t parent,
		   int tell)
{
	sigset_t none;
	int code;

	prctl(PR_SET_PDEATHSIG, death_signal);
	if (getppid() != parent)
		_exit(127);
	setpgid(0, 0);
	for (int sig = 1; sig < SIGRTMIN; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (dir < 0 ? chdir("/") : fchdir(dir))
		goto fail;
	give(-1, 0);
	give(out, 1);
	give(error, 2);
	execv(words->list[0], words->list);
fail:
	code = errno;
	(void)!write(tell, &code, sizeof(code));
	_exit(127);
}

int child_start(struct child *child, const struct child_words *words, int dir, int out, int error, int death_signal,
		struct st_err *err)
{
	pid_t self = getpid();
	int tell[2], code = 0;

	*child = (struct child){ .pid_fd = -1 };
	if (pipe2(tell, O_CLOEXEC) < 0)
		return err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
	child->pid = fork();
	if (child->pid == 0)
		become(words, dir, out, error, death_signal, self, tell[1]);
	close(tell[1]);
	if (child->pid < 0) {
		child->pid = 0;
		close(tell[0]);
		return err_set(err, -errno, "cannot start %s: %s", words->list[0], strerror(errno));
	}
	if (read(tell[0], &code, sizeof(code)) == (ssize_t)sizeof(code)) {
		close(tell[0]);
		child_wait(child, -1);
		return err_set(err, -code, "cannot run %s: %s", words->list[0], strerror(code));
	}
	close(tell[0]);
	child->pid_fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	if (child->pid_fd >= 0)
		return 0;
	code = errno;
	child_end(child, SIGKILL, 0);
	return err_set(err, -code, "cannot watch %s: %s", words->list[0], strerror(code));
}

bool child_wait(struct child *child, int wait_ms)
{
	struct pollfd fd = { .fd = child->pid_fd, .events = POLLIN };

	if (!child->pid)
		return true;
	if (child->pid_fd >= 0)
		poll(&fd, 1, wait_ms);
	if (waitpid(child->pid, &child->status, wait_ms < 0 ? 0 : WNOHANG) != child->pid)
		return false;
	child->pid = 0;
	if (child->pid_fd >= 0)
		close(child->pid_fd);
	child->pid_fd = -1;
	return true;
}

bool child_end(struct child *child, int sig, int grace_ms)
{
	if (!child->pid)
		return true;
	kill(child->pid, sig);
	if (child_wait(child, grace_ms))
		return true;
	kill(-child->pid, SIGKILL);
	kill(child->pid, SIGKILL);
	child_wait(child, -1);
	return false;
}

const char *child_said(int fd, off_t from, char *text, size_t room)
{
	off_t end = lseek(fd, 0, SEEK_END), begin = from;
	ssize_t got;
	char *to = text;

	if (end - begin >= (off_t)room)
		begin = end - (off_t)room + 1;
	got = end > begin ? pread(fd, text, room - 1, begin) : 0;
	text[got > 0 ? got : 0] = '\0';
	for (char *at = text; *at; at++) {
		bool blank = (unsigned char)*at <= ' ';

		if (!blank)
			*to++ = *at;
		else if (to > text && to[-1] != ' ')
			*to++ = ' ';
	}
	*to = '\0';
	return *text ? text : "it said nothing";
}
