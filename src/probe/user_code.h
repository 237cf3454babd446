/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The code that a target runs: which of its mapped files has a symbol, and uprobes on functions in it. Files are opened
 * through /proc/<pid>/map_files, which is what the process has mapped, in a container or replaced since, and no path of
 * the job's is followed. Used by the kinds GIL and Mutex, in builds with libbpf.
 */
#ifndef PROBE_USER_CODE_H
#define PROBE_USER_CODE_H

#include "base/err.h"
#include "probe/elf_find.h"
#include "probe/mappings.h"
#include "probe/probe.h"

struct bpf_link;
struct bpf_program;

/** struct user_code - one file that the process has mapped */
struct user_code {
	int fd; /* -1 = none */
	uint64_t bias; /* what is added to the file's values to get addresses */
	char name[128]; /* last part of its path, for messages */
};

/**
 * user_code_libc - the file with the C library's thread functions, and the functions in it
 * @finds: as for elf_find()
 *
 * Return: how many were found; -ENOTSUP with @err when there is none (static program, musl), -ESRCH, -errno.
 */
int user_code_libc(struct user_code *code, const struct mappings *maps, struct elf_find *finds, size_t count,
		   struct st_err *err);

/** user_code_python - the file with _PyRuntime. @finds[0] must be it. Return: as above. */
int user_code_python(struct user_code *code, const struct mappings *maps, struct elf_find *finds, size_t count,
		     struct st_err *err);

void user_code_close(struct user_code *code);

/**
 * user_code_may_return - can return probes be used in this process?
 *
 * From Linux 6.11 until 6.13 a return probe is a system call that the seccomp filters of containers kill the process
 * for. Return: 0, or -ENOTSUP with @err.
 */
int user_code_may_return(pid_t pid, struct st_err *err);

/**
 * struct user_probe - what holds a probe in place
 *
 * Linux 6.13 and later take probes on many functions with one link, which is quick to end; before that each one is an
 * event of perf, and the kernel waits at the end of each for some ten to hundred milliseconds.
 */
struct user_probe {
	struct bpf_link *link; /* of perf; NULL = none */
	int fd; /* of a link for many functions; 0 = none */
};

/**
 * user_code_many - does this kernel take links for many functions (BPF_TRACE_UPROBE_MULTI and _SESSION)?
 *
 * A program for them is loaded with this attach type, and cannot be used for perf then.
 */
bool user_code_many(uint32_t *multi, uint32_t *session);

/** user_code_attach - a probe at a function of one process, by perf. Return: 0 or -errno with @err. */
int user_code_attach(struct user_probe *probe, const struct user_code *code, const struct elf_find *function, pid_t pid,
		     struct bpf_program *program, bool at_return, struct st_err *err);

/**
 * user_code_attach_many - one program at many functions of one process
 * @type: attach type that the program was loaded with
 * @offsets, @cookies: of @count functions; @cookies may be NULL
 *
 * Return: 0 or -errno with @err; nothing is attached then.
 */
int user_code_attach_many(struct user_probe *probe, const struct user_code *code, const uint64_t *offsets,
			  const uint64_t *cookies, size_t count, pid_t pid, struct bpf_program *program, uint32_t type,
			  bool at_return, struct st_err *err);

/** user_code_detach - take probes out again; those that are none are fine */
void user_code_detach(struct user_probe *probes, size_t count);

/** user_code_namespace - its pid namespace as bpf_get_ns_current_pid_tgid() wants it; zeroes when it cannot be seen */
void user_code_namespace(pid_t pid, uint64_t *dev, uint64_t *ino);

#endif
