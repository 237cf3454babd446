/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Which capabilities are there, and how to say which are missing; see probe_need_caps() in probe.h. */
#include "probe/probe.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *cap_name(int cap)
{
	static const char *const names[] = {
		[CAP_DAC_OVERRIDE] = "CAP_DAC_OVERRIDE",
		[CAP_SYS_ADMIN] = "CAP_SYS_ADMIN",
		[CAP_SYS_PTRACE] = "CAP_SYS_PTRACE",
		[38] = "CAP_PERFMON",
		[39] = "CAP_BPF",
	};

	if (cap < 0 || (size_t)cap >= sizeof(names) / sizeof(names[0]) || !names[cap])
		return "a capability";
	return names[cap];
}

static bool have_all(const int *caps)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	if (syscall(SYS_capget, &head, data) < 0)
		return geteuid() == 0;
	for (; *caps >= 0; caps++)
		if (!(data[*caps / 32].effective & (1u << (*caps % 32))))
			return false;
	return true;
}

static void list(const int *caps, char *out, size_t room)
{
	size_t used = 0;

	out[0] = '\0';
	for (; *caps >= 0 && used < room; caps++)
		used += (size_t)snprintf(out + used, room - used, "%s%s", used ? " and " : "", cap_name(*caps));
}

int probe_need_caps(const char *what, const int *caps, const int *instead, struct st_err *err)
{
	char want[96], other[96] = "";

	if (have_all(caps) || (instead && have_all(instead)))
		return 0;
	list(caps, want, sizeof(want));
	if (instead)
		list(instead, other, sizeof(other));
	return err_set(err, -EPERM,
		       "%s needs %s%s%s, which this user (%u) lacks; run sysTrace_cli as root: sudo sysTrace_cli ...",
		       what, want, instead ? ", or " : "", other, (unsigned int)geteuid());
}
