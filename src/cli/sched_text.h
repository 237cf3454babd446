/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The report of `systrace analyze sched` for people: aligned tables with units. Called by cmd_analyze.c. */
#ifndef CLI_SCHED_TEXT_H
#define CLI_SCHED_TEXT_H

#include "analyze/sched.h"

/** sched_text - print the report. @top: rows of each table. Context: tool. */
void sched_text(FILE *out, const struct sched_result *result, const struct ev_session *session, const char *input,
		size_t top);

#endif
