/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Programs whose main thread leaves by pthread_exit() end when their last thread does, and the C library counts ours. So
 * when that happens a thread of ours waits for all others of the program's to be gone, and then ends the process the way
 * the C library would: exit(0). Used by life.c.
 */
#ifndef AGENT_LAST_H
#define AGENT_LAST_H

#include <stdbool.h>

/** last_watch - notice when the calling thread, the main one, leaves. Context: constructor; no system call. */
void last_watch(void);

/** last_main_gone - has it left? The agent then starts no more. Context: any. */
bool last_main_gone(void);

#endif
