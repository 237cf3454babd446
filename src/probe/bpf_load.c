/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See bpf_load.h. */
#ifdef HAVE_BPF
#include "probe/bpf_load.h"

#include "probe/probe.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* <linux/capability.h> of the build machine may be older than the kernel's */
#define CAP_PERFMON_NUMBER 38
#define CAP_BPF_NUMBER 39

static char last[256];

int bpf_load_check(const char *what, struct st_err *err)
{
	static const int caps[] = { CAP_BPF_NUMBER, CAP_PERFMON_NUMBER, CAP_SYS_PTRACE, -1 };
	static const int instead[] = { CAP_SYS_ADMIN, -1 };
	int ret = probe_need_caps(what, caps, instead, err);

	if (ret < 0)
		return ret;
	ret = probe_need_host(what, err);
	if (ret < 0)
		return ret;
	if (access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		return err_set(err, -ENOTSUP,
			       "%s needs the kernel's type information (/sys/kernel/btf/vmlinux): this kernel is built "
			       "without CONFIG_DEBUG_INFO_BTF",
			       what);
	return 0;
}

static int keep(enum libbpf_print_level level, const char *format, va_list ap)
{
	if (level == LIBBPF_WARN) {
		vsnprintf(last, sizeof(last), format, ap);
		last[strcspn(last, "\n")] = '\0';
	}
	return 0;
}

void bpf_load_begin(void)
{
	last[0] = '\0';
	libbpf_set_print(keep);
}

int bpf_load_failed(int ret, const char *what, struct st_err *err)
{
	const char *advice = "";

	if (ret == -EPERM || ret == -EACCES)
		advice = "; it needs root on the host (a locked down kernel or a container refuses eBPF)";
	else if (ret == -EINVAL || ret == -ENOTSUP)
		advice = "; Linux 5.10 or newer is needed";
	return err_set(err, ret, "%s: %s%s%s%s%s", what, strerror(-ret), *last ? " (" : "", last, *last ? ")" : "",
		       advice);
}
#endif
