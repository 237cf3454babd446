/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The frame around the plugins: checks requests against the plugin table, keeps duration, start_step, steps and at, and
 * calls a plugin's start and stop at the right moment. Used by the control thread only.
 */
#ifndef AGENT_PLUGIN_FRAME_H
#define AGENT_PLUGIN_FRAME_H

#include "agent/plugin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_state { FRAME_OFF, FRAME_WAITING, FRAME_ON };

/**
 * plugin_frame_enable - switch on, or update what is on or waiting
 * @pairs: the request without `plugin=`; copied
 *
 * Return: 0 when capture has begun or is armed, err->text then saying what holds with it ("" = nothing to say); or
 * -errno with the reason and the next step, nothing having changed.
 */
int plugin_frame_enable(enum plugin_id id, const struct plugin_pair *pairs, size_t count, struct st_err *err);

/**
 * plugin_frame_disable - switch off; the caller then has the data written
 * @sync: gets the request's sync=1
 *
 * Return: 1 it was on, 0 it was off or only armed (err->text says so), or -errno.
 */
int plugin_frame_disable(enum plugin_id id, bool *sync, struct st_err *err);

/** plugin_frame_from_text - enable what SYSTRACE_PLUGINS asks for; refusals go into the log. */
void plugin_frame_from_text(const char *text);

/** plugin_frame_tick - start what is due, stop what has run its time. */
void plugin_frame_tick(uint64_t now_ns);

/** plugin_frame_due - when the next tick is needed, CLOCK_MONOTONIC; UINT64_MAX = not before somebody asks. */
uint64_t plugin_frame_due(uint64_t now_ns);

/** plugin_frame_stop_all - the process ends. */
void plugin_frame_stop_all(void);

struct plugin_frame_status {
	enum frame_state state;
	uint64_t on_ns; /* for how long it has been on */
	uint64_t left_ns; /* until it ends by itself; UINT64_MAX = no time set */
	char waiting_for[96]; /* FRAME_WAITING: "step 100", "unix time 1700000000" */
	char text[160]; /* the plugin's own line */
	uint64_t calls, cost_ns, bytes; /* since it was switched on, in whole windows of the overhead budget */
	double cost_pct; /* of the last window, of max(process CPU, wall) */
	char backed_off[96]; /* what it has given up for the budget; "" = nothing */
};

void plugin_frame_status(enum plugin_id id, struct plugin_frame_status *status);

/** plugin_frame_after_fork - a child has no plugins of its own. Context: fork. */
void plugin_frame_after_fork(void);

/**
 * plugin_text_next - next request of a text such as `IO;MSPTI event=marker`
 * @at: position, moved behind it
 * @room: bytes of @text, which gets the words without their quotes
 * @word: gets them, the plugin's name first; @max: rows of it
 *
 * Return: words, 0 at the end, -EINVAL (open quote, too many words, too long).
 */
int plugin_text_next(const char **at, char *text, size_t room, const char **word, int max);

#endif
