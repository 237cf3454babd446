/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recorded interpreter locks as tables for people: how long each thread held and waited, and the convoy: who held the lock
 * while which others waited. `systrace convert gil` prints it; the pictures are timeline.h's.
 */
#ifndef CONVERT_GIL_TEXT_H
#define CONVERT_GIL_TEXT_H

#include "convert/text.h"
#include "trace/merge.h"

/**
 * gil_text_write - read a merge to its end and print the tables
 *
 * Context: tool. Return: holds and waits, 0 = there was none (nothing is printed), -errno with @err.
 */
int64_t gil_text_write(struct ev_session *session, struct merge *merge, FILE *out, const struct text_options *options,
		       struct st_err *err);

#endif
