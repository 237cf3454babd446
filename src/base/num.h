/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Whole texts to numbers, strictly: no sign, no blanks, no rest, no locale. Used for options, control messages and
 * environment variables, in the agent as well; hence libc only and no allocation.
 */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** num_u64 - a decimal number. Context: any. Return: 0, -EINVAL (not a number), -ERANGE (above 64 bits). */
int num_u64(const char *text, uint64_t *value);

/** num_u64_n - num_u64 of the first @len bytes of @text. Context: any. */
int num_u64_n(const char *text, size_t len, uint64_t *value);

/** num_sec_ns - seconds, `10` or `2.5`, to nanoseconds (further digits are cut). Context: any. 0, -EINVAL, -ERANGE. */
int num_sec_ns(const char *text, uint64_t *ns);

/** num_bool - 1|0|true|false|on|off|yes|no, case ignored. Context: any. Return: 0 or -EINVAL. */
int num_bool(const char *text, bool *value);

/** num_bytes - a size: `4096`, `64K`, `128M`, `2G` (powers of 1024). Context: any. Return: 0, -EINVAL, -ERANGE. */
int num_bytes(const char *text, uint64_t *bytes);

#endif
