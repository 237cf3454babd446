/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Local time for file names, inside the job: the C library's localtime_r reads the job's TZ and takes a lock that a child
 * forked meanwhile would never get. This reads the zone file itself.
 */
#ifndef SPOOL_LOCAL_TIME_H
#define SPOOL_LOCAL_TIME_H

#include <stdint.h>

/** struct local_time - a moment as clocks on the wall show it */
struct local_time {
	int64_t offset_s; /* east of Greenwich */
	int year;
	unsigned int month, day; /* from 1 */
	unsigned int hour;
};

/**
 * local_time - by the zone that the process was started with (TZ in /proc/self/environ), else the machine's
 *
 * Context: thread; reads two files the first time, keeps no descriptor. Without any zone: UTC.
 */
void local_time(int64_t unix_s, struct local_time *out);

/** local_time_offset - the same for a zone: `Europe/Berlin`, `:/path`, `CST-8`; NULL = the machine's. Return: seconds. */
int64_t local_time_offset(const char *zone, int64_t unix_s);

#endif
