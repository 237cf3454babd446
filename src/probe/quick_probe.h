/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Where in a function of x86_64 a uprobe is quick. The kernel executes the instruction under a uprobe out of line and takes a
 * second trap behind it, which costs a virtual machine some microseconds, but it emulates jumps and pushes. Many functions
 * begin with a few instructions that only look at their argument, and one of those follows. Used by the kind Mutex.
 */
#ifndef PROBE_QUICK_PROBE_H
#define PROBE_QUICK_PROBE_H

#include <stddef.h>
#include <stdint.h>

/**
 * quick_probe - how many bytes behind the beginning of a function a probe is as good and quicker
 * @code: the function
 * @bytes: of it
 *
 * Up to there no memory and neither the first argument (rdi) nor the stack pointer is written, and nothing jumps there: who
 * passes it comes from the beginning. Context: any. Return: 0 = at its beginning.
 */
size_t quick_probe(const uint8_t *code, size_t bytes);

#endif
