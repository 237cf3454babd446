/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which rank makes the job slow, and in what: compute, launch of operators, a network group or link, the data loader,
 * checkpoints; or who holds up a job that hangs. analyze/localize_input feeds it rank after rank from recorded files;
 * it keeps a few numbers per rank and step, compares ranks that do the same work, and names nobody without evidence.
 *
 * The late rank of a synchronous collective is the one that waits least, so nearly everything here is a duration of one
 * rank: its own time between collectives. Clocks of different hosts are compared only on pipeline links, after alignment.
 */
#ifndef ANALYZE_LOCALIZE_H
#define ANALYZE_LOCALIZE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum loc_kind { LOC_COMPUTE, LOC_LAUNCH, LOC_COMM, LOC_DATALOADER, LOC_CKPT, LOC_HANG, LOC_KINDS };

/** loc_kind_word - compute, launch, comm, dataloader, ckpt, hang */
const char *loc_kind_word(enum loc_kind kind);

/** struct loc_point - one value of a series */
struct loc_point {
	int64_t at_ns; /* wall clock */
	double value; /* ms */
};

struct localize;

/** struct loc_options - what to look at; zero-initialise for everything */
struct loc_options {
	uint32_t from_step, to_step; /* inclusive; to_step 0 = to the end */
	int64_t from_ns, to_ns; /* wall clock of the step's begin; to_ns 0 = to the end */
	int64_t span_ns; /* only the last so many ns of the data; 0 = all of it */
	unsigned off_kinds; /* bits 1 << enum loc_kind that are not looked for */
	int64_t until_ns; /* job was observed up to here (hang), 0 = up to the last record */
	double hang_mins; /* 0 = 30 */
	/*
	 * Another localiser in place of the robust one: reports with loc_find() and returns whether there was anything to
	 * judge, or -ENOMEM; series: what it compared, valid until its end.
	 */
	int (*judge)(struct localize *loc, void *arg);
	size_t (*series)(void *arg, int32_t rank, enum loc_kind kind, const struct loc_point **points);
	void *judge_arg;
};

/** struct loc_op - one collective call of one rank */
struct loc_op {
	uint32_t group; /* name id */
	uint32_t name; /* name id of the operation */
	uint64_t count; /* elements */
	uint64_t serial; /* rank's own numbering of its calls, 0 = unknown */
	int64_t begin_ns; /* device if there is one, else host; wall clock of its host */
	int64_t end_ns; /* 0 = did not end */
	int32_t stream;
	bool pairwise; /* send, receive: synchronises neighbours only */
};

/** struct loc_sum - all calls of one operation and group in one step, where single calls were not recorded */
struct loc_sum {
	uint32_t step;
	uint32_t group;
	uint32_t name;
	double total_ms;
	uint64_t elements;
	bool pairwise;
};

/** struct loc_step - one step of one rank */
struct loc_step {
	uint32_t number;
	int64_t begin_ns; /* wall clock */
	int64_t load_end_ns; /* end of its first data loader stage, 0 = unknown */
	double ms; /* 0 = until the next step begins */
	double forward_ms; /* forward passes, 0 = unknown */
};

struct loc_rank;

/** localize_new - @options: copied. Context: tool. Return: NULL with errno. */
struct localize *localize_new(const struct loc_options *options);
void localize_free(struct localize *loc);

/** localize_rank - find or make a rank; @host, @ip: name ids, may be 0. Return: NULL when out of memory. */
struct loc_rank *localize_rank(struct localize *loc, int32_t rank, uint32_t host, uint32_t ip);

/*
 * Feeding one rank: steps first, in order, then stages, sums and ops in any order; loc_rank_done() ends it and frees
 * what only its own data needed. All return 0 or -ENOMEM.
 */
int loc_rank_step(struct loc_rank *rank, const struct loc_step *step);
int loc_rank_stage(struct loc_rank *rank, uint32_t step, enum loc_kind kind, double ms);
int loc_rank_sum(struct loc_rank *rank, const struct loc_sum *sum);
int loc_rank_op(struct loc_rank *rank, const struct loc_op *op);
/* own time of a step, where the source itself tells it */
void loc_rank_own(struct loc_rank *rank, uint32_t step, double ms);
int loc_rank_done(struct loc_rank *rank);

/** loc_rank_issued - the host began to issue calls up to this serial, though some may not have begun on the device */
void loc_rank_issued(struct loc_rank *rank, uint64_t serial);

