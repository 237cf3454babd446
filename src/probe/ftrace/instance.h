/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A tracing instance of our own: made, set up, switched on and off, asked for its losses, removed. Nothing of the top
 * level is written, so other users of ftrace see no difference. Left-overs of killed recorders are found and removed.
 */
#ifndef PROBE_FTRACE_INSTANCE_H
#define PROBE_FTRACE_INSTANCE_H

#include "probe/ftrace/events.h"
#include "probe/ftrace/note.h"
#include "probe/ftrace/tracefs.h"

struct instance {
	const struct tracefs *fs;
	int fd; /* its directory; -1 = none */
	char name[128];
	const uint32_t *cpus; /* recorded ones, ascending; the caller's */
	size_t cpu_count;
};

/** struct cpu_stats - per_cpu/cpuN/stats, or sums of it */
struct cpu_stats {
	uint64_t entries; /* still in the buffer */
	uint64_t read;
	uint64_t overrun, commit_overrun, dropped; /* lost */
};

/** instance_sweep - remove instances of recorders that are gone. Return: how many. */
int instance_sweep(const struct tracefs *fs, const struct note *note);

/**
 * instance_create - make one, switched off
 * @name: NULL = systrace-<pid>-...
 *
 * Return: 0, or -errno with @err (-EEXIST: taken); instance_remove() in any case.
 */
int instance_create(struct instance *in, const struct tracefs *fs, const char *name, struct st_err *err);

/**
 * instance_setup - clock mono_raw, CPUs, buffer size, events
 * @cpus: ascending, borrowed until instance_remove()
 *
 * Return: 0, or -errno with @err: -ENOENT no event goes on, -ENOMEM the buffer.
 */
int instance_setup(struct instance *in, const uint32_t *cpus, size_t cpu_count, uint32_t buffer_kb,
		   struct event_list *events, const struct note *note, struct st_err *err);

/** instance_on - let the kernel record, or not. Return: 0 or -errno with @err. */
int instance_on(const struct instance *in, bool on, struct st_err *err);

/** instance_page_bytes - size of a page of the ring buffer. */
size_t instance_page_bytes(const struct instance *in);

/** instance_stats - of one CPU. @text: the file as it is, room for at least 1024 bytes; NULL = not wanted. */
int instance_stats(const struct instance *in, uint32_t cpu, struct cpu_stats *stats, char *text, size_t room);

/** instance_sum - of all recorded CPUs. */
void instance_sum(const struct instance *in, struct cpu_stats *sum);

/** cpu_stats_lost - events that are in nobody's file. */
static inline uint64_t cpu_stats_lost(const struct cpu_stats *stats)
{
	return stats->overrun + stats->commit_overrun + stats->dropped;
}

/** cpu_stats_parse - read the text of per_cpu/cpuN/stats. */
void cpu_stats_parse(const char *text, struct cpu_stats *stats);

/** instance_remove - off, gone, freed. All other descriptors of it must be closed. Return: 0 or -errno with @err. */
int instance_remove(struct instance *in, struct st_err *err);

/**
 * cpus_choose - CPUs of a list that the machine has; those beyond it are left out with a note
 * @have: directory with cpu0, cpu1, ... (per_cpu of tracefs)
 * @list: "0-3,8"; NULL = all
 *
 * Return: 0 with @cpus malloc()ed (also on failure) and ascending, or -errno with @err: -EINVAL not a list, -ENOENT the
 * machine has none of them.
 */
int cpus_choose(int have, const char *list, uint32_t **cpus, size_t *count, const struct note *note,
		struct st_err *err);

/** cpus_mask - hexadecimal groups of 32 CPUs with commas, as tracing_cpumask. Return: malloc()ed text or NULL. */
char *cpus_mask(const uint32_t *cpus, size_t count);

#endif
