/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Files of the kinds GIL and Mutex: the same JSON as the agent writes for its own process, by the same code
 * (spool/sink_chrome.c), into the target's dump directory. docs/formats/mutex_gil.md.
 */
#ifndef PROBE_CHROME_FILE_H
#define PROBE_CHROME_FILE_H

#include "probe/probe.h"
#include "spool/sink.h"

struct chrome_file;

extern const struct sink_ops sink_mutex, sink_gil;

/** chrome_file_new - @ops: sink_mutex or sink_gil. No file is made before the first record. NULL: ENOMEM. */
struct chrome_file *chrome_file_new(struct probe_target *target, const struct sink_ops *ops);

/**
 * chrome_file_put - one record
 * @pid, @tid: in the target's own namespace
 * @comm: of the thread, terminated
 *
 * Return: 0 or -errno: it will not be in the file (count it as lost).
 */
int chrome_file_put(struct chrome_file *file, const struct rec_head *rec, uint32_t pid, uint32_t tid, const char *comm);

/** chrome_file_drops - from @from_ns to @to_ns @count events did not get into the file. */
int chrome_file_drops(struct chrome_file *file, uint64_t count, uint64_t from_ns, uint64_t to_ns);

/** chrome_file_write - what was put goes to the file. Return: 0 or -errno; @lost (may be NULL): records that it cost. */
int chrome_file_write(struct chrome_file *file, uint64_t *lost);

/** chrome_file_bytes - written so far. */
uint64_t chrome_file_bytes(const struct chrome_file *file);

/** chrome_file_free - write, close, free. NULL is fine. */
void chrome_file_free(struct chrome_file *file);

#endif
