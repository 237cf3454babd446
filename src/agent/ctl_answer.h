/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What the agent answers to each verb of the control protocol (docs/formats/ctl.md). ctl_server.c owns sockets and
 * deadlines and calls this with whole requests; nothing here waits.
 */
#ifndef AGENT_CTL_ANSWER_H
#define AGENT_CTL_ANSWER_H

#include "agent/io_thread.h"
#include "wire/ctl.h"

/** struct ctl_wait - an answer that has to wait for the io thread */
struct ctl_wait {
	bool waits;
	uint32_t ticket;
	uint16_t verb;
	struct st_err said; /* what the answer will say on success */
};

/**
 * ctl_answer - carry out one request
 * @frame, @payload: checked by the caller (ctl_frame_decode); the payload is not
 * @answer: begun by this function in the caller's memory; complete unless wait->waits
 *
 * Context: the control thread.
 */
void ctl_answer(const struct ctl_frame *frame, const void *payload, struct ctl_msg *answer, struct ctl_wait *wait);

/** ctl_answer_late - the io thread is done (or @result is NULL: it is not, the deadline has passed) */
void ctl_answer_late(const struct ctl_frame *frame, const struct ctl_wait *wait, const struct io_result *result,
		     struct ctl_msg *answer);

#endif
