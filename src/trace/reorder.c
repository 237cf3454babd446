/* SPDX-License-Identifier: MulanPSL-2.0 */
/* A small ring of events that sorts them as they come; see reorder.h. */
#include "trace/reorder.h"

#include <string.h>

/* A gap stands before the event that it ends at. */
static uint64_t time_of(const struct event *ev)
{
	return ev->kind == EV_LOST ? ev->t_ns + ev->dur_ns : ev->t_ns;
}

static struct event *at(struct reorder *r, uint32_t i)
{
	return &r->ring[i % REORDER_EVENTS];
}

/* It came late: to its place. */
static void move(struct reorder *r)
{
	struct event late = *at(r, r->tail);
	uint64_t t_ns = time_of(&late);
	uint32_t i = r->tail;

	while (i != r->head && time_of(at(r, i - 1)) > t_ns) {
		*at(r, i) = *at(r, i - 1);
		i--;
	}
	*at(r, i) = late;
	if (t_ns < r->last_out_ns)
		r->late++;
	else
		r->moved++;
}

void reorder_put(struct reorder *r)
{
	uint64_t t_ns = time_of(at(r, r->tail));

	if (r->tail != r->head ? time_of(at(r, r->tail - 1)) > t_ns : t_ns < r->last_out_ns)
		move(r);
	r->tail++;
}

bool reorder_take(struct reorder *r, bool all, struct event *ev)
{
	const struct event *oldest = at(r, r->head);

	if (r->tail == r->head || (!all && time_of(at(r, r->tail - 1)) - time_of(oldest) < REORDER_NS))
		return false;
	memcpy(ev, oldest, offsetof(struct event, args) + oldest->nargs * sizeof(oldest->args[0]));
	if (time_of(oldest) > r->last_out_ns)
		r->last_out_ns = time_of(oldest);
	r->head++;
	return true;
}
