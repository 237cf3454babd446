/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The environment table; see env_spec.h. */
#include "wire/env_spec.h"

#include "base/num.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct env_spec env_specs[ENV_COUNT] = {
	[ENV_DUMP_PATH] = { "SYSTRACE_DUMP_PATH", ENV_TYPE_PATH, "/home/sysTrace", NULL,
			    "directory of all output; if it cannot be made: $XDG_STATE_HOME/sysTrace, said once in the log" },
	[ENV_LOG_PATH] = { "SYSTRACE_LOG_PATH", ENV_TYPE_PATH, "/var/log/sysTrace", NULL,
			   "directory of the agents' log files; same rule when it cannot be made" },
	[ENV_LOG_LEVEL] = { "SYSTRACE_LOG_LEVEL", ENV_TYPE_WORD, "INFO", "DEBUG,INFO,WARN,ERROR,FATAL",
			    "lowest severity that is logged" },
	[ENV_FORMAT] = { "SYSTRACE_FORMAT", ENV_TYPE_WORD, ST_DEFAULT_FORMAT, "pb,json",
			 "format of timeline, I/O and memory files; default is the build's --mode" },
	[ENV_PYTHON_TRACING] = { "SYSTRACE_PYTHON_TRACING", ENV_TYPE_WORD, ST_DEFAULT_PYTHON_TRACING,
				 "on,off,1,0,true,false",
				 "record Python stages; default is the build's --python-tracing" },
	[ENV_PYFUNC_LIST] = { "SYSTRACE_PYFUNC_LIST", ENV_TYPE_PATH, NULL, NULL,
			      "file with the Python functions to record; default: the built-in list" },
	[ENV_SOCKET_DIR] = { "SYSTRACE_SOCKET_DIR", ENV_TYPE_PATH, "/tmp", NULL,
			     "directory of the control sockets sysTrace_<pid>.sock" },
	[ENV_SPOOL_PATH] = { "SYSTRACE_SPOOL_PATH", ENV_TYPE_PATH, "/dev/shm", NULL,
			     "local memory file system for the pool; records there survive a SIGKILL" },
	[ENV_SPOOL_MB] = { "SYSTRACE_SPOOL_MB", ENV_TYPE_U64, "8", NULL,
			   "largest pool of a process in MiB; at most 1/8 of what the file system has free" },
	[ENV_LOCAL_PATH] = { "SYSTRACE_LOCAL_PATH", ENV_TYPE_PATH, NULL, NULL,
			     "directory on a local disk for output while the dump path is remote or slow" },
	[ENV_MAX_MB] = { "SYSTRACE_MAX_MB", ENV_TYPE_U64, "2048", NULL,
			 "output of one rank in MiB; beyond it the oldest segment is removed" },
	[ENV_BUDGET_PCT] = { "SYSTRACE_BUDGET_PCT", ENV_TYPE_PCT, "1", NULL,
			     "share of the process's time that event plugins may cost, in per cent" },
	[ENV_HOST_IP] = { "SYSTRACE_HOST_IP", ENV_TYPE_TEXT, NULL, NULL,
			  "address in the names of MSPTI files; default: first IPv4 of the default route's interface" },
	[ENV_RUN_ID] = { "SYSTRACE_RUN_ID", ENV_TYPE_TEXT, NULL, NULL,
			 "name of this run, the same on all ranks; default: from the launcher's variables" },
	[ENV_ENABLE] = { "SYSTRACE_ENABLE", ENV_TYPE_WORD, NULL, "1,0,on,off,true,false",
			 "1: start at once in every process; 0: never; unset: when a framework or device runtime comes" },
	[ENV_PLUGINS] = { "SYSTRACE_PLUGINS", ENV_TYPE_TEXT, NULL, NULL,
			  "plugins on from the start, as on the command line: \"IO;MSPTI event=marker\"" },
};

const char *const env_rank_names[] = { "RANK",	       "RANK_ID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
				       "SLURM_PROCID", NULL };
const char *const env_local_rank_names[] = {
	"LOCAL_RANK",	 "DEVICE_ID", "ASCEND_DEVICE_ID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
	"SLURM_LOCALID", NULL
};
const char *const env_world_names[] = { "WORLD_SIZE", "RANK_SIZE",    "OMPI_COMM_WORLD_SIZE",
					"PMI_SIZE",   "SLURM_NTASKS", NULL };

int env_word(enum env_id id, const char *value)
{
	const char *words = env_specs[id].words;
	size_t len = strlen(value);
	int n;

	for (n = 0; words; n++) {
		const char *end = strchrnul(words, ',');

		if ((size_t)(end - words) == len && !strncasecmp(words, value, len))
			return n;
		words = *end ? end + 1 : NULL;
	}
	return -EINVAL;
}

static bool pct_valid(const char *value)
{
	char *end;
	double number = strtod(value, &end);

	return end != value && !*end && number > 0 && number <= 100;
}

int env_check(enum env_id id, const char *value, struct st_err *err)
{
	const struct env_spec *spec = &env_specs[id];
	uint64_t number;

	switch (spec->type) {
	case ENV_TYPE_PATH:
		if (*value == '/')
			return 0;
		return err_set(err, -EINVAL, "%s='%s' is not an absolute path", spec->name, value);
	case ENV_TYPE_WORD:
		if (env_word(id, value) >= 0)
			return 0;
		return err_set(err, -EINVAL, "%s='%s': it is one of %s", spec->name, value, spec->words);
	case ENV_TYPE_U64:
		if (!num_u64(value, &number) && number > 0)
			return 0;
		return err_set(err, -EINVAL, "%s='%s' is not a positive whole number", spec->name, value);
	case ENV_TYPE_PCT:
		if (pct_valid(value))
			return 0;
		return err_set(err, -EINVAL, "%s='%s' is not a number above 0 and at most 100", spec->name, value);
	case ENV_TYPE_TEXT:
		break;
	}
	return 0;
}
