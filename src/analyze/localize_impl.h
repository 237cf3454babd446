/* SPDX-License-Identifier: MulanPSL-2.0 */
/* State shared by the localize_*.c files; nobody else includes it. Times are floats in ms, a missing one is NAN. */
#ifndef ANALYZE_LOCALIZE_IMPL_H
#define ANALYZE_LOCALIZE_IMPL_H

#include "analyze/localize.h"

/** struct loc_cell - one rank in one step */
struct loc_cell {
	int64_t begin_ns;
	float ms; /* whole step */
	float own; /* outside collectives, loader and checkpoints */
	float own_short; /* the part of own before the half of the ops that have the shorter ways */
	float spike; /* what the longest way has above the second longest, both above their usual: a pause, no slowness */
	float load;
	float forward;
	float ckpt;
};

/** struct loc_link_op - one pairwise exchange */
struct loc_link_op {
	uint32_t index; /* step x 64 + place in the step, equal on both ends */
	int64_t begin_ns, end_ns;
};

struct loc_links {
	struct loc_link_op *ops;
	size_t count, room;
	uint32_t group;
	uint32_t name;
};

struct loc_rank {
	struct localize *loc;
	int32_t rank;
	uint32_t host, ip;
	uint32_t first_step; /* number of cells[0] */
	struct loc_cell *cells;
	size_t cells_count, cells_room;
	int64_t *load_end; /* per cell, until done */
	float *sums; /* ms in collectives per cell, until done; NULL = no sums */
	struct loc_op *ops; /* until done */
	size_t ops_count, ops_room;
	struct loc_links links;
	uint32_t inner; /* group it meets most often, 0 = none */
	uint32_t inner_op;
	uint64_t inner_meets;
	uint32_t pipeline; /* ranks that exchange in pairs, also through others, have the same number; 0 = none */
	uint32_t class_root; /* ranks of the same work have the same number (own time was judged) */
	uint64_t progress; /* aligned index of the last op begun, plus 1 */
	uint32_t last_op; /* name id: the op at progress */
	uint64_t last_serial; /* its serial, 0 = unknown */
	uint32_t pending; /* group of an op that did not end */
	uint64_t issued; /* serial of the last op that the host issued; 0 = not known */
	uint64_t issued_at; /* that op's index, aligned like progress */
	struct loc_issue {
		uint64_t at; /* aligned like progress */
		uint32_t group; /* 0 = none */
	} issue[2]; /* the first op issued that did not begin, and the last one issued, if it did not end */
	int64_t last_ns;
	bool done;
};

#define LOC_PLACES 64 /* ops of one group and step whose transfer is kept; of more, the first ones */

/** struct loc_group - one communication group */
struct loc_group {
	uint32_t name;
	uint32_t op; /* its most recent operation */
	uint64_t count; /* elements of that */
	int32_t *members;
	size_t members_count;
	uint64_t *meets; /* per member: calls */
	bool pairwise;
	bool crosses; /* two members are of one pipeline: they need not do the same work */
	float *transfer; /* [step - base][stride]: shortest duration over members = transfer without waiting */
	uint16_t *seen; /* members that contributed to each transfer */
	size_t stride;
	size_t steps;
	uint32_t base;
	uint32_t places; /* highest place used + 1 */
};

struct localize {
	struct loc_options options;
	uint32_t world;
	struct loc_rank **ranks; /* rising after judge begins */
	size_t ranks_count;
	struct loc_group *groups;
	size_t groups_count;
	bool grouped; /* loc_find_teams() was here */
	uint32_t *group_slots; /* open addressing, index + 1 */
	size_t group_slots_count;
	struct loc_finding *findings;
	size_t findings_count;
	/* grid of the judge: steps first .. first + steps - 1 that most ranks have */
	uint32_t first;
	size_t steps;
	double step_ms;
	double *scale; /* per step of the grid: time of a step of that much work, ms */
	int64_t end_ns;
};

struct loc_group *loc_group_find(const struct localize *loc, uint32_t name);
/* find or make; NULL when out of memory */
struct loc_group *loc_group_get(struct localize *loc, uint32_t name);
/* note that a rank took part; calls: how often */
int loc_group_join(struct loc_group *group, int32_t rank, uint64_t calls);
/* a member's duration of one op; place counts the group's ops within the step */
int loc_group_transfer(struct loc_group *group, uint32_t step, size_t place, float ms);

struct loc_rank *loc_rank_by_number(const struct localize *loc, int32_t rank);
/* the cell of a step, or NULL */
const struct loc_cell *loc_cell_at(const struct loc_rank *rank, uint32_t step);
/* ranks whose collectives were recorded, so that they can be compared with others */
size_t loc_comparable(const struct localize *loc);
int loc_find(struct localize *loc, const struct loc_finding *finding);

/* which ranks are of one pipeline, and the group each one meets most often among those of the same work. 0 or -ENOMEM. */
int loc_find_teams(struct localize *loc);
int loc_judge_compute(struct localize *loc);
int loc_judge_stages(struct localize *loc);
int loc_judge_groups(struct localize *loc);
int loc_judge_links(struct localize *loc);
int loc_judge_hang(struct localize *loc);
/* cost of each finding, and their order by it; 0 or -ENOMEM */
int loc_what_if(struct localize *loc);
/* 1 and @reason when the job as a whole became slow, 0 if not, -ENOMEM */
int loc_judge_whole(const struct localize *loc, char *reason, size_t room);

/** struct loc_scan - one kind of excess of many like subjects (ranks, groups, links), searched by loc_scan_run() */
struct loc_scan {
	double **excess; /* [subject][step of the grid]: share of the step's time; NAN = unknown */
	double **steady; /* the same without single pauses, for the shortest window; NULL = excess */
	const uint32_t *team; /* per subject: equal for those that were compared with each other; NULL = all of them */
	size_t subjects;
	size_t steps;
	double floor; /* smaller shares are not reported */
	double noise_factor;
	double step_noise; /* known noise of one step, 0 = measured per subject */
	bool changes; /* also look for subjects that got worse against their own past */
};

struct loc_hit {
	bool hit;
	size_t onset, last, detected; /* steps of the grid */
	double share; /* mean of the slow steps */
};

/* search windows of three lengths; hits: one per subject. Return: 0 or -ENOMEM */
int loc_scan_run(const struct loc_scan *scan, struct loc_hit *hits);

/* subjects x steps of NAN, one block freed with loc_grid_free(); NULL when out of memory */
double **loc_grid_new(size_t subjects, size_t steps);
void loc_grid_free(double **grid);

/* lower quartile of the known ones of count values; NAN if fewer than two are known. values are reordered */
double loc_reference(double *values, size_t count);

#endif
