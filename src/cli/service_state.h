/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What a service tells the outside: a log of `key=value` lines on stderr, and a small file that `--status` reads. Called
 * by systrace-failslow.
 */
#ifndef CLI_SERVICE_STATE_H
#define CLI_SERVICE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct service_state - contents of the status file */
struct service_state {
	char input[256];
	char verdict[32]; /* of the last pass: waiting, normal, failSlow, hang */
	char last_result[4096]; /* newest result file, "" = none */
	uint64_t passes;
	uint64_t steps;
	uint64_t findings; /* result files about something found */
	double cpu_s; /* of all passes */
	int64_t last_pass_unix;
};

/** service_log - one line: time, level, event and what @format gives. @event: one word. */
void service_log(const char *level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** service_put - write the status file (docs: $XDG_RUNTIME_DIR or /run, else the state directory). Return: 0, -errno. */
int service_put(const struct service_state *state);

/** service_show - print the status file, as JSON with @json. Return: true if the service that wrote it is alive. */
bool service_show(bool json);

/** service_gone - remove the status file */
void service_gone(void);

#endif
