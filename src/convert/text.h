/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What the tables of the convert commands have in common: io_text.h, gil_text.h, lock_text.h. */
#ifndef CONVERT_TEXT_H
#define CONVERT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/** struct text_options - how tables are printed */
struct text_options {
	size_t most; /* rows of long tables (files, locks, pairs), those with the most time first; JSON has all */
	bool json; /* one object instead of tables */
};

#endif
