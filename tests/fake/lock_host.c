/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A process that waits for locks on a known schedule, each time a line comes on stdin: 40 ms for a mutex, 20 ms for a lock
 * that is written under, 30 ms for a semaphore that is posted, 10 ms for one that is not; 5 failures of a trylock; 1000
 * locks that are free, 100 of each other kind. Prints its pid first, then "done" each time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static sem_t sem, held; /* held: the other thread has the lock */

static void *with_mutex(void *us)
{
	pthread_mutex_lock(&mutex);
	sem_post(&held);
	usleep((useconds_t)(long)us);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static void *with_rwlock(void *us)
{
	pthread_rwlock_wrlock(&rwlock);
	sem_post(&held);
	usleep((useconds_t)(long)us);
	pthread_rwlock_unlock(&rwlock);
	return NULL;
}

static void *posts(void *us)
{
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
	until.tv_nsec += 10000000;
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
