/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What `systrace doctor` found, as a list of findings that cmd_doctor.c prints as text or JSON. doctor_host.c examines
 * the machine, doctor_pid.c one process.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <stddef.h>
#include <sys/types.h>

enum finding_level {
	FINDING_INFO, /* a fact */
	FINDING_OK,
	FINDING_LIMITED, /* works, but not wholly: the text says what and how to change it */
	FINDING_NO /* does not work here: the text says why and what to do */
};

struct finding {
	const char *section; /* "System", kept by reference */
	enum finding_level level;
	char *name;
	char *text;
};

struct diagnosis {
	struct finding *list;
	size_t count, room;
	int failed; /* out of memory: findings are missing */
};

/** diagnosis_add - append a finding; texts are copied. @section: a literal. */
void diagnosis_add(struct diagnosis *diagnosis, const char *section, enum finding_level level, const char *name,
		   const char *format, ...) __attribute__((format(printf, 5, 6)));
void diagnosis_free(struct diagnosis *diagnosis);

/** doctor_host - the machine: system, places, environment, interpreters, what can be recorded. Context: tool. */
void doctor_host(struct diagnosis *diagnosis);

/** doctor_safety - which of the promises of docs/safety.md hold here; each is tried. Context: tool. */
void doctor_safety(struct diagnosis *diagnosis);

/**
 * doctor_pid - one process: loaded or not, its agent's state, its environment
 *
 * Context: tool. Return: 0 = its agent answers, 1 = it does not, 3 = there is no such process (enum cmd_exit).
 */
int doctor_pid(struct diagnosis *diagnosis, pid_t pid);

#endif
