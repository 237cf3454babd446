/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * `systrace doctor`, section on safety: which of the promises of docs/safety.md hold on this machine, as this user, below
 * this container's restrictions. Each is tried, not guessed from version numbers; what would change this process is tried
 * in a child, what would leave a file in one without a name.
 */
#include "cli/doctor.h"

#include "cli/compat_openat2.h"
#include "spool/dir.h"
#include "wire/env_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define SAFETY "What jobs are protected from here"
#define FIRST_PIDNS 0xeffffffcu /* the namespace that sees all processes */
#define FEW_DESCRIPTORS 64

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* --- trying things ----------------------------------------------------------------------------------------------------- */

static int try_close_range(const char *arg)
{
	return syscall(SYS_close_range, 3u, ~0u, 2u /* CLOSE_RANGE_UNSHARE */) ? errno : 0;
}

static int try_unshare(const char *arg)
{
	return unshare(CLONE_FILES) ? errno : 0;
}

static int try_wipe(const char *arg)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || madvise(at, page, MADV_WIPEONFORK))
		return errno;
	return 0;
}

/* Memory for the smallest pool, really allocated, in a file without a name. */
static int try_pool(const char *place)
{
	int fd = open(place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	return fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)pool_area_bytes(SPOOL_SMALL_CHUNKS));
}

static int try_openat2(const char *arg)
{
	struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
	};
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	return root < 0 || compat_openat2(root, "/proc/self", &how) >= 0 ? 0 : errno == ELOOP ? 0 : errno;
}

static int try_peek(const char *arg)
{
	char from = 1, to;
	struct iovec local = { &to, 1 }, remote = { &from, 1 };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : errno;
}

/* Run @what in a child: it may close, unshare, and be ended by a filter. Return: 0, its errno, or EPERM when it was ended. */
static int in_child(int (*what)(const char *), const char *arg)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(what(arg) & 0xff);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0)
		return errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

/* --- one finding each ---------------------------------------------------------------------------------------------------- */

static void check_descriptors(struct diagnosis *d)
{
	int code = in_child(try_close_range, NULL);
	struct rlimit limit;

	if (code == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "descriptors", "the agent's threads have a table of their own");
	else if (in_child(try_unshare, NULL) == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "descriptors",
			      "the agent's threads have a table of their own, emptied by hand (no close_range: %s)",
			      strerror(code));
	else
		diagnosis_add(
			d, SAFETY, FINDING_LIMITED, "descriptors",
			"shared with the job (close_range: %s): files are opened for each write and checked before it",
			strerror(code));
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FEW_DESCRIPTORS)
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "open files",
			      "at most %llu: few clients can be served at once; raise it with ulimit -n",
			      (unsigned long long)limit.rlim_cur);
}

static void check_fork(struct diagnosis *d)
{
	int code = in_child(try_wipe, NULL);

	if (code == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "forked children", "recognised whatever way they are forked");
	else
		diagnosis_add(
			d, SAFETY, FINDING_LIMITED, "forked children",
			"recognised after fork() only, not after _Fork and clone (MADV_WIPEONFORK: %s; Linux 4.14 "
			"has it)",
			strerror(code));
}

static const char *spool_place(void)
{
	const char *place = getenv(env_specs[ENV_SPOOL_PATH].name);

	return place && *place ? place : SPOOL_PLACE;
}

static void check_kill(struct diagnosis *d)
{
	const char *place = spool_place();
	int code = in_child(try_pool, place);
	char base[SPOOL_PATH_BYTES];
	struct st_err err = { 0 };
	int fd = spool_base_open(place, geteuid(), false, base, &err);

	if (fd >= 0)
		close(fd);
	if (fd < 0 && fd != -ENOENT)
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "killed jobs",
			      "lose their last records: %s; have it removed by its owner or root", err.text);
	else if (code == 0 || code == EOPNOTSUPP || code == EISDIR) /* no files without a name there */
		diagnosis_add(d, SAFETY, FINDING_OK, "killed jobs", "lose no record: pools are files in %s", place);
	else
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "killed jobs",
			      "lose their last records: no memory for a pool in %s (%s); free some, or set %s", place,
			      strerror(code), env_specs[ENV_SPOOL_PATH].name);
}

static void check_recover(struct diagnosis *d)
{
	struct stat st;

	if (stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PIDNS && geteuid() == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "recovery", "of every user's jobs, in containers too");
	else
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "recovery",
			      "of %s jobs of this pid namespace: root of the host can judge the others",
			      geteuid() ? "this user's" : "all users'");
}

static void check_containers(struct diagnosis *d)
{
	int code = in_child(try_openat2, NULL);

	if (code == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "containers",
			      "are reached without following their links (openat2)");
	else
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "containers",
			      "are not reached from here: openat2: %s (Linux 5.6 has it); run sysTrace_cli inside",
			      strerror(code));
}

static bool is_zero(const char *path)
{
	FILE *file = fopen(path, "r");
	bool zero = file && fgetc(file) == '0';

	if (file)
		fclose(file);
	return zero;
}

static void check_sockets(struct diagnosis *d)
{
	const char *place = getenv(env_specs[ENV_SOCKET_DIR].name);
	struct stat st;

	if (!place || !*place)
		place = env_specs[ENV_SOCKET_DIR].initial;
	if (stat(place, &st) < 0 || !S_ISDIR(st.st_mode))
		return;
	if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "sockets",
			      "others may remove them from %s; set the sticky bit: chmod +t %s", place, place);
	else if (is_zero("/proc/sys/fs/protected_symlinks") || is_zero("/proc/sys/fs/protected_hardlinks"))
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "sockets",
			      "the agent follows no link of others, programs of the job may: "
			      "sysctl fs.protected_symlinks=1 fs.protected_hardlinks=1");
	else
		diagnosis_add(d, SAFETY, FINDING_OK, "sockets", "in %s, for their user and root only", place);
}

static void check_environment(struct diagnosis *d)
{
	int code = in_child(try_peek, NULL);

	if (code == 0)
		diagnosis_add(d, SAFETY, FINDING_OK, "late environment", "is read without a risk for the job");
	else
		diagnosis_add(d, SAFETY, FINDING_LIMITED, "late environment",
			      "is read through a pipe, which needs two free descriptors (process_vm_readv: %s)",
			      strerror(code));
}

static void check_filter(struct diagnosis *d)
{
	char line[128], mode = '0';
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "Seccomp: %c", &mode);
	if (file)
		fclose(file);
	if (mode != '0')
		diagnosis_add(d, SAFETY, FINDING_INFO, "seccomp",
			      "a filter is on here: the above holds for jobs below the same one");
}

void doctor_safety(struct diagnosis *diagnosis)
{
	check_descriptors(diagnosis);
	check_fork(diagnosis);
	check_kill(diagnosis);
	check_recover(diagnosis);
	check_containers(diagnosis);
	check_sockets(diagnosis);
	check_environment(diagnosis);
	check_filter(diagnosis);
}
