/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which recorded files belong to which rank: walks a dump directory (or takes one file), keeps what the readers know as
 * timelines and markers, and stays within one run. Called by the inputs of failslow and localize; reads no records.
 */
#ifndef ANALYZE_RECORDS_H
#define ANALYZE_RECORDS_H

#include "base/err.h"
#include "trace/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** what a file holds; bits */
#define RECORD_TIMELINE 1u /* steps and stages of a rank */
#define RECORD_MARKERS 2u /* collectives of a rank, one by one */
#define RECORD_JOB 4u /* steps, stages and collectives of all workers of a job */
#define RECORD_LAYER 8u /* another layer, for evidence: I/O, interpreter lock, locks */

struct record_file {
	char *path;
	unsigned format; /* RECORD_... bits */
	int32_t rank; /* EV_NO_RANK = unknown */
	uint32_t run, host, ip; /* name ids, 0 = unknown */
	uint32_t world_size; /* 0 = unknown */
	uint32_t segment;
	uint64_t run_start_us;
	bool shared; /* may hold records of other ranks, too */
};

/** struct records - files of one run, by rank, timelines before markers, segments in order */
struct records {
	struct ev_session *session;
	struct record_file *files;
	size_t count;
	struct record_file *layers; /* of other layers, in any order */
	size_t layers_count;
	size_t other; /* files that are no records */
	size_t other_runs; /* files of other runs, left out */
	int64_t capture_end_ns; /* wall clock, from meta.json of a capture, 0 = unknown */
	uint32_t world_size; /* 0 = unknown */
	struct steps_cache *cache; /* steps read before, NULL = none: rank_steps.h */
	void (*note)(void *arg, const char *text); /* remarks for people; may be NULL */
	void *note_arg;
};

/**
 * records_find - look for records below a path
 * @records: zero-initialised but for session, note and note_arg
 * @path: directory or file
 * @run: take this run; NULL = the newest
 *
 * Context: tool. Return: 0 (also when nothing was found), -errno with @err. records_fini() in any case.
 */
int records_find(struct records *records, const char *path, const char *run, struct st_err *err);

/** records_add - look below a further path first; records_find() then sorts all. Return: 0, -errno with @err. */
int records_add(struct records *records, const char *path, struct st_err *err);
void records_fini(struct records *records);

/** records_note - pass a remark on */
void records_note(const struct records *records, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** records_number - a number among an event's args, @otherwise if it is not there. @key: name id. */
uint64_t records_number(const struct event *ev, uint32_t key, uint64_t otherwise);

/** records_name - a name among an event's args, 0 if it is not there. @key: name id. */
uint32_t records_name(const struct event *ev, uint32_t key);

/** records_wall_ns - wall clock of a time of an event, as the file's origin tells */
int64_t records_wall_ns(const struct ev_reader *reader, const struct event *ev, uint64_t t_ns);

#endif
