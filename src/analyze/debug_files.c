/* SPDX-License-Identifier: MulanPSL-2.0 */
/* CSV and SVG files of debug_data and use_plot (debug_files.h). */
#include "analyze/debug_files.h"
#include "analyze/result.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CSV ------------------------------------------------------------------------------------------------------------ */

/** struct csv_out - the file of the rank and side that is being written */
struct csv_out {
	const char *dir;
	struct st_err *err;
	FILE *files[2]; /* execution, launch */
	int32_t rank[2];
};

static int close_csv(struct csv_out *out, int side)
{
	FILE *file = out->files[side];
	bool bad;

	if (!file)
		return 0;
	out->files[side] = NULL;
	bad = ferror(file);
	if (fclose(file) || bad)
		return err_set(out->err, -EIO, "cannot write the debug files below %s: %s", out->dir, strerror(errno));
	return 0;
}

/* The first metric of a rank begins its file, others go behind it */
static int open_csv(struct csv_out *out, int side, int32_t rank)
{
	static const char *const sides[2] = { "execution", "launch" };
	char path[PATH_MAX];
	int ret = close_csv(out, side);

	if (ret < 0)
		return ret;
	if (snprintf(path, sizeof(path), "%s/rank_%d_%s.csv", out->dir, rank, sides[side]) >= (int)sizeof(path))
		return err_set(out->err, -ENAMETOOLONG, "%s: the name is too long", out->dir);
	out->files[side] = fopen(path, "a");
	if (!out->files[side])
		return err_set(out->err, -errno, "cannot write %s: %s", path, strerror(errno));
	out->rank[side] = rank;
	if (ftell(out->files[side]) == 0)
		fputs("metric,step,time_ns,ms\n", out->files[side]);
	return 0;
}

static int show_csv(void *arg, int32_t rank, enum loc_kind kind, const char *metric, uint32_t key,
		    const struct loc_point *point)
{
	struct csv_out *out = arg;
	int side = kind == LOC_LAUNCH, ret = 0;

	if (!out->files[side] || out->rank[side] != rank)
		ret = open_csv(out, side, rank);
	if (!ret)
		fprintf(out->files[side], "%s,%u,%" PRId64 ",%.6f\n", metric, key, point->at_ns, point->value);
	return ret;
}

int debug_csv(const struct slowrank *sr, const char *dir, struct st_err *err)
{
	struct csv_out out = { .dir = dir, .err = err };
	int ret = result_dir_new(dir, err), side, closed;

	if (!ret)
		ret = slowrank_each(sr, show_csv, &out);
	for (side = 0; side < 2; side++) {
		closed = close_csv(&out, side);
		ret = ret ? ret : closed;
	}
	return ret;
}

/* ---- SVG ------------------------------------------------------------------------------------------------------------ */

enum { WIDTH = 1000, HEIGHT = 400, LEFT = 70, BOTTOM = 40 };

/** struct axes - the extent of all series of one drawing */
struct axes {
	int64_t from_ns, to_ns;
	double most;
};

static bool is_accused(const struct loc_result *result, int32_t rank, enum loc_kind kind)
{
	size_t i;

	for (i = 0; i < result->findings_count; i++)
		if (result->findings[i].rank == rank && result->findings[i].kind == kind)
			return true;
	return false;
}

static void measure(const struct localize *loc, enum loc_kind kind, struct axes *axes)
{
	uint32_t host, ip;
	int32_t rank;
	size_t i, k;

	for (i = 0; localize_rank_at(loc, i, &rank, &host, &ip); i++) {
		struct loc_point *points = NULL;
		size_t count = localize_series(loc, rank, kind, &points);

		for (k = 0; k < count; k++) {
			if (!axes->from_ns || points[k].at_ns < axes->from_ns)
				axes->from_ns = points[k].at_ns;
			axes->to_ns = points[k].at_ns > axes->to_ns ? points[k].at_ns : axes->to_ns;
			axes->most = points[k].value > axes->most ? points[k].value : axes->most;
		}
		free(points);
	}
}

static void draw_rank(FILE *out, const struct localize *loc, int32_t rank, enum loc_kind kind, bool accused,
		      const struct axes *axes)
{
	struct loc_point *points = NULL;
	size_t count = localize_series(loc, rank, kind, &points), i;
	double span = axes->to_ns > axes->from_ns ? (double)(axes->to_ns - axes->from_ns) : 1;

	fprintf(out, "<polyline fill='none' stroke='%s' stroke-width='%s' points='", accused ? "#c00" : "#69c",
		accused ? "2" : "0.7");
	for (i = 0; i < count; i++)
		fprintf(out, "%.1f,%.1f ",
			LEFT + (double)(points[i].at_ns - axes->from_ns) / span * (WIDTH - LEFT - 10),
			HEIGHT - BOTTOM - points[i].value / axes->most * (HEIGHT - BOTTOM - 30));
	fprintf(out, "'><title>rank %d</title></polyline>\n", rank);
	free(points);
}

static int draw_kind(const struct localize *loc, const struct loc_result *result, enum loc_kind kind, const char *dir,
		     struct st_err *err)
{
	struct axes axes = { 0 };
	char path[PATH_MAX];
	uint32_t host, ip;
	int32_t rank;
	FILE *out;
	size_t i;
	int pass;

	measure(loc, kind, &axes);
	if (!(axes.most > 0))
		return 0;
	if (snprintf(path, sizeof(path), "%s/%s.svg", dir, loc_kind_word(kind)) >= (int)sizeof(path))
		return err_set(err, -ENAMETOOLONG, "%s: the name is too long", dir);
	out = fopen(path, "w");
	if (!out)
		return err_set(err, -errno, "cannot write %s: %s", path, strerror(errno));
	fprintf(out,
		"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' font-size='12'>\n"
		"<rect width='100%%' height='100%%' fill='#fff'/>\n<text x='%d' y='18'>%s, ms per point, by rank; red: "
		"accused</text>\n<text x='4' y='38'>%.4g</text><text x='4' y='%d'>0</text>\n"
		"<text x='%d' y='%d'>%.1f s</text>\n",
		WIDTH, HEIGHT, LEFT, loc_kind_word(kind), axes.most, HEIGHT - BOTTOM, WIDTH - 80, HEIGHT - 12,
		(double)(axes.to_ns - axes.from_ns) / 1e9);
	for (pass = 0; pass < 2; pass++) /* the accused lie on top */
		for (i = 0; localize_rank_at(loc, i, &rank, &host, &ip); i++)
			if (is_accused(result, rank, kind) == (pass == 1))
				draw_rank(out, loc, rank, kind, pass == 1, &axes);
	fputs("</svg>\n", out);
	if (ferror(out) | fclose(out))
		return err_set(err, -EIO, "cannot write %s: %s", path, strerror(errno));
	return 0;
}

int debug_plots(const struct localize *loc, const struct loc_result *result, const char *dir, struct st_err *err)
{
	unsigned kinds = result->findings_count ? 0 : 1u << LOC_COMPUTE;
	int ret = result_dir_new(dir, err), kind;
	size_t i;

	for (i = 0; i < result->findings_count; i++)
		kinds |= 1u << result->findings[i].kind;
	for (kind = 0; kind < LOC_HANG && !ret; kind++)
		if (kinds & 1u << kind)
			ret = draw_kind(loc, result, (enum loc_kind)kind, dir, err);
	return ret;
}
