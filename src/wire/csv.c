/* SPDX-License-Identifier: MulanPSL-2.0 */
/* CSV rows of MSPTI activities; see csv.h. */
#include "wire/csv.h"

#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES 21 /* 20 digits and a comma */

static void put_number(struct csv_writer *w, uint64_t value, char after)
{
	char text[NUMBER_BYTES];
	size_t at = sizeof(text);

	text[--at] = after;
	do
		text[--at] = (char)('0' + value % 10);
	while (value /= 10);
	if (w->room - w->used < sizeof(text) - at) {
		w->full = true;
		return;
	}
	memcpy(w->data + w->used, text + at, sizeof(text) - at);
	w->used += sizeof(text) - at;
}

static char harmless(char c)
{
	return c == ',' || (unsigned char)c < 0x20 || c == 0x7f ? '!' : c;
}

static void put_name(struct csv_writer *w, const char *name, size_t bytes)
{
	size_t i;

	if (w->room - w->used < bytes + 1) {
		w->full = true;
		return;
	}
	for (i = 0; i < bytes; i++)
		w->data[w->used++] = harmless(name[i]);
	w->data[w->used++] = ',';
}

void csv_marker_put(struct csv_writer *w, const struct csv_marker *m)
{
	size_t start = w->used;

	put_number(w, m->flag, ',');
	put_number(w, m->id, ',');
	put_number(w, CSV_KIND_MARKER, ',');
	put_name(w, m->name, m->name ? m->name_bytes : 0);
	put_number(w, m->source, ',');
	put_number(w, m->wall_ns, ',');
	/* the record holds one union; the original tool prints it in both column pairs, and readers expect that */
	put_number(w, m->first, ',');
	put_number(w, m->second, ',');
	put_number(w, m->first, ',');
	put_number(w, m->second, '\n');
	if (w->full)
		w->used = start;
}

size_t csv_comm_name(char *text, size_t room, struct msg_text op, struct msg_text group, struct msg_text dtype,
		     uint64_t count)
{
	int n = snprintf(text, room, "comm:%.*s!%.*s!%.*s!%llu", (int)op.bytes, op.at, (int)group.bytes, group.at,
			 (int)dtype.bytes, dtype.at, (unsigned long long)count);
	size_t bytes = n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
	size_t i;

	for (i = 0; i < bytes; i++)
		text[i] = harmless(text[i]);
	return bytes;
}
