/* relu(max_pool2d(conv2d(x, weight) + bias, 2)) in one pass, and its gradients.

   After a 2 x 2 max-pool at most a quarter of the convolution's outputs have a gradient, and the ReLU stops some of
   these. Forward notes which output of each 2 x 2 cell won; backward visits the winners only.

   Images are [height][width][channels_in] floats, weights [channels_out][rows][columns][channels_in]: a row of a kernel
   and the pixels under it are each one contiguous run of columns * channels_in floats.

   The order of additions is fixed and knows no batch: an image's output does not depend on its neighbours. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* One call. Forward reads x, weight, bias and writes out and, if it is there, winners. Backward reads x, weight, winners
   and grad, and writes grad_weight, grad_bias and, if it is there, grad_x. */
typedef struct {
    int64_t num, height, width, channels_in, channels_out, rows, columns;
    const float *x, *weight, *bias;
    float *out;
    uint8_t *winners; /* of each element of out: 0 to 3, or STOPPED */
    const float *grad;
    float *grad_x, *grad_weight, *grad_bias;
} Call;

enum { POSITIONS = 4, STOPPED = 4 }; /* STOPPED: no output of the cell was positive */

INLINE int64_t run_of(const Call *c) { return c->columns * c->channels_in; }
INLINE int64_t stride_of(const Call *c) { return c->width * c->channels_in; }
INLINE int64_t pixels_of(const Call *c) { return c->height * stride_of(c); }
INLINE int64_t across_of(const Call *c) { return (c->width - c->columns + 1) / 2; }
INLINE int64_t cells_of(const Call *c) { return (c->height - c->rows + 1) / 2 * across_of(c); }
INLINE int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/* Where the kernel of a cell's output starts in the image. */
INLINE int64_t place_of(const Call *c, int64_t cell, int64_t position) {
    int64_t y = cell / across_of(c) * 2 + position / 2, x = cell % across_of(c) * 2 + position % 2;
    return y * stride_of(c) + x * c->channels_in;
}

typedef struct {
    int64_t at; /* where to read */
    float grad;
} Winner;

typedef struct {
    float *image, *grad_image; /* one image each */
    float *weight;             /* [channels_out][rows][run rounded up to vectors] */
    float *sums;               /* [rows][run rounded up to vectors] */
    Winner *winners;           /* of one image */
    int64_t *ends;             /* of lists of winners */
} Scratch;

/* The same source for two kinds of machine. */
#ifdef __x86_64__
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define LANES 8
#include "conv_relu_pool.h"
#undef TARGET
#undef NAME
#undef LANES
int fedssa_has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
#define forward_avx2 forward_plain
#define backward_avx2 backward_plain
int fedssa_has_avx2(void) { return 0; }
#endif

#define TARGET
#define NAME(name) name##_plain
#define LANES 4
#include "conv_relu_pool.h"

enum { LARGEST_VECTOR = 8 };

/* Zeros, aligned, with room for one vector behind. */
static void *zeros(int64_t count, size_t size) {
    size_t bytes = (size_t)round_up((count + LARGEST_VECTOR) * (int64_t)size, 64);
    void *memory = aligned_alloc(64, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

/* Both return 0, or 1 if there is no memory. */
int fedssa_forward(const Call *c, int avx2) {
    int64_t channels = round_up(c->channels_out, 2 * LARGEST_VECTOR);
    float *packed = zeros(channels * c->rows * run_of(c), sizeof(float)), *bias = zeros(channels, sizeof(float));
    int ready = packed && bias;
    if (ready) (avx2 ? forward_avx2 : forward_plain)(c, packed, bias);
    free(packed), free(bias);
    return !ready;
}

int fedssa_backward(const Call *c, int avx2) {
    int64_t kernel = c->rows * round_up(run_of(c), LARGEST_VECTOR);
    Scratch s = {
        .image = zeros(pixels_of(c), sizeof(float)),
        .grad_image = zeros(pixels_of(c), sizeof(float)),
        .weight = zeros(c->channels_out * kernel, sizeof(float)),
        .sums = zeros(kernel, sizeof(float)),
        .winners = zeros(cells_of(c) * c->channels_out, sizeof(Winner)),
        .ends = zeros(cells_of(c) * POSITIONS, sizeof(int64_t)),
    };
    int ready = s.image && s.grad_image && s.weight && s.sums && s.winners && s.ends;
    if (ready) (avx2 ? backward_avx2 : backward_plain)(c, &s);
    free(s.image), free(s.grad_image), free(s.weight), free(s.sums), free(s.winners), free(s.ends);
    return !ready;
}
