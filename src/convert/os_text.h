/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recorded scheduling as tables for people: per rank how long its threads ran, waited for a CPU and slept, who took the CPU
 * from them and for how long, and the same per thread. `systrace convert osprobe` prints it; the pictures are timeline.h's.
 */
#ifndef CONVERT_OS_TEXT_H
#define CONVERT_OS_TEXT_H

#include "convert/text.h"
#include "trace/merge.h"

/**
 * os_text_write - read a merge to its end and print the tables
 *
 * Context: tool. Return: spans read, 0 = there was none (nothing is printed), -errno with @err.
 */
int64_t os_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		      struct st_err *err);

#endif
