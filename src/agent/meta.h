/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The meta file of a process, meta/<run>/<host>--<rank>--<pid>.json below the dump path: who wrote which files, on what
 * clocks (docs/formats/meta.md). Written whole and renamed into place by the io thread.
 */
#ifndef AGENT_META_H
#define AGENT_META_H

#include "agent/io_thread.h"
#include "wire/messages.h"

/** meta_origin - the process as an Origin message; texts point into `identity`. Context: after identity_bind(). */
void meta_origin(struct msg_origin *origin);

/**
 * meta_write - write or rewrite the file below status->dump_path
 * @ended: the process is ending
 *
 * Context: the io thread. Return: 0 or -errno with @err.
 */
int meta_write(const struct io_status *status, bool ended, struct st_err *err);

/** meta_part - a text as one part of a path: blanks, slashes, colons and control characters become '_'. Context: any. */
void meta_part(char *out, size_t room, const char *text);

#endif
