/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * What qemu-user leaves out of Linux's system calls and a walk of a stack asks for: process_vm_readv (ENOSYS there), and a
 * rt_sigprocmask that looks at the set before it refuses an unknown `how` (there any address passes for readable). Both
 * are stood in for by a pipe, whose write() fails where an address cannot be read. On a real kernel, and where the
 * variable ST_EMULATED is not set (tools/cross-aarch64), every call goes to the C library's syscall().
 * Include it in one file of a program.
 */
#ifndef TESTS_AGENT_EMULATED_H
#define TESTS_AGENT_EMULATED_H

#if defined(__aarch64__)
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long (*real_syscall)(long number, ...);
static bool emulated;

static __attribute__((constructor)) void find_syscall(void)
{
	*(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
	emulated = getenv("ST_EMULATED") != NULL;
}

/* Return: @bytes, or -1 with EFAULT. At most a page. */
static long copy_through_pipe(void *to, const void *from, size_t bytes)
{
	int ends[2];
	ssize_t n;

	if (pipe(ends))
		abort(); /* a test that cannot tell must not pass */
	n = write(ends[1], from, bytes);
	if (n > 0)
		n = read(ends[0], to, (size_t)n);
	close(ends[0]);
	close(ends[1]);
	if (n < 0)
		errno = EFAULT;
	return n;
}

/* As the kernel: parts in their order, up to the first that cannot be read. */
static long read_parts(const struct iovec *local, const struct iovec *remote, size_t parts)
{
	size_t done = 0, i;

	for (i = 0; i < parts; i++) {
		long n = copy_through_pipe((char *)local->iov_base + done, remote[i].iov_base, remote[i].iov_len);

		if (n > 0)
			done += (size_t)n;
		if (n != (long)remote[i].iov_len)
			break;
	}
	return done || !parts ? (long)done : -1;
}

long syscall(long number, ...)
{
	long arg[6], word;
	va_list args;
	int i;

	va_start(args, number);
	for (i = 0; i < 6; i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	if (emulated && number == SYS_process_vm_readv)
		return read_parts((const struct iovec *)arg[1], (const struct iovec *)arg[3], (size_t)arg[4]);
	if (emulated && number == SYS_rt_sigprocmask && arg[0] == -1 && copy_through_pipe(&word, (void *)arg[1], 8) < 0)
		return -1;
	return real_syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}
#endif

#endif
