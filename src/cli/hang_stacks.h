/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Where the process of a rank that hangs is: a diagnosis that names such a rank asks its agent for the stacks of all threads, where
 * it is alive on this machine. Called by localize and the service, after the verdict and before the result is written.
 */
#ifndef CLI_HANG_STACKS_H
#define CLI_HANG_STACKS_H

#include "analyze/diagnose.h"

#include <stdio.h>

/**
 * hang_stacks_ask - ask for the stacks of the ranks that hang and put them, or why there are none, to the findings
 * @d: behind diagnose_ranks()
 * @dump: directory that was read: its meta files say which processes these are
 *
 * With the caller's own rights, not borrowed ones. Never fails; takes 10 s at most for all ranks together, whatever the processes
 * and the files of their symbols do, since the asking is done by a process of its own. Context: tool.
 */
void hang_stacks_ask(struct diagnosis *d, const char *dump);

/** hang_stacks_words - for people: the main thread's frames, and where other threads' Python code is */
void hang_stacks_words(FILE *out, const struct diagnosis *d);

#endif
