/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A process that has page faults by order: words of its command line, one after the other. Memory is never huge pages, so
 * that the numbers are exact.
 *
 *   read          wait for a byte on stdin
 *   usage         print minor and major faults of itself and of its children that ended, as getrusage counts them
 *   touch=N       write to N new pages
 *   again=N       write to N new pages, then twice to all of them again
 *   threads=K,N   the same in K threads, which end
 *   populate=N    N pages by MAP_POPULATE       mlock=N   N pages by mlock
 *   map=FILE      read every page of a file through a mapping
 *   cat=FILE      read a file (its pages count for the memory cgroup)
 *   fork=N        a child touches N pages and ends
 *   kill=N        the same, and it is expected to be killed: prints "killed <pid> <signal>"
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void print(const char *text)
{
	(void)!write(1, text, strlen(text)); /* no buffer: it would fault */
}

static void *touch(void *pages)
{
	size_t bytes = (size_t)pages * 4096;
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(at, bytes, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < bytes; i += 4096)
		((volatile char *)at)[i] = 1;
	munmap(at, bytes);
	return NULL;
}

static void again(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(at, bytes, MADV_NOHUGEPAGE);
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < bytes; i += 4096)
			((volatile char *)at)[i] = (char)(i / 4096 + 1);
	munmap(at, bytes);
}

static void threads(const char *text)
{
	int count = atoi(text);
	pthread_t ids[64];

	for (int i = 0; i < count; i++)
		pthread_create(&ids[i], NULL, touch, (void *)strtoul(strchr(text, ',') + 1, NULL, 10));
	for (int i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
}

static void map_file(const char *path)
{
	int fd = open(path, O_RDONLY);
	volatile char sink;
	struct stat st;
	char *at;

	fstat(fd, &st);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	madvise(at, (size_t)st.st_size, MADV_RANDOM);
	for (off_t i = 0; i < st.st_size; i += 4096)
		sink = at[i];
	(void)sink;
	close(fd);
}

static void cat(const char *path)
{
	static char data[1 << 16];
	int fd = open(path, O_RDONLY);

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	while (read(fd, data, sizeof(data)) > 0)
		;
	close(fd);
}

static void run_child(const char *text, int tell)
{
	char line[64];
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		touch((void *)strtoul(text, NULL, 10));
		_exit(0);
	}
	waitpid(pid, &status, 0);
	snprintf(line, sizeof(line), "killed %d %d\n", (int)pid, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	if (tell)
		print(line);
}

static void usage(void)
{
	struct rusage self, children;
	char line[128];

	getrusage(RUSAGE_SELF, &self);
	getrusage(RUSAGE_CHILDREN, &children);
	snprintf(line, sizeof(line), "%ld %ld %ld %ld\n", self.ru_minflt, self.ru_majflt, children.ru_minflt,
		 children.ru_majflt);
	print(line);
}

static void lock_pages(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(at, bytes, MADV_NOHUGEPAGE);
	mlock(at, bytes);
	munmap(at, bytes);
}

int main(int argc, char **argv)
{
	char byte;

	for (int i = 1; i < argc; i++) {
		const char *word = argv[i], *value = strchr(word, '=') ? strchr(word, '=') + 1 : "";
		size_t bytes = strtoul(value, NULL, 10) * 4096;

		if (strcmp(word, "read") == 0)
			(void)!read(0, &byte, 1);
		else if (strcmp(word, "usage") == 0)
			usage();
		else if (strncmp(word, "touch=", 6) == 0)
			touch((void *)(bytes / 4096));
		else if (strncmp(word, "again=", 6) == 0)
			again(bytes);
		else if (strncmp(word, "threads=", 8) == 0)
			threads(value);
		else if (strncmp(word, "populate=", 9) == 0)
			mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		else if (strncmp(word, "mlock=", 6) == 0)
			lock_pages(bytes);
		else if (strncmp(word, "map=", 4) == 0)
			map_file(value);
		else if (strncmp(word, "cat=", 4) == 0)
			cat(value);
		else if (strncmp(word, "fork=", 5) == 0)
			run_child(value, 0);
		else if (strncmp(word, "kill=", 5) == 0)
			run_child(value, 1);
	}
	return 0;
}
