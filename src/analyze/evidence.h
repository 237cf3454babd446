/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What other layers recorded for a rank that was found slow, compared with its peers, and how much of the lost time that
 * explains. Sources are rows of a table in evidence.c; a cause is named only when it explains most of the loss. Called by
 * diagnose.c.
 */
#ifndef ANALYZE_EVIDENCE_H
#define ANALYZE_EVIDENCE_H

#include "analyze/localize.h"
#include "analyze/records.h"

/**
 * evidence_find - fill in the evidence of all findings; of a hang the last stage
 *
 * Reads the timelines of the accused and of a few peers again. Context: tool. Return: 0 or -ENOMEM.
 */
int evidence_find(struct localize *loc, const struct loc_result *result, const struct records *records);

#endif
