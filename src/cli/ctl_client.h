/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The client's side of the control protocol: one request to many agents at once, none of which can make the others wait
 * longer than the deadline, whatever it sends or does not send. Used by sysTrace_cli; the protocol is wire/ctl.h.
 */
#ifndef CLI_CTL_CLIENT_H
#define CLI_CTL_CLIENT_H

#include "base/err.h"
#include "cli/targets.h"
#include "wire/ctl.h"

#include <stdbool.h>
#include <stdint.h>

/** struct ctl_call - one agent's part of an exchange; the caller fills .target */
struct ctl_call {
	const struct target *target;
	int fd;
	enum { CALL_CONNECT, CALL_SEND, CALL_HEAD, CALL_BODY, CALL_DONE } state;
	uint32_t at; /* bytes sent or received in this state */
	uint64_t refused_ns; /* CLOCK_MONOTONIC of the first refusal, 0 = none */
	uint8_t head[CTL_FRAME_BYTES];
	struct ctl_frame frame;
	uint8_t *payload; /* the answer, frame.payload_bytes; NULL when there is none. ctl_calls_free() */
	struct st_err err; /* code 0: the agent did it; else why not and what to do, for people */
	char text[512]; /* the agent's remark on a success, "" = none */
};

/**
 * ctl_exchange - send the same request to every call's target and collect the answers
 * @request, @bytes: a finished message
 * @timeout_ns: for all of them together
 *
 * Context: tool. Return: how many failed. Every call ends with .err or with an answer.
 */
size_t ctl_exchange(struct ctl_call *calls, size_t count, const void *request, uint32_t bytes, uint64_t timeout_ns);

/** ctl_call_get - value of a key of the answer, cut to @room; "" when it is missing. Return: is it there? */
bool ctl_call_get(const struct ctl_call *call, const char *key, char *out, size_t room);

void ctl_calls_free(struct ctl_call *calls, size_t count);

#endif
