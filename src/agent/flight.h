/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The flight recorder: the last collectives of this process, kept in the pool's ring whether or not markers are being
 * written, and those that have not returned yet. steps.c fills it; whoever answers CTL_DUMP calls flight_put_open() and
 * then lets spool/ write the ring.
 */
#ifndef AGENT_FLIGHT_H
#define AGENT_FLIGHT_H

#include "agent/stage.h"
#include "wire/record.h"

#define FLIGHT_SPAN_NS 60000000000ull /* how far back a dump looks */

/**
 * flight_enter - a collective began
 * @frame: identifies the call until flight_leave()
 * @call: copied
 *
 * Context: hook with the GIL held. More than 32 open calls at once are not followed.
 */
void flight_enter(const struct stage_frame *frame, const struct comm_flight *call);

/** flight_leave - it returned; @call goes into the ring. Context: hook with the GIL held. */
void flight_leave(const struct stage_frame *frame, const struct comm_flight *call);

/**
 * flight_put_open - put the calls that are running now into the ring, marked FLIGHT_OPEN
 *
 * So that the dump of a hung job names the operation it hangs in. Needs no GIL. Context: thread.
 * Return: how many.
 */
int flight_put_open(void);

#endif
