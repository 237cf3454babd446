/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The thread systrace/io: the only one that touches the dump path. It empties the pool into files every 200 ms while
 * the agent records, keeps the pool from filling before that, and does what other threads ask of it: write out, sync,
 * dump the flight recorder.
 */
#ifndef AGENT_IO_THREAD_H
#define AGENT_IO_THREAD_H

#include "base/err.h"
#include "spool/drain.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * io_announce - tell recover whose records the pool will hold
 *
 * A better Origin follows with the drain; until then, and that is as long as the kernel lets the io thread wait, a
 * process that is killed leaves records which only this names. Context: whoever starts the threads, before the io
 * thread.
 */
void io_announce(void);

/** io_run - body of the thread. */
void io_run(void);

/** io_starved - a thread found no free chunk (pool.starved). Context: hook. */
void io_starved(void);

/** enum io_wish - what can be asked for, or-ed */
enum io_wish {
	IO_FLUSH = 1, /* write what the pool holds now */
	IO_SYNC = 2, /* and fsync the files */
	IO_DUMP = 4, /* write the flight recorder's markers */
	IO_GROW = 8 /* make the pool as large as SYSTRACE_SPOOL_MB allows: event plugins record much */
};

/** io_ask - leave a wish. Context: any thread of ours. Return: ticket for io_done(). */
uint32_t io_ask(unsigned wishes);

/** struct io_result - of the pass that fulfilled a ticket */
struct io_result {
	int code; /* 0 or the first error */
	int dumped; /* markers written by IO_DUMP */
	struct st_err err;
};

/** io_done - was the ticket's wish fulfilled? Context: thread. */
bool io_done(uint32_t ticket, struct io_result *result);

/** struct io_status - what `status` tells; a copy */
struct io_status {
	struct drain_stats drain;
	char dump_path[POOL_PATH]; /* in use; "" before the first file could have been made */
	char file[POOL_FILES][POOL_PATH];
	int files;
	char pool_text[160]; /* "" or why the pool is smaller than it should be */
	uint64_t forgotten; /* records thrown away before recording began */
};

/** io_status - copy it. Context: thread. */
void io_status(struct io_status *status);

/** io_after_fork - forget the parent's drain; its descriptors are not in this process. Context: fork. */
void io_after_fork(void);

#endif
