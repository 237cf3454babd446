/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The table of interpreted kernel events; see ftrace_known.h. */
#include "trace/ftrace_known.h"

#include <errno.h>
#include <string.h>

const struct known_spec known_specs[KNOWN_COUNT] = {
	[KNOWN_TASK_COMM] = { "task_comm", EV_TASK, EV_INSTANT, { { "comm", KA_TEXT }, { "pid", KA_INT } } },
	[KNOWN_SWITCH] = { "sched_switch",
			   EV_SCHED_SWITCH,
			   EV_INSTANT,
			   { { "prev_comm", KA_TEXT },
			     { "prev_pid", KA_INT },
			     { "prev_prio", KA_INT },
			     { "prev_state", KA_STATE },
			     { "next_comm", KA_TEXT },
			     { "next_pid", KA_INT },
			     { "next_prio", KA_INT } } },
#define WAKE_ARGS                                                           \
	{                                                                   \
		{ "comm", KA_TEXT }, { "pid", KA_INT }, { "prio", KA_INT }, \
		{                                                           \
			"target_cpu", KA_INT                                \
		}                                                           \
	}
	[KNOWN_WAKING] = { "sched_waking", EV_SCHED_WAKEUP, EV_INSTANT, WAKE_ARGS },
	[KNOWN_WAKEUP] = { "sched_wakeup", EV_SCHED_WAKEUP, EV_INSTANT, WAKE_ARGS },
	[KNOWN_WAKEUP_NEW] = { "sched_wakeup_new", EV_SCHED_WAKEUP, EV_INSTANT, WAKE_ARGS },
	[KNOWN_MIGRATE] = { "sched_migrate_task",
			    EV_SCHED_MIGRATE,
			    EV_INSTANT,
			    { { "comm", KA_TEXT },
			      { "pid", KA_INT },
			      { "prio", KA_INT },
			      { "orig_cpu", KA_INT },
			      { "dest_cpu", KA_INT } } },
	[KNOWN_STAT_RUNTIME] = { "sched_stat_runtime",
				 EV_OTHER,
				 EV_INSTANT,
				 { { "comm", KA_TEXT },
				   { "pid", KA_INT },
				   { "runtime", KA_INT },
				   { "vruntime", KA_INT } } },
	[KNOWN_FORK] = { "sched_process_fork",
			 EV_TASK,
			 EV_INSTANT,
			 { { "parent_comm", KA_TEXT },
			   { "parent_pid", KA_INT },
			   { "child_comm", KA_TEXT },
			   { "child_pid", KA_INT } } },
	[KNOWN_EXEC] = { "sched_process_exec",
			 EV_TASK,
			 EV_INSTANT,
			 { { "filename", KA_TEXT }, { "pid", KA_INT }, { "old_pid", KA_INT } } },
	[KNOWN_EXIT] = { "sched_process_exit",
			 EV_TASK,
			 EV_INSTANT,
			 { { "comm", KA_TEXT }, { "pid", KA_INT }, { "prio", KA_INT }, { "group_dead", KA_BOOL } } },
	[KNOWN_IRQ_ENTRY] = { "irq_handler_entry", EV_IRQ, EV_BEGIN, { { "irq", KA_INT }, { "name", KA_TEXT } } },
	[KNOWN_IRQ_EXIT] = { "irq_handler_exit", EV_IRQ, EV_END, { { "irq", KA_INT }, { "ret", KA_HANDLED } } },
#define SOFTIRQ_ARGS                        \
	{                                   \
		{ "vec", KA_INT },          \
		{                           \
			"action", KA_ACTION \
		}                           \
	}
	[KNOWN_SOFTIRQ_ENTRY] = { "softirq_entry", EV_SOFTIRQ, EV_BEGIN, SOFTIRQ_ARGS },
	[KNOWN_SOFTIRQ_EXIT] = { "softirq_exit", EV_SOFTIRQ, EV_END, SOFTIRQ_ARGS },
	[KNOWN_SOFTIRQ_RAISE] = { "softirq_raise", EV_SOFTIRQ, EV_INSTANT, SOFTIRQ_ARGS },
	[KNOWN_FUTEX_ENTER] = { "sys_enter_futex",
				EV_SYSCALL,
				EV_BEGIN,
				{ { "uaddr", KA_HEX }, { "op", KA_HEX }, { "val", KA_HEX } } },
	[KNOWN_FUTEX_EXIT] = { "sys_exit_futex", EV_SYSCALL, EV_END, { { "ret", KA_INT } } },
	[KNOWN_MMAP_LOCK_START] = { "mmap_lock_start_locking",
				    EV_LOCK,
				    EV_INSTANT,
				    { { "mm", KA_HEX }, { "write", KA_BOOL } } },
	[KNOWN_MMAP_LOCK_ACQUIRED] = { "mmap_lock_acquire_returned",
				       EV_LOCK,
				       EV_INSTANT,
				       { { "mm", KA_HEX }, { "write", KA_BOOL }, { "success", KA_BOOL } } },
	[KNOWN_MMAP_LOCK_RELEASED] = { "mmap_lock_released",
				       EV_LOCK,
				       EV_INSTANT,
				       { { "mm", KA_HEX }, { "write", KA_BOOL } } },
};

