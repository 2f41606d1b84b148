/* Reads files of one sample each in random order, each opened, read and closed once, by threads of the system.

   file_reader FOLDER COUNT SIZE THREADS SECONDS

   Files are FOLDER/<number / 1000, six digits>/<number, nine digits>. Prints seconds, bytes as `work`, and files, as JSON. A file
   that cannot be read, or has another size, ends the program with an error. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FOLDER_FILES = 1000, MOST_THREADS = 256 };

static const char *folder;
static size_t count, size;
static uint32_t *order;
static double until;
static atomic_size_t next_file, files_read;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what, const char *path) {
    fprintf(stderr, "%s: %s: %s\n", path, what, strerror(errno));
    exit(1);
}

/* Fisher and Yates, by xorshift: the same order every time. */
static void shuffle(void) {
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t j = state % (i + 1);
        uint32_t other = order[j];
        order[j] = order[i], order[i] = other;
    }
}

static void *reader(void *unused) {
    char path[4096], *buffer = malloc(size + 1);
    if (!buffer) fail("malloc", folder);
    while (now() < until) {
        size_t at = atomic_fetch_add(&next_file, 1), got = 0;
        if (at >= count) break;
        snprintf(path, sizeof path, "%s/%06u/%09u", folder, order[at] / FOLDER_FILES, order[at]);
        int file = open(path, O_RDONLY);
        if (file < 0) fail("open", path);
        for (ssize_t n; (n = read(file, buffer + got, size + 1 - got)) != 0; got += n)
            if (n < 0) fail("read", path);
        if (got != size) errno = EINVAL, fail("size", path);
        close(file);
        atomic_fetch_add(&files_read, 1);
    }
    free(buffer);
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "usage: file_reader FOLDER COUNT SIZE THREADS SECONDS\n"), 2;
    folder = argv[1], count = atol(argv[2]), size = atol(argv[3]);
    int threads = atoi(argv[4]);
    pthread_t running[MOST_THREADS];
    if (!count || threads < 1 || threads > MOST_THREADS) return fprintf(stderr, "no files, or no such number of threads\n"), 2;
    if (!(order = malloc(count * sizeof *order))) fail("malloc", folder);
    shuffle();
    double started = now();
    until = started + atof(argv[5]);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&running[i], NULL, reader, NULL)) fail("pthread_create", folder);
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    double seconds = now() - started;
    printf("{\"seconds\": %.9f, \"work\": %zu, \"files\": %zu}\n", seconds, files_read * size, (size_t)files_read);
    return 0;
}
