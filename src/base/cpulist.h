/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Lists of CPUs as the kernel and people write them: `0-3,5`. A walk over ranges, without allocation; callers decide
 * what to do with CPUs that do not exist.
 */
#ifndef BASE_CPULIST_H
#define BASE_CPULIST_H

#include <stdint.h>

/**
 * cpulist_next - next range of a list
 * @at: position in the text, moved on
 *
 * Context: any. Return: 1 and the inclusive range, 0 at the end (also of an empty text), -EINVAL.
 */
int cpulist_next(const char **at, uint32_t *first, uint32_t *last);

/** cpulist_check - is the whole text a list with at least one range? Context: any. Return: 0 or -EINVAL. */
int cpulist_check(const char *text);

#endif
