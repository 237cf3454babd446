/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Fault points: in builds with -DST_FAULTS=ON the Nth pass of a named point fails as if the call behind it had, so that
 * tests reach every cleanup path. In all other builds FAULT() is false and nothing of this is compiled. Tests arm them
 * with fault_arm(), or from outside with SYSTRACE_FAULT=<name>:<nth>:<errno>[,...].
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#ifdef ST_FAULTS
#include <stdbool.h>
#include <stdint.h>

/** FAULT - is this pass of the point to fail? errno is set then. Context: as the call it stands for. */
#define FAULT(name) fault_hit(name)

bool fault_hit(const char *name);

/**
 * fault_arm - let pass number @nth (1 = the next) of point @name fail with @error
 * @times: how many passes from there on fail; 0 = disarm
 *
 * One point at a time. Context: tests.
 */
void fault_arm(const char *name, uint64_t nth, uint64_t times, int error);

/** fault_names - points passed so far in this process. Return: how many; @names gets at most @room. Context: tests. */
int fault_names(const char **names, int room);

/** fault_passes - how often a point was passed. Context: tests. */
uint64_t fault_passes(const char *name);
#else
#define FAULT(name) false
#endif

#endif
