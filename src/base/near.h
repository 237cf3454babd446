/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * "Did you mean ...?": how far two words are from each other, for messages about names that do not exist. Used for
 * plugins, their parameters, options and commands; no allocation.
 */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stdbool.h>

/** struct near - the best candidate so far; start with { .word = the user's word } */
struct near {
	const char *word;
	const char *best; /* NULL: nothing near enough yet */
	unsigned distance; /* of best */
};

/** near_offer - compare one valid name; case and `_` against `-` do not count. Context: any. */
void near_offer(struct near *near, const char *candidate);

/** near_same - are two names equal but for case and `_` against `-`? Context: any. */
bool near_same(const char *a, const char *b);

#endif
