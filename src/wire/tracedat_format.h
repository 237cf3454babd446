/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Numbers of the file format trace.dat: section and option ids, flags of ring buffer pages. Shared by the recorder, which
 * writes such files, and by the reader. Source: docs/formats/trace.dat.md.
 */
#ifndef WIRE_TRACEDAT_FORMAT_H
#define WIRE_TRACEDAT_FORMAT_H

#define TRACEDAT_MAGIC "\027\010\104tracing"
#define TRACEDAT_MAGIC_BYTES 10

/* Sections of version 7; those from HEADER_INFO to CMDLINES have an option of the same number that points at them. */
enum tracedat_section {
	TRACEDAT_SECTION_OPTIONS = 0,
	TRACEDAT_SECTION_BUFFER = 3,
	TRACEDAT_SECTION_STRINGS = 15,
	TRACEDAT_SECTION_HEADER_INFO = 16,
	TRACEDAT_SECTION_FTRACE_EVENTS = 17,
	TRACEDAT_SECTION_EVENT_FORMATS = 18,
	TRACEDAT_SECTION_KALLSYMS = 19,
	TRACEDAT_SECTION_PRINTK = 20,
	TRACEDAT_SECTION_CMDLINES = 21,
	TRACEDAT_SECTION_BUFFER_TEXT = 22
};

#define TRACEDAT_SECTION_COMPRESSED 1u /* in a section header's flags */

enum tracedat_option {
	TRACEDAT_OPTION_DONE = 0,
	TRACEDAT_OPTION_CPUSTAT = 2,
	TRACEDAT_OPTION_BUFFER = 3,
	TRACEDAT_OPTION_TRACECLOCK = 4,
	TRACEDAT_OPTION_UNAME = 5,
	TRACEDAT_OPTION_CPUCOUNT = 8,
	TRACEDAT_OPTION_VERSION = 9,
	TRACEDAT_OPTION_TRACEID = 11
};

#endif
