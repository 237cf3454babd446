/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The agent's log. Any context may log, also a hook inside a signal handler: the text is formatted into a slot of a
 * small ring and a thread of our own writes it out, one write per message, into a file that is made when there is
 * something at the level to say. Before such a thread exists a message opens the file, writes and closes it.
 * Nothing ever goes to the host's stderr.
 */
#ifndef SAFE_SIGLOG_H
#define SAFE_SIGLOG_H

#include <stdbool.h>
#include <stddef.h>

enum siglog_level { SIGLOG_DEBUG, SIGLOG_INFO, SIGLOG_WARN, SIGLOG_ERROR, SIGLOG_FATAL };

/**
 * siglog_setup - where and what to log
 * @path: the file, absolute; copied. NULL or longer than 511 bytes: nothing is logged
 * @fallback: the file if the directory of @path cannot be made or written; copied; may be NULL
 *
 * Opens and creates nothing. Context: thread; again in a forked child that becomes an agent of its own.
 */
void siglog_setup(const char *path, const char *fallback, enum siglog_level lowest);

/**
 * siglog - log one line
 * @tag: component, for example "pool"
 *
 * A message longer than 400 bytes is cut. When the ring is full, or after 4 MiB of log, messages are counted and the
 * count is written later. errno is kept. Context: hook (no lock, no allocation; a system call only while no thread of
 * ours drains). Formats: %s %d %u %x %c %l %z without floating point, so that printf stays free of allocation.
 */
void siglog(enum siglog_level level, const char *tag, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** siglog_direct - no thread drains (any more): messages write themselves. Context: thread. */
void siglog_direct(bool direct);

/** siglog_drain - write what the ring holds. Context: thread (one drainer at a time); opens and closes the file. */
void siglog_drain(void);

/** siglog_path - the file in use, "" before the first message was written. Context: any. */
const char *siglog_path(void);

/** siglog_on - would a message of this level be kept? Context: hook. */
bool siglog_on(enum siglog_level level);

#endif
