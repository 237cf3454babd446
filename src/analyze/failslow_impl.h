/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What failslow.c gives to its algorithms and asks of them; for the files failslow_*.c only. */
#ifndef ANALYZE_FAILSLOW_IMPL_H
#define ANALYZE_FAILSLOW_IMPL_H

#include "analyze/failslow.h"

/** struct failslow_algorithm - one row of the table */
struct failslow_algorithm {
	const char *name;
	/* state of the algorithm, freed with free(); NULL with errno */
	void *(*start)(const struct failslow_params *params);
	/* one step: 0, -ENOMEM; findings go to failslow_report() */
	int (*step)(struct failslow *fs, void *state, const struct failslow_step *step);
	/* time of a normal step as far as known, else 0 */
	double (*normal_ms)(const void *state);
	/* the last steps were normal */
	bool (*is_quiet)(const void *state);
};

extern const struct failslow_algorithm failslow_documented;
extern const struct failslow_algorithm failslow_robust;

/** failslow_report - an algorithm's finding; steps come in rising order. Return: 0 or -ENOMEM. */
int failslow_report(struct failslow *fs, const struct failslow_anomaly *anomaly);

#endif
