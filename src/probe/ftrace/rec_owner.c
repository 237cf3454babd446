/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See rec_owner.h. */
#include "probe/ftrace/rec_owner.h"

#include <inttypes.h>
#include <stdio.h>

#define PREFIX "systrace-"

void rec_owner_name(unsigned number, char *name, size_t room)
{
	struct owner self;

	owner_self(&self);
	snprintf(name, room, PREFIX "%" PRIu32 "-%" PRIu64 "-%" PRIu64 "-%u", self.pid, self.start, self.pidns, number);
}

bool rec_owner_gone(const char *name)
{
	struct owner owner = { 0 };
	unsigned number;
	int used = 0;

	if (sscanf(name, PREFIX "%" SCNu32 "-%" SCNu64 "-%" SCNu64 "-%u%n", &owner.pid, &owner.start, &owner.pidns,
		   &number, &used) != 4 ||
	    name[used] || !owner.pid)
		return false;
	return owner_life(&owner) == OWNER_DEAD;
}
