/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Files that let people check the localiser's work: values of each rank as CSV (debug_data) and drawings of the compared
 * series as SVG (use_plot). Called by diagnose.c.
 */
#ifndef ANALYZE_DEBUG_FILES_H
#define ANALYZE_DEBUG_FILES_H

#include "analyze/localize.h"
#include "analyze/slowrank.h"
#include "base/err.h"

/**
 * debug_csv - rank_<n>_execution.csv and rank_<n>_launch.csv below @dir: metric, step or call, time, ms
 *
 * Context: tool. @dir is made if it is not there. Return: 0, -errno with @err.
 */
int debug_csv(const struct slowrank *sr, const char *dir, struct st_err *err);

/**
 * debug_plots - one SVG per kind of slowness below @dir, a line per rank, the accused ones in red
 *
 * Kinds: those of the findings; of a healthy job compute. Context: tool. Return: 0, -errno with @err.
 */
int debug_plots(const struct localize *loc, const struct loc_result *result, const char *dir, struct st_err *err);

#endif
