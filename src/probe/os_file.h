/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The probe's part of the os_trace files, osprobe/os_trace_<date>_<hour>_rank_<r>_<pid>.probe.{pb,json}: one per target
 * and hour, shared by the kinds of the group "os" (CPU, Memory), which run in one process. Fills in what every entry has
 * in common, and tells drops and thread names. docs/formats/osprobe.md.
 */
#ifndef PROBE_OS_FILE_H
#define PROBE_OS_FILE_H

#include "probe/probe.h"
#include "wire/messages.h"

struct os_file;

/** os_file_get - the target's file; each get needs a drop. No file is made before the first entry. Return: NULL with ENOMEM. */
struct os_file *os_file_get(struct probe_target *target);

/** os_file_drop - written and closed when the last user drops it. NULL is fine. */
void os_file_drop(struct os_file *file);

/**
 * os_file_put - one entry
 * @entry: start_ns, dur_ns, OS_event_type, key and what else there is; start_us, dur, rank and step are filled in here
 *
 * Return: 0 or -errno: it will not be in the file (count it as lost).
 */
int os_file_put(struct os_file *file, struct msg_os *entry);

/** os_file_thread - name of a thread, once per (tid, comm): host ids, and the id inside the container (0 = the same) */
int os_file_thread(struct os_file *file, uint32_t pid, uint32_t tid, uint32_t inner_tid, const char *comm);

/** os_file_drops - from @from_ns to @to_ns @count events of @source ("cpu", "memory") did not get into the file */
int os_file_drops(struct os_file *file, const char *source, uint64_t count, uint64_t from_ns, uint64_t to_ns);

/** os_file_write - what was put goes to the file. Return: 0 or -errno; @lost (may be NULL): entries that it cost. */
int os_file_write(struct os_file *file, uint64_t *lost);

/** os_file_bytes - written so far, by all files of the process */
uint64_t os_file_bytes(void);

#endif
