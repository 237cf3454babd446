/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Does a job still run? Tells a job that hangs from one that is over; called by the service, from its meta files. */
#ifndef ANALYZE_JOB_LIFE_H
#define ANALYZE_JOB_LIFE_H

#include <stdbool.h>

/**
 * job_is_over - did every process of a run that wrote a meta file end?
 * @dump: dump directory with meta/<run>/
 * @run: its id
 *
 * A process counts as ended when its file says so, or when it ran on this boot of this machine and is gone. Without meta
 * files nothing is known, which is not over. Context: tool.
 */
bool job_is_over(const char *dump, const char *run);

#endif
