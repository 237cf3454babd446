/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A process that waits for locks on a known schedule, each time a line comes on stdin: 40 ms for a mutex, 20 ms for a lock
 * that is written under, 30 ms for a semaphore that is posted, up to 200 ms for one that is not; 5 failures of a trylock;
 * 1000 locks that are free, 100 of each other kind. Whoever is waited for looks until the wait has begun, so that a busy
 * machine does not shorten it. Prints its pid first, then "done" each time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static sem_t sem, held; /* held: the other thread has the lock */

/* Until the main thread sleeps in a futex inside the object; where /proc does not tell, at once. */
static void until_waited_for(const volatile void *object, size_t bytes)
{
	char path[64];
	long number;
	unsigned long address;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)getpid());
	while ((in = fopen(path, "re"))) {
		int got = fscanf(in, "%ld %lx", &number, &address);

		fclose(in);
		if (got == 2 && number == SYS_futex && address - (unsigned long)object < bytes)
			return;
		usleep(500);
	}
}

static void *with_mutex(void *us)
{
	pthread_mutex_lock(&mutex);
	sem_post(&held);
	if (us)
		until_waited_for(&mutex, sizeof(mutex));
	usleep((useconds_t)(long)us);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static void *with_rwlock(void *us)
{
	pthread_rwlock_wrlock(&rwlock);
	sem_post(&held);
	until_waited_for(&rwlock, sizeof(rwlock));
	usleep((useconds_t)(long)us);
	pthread_rwlock_unlock(&rwlock);
	return NULL;
}

static void *posts(void *us)
{
	until_waited_for(&sem, sizeof(sem));
	usleep((useconds_t)(long)us);
	sem_post(&sem);
	return NULL;
}

static pthread_t begin(void *(*what)(void *), long us)
{
	pthread_t thread;

	pthread_create(&thread, NULL, what, (void *)us);
	return thread;
}

static void free_locks(void)
{
	for (int i = 0; i < 1000; i++) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
	for (int i = 0; i < 100; i++) {
		pthread_rwlock_rdlock(&rwlock);
		pthread_rwlock_unlock(&rwlock);
		pthread_rwlock_wrlock(&rwlock);
		pthread_rwlock_unlock(&rwlock);
		pthread_spin_lock(&spin);
		pthread_spin_unlock(&spin);
		sem_post(&sem);
		sem_wait(&sem);
		sched_yield();
	}
}

static void waits(void)
{
	struct timespec until;
	pthread_t thread = begin(with_mutex, 40000);

	while (sem_trywait(&held))
		usleep(100);
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
	thread = begin(with_rwlock, 20000);
	while (sem_trywait(&held))
		usleep(100);
	pthread_rwlock_rdlock(&rwlock);
	pthread_rwlock_unlock(&rwlock);
	pthread_join(thread, NULL);
	thread = begin(posts, 30000);
	sem_wait(&sem);
	pthread_join(thread, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 200000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	sem_timedwait(&sem, &until);
	pthread_mutex_lock(&mutex);
	thread = begin(with_mutex, 0);
	for (int i = 0; i < 5; i++)
		pthread_mutex_trylock(&mutex); /* its own: fails */
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
	while (sem_trywait(&held) == 0)
		;
}

int main(void)
{
	char line[16];

	sem_init(&sem, 0, 0);
	sem_init(&held, 0, 0);
	pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", (int)getpid());
	while (fgets(line, sizeof(line), stdin)) {
		free_locks();
		waits();
		printf("done\n");
	}
	return 0;
}
