/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The kinds of probes in this build, one row each; see probe.h. */
#include "probe/probe.h"

#include <errno.h>

extern const struct probe_kind probe_ftrace, probe_trace, probe_cachemiss;
#ifdef HAVE_BPF
extern const struct probe_kind probe_cpu, probe_memory, probe_gil, probe_mutex;
#endif

const struct probe_kind *const probe_kinds[] = {
#ifdef HAVE_BPF
	&probe_cpu,    &probe_memory, &probe_gil,	&probe_mutex,
#endif
	&probe_ftrace, &probe_trace,  &probe_cachemiss, NULL,
};

const struct probe_kind *probe_kind_of(enum plugin_id plugin, struct st_err *err)
{
	for (size_t i = 0; probe_kinds[i]; i++)
		if (probe_kinds[i]->plugin == plugin)
			return probe_kinds[i];
	err_set(err, -ENOTSUP,
		"%s is not in this build: 'systrace probe' records it from outside the job"
#ifndef HAVE_BPF
		", and this one was built without libbpf, clang or bpftool (docs/build.md)"
#endif
		,
		plugin_specs[plugin].name);
	return NULL;
}
