/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Lines that a recorder says to whoever runs it (command, Python module, a program of the user's), without knowing how
 * they are shown.
 */
#ifndef PROBE_FTRACE_NOTE_H
#define PROBE_FTRACE_NOTE_H

struct note {
	void (*say)(void *ctx, int level, const char *text); /* level: enum systrace_ftrace_level; NULL = silent */
	void *ctx;
};

/** note_say - one line, without its end; longer ones than 1024 bytes are cut. */
void note_say(const struct note *note, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
