/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The steps of one rank out of its timeline files: begin, duration, data loader and checkpoint time, sums of
 * collectives. Shared by the inputs of failslow and localize. Steps are the recorded ones; in timelines of the published
 * form, which have none, a data loader call begins one; of a rank without a timeline they are found in its markers.
 */
#ifndef ANALYZE_RANK_STEPS_H
#define ANALYZE_RANK_STEPS_H

#include "analyze/records.h"

struct rank_step {
	uint32_t number;
	int64_t begin_ns; /* wall clock */
	int64_t dur_ns; /* 0 = unknown (the last one) */
	int64_t load_end_ns; /* end of the first loader stage, 0 = none */
	int64_t load_ns;
	int64_t forward_ns;
	int64_t ckpt_ns;
	uint64_t elements; /* of collectives, with calls: size of the work */
	uint64_t calls;
};

/** struct rank_sum - one operation and group in one step */
struct rank_sum {
	uint32_t step; /* index into steps */
	uint32_t name, group;
	int64_t total_ns;
	uint64_t elements;
};

struct rank_steps {
	struct rank_step *steps;
	size_t count;
	struct rank_sum *sums;
	size_t sums_count;
	int64_t last_ns; /* wall clock of the last thing seen */
	uint64_t lost; /* records that the source dropped */
	bool from_markers; /* there was no timeline: numbers count from 0 until rank_steps_align() */
};

/*
 * Steps read before, for those who look at growing files again and again: of protobuf timelines only what was appended is
 * read, files that did not change are not read at all, any other change has the rank read anew. One session for all passes.
 */
struct steps_cache;

struct steps_cache *steps_cache_new(void);
void steps_cache_free(struct steps_cache *cache);

/** steps_cache_bytes - bytes of timelines read since it was asked last */
uint64_t steps_cache_bytes(struct steps_cache *cache);

/**
 * rank_steps_read - read all timelines of a rank, and its markers where those hold no steps
 * @files: the rank's files, @count of them, as records_find() left them
 *
 * Context: tool. Return: 0, or -ENOMEM. Unreadable parts are noted through records_note(). rank_steps_fini() in any case.
 */
int rank_steps_read(struct rank_steps *out, const struct records *records, const struct record_file *files,
		    size_t count);
void rank_steps_fini(struct rank_steps *steps);

/** rank_steps_align - give steps found in markers the numbers that another rank's steps have. Return: 0 or -ENOMEM. */
int rank_steps_align(struct rank_steps *steps, const struct rank_steps *reference);

/** rank_steps_at - index of the step that holds a time, or SIZE_MAX before the first */
size_t rank_steps_at(const struct rank_steps *steps, int64_t wall_ns);

#endif
