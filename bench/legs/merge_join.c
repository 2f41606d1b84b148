/* The k nearest rows of a sparse matrix to each query by merging the two rows of every pair, as published k-NN codes do:
   merge_join FOLDER QUERY_FOLDER ROWS COLUMNS_PER_ROW QUERIES K THREADS; every row has as many entries. Prints seconds. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long rows, width, queries, k, threads;
static int *columns[2];
static float *values[2];
static double *nearest;

static void *load(const char *folder, const char *name, long count) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    FILE *file = fopen(path, "rb");
    void *into = malloc(4 * count);
    if (!file || !into || fseek(file, 4096, SEEK_SET) || (long)fread(into, 4, count, file) != count) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return into;
}

static double distance(const int *a, const float *x, const int *b, const float *y) {
    double sum = 0;
    long i = 0, j = 0;
    while (i < width && j < width) {
        double term = a[i] == b[j] ? (double)x[i] - y[j] : a[i] < b[j] ? x[i] : y[j];
        int next = a[i] <= b[j];
        j += b[j] <= a[i];
        i += next;
        sum += term * term;
    }
    for (; i < width; i++) sum += (double)x[i] * x[i];
    for (; j < width; j++) sum += (double)y[j] * y[j];
    return sum;
}

static void *search(void *argument) {
    for (long query = (long)argument; query < queries; query += threads) {
        double *found = nearest + query * k;
        for (long at = 0; at < k; at++) found[at] = 1e300;
        for (long row = 0; row < rows; row++) {
            double sum = distance(columns[1] + query * width, values[1] + query * width, columns[0] + row * width,
                                  values[0] + row * width);
            long at = k;
            for (; at > 0 && sum < found[at - 1]; at--)
                if (at < k) found[at] = found[at - 1];
            if (at < k) found[at] = sum;
        }
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 8) return 2;
    rows = atol(words[3]), width = atol(words[4]), queries = atol(words[5]), k = atol(words[6]), threads = atol(words[7]);
    for (int side = 0; side < 2; side++) {
        long entries = (side ? queries : rows) * width;
        columns[side] = load(words[1 + side], "indices", entries);
        values[side] = load(words[1 + side], "data", entries);
    }
    nearest = malloc(queries * k * sizeof(double));
    pthread_t made[64];
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long thread = 0; thread < threads; thread++) pthread_create(&made[thread], NULL, search, (void *)thread);
    for (long thread = 0; thread < threads; thread++) pthread_join(made[thread], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.9f\n", end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9);
    return 0;
}
