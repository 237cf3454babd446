/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A small JSON writer into a caller's buffer: objects, arrays, numbers, texts. It sets the commas; the caller keeps
 * begin and end balanced. For the agent's files and sidecars; the tools' exporters, which write gigabytes, and the
 * readers have their own.
 */
#ifndef WIRE_JSON_H
#define WIRE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct json_writer - a text being built in the caller's buffer; not terminated */
struct json_writer {
	char *data;
	size_t room;
	size_t used;
	bool full; /* something did not fit; the content is then useless */
	bool comma; /* the next element or key needs a comma first */
};

/** json_init - start writing. Context: thread, tool; no allocation, no locale. */
static inline void json_init(struct json_writer *w, void *data, size_t room)
{
	*w = (struct json_writer){ .data = data, .room = room };
}

/** json_open/json_close - '{' or '[', '}' or ']' */
void json_open(struct json_writer *w, char bracket);
void json_close(struct json_writer *w, char bracket);

/** json_key - the key of the next value; plain ASCII without quotes */
void json_key(struct json_writer *w, const char *key);

void json_u64(struct json_writer *w, uint64_t value);
void json_i64(struct json_writer *w, int64_t value);
void json_bool(struct json_writer *w, bool value);

/** json_text - any bytes: valid UTF-8 stays, each other byte becomes the code point of its value (\u00XX) */
void json_text(struct json_writer *w, const char *text, size_t bytes);

/** json_raw - bytes as they are, for line breaks and the like; no comma is set */
void json_raw(struct json_writer *w, const char *text);

#endif
