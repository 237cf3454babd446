/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The function tracer of the plugin Ftrace: which functions, which tracer, and why this kernel refuses. Part of
 * ftrace_log.c, which alone calls it. */
#ifndef PROBE_FTRACE_FUNC_H
#define PROBE_FTRACE_FUNC_H

#include "base/err.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace_log.h"

/** ftrace_func_wanted - is a function tracer asked for? */
bool ftrace_func_wanted(const struct ftrace_log_options *opts);

/** ftrace_func_check - do the options go together? Return: 0 or -EINVAL with @err. */
int ftrace_func_check(const struct ftrace_log_options *opts, struct st_err *err);

/**
 * ftrace_func_setup - filter, tracer and stacks of an instance that is not switched on yet
 *
 * Return: 0, or -errno with @err: -EPERM refused (lockdown), -ENOENT no such function (the nearest is told), -ENOTSUP no
 * such tracer.
 */
int ftrace_func_setup(const struct instance *in, const struct ftrace_log_options *opts, struct st_err *err);

#endif
