/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which files belong together: walks a dump directory (or takes single files), tells each file's format by its content,
 * groups them by run, joins segments, and opens one run's files into a merge. Two runs are never joined. Callers are the
 * commands that read a whole job.
 */
#ifndef TRACE_DIR_H
#define TRACE_DIR_H

#include "trace/event.h"
#include "trace/merge.h"

struct dir_set;

/** dir_new/_free - @formats: NULL-terminated list of ev_reader_ops.format to take, kept by reference; NULL = all */
struct dir_set *dir_new(struct ev_session *session, const char *const *formats);
void dir_free(struct dir_set *set);

/**
 * dir_add - a file, or all files of the wanted formats below a directory (8 levels, links to directories not followed)
 *
 * A single file must be readable and of a wanted format; in a directory other files are passed over and counted.
 * Context: tool; reads the first bytes of each file. Return: 0 or -errno with @err.
 */
int dir_add(struct dir_set *set, const char *path, struct st_err *err);

/**
 * dir_select - choose the run
 * @run: its id; NULL = the newest (latest process start)
 * @note: told what is left out and why, for people; may be NULL
 *
 * Files without an Origin go with the run when there is only one. Return: number of files, 0 = none there,
 * -ENOENT with @err that names the runs there are, -ENOMEM.
 */
int dir_select(struct dir_set *set, const char *run, void (*note)(void *arg, const char *text), void *arg,
	       struct st_err *err);

/** dir_open - open the selected files into a merge. @note: told of files that cannot be opened. Return: readers, -errno. */
int dir_open(struct dir_set *set, struct merge *merge, void (*note)(void *arg, const char *text), void *arg,
	     struct st_err *err);

/** dir_run - id of the selected run, "" = files without one */
const char *dir_run(const struct dir_set *set);

#endif
