/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What readers need of a session beyond trace/event.h: numbering of the files read together, and counts. Names are kept
 * in blocks that never move, ids are found by open addressing; nothing is freed before the session is.
 */
#ifndef TRACE_SESSION_H
#define TRACE_SESSION_H

#include "trace/event.h"

/** ev_source_add - number of a file read in this session (event.source); copies @path. Return: 0.., 65535 = all others. */
uint16_t ev_source_add(struct ev_session *session, const char *path);

/** ev_source_path - path of event.source, "" if unknown; valid until the session is freed */
const char *ev_source_path(const struct ev_session *session, uint16_t source);

/** ev_text_len - bytes of a name, which may hold NULs */
size_t ev_text_len(const struct ev_session *session, uint32_t id);

/** ev_name_count - ids 1.. below this are in use; ids are dense, so that tools may keep arrays by name id */
uint32_t ev_name_count(const struct ev_session *session);

/** ev_namez - ev_name() of a terminated text; NULL is the empty text, id 0 */
uint32_t ev_namez(struct ev_session *session, const char *text);

struct stacks;

/** ev_session_set_stacks - who turns stack ids of recorded files into stacks (trace/stacks.h); NULL = events have none */
void ev_session_set_stacks(struct ev_session *session, struct stacks *stacks);
struct stacks *ev_session_stacks(const struct ev_session *session);

#endif
