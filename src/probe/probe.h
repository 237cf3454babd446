/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The frame of `systrace probe`: recorders that need root, outside the job. One process per host and group of kinds
 * (probe_kind.group) serves all jobs; `sysTrace_cli enable` starts it and hands it targets and the descriptors of their
 * dump directories. The frame (probe/run.c, control.c, target.c) owns the socket, timing, steps, the lives of targets
 * and the end; a kind only records. Everything runs on one thread, in one poll loop: a callback never waits long.
 *
 * A new kind is one `const struct probe_kind probe_<name>` in one file and one row of probe_kinds[] (probe/kinds.c).
 */
#ifndef PROBE_PROBE_H
#define PROBE_PROBE_H

#include "base/err.h"
#include "wire/ctl.h"
#include "wire/messages.h"
#include "wire/plugin_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROBE_PARAMS 32
#define PROBE_FOREVER UINT64_MAX

/** struct probe_target - a process to record, or (pid 0) only a place for files; the frame's, lives as long as a session has it */
struct probe_target {
	pid_t pid; /* as seen by the probe; 0 = none: a dump directory of its own, `rank` and `inner_pid` still name files */
	uint64_t start; /* field 22 of /proc/<pid>/stat: a pid that came again is another process */
	uid_t uid; /* owner of the files */
	gid_t gid;
	int dir_fd; /* dump directory, O_DIRECTORY */
	int pool_fd; /* the agent's pool, to read the step from; -1 = no agent, or it has no shared pool */
	int pid_fd; /* readable once the process has ended; -1 = pid 0 */
	bool json; /* SYSTRACE_FORMAT of the job */
	bool has_agent;
	bool ended; /* set before the session's target_gone callback */
	uint32_t inner_pid; /* in its own namespace: names files, as the agent's do */
	char dump_path[512]; /* for messages only: never opened */
	char texts[1024]; /* memory behind .origin */
	struct msg_origin origin; /* who: run, host, boot, pids, rank, rank_known, pid, proc_start, pid_namespace, ... */
	unsigned users; /* sessions */
	void *files[PLUGIN_COUNT]; /* a kind's own per target; shared by kinds of one group only by agreement (probe/os_file.h) */
};

struct probe_kind;

/** struct probe_session - one `enable` of one plugin: its parameters, its timing and its targets */
struct probe_session {
	const struct probe_kind *kind;
	uint32_t id;
	struct probe_target **targets; /* at least one */
	size_t target_count;
	struct plugin_pair params[PROBE_PARAMS]; /* plugin's own and common ones, checked with plugin_check_enable() */
	size_t param_count;
	struct plugin_timing timing;
	bool on; /* between start and stop */
	uint64_t begun_ns; /* CLOCK_MONOTONIC, while on */
	void *own; /* the kind's */
	/* frame */
	char *text; /* memory behind params */
	uint64_t begin_step; /* of the job when it was started; for steps= */
	struct probe_session *next;
};

/** struct probe_stats - what `status` tells of a kind; cost is measured by the frame */
struct probe_stats {
	uint64_t records; /* written */
	uint64_t lost; /* events that did not get into a file: buffer full, disk full, ... */
	uint64_t bytes; /* written */
	uint64_t buffer_bytes; /* memory of kernel buffers that it holds */
	uint64_t failures; /* writes that failed */
	char text[256]; /* one line of its own, "" = none */
};

/** enum probe_targets - which processes an `enable` sends to the probe */
enum probe_targets {
	PROBE_EVERY, /* processes with an agent, else pid=, else those of npu-smi and nvidia-smi (CPU, Memory) */
	PROBE_WITHOUT_AGENT, /* of pid= those that have no agent; the others are the agent's own work (GIL, Mutex) */
	PROBE_HOST /* the machine: one place for files, the lowest local rank's agent, else the shell's (Ftrace, Trace, CacheMiss) */
};

