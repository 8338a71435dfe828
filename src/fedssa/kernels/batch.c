/* Samples by index -> a batch: bytes become floats through a table of 256, images are moved as augmentation drew it. */

#include <stdint.h>
#include <string.h>

#ifdef FEDSSA_SOURCES
const char *fedssa_sources(void) { return FEDSSA_SOURCES; } /* a digest of all that the library was built from */
#endif

typedef struct {
    int64_t num, height, width, channels, num_samples;
    const void *samples;  /* [num_samples][height][width][channels] */
    const float *table;   /* of the 256 bytes, or NULL: samples are floats */
    const int64_t *index; /* [num] */
    const int64_t *down, *right; /* [num] */
    const uint8_t *mirrored;     /* [num] */
    const int64_t *holes;        /* [num][4]: top, left, height, width; all four pointers are NULL if nothing moves */
    float *out;                  /* [num][height][width][channels] */
} Batch;

static inline void copy(const Batch *b, int64_t from, int64_t count, float *to) {
    if (!b->table) {
        memcpy(to, (const float *)b->samples + from, (size_t)count * sizeof(float));
        return;
    }
    const uint8_t *bytes = (const uint8_t *)b->samples + from;
    for (int64_t i = 0; i < count; i++) to[i] = b->table[bytes[i]];
}

static inline void fill_zeros(float *to, int64_t count) { memset(to, 0, (size_t)count * sizeof(float)); }

static inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

/* A row of pixels that starts `right` pixels into the sample's row at `from`; zeros where the sample has none. */
static void move_row(const Batch *b, int64_t from, int64_t right, int mirrored, float *to) {
    int64_t c = b->channels, first = clamp(-right, 0, b->width), end = clamp(b->width - right, 0, b->width);
    if (first >= end) {
        fill_zeros(to, b->width * c);
        return;
    }
    if (mirrored) {
        fill_zeros(to, b->width * c);
        for (int64_t x = first; x < end; x++) copy(b, from + (x + right) * c, c, to + (b->width - 1 - x) * c);
        return;
    }
    fill_zeros(to, first * c);
    copy(b, from + (first + right) * c, (end - first) * c, to + first * c);
    fill_zeros(to + end * c, (b->width - end) * c);
}

static void move(const Batch *b, int64_t n, int64_t from, float *to) {
    int64_t c = b->channels, row = b->width * c;
    const int64_t *hole = b->holes + 4 * n;
    int64_t left = clamp(hole[1], 0, b->width), end = clamp(hole[1] + hole[3], 0, b->width);
    for (int64_t y = 0; y < b->height; y++) {
        int64_t source = y + b->down[n];
        if (source < 0 || source >= b->height)
            fill_zeros(to + y * row, row);
        else
            move_row(b, from + source * row, b->right[n], b->mirrored[n], to + y * row);
        if (y >= hole[0] && y < hole[0] + hole[2] && left < end) fill_zeros(to + y * row + left * c, (end - left) * c);
    }
}

/* Returns 0, or 1 if an index is out of range. */
int fedssa_gather(const Batch *b) {
    int64_t size = b->height * b->width * b->channels;
    for (int64_t n = 0; n < b->num; n++) {
        if (b->index[n] < 0 || b->index[n] >= b->num_samples) return 1;
        int64_t from = b->index[n] * size;
        if (b->down)
            move(b, n, from, b->out + n * size);
        else
            copy(b, from, size, b->out + n * size);
    }
    return 0;
}
