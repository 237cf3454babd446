/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * I/O entries of io_trace files as events, for the reader of those files and for whoever sums them up. The keys of the
 * arguments are fixed here.
 */
#ifndef TRACE_IO_H
#define TRACE_IO_H

#include "trace/event.h"
#include "wire/messages.h"

/* arguments of EV_IO and EV_SOCKET, in this order; later ones only where they say something */
enum io_arg { IO_ARG_FILE, IO_ARG_BYTES, IO_ARG_ERROR, IO_ARG_STAGE_ID, IO_ARG_MORE };

/** struct io_state - of one file */
struct io_state {
	struct ev_reader *reader;
	uint32_t key_file, key_peer, key_bytes, key_error, key_stage_id, key_offset, key_fd, key_stage, unknown;
	uint32_t calls[IO_TYPE_COUNT]; /* name ids */
	uint32_t stages[STAGE_COUNT];
};

/** io_state_init - intern the keys. Context: tool. Return: 0 or -ENOMEM. */
int io_state_init(struct io_state *state, struct ev_reader *reader);

/** io_event - an entry as an event; texts are interned */
void io_event(struct io_state *state, const struct msg_io *entry, struct event *ev);

#endif
