/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Names for addresses of code, offline: from an object file, told by path and build id, and an address inside it to the
 * function and, where there is DWARF, the source line. Files are looked for in the directories that the user gives, then
 * where distributions put debug files, then at the path itself; one of another build is never used.
 */
#ifndef TRACE_SYMBOLS_H
#define TRACE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct symbols;
struct symbols_file;

/**
 * symbols_new/_free
 * @dirs: of --symbols: a tree with .build-id/, a directory of object files, or a copy of the job's root; kept by reference
 *
 * Context: tool. Return: NULL when out of memory.
 */
struct symbols *symbols_new(const char *const *dirs, size_t count);
void symbols_free(struct symbols *s);

/** symbols_given_only - look in @dirs and nowhere else: paths are those of a container. */
void symbols_given_only(struct symbols *s);

/**
 * symbols_file - an object file; opened when it is first asked
 * @path: as the job saw it
 * @build_id: in hex, "" = it has none, or not known
 *
 * Return: valid until symbols_free(); the same for the same file. NULL when out of memory.
 */
struct symbols_file *symbols_file(struct symbols *s, const char *path, const char *build_id);

/** struct symbol - texts are valid until symbols_free() */
struct symbol {
	const char *function; /* NULL = unknown; C++ names in their written form where libstdc++ is at hand */
	uint64_t offset; /* of the address in it */
	const char *file; /* NULL = unknown; as the compiler was told */
	unsigned int line; /* 0 = unknown */
};

/** symbols_find - @address: as the file's symbol table counts. Return: false = nothing is known of it. */
bool symbols_find(struct symbols_file *file, uint64_t address, struct symbol *symbol);

/** symbols_report - one line for each file of which nothing is known, and why. Context: tool. */
void symbols_report(const struct symbols *s, void (*line)(void *arg, const char *text), void *arg);

#endif
