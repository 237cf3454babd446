/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Formats of Chrome traces that other programs wrote of a job (read_profile.c), for those who ask what a file is. */
#ifndef TRACE_PROFILE_H
#define TRACE_PROFILE_H

#define PROFILE_KINETO "kineto" /* PyTorch profiler, one rank: steps, loader, collectives of both sides, kernels */
#define PROFILE_JOB "job-timeline" /* all workers of a job; event.rank says whose, event.step of which step */

#endif
