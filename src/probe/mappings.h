/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What lies at an address of a process: the files and areas of /proc/<pid>/maps, read again now and then only, since
 * reading it keeps the process from mapping memory. Used by the probe's kinds.
 */
#ifndef PROBE_MAPPINGS_H
#define PROBE_MAPPINGS_H

#include <stddef.h>
#include <stdint.h>

struct mapping {
	uint64_t begin, end, offset; /* offset: of begin, in the file */
	uint32_t name; /* offset into texts */
	uint32_t executable;
};

struct mappings {
	uint32_t pid;
	struct mapping *rows; /* ascending */
	size_t count, room;
	char *texts;
	size_t texts_used, texts_room;
	uint64_t read_ns; /* CLOCK_MONOTONIC, 0 = never */
	uint64_t took_ns;
};

/** mappings_read - now. Return: 0, -ESRCH, -ENOMEM, -errno; what was known stays then. Context: tool. */
int mappings_read(struct mappings *maps, uint32_t pid);

/** mappings_find - the area that holds an address, NULL = none as far as known */
const struct mapping *mappings_find(const struct mappings *maps, uint64_t address);

/** mappings_text - path of an area, "[heap]" and the like, "" = memory without a name. Valid until it is read again. */
const char *mappings_text(const struct mappings *maps, const struct mapping *row);

/**
 * mappings_name - the same for an address, reading the maps again if that may help and is not too often
 *
 * Return: NULL = not known.
 */
const char *mappings_name(struct mappings *maps, uint32_t pid, uint64_t address);

void mappings_fini(struct mappings *maps);

#endif
