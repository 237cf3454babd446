/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Threads of the agent's own inside the job's process: made so that the job does not notice them. All signals blocked
 * before the thread exists, named systrace/..., on every CPU the process may use instead of the training core alone,
 * nice 10, with a descriptor table of their own, detached, and stopped with a deadline.
 */
#ifndef AGENT_THREADS_H
#define AGENT_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** enum thread_id - our threads; the slots are static so that their cost can be told after they ended */
enum thread_id {
	THREAD_IO,
	THREAD_CTL,
	THREAD_PY,
	THREAD_LAST /* last.h; shares the job's descriptors */,
	THREAD_HOOK,
	THREAD_COUNT
};

/**
 * thread_start - start one of our threads
 * @run: its body; polls thread_stopping() or sleeps in thread_sleep()
 *
 * Context: any thread that is not inside a hook's guard. Return: 0, -EALREADY while it runs, or pthread_create's error.
 */
int thread_start(enum thread_id id, void (*run)(void));

/** thread_stop - ask it to end; wakes it. Does not wait. Context: any. */
void thread_stop(enum thread_id id);

/** thread_stopping - was it asked to end? Context: the thread itself. */
bool thread_stopping(enum thread_id id);

/**
 * thread_wait_end - wait until it has ended
 * @deadline_ns: CLOCK_MONOTONIC
 *
 * Return: true when it is not running (any more). Context: any.
 */
bool thread_wait_end(enum thread_id id, uint64_t deadline_ns);

/** thread_wake - end its current or next thread_sleep() early. Context: hook (one system call when it sleeps). */
void thread_wake(enum thread_id id);

/** thread_sleep - until woken, or @ns have passed. Context: the thread itself. */
void thread_sleep(enum thread_id id, uint64_t ns);

/** thread_cpu_ns - processor time it has used, from schedstat; 0 when unknown. Context: thread. */
uint64_t thread_cpu_ns(enum thread_id id);

/** thread_tid - its id while it runs, else 0. Context: any. */
uint32_t thread_tid(enum thread_id id);

/** thread_running. Context: any. */
bool thread_running(enum thread_id id);

/** threads_own_files - do our threads have a descriptor table of their own? Known once one of them runs. Context: any. */
bool threads_own_files(void);

/** threads_after_fork - a child has none of them: forget all. Context: fork. */
void threads_after_fork(void);

/**
 * futex_wait, futex_wake - on a word of ours
 * @ns: longest wait
 *
 * Context: thread; futex_wake also hook. errno is not kept.
 */
void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void futex_wake(_Atomic uint32_t *word);

#endif
