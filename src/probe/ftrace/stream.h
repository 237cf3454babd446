/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Ring buffer pages of one CPU on their way into a trace.dat: collected into chunks, packed with zstd or not, kept in a
 * nameless file beside the output, which the writer later moves into it. A killed recorder leaves no such file.
 */
#ifndef PROBE_FTRACE_STREAM_H
#define PROBE_FTRACE_STREAM_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packer; /* one zstd context for all streams of a thread */

struct stream {
	uint32_t cpu;
	int fd; /* the nameless file; -1 = none yet: it is made with the first chunk */
	int dir; /* directory of the output; borrowed */
	uint8_t *chunk; /* pages not yet packed */
	size_t chunk_bytes, used;
	uint64_t bytes; /* in the file */
	uint32_t chunks;
};

/** packer_new - @zstd: pack; false: pages as they are. Return: NULL, errno ENOMEM or ENOTSUP (not built in). */
struct packer *packer_new(bool zstd, size_t page_bytes);
void packer_free(struct packer *packer);

/** packer_version - of zstd, "1.5.4"; NULL when it does not pack. */
const char *packer_version(const struct packer *packer);

/** packer_chunk_bytes - how much a stream collects before it is packed. */
size_t packer_chunk_bytes(const struct packer *packer);

/** stream_init - @dir: where the file is made, kept open by the caller. Return: 0 or -ENOMEM; stream_fini() always. */
int stream_init(struct stream *stream, uint32_t cpu, int dir, const struct packer *packer);
void stream_fini(struct stream *stream);

/** stream_space - where the next page is read to; never NULL. stream_commit() then says that it is there. */
void *stream_space(const struct stream *stream);

/** stream_commit - @bytes: one page. Writes a full chunk. Return: 0, or -errno (-ENOSPC) with the chunk dropped. */
int stream_commit(struct stream *stream, struct packer *packer, size_t bytes);

/** stream_finish - write what is left and the count of chunks. Return: 0 or -errno; the file is then cut to whole chunks. */
int stream_finish(struct stream *stream, struct packer *packer);

/** nameless_file - a file without a name in a directory (O_TMPFILE, or made and unlinked). Return: descriptor, -errno. */
int nameless_file(int dir);

/**
 * move_bytes - copy a file's content into another, giving its space back on the way
 *
 * By reference where the file system can (btrfs, xfs), within the kernel elsewhere; never more than some MiB twice.
 * Return: 0 or -errno.
 */
int move_bytes(int from, uint64_t bytes, int to, uint64_t offset);

#endif
