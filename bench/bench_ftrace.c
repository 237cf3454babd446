/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The C half of bench_ftrace.py, which makes the recordings and runs the converters and trace-cmd.
 * usage: bench_ftrace read FILE...          events per second of processor time of the readers alone
 *        bench_ftrace states FILE...        the same with the scheduler's state machine
 *        bench_ftrace repeat IN.txt OUT.txt N  the same text N times, each time later, as one long recording
 *        bench_ftrace load SECONDS PAIRS    pairs of processes that hand a byte to and fro
 */
#include "trace/event.h"
#include "trace/ftrace_line.h"
#include "trace/sched_state.h"
#include "trace/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int drop(void *arg, const struct sched_span *span)
{
	++*(uint64_t *)arg;
	return 0;
}

static int read_file(const char *path, bool states)
{
	struct ev_session *session = ev_session_new();
	struct st_err err = { 0 };
	uint64_t events = 0, spans = 0;
	double begin = cpu_s();
	struct ev_reader *reader = ev_open(session, path, &err);
	struct sched_state *machine = sched_state_new(session, drop, &spans);
	struct event ev;
	struct stat st;
	double s;

	if (!reader || !machine) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	for (; ev_next(reader, &ev, &err) == 1; events++)
		if (states)
			sched_state_feed(machine, &ev);
	s = cpu_s() - begin;
	stat(path, &st);
	printf("{\"file\": \"%s\", \"events\": %" PRIu64 ", \"spans\": %" PRIu64
	       ", \"bytes\": %lld, \"cpu_s\": %.4f}\n",
	       path, events, spans, (long long)st.st_size, s);
	sched_state_free(machine);
	ev_close(reader);
	ev_session_free(session);
	return 0;
}

/* Each round is later by the whole span and a second. */
static int repeat(const char *in, const char *out, int rounds)
{
	FILE *from = fopen(in, "r"), *to = fopen(out, "w");
	uint64_t first_ns = 0, last_ns = 0, shift_ns = 0;
	char *text = NULL;
	size_t room = 0;
	ssize_t len;
	int i;

	if (!from || !to)
		return perror(from ? out : in), 1;
	for (i = 0; i < rounds; i++) {
		rewind(from);
		while ((len = getline(&text, &room, from)) > 0) {
			struct ftrace_line line;
			const char *stamp;

			if (ftrace_line_parse(text, (size_t)len, &line) != FLINE_EVENT) {
				if (!i)
					fwrite(text, 1, (size_t)len, to);
				continue;
			}
			if (!first_ns)
				first_ns = line.t_ns;
			last_ns = line.t_ns;
			for (stamp = line.event - 2; stamp > text && stamp[-1] != ' '; stamp--)
				;
			fwrite(text, 1, (size_t)(stamp - text), to);
			fprintf(to, "%" PRIu64 ".%06" PRIu64 ": ", (line.t_ns + shift_ns) / 1000000000u,
				(line.t_ns + shift_ns) % 1000000000u / 1000);
			fwrite(line.event, 1, (size_t)(text + len - line.event), to);
		}
		shift_ns += last_ns - first_ns + 1000000000u;
	}
	free(text);
	fclose(from);
	return fclose(to) ? perror(out), 1 : 0;
}

static int load(double seconds, int pairs)
{
	int i;

	for (i = 0; i < pairs; i++) {
		int there[2], back[2];
		time_t end = time(NULL) + (time_t)(seconds + 0.5);
		char byte = 'x';

		if (pipe(there) || pipe(back))
			return 1;
		if (fork() == 0) {
			if (fork() == 0) {
				close(there[1]);
				while (read(there[0], &byte, 1) == 1)
					if (write(back[1], &byte, 1) != 1)
						break;
				_exit(0);
			}
			while (time(NULL) < end)
				if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
					break;
			_exit(0);
		}
		close(there[0]);
		close(there[1]);
		close(back[0]);
		close(back[1]);
	}
	while (wait(NULL) > 0)
		;
	return 0;
}

int main(int argc, char **argv)
{
	int i, ret = 0;

	if (argc == 5 && !strcmp(argv[1], "repeat"))
		return repeat(argv[2], argv[3], atoi(argv[4]));
	if (argc == 4 && !strcmp(argv[1], "load"))
		return load(atof(argv[2]), atoi(argv[3]));
	if (argc < 3 || (strcmp(argv[1], "read") && strcmp(argv[1], "states"))) {
		fprintf(stderr, "usage: bench_ftrace read|states FILE... | repeat IN OUT N | load SECONDS PAIRS\n");
		return 2;
	}
	for (i = 2; i < argc && !ret; i++)
		ret = read_file(argv[i], !strcmp(argv[1], "states"));
	return ret;
}
