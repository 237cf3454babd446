/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A program with a known schedule, for tests of scheduling records. Words are done in order, once each, on the main
 * thread; times in milliseconds:
 *   pin=CPU  name=COMM  say=TEXT (a line on stdout)  read (wait for a line on stdin)
 *   sleep=MS,TIMES  spin=MS (CPU time)  hog=MS (wall time)  yield=TIMES
 *   thread=MS (spin in a new thread, joined)  threads=N,MS (N sleeping threads for MS)  fork=MS (spin in a child, waited for)
 * Prints nothing else but, at its end, its schedstat of the main thread: "ran_ns delay_ns".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void busy(clockid_t clock, double ms)
{
	double end = now_ms(clock) + ms;

	while (now_ms(clock) < end)
		;
}

static void nap(double ms)
{
	struct timespec ts = { (time_t)(ms / 1e3), (long)((ms - (long)(ms / 1e3) * 1e3) * 1e6) };

	nanosleep(&ts, NULL);
}

static void *spinning(void *arg)
{
	busy(CLOCK_THREAD_CPUTIME_ID, *(double *)arg);
	return NULL;
}

static void *sleeping(void *arg)
{
	nap(*(double *)arg);
	return NULL;
}

static void start_threads(int count, double ms, void *(*body)(void *))
{
	pthread_t *ids = calloc((size_t)count, sizeof(*ids));
	pthread_attr_t attr;
	int i, made = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 32768);
	for (i = 0; i < count; i++)
		made += pthread_create(&ids[made], &attr, body, &ms) == 0;
	if (count > 1) {
		printf("threads %d\n", made);
		fflush(stdout);
	}
	for (i = 0; i < made; i++)
		pthread_join(ids[i], NULL);
	free(ids);
}

static void print_schedstat(void)
{
	char line[128] = "";
	FILE *file = fopen("/proc/thread-self/schedstat", "r");

	if (file && fgets(line, sizeof(line), file))
		printf("schedstat %s", line);
	fflush(stdout);
	if (file)
		fclose(file);
}

static void one(const char *word)
{
	char line[64];
	double ms = 0;
	int times = 1;
	cpu_set_t set;

	if (sscanf(word, "pin=%d", &times) == 1) {
		CPU_ZERO(&set);
		CPU_SET(times, &set);
		sched_setaffinity(0, sizeof(set), &set);
	} else if (!strncmp(word, "name=", 5)) {
		prctl(PR_SET_NAME, word + 5);
	} else if (!strncmp(word, "say=", 4)) {
		puts(word + 4);
		fflush(stdout);
	} else if (!strcmp(word, "read")) {
		if (!fgets(line, sizeof(line), stdin))
			exit(1);
	} else if (!strcmp(word, "schedstat")) {
		print_schedstat();
	} else if (sscanf(word, "sleep=%lf,%d", &ms, &times) >= 1) {
		while (times-- > 0)
			nap(ms);
	} else if (sscanf(word, "spin=%lf", &ms) == 1) {
		busy(CLOCK_THREAD_CPUTIME_ID, ms);
	} else if (sscanf(word, "hog=%lf", &ms) == 1) {
		busy(CLOCK_MONOTONIC, ms);
	} else if (sscanf(word, "yield=%d", &times) == 1) {
		while (times-- > 0)
			sched_yield();
	} else if (sscanf(word, "threads=%d,%lf", &times, &ms) == 2) {
		start_threads(times, ms, sleeping);
	} else if (sscanf(word, "thread=%lf", &ms) == 1) {
		start_threads(1, ms, spinning);
	} else if (sscanf(word, "fork=%lf", &ms) == 1) {
		pid_t pid = fork();

		if (pid == 0) {
			busy(CLOCK_PROCESS_CPUTIME_ID, ms);
			_exit(0);
		}
		printf("child %d\n", (int)pid);
		fflush(stdout);
		waitpid(pid, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		one(argv[i]);
	return 0;
}
