/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Whose file is this? Reads the Origin at the head of a file that stands where a sink wants to write: protobuf, our own
 * JSON, or a CSV's sidecar. Only for that question (spool/out.c, spool/collect.c); real reading is done in trace/.
 */
#ifndef SPOOL_WHOSE_H
#define SPOOL_WHOSE_H

#include <stdbool.h>
#include <stdint.h>

struct whose {
	bool known; /* an Origin was found */
	char host[128];
	char boot_id[40];
	uint32_t pid;
	uint64_t proc_start;
	uint64_t pidns; /* 0 = unknown */
	int64_t wall_minus_mono_ns;
};

/** whose_file - Context: thread, tool (64 KiB static buffer: one thread at a time). Return: 0 or -errno. */
int whose_file(int fd, const char *path, struct whose *whose);

/** whose_same - are both known, and of one process? Context: any. */
bool whose_same(const struct whose *a, const struct whose *b);

/** whose_fresh - was @path written within the last @seconds? Context: thread, tool. */
bool whose_fresh(const char *path, uint32_t seconds);

/**
 * whose_writes - does the process that wrote the file live, so that it may write it again?
 *
 * Judged by its pid namespace, pid and start time. Where it can't be seen (a container's, another host's) what it writes
 * tells: a file, or its sidecar or companion, written within three minutes is a live one's. Context: thread, tool.
 */
bool whose_writes(const char *path, const struct whose *whose);

#endif
