/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recorded I/O as tables for people: per call and per file how often, how much, how long (percentiles), and throughput over
 * time. `systrace convert io` prints it; the pictures are timeline.h's.
 */
#ifndef CONVERT_IO_TEXT_H
#define CONVERT_IO_TEXT_H

#include "convert/text.h"
#include "trace/merge.h"

/**
 * io_text_write - read a merge to its end and print the tables
 *
 * Context: tool. Percentiles are right within 13 %. Return: calls, 0 = there was none (nothing is printed), -errno.
 */
int64_t io_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		      struct st_err *err);

#endif
