/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reading numbers and texts at a place of a trace.dat, or of an unpacked section of it; see tracedat_impl.h. */
#include "trace/tracedat_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cursor_cut(struct cursor *c, const char *what)
{
	return err_set(c->err, -ENODATA,
		       "%s: cut at offset %" PRIu64
		       " while reading %s: the recorder was probably killed before it wrote its "
		       "tables; record again and stop it with Ctrl-C",
		       c->dat->path, c->at, what);
}

int cursor_bytes(struct cursor *c, void *out, uint64_t bytes, const char *what)
{
	uint8_t *to = out;

	if (bytes > c->end - c->at)
		return cursor_cut(c, what);
	if (c->mem) {
		memcpy(out, c->mem + c->at, bytes);
		c->at += bytes;
		return 0;
	}
	while (bytes) {
		uint64_t skip = c->at - c->buf_at, n;

		if (c->at < c->buf_at || skip >= c->buf_len) {
			ssize_t got = pread(c->dat->fd, c->buf, sizeof(c->buf), (off_t)c->at);

			if (got < 0)
				return err_set(c->err, -errno, "%s: cannot read at offset %" PRIu64 ": %s",
					       c->dat->path, c->at, strerror(errno));
			if (!got)
				return cursor_cut(c, what);
			c->buf_at = c->at;
			c->buf_len = (uint32_t)got;
			skip = 0;
		}
		n = c->buf_len - skip < bytes ? c->buf_len - skip : bytes;
		memcpy(to, c->buf + skip, n);
		to += n;
		c->at += n;
		bytes -= n;
	}
	return 0;
}

int cursor_uint(struct cursor *c, uint32_t size, uint64_t *value, const char *what)
{
	uint8_t raw[8];
	int ret = cursor_bytes(c, raw, size, what);

	*value = ret ? 0 : ftrace_uint(raw, size, c->dat->endian);
	return ret;
}

int cursor_skip(struct cursor *c, uint64_t bytes, const char *what)
{
	if (bytes > c->end - c->at)
		return cursor_cut(c, what);
	c->at += bytes;
	return 0;
}

/* Text up to its NUL, cut at @room. */
int cursor_text(struct cursor *c, char *out, size_t room, const char *what)
{
	size_t n = 0;
	char ch;
	int ret;

	do {
		ret = cursor_bytes(c, &ch, 1, what);
		if (ret)
			return ret;
		if (n < room)
			out[n++] = ch;
	} while (ch && n < (1u << 16));
	out[n < room ? n : room - 1] = 0;
	return 0;
}

/* @bytes bytes as a new terminated text. */
int cursor_dup(struct cursor *c, uint64_t bytes, char **out, const char *what)
{
	int ret;

	*out = NULL;
	if (bytes > TRACEDAT_MAX_PART)
		return err_set(c->err, -EINVAL,
			       "%s: %s at offset %" PRIu64 " claims %" PRIu64 " bytes: the file is damaged",
			       c->dat->path, what, c->at, bytes);
	if (bytes > c->end - c->at)
		return cursor_cut(c, what);
	*out = malloc(bytes + 1);
	if (!*out)
		return err_set(c->err, -ENOMEM, "%s: out of memory", c->dat->path);
	ret = cursor_bytes(c, *out, bytes, what);
	if (ret) {
		free(*out);
		*out = NULL;
		return ret;
	}
	(*out)[bytes] = 0;
	return 0;
}
