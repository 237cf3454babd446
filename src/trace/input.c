/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Windowed, unpacking input of trace files; see input.h. */
#include "trace/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define PACKED_BYTES (256u << 10)
#define OPEN_BYTES (64u << 10) /* first read */

static size_t window_bytes = INPUT_WINDOW;

void input_share(size_t files)
{
	size_t share = files ? (64u << 20) / files : INPUT_WINDOW;

	window_bytes = share > INPUT_WINDOW ? INPUT_WINDOW : share < (64u << 10) ? 64u << 10 : share;
}

/** struct input_codec - one way of packing; made when the first bytes say so */
struct input_codec {
	/* Unpack from packed[begin..end) to @out. Return: bytes written; 0 with nothing consumed = more input needed. */
	ssize_t (*unpack)(struct input *input, unsigned char *out, size_t room);
	void (*close)(struct input_codec *codec);
	unsigned char *packed;
	size_t begin, end;
	bool eof; /* the file is read to its end */
	bool inside; /* in the middle of a member or frame: an end here is a cut */
	bool started;
#ifdef HAVE_ZLIB
	z_stream gz;
#endif
#ifdef HAVE_ZSTD
	ZSTD_DStream *zst;
#endif
};

/* Bytes from the descriptor; a failure is kept for the next input_want(). */
static size_t read_some(struct input *input, unsigned char *to, size_t room)
{
	ssize_t n;

	do
		n = read(input->fd, to, room);
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		input->failed = -errno;
		return 0;
	}
	input->consumed += (uint64_t)n;
	return (size_t)n;
}

static void damaged(struct input *input, const char *format, const char *why)
{
	input->torn = true;
	snprintf(input->problem, sizeof(input->problem), "%s stream: %s after %llu unpacked bytes", format, why,
		 (unsigned long long)(input->offset + input->len));
}

#ifdef HAVE_ZLIB
static ssize_t gz_unpack(struct input *input, unsigned char *out, size_t room)
{
	struct input_codec *codec = input->codec;
	int ret;

	codec->gz.next_in = codec->packed + codec->begin;
	codec->gz.avail_in = (uInt)(codec->end - codec->begin);
	codec->gz.next_out = out;
	codec->gz.avail_out = (uInt)room;
	if (!codec->inside && codec->gz.avail_in) {
		/* zeros behind the last member are padding of tapes and block devices */
		if (codec->started && *codec->gz.next_in == 0) {
			codec->begin = codec->end;
			return 0;
		}
		inflateReset(&codec->gz);
		codec->inside = codec->started = true;
	}
	ret = inflate(&codec->gz, Z_NO_FLUSH);
	codec->begin = codec->end - codec->gz.avail_in;
	if (ret == Z_STREAM_END) {
		codec->inside = false;
	} else if (ret != Z_OK && ret != Z_BUF_ERROR) {
		damaged(input, "gzip", codec->gz.msg ? codec->gz.msg : "damaged");
		codec->inside = false;
		codec->begin = codec->end;
		codec->eof = true;
	}
	return (ssize_t)(room - codec->gz.avail_out);
}

static void gz_close(struct input_codec *codec)
{
	inflateEnd(&codec->gz);
}

static int gz_open(struct input_codec *codec)
{
	codec->unpack = gz_unpack;
	codec->close = gz_close;
	return inflateInit2(&codec->gz, 15 + 16) == Z_OK ? 0 : -ENOMEM;
}
#else
static int gz_open(struct input_codec *codec)
{
	return -ENOTSUP;
}
#endif

#ifdef HAVE_ZSTD
static ssize_t zst_unpack(struct input *input, unsigned char *out, size_t room)
{
	struct input_codec *codec = input->codec;
	ZSTD_inBuffer in = { codec->packed + codec->begin, codec->end - codec->begin, 0 };
	ZSTD_outBuffer to = { out, room, 0 };
	size_t ret = ZSTD_decompressStream(codec->zst, &to, &in);

	codec->begin += in.pos;
	if (ZSTD_isError(ret)) {
		damaged(input, "zstd", ZSTD_getErrorName(ret));
		codec->inside = false;
		codec->begin = codec->end;
		codec->eof = true;
		return (ssize_t)to.pos;
	}
	if (in.pos || to.pos)
		codec->inside = ret != 0;
	return (ssize_t)to.pos;
}

