/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What the tables of the convert commands have in common: io_text.h, gil_text.h, lock_text.h. */
#ifndef CONVERT_TEXT_H
#define CONVERT_TEXT_H

#include "trace/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/** struct text_options - how tables are printed */
struct text_options {
	size_t most; /* rows of long tables (files, locks, pairs), those with the most time first; JSON has all */
	bool json; /* one object instead of tables */
	void (*note)(void *arg, const char *text); /* told what the recording says of itself; NULL = nobody */
	void *arg;
};

/** text_note - hand on an event of kind EV_NOTE; others are nothing to it */
static inline void text_note(const struct text_options *options, const struct ev_session *session,
			     const struct event *ev)
{
	if (ev->kind == EV_NOTE && options->note)
		options->note(options->arg, ev_text(session, ev->name));
}

#endif
