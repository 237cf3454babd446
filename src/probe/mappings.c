/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See mappings.h. */
#include "probe/mappings.h"

#include "safe/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS 10000000u /* at least, between two readings for the sake of one address */
#define AGAIN_SHARE 50 /* and so many times as long as a reading takes */

static int put_text(struct mappings *maps, const char *text, uint32_t *at)
{
	size_t bytes = strlen(text) + 1;
	char *more;

	if (maps->texts_used && strcmp(maps->texts + *at, text) == 0)
		return 0; /* the areas of one file follow each other */
	if (maps->texts_room - maps->texts_used < bytes) {
		more = realloc(maps->texts, maps->texts_room * 2 + bytes + 4096);
		if (!more)
			return -ENOMEM;
		maps->texts = more;
		maps->texts_room = maps->texts_room * 2 + bytes + 4096;
	}
	memcpy(maps->texts + maps->texts_used, text, bytes);
	*at = (uint32_t)maps->texts_used;
	maps->texts_used += bytes;
	return 0;
}

static int put_row(struct mappings *maps, const struct mapping *row)
{
	struct mapping *more;

	if (maps->count == maps->room) {
		more = realloc(maps->rows, (maps->room * 2 + 256) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		maps->rows = more;
		maps->room = maps->room * 2 + 256;
	}
	maps->rows[maps->count++] = *row;
	return 0;
}

static int read_line(struct mappings *maps, char *line, uint32_t *text)
{
	struct mapping row = { 0 };
	char rights[8];
	int path = 0, ret;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %*s %*s %n", &row.begin, &row.end, rights,
		   &row.offset, &path) < 4)
		return 0;
	ret = put_text(maps, path ? line + path : "", text);
	row.name = *text;
	row.executable = rights[2] == 'x';
	return ret < 0 ? ret : put_row(maps, &row);
}

int mappings_read(struct mappings *maps, uint32_t pid)
{
	struct mappings now = { .pid = pid, .read_ns = clock_mono_ns() };
	char path[32], *line = NULL;
	size_t room = 0;
	uint32_t text = 0;
	int ret = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/maps", pid);
	in = fopen(path, "re");
	if (!in) {
		maps->read_ns = now.read_ns;
		return errno == ENOENT ? -ESRCH : -errno;
	}
	while (ret == 0 && getline(&line, &room, in) > 0)
		ret = read_line(&now, line, &text);
	free(line);
	fclose(in);
	if (ret < 0 || !now.count) {
		mappings_fini(&now);
		maps->read_ns = now.read_ns;
		return ret < 0 ? ret : -ESRCH;
	}
	mappings_fini(maps);
	*maps = now;
	maps->took_ns = clock_mono_ns() - now.read_ns;
	return 0;
}

const struct mapping *mappings_find(const struct mappings *maps, uint64_t address)
{
	size_t low = 0, high = maps->count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (maps->rows[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < maps->count && maps->rows[low].begin <= address ? &maps->rows[low] : NULL;
}

const char *mappings_text(const struct mappings *maps, const struct mapping *row)
{
	return maps->texts + row->name;
}

const char *mappings_name(struct mappings *maps, uint32_t pid, uint64_t address)
{
	const struct mapping *row = maps->pid == pid ? mappings_find(maps, address) : NULL;

	if (!row && clock_mono_ns() - maps->read_ns >= AGAIN_NS + AGAIN_SHARE * maps->took_ns &&
	    mappings_read(maps, pid) == 0)
		row = mappings_find(maps, address);
	return row ? mappings_text(maps, row) : NULL;
}

void mappings_fini(struct mappings *maps)
{
	free(maps->rows);
	free(maps->texts);
	maps->rows = NULL;
	maps->texts = NULL;
	maps->count = maps->room = maps->texts_used = maps->texts_room = 0;
}
