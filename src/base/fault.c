/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Fault points; see fault.h. A table of the points passed, filled without a lock: several threads of ours pass them. */
#include "base/fault.h"

#ifdef ST_FAULTS
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS 64

static struct point {
	const char *_Atomic name; /* a literal */
	_Atomic uint64_t passes;
} points[POINTS];

static struct {
	char name[40];
	_Atomic uint64_t first, last; /* passes that fail; 0 = not armed */
	int error;
} armed;

static struct point *find(const char *name)
{
	int i;

	for (i = 0; i < POINTS; i++) {
		const char *empty = NULL, *there = atomic_load(&points[i].name);

		if (!there && atomic_compare_exchange_strong(&points[i].name, &empty, name))
			return &points[i];
		if (!there)
			there = empty;
		if (!strcmp(there, name))
			return &points[i];
	}
	return NULL;
}

static void arm_from_outside(void)
{
	const char *text = getenv("SYSTRACE_FAULT");
	unsigned long long nth;
	char name[40];
	int error;

	if (text && sscanf(text, "%39[^:]:%llu:%d", name, &nth, &error) == 3)
		fault_arm(name, nth, UINT64_MAX / 2, error);
}

bool fault_hit(const char *name)
{
	static _Atomic int asked;
	struct point *point = find(name);
	uint64_t pass;

	if (!atomic_exchange(&asked, 1) && !atomic_load(&armed.last))
		arm_from_outside();
	if (!point)
		return false;
	pass = atomic_fetch_add(&point->passes, 1) + 1;
	if (pass < atomic_load(&armed.first) || pass > atomic_load(&armed.last) || strcmp(armed.name, name) != 0)
		return false;
	errno = armed.error;
	return true;
}

void fault_arm(const char *name, uint64_t nth, uint64_t times, int error)
{
	uint64_t passed = fault_passes(name);

	atomic_store(&armed.last, 0);
	if (!times)
		return;
	snprintf(armed.name, sizeof(armed.name), "%s", name);
	armed.error = error;
	atomic_store(&armed.first, passed + nth);
	atomic_store(&armed.last, passed + nth + times - 1);
}

int fault_names(const char **names, int room)
{
	int i, n = 0;

	for (i = 0; i < POINTS && atomic_load(&points[i].name) && n < room; i++)
		names[n++] = atomic_load(&points[i].name);
	return n;
}

uint64_t fault_passes(const char *name)
{
	int i;

	for (i = 0; i < POINTS && atomic_load(&points[i].name); i++) {
		if (!strcmp(atomic_load(&points[i].name), name))
			return atomic_load(&points[i].passes);
	}
	return 0;
}
#endif
