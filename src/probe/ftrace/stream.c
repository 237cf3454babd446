/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Chunks of pages; see stream.h. */
#include "probe/ftrace/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define CHUNK_BYTES (128u << 10) /* large enough for zstd, small enough for hundreds of CPUs */
#define MOVE_BYTES (4u << 20) /* copied before its space is given back */
#define ZSTD_LEVEL 1

struct packer {
	size_t page_bytes, chunk_bytes;
	uint8_t *packed; /* two u32 in front of the frame */
	size_t room;
#ifdef HAVE_ZSTD
	ZSTD_CCtx *zstd; /* NULL = pages as they are */
#endif
};

/* --- packing ------------------------------------------------------------------------------------------------------ */

#ifdef HAVE_ZSTD
static int packer_zstd(struct packer *packer)
{
	packer->room = 8 + ZSTD_compressBound(packer->chunk_bytes);
	packer->packed = malloc(packer->room);
	packer->zstd = ZSTD_createCCtx();
	return packer->packed && packer->zstd ? 0 : -ENOMEM;
}

static ssize_t pack(struct packer *packer, const void *data, size_t bytes)
{
	size_t size = ZSTD_compressCCtx(packer->zstd, packer->packed + 8, packer->room - 8, data, bytes, ZSTD_LEVEL);
	uint32_t head[2];

	if (ZSTD_isError(size))
		return -EIO;
	head[0] = (uint32_t)size;
	head[1] = (uint32_t)bytes;
	memcpy(packer->packed, head, sizeof(head));
	return (ssize_t)size + 8;
}

static bool packs(const struct packer *packer)
{
	return packer->zstd != NULL;
}
#else
static int packer_zstd(struct packer *packer)
{
	return -ENOTSUP;
}

static ssize_t pack(struct packer *packer, const void *data, size_t bytes)
{
	return -ENOTSUP;
}

static bool packs(const struct packer *packer)
{
	return false;
}
#endif

struct packer *packer_new(bool zstd, size_t page_bytes)
{
	struct packer *packer = calloc(1, sizeof(*packer));
	int ret;

	if (!packer)
		return NULL;
	packer->page_bytes = page_bytes;
	packer->chunk_bytes = page_bytes > CHUNK_BYTES ? page_bytes : CHUNK_BYTES / page_bytes * page_bytes;
	ret = zstd ? packer_zstd(packer) : 0;
	if (ret < 0) {
		packer_free(packer);
		errno = -ret;
		return NULL;
	}
	return packer;
}

void packer_free(struct packer *packer)
{
	if (!packer)
		return;
#ifdef HAVE_ZSTD
	ZSTD_freeCCtx(packer->zstd);
#endif
	free(packer->packed);
	free(packer);
}

const char *packer_version(const struct packer *packer)
{
#ifdef HAVE_ZSTD
	if (packer->zstd)
		return ZSTD_versionString();
#endif
	return NULL;
}

size_t packer_chunk_bytes(const struct packer *packer)
{
	return packer->chunk_bytes;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

int nameless_file(int dir)
{
	char name[64];
	int fd, ret;

	fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0)
		return fd;
	if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
		return -errno;
	for (unsigned i = 0; i < 100; i++) { /* NFS, old kernels */
		snprintf(name, sizeof(name), ".systrace-%d-%u.tmp", (int)getpid(), i);
		fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd >= 0) {
			unlinkat(dir, name, 0);
			return fd;
		}
		ret = -errno;
		if (ret != -EEXIST)
			return ret;
	}
	return -EEXIST;
}

