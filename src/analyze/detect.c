/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The documented detectors (detect.h). Distances are those of the ranks' windows themselves, a smaller cluster is only
 * bad on the bad side, and a value that was called bad never enters what later ones are compared with.
 */
#include "analyze/detect.h"
#include "analyze/stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_CLUSTER (-1)
#define UNSEEN (-2)

static double distance_of(const double *a, const double *b, size_t dim, enum metric_distance metric)
{
	double sum = 0, most = 0;
	size_t i;

	for (i = 0; i < dim; i++) {
		double d = fabs(a[i] - b[i]);

		sum += metric == METRIC_EUCLIDEAN ? d * d : d;
		most = fmax(most, d);
	}
	return metric == METRIC_EUCLIDEAN ? sqrt(sum) : metric == METRIC_MANHATTAN ? sum : most;
}

/** struct dbscan - one run */
struct dbscan {
	const double *points;
	size_t count, dim;
	double eps;
	enum metric_distance metric;
	size_t *queue; /* core points whose neighbours are still to be taken */
};

static bool is_near(const struct dbscan *db, size_t a, size_t b)
{
	return distance_of(db->points + a * db->dim, db->points + b * db->dim, db->dim, db->metric) <= db->eps;
}

static size_t neighbours(const struct dbscan *db, size_t of)
{
	size_t i, near = 0;

	for (i = 0; i < db->count; i++)
		near += is_near(db, of, i);
	return near;
}

/* Take everything that is reached from a core point into its cluster */
static void grow_cluster(const struct dbscan *db, size_t seed, unsigned min_samples, int cluster, int *labels)
{
	size_t head = 0, tail = 0, i;

	labels[seed] = cluster;
	db->queue[tail++] = seed;
	while (head < tail) {
		size_t core = db->queue[head++];

		for (i = 0; i < db->count; i++) {
			if (labels[i] >= 0 || !is_near(db, core, i))
				continue;
			labels[i] = cluster;
			if (neighbours(db, i) >= min_samples)
				db->queue[tail++] = i;
		}
	}
}

int detect_dbscan(const double *points, size_t count, size_t dim, double eps, unsigned min_samples,
		  enum metric_distance distance, int *labels)
{
	struct dbscan db = { points, count, dim, eps, distance, malloc((count + 1) * sizeof(size_t)) };
	int clusters = 0;
	size_t i;

	if (!db.queue)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		labels[i] = UNSEEN;
	for (i = 0; i < count; i++) {
		if (labels[i] != UNSEEN)
			continue;
		if (neighbours(&db, i) < min_samples)
			labels[i] = NO_CLUSTER;
		else
			grow_cluster(&db, i, min_samples, clusters++, labels);
	}
	free(db.queue);
	return clusters;
}

/* The cluster that is larger than every other, or NO_CLUSTER */
static int largest_cluster(const int *labels, size_t count, int clusters)
{
	size_t best_size = 0, i;
	int best = NO_CLUSTER, c;

	for (c = 0; c < clusters; c++) {
		size_t size = 0;

		for (i = 0; i < count; i++)
			size += labels[i] == c;
		if (size == best_size)
			best = NO_CLUSTER;
		if (size > best_size) {
			best = c;
			best_size = size;
		}
	}
	return best;
}

static double mean_of(const double *values, size_t count)
{
	double mean = 0, std;

	stat_mean_std(values, count, &mean, &std);
	return mean;
}

static bool is_bad(double value, double normal, double threshold, enum detect_side side)
{
	return normal > 0 && side * (value - normal) > threshold * normal;
}

/* A copy scaled to 0..1 over all values, where the configuration asks for it */
static double *scaled(const double *points, size_t total, bool scaling)
{
	double *copy = malloc((total + 1) * sizeof(*copy));
	double low = INFINITY, high = -INFINITY;
	size_t i;

	if (!copy)
		return NULL;
	memcpy(copy, points, total * sizeof(*copy));
	for (i = 0; i < total; i++) {
		low = fmin(low, points[i]);
		high = fmax(high, points[i]);
	}
	for (i = 0; scaling && high > low && i < total; i++)
		copy[i] = (points[i] - low) / (high - low);
	return copy;
}

static int space_dbscan(const struct metric_space_detector *how, const double *points, size_t count, size_t dim,
			enum detect_side side, bool *bad, double *normal)
{
	double *copy = scaled(points, count * dim, how->scaling);
	int *labels = malloc((count + 1) * sizeof(*labels));
	int clusters = -ENOMEM, main_cluster;
	size_t i, members = 0;

	if (copy && labels)
		clusters = detect_dbscan(copy, count, dim, how->eps, how->min_samples, how->dist_metric, labels);
	if (clusters < 0)
		goto out;
	main_cluster = largest_cluster(labels, count, clusters);
	if (main_cluster == NO_CLUSTER)
		goto out;
	for (i = 0; i < count; i++) {
		if (labels[i] != main_cluster)
			continue;
		*normal += mean_of(points + i * dim, dim);
		members++;
	}
	*normal /= (double)members;
	for (i = 0; i < count; i++)
		bad[i] = labels[i] != main_cluster &&
			 is_bad(mean_of(points + i * dim, dim), *normal, how->cv_threshold, side);
out:
	free(copy);
	free(labels);
	return clusters < 0 ? clusters : 0;
}

