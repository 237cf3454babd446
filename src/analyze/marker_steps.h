/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Steps of a rank that has no timeline, from the sequence of its collectives: it repeats itself with each step. Called
 * by rank_steps.c; knows nothing of files.
 */
#ifndef ANALYZE_MARKER_STEPS_H
#define ANALYZE_MARKER_STEPS_H

#include <stddef.h>
#include <stdint.h>

/**
 * marker_steps_find - the period of a sequence
 * @codes: one per operation in the order of the calls; equal for operations of the same kind and size, whatever the group
 * @start: gets the index of the first operation that begins a step: the same place of the period for every rank whose
 *	sequence has the same period
 *
 * A step with many micro-batches repeats itself within; the shortest period that holds for the whole sequence is the
 * step. Context: tool. Return: operations per step, 0 when the sequence has no period (or fewer than four of it).
 */
size_t marker_steps_find(const uint64_t *codes, size_t count, size_t *start);

/**
 * marker_steps_shift - how a rank's steps are to be renumbered so that they are those of another one
 * @begins, @reference: wall clock of the steps' begins, rising; the clocks may differ by any constant
 *
 * Right is the shift for which the begins' differences vary least: the ranks wait for each other in every step. Return: add it
 * to the rank's index to get the index in @reference; 0 when there is nothing to compare.
 */
long marker_steps_shift(const int64_t *begins, size_t count, const int64_t *reference, size_t reference_count);

#endif
