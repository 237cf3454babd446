/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The poll loop behind probe_watch(); only run.c turns it. */
#ifndef PROBE_LOOP_H
#define PROBE_LOOP_H

/** loop_once - wait up to @timeout_ms for a watched descriptor and call those that are ready. Context: probe's thread. */
void loop_once(int timeout_ms);

#endif