enum ftrace_known ftrace_known_find(const char *name, size_t len)
{
	int i;

	for (i = KNOWN_TASK_COMM; i < KNOWN_COUNT; i++)
		if (!strncmp(known_specs[i].name, name, len) && !known_specs[i].name[len])
			return (enum ftrace_known)i;
	return KNOWN_NONE;
}

/* include/linux/sched.h and include/trace/events/sched.h: letters of the bits below TASK_REPORT_MAX, which itself
 * means "preempted" and is shown as + */
size_t ftrace_state_text(uint64_t state, char *out)
{
	static const char letters[] = "SDTtXZPI";
	size_t n = 0;
	int bit;

	for (bit = 0; bit < 8; bit++) {
		if (!(state >> bit & 1))
			continue;
		if (n)
			out[n++] = '|';
		out[n++] = letters[bit];
	}
	if (!n)
		out[n++] = 'R';
	if (state & 0x100)
		out[n++] = '+';
	out[n] = 0;
	return n;
}

const char *ftrace_softirq_name(uint64_t vec)
{
	static const char *const names[] = { "HI",	 "TIMER",   "NET_TX", "NET_RX",	 "BLOCK",
					     "IRQ_POLL", "TASKLET", "SCHED",  "HRTIMER", "RCU" };

	return vec < sizeof(names) / sizeof(names[0]) ? names[vec] : "?";
}

int known_keys_init(struct known_keys *keys, struct ev_session *session)
{
	bool ok = true;
	int i, j;

	memset(keys, 0, sizeof(*keys));
	for (i = KNOWN_TASK_COMM; i < KNOWN_COUNT; i++) {
		const struct known_spec *spec = &known_specs[i];

		keys->name[i] = ev_name(session, spec->name, strlen(spec->name));
		ok = ok && keys->name[i];
		for (j = 0; j < EV_MAX_ARGS && spec->args[j].type != KA_END; j++) {
			keys->arg[i][j] = ev_name(session, spec->args[j].name, strlen(spec->args[j].name));
			ok = ok && keys->arg[i][j];
		}
		keys->nargs[i] = (uint8_t)j;
	}
	for (i = 0; i < 16; i++) {
		const char *name = ftrace_softirq_name((uint64_t)i);

		keys->softirq[i] = ev_name(session, name, strlen(name));
	}
	keys->handled[0] = ev_name(session, "unhandled", 9);
	keys->handled[1] = ev_name(session, "handled", 7);
	keys->count = ev_name(session, "count", 5);
	return ok && keys->handled[0] && keys->handled[1] && keys->count ? 0 : -ENOMEM;
}

uint32_t known_state_name(struct known_keys *keys, struct ev_session *session, uint64_t state)
{
	char text[32];

	if (state >= 1024)
		state &= 0x1ff;
	if (!keys->state[state])
		keys->state[state] = ev_name(session, text, ftrace_state_text(state, text));
	return keys->state[state];
}

void known_begin(struct event *ev, const struct known_keys *keys, enum ftrace_known known, uint64_t t_ns, int32_t cpu,
		 int32_t tid)
{
	ev->t_ns = t_ns;
	ev->dur_ns = 0;
	ev->flow_in = 0;
	ev->flow_out = 0;
	ev->track = (struct ev_track){ .pid = -1, .tid = tid, .cpu = cpu, .device = -1, .stream = -1 };
	ev->rank = EV_NO_RANK;
	ev->step = 0;
	ev->name = keys->name[known];
	ev->stack = 0;
	ev->kind = known == KNOWN_NONE ? EV_OTHER : (uint16_t)known_specs[known].kind;
	ev->phase = known == KNOWN_NONE ? EV_INSTANT : (uint8_t)known_specs[known].phase;
	ev->quality = 0;
	ev->nargs = 0;
}
