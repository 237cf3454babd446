/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Bytes of a trace file for the readers: regular file, pipe or standard input, gz and zst unpacked on the fly (told by
 * the first bytes). A reader looks at a window of bytes that it can widen, and moves on; offsets are those of the
 * unpacked content, so that errors can name them.
 */
#ifndef TRACE_INPUT_H
#define TRACE_INPUT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INPUT_WINDOW (1u << 20) /* bytes asked for at a time, unless many files are read together */
#define INPUT_MAX_NEED (64u << 20) /* largest window; no record is that long */

struct input_codec;

struct input {
	const unsigned char *at; /* unread bytes, valid until the next call */
	size_t len;
	uint64_t offset; /* of @at in the unpacked content */
	uint64_t consumed; /* bytes read from the file, for progress */
	uint64_t total; /* size of the file, 0 = unknown (pipe) */
	bool eof; /* nothing follows the bytes in the window */
	bool torn; /* the packed stream ends early or is damaged; what could be unpacked was delivered */
	char problem[128]; /* with torn: what is wrong, for people */
	/* private */
	int fd;
	int failed; /* -errno of a read that failed */
	unsigned char *buf;
	size_t room, begin;
	struct input_codec *codec;
	char *path;
};

/**
 * input_open - open a file
 * @path: "-" is standard input
 *
 * Context: tool. Return: 0 or -errno with @err. A packed file needs the library it was packed with: -ENOTSUP without.
 */
int input_open(struct input *input, const char *path, struct st_err *err);

/** input_share - how many files will be open together: windows of files opened from now on share 64 MiB */
void input_share(size_t files);

/** input_close - a zeroed input is fine */
void input_close(struct input *input);

/**
 * input_want - make at least @bytes unread bytes visible in at/len
 * @bytes: up to INPUT_MAX_NEED
 *
 * Return: 1 = they are there; 0 = the file ends before (len says what is left); -errno: read error (@err).
 */
int input_want(struct input *input, size_t bytes, struct st_err *err);

/** input_more - add at least one byte to the window. Return: as input_want(). */
static inline int input_more(struct input *input, struct st_err *err)
{
	return input_want(input, input->len + 1, err);
}

/** input_seekable - is the content the file itself, on disk and unpacked, so that it can be read at any place by its path? */
bool input_seekable(const struct input *input);

/** input_seek - go on at a place of a seekable input. Return: 0 or -errno. */
int input_seek(struct input *input, uint64_t offset);

/**
 * input_spool - all of the content into a nameless file in $TMPDIR (or /var/tmp), to be read at any place
 *
 * For formats that are not read from front to back. Call it before anything was skipped. Return: its descriptor, owned by the
 * caller, or -errno with @err (which place, what to do).
 */
int input_spool(struct input *input, struct st_err *err);

/** input_skip - move on by @bytes, at most len */
static inline void input_skip(struct input *input, size_t bytes)
{
	input->at += bytes;
	input->len -= bytes;
	input->offset += bytes;
}

#endif
