/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Several ranks' Mutex or GIL files as one (contract 7): the elements of all of them in the file of the lowest local rank,
 * whose origin then names every process. Called by `systrace fold`, from outside the jobs, when the capture has ended.
 */
#ifndef SPOOL_FOLD_H
#define SPOOL_FOLD_H

#include "base/err.h"

#include <stddef.h>

/**
 * fold_files - fold all others into the first
 * @paths: of one directory, written by sink_chrome.c; one that cannot be folded (cut, foreign) is left as it is
 *
 * The result is written beside the first file and takes its place whole; only then do the others go, and what a writer put
 * into one of them meanwhile is written to a file of that name again. Killed at any point it leaves every record in a
 * file; what is then in two of them is told by the key "folded" of the first, and readers take it once (trace/dir.c).
 *
 * Context: tool, as the owner of the files. Return: how many were folded into the first, 0 = nothing to do, -EBUSY:
 * another one is at it, or a writer is; -errno with @err.
 */
int fold_files(const char *const *paths, size_t count, struct st_err *err);

#endif