/** struct loc_source - what another layer recorded of a rank beyond its peers */
struct loc_source {
	const char *name; /* literal: gc, forward, file I/O, ... */
	uint32_t detail; /* name id: file, peer, thread or function that has most of it; 0 = none */
	double ms; /* per step, more than the peers */
	double share; /* of the lost time */
};

#define LOC_SOURCES 12

/** struct loc_stacks - what the process of a rank that hangs answered when it was asked for its stacks; texts are name ids */
struct loc_stacks {
	int32_t pid; /* as seen here, 0 = not known */
	uint32_t json; /* as `sysTrace_cli stacks --json` prints a process; 0 = none */
	uint32_t note; /* why there are none; 0 = nobody asked, or there are */
};

/** struct loc_finding - one rank that is to blame */
struct loc_finding {
	int32_t rank;
	enum loc_kind kind;
	uint32_t onset_step;
	uint32_t detected_step; /* the step with which the evidence sufficed */
	uint32_t last_step;
	int64_t onset_ns; /* wall clock of onset_step's begin on that rank */
	double lost_ms; /* per slow step */
	double share; /* lost_ms / the step's time */
	double saved_ms; /* what-if: the job's time from onset to last_step less, were only this rank as quick as its peers */
	double saved_share; /* of the job's time in these steps */
	double cost_ms; /* the same with all other findings cured already: what orders the findings */
	double last_share; /* share of the slow steps in which this rank came last in its group */
	unsigned level; /* 1 within its group, 2 its whole group against others, 0 not compared */
	uint32_t op; /* name id of the operation, 0 = stage */
	uint32_t group; /* name id, 0 = compared with all ranks */
	uint32_t last_op; /* hang: name id of the last operation that it began, 0 = not known */
	uint64_t last_serial; /* ... its number in the rank's own count, 0 = not known */
	uint32_t waiting; /* hang: ranks that wait for it directly */
	uint32_t last_stage; /* hang: name id of the last stage of its Python code that ended, 0 = not recorded */
	uint32_t last_stage_step; /* ... the step it was in, 0 = not known */
	int64_t last_stage_ns; /* ... wall clock of its end */
	struct loc_stacks stacks; /* hang: localize_stacks() */
	uint32_t kpi; /* name id of the observation point (documented localiser), 0 = told by kind and op */
	struct loc_source sources[LOC_SOURCES]; /* evidence_find(): largest share first */
	size_t sources_count;
	bool judged; /* evidence was looked for */
	const char *cause; /* literal: a source that explains most of it; NULL = cannot tell */
	double cause_ms; /* per step */
	uint32_t cause_detail; /* name id, as of the source */
	const char *
		next; /* literal: the command that would record more, NULL = all layers that could tell were recorded */
	bool in_time; /* found in the rank's own history, not by comparison */
};

enum loc_verdict { LOC_NO_DATA, LOC_HEALTHY, LOC_FOUND, LOC_CANNOT_TELL };

struct loc_result {
	enum loc_verdict verdict;
	const struct loc_finding *findings;
	size_t findings_count;
	char reason[512]; /* of LOC_NO_DATA and LOC_CANNOT_TELL; else a remark or "" */
	size_t ranks; /* seen */
	uint32_t first_step, last_step; /* compared */
	double step_ms; /* median step */
	int64_t end_ns; /* last thing seen */
};

/** localize_judge - compare all ranks fed. Return: 0 or -ENOMEM; texts and arrays live until localize_free(). */
int localize_judge(struct localize *loc, struct loc_result *result);

/** localize_stacks - put what a rank that hangs answered to the finding with this index; shows in the result that was judged */
void localize_stacks(struct localize *loc, size_t finding, const struct loc_stacks *stacks);

/** localize_rank_at - ranks in rising order, for results. Return: false behind the last. */
bool localize_rank_at(const struct localize *loc, size_t index, int32_t *rank, uint32_t *host, uint32_t *ip);

/** localize_peers - ranks of a group. Return: their count; *ranks valid until localize_free(). */
size_t localize_peers(const struct localize *loc, uint32_t group, const int32_t **ranks);

/**
 * localize_series - what was compared of a rank, one value a step (or a window of the documented localiser)
 * @points: gets an array to be freed with free(), NULL for none
 *
 * Return: its length.
 */
size_t localize_series(const struct localize *loc, int32_t rank, enum loc_kind kind, struct loc_point **points);

/** localize_world - tell the size of the job where it is known, so that missing ranks are noticed */
void localize_world(struct localize *loc, uint32_t world_size);

#endif
