/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Sinks turn records of the pool into files of the dump directory. A sink owns one output file at a time (the live
 * segment), opens it with its first record and appends encoded bytes batch by batch; spool/drain.c drives them, in the
 * agent's io thread and in recover alike.
 */
#ifndef SPOOL_SINK_H
#define SPOOL_SINK_H

/** enum sink_kind - frozen: stored in pool_file.kind */
enum sink_kind {
	SINK_NONE,
	SINK_TIMELINE, /* timeline/<hostname>--<rank:05d>.timeline */
	SINK_MARKERS, /* mspti/mspti-marker-<ip>-<rank>.csv */
	SINK_IO,
	SINK_GIL,
	SINK_MUTEX,
	SINK_OS,
	SINK_HBM,
	SINK_TIMELINE_EXT, /* JSON only: <timeline>.ext.json, what the published schema has no array for */
	SINK_KINDS
};

#endif
