/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The file an exporter writes: large buffer, `<path>.part` until it is whole, then renamed, so that nobody ever sees half
 * of one. "-" is standard output; what exists and is no regular file (a pipe, /dev/null) is written in place.
 */
#ifndef CONVERT_OUTFILE_H
#define CONVERT_OUTFILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTFILE_ROOM (1u << 20)

struct outfile {
	char *at; /* where the next byte goes */
	char *limit; /* behind the last byte that outfile_room() promised for */
	uint64_t bytes; /* flushed so far */
	/* private */
	char *buf;
	int fd;
	int failed; /* first -errno, kept */
	char *path, *part;
};

/** outfile_open - Return: 0 or -errno with @err. outfile_discard() or outfile_finish() ends it. Context: tool. */
int outfile_open(struct outfile *out, const char *path, struct st_err *err);

/** outfile_flush - write the buffer out; a failure is kept for outfile_finish() */
void outfile_flush(struct outfile *out);

/** outfile_room - make sure that @bytes (at most OUTFILE_ROOM / 4) fit behind @at */
static inline char *outfile_room(struct outfile *out, size_t bytes)
{
	if ((size_t)(out->limit - out->at) < bytes)
		outfile_flush(out);
	return out->at;
}

/** outfile_put - append any number of bytes */
void outfile_put(struct outfile *out, const void *data, size_t bytes);

/** outfile_finish - flush, close, rename to its name. Return: 0 or -errno with @err (the part is removed then). */
int outfile_finish(struct outfile *out, struct st_err *err);

/** outfile_discard - close and remove what was written; a zeroed or finished one is fine */
void outfile_discard(struct outfile *out);

#endif
