/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What trace-cmd changes at the top level of tracefs, remembered before it runs and put back afterwards. It also lies in
 * a file of /run/systrace, so that the next recorder can put it back after a kill.
 */
#ifndef PROBE_FTRACE_SAVED_STATE_H
#define PROBE_FTRACE_SAVED_STATE_H

#include "base/err.h"
#include "probe/ftrace/note.h"
#include "probe/ftrace/tracefs.h"

#include <stdbool.h>

struct saved_state {
	const struct tracefs *fs; /* NULL = nothing to put back */
	bool in_use; /* somebody else uses the top level: it must stay alone */
	bool mounted; /* tracefs was mounted at /sys/kernel/tracing before */
	char instance[128]; /* for trace-cmd when in_use, or because the user named one */
	char tracing_on[16], trace_clock[32], buffer_kb[32], cpumask[512];
	char file[192]; /* where it is remembered; "" = nowhere */
};

/** saved_state_take - @instance: the user's name for one, NULL = only when needed. Return: 0 or -errno with @err. */
int saved_state_take(struct saved_state *state, const struct tracefs *fs, const char *instance, struct st_err *err);

/**
 * saved_state_claim - remember an instance whose name does not say whose it is, so that a later sweep removes it
 *
 * saved_state_restore() removes it, if it is still there, and forgets it. Return: 0 or -errno with @err.
 */
int saved_state_claim(struct saved_state *state, const struct tracefs *fs, const char *instance, struct st_err *err);

/** saved_state_restore - put everything back, forget it. Repeating it does nothing. Return: 0 or -errno with @err. */
int saved_state_restore(struct saved_state *state, struct st_err *err);

/** saved_state_sweep - put back what recorders that are gone had changed. Return: how many. */
int saved_state_sweep(const struct tracefs *fs, const struct note *note);

/** trace_clock_current - the word in brackets of trace_clock's content. Return: false when there is none. */
bool trace_clock_current(const char *clocks, char *clock, size_t room);

/** buffer_kb_current - what to write to get this size back: "1408" of "7 (expanded: 1408)". false: differs by CPU. */
bool buffer_kb_current(const char *shown, char *kb, size_t room);

#endif
