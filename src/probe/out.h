/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Output files of probes: made below the descriptor of a target's dump directory, never by a path of the job's, with the
 * rights and in the name of the job's user (setfsuid), so that a link planted there leads nowhere that user could not
 * go. Appends; a file stays whole between writes. Called by kinds, on the probe's thread.
 */
#ifndef PROBE_OUT_H
#define PROBE_OUT_H

#include "base/err.h"
#include "probe/probe.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROBE_OUT_WRITE (64u * 1024u) /* one write, tail included */
#define PROBE_OUT_TAIL 64u

struct probe_out {
	const struct probe_target *target;
	int fd; /* -1 = not open */
	char name[256]; /* below the dump directory, for messages: "osprobe/os_trace_..." */
	uint64_t at; /* bytes without tail */
	bool empty; /* just made: the head is to be put first */
	char tail[PROBE_OUT_TAIL]; /* closing text that makes the file whole (JSON); "" = none. May be changed between puts */
	size_t used;
	uint8_t buf[PROBE_OUT_WRITE];
	uint64_t bytes; /* written in all */
	uint64_t failures;
	int failed; /* -errno of the last write, 0 = it went well */
};

/** enum probe_out_mode - what to do with a file of that name */
enum probe_out_mode {
	PROBE_OUT_APPEND, /* of this very process (its Origin says so): go on at its end; else rename it and begin anew */
	PROBE_OUT_AFRESH /* files without an Origin (text): always rename an existing one */
};

/**
 * probe_out_open - open <folder>/<stem><suffix> below the target's dump directory, making folder and file
 * @tail: see above; with PROBE_OUT_APPEND an existing file is cut in front of it
 *
 * A file that is there and not ours is renamed <name>.<unix time of its last write>; another host's gets -<hostname>
 * inserted in our name (contract 1, 2). Return: 0 or -errno with @err.
 */
int probe_out_open(struct probe_out *out, const struct probe_target *target, const char *folder, const char *stem,
		   const char *suffix, const char *tail, enum probe_out_mode mode, struct st_err *err);

/** probe_out_put - append, at most PROBE_OUT_WRITE - PROBE_OUT_TAIL bytes that belong together. Return: 0 or -errno: the
 * bytes are not in the file (count them as lost); what was put before them and not yet written neither (see .lost of the caller). */
int probe_out_put(struct probe_out *out, const void *data, size_t bytes);

/** probe_out_write - what was put goes to the file. Return: 0, or -errno; the buffer is empty after either. */
int probe_out_write(struct probe_out *out);

/** probe_out_close - write and close. Idempotent. Return: as probe_out_write(). */
int probe_out_close(struct probe_out *out);

/** probe_out_fd - make and open a file as probe_out_open() does, for a child process (perf, trace-cmd) that writes it
 * itself. Return: descriptor (O_CLOEXEC), or -errno. */
int probe_out_fd(const struct probe_target *target, const char *folder, const char *name, struct st_err *err);

/** probe_out_unmake - close a file of probe_out_fd() and remove it again, if it still has a name in that folder. */
void probe_out_unmake(const struct probe_target *target, const char *folder, int fd);

/** probe_as_user - from here on until probe_as_root() files are made and opened with the target's user's rights. */
void probe_as_user(const struct probe_target *target);
void probe_as_root(void);

#endif
