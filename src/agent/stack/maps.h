/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The object files of this process by /proc/self/maps: without the loader, whose lock a thread that hangs may hold, and
 * read through the kernel, since other threads may unload them at any time. Used by show.c, on the control thread.
 */
#ifndef AGENT_STACK_MAPS_H
#define AGENT_STACK_MAPS_H

#include "agent/stack/module.h"

/** maps_read - read them anew. Context: control thread. Return: 0 or -errno. */
int maps_read(void);

/** maps_free - forget them. Context: control thread. */
void maps_free(void);

/** maps_find - as module_find(); @m->id is the object's number from 1. Context: control thread, after maps_read(). */
bool maps_find(uintptr_t pc, struct module *m);

/** maps_path - of an object's number; "" = none */
const char *maps_path(uint32_t id);

/** maps_build_id - of an object's number. Context: control thread. */
void maps_build_id(uint32_t id, struct build_id *build_id);

#endif
