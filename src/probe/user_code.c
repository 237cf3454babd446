/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See user_code.h. */
#ifdef HAVE_BPF
#include "probe/user_code.h"

#include "base/fault.h"
#include "probe/bpf_load.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#define CLOSERS 8 /* threads that only wait */

void user_code_close(struct user_code *code)
{
	if (code->fd >= 0)
		close(code->fd);
	code->fd = -1;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The file behind a mapping. Return: 0 or -errno. */
static int open_mapping(struct user_code *code, const struct mappings *maps, const struct mapping *row)
{
	char path[80];

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/map_files/%" PRIx64 "-%" PRIx64, maps->pid, row->begin,
		 row->end);
	*code = (struct user_code){ .fd = open(path, O_RDONLY | O_CLOEXEC) };
	snprintf(code->name, sizeof(code->name), "%s", last_part(mappings_text(maps, row)));
	return code->fd < 0 ? -errno : 0;
}

/* Look into the file whose first mapping is this one. Return: symbols found, or -errno. */
static int look(struct user_code *code, const struct mappings *maps, const struct mapping *row, struct elf_find *finds,
		size_t count, struct st_err *err)
{
	uint64_t base = 0;
	int ret = open_mapping(code, maps, row);

	if (ret < 0)
		return err_set(err, ret, "cannot open %s as process %" PRIu32 " has mapped it: %s", code->name,
			       maps->pid, strerror(-ret));
	ret = elf_find(code->fd, finds, count, &base, err);
	code->bias = row->begin - base;
	if (ret <= 0)
		user_code_close(code);
	return ret;
}

/* First mapping of a file whose name begins so. */
static const struct mapping *first_of(const struct mappings *maps, const char *prefix)
{
	for (size_t i = 0; i < maps->count; i++) {
		const char *path = mappings_text(maps, &maps->rows[i]);

		if (path[0] == '/' && maps->rows[i].offset == 0 &&
		    strncmp(last_part(path), prefix, strlen(prefix)) == 0)
			return &maps->rows[i];
	}
	return NULL;
}

int user_code_libc(struct user_code *code, const struct mappings *maps, struct elf_find *finds, size_t count,
		   struct st_err *err)
{
	static const char *const names[] = { "libpthread.so", "libpthread-2.", "libc.so", "libc-2." };
	bool any = false;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct mapping *row = first_of(maps, names[i]);
		int ret = row ? look(code, maps, row, finds, count, err) : 0;

		any |= row != NULL;
		/* from glibc 2.34 on libpthread is there for its name only */
		if (ret < 0 || ret > (int)count / 2)
			return ret;
		user_code_close(code);
		for (size_t k = 0; k < count; k++)
			finds[k] = (struct elf_find){ .name = finds[k].name };
	}
	if (first_of(maps, "ld-musl"))
		return err_set(err, -ENOTSUP, "process %" PRIu32 " uses musl; locks are recorded in glibc only",
			       maps->pid);
	return err_set(err, -ENOTSUP,
		       any ? "the C library of process %" PRIu32 " lacks the lock functions"
			   : "process %" PRIu32
			     " has no shared C library (a static program?), so its locks cannot be seen",
		       maps->pid);
}

int user_code_python(struct user_code *code, const struct mappings *maps, struct elf_find *finds, size_t count,
		     struct st_err *err)
{
	int ret;

	for (size_t i = 0; i < maps->count; i++) {
		const struct mapping *row = &maps->rows[i];
		const char *path = mappings_text(maps, row);

		/* the interpreter is a program, whatever it is called, or libpython */
		if (path[0] != '/' || row->offset != 0 || (i > 0 && strncmp(last_part(path), "libpython", 9) != 0))
			continue;
		ret = look(code, maps, row, finds, count, err);
		if (ret > 0 && finds[0].found && finds[0].bytes)
			return ret;
		user_code_close(code);
		if (ret < 0 && ret != -ENOEXEC)
			return ret;
	}
	return err_set(err, -ENOTSUP, "there is no CPython interpreter in process %" PRIu32, maps->pid);
}

/* --- probes -------------------------------------------------------------------------------------------------------- */

static int seccomp_mode(pid_t pid)
{
	char path[40], line[128];
	int mode = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	in = fopen(path, "re");
	if (!in)
		return 0;
	while (fgets(line, sizeof(line), in))
		if (strncmp(line, "Seccomp:", 8) == 0)
			mode = atoi(line + 8);
	fclose(in);
	return mode;
}

int user_code_may_return(pid_t pid, struct st_err *err)
{
	unsigned major = 0, minor = 0;
	struct utsname uts;

	if (uname(&uts) < 0 || sscanf(uts.release, "%u.%u", &major, &minor) != 2)
		return 0;
#if defined(__x86_64__)
	if (major == 6 && minor >= 11 && minor < 14 && seccomp_mode(pid) != 0)
		return err_set(
			err, -ENOTSUP,
			"process %d has a seccomp filter, which in Linux %u.%u may kill it at a return probe; load the "
			"agent into it (LD_PRELOAD) or use Linux 6.14 or newer",
			(int)pid, major, minor);
#endif
	return 0;
}

