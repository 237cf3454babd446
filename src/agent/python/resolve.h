/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * From rows of the list to hooked functions: looks names up in modules that the job has loaded, without importing
 * anything and without running code of the job (no __getattr__, no property, no descriptor of its own).
 */
#ifndef AGENT_PYTHON_RESOLVE_H
#define AGENT_PYTHON_RESOLVE_H

#include "agent/python/func_list.h"

/**
 * resolve_list - look at every row and hook what is new
 *
 * Sets each row's state and reason. Idempotent; notices functions that were replaced since (both stay traced) and
 * functions whose hook somebody else undid. The row "GC" is left to gc.c.
 *
 * Context: systrace/py with the GIL.
 */
void resolve_list(struct func_list *list);

#endif
