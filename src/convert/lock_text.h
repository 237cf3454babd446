/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recorded lock waits as tables for people: per function how often it was called and how long it waited, per lock who
 * waited how long, for whom, and from where. `systrace convert mutex` prints it; the pictures are timeline.h's.
 */
#ifndef CONVERT_LOCK_TEXT_H
#define CONVERT_LOCK_TEXT_H

#include "convert/text.h"
#include "trace/merge.h"

/**
 * lock_text_write - read a merge to its end and print the tables
 *
 * Context: tool. Return: waits and counts, 0 = there was none (nothing is printed), -errno with @err.
 */
int64_t lock_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
			struct st_err *err);

#endif
