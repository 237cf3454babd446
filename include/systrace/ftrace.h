/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Recording of the kernel's scheduling and interrupt events from a program of your own (libsystrace-ftrace.so): the same
 * recorder that `systrace record` and trace_record.py use. Recording happens in a tracing instance of its own, so other
 * users of ftrace are not disturbed, and everything is put back at the end; needs root (CAP_SYS_ADMIN).
 */
#ifndef SYSTRACE_FTRACE_H
#define SYSTRACE_FTRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** enum systrace_ftrace_backend - who moves the events from the kernel into the file */
enum systrace_ftrace_backend {
	SYSTRACE_FTRACE_AUTO, /* native, else trace-cmd, else debugfs */
	SYSTRACE_FTRACE_DOCUMENTED, /* trace-cmd, else debugfs: the order of trace_record.py */
	SYSTRACE_FTRACE_NATIVE, /* streams the kernel's pages into a trace.dat of version 7 */
	SYSTRACE_FTRACE_TRACE_CMD, /* trace-cmd record as a child */
	SYSTRACE_FTRACE_DEBUGFS /* the kernel's text, copied at the end: what the ring buffer still holds */
};

enum systrace_ftrace_compress {
	SYSTRACE_FTRACE_COMPRESS_AUTO, /* zstd where it is built in */
	SYSTRACE_FTRACE_COMPRESS_NONE,
	SYSTRACE_FTRACE_COMPRESS_ZSTD
};

/* Groups of events, for systrace_ftrace_options.groups */
#define SYSTRACE_FTRACE_SCHED 1u /* switches, wake-ups, migrations, runtime, fork, exec, exit */
#define SYSTRACE_FTRACE_IRQ 2u /* interrupts and soft interrupts */
#define SYSTRACE_FTRACE_FUTEX 4u /* the futex system call */

enum systrace_ftrace_level { SYSTRACE_FTRACE_INFO, SYSTRACE_FTRACE_WARNING, SYSTRACE_FTRACE_ERROR };

/** struct systrace_ftrace_options - zero it, set size, then what differs from the defaults; copied by start */
struct systrace_ftrace_options {
	size_t size; /* sizeof(struct systrace_ftrace_options) */
	const char *output; /* NULL: trace.dat, of the debugfs back end trace.txt */
	const char *cpus; /* "0-3,8"; NULL: all */
	uint32_t buffer_kb; /* ring buffer per recorded CPU; 0: 40960 */
	uint32_t backend; /* enum systrace_ftrace_backend */
	uint32_t groups; /* SYSTRACE_FTRACE_*; 0 with no events: SCHED | IRQ */
	uint32_t compress; /* enum systrace_ftrace_compress, native back end */
	const char *const *events; /* further ones, "group/name" or "group", NULL-terminated; NULL: none */
	const char *instance; /* name of the tracing instance; NULL: one is made up. It must not exist */
	const char *pid_map; /* file for the pids of containers (pid_mapping.json), NULL: none */
	uint32_t pid_map_period_s; /* rewritten that often, 0: at start and end only */
	const char *tracefs; /* where tracefs is; NULL: found, or mounted for this recorder only */
	/* Called from the thread that calls start, status or stop. NULL: silent. */
	void (*log)(void *ctx, int level, const char *text);
	void *log_ctx;
};

/** struct systrace_ftrace_status - set size before the call */
struct systrace_ftrace_status {
	size_t size; /* sizeof(struct systrace_ftrace_status) */
	uint32_t backend; /* the one that runs: NATIVE, TRACE_CMD or DEBUGFS */
	int32_t failed; /* 0, or -errno that ended the recording early (disk full, trace-cmd gone) */
	uint64_t events; /* seen by the kernel's ring buffer on the recorded CPUs; 0 for trace-cmd while it runs */
	uint64_t lost; /* overwritten or dropped there */
	uint64_t bytes; /* read so far; 0 for debugfs, whose text is read at stop */
	uint64_t file_bytes; /* size of the file; 0 before stop */
	char output[4096]; /* its name */
};

struct systrace_ftrace; /* a running recording */

/**
 * systrace_ftrace_start - begin to record; returns once the kernel really records
 * @opts: NULL: all defaults
 * @error, @error_bytes: text for people when it fails; may be NULL, 0
 *
 * Starts a thread (native) or a child (trace-cmd), which systrace_ftrace_stop() ends. Left-overs of recorders that were
 * killed are removed first. Not from signal handlers; calls for one recording must not overlap. With trace-cmd the calling
 * thread must live as long as the recording: trace-cmd is told to save and end when it dies.
 *
 * Return: the recording, or NULL with errno: EPERM not root, ENODEV no tracefs, EINVAL bad option, ENOENT no such
 * directory, CPU or event, ENOSPC, ...
 */
struct systrace_ftrace *systrace_ftrace_start(const struct systrace_ftrace_options *opts, char *error,
					      size_t error_bytes);

/** systrace_ftrace_status - how far is it? Costs one small file per CPU. Return: 0 or -errno. */
int systrace_ftrace_status(struct systrace_ftrace *rec, struct systrace_ftrace_status *status);

/**
 * systrace_ftrace_stop - end the recording, write the file, put the kernel's tracing state back, free @rec
 * @output: another name for the file; NULL: the one of start
 * @status: the final figures; may be NULL
 *
 * Return: 0, or -errno with a text in @error; tracing state is put back and @rec freed in any case. A recording that
 * ended early (disk full) is saved as far as it goes and returns its error.
 */
int systrace_ftrace_stop(struct systrace_ftrace *rec, const char *output, struct systrace_ftrace_status *status,
			 char *error, size_t error_bytes);

/**
 * systrace_pid_map_write - write the pids that tasks of containers have inside, as pid_mapping.json
 * @path: replaced as a whole
 *
 * Needs no root for the processes that /proc shows. Return: number of tasks, or -errno with a text in @error.
 */
int systrace_pid_map_write(const char *path, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif

#endif
