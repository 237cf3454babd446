/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names of what a recorder leaves in the kernel while it runs (instances, remembered state): they say whose it is, so that
 * the next recorder can tell a killed one from a living one (spool/owner.h judges) and remove what is left.
 */
#ifndef PROBE_FTRACE_REC_OWNER_H
#define PROBE_FTRACE_REC_OWNER_H

#include "spool/owner.h"

#include <stdbool.h>
#include <stddef.h>

/** rec_owner_name - "systrace-<pid>-<start time>-<pid namespace>-<number>" of this process. Context: tool. */
void rec_owner_name(unsigned number, char *name, size_t room);

/** rec_owner_gone - is that such a name, and its process certainly dead? Where it cannot be seen: false. Context: tool. */
bool rec_owner_gone(const char *name);

#endif
