/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What this build contains, for messages and `systrace doctor`: which plugins the agent was built with (CMake takes them
 * from src/agent/plugin/ and vendor/), whether there is a probe, and where the library of this build lies.
 */
#ifndef CLI_BUILD_INFO_H
#define CLI_BUILD_INFO_H

#include "wire/plugin_spec.h"

#include <stdbool.h>
#include <stddef.h>

/** build_has_agent_part - was the agent built with this plugin? */
bool build_has_agent_part(enum plugin_id id);

/** build_has_vendor - was the agent built with src/agent/vendor/<name>.c? */
bool build_has_vendor(const char *name);

/** build_has_probe - can `systrace probe` of this build record the plugin? */
bool build_has_probe(enum plugin_id id);

/** build_agent_plugins - names of all plugins that the agent was built with, "MSPTI, IO". */
void build_agent_plugins(char *out, size_t room);

/** build_library - path of libsysTrace.so beside this program or in its library directory. Return: is it there? */
bool build_library(char *out, size_t room);

/** build_systrace - path of `systrace` beside this program, as built or installed. Return: 0 or -errno. */
int build_systrace(char *out, size_t room);

#endif
