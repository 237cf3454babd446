/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Does a job still run, and as which processes? Tells a job that hangs from one that is over, and whom to ask where it hangs, from
 * its meta files. Called by the service and localize.
 */
#ifndef ANALYZE_JOB_LIFE_H
#define ANALYZE_JOB_LIFE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * job_is_over - did every process of a run that wrote a meta file end?
 * @dump: dump directory with meta/<run>/
 * @run: its id
 *
 * A process counts as ended when its file says so, or when it ran on this boot of this machine and is gone. Without meta
 * files nothing is known, which is not over. Context: tool.
 */
bool job_is_over(const char *dump, const char *run);

/**
 * job_process - the process of a rank, alive on this boot of this machine
 * @dump, @run: as above
 * @rank: its rank
 * @why: gets why there is none (literal)
 *
 * The number alone is not believed: start time and owner must be those of the process that wrote the file. Context: tool.
 * Return: its id as seen here, 0 = none.
 */
pid_t job_process(const char *dump, const char *run, int32_t rank, const char **why);

#endif
