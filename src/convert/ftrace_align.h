/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Where a trace's times and pids get their meaning from: Ascend profiling data (start_info, end_info), clock snapshots of
 * our own recorders, pid_mapping.json of a container. Called by the command before it converts.
 */
#ifndef CONVERT_FTRACE_ALIGN_H
#define CONVERT_FTRACE_ALIGN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FTRACE_AXIS_POINTS 64

/** struct ftrace_axis - from the trace's clock to the wall clock; zeroed = times stay as they are */
struct ftrace_axis {
	size_t points; /* 0 = times stay */
	struct {
		uint64_t trace_ns; /* ascending */
		uint64_t wall_ns; /* Unix epoch */
	} at[FTRACE_AXIS_POINTS]; /* between two of them: on the straight line; outside: same pace as the trace's clock */
	bool window; /* only [begin_ns, end_ns] counts */
	uint64_t begin_ns, end_ns; /* trace clock */
};

/** ftrace_axis_map - Return: @t_ns of the trace on the axis */
uint64_t ftrace_axis_map(const struct ftrace_axis *axis, uint64_t t_ns);

/** struct ftrace_profile - what was found below a profiling directory */
struct ftrace_profile {
	char start_info[4096], end_info[4096]; /* paths; "" = not found */
	char database[4096]; /* first analysis.db or ascend_pytorch_profiler_*.db, "" = none: the profile is text */
};

/**
 * ftrace_align_profile - find start_info and end_info below @dir and take the axis and window from them
 *
 * Return: 0, -ENOENT with @err (none found, what was looked for), -EINVAL with @err (file, key, what is wrong).
 * Context: tool.
 */
int ftrace_align_profile(const char *dir, struct ftrace_axis *axis, struct ftrace_profile *profile, struct st_err *err);

/**
 * ftrace_align_clocks - take the axis from the clock snapshots of a meta file (<trace>.meta.json)
 * @trace_clock: "mono_raw", "mono" or "boot": which of its clocks the trace has
 *
 * Return: 0, -errno with @err. Context: tool.
 */
int ftrace_align_clocks(const char *path, const char *trace_clock, struct ftrace_axis *axis, struct st_err *err);

struct pid_map;

/** struct pid_entry - one task of the map */
struct pid_entry {
	int32_t host_pid;
	int32_t pid; /* inside the container; equal to host_pid when there is none */
	int32_t tgid; /* on the host, -1 = not told */
	int32_t ppid; /* on the host, -1 = not told */
	const char *name;
};

/** pid_map_load - read pid_mapping.json. Return: NULL with errno and @err (file, line, what is wrong). Context: tool. */
struct pid_map *pid_map_load(const char *path, struct st_err *err);

/** pid_map_find - entry of a pid of the host, NULL = not in the map */
const struct pid_entry *pid_map_find(const struct pid_map *map, int32_t host_pid);

size_t pid_map_count(const struct pid_map *map);
const struct pid_entry *pid_map_entry(const struct pid_map *map, size_t i);
void pid_map_free(struct pid_map *map);

#endif
