/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Feeds the localiser from recorded files, rank after rank; called by cmd_localize. */
#ifndef ANALYZE_LOCALIZE_INPUT_H
#define ANALYZE_LOCALIZE_INPUT_H

#include "analyze/localize.h"
#include "analyze/records.h"
#include "analyze/slowrank.h"

/** struct localize_also - more for the input to do; members may be NULL */
struct localize_also {
	struct slowrank *documented; /* gets the same records */
	const struct model_config *config; /* groups of ranks whose records name none */
};

/**
 * localize_feed - read the records of every rank into @loc
 * @records: as records_find() left them
 * @also: may be NULL
 *
 * Context: tool. Memory: the records of one rank at a time and what localize keeps. Return: 0 or -ENOMEM.
 */
int localize_feed(struct localize *loc, const struct records *records, const struct localize_also *also);

#endif
