/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Line tables of CPython's code objects: lnotab (3.8, 3.9), the table of PEP 626 (3.10), the locations of PEP 657 (3.11 on).
 * Used by pyframes.c, inside hooks.
 */
#ifndef AGENT_STACK_LINES_H
#define AGENT_STACK_LINES_H

#include <stddef.h>
#include <stdint.h>

/**
 * py_line - line of an instruction
 * @minor: of the version 3.minor
 * @byte: gives byte i of the table, or -1 behind its end
 * @first: the code's first line
 * @offset: of the instruction in bytes; negative: the function has not begun
 *
 * Context: hook. Return: the line, 0 = the table gives it none.
 */
int64_t py_line(int minor, int (*byte)(void *arg, size_t i), void *arg, int32_t first, int64_t offset);

#endif
