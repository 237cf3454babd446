/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Feeds the localiser from recorded files, rank after rank; called by cmd_localize. */
#ifndef ANALYZE_LOCALIZE_INPUT_H
#define ANALYZE_LOCALIZE_INPUT_H

#include "analyze/localize.h"
#include "analyze/records.h"

/**
 * localize_feed - read the records of every rank into @loc
 * @records: as records_find() left them
 *
 * Context: tool. Memory: the records of one rank at a time and what localize keeps. Return: 0 or -ENOMEM.
 */
int localize_feed(struct localize *loc, const struct records *records);

#endif
