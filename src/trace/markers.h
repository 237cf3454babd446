/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What is particular to MSPTI CSV files: rank and address stand in the name, and who needs no host side can read faster.
 */
#ifndef TRACE_MARKERS_H
#define TRACE_MARKERS_H

#include "trace/event.h"

#include <stddef.h>
#include <stdint.h>

/**
 * markers_rank_of_name - rank and address in `<what>-<ip>-<rank>.csv` (also `<what>-<ip>-.<rank>.csv`)
 * @ip: gets the address, "" when there is none; @ip_room may be 0
 *
 * Return: rank or EV_NO_RANK (-1).
 */
int32_t markers_rank_of_name(const char *path, char *ip, size_t ip_room);

/** markers_device_only - leave host sides out from here on, about a third faster; of other readers than markers' nothing
 * changes. Context: tool, before the first ev_next(). */
void markers_device_only(struct ev_reader *reader);

/** markers_issued - highest id whose host side began, as far as the file was read with markers_device_only(); 0 = none */
uint64_t markers_issued(const struct ev_reader *reader);

#endif
