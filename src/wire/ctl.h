/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The control protocol between sysTrace_cli (or a probe) and an agent, over a Unix stream socket: one framed request,
 * one framed answer, then the connection is closed by the client. A message is a list of texts `key=value`; nothing in
 * it is positional, so neighbouring versions understand each other: unknown keys are ignored, missing ones have their
 * default. Encoding only: sockets belong to agent/ctl_server.c and cli/ctl_client.c.
 *
 * Frame (little endian): u32 magic "sTrC", u16 version, u16 verb, u32 payload bytes (<= CTL_MAX_PAYLOAD), u32 sequence;
 * payload: for each entry u16 key bytes, u32 value bytes, key, value. Keys are [a-z0-9_.]+, values any bytes.
 */
#ifndef WIRE_CTL_H
#define WIRE_CTL_H

#include <stddef.h>
#include <stdint.h>

#define CTL_MAGIC 0x43725473u
#ifndef CTL_VERSION /* tests build neighbours with -DCTL_VERSION=N */
#define CTL_VERSION 1
#endif
#define CTL_FRAME_BYTES 16
#define CTL_MAX_PAYLOAD (256u * 1024u)
#define CTL_MAX_ENTRIES 4096

enum ctl_verb {
	CTL_NONE,
	CTL_ENABLE, /* plugin=NAME and the plugin's keys; answers after capture has begun */
	CTL_DISABLE, /* plugin=NAME; answers after the data was written */
	CTL_STATUS, /* answers with the agent's state, see docs/formats/ctl.md */
	CTL_LIST, /* identity only: cheap */
	CTL_PLUGINS, /* the agent's own plugin table, for CLIs of another version */
	CTL_FLUSH, /* write out what the pool holds */
	CTL_DUMP, /* write the flight recorder's markers */
	CTL_DEBUG, /* what=stats|drop|fault; only when the agent was built with fault points */
	CTL_STACKS, /* from=N; stacks of the threads from the N-th on */
	CTL_ANSWER = 0x8000 /* or-ed to the request's verb */
};

/** struct ctl_msg - a message being built or read; the bytes are the caller's memory */
struct ctl_msg {
	uint8_t *data; /* frame and payload */
	uint32_t room; /* bytes of data */
	uint32_t used; /* frame included */
	int error; /* first error of a ctl_add, -ENOSPC or -EINVAL; ctl_finish returns it */
};

/** ctl_begin - start a message in @data of @room bytes. Context: any. */
void ctl_begin(struct ctl_msg *msg, void *data, uint32_t room, uint16_t verb, uint32_t sequence);

/** ctl_add - append an entry; errors are kept and come out of ctl_finish(). Context: any, no allocation. */
void ctl_add(struct ctl_msg *msg, const char *key, const char *value);

/** ctl_addf - ctl_add with a printf format; the text is cut at 4 KiB. Context: thread, tool. */
void ctl_addf(struct ctl_msg *msg, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** ctl_add_u64 - ctl_add of a decimal number. Context: any. */
void ctl_add_u64(struct ctl_msg *msg, const char *key, uint64_t value);

/** ctl_finish - fill in the payload length. Return: bytes to send, or the first error. */
int ctl_finish(struct ctl_msg *msg);

/** struct ctl_frame - a decoded frame header */
struct ctl_frame {
	uint16_t version;
	uint16_t verb;
	uint32_t payload_bytes;
	uint32_t sequence;
};

/**
 * ctl_frame_decode - check and read the first CTL_FRAME_BYTES bytes
 *
 * Return: 0, -EPROTO (magic), -EPROTONOSUPPORT (version differs from ours by more than one), -EMSGSIZE (too long).
 */
int ctl_frame_decode(const void *data, struct ctl_frame *frame);

/** struct ctl_entry - points into the payload; key and value are not terminated */
struct ctl_entry {
	const char *key;
	const char *value;
	uint32_t key_bytes;
	uint32_t value_bytes;
};

/**
 * ctl_next - walk the entries of a payload
 * @at: position, 0 at first, moved on
 *
 * Return: 1 and *entry, 0 at the end, -EPROTO when the payload is malformed.
 */
int ctl_next(const void *payload, uint32_t bytes, uint32_t *at, struct ctl_entry *entry);

/**
 * ctl_get - value of the first entry with that key, copied and terminated, cut at @room
 *
 * Return: the value's full length, or -ENOENT. A payload checked with ctl_check() first cannot fail otherwise.
 */
int ctl_get(const void *payload, uint32_t bytes, const char *key, char *out, size_t room);

/** ctl_check - is the whole payload well formed (lengths, key characters, at most CTL_MAX_ENTRIES)? 0 or -EPROTO. */
int ctl_check(const void *payload, uint32_t bytes);

/* Keys of every answer: `code` (0 or a negative errno), `text` (reason and next step, or what holds with it). */
#define CTL_KEY_CODE "code"
#define CTL_KEY_TEXT "text"
#define CTL_KEY_PLUGIN "plugin"

#endif
