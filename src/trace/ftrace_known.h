/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The kernel events that our tools interpret, whatever file they come from: one row says which kind of the event model
 * an event becomes and in which order its fields stand in event.args, so that converters and analysers take them by
 * position. Events without a row are carried as EV_OTHER with their first EV_MAX_ARGS fields.
 */
#ifndef TRACE_FTRACE_KNOWN_H
#define TRACE_FTRACE_KNOWN_H

#include "trace/event.h"

enum ftrace_known {
	KNOWN_NONE, /* EV_OTHER */
	KNOWN_TASK_COMM, /* made by the readers: this pid is called so; args comm, pid */
	KNOWN_SWITCH,
	KNOWN_WAKING,
	KNOWN_WAKEUP,
	KNOWN_WAKEUP_NEW,
	KNOWN_MIGRATE,
	KNOWN_STAT_RUNTIME,
	KNOWN_FORK,
	KNOWN_EXEC,
	KNOWN_EXIT,
	KNOWN_IRQ_ENTRY,
	KNOWN_IRQ_EXIT,
	KNOWN_SOFTIRQ_ENTRY,
	KNOWN_SOFTIRQ_EXIT,
	KNOWN_SOFTIRQ_RAISE,
	KNOWN_FUTEX_ENTER,
	KNOWN_FUTEX_EXIT,
	KNOWN_MMAP_LOCK_START,
	KNOWN_MMAP_LOCK_ACQUIRED,
	KNOWN_MMAP_LOCK_RELEASED,
	KNOWN_COUNT
};

/** enum known_arg_type - how a field becomes an argument */
enum known_arg_type {
	KA_END,
	KA_INT, /* EV_ARG_I64 */
	KA_HEX, /* EV_ARG_PTR */
	KA_TEXT, /* EV_ARG_NAME */
	KA_STATE, /* prev_state: EV_ARG_NAME "R", "R+", "S", "D|K", ... */
	KA_ACTION, /* softirq: EV_ARG_NAME made from vec */
	KA_HANDLED, /* irq return: EV_ARG_NAME "handled" or "unhandled" */
	KA_BOOL /* EV_ARG_I64 0 or 1; "true" and "false" in text */
};

struct known_arg {
	const char *name; /* key in event.args and field name in the format file */
	enum known_arg_type type;
};

struct known_spec {
	const char *name; /* event name */
	enum ev_kind kind;
	enum ev_phase phase;
	struct known_arg args[EV_MAX_ARGS];
};

/* positions in event.args */
enum {
	SWITCH_PREV_COMM,
	SWITCH_PREV_PID,
	SWITCH_PREV_PRIO,
	SWITCH_PREV_STATE,
	SWITCH_NEXT_COMM,
	SWITCH_NEXT_PID,
	SWITCH_NEXT_PRIO
};
enum { WAKE_COMM, WAKE_PID, WAKE_PRIO, WAKE_CPU };
enum { MIGRATE_COMM, MIGRATE_PID, MIGRATE_PRIO, MIGRATE_FROM, MIGRATE_TO };
enum { RUNTIME_COMM, RUNTIME_PID, RUNTIME_NS, RUNTIME_VRUNTIME };
enum { FORK_PARENT_COMM, FORK_PARENT_PID, FORK_CHILD_COMM, FORK_CHILD_PID };
enum { EXEC_FILENAME, EXEC_PID, EXEC_OLD_PID };
enum { EXIT_COMM, EXIT_PID, EXIT_PRIO };
enum { IRQ_IRQ, IRQ_NAME, IRQ_RET = 1 };
enum { SOFTIRQ_VEC, SOFTIRQ_ACTION };
enum { TASK_COMM_COMM, TASK_COMM_PID };

extern const struct known_spec known_specs[KNOWN_COUNT];

/** ftrace_known_find - row of an event name; KNOWN_NONE when it has none. @len: bytes of @name. */
enum ftrace_known ftrace_known_find(const char *name, size_t len);

/** ftrace_state_text - prev_state bits of the kernel as its letters. @out: at least 32 bytes. Return: length. */
size_t ftrace_state_text(uint64_t state, char *out);

/** ftrace_softirq_name - name of a softirq vector, "?" when unknown */
const char *ftrace_softirq_name(uint64_t vec);

/** struct known_keys - the rows' names and argument keys as name ids of one session */
struct known_keys {
	uint32_t name[KNOWN_COUNT];
	uint32_t arg[KNOWN_COUNT][EV_MAX_ARGS];
	uint8_t nargs[KNOWN_COUNT];
	uint32_t state[1024]; /* name ids of prev_state texts by bits below 0x400, 0 = not made yet */
	uint32_t softirq[16];
	uint32_t handled[2]; /* "unhandled", "handled" */
	uint32_t count; /* "count" of EV_LOST */
};

/** known_keys_init - intern everything. Return: 0 or -ENOMEM. */
int known_keys_init(struct known_keys *keys, struct ev_session *session);

/** known_state_name - name id of prev_state bits */
uint32_t known_state_name(struct known_keys *keys, struct ev_session *session, uint64_t state);

/**
 * known_begin - fill what all events of a row share: kind, phase, name, track, clock; no args
 * @tid: common_pid
 */
void known_begin(struct event *ev, const struct known_keys *keys, enum ftrace_known known, uint64_t t_ns, int32_t cpu,
		 int32_t tid);

#endif
