/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Text of an error for people, filled in once, where the facts (path, line, value) are, and printed by whoever talks to
 * the user. Fixed size, no allocation: also used inside the agent.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

struct st_err {
	int code; /* negative errno */
	char text[512];
};

/**
 * err_set - note an error
 * @err: may be NULL
 * @code: negative errno, returned as it is so that callers write `return err_set(...)`
 *
 * Context: any. A longer text is cut.
 */
int err_set(struct st_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
