/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace doctor` without --pid: facts of this machine, each with what follows from it. Nothing is changed; the only
 * programs started are Python interpreters, to ask them for their version.
 */
#include "cli/doctor.h"

#include "base/num.h"
#include "cli/build_info.h"
#include "safe/clock.h"
#include "wire/env_spec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSTEM "System"
#define PLACES "Places"
#define PYTHONS "Python interpreters"
#define PLUGINS "What can be recorded here"
#define VARIABLES "Environment variables"
#define INTERPRETERS_MAX 24
#define INTERPRETER_WAIT_MS 10000

extern char **environ;

/* --- system -------------------------------------------------------------------------------------------------------- */

static void check_kernel(struct diagnosis *d)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	if (major > 5 || (major == 5 && minor >= 10))
		diagnosis_add(d, SYSTEM, FINDING_OK, "kernel", "%s %s", name.release, name.machine);
	else
		diagnosis_add(d, SYSTEM, FINDING_LIMITED, "kernel", "%s %s; 5.10 or newer is what sysTrace is made for",
			      name.release, name.machine);
	diagnosis_add(d, SYSTEM, FINDING_INFO, "C library", "glibc %s", gnu_get_libc_version());
	diagnosis_add(d, SYSTEM, FINDING_INFO, "CPUs", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
}

static void check_library(struct diagnosis *d)
{
	char path[PATH_MAX], plugins[160];

	if (!build_library(path, sizeof(path))) {
		diagnosis_add(d, SYSTEM, FINDING_NO, "agent",
			      "libsysTrace.so is neither beside this program nor in its lib directory");
		return;
	}
	build_agent_plugins(plugins, sizeof(plugins));
	diagnosis_add(d, SYSTEM, FINDING_OK, "agent", "%s, sysTrace " ST_VERSION ", with %s", path,
		      *plugins ? plugins : "no plugins");
}

static void check_user(struct diagnosis *d)
{
	if (geteuid() == 0)
		diagnosis_add(d, SYSTEM, FINDING_OK, "user", "root: every process of this host can be controlled");
	else
		diagnosis_add(d, SYSTEM, FINDING_LIMITED, "user",
			      "not root: only processes of user %u can be controlled", (unsigned)geteuid());
}

/* --- places -------------------------------------------------------------------------------------------------------- */

static const char *remote_name(long type)
{
	static const struct {
		unsigned long magic;
		const char *name;
	} remote[] = {
		{ 0x6969, "NFS" },	  { 0xff534d42, "CIFS" }, { 0xfe534d42, "SMB" },  { 0x65735546, "FUSE" },
		{ 0x0bd00bd0, "Lustre" }, { 0x47504653, "GPFS" }, { 0x00c36400, "Ceph" }, { 0x01021997, "9p" },
	};

	for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
		if (((unsigned long)type & 0xffffffff) == remote[i].magic)
			return remote[i].name;
	return NULL;
}

/*
 * The directory itself, or the nearest one above it that exists. Return: 1 the directory itself exists, 0 it would have
 * to be made, -ENOTDIR a file stands in its way.
 */
static int nearest_dir(const char *path, char *out, size_t room)
{
	struct stat st;
	int whole = 1;

	snprintf(out, room, "%s", path);
	while (stat(out, &st) < 0) {
		char *slash = strrchr(out, '/');

		if (errno == ENOTDIR)
			return -ENOTDIR;
		whole = 0;
		if (!slash || slash == out) {
			snprintf(out, room, "/");
			return 0;
		}
		*slash = '\0';
	}
	return S_ISDIR(st.st_mode) ? whole : -ENOTDIR;
}

/* Can files be made below @path, perhaps after making the directory? */
static void check_dir(struct diagnosis *d, const char *what, const char *path, const char *advice)
{
	char dir[PATH_MAX];
	int exists = nearest_dir(path, dir, sizeof(dir));
	const char *remote;
	struct statfs fs;
	uint64_t free_mb;

	if (exists < 0 || access(dir, W_OK | X_OK) < 0 || statfs(dir, &fs) < 0) {
		diagnosis_add(d, PLACES, FINDING_NO, what, "%s: cannot write to %s: %s; %s", path, dir,
			      strerror(exists < 0 ? -exists : errno), advice);
		return;
	}
	free_mb = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize >> 20;
	remote = remote_name(fs.f_type);
	if (free_mb == 0)
		diagnosis_add(d, PLACES, FINDING_NO, what, "%s: no space there; %s", path, advice);
	else if (remote)
		diagnosis_add(
			d, PLACES, FINDING_LIMITED, what,
			"%s: on a network file system (%s), %llu MiB free; set SYSTRACE_LOCAL_PATH to a local directory",
			path, remote, (unsigned long long)free_mb);
	else
		diagnosis_add(d, PLACES, free_mb < 512 ? FINDING_LIMITED : FINDING_OK, what, "%s%s, %llu MiB free",
			      path, exists ? "" : " (will be made)", (unsigned long long)free_mb);
}

static const char *env_or_default(enum env_id id)
{
	const char *value = getenv(env_specs[id].name);

	return value && *value ? value : env_specs[id].initial;
}

static void check_spool(struct diagnosis *d)
{
	const char *path = env_or_default(ENV_SPOOL_PATH);
	uint64_t want_mb = 8, most_mb;
	struct statfs fs;

	num_u64(env_or_default(ENV_SPOOL_MB), &want_mb);
	if (access(path, W_OK | X_OK) < 0 || statfs(path, &fs) < 0) {
		diagnosis_add(d, PLACES, FINDING_LIMITED, "spool", "%s: %s; records would not survive a SIGKILL", path,
			      strerror(errno));
		return;
	}
	/* the agent takes at most an eighth of what is free */
	most_mb = ((uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize >> 20) / 8;
	if (most_mb < want_mb)
		diagnosis_add(
			d, PLACES, FINDING_LIMITED, "spool",
			"%s: room for %llu MiB of the wanted %llu; free some, or start containers with a larger --shm-size",
			path, (unsigned long long)most_mb, (unsigned long long)want_mb);
	else
		diagnosis_add(d, PLACES, FINDING_OK, "spool", "%s, up to %llu MiB for each process", path,
			      (unsigned long long)want_mb);
}

static void check_places(struct diagnosis *d)
{
	check_dir(d, "output", env_or_default(ENV_DUMP_PATH),
		  "agents fall back to $XDG_STATE_HOME/sysTrace; or set SYSTRACE_DUMP_PATH");
	check_dir(d, "logs", env_or_default(ENV_LOG_PATH),
		  "agents fall back to $XDG_STATE_HOME/sysTrace; or set SYSTRACE_LOG_PATH");
	check_dir(d, "sockets", env_or_default(ENV_SOCKET_DIR),
		  "without sockets nothing can be controlled; set SYSTRACE_SOCKET_DIR");
	check_spool(d);
}

/* --- Python interpreters --------------------------------------------------------------------------------------------- */

struct interpreters {
	char *path[INTERPRETERS_MAX]; /* real paths, each once */
	size_t count;
};

static void add_interpreter(struct interpreters *found, const char *path)
{
	char *real = access(path, X_OK) == 0 ? realpath(path, NULL) : NULL;

	for (size_t i = 0; real && i < found->count; i++) {
		if (strcmp(found->path[i], real) == 0) {
			free(real);
			return;
		}
	}
	if (real && found->count < INTERPRETERS_MAX)
		found->path[found->count++] = real;
	else
		free(real);
}

/* python3 and python3.N of one directory */
static void look_in_dir(struct interpreters *found, const char *dir)
{
	struct dirent *entry;
	char path[PATH_MAX + 256];
	DIR *list = opendir(dir);

	while (list && (entry = readdir(list))) {
		const char *rest = entry->d_name + strlen("python3");

		if (strncmp(entry->d_name, "python3", strlen("python3")) != 0)
			continue;
		if (*rest != '\0' && (*rest != '.' || strspn(rest + 1, "0123456789t") != strlen(rest + 1)))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		add_interpreter(found, path);
	}
	if (list)
		closedir(list);
}

static void look_in_path(struct interpreters *found)
{
	const char *at = getenv("PATH");

	while (at && *at) {
		size_t len = strcspn(at, ":");
		char dir[PATH_MAX];

		if (len > 0 && len < sizeof(dir)) {
			snprintf(dir, sizeof(dir), "%.*s", (int)len, at);
			look_in_dir(found, dir);
		}
		at += len + (at[len] == ':');
	}
}

/* Output of `python -c program`, first line; without sysTrace and without the user's variables. Return: 0 or -errno. */
static int ask_interpreter(const char *path, char *out, size_t room)
{
	static char program[] =
		"import sys, sysconfig, importlib.util as u\n"
		"f = [m for m in ('torch', 'torch_npu', 'mindspore') if u.find_spec(m)]\n"
		"print(sys.implementation.name, '%d.%d.%d' % sys.version_info[:3],\n"
		"      int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))), ','.join(f) or '-', sys.executable)\n";
	char isolated[] = "-I", option[] = "-c", *argv[] = { (char *)path, isolated, option, program, NULL };
	char lang[] = "LC_ALL=C", *clean_env[] = { lang, NULL };
	posix_spawn_file_actions_t actions;
	int fds[2], status = 0, ret;
	size_t used = 0;
	uint64_t end_ns;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	ret = -posix_spawn(&pid, path, &actions, NULL, argv, clean_env);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	if (ret < 0) {
		close(fds[0]);
		return ret;
	}
	end_ns = clock_mono_ns() + INTERPRETER_WAIT_MS * 1000000ull;
	while (used < room - 1 && clock_mono_ns() < end_ns) {
		struct pollfd poll_fd = { .fd = fds[0], .events = POLLIN };
		ssize_t got;

		if (poll(&poll_fd, 1, 100) <= 0)
			continue;
		got = read(fds[0], out + used, room - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fds[0]);
	out[used] = '\0';
	if (clock_mono_ns() >= end_ns)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

/* A wrapper script (pyenv's) is replaced by the interpreter that it starts, unless that one is known already. */
static bool unwrap(struct interpreters *found, size_t n, const char *executable)
{
	char *real = realpath(executable, NULL);
	bool known = false;

	for (size_t i = 0; real && i < found->count && !known; i++)
		known = i != n && strcmp(found->path[i], real) == 0;
	if (!real || known) {
		free(real);
		return !known;
	}
	free(found->path[n]);
	found->path[n] = real;
	return true;
}

static bool is_script(const char *path)
{
	char head[2] = "";
	FILE *file = fopen(path, "r");
	bool script = file && fread(head, 1, 2, file) == 2 && head[0] == '#' && head[1] == '!';

	if (file)
		fclose(file);
	return script;
}

static void judge_interpreter(struct diagnosis *d, struct interpreters *found, size_t n)
{
	char answer[1024], name[32], version[24], frameworks[64], executable[512];
	unsigned major = 0, minor = 0, free_threaded = 0;
	const char *path = found->path[n];
	bool script = is_script(path);

	if (ask_interpreter(path, answer, sizeof(answer)) < 0 ||
	    sscanf(answer, "%31s %23s %u %63s %511[^\n]", name, version, &free_threaded, frameworks, executable) != 5) {
		if (!script) /* a wrapper for a version that is not installed is no interpreter */
			diagnosis_add(d, PYTHONS, FINDING_INFO, path, "does not run, or gives no answer");
		return;
	}
	if (script && !unwrap(found, n, executable))
		return;
	path = found->path[n];
	sscanf(version, "%u.%u", &major, &minor);
	if (strcmp(frameworks, "-") == 0)
		strcpy(frameworks, "no framework");
	if (strcmp(name, "cpython") != 0)
		diagnosis_add(d, PYTHONS, FINDING_NO, path, "%s %s, %s: Python stages and GIL need CPython", name,
			      version, frameworks);
	else if (free_threaded)
		diagnosis_add(d, PYTHONS, FINDING_NO, path, "%s free-threaded, %s: Python stages and GIL stay off",
			      version, frameworks);
	else if (major != 3 || minor < 8 || minor > 13)
		diagnosis_add(d, PYTHONS, FINDING_NO, path, "%s, %s: Python stages and GIL need 3.8 to 3.13", version,
			      frameworks);
	else
		diagnosis_add(d, PYTHONS, FINDING_OK, path, "%s, %s", version, frameworks);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void check_interpreters(struct diagnosis *d)
{
	struct interpreters found = { 0 };

	look_in_path(&found);
	if (found.count == 0)
		diagnosis_add(d, PYTHONS, FINDING_INFO, "none", "no python3 in PATH");
	qsort(found.path, found.count, sizeof(found.path[0]), by_text);
	for (size_t i = 0; i < found.count; i++)
		judge_interpreter(d, &found, i);
	for (size_t i = 0; i < found.count; i++)
		free(found.path[i]);
}

/* --- plugins ------------------------------------------------------------------------------------------------------- */

static bool in_path(const char *program)
{
	const char *at = getenv("PATH");

	for (; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%.*s/%s", (int)strcspn(at, ":"), at, program);
		if (access(path, X_OK) == 0)
			return true;
	}
	return false;
}

/* Is one of these libraries in the loader's cache directories or in LD_LIBRARY_PATH? @names: NULL-terminated */
static const char *find_runtime(const char *const *names)
{
	static const char *const dirs[] = {
		"/usr/lib",
		"/usr/lib64",
		"/usr/local/lib",
		"/usr/local/lib64",
		"/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu",
		"/usr/local/cuda/lib64",
		"/usr/local/cuda/extras/CUPTI/lib64",
		"/usr/local/Ascend/ascend-toolkit/latest/lib64",
		"/usr/local/Ascend/ascend-toolkit/latest/tools/mspti/lib64",
		"/usr/local/Ascend/driver/lib64/driver",
	};
	const char *at = getenv("LD_LIBRARY_PATH");
	char path[PATH_MAX];

	for (; *names; names++) {
		for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
			snprintf(path, sizeof(path), "%s/%s", dirs[i], *names);
			if (access(path, R_OK) == 0)
				return *names;
		}
		for (const char *dir = at; dir && *dir; dir += strcspn(dir, ":"), dir += *dir == ':') {
			snprintf(path, sizeof(path), "%.*s/%s", (int)strcspn(dir, ":"), dir, *names);
			if (access(path, R_OK) == 0)
				return *names;
		}
	}
	return NULL;
}

static void judge_mspti(struct diagnosis *d)
{
	static const char *const mspti[] = { "libmspti.so", NULL };
	static const char *const cupti[] = { "libcupti.so", "libcupti.so.12", "libcupti.so.13", "libcupti.so.11.8",
					     NULL };

	if (build_has_vendor("mspti") && find_runtime(mspti))
		diagnosis_add(d, PLUGINS, FINDING_OK, "MSPTI", "Ascend, by libmspti.so");
	else if (build_has_vendor("cupti") && find_runtime(cupti))
		diagnosis_add(d, PLUGINS, FINDING_OK, "MSPTI", "NVIDIA, by CUPTI");
	else
		diagnosis_add(d, PLUGINS, FINDING_LIMITED, "MSPTI",
			      "collectives of torch.distributed as host markers; %s",
			      build_has_vendor("mspti") || build_has_vendor("cupti")
				      ? "no libmspti.so or libcupti.so in the usual places"
				      : "this build reads no device runtime");
}

static void judge_hbm(struct diagnosis *d)
{
	static const char *const devices[] = { "libascendcl.so", "libcuda.so.1", "libcuda.so", NULL };
	const char *found = find_runtime(devices);

	if (found)
		diagnosis_add(d, PLUGINS, FINDING_OK, "HBM", "device runtime %s", found);
	else
		diagnosis_add(d, PLUGINS, FINDING_NO, "HBM",
			      "no device runtime (libascendcl.so, libcuda.so) in the usual places");
}

/* What the probe of a plugin would need on this machine; NULL = nothing is missing. */
static const char *probe_lacks(enum plugin_id id)
{
	if (id == PLUGIN_CACHEMISS && !in_path("perf"))
		return "perf is not installed";
	if (id == PLUGIN_TRACE && !in_path("trace-cmd"))
		return "trace-cmd is not installed";
	if (geteuid() != 0)
		return "needs root";
	if ((id == PLUGIN_FTRACE || id == PLUGIN_TRACE) && access("/sys/kernel/tracing/trace", F_OK) < 0 &&
	    access("/sys/kernel/debug/tracing/trace", F_OK) < 0)
		return "tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing";
	if ((plugin_specs[id].where & RUNS_IN_PROBE) && id != PLUGIN_CACHEMISS && id != PLUGIN_FTRACE &&
	    id != PLUGIN_TRACE && access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		return "this kernel has no type information (/sys/kernel/btf/vmlinux) for eBPF";
	return NULL;
}

static void judge_plugin(struct diagnosis *d, enum plugin_id id)
{
	const struct plugin_spec *spec = &plugin_specs[id];
	const char *lacks = probe_lacks(id);

	if (spec->where == RUNS_IN_PROBE) {
		if (!build_has_probe(id))
			diagnosis_add(d, PLUGINS, FINDING_NO, spec->name,
				      "recorded by 'systrace probe', which is not in this build%s%s",
				      lacks ? "; besides, " : "", lacks ? lacks : "");
		else
			diagnosis_add(d, PLUGINS, lacks ? FINDING_NO : FINDING_OK, spec->name, "%s",
				      lacks ? lacks : "by the probe");
		return;
	}
	if (!build_has_agent_part(id))
		diagnosis_add(d, PLUGINS, FINDING_NO, spec->name, "the agent of this build is without it");
	else if (id == PLUGIN_MSPTI)
		judge_mspti(d);
	else if (id == PLUGIN_HBM)
		judge_hbm(d);
	else if (id == PLUGIN_MEMORY && (!build_has_probe(id) || lacks))
		diagnosis_add(d, PLUGINS, FINDING_LIMITED, spec->name, "allocations by the agent; no kernel events: %s",
			      build_has_probe(id) ? lacks : "'systrace probe' is not in this build");
	else
		diagnosis_add(d, PLUGINS, FINDING_OK, spec->name, "inside the job, by its agent");
}

/* --- environment ----------------------------------------------------------------------------------------------------- */

static void check_variables(struct diagnosis *d)
{
	for (int id = 0; id < ENV_COUNT; id++) {
		const struct env_spec *spec = &env_specs[id];
		const char *value = getenv(spec->name);
		struct st_err err = { 0 };

		if (value && *value && env_check((enum env_id)id, value, &err) < 0)
			diagnosis_add(d, VARIABLES, FINDING_NO, spec->name, "%s", err.text);
		else if (value && *value)
			diagnosis_add(d, VARIABLES, FINDING_OK, spec->name, "%s (set here): %s", value, spec->help);
		else if (spec->initial)
			diagnosis_add(d, VARIABLES, FINDING_INFO, spec->name, "%s (default): %s", spec->initial,
				      spec->help);
		else
			diagnosis_add(d, VARIABLES, FINDING_INFO, spec->name, "not set: %s", spec->help);
	}
}

void doctor_host(struct diagnosis *diagnosis)
{
	check_kernel(diagnosis);
	check_library(diagnosis);
	check_user(diagnosis);
	check_places(diagnosis);
	doctor_safety(diagnosis);
	check_interpreters(diagnosis);
	diagnosis_add(diagnosis, PLUGINS, FINDING_OK, "always on",
		      "steps, Python stages, data loading, garbage collection, checkpoints, sums of collectives");
	for (int id = 0; id < PLUGIN_COUNT; id++)
		judge_plugin(diagnosis, (enum plugin_id)id);
	check_variables(diagnosis);
}
