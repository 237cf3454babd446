/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Which object file an address of code lies in, asked from inside hooks. glibc from 2.35 on tells it without a lock
 * (_dl_find_object), always as of now. Older ones do not: there a thread of ours keeps a list, and since what it names may
 * have been unloaded meanwhile, tables of objects are read through process_vm_readv, which cannot fault.
 * Used by the files of this folder.
 */
#ifndef AGENT_STACK_MODULE_H
#define AGENT_STACK_MODULE_H

#include "wire/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct module - an object as mapped here; a copy, the caller's */
struct module {
	uintptr_t begin, end; /* mapped */
	uintptr_t bias; /* address - this = address as the symbol table counts */
	uintptr_t unwind_header; /* .eh_frame_hdr; 0 = none */
	uint64_t identity; /* another object at the same place has another one */
	uint32_t id; /* in records; 0 = the table is full */
	bool direct; /* its tables may be read as they are: it cannot be gone */
};

/** modules_start - find out how to ask. @old_glibc: as if it were one (tests). Context: control thread. Idempotent. */
void modules_start(bool old_glibc);

/** modules_refresh - old glibc: list anew when @generation (hook/got.h) has changed. Context: one thread at a time. */
void modules_refresh(uint64_t generation);

/** modules_direct - are addresses looked up without a list? Context: any. */
bool modules_direct(void);

/**
 * module_find - the object that an address of code lies in
 *
 * With @direct the address must be one that this thread, or one that stands still, returns to or executes.
 * Context: hook. Puts the module's definition into the pool when it is new. Return: false = none.
 */
bool module_find(uintptr_t pc, struct module *m);

/** module_own - is this the library that we are? false for a program that holds the agent (tests). Context: hook. */
bool module_own(uintptr_t pc);

/** struct module_view - bytes of an object's tables: in place, or copied into room */
struct module_view {
	const uint8_t *at, *end;
	uint8_t room[512];
};

/** module_view - look at [@at, @at + @bytes) of @m; cut at its end and at the size of room. Context: hook. false = none. */
bool module_view(const struct module *m, uintptr_t at, size_t bytes, struct module_view *view);

/** struct build_id - and where it lies */
struct build_id {
	uint8_t byte[BUILD_ID_MAX];
	size_t bytes; /* 0 = none */
	uintptr_t at;
};

/** module_build_id - of the object's notes. Context: hook. */
void module_build_id(const struct module *m, struct build_id *id);

#endif