struct probe_kind {
	enum plugin_id plugin;
	const char *group; /* name of the process and its socket: `systrace probe <group>` */
	enum probe_targets targets;
	uint32_t tick_ms; /* how often .tick is called while a session is on; 0 = never */

	/**
	 * can it run here? Called by sysTrace_cli before it starts a probe, and by the probe. Return: 0, or -errno with the
	 * reason and what to do: "needs root or CAP_BPF and CAP_PERFMON". May be NULL.
	 */
	int (*check)(struct st_err *err);
	/** put back what a killed probe left in the kernel; called once, when the probe starts. May be NULL. */
	void (*clean)(void);
	/**
	 * capture really begins: all targets of the session. First session: load the kernel's side. @note (256 bytes, ""):
	 * a remark for the ACK. Return: 0, or -errno with @err; then nothing of the session is left behind.
	 */
	int (*start)(struct probe_session *session, char *note, struct st_err *err);
	/** end of the session: what was recorded is written when this returns. Last session: the kernel is as before. */
	void (*stop)(struct probe_session *session);
	/** one target less (it ended, was disabled, or moved to another session), others remain. Written on return. */
	void (*remove)(struct probe_session *session, struct probe_target *target);
	/** regular work, tick_ms apart. May be NULL. */
	void (*tick)(uint64_t now_ns);
	/** write out what the kernel's buffers hold now (CTL_FLUSH). May be NULL. */
	void (*flush)(void);
	/** sums since the probe began. */
	void (*status)(struct probe_stats *stats);
};

/** probe_kinds - all kinds of this build, NULL-terminated */
extern const struct probe_kind *const probe_kinds[];

/** probe_kind_of - the kind that records a plugin, or NULL: @err says why it is not in this build. Context: tool. */
const struct probe_kind *probe_kind_of(enum plugin_id plugin, struct st_err *err);

/* --- for kinds ------------------------------------------------------------------------------------------------------ */

/**
 * probe_watch - have @ready called whenever @fd is readable (or hung up), until probe_unwatch()
 *
 * Context: the probe's thread. Return: 0 or -ENOMEM.
 */
int probe_watch(int fd, void (*ready)(int fd, void *arg), void *arg);
void probe_unwatch(int fd);

/** probe_session_end - the session has come to its end by itself (its command ended): as if disabled, after this callback. */
void probe_session_end(struct probe_session *session);

/** probe_param - value of a parameter of the session, or its default from the plugin table, or NULL. */
const char *probe_param(const struct probe_session *session, const char *key);

/** probe_target_step - completed steps of the job now, from the agent's pool; 0 = unknown. One pread. */
uint64_t probe_target_step(const struct probe_target *target);

/**
 * probe_inner_tid - id of a target's thread inside its container
 * @tgid, @tid: the host's; of the target or of a process forked from it
 *
 * Return: 0 when it is the same as outside, or the thread is gone. Reads a file of /proc for targets in containers.
 */
uint32_t probe_inner_tid(const struct probe_target *target, uint32_t tgid, uint32_t tid);

/** probe_sees_host - is this the host's pid namespace? The kernel's own filters know no other process ids. */
bool probe_sees_host(void);

/** probe_need_host - the same as a check of eBPF kinds. Return: 0 or -ENOTSUP with @err. */
int probe_need_host(const char *what, struct st_err *err);

/** probe_log - a line for the probe's log and, the last of them, for `status`. */
void probe_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/**
 * probe_need_caps - has this process one of two sets of capabilities (capability numbers, ended by -1)?
 * @what: for the message, "tracing context switches"
 *
 * Return: 0 or -EPERM with @err, which names what is missing.
 */
int probe_need_caps(const char *what, const int *caps, const int *instead, struct st_err *err);

/** probe_sessions - first session of a kind, for kinds that walk them (next: session->next; others' kinds are among them) */
struct probe_session *probe_sessions(void);

#endif
