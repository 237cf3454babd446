/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reading memory that may not be there; see memory.h. */
#include "agent/stack/memory.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define PARTS 64u

size_t memory_copy_some(void *to, uintptr_t at, size_t bytes)
{
	struct iovec remote[PARTS], local = { .iov_base = to };
	unsigned long parts = 0;
	long n;

	/* a part is read whole or not at all, so none goes over the end of a page */
	while (local.iov_len < bytes && parts < PARTS) {
		size_t some = PAGE - (at & (PAGE - 1));

		if (some > bytes - local.iov_len)
			some = bytes - local.iov_len;
		remote[parts++] = (struct iovec){ (void *)at, some };
		local.iov_len += some;
		at += some;
	}
	/* the process, not the thread: a forked child must not read its parent */
	n = syscall(SYS_process_vm_readv, syscall(SYS_getpid), &local, 1ul, remote, parts, 0ul);
	return n > 0 ? (size_t)n : 0;
}

bool memory_copy(void *to, uintptr_t at, size_t bytes)
{
	return memory_copy_some(to, at, bytes) == bytes;
}

bool memory_readable(uintptr_t at)
{
	/* the kernel reads the set before it looks at what to do with it, which is nothing it knows */
	syscall(SYS_rt_sigprocmask, -1, at, NULL, sizeof(uint64_t));
	return errno == EINVAL;
}
