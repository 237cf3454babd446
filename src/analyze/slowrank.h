/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented localiser (user guide 5.3, `algorithm: documented`): one series per rank and observation point, cut
 * into windows that are the same on all ranks, judged by the detectors of metric_config.json. localize_input hands it
 * what it reads; as a judge of analyze/localize it puts its findings there, so that results look alike.
 */
#ifndef ANALYZE_SLOWRANK_H
#define ANALYZE_SLOWRANK_H

#include "analyze/localize.h"
#include "analyze/metric_config.h"
#include "analyze/model_config.h"
#include "trace/event.h"

#define SLOWRANK_NO_STEP UINT32_MAX

/** struct slowrank_call - one side of one operation of one rank */
struct slowrank_call {
	uint32_t name, group; /* name ids; group 0 = unknown */
	uint64_t id; /* joins host and device side, 0 = unknown */
	uint32_t step; /* SLOWRANK_NO_STEP = unknown */
	int64_t begin_ns; /* wall clock */
	int64_t end_ns; /* 0 = did not end */
	bool device;
	bool executed; /* this side is the one whose duration counts */
};

struct slowrank;

/**
 * slowrank_new - a localiser without data
 * @model, @metrics, @session: kept by reference
 *
 * Context: tool. Return: NULL with errno and @err (an observation point that metric_config.json lacks).
 */
struct slowrank *slowrank_new(const struct model_config *model, const struct metric_config *metrics,
			      struct ev_session *session, struct st_err *err);
void slowrank_free(struct slowrank *sr);

/*
 * Feeding, rank after rank; slowrank_rank() begins the next one and ends the one before. All return 0 or -ENOMEM; what no
 * switched-on observation point asks for is ignored.
 */
int slowrank_rank(struct slowrank *sr, int32_t rank);
int slowrank_call(struct slowrank *sr, const struct slowrank_call *call);
int slowrank_stage(struct slowrank *sr, enum loc_kind kind, uint32_t step, int64_t at_ns, double ms);

/** slowrank_options - make a localiser use this judge; *options keeps a reference */
void slowrank_options(struct slowrank *sr, struct loc_options *options);

/**
 * slowrank_each - show all values, metric by metric and rank by rank, for debug_data
 * @show: called with the metric's kind and name, the step or number of the call, its time and value; not 0 ends it
 *
 * Return: what @show returned last.
 */
int slowrank_each(const struct slowrank *sr,
		  int (*show)(void *arg, int32_t rank, enum loc_kind kind, const char *metric, uint32_t key,
			      const struct loc_point *point),
		  void *arg);

#endif
