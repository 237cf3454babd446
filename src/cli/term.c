/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Terminal output shared by every command; see term.h. */
#include "cli/term.h"

#include "safe/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PROGRESS_AFTER_NS 2000000000ull
#define PROGRESS_EVERY_NS 200000000ull

/* --- colours ------------------------------------------------------------------------------------------------------ */

static bool colours(FILE *stream)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	if (no_color && *no_color)
		return false;
	if (!term || strcmp(term, "dumb") == 0)
		return false;
	return isatty(fileno(stream));
}

const char *term_on(FILE *stream, enum term_colour colour)
{
	static const char *const sequences[] = {
		[TERM_PLAIN] = "",	   [TERM_BOLD] = "\033[1m",   [TERM_DIM] = "\033[2m",
		[TERM_RED] = "\033[31;1m", [TERM_GREEN] = "\033[32m", [TERM_YELLOW] = "\033[33m",
	};

	return colours(stream) ? sequences[colour] : "";
}

const char *term_off(FILE *stream)
{
	return colours(stream) ? "\033[0m" : "";
}

char *term_clean(char *text)
{
	unsigned char *at = (unsigned char *)text;

	for (; *at; at++) {
		if (*at == '\n' || *at == '\t')
			*at = ' ';
		else if (*at < 0x20 || *at == 0x7f)
			*at = '?';
		else if (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) /* C1 controls */
			at[0] = at[1] = '?';
	}
	return text;
}

int term_width(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
		return size.ws_col;
	return 100;
}

int term_finish(void)
{
	int ret = 0;

	errno = 0;
	if (fflush(stdout) == EOF || ferror(stdout))
		ret = errno ? -errno : -EIO;
	/* close, too: NFS and quotas report a full disk only then; the descriptor stays open through its copy */
	if (ret == 0) {
		int copy = dup(STDOUT_FILENO);

		if (copy >= 0 && close(copy) < 0)
			ret = -errno;
	}
	return ret == -EPIPE ? 0 : ret;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

void progress_begin(struct progress *progress, const char *what, uint64_t total)
{
	*progress = (struct progress){ .what = what, .total = total, .begin_ns = clock_mono_ns() };
}

void progress_at(struct progress *progress, uint64_t done)
{
	uint64_t now = clock_mono_ns();
	double seconds = (double)(now - progress->begin_ns) / 1e9;

	if (now - progress->begin_ns < PROGRESS_AFTER_NS || now - progress->shown_ns < PROGRESS_EVERY_NS)
		return;
	if (!isatty(STDERR_FILENO))
		return;
	progress->shown_ns = now;
	progress->visible = true;
	fprintf(stderr, "\r\033[K%s: %.1f MB", progress->what, (double)done / 1e6);
	if (progress->total)
		fprintf(stderr, " of %.1f MB (%.0f %%)", (double)progress->total / 1e6,
			100.0 * (double)done / (double)progress->total);
	fprintf(stderr, ", %.1f MB/s", (double)done / 1e6 / seconds);
	fflush(stderr);
}

void progress_end(struct progress *progress)
{
	if (progress->visible)
		fputs("\r\033[K", stderr);
	progress->visible = false;
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

void table_init(struct table *table, size_t columns, const char *align)
{
	*table = (struct table){ .columns = columns, .align = align };
}

void table_cell(struct table *table, const char *format, ...)
{
	char *text = NULL;
	va_list ap;

	if (table->count == table->room) {
		size_t room = table->room ? 2 * table->room : 64;
		char **cells = realloc(table->cells, room * sizeof(*cells));

		if (!cells) {
			table->failed = true;
			return;
		}
		table->cells = cells;
		table->room = room;
	}
	va_start(ap, format);
	if (vasprintf(&text, format, ap) < 0)
		text = NULL;
	va_end(ap);
	table->failed |= !text;
	table->cells[table->count++] = text;
}

/* Columns that a text takes: its code points. */
static size_t width(const char *text)
{
	size_t count = 0;

	for (; text && *text; text++)
		count += ((unsigned char)*text & 0xc0) != 0x80;
	return count;
}

static void print_row(const struct table *table, size_t row, const size_t *widths, FILE *out, int indent)
{
	fprintf(out, "%*s", indent, "");
	if (row == 0)
		fputs(term_on(out, TERM_BOLD), out);
	for (size_t c = 0; c < table->columns; c++) {
		const char *text = table->cells[row * table->columns + c];
		size_t pad = widths[c] - width(text);
		bool right = table->align[c] == '>', last = c + 1 == table->columns;

		if (right)
			fprintf(out, "%*s", (int)pad, "");
		fputs(text ? text : "", out);
		if (!right && !last)
			fprintf(out, "%*s", (int)pad, "");
		if (!last)
			fputs("  ", out);
	}
	if (row == 0)
		fputs(term_off(out), out);
	fputc('\n', out);
}

void table_print(struct table *table, FILE *out, int indent)
{
	size_t rows = table->count / table->columns;
	size_t *widths = calloc(table->columns, sizeof(*widths));

	if (widths) {
		for (size_t i = 0; i < rows * table->columns; i++) {
			size_t wide = width(table->cells[i]), c = i % table->columns;

			if (wide > widths[c])
				widths[c] = wide;
		}
		for (size_t row = 0; row < rows; row++)
			print_row(table, row, widths, out, indent);
	}
	if (!widths || table->failed)
		fputs("(out of memory: this table is incomplete)\n", out);
	free(widths);
	table_drop(table);
}

void table_drop(struct table *table)
{
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct table){ .columns = table->columns, .align = table->align };
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Bytes of the valid UTF-8 sequence at @text, 0 when it is none. */
static int utf8_bytes(const unsigned char *text)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int bytes = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
	uint32_t code;

	if (bytes <= 1)
		return bytes;
	code = text[0] & (0x7fu >> bytes);
	for (int i = 1; i < bytes; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3fu);
	}
	return code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

void term_json_string(FILE *out, const char *text)
{
	const unsigned char *at = (const unsigned char *)text;

	fputc('"', out);
	while (*at) {
		int bytes = utf8_bytes(at);

		if (bytes == 0)
			fputs("\xef\xbf\xbd", out);
		else if (*at == '"' || *at == '\\')
			fprintf(out, "\\%c", *at);
		else if (*at < 0x20 || *at == 0x7f)
			fprintf(out, "\\u%04x", *at);
		else
			fwrite(at, 1, (size_t)bytes, out);
		at += bytes ? bytes : 1;
	}
	fputc('"', out);
}