static void zst_close(struct input_codec *codec)
{
	ZSTD_freeDStream(codec->zst);
}

static int zst_open(struct input_codec *codec)
{
	codec->unpack = zst_unpack;
	codec->close = zst_close;
	codec->zst = ZSTD_createDStream();
	return codec->zst ? 0 : -ENOMEM;
}
#else
static int zst_open(struct input_codec *codec)
{
	return -ENOTSUP;
}
#endif

static const struct {
	const char *name;
	const char *library;
	unsigned char magic[4];
	size_t len;
	int (*open)(struct input_codec *codec);
} packings[] = {
	{ "gzip", "zlib", { 0x1f, 0x8b, 0x08 }, 3, gz_open },
	{ "zstd", "libzstd", { 0x28, 0xb5, 0x2f, 0xfd }, 4, zst_open },
};

/* Put the bytes read so far behind a codec if they begin like a packed file. */
static int choose_codec(struct input *input, struct st_err *err)
{
	struct input_codec *codec;
	size_t i;
	int ret;

	for (i = 0; i < sizeof(packings) / sizeof(packings[0]); i++)
		if (input->len >= packings[i].len && memcmp(input->at, packings[i].magic, packings[i].len) == 0)
			break;
	if (i == sizeof(packings) / sizeof(packings[0]))
		return 0;
	codec = calloc(1, sizeof(*codec));
	if (!codec)
		return err_set(err, -ENOMEM, "%s: out of memory", input->path);
	codec->packed = malloc(PACKED_BYTES);
	ret = codec->packed ? packings[i].open(codec) : -ENOMEM;
	if (ret < 0) {
		free(codec->packed);
		free(codec);
		return err_set(err, ret,
			       ret == -ENOTSUP ? "%s is packed with %s, and this build is without %s"
					       : "%s: out of memory for %s (%s)",
			       input->path, packings[i].name, packings[i].library);
	}
	memcpy(codec->packed, input->at, input->len);
	codec->end = input->len;
	codec->eof = input->eof;
	input->len = 0;
	input->eof = false;
	input->codec = codec;
	return 0;
}

