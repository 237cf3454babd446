/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What all loaders of eBPF programs share: can this kernel take them, and why did it not. Used by the probe's kinds, in
 * builds with libbpf only.
 */
#ifndef PROBE_BPF_LOAD_H
#define PROBE_BPF_LOAD_H

#include "base/err.h"

/**
 * bpf_load_check - capabilities and kernel type information
 * @what: for the message, "recording page faults"
 *
 * Context: tool. Return: 0, -EPERM or -ENOTSUP with @err: what is missing and what to do.
 */
int bpf_load_check(const char *what, struct st_err *err);

/** bpf_load_begin - from here on libbpf's words are kept instead of printed */
void bpf_load_begin(void);

/** bpf_load_failed - an error with libbpf's last warning. @ret: -errno. Return: @ret. */
int bpf_load_failed(int ret, const char *what, struct st_err *err);

#endif
