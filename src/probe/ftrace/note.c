/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See note.h. */
#include "probe/ftrace/note.h"

#include <stdarg.h>
#include <stdio.h>

void note_say(const struct note *note, int level, const char *format, ...)
{
	char text[1024];
	va_list ap;

	if (!note || !note->say)
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	note->say(note->ctx, level, text);
}
