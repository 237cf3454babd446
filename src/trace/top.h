/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The top level of our files, as far as readers share it: protobuf field by field as it streams by, and the keys of a JSON
 * object without the rest of the grammar. Private to trace/.
 */
#ifndef TRACE_TOP_H
#define TRACE_TOP_H

#include "trace/input.h"
#include "wire/pb.h"

enum { TOP_END, TOP_FIELD, TOP_DAMAGED };

/**
 * top_field - next field of the top level
 * @field: its bytes lie in the input's window, valid until the input's next call
 * @total: bytes of tag, length and content; the input still stands before them (input_skip() is the caller's)
 * @why: with TOP_DAMAGED what is wrong, for people
 *
 * Return: enum above, or -errno with @err.
 */
int top_field(struct input *input, struct pb_field *field, size_t *total, const char **why, struct st_err *err);

/**
 * top_key - next key of the outermost object
 * @at, @end: where to look; the caller goes on behind the key
 * @depth: 0 at the beginning of the file
 *
 * Return: its first byte, @len bytes long, NULL = none (also: the text is cut).
 */
const unsigned char *top_key(const unsigned char *at, const unsigned char *end, int *depth, size_t *len);

#endif