int input_open(struct input *input, const char *path, struct st_err *err)
{
	struct stat st;
	size_t n;
	int ret;

	*input = (struct input){ .fd = -1 };
	input->path = strdup(path);
	input->room = window_bytes;
	input->buf = malloc(input->room);
	if (!input->path || !input->buf) {
		ret = err_set(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	input->fd = strcmp(path, "-") == 0 ? dup(0) : open(path, O_RDONLY | O_CLOEXEC);
	if (input->fd < 0 || fstat(input->fd, &st) < 0) {
		ret = err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
		goto fail;
	}
	if (S_ISDIR(st.st_mode)) {
		ret = err_set(err, -EISDIR, "%s is a directory, a file is wanted here", path);
		goto fail;
	}
	if (S_ISREG(st.st_mode))
		input->total = (uint64_t)st.st_size;
	/* the first bytes decide how it is packed; a pipe may bring them one by one */
	input->at = input->buf;
	while (input->len < 4 && !input->eof && !input->failed) {
		n = read_some(input, input->buf + input->len, OPEN_BYTES - input->len);
		input->len += n;
		input->eof = n == 0;
	}
	if (input->failed) {
		ret = err_set(err, input->failed, "cannot read %s: %s", path, strerror(-input->failed));
		goto fail;
	}
	ret = choose_codec(input, err);
	if (ret < 0)
		goto fail;
	return 0;
fail:
	input_close(input);
	return ret;
}

void input_close(struct input *input)
{
	if (!input->path && !input->buf)
		return;
	if (input->codec) {
		input->codec->close(input->codec);
		free(input->codec->packed);
		free(input->codec);
	}
	if (input->fd >= 0)
		close(input->fd);
	free(input->buf);
	free(input->path);
	*input = (struct input){ .fd = -1 };
}

/* Unpack into @out until something came or nothing can come any more. Return: bytes, 0 = end. */
static size_t unpack_some(struct input *input, unsigned char *out, size_t room)
{
	struct input_codec *codec = input->codec;
	ssize_t n;

	for (;;) {
		if (codec->begin < codec->end || codec->inside) {
			n = codec->unpack(input, out, room);
			if (n > 0)
				return (size_t)n;
		}
		if (codec->begin < codec->end)
			continue; /* a member ended, or a header was eaten */
		if (codec->eof)
			break;
		codec->begin = 0;
		codec->end = read_some(input, codec->packed, PACKED_BYTES);
		if (codec->end == 0)
			codec->eof = true;
	}
	if (codec->inside && !input->torn && !input->failed)
		damaged(input, "packed", "it is cut");
	return 0;
}

/* Room for @bytes from the first unread one. What is left of the window moves to the front while that is cheap, so that
 * reads stay large. */
static int make_room(struct input *input, size_t bytes)
{
	unsigned char *buf;

	input->begin = (size_t)(input->at - input->buf);
	if (input->begin && (input->len < input->room / 4 || input->begin + bytes > input->room ||
			     input->begin + input->len == input->room)) {
		memmove(input->buf, input->at, input->len);
		input->begin = 0;
	}
	if (bytes > input->room) {
		buf = realloc(input->buf, bytes + window_bytes);
		if (!buf) {
			input->at = input->buf + input->begin;
			return -ENOMEM;
		}
		input->buf = buf;
		input->room = bytes + window_bytes;
	}
	input->at = input->buf + input->begin;
	return 0;
}

int input_want(struct input *input, size_t bytes, struct st_err *err)
{
	unsigned char *end;
	size_t n, room;

	while (input->len < bytes) {
		if (input->eof)
			return 0;
		if (bytes > INPUT_MAX_NEED)
			return err_set(err, -E2BIG, "%s: one record at byte %llu is longer than %u MiB", input->path,
				       (unsigned long long)input->offset, INPUT_MAX_NEED >> 20);
		if (make_room(input, bytes) < 0)
			return err_set(err, -ENOMEM, "%s: out of memory", input->path);
		end = input->buf + input->begin + input->len;
		room = input->room - input->begin - input->len;
		n = input->codec ? unpack_some(input, end, room) : read_some(input, end, room);
		if (input->failed)
			return err_set(err, input->failed, "cannot read %s at byte %llu: %s", input->path,
				       (unsigned long long)(input->offset + input->len), strerror(-input->failed));
		input->len += n;
		input->eof = n == 0;
	}
	return 1;
}

bool input_seekable(const struct input *input)
{
	return input->total && !input->codec && strcmp(input->path, "-") != 0;
}

int input_seek(struct input *input, uint64_t offset)
{
	if (!input_seekable(input))
		return -ESPIPE;
	if (lseek(input->fd, (off_t)offset, SEEK_SET) < 0)
		return -errno;
	input->begin = input->len = 0;
	input->at = input->buf;
	input->offset = input->consumed = offset;
	input->eof = false;
	return 0;
}

static int write_all(int fd, const unsigned char *at, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, at, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int input_spool(struct input *input, struct st_err *err)
{
	const char *dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
	const char *name = strcmp(input->path, "-") == 0 ? "standard input" : input->path;
	char path[4200];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/systrace.XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return err_set(err, -errno,
			       "cannot create a file in %s to keep %s in: %s; set TMPDIR to a place with room for it",
			       dir, name, strerror(errno));
	unlink(path);
	while ((ret = input_want(input, 1, err)) == 1) {
		ret = write_all(fd, input->at, input->len);
		if (ret < 0) {
			err_set(err, ret, "cannot keep %s in %s: %s; set TMPDIR to a place with room for it", name, dir,
				strerror(-ret));
			break;
		}
		input_skip(input, input->len);
	}
	if (!ret && input->torn)
		ret = err_set(err, -EINVAL, "%s: %s", name, input->problem);
	if (ret < 0) {
		close(fd);
		return ret;
	}
	return fd;
}