static uint32_t enum_value(const struct btf *btf, const struct btf_type *type, const char *name)
{
	for (int i = 0; i < btf_vlen(type); i++)
		if (strcmp(btf__name_by_offset(btf, btf_enum(type)[i].name_off), name) == 0)
			return (uint32_t)btf_enum(type)[i].val;
	return 0;
}

bool user_code_many(uint32_t *multi, uint32_t *session)
{
	struct btf *btf = FAULT("probe.uprobe_many") ? NULL : btf__load_vmlinux_btf();
	int id = btf ? btf__find_by_name_kind(btf, "bpf_attach_type", BTF_KIND_ENUM) : 0;

	*multi = *session = 0;
	if (id > 0) {
		const struct btf_type *type = btf__type_by_id(btf, (uint32_t)id);

		*multi = enum_value(btf, type, "BPF_TRACE_UPROBE_MULTI");
		*session = enum_value(btf, type, "BPF_TRACE_UPROBE_SESSION");
	}
	btf__free(btf);
	/* kernels that have the first alone (6.6 to 6.12) confuse threads with processes or wait as perf does */
	return *multi && *session;
}

static int failed(int ret, const struct user_code *code, const char *function, pid_t pid, struct st_err *err)
{
	char what[256];

	snprintf(what, sizeof(what), "cannot put a uprobe on %s of %s in process %d", function, code->name, (int)pid);
	return bpf_load_failed(ret, what, err);
}

int user_code_attach(struct user_probe *probe, const struct user_code *code, const struct elf_find *function, pid_t pid,
		     struct bpf_program *program, bool at_return, struct st_err *err)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", code->fd);
	probe->link = bpf_program__attach_uprobe(program, at_return, pid, path, function->offset);
	return probe->link ? 0 : failed(-errno, code, function->name, pid, err);
}

/* bpf_attr of BPF_LINK_CREATE as far as it is used; headers of the build machine may be older */
struct many_attr {
	uint32_t program, target;
	uint32_t type, flags;
	uint64_t path, offsets, ref_counts, cookies;
	uint32_t count, many_flags;
	int32_t pid;
	uint32_t reserved[13];
};

#define MANY_RETURN 1u /* BPF_F_UPROBE_MULTI_RETURN */

int user_code_attach_many(struct user_probe *probe, const struct user_code *code, const uint64_t *offsets,
			  const uint64_t *cookies, size_t count, pid_t pid, struct bpf_program *program, uint32_t type,
			  bool at_return, struct st_err *err)
{
	char path[40];
	struct many_attr attr = {
		.program = (uint32_t)bpf_program__fd(program),
		.type = type,
		.path = (uintptr_t)path,
		.offsets = (uintptr_t)offsets,
		.cookies = (uintptr_t)cookies,
		.count = (uint32_t)count,
		.many_flags = at_return ? MANY_RETURN : 0,
		.pid = pid,
	};
	long fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", code->fd);
	fd = syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
	if (fd < 0)
		return failed(-errno, code, "functions", pid, err);
	probe->fd = (int)fd;
	return 0;
}

struct closer {
	struct user_probe *probes;
	size_t count;
	_Atomic size_t next;
};

static void *close_some(void *arg)
{
	struct closer *closer = arg;
	size_t at;

	while ((at = atomic_fetch_add(&closer->next, 1)) < closer->count) {
		struct user_probe *probe = &closer->probes[at];

		bpf_link__destroy(probe->link);
		if (probe->fd)
			close(probe->fd);
		*probe = (struct user_probe){ 0 };
	}
	return NULL;
}

/* The kernel waits after each for whoever may be inside it: several threads let it wait for all of them at once. */
void user_code_detach(struct user_probe *probes, size_t count)
{
	struct closer closer = { .probes = probes, .count = count };
	pthread_t threads[CLOSERS];
	size_t made = 0, some = 0;

	for (size_t i = 0; i < count; i++)
		some += probes[i].link || probes[i].fd;
	while (made < CLOSERS && made + 1 < some && pthread_create(&threads[made], NULL, close_some, &closer) == 0)
		made++;
	close_some(&closer);
	while (made)
		pthread_join(threads[--made], NULL);
}

void user_code_namespace(pid_t pid, uint64_t *dev, uint64_t *ino)
{
	struct stat st;
	char path[40];

	*dev = *ino = 0;
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
	if (stat(path, &st) < 0)
		return;
	*dev = (uint64_t)major(st.st_dev) << 20 | minor(st.st_dev); /* as the kernel keeps it */
	*ino = st.st_ino;
}
#endif
