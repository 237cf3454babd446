/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The kernel's tracing file system: found where it is mounted, else mounted for this process alone and taken out of the
 * directory tree at once, so that nothing is left to clean up. All access goes through a directory descriptor; paths are
 * relative to it. Used by everything in probe/ftrace.
 */
#ifndef PROBE_FTRACE_TRACEFS_H
#define PROBE_FTRACE_TRACEFS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tracefs {
	int fd; /* its root, O_PATH-like directory descriptor; -1 = closed */
	char path[256]; /* for messages and for trace-cmd; "" when it is mounted for us alone */
};

/**
 * tracefs_open - find the tracing file system, or mount it
 * @path: where it must be (tests, option of the API); NULL = look
 *
 * Context: tool. Return: 0, or -errno with @err (what is missing, what to do); tracefs_close() in any case.
 */
int tracefs_open(struct tracefs *fs, const char *path, struct st_err *err);
void tracefs_close(struct tracefs *fs);

/**
 * file_read - the whole of a small file, whatever stat says about its size
 * @dir: directory descriptor or AT_FDCWD
 * @data: malloc()ed and NUL-terminated behind the content
 * @bytes: length; may be NULL
 *
 * Context: tool. Return: 0 or -errno.
 */
int file_read(int dir, const char *path, char **data, size_t *bytes);

/** file_read_line - the first line into a buffer, without its end. Return: 0 or -errno. */
int file_read_line(int dir, const char *path, char *line, size_t room);

/** file_write - write a text in one write(2), as the kernel's control files want it. Return: 0 or -errno. */
int file_write(int dir, const char *path, const char *text);

/** file_exists - is there such a path? */
bool file_exists(int dir, const char *path);

#endif