static int write_at(int fd, const void *data, size_t bytes, uint64_t offset)
{
	const uint8_t *at = data;

	while (bytes) {
		ssize_t done = pwrite(fd, at, bytes, (off_t)offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? -errno : -ENOSPC;
		at += done;
		offset += (uint64_t)done;
		bytes -= (size_t)done;
	}
	return 0;
}

/* Where copy_file_range does not work (old kernels, between file systems). */
static int copy_by_hand(int from, uint64_t at, int to, uint64_t offset, uint64_t bytes)
{
	size_t room = 1 << 20;
	void *buffer = malloc(room);
	int ret = buffer ? 0 : -ENOMEM;

	while (ret == 0 && bytes) {
		ssize_t got = pread(from, buffer, bytes < room ? bytes : room, (off_t)at);

		if (got <= 0) {
			ret = got < 0 ? -errno : -EIO;
			break;
		}
		ret = write_at(to, buffer, (size_t)got, offset);
		at += (uint64_t)got;
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	free(buffer);
	return ret;
}

static int copy_piece(int from, uint64_t at, int to, uint64_t offset, uint64_t bytes)
{
	loff_t in = (loff_t)at, out = (loff_t)offset;

	while (bytes) {
		ssize_t done = copy_file_range(from, &in, to, &out, (size_t)bytes, 0);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0 && errno == ENOSPC)
			return -ENOSPC;
		if (done <= 0)
			return copy_by_hand(from, (uint64_t)in, to, (uint64_t)out, bytes);
		bytes -= (uint64_t)done;
	}
	return 0;
}

int move_bytes(int from, uint64_t bytes, int to, uint64_t offset)
{
	uint64_t piece;
	int ret = 0;

	for (uint64_t at = 0; ret == 0 && at < bytes; at += piece) {
		piece = bytes - at < MOVE_BYTES ? bytes - at : MOVE_BYTES;
		ret = copy_piece(from, at, to, offset + at, piece);
		/* not everywhere possible; then the space comes back when the file is closed */
		if (ret == 0 && fallocate(from, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)piece))
			continue;
	}
	return ret;
}

/* --- one CPU's stream --------------------------------------------------------------------------------------------- */

int stream_init(struct stream *stream, uint32_t cpu, int dir, const struct packer *packer)
{
	*stream = (struct stream){ .cpu = cpu, .fd = -1, .dir = dir, .chunk_bytes = packer->chunk_bytes };
	stream->chunk = malloc(stream->chunk_bytes);
	return stream->chunk ? 0 : -ENOMEM;
}

void stream_fini(struct stream *stream)
{
	if (stream->fd >= 0)
		close(stream->fd);
	stream->fd = -1;
	free(stream->chunk);
	stream->chunk = NULL;
}

void *stream_space(const struct stream *stream)
{
	return stream->chunk + stream->used;
}

static int put_chunk(struct stream *stream, struct packer *packer)
{
	const void *data = stream->chunk;
	ssize_t bytes = (ssize_t)stream->used;
	int ret = 0;

	stream->used = 0;
	if (stream->fd < 0) {
		stream->fd = nameless_file(stream->dir);
		if (stream->fd < 0)
			return stream->fd;
		stream->bytes = packs(packer) ? 4 : 0; /* place of the count */
	}
	if (packs(packer)) {
		bytes = pack(packer, data, (size_t)bytes);
		data = packer->packed;
	}
	if (bytes < 0)
		return (int)bytes;
	ret = write_at(stream->fd, data, (size_t)bytes, stream->bytes);
	if (ret < 0)
		return ret;
	stream->bytes += (uint64_t)bytes;
	stream->chunks++;
	return 0;
}

int stream_commit(struct stream *stream, struct packer *packer, size_t bytes)
{
	stream->used += bytes;
	return stream->used + packer->page_bytes > stream->chunk_bytes ? put_chunk(stream, packer) : 0;
}

int stream_finish(struct stream *stream, struct packer *packer)
{
	int ret = 0, cut;

	if (stream->used)
		ret = put_chunk(stream, packer);
	if (stream->fd < 0)
		return ret;
	if (stream->chunks == 0)
		stream->bytes = 0;
	else if (packs(packer)) {
		cut = write_at(stream->fd, &stream->chunks, sizeof(stream->chunks), 0);
		ret = ret < 0 ? ret : cut;
	}
	if (ftruncate(stream->fd, (off_t)stream->bytes) < 0 && ret == 0)
		ret = -errno;
	return ret;
}
