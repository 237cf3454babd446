/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What an exporter of timelines is: chrome.c and perfetto.c each fill one struct tsink_ops. timeline.c, the one caller,
 * decides what is shown where (processes, tracks, slices that nest); an exporter only writes it down.
 */
#ifndef CONVERT_SINK_H
#define CONVERT_SINK_H

#include "convert/outfile.h"
#include "trace/event.h"
#include "trace/merge.h"

struct tsink;

/** struct tsink_process - a group of tracks: a rank, or a process without one */
struct tsink_process {
	uint32_t pid; /* made up, unique in the file */
	int32_t sort; /* order in the viewer */
	const char *name;
	const char *labels; /* small print: host, real pid, job; NULL = none */
};

/** struct tsink_track - a row: slices that nest and instants, or a counter */
struct tsink_track {
	uint32_t id; /* from 1, dense, unique in the file */
	uint32_t pid; /* of its process */
	int32_t sort;
	bool counter; /* values in nanoseconds, or of @unit */
	const char *unit; /* of a counter: what is counted, "threads"; NULL = nanoseconds */
	const char *name;
};

/** struct tsink_slice - a slice, an instant, or a value, with the event it comes from (arguments, step, stack) */
struct tsink_slice {
	const struct event *ev;
	uint64_t t_ns, dur_ns;
	uint32_t name; /* name id, not 0 */
	uint32_t number; /* not 0: stands behind the name, "step 12" */
	const char *category; /* a constant of timeline.c */
};

/** struct tsink_head - the whole */
struct tsink_head {
	enum merge_axis axis;
	uint64_t first_ns; /* of the first event; a few later ones may be earlier */
	int64_t wall_minus_mono_ns; /* 0 = unknown */
};

/** struct tsink_ops - one exporter. All: 0 or -errno; write errors may also show up in finish() only. */
struct tsink_ops {
	const char *name; /* `--format` */
	const char *suffix; /* of files, ".json" */
	const char *help;
	struct tsink *(*open)(struct ev_session *session, const char *path, struct st_err *err);
	int (*head)(struct tsink *sink, const struct tsink_head *head);
	int (*process)(struct tsink *sink, const struct tsink_process *process);
	int (*track)(struct tsink *sink, const struct tsink_track *track);
	int (*rename)(struct tsink *sink, const struct tsink_track *track); /* its name is known only now */
	int (*slice)(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice);
	/* the innermost open slice of the track ends: called in order of time on each track, also when slice() told dur */
	int (*slice_end)(struct tsink *sink, const struct tsink_track *track, uint64_t t_ns); /* may be NULL */
	int (*instant)(struct tsink *sink, const struct tsink_track *track, const struct tsink_slice *slice);
	/* an arrow between two tracks at the moment of @slice (its name and category are the arrow's); @id: unique, not 0 */
	int (*arrow)(struct tsink *sink, const struct tsink_track *from, const struct tsink_track *to,
		     const struct tsink_slice *slice, uint64_t id);
	int (*counter)(struct tsink *sink, const struct tsink_track *track, uint64_t t_ns, uint64_t value);
	/* @notes: lines for people about what is missing, NULL-terminated; closes and frees the sink in any case */
	int (*finish)(struct tsink *sink, const char *const *notes, uint64_t *bytes, struct st_err *err);
	void (*discard)(struct tsink *sink); /* give up: no file is left; NULL is fine */
};

/** struct tsink - first member of each exporter's own struct */
struct tsink {
	const struct tsink_ops *ops;
	struct ev_session *session;
	struct outfile out;
};

/** tsink_formats - the table of exporters, NULL-terminated */
extern const struct tsink_ops *const tsink_formats[];

extern const struct tsink_ops tsink_chrome, tsink_perfetto;

/** tsink_quality - text of event.quality for people, "" for 0 */
const char *tsink_quality(uint8_t quality);

#endif
