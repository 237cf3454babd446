/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * From merged events to a picture: which process, track and lane an event belongs to, so that slices of a lane always
 * nest, whatever the records say. Called by the convert commands; written down by an exporter (sink.h).
 */
#ifndef CONVERT_TIMELINE_H
#define CONVERT_TIMELINE_H

#include "convert/sink.h"
#include "trace/merge.h"

/** struct timeline_options - first field is the size of the struct */
struct timeline_options {
	size_t size;
	const struct tsink_ops *format;
	const char *output; /* "-" = standard output */
	/* called about every 65536 events; returning true stops with -ECANCELED. May be NULL. */
	bool (*progress)(void *arg, const struct merge *merge);
	/* told of readers that fail on the way: what they gave before stays. May be NULL. */
	void (*note)(void *arg, const char *text);
	void *arg;
};

/** struct timeline_summary - what was written */
struct timeline_summary {
	uint64_t events; /* read */
	uint64_t slices, instants, values; /* written */
	uint64_t first_ns, last_ns; /* on the merge's axis */
	uint64_t lost; /* records that the sources say they dropped */
	uint64_t open; /* operations whose end was not seen */
	uint64_t squeezed; /* slices shortened, since they fit into none of the lanes */
	uint64_t steps;
	uint64_t bytes; /* of the output */
	size_t processes, tracks, ranks;
};

/**
 * timeline_write - read a merge to its end and write it as a trace file
 * @notes: lines about what is missing or left out, also put into the file; filled and freed by the caller's note list
 *
 * Return: 0; -ENODATA when there was no event (no file is left then); -errno with @err.
 */
int timeline_write(struct ev_session *session, struct merge *merge, const struct timeline_options *options,
		   struct timeline_summary *summary, struct st_err *err);

#endif
