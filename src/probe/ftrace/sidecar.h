/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * <output>.meta.json beside a recording: clocks at its start and end (`convert ftrace --align clock-file`), where and how
 * it was made, what was lost. Format: docs/formats/trace.dat.md.
 */
#ifndef PROBE_FTRACE_SIDECAR_H
#define PROBE_FTRACE_SIDECAR_H

#include "base/err.h"
#include "probe/ftrace/backend.h"
#include "safe/clock.h"

struct sidecar {
	struct clock_snapshot begin, end;
};

void sidecar_begin(struct sidecar *sidecar);
void sidecar_end(struct sidecar *sidecar);

/** sidecar_write - @output: the recording's name. Return: 0 or -errno with @err. */
int sidecar_write(const struct sidecar *sidecar, const struct recording *rec, const struct backend *backend,
		  const struct systrace_ftrace_status *status, const char *output, struct st_err *err);

#endif
