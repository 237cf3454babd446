/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One reader over the segments of a file: `<name>.1`, `<name>.2`, ..., `<name>`, read one after the other, so that only
 * one is open at a time. Made by trace/dir.c.
 */
#ifndef TRACE_CHAIN_H
#define TRACE_CHAIN_H

#include "trace/event.h"

/**
 * chain_open - a reader over @count files in this order
 * @paths: copied
 *
 * A segment that cannot be opened is an error of ev_next() once; the call after it goes on with the next segment.
 * Return: the reader, or NULL with errno and @err (also when the first segment cannot be opened).
 */
struct ev_reader *chain_open(struct ev_session *session, const char *const *paths, size_t count, struct st_err *err);

#endif
