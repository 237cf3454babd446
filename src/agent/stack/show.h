/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Stacks of all threads of this process, for whoever asks over the control socket: also when the process hangs with the
 * interpreter's lock held. Nothing is stopped, no signal is sent, no lock of the job is taken; what cannot be had is said.
 */
#ifndef AGENT_STACK_SHOW_H
#define AGENT_STACK_SHOW_H

#include "wire/ctl.h"

#include <stdint.h>

/**
 * stack_show - threads from number @first on, in the order of their ids, as many as the answer takes
 *
 * Keys of the answer: docs/formats/ctl.md. Context: control thread, for some seconds at most.
 */
void stack_show(struct ctl_msg *answer, uint32_t first);

#endif
