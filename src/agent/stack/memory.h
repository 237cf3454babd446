/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reading memory of this process that may not be there: a system call instead of a fault. For the slow paths of stack
 * captures; errno is not kept.
 */
#ifndef AGENT_STACK_MEMORY_H
#define AGENT_STACK_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** memory_copy - @bytes from @at, all or nothing. Context: hook (one system call). Return: false where it cannot be read. */
bool memory_copy(void *to, uintptr_t at, size_t bytes);

/** memory_copy_some - as many of @bytes, at most 256 KiB, as can be read from the front. Context: hook. Return: bytes. */
size_t memory_copy_some(void *to, uintptr_t at, size_t bytes);

/** memory_readable - can the 8 bytes at @at be read? Works where process_vm_readv is forbidden. Context: hook. */
bool memory_readable(uintptr_t at);

#endif
