/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What was built; see build_info.h. ST_AGENT_PLUGINS comes from CMake: file names of src/agent/plugin/, ",io,mutex,". */
#include "cli/build_info.h"

#include "probe/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool build_has_agent_part(enum plugin_id id)
{
	char word[32] = ",";
	size_t len = 1;

	for (const char *at = plugin_specs[id].name; *at && len < sizeof(word) - 2; at++)
		word[len++] = (char)(*at >= 'A' && *at <= 'Z' ? *at + ('a' - 'A') : *at);
	word[len++] = ',';
	word[len] = '\0';
	return (plugin_specs[id].where & RUNS_IN_AGENT) && strstr(ST_AGENT_PLUGINS, word);
}

bool build_has_vendor(const char *name)
{
	char word[32];

	snprintf(word, sizeof(word), ",%s,", name);
	return strstr(ST_AGENT_VENDORS, word) != NULL;
}

bool build_has_probe(enum plugin_id id)
{
	return probe_kind_of(id, NULL) != NULL;
}

void build_agent_plugins(char *out, size_t room)
{
	size_t used = 0;

	out[0] = '\0';
	for (int id = 0; id < PLUGIN_COUNT && used < room; id++)
		if (build_has_agent_part((enum plugin_id)id))
			used += (size_t)snprintf(out + used, room - used, "%s%s", used ? ", " : "",
						 plugin_specs[id].name);
}

int build_systrace(char *out, size_t room)
{
	char self[512];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[len > 0 ? len : 0] = '\0';
	if (!strrchr(self, '/'))
		return -ENOENT;
	*strrchr(self, '/') = '\0';
	snprintf(out, room, "%s/systrace", self);
	return access(out, X_OK) < 0 ? -errno : 0;
}

bool build_library(char *out, size_t room)
{
	static const char *const places[] = { "", "/../lib", "/../lib64", "/../lib/x86_64-linux-gnu",
					      "/../lib/aarch64-linux-gnu" };
	char self[512], path[600];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[len > 0 ? len : 0] = '\0';
	if (strrchr(self, '/'))
		*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char *real;

		snprintf(path, sizeof(path), "%s%s/libsysTrace.so", self, places[i]);
		real = realpath(path, NULL);
		if (real) {
			snprintf(out, room, "%s", real);
			free(real);
			return true;
		}
	}
	snprintf(out, room, "<path>/libsysTrace.so");
	return false;
}
