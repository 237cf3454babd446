/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names of MSPTI CSV files, for those who look for them without opening: rank and address stand in the name alone.
 */
#ifndef TRACE_MARKERS_H
#define TRACE_MARKERS_H

#include <stddef.h>
#include <stdint.h>

/**
 * markers_rank_of_name - rank and address in `<what>-<ip>-<rank>.csv` (also `<what>-<ip>-.<rank>.csv`)
 * @ip: gets the address, "" when there is none; @ip_room may be 0
 *
 * Return: rank or EV_NO_RANK (-1).
 */
int32_t markers_rank_of_name(const char *path, char *ip, size_t ip_room);

#endif
