/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The files that --input, the words behind the options and --run name, opened into one merge: what all kinds of `systrace
 * convert` that read recordings begin with. */
#ifndef CLI_CONVERT_FILES_H
#define CLI_CONVERT_FILES_H

#include "cli/command.h"
#include "trace/dir.h"

/** struct convert_files - zeroed before convert_open() */
struct convert_files {
	struct ev_session *session;
	struct dir_set *set;
	struct merge *merge;
};

/**
 * convert_open - find and open them; as root with the rights of their user only
 * @formats: what is read (ev_reader_ops.format), NULL-terminated
 * @missing: for people, when there is none: "no I/O trace"
 *
 * What is left out or cannot be opened is said. Return: CMD_OK, or the exit status, the reason having been printed.
 */
int convert_open(struct convert_files *files, const struct options *opts, const char *const *formats,
		 const char *missing);

/** convert_close - also of half-opened ones */
void convert_close(struct convert_files *files);

#endif
