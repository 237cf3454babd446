/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See ftrace_func.h. */
#include "probe/ftrace_func.h"

#include "base/near.h"
#include "probe/ftrace/tracefs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ftrace_func_wanted(const struct ftrace_log_options *opts)
{
	return opts->function_tracer && strcmp(opts->function_tracer, "nop") != 0;
}

int ftrace_func_check(const struct ftrace_log_options *opts, struct st_err *err)
{
	if (!ftrace_func_wanted(opts) && (opts->func || opts->func_stack_trace))
		return err_set(err, -EINVAL, "%s needs a tracer: add function_tracer=function",
			       opts->func ? "func" : "func_stack_trace=1");
	if (opts->func_stack_trace && strcmp(opts->function_tracer, "function") != 0)
		return err_set(err, -EINVAL, "func_stack_trace=1 goes with function_tracer=function only");
	if (opts->func_stack_trace && !opts->func)
		return err_set(err, -EINVAL,
			       "func_stack_trace=1 for every function of the kernel would stop the machine: name the "
			       "functions, for example func=\"vfs_read vfs_write\"");
	if (opts->event_stack_trace && !opts->events)
		return err_set(err, -EINVAL, "event_stack_trace=1 needs events=...");
	return 0;
}

/* A word of a file of words; the search for what is near ends at what is equal. */
static bool offer_names(int dir, const char *path, struct near *near, char *found, size_t room)
{
	char line[256];
	FILE *in;
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);

	in = fd < 0 ? NULL : fdopen(fd, "r");
	if (!in) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (fgets(line, sizeof(line), in)) {
		line[strcspn(line, " \t\n")] = '\0';
		near_offer(near, line);
		if (near->best == line) {
			snprintf(found, room, "%s", line);
			near->best = found;
		}
	}
	fclose(in);
	return true;
}

static int no_function(const struct instance *in, const char *word, struct st_err *err)
{
	struct near near = { .word = word };
	char found[256] = "";

	offer_names(in->fs->fd, "available_filter_functions", &near, found, sizeof(found));
	return err_set(err, -ENOENT, "this kernel traces no function '%.80s'%s%s%s", word,
		       *found ? "; did you mean " : "; .../tracing/available_filter_functions lists those that it does",
		       found, *found ? "?" : "");
}

static int refused(int ret, const char *what, struct st_err *err)
{
	if (ret == -EPERM || ret == -EACCES)
		return err_set(
			err, ret,
			"this kernel refuses to trace functions (%s: %s): it is locked down, or this virtual machine "
			"or container may not; events can be recorded without: leave out function_tracer and func",
			what, strerror(-ret));
	return err_set(err, ret, "cannot set %s: %s", what, strerror(-ret));
}

/* Words separated by blanks, each of which may be a pattern. */
static int set_filter(const struct instance *in, const char *func, struct st_err *err)
{
	char word[256];

	while (*(func += strspn(func, " \t\n,"))) {
		size_t len = strcspn(func, " \t\n,");
		int fd, ret = 0;

		if (len >= sizeof(word))
			return err_set(err, -EINVAL, "func: '%.60s...' is too long for a function", func);
		snprintf(word, sizeof(word), "%.*s", (int)len, func);
		func += len;
		if (word[0] == '!' || strchr(word, ':'))
			return err_set(err, -EINVAL, "func: '%.80s' is not the name of a function", word);
		fd = openat(in->fd, "set_ftrace_filter", O_WRONLY | O_APPEND | O_CLOEXEC);
		if (fd < 0)
			return errno == ENOENT ? err_set(err, -ENOTSUP,
							 "this kernel cannot filter functions (CONFIG_DYNAMIC_FTRACE)")
					       : refused(-errno, "set_ftrace_filter", err);
		if (write(fd, word, len) < 0)
			ret = -errno;
		if (close(fd) < 0 && ret == 0)
			ret = -errno;
		if (ret == -EINVAL || ret == -ENOENT)
			return no_function(in, word, err);
		if (ret < 0)
			return refused(ret, "set_ftrace_filter", err);
	}
	return 0;
}

static int no_tracer(const struct instance *in, const char *tracer, struct st_err *err)
{
	char here[256] = "", top[256] = "";

	file_read_line(in->fd, "available_tracers", here, sizeof(here));
	file_read_line(in->fs->fd, "available_tracers", top, sizeof(top));
	if (strstr(top, tracer))
		return err_set(
			err, -ENOTSUP,
			"this kernel has the tracer %s at the top level only, which belongs to all users of ftrace "
			"(instances have it from Linux 6.13 on); use function_tracer=function",
			tracer);
	return err_set(err, -ENOTSUP, "this kernel is built without the tracer %s; it has: %s", tracer,
		       here[0] ? here : top);
}

int ftrace_func_setup(const struct instance *in, const struct ftrace_log_options *opts, struct st_err *err)
{
	char tracers[256] = "";
	const char *tracer = opts->function_tracer;
	int ret;

	if (!ftrace_func_wanted(opts))
		return 0;
	file_read_line(in->fd, "available_tracers", tracers, sizeof(tracers));
	ret = 0;
	if (opts->func)
		ret = set_filter(in, opts->func, err);
	if (ret < 0)
		return ret;
	ret = file_write(in->fd, "current_tracer", tracer);
	if (ret == -EINVAL)
		return no_tracer(in, tracer, err);
	if (ret < 0)
		return refused(ret, "current_tracer", err);
	if (opts->func_stack_trace) {
		ret = file_write(in->fd, "options/func_stack_trace", "1");
		if (ret < 0)
			return err_set(err, ret, "this kernel writes no stacks of functions: %s", strerror(-ret));
	}
	return 0;
}
