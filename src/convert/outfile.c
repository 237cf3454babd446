/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Output files that appear whole; see outfile.h. */
#include "convert/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_target(struct outfile *out, const char *path, struct st_err *err)
{
	struct stat st;

	if (strcmp(path, "-") == 0) {
		out->fd = dup(STDOUT_FILENO);
	} else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		if (S_ISDIR(st.st_mode))
			return err_set(err, -EISDIR, "%s is a directory: name the file to write", path);
		out->fd = open(path, O_WRONLY | O_CLOEXEC);
	} else {
		if (asprintf(&out->part, "%s.part", path) < 0) {
			out->part = NULL;
			return err_set(err, -ENOMEM, "%s: out of memory", path);
		}
		unlink(out->part); /* of a run that was killed */
		out->fd = open(out->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
	}
	if (out->fd < 0) {
		free(out->part);
		out->part = NULL;
		return err_set(err, -errno, "cannot create %s: %s", path, strerror(errno));
	}
	return 0;
}

int outfile_open(struct outfile *out, const char *path, struct st_err *err)
{
	int ret;

	*out = (struct outfile){ .fd = -1 };
	out->path = strdup(path);
	out->buf = malloc(OUTFILE_ROOM);
	if (!out->path || !out->buf) {
		outfile_discard(out);
		return err_set(err, -ENOMEM, "%s: out of memory", path);
	}
	out->at = out->buf;
	out->limit = out->buf + OUTFILE_ROOM;
	ret = open_target(out, path, err);
	if (ret < 0)
		outfile_discard(out);
	return ret;
}

static void write_all(struct outfile *out, const char *data, size_t bytes)
{
	ssize_t n;

	out->bytes += bytes;
	while (bytes && !out->failed) {
		n = write(out->fd, data, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			out->failed = -errno;
			break;
		}
		data += n;
		bytes -= (size_t)n;
	}
}

void outfile_flush(struct outfile *out)
{
	write_all(out, out->buf, (size_t)(out->at - out->buf));
	out->at = out->buf;
}

void outfile_put(struct outfile *out, const void *data, size_t bytes)
{
	if (bytes > OUTFILE_ROOM / 4) {
		outfile_flush(out);
		write_all(out, data, bytes);
		return;
	}
	memcpy(outfile_room(out, bytes), data, bytes);
	out->at += bytes;
}

int outfile_finish(struct outfile *out, struct st_err *err)
{
	int ret;

	outfile_flush(out);
	ret = out->failed;
	if (close(out->fd) < 0 && !ret)
		ret = -errno;
	out->fd = -1;
	if (!ret && out->part && rename(out->part, out->path) < 0)
		ret = -errno;
	if (ret) {
		err_set(err, ret, "cannot write %s: %s", strcmp(out->path, "-") ? out->path : "to standard output",
			strerror(-ret));
	} else {
		free(out->part);
		out->part = NULL;
	}
	outfile_discard(out);
	return ret;
}

void outfile_discard(struct outfile *out)
{
	uint64_t bytes = out->bytes;

	if (!out->path && !out->buf)
		return;
	if (out->fd >= 0)
		close(out->fd);
	if (out->part)
		unlink(out->part);
	free(out->part);
	free(out->path);
	free(out->buf);
	*out = (struct outfile){ .fd = -1, .bytes = bytes };
}