/* Each rank against the median of the others: also for groups of two and three, where nothing clusters */
static int space_outer(const struct metric_space_detector *how, const double *points, size_t count, size_t dim,
		       enum detect_side side, bool *bad, double *normal)
{
	double *means = malloc(2 * count * sizeof(*means));
	double *others = means + count;
	size_t i, k, n;

	if (!means)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		means[i] = mean_of(points + i * dim, dim);
	for (i = 0; i < count; i++) {
		double usual;

		for (k = 0, n = 0; k < count; k++)
			if (k != i)
				others[n++] = means[k];
		usual = stat_median(others, n);
		bad[i] = fabs(means[i] - usual) > how->eps && is_bad(means[i], usual, how->cv_threshold, side);
	}
	*normal = stat_median(means, count);
	free(means);
	return 0;
}

int detect_space(const struct metric_space_detector *how, const double *points, size_t count, size_t dim,
		 enum detect_side side, bool *bad, double *normal)
{
	memset(bad, 0, count * sizeof(*bad));
	*normal = 0;
	if (count < 2 || !dim || how->type == METRIC_SPACE_NONE)
		return 0;
	return how->type == METRIC_SPACE_DBSCAN ? space_dbscan(how, points, count, dim, side, bad, normal)
						: space_outer(how, points, count, dim, side, bad, normal);
}

/* ---- one rank's own history ----------------------------------------------------------------------------------------- */

/* labels of DBSCAN over the values, eps as a share of their median; *center: median of the largest cluster */
static int cluster_values(const struct metric_time_detector *how, const double *values, size_t count, int *labels,
			  double *scratch, int *largest)
{
	int clusters;

	memcpy(scratch, values, count * sizeof(*values));
	clusters = detect_dbscan(values, count, 1, how->preprocess_eps * fabs(stat_median(scratch, count)),
				 how->preprocess_min_samples, METRIC_EUCLIDEAN, labels);
	if (clusters >= 0)
		*largest = largest_cluster(labels, count, clusters);
	return clusters < 0 ? clusters : 0;
}

static int time_dbscan(const struct metric_time_detector *how, const double *values, size_t count,
		       enum detect_side side, bool *bad, int *labels, double *scratch)
{
	int largest = NO_CLUSTER, ret;
	double low = INFINITY, high = -INFINITY;
	size_t i;

	ret = cluster_values(how, values, count, labels, scratch, &largest);
	if (ret < 0 || largest == NO_CLUSTER)
		return ret;
	for (i = 0; i < count; i++) {
		if (labels[i] != largest)
			continue;
		low = fmin(low, values[i]);
		high = fmax(high, values[i]);
	}
	for (i = 0; i < count; i++)
		bad[i] = labels[i] != largest && (side == DETECT_ABOVE ? values[i] > high : values[i] < low);
	return 0;
}

static double clamp(double value, double low, double high)
{
	if (!isnan(low) && value < low)
		return low;
	return !isnan(high) && value > high ? high : value;
}

static bool outside(const struct metric_nsigma *n, double value, const double *training, size_t count)
{
	double mean = 0, std = 0, upper, lower;

	stat_mean_std(training, count, &mean, &std);
	std = fmax(std, n->min_std_val);
	upper = (mean + n->nsigma_coefficient * std) * (1 + n->bias) + n->abs_bias;
	lower = (mean - n->nsigma_coefficient * std) * (1 - n->bias) - n->abs_bias;
	upper = clamp(upper, n->min_expert_upper_bound, n->max_expert_upper_bound);
	lower = clamp(lower, n->min_expert_lower_bound, n->max_expert_lower_bound);
	return (n->detect_type & METRIC_UPPER && value > upper) || (n->detect_type & METRIC_LOWER && value < lower);
}

/* The training window holds good values only: those of the start that DBSCAN keeps, later those within the bounds */
static int time_ksigma(const struct metric_time_detector *how, const double *values, size_t count, bool *bad,
		       int *labels, double *scratch)
{
	const struct metric_nsigma *n = &how->nsigma;
	double *training = malloc((n->training_window_size + 1) * sizeof(*training));
	size_t start = n->training_window_size < count ? n->training_window_size : count;
	size_t i, kept = 0;
	int largest = NO_CLUSTER, ret;

	if (!training)
		return -ENOMEM;
	ret = cluster_values(how, values, start, labels, scratch, &largest);
	for (i = 0; i < count && !ret; i++) {
		bool trained = i < start && (largest == NO_CLUSTER || labels[i] == largest);

		if (kept >= n->min_update_window_size)
			bad[i] = outside(n, values[i], training,
					 kept < n->training_window_size ? kept : n->training_window_size);
		if (!bad[i] && (trained || i >= start))
			training[kept++ % n->training_window_size] = values[i];
	}
	free(training);
	return ret;
}

int detect_time(const struct metric_time_detector *how, const double *values, size_t count, enum detect_side side,
		bool *bad)
{
	int *labels = malloc((count + 1) * sizeof(*labels));
	double *scratch = malloc((count + 1) * sizeof(*scratch));
	int ret = labels && scratch ? 0 : -ENOMEM;

	memset(bad, 0, count * sizeof(*bad));
	if (!ret && count && how->type == METRIC_TIME_DBSCAN)
		ret = time_dbscan(how, values, count, side, bad, labels, scratch);
	else if (!ret && count && how->type == METRIC_TIME_KSIGMA)
		ret = time_ksigma(how, values, count, bad, labels, scratch);
	free(labels);
	free(scratch);
	return ret;
}
