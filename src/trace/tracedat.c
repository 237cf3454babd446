/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Opens trace.dat files, versions 6 and 7; see tracedat.h. */
#include "trace/tracedat_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_id(const void *a, const void *b)
{
	uint32_t x = (*(struct ftrace_format *const *)a)->id, y = (*(struct ftrace_format *const *)b)->id;

	return (x > y) - (x < y);
}

const struct ftrace_format *tracedat_format(const struct tracedat *dat, uint32_t id)
{
	uint32_t low = 0, high = dat->format_count;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (dat->formats[mid]->id == id)
			return dat->formats[mid];
		if (dat->formats[mid]->id < id)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

static int read_start(struct cursor *c)
{
	struct tracedat *dat = c->dat;
	uint8_t magic[10];
	char version[16];
	uint64_t value;
	int ret;

	if (c->end < sizeof(magic) || cursor_bytes(c, magic, sizeof(magic), "the file's head") ||
	    memcmp(magic, "\x17\x08\x44tracing", sizeof(magic)))
		return err_set(c->err, -EINVAL, "%s is not a trace.dat: it does not begin with 17 08 44 'tracing'",
			       dat->path);
	ret = cursor_text(c, version, sizeof(version), "the version");
	dat->version = ret ? 0 : atoi(version);
	if (!ret && dat->version != 6 && dat->version != 7)
		return err_set(c->err, -ENOTSUP, "%s: trace.dat version '%s'; versions 6 and 7 can be read", dat->path,
			       version);
	if (!ret)
		ret = cursor_uint(c, 1, &value, "the byte order");
	if (ret)
		return ret;
	dat->endian.big = value != 0;
	dat->endian.swap = dat->endian.big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
	ret = cursor_uint(c, 1, &value, "the size of long");
	dat->long_bytes = (uint32_t)value;
	if (!ret)
		ret = cursor_uint(c, 4, &value, "the page size");
	dat->page_bytes = (uint32_t)value;
	if (!ret && (value < 64 || value > (16u << 20)))
		ret = err_set(c->err, -EINVAL, "%s: page size %" PRIu64 " at offset %" PRIu64 ": the file is damaged",
			      dat->path, value, c->at - 4);
	return ret;
}

static int check_buffers(const struct tracedat *dat, struct st_err *err)
{
	uint32_t i;

	for (i = 0; i < dat->buffer_count; i++)
		if (dat->buffers[i].page_bytes < 64 || dat->buffers[i].page_bytes > (16u << 20))
			return err_set(err, -EINVAL, "%s: buffer '%s' has a page size of %u: the file is damaged",
				       dat->path, dat->buffers[i].name, dat->buffers[i].page_bytes);
	if (!dat->buffer_count && !dat->latency_text)
		return err_set(err, -ENODATA, "%s holds no buffers: nothing was recorded, or the recorder was killed",
			       dat->path);
	return 0;
}

int tracedat_open_fd(struct tracedat *dat, int fd, const char *path, struct st_err *err)
{
	struct cursor *c = calloc(1, sizeof(*c));
	struct st_err local;
	struct stat st;
	int ret = -ENOMEM;

	if (!err)
		err = &local;
	*dat = (struct tracedat){ .fd = fd };
	dat->path = strdup(path);
	if (!c || !dat->path) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		goto out;
	}
	if (fstat(fd, &st) < 0) {
		ret = err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
		goto out;
	}
	dat->file_bytes = (uint64_t)st.st_size;
	*c = (struct cursor){ .dat = dat, .end = dat->file_bytes, .err = err };
	ret = read_start(c);
	if (!ret)
		ret = dat->version == 6 ? tracedat_read_v6(c) : tracedat_read_v7(c);
	if (!ret && dat->formats)
		qsort(dat->formats, dat->format_count, sizeof(*dat->formats), by_id);
	if (!ret)
		ret = check_buffers(dat, err);
out:
	free(c);
	if (ret)
		tracedat_close(dat);
	return ret;
}

int tracedat_open(struct tracedat *dat, const char *path, struct st_err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
		return tracedat_open_fd(dat, fd, path, err);
	*dat = (struct tracedat){ .fd = -1 };
	return err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
}

void tracedat_close(struct tracedat *dat)
{
	uint32_t i;

	for (i = 0; i < dat->format_count; i++)
		free(dat->formats[i]);
	for (i = 0; i < dat->buffer_count; i++) {
		free(dat->buffers[i].name);
		free(dat->buffers[i].streams);
	}
	free(dat->formats);
	free(dat->buffers);
	free(dat->cmdlines);
	free(dat->uname);
	free(dat->cpustat);
	free(dat->latency_text);
	free(dat->path);
	if (dat->fd > 0)
		close(dat->fd);
	*dat = (struct tracedat){ .fd = -1 };
}
