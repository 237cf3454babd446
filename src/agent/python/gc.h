/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Garbage collections of the main interpreter, through a C callable in gc.callbacks.
 */
#ifndef AGENT_PYTHON_GC_H
#define AGENT_PYTHON_GC_H

/** gc_attach - put our callable into gc.callbacks if it is not there (code of the job may have cleared the list).
 * Context: systrace/py with the GIL. Return: NULL, or why it cannot be (static text). */
const char *gc_attach(void);

#endif
