/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented CSV of MSPTI activities: markers now, rows of kernels and calls when their plugins write them. One list
 * holds the columns; names are made harmless the documented way (a comma becomes '!'). Called by the markers sink.
 */
#ifndef WIRE_CSV_H
#define WIRE_CSV_H

#include "wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CSV_MARKER_HEADER                                                                             \
	"Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId," \
	"msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n"

/** marker flags and kinds as MSPTI numbers them */
#define CSV_MARKER_START 2u
#define CSV_MARKER_END 4u
#define CSV_KIND_MARKER 1u
#define CSV_SOURCE_HOST 0u
#define CSV_SOURCE_DEVICE 1u

/** struct csv_marker - one row; first and second are process and thread (host) or device and stream (device) */
struct csv_marker {
	uint32_t flag;
	uint32_t source;
	uint64_t id;
	uint64_t wall_ns; /* CLOCK_REALTIME */
	uint32_t first;
	uint32_t second;
	const char *name; /* NULL or "" on end rows */
	size_t name_bytes;
};

/** struct csv_writer - rows being built in the caller's buffer; not terminated */
struct csv_writer {
	char *data;
	size_t room;
	size_t used;
	bool full;
};

/** csv_marker_put - one row with its line end. Context: thread, tool; no allocation. Sets full when it does not fit. */
void csv_marker_put(struct csv_writer *w, const struct csv_marker *m);

/**
 * csv_comm_name - name of a collective's marker: `comm:<op>!<group>!<dtype>!<count>`
 *
 * Context: thread, tool. Return: bytes, never more than @room; commas and control characters become '!'.
 */
size_t csv_comm_name(char *text, size_t room, struct msg_text op, struct msg_text group, struct msg_text dtype,
		     uint64_t count);

#endif
