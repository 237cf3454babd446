/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a back end of the recorder is: native.c, tracecmd.c and text.c each export one row; recorder.c chooses one, gives
 * it what all of them need and makes its file appear as a whole.
 */
#ifndef PROBE_FTRACE_BACKEND_H
#define PROBE_FTRACE_BACKEND_H

#include "probe/ftrace/events.h"
#include "probe/ftrace/instance.h"
#include "probe/ftrace/note.h"
#include "probe/ftrace/tracefs.h"
#include "systrace/ftrace.h"

/** struct recording - what back ends share; filled by recorder.c before start */
struct recording {
	struct tracefs fs;
	struct event_list events;
	struct note note;
	uint32_t *cpus; /* recorded ones, ascending */
	size_t cpu_count;
	const char *instance_name; /* NULL = made up */
	uint32_t buffer_kb;
	uint32_t compress; /* enum systrace_ftrace_compress */
	int dir; /* directory of the output */
	const char *part; /* path of the file that becomes the output; made by finish, by trace-cmd at its start */
	void *state; /* the back end's own */
	struct cpu_loss *losses; /* CPUs that lost events, set by recording_losses(); owned */
	size_t loss_count;
};

struct cpu_loss {
	uint32_t cpu;
	struct cpu_stats stats;
};

struct backend {
	uint32_t id; /* enum systrace_ftrace_backend */
	const char *name; /* as on the command line */
	const char *output; /* default name of the file */
	/* Can it work here, as far as looking tells? Return: 0 or -errno with @err. */
	int (*check)(struct recording *rec, struct st_err *err);
	/* Returns once the kernel records. On failure nothing is left behind. */
	int (*start)(struct recording *rec, struct st_err *err);
	/* events, lost, bytes, failed */
	void (*status)(struct recording *rec, struct systrace_ftrace_status *status);
	/* End, write rec->part, put everything back, free rec->state. Figures are filled in also on failure. */
	int (*stop)(struct recording *rec, struct systrace_ftrace_status *status, struct st_err *err);
};

extern const struct backend backend_native, backend_tracecmd, backend_text;

/** recording_part - make rec->part. Return: descriptor or -errno with @err. */
int recording_part(const struct recording *rec, struct st_err *err);

/** recording_losses - the documented warning and a line per CPU, when events were lost. @instance: still there. */
void recording_losses(struct recording *rec, const struct instance *in);

#endif
