/* relu(max_pool2d(conv2d(x, weight) + bias, 2)) in one pass, and its gradients.

   After a 2 x 2 max-pool at most a quarter of the convolution's outputs have a gradient, and the ReLU stops some of
   these. Forward notes which output of each 2 x 2 cell won; backward visits the winners only.

   Images are [height][width][channels_in] floats, weights [channels_out][rows][columns][channels_in]: a row of a kernel
   and the pixels under it are each one contiguous run of columns * channels_in floats.

   The order of additions is fixed and knows no batch: an image's output does not depend on its neighbours. Nor does it
   know how wide vectors are: AVX2 and AVX-512 give the same bits. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#if defined(__x86_64__) && !defined(_WIN32)
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

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
    int32_t at; /* where to read */
    float grad;
} Winner;

typedef struct {
    float *image, *grad_image; /* one image each */
    float *weight;             /* [channels_out][rows][run rounded up to vectors] */
    float *sums;               /* [rows][run rounded up to vectors] */
    Winner *winners;           /* of one image */
    int64_t *ends;             /* of lists of winners */
} Scratch;

/* The same source for three kinds of machine. */
#define TARGET
#define NAME(name) name##_plain
#define LANES 4
#include "conv_relu_pool.h"
#undef TARGET
#undef NAME
#undef LANES

#ifdef __x86_64__
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define LANES 8
#include "conv_relu_pool.h"
#undef TARGET
#undef NAME
#undef LANES

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define NAME(name) name##_avx512
#define LANES 16
#include "conv_relu_pool.h"
#undef TARGET
#undef NAME
#undef LANES
#else
#define forward_avx2 forward_plain
#define backward_avx2 backward_plain
#define forward_avx512 forward_plain
#define backward_avx512 backward_plain
#endif

enum Level { PLAIN, AVX2, AVX512, AVX512_LINEAR }; /* the last one has linear layers in C, too (linear.c) */
enum { LARGEST_VECTOR = 16 };

/* Zeros, aligned, with room for one vector behind. */
static void *zeros(int64_t count, size_t size) {
    size_t bytes = (size_t)round_up((count + LARGEST_VECTOR) * (int64_t)size, 64);
    void *memory = aligned_alloc(64, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

/* Both return 0, or 1 if there is no memory. */
int fedssa_forward(const Call *c, int level) {
    int64_t channels = round_up(c->channels_out, 2 * LARGEST_VECTOR);
    float *packed = zeros(channels * c->rows * run_of(c), sizeof(float)), *bias = zeros(channels, sizeof(float));
    int ready = packed && bias;
    if (ready) (level >= AVX512 ? forward_avx512 : level == AVX2 ? forward_avx2 : forward_plain)(c, packed, bias);
    free(packed), free(bias);
    return !ready;
}

int fedssa_backward(const Call *c, int level) {
    int64_t kernel = c->rows * round_up(run_of(c), LARGEST_VECTOR);
    Scratch s = {
        .image = zeros(pixels_of(c), sizeof(float)),
        .grad_image = zeros(pixels_of(c), sizeof(float)),
        .weight = zeros(c->channels_out * kernel, sizeof(float)),
        .sums = zeros(kernel, sizeof(float)),
        .winners = zeros(cells_of(c) * round_up(c->channels_out, LARGEST_VECTOR), sizeof(Winner)),
        .ends = zeros(cells_of(c) * POSITIONS, sizeof(int64_t)),
    };
    int ready = s.image && s.grad_image && s.weight && s.sums && s.winners && s.ends;
    if (ready) (level >= AVX512 ? backward_avx512 : level == AVX2 ? backward_avx2 : backward_plain)(c, &s);
    free(s.image), free(s.grad_image), free(s.weight), free(s.sums), free(s.winners), free(s.ends);
    return !ready;
}

/* ----------------------------------------------------------------- the level of this machine */

#ifdef __x86_64__
/* Runs the kernels once: the paper's second convolution, on one image. */
static int try_out(int level) {
    enum { SIDE = 14, IN = 16, OUT = 32, KERNEL = 5, POOLED = 5 };
    static float x[SIDE * SIDE * IN], weight[OUT * KERNEL * KERNEL * IN], bias[OUT], out[POOLED * POOLED * OUT];
    static float grad_x[SIDE * SIDE * IN], grad_weight[OUT * KERNEL * KERNEL * IN], grad_bias[OUT];
    static uint8_t winners[POOLED * POOLED * OUT];
    for (int k = 0; k < OUT; k++) bias[k] = 1;
    Call c = {1, SIDE, SIDE, IN, OUT, KERNEL, KERNEL, x, weight, bias, out, winners, out, grad_x, grad_weight, grad_bias};
    return fedssa_forward(&c, level) || fedssa_backward(&c, level) || grad_bias[OUT - 1] != POOLED * POOLED;
}

/* Tells whether this level runs. Some machines announce instructions and trap on them, so that a child tries. */
static int survives(int level) {
#ifdef _WIN32
    return !try_out(level);
#else
    int answer[2];
    char said = 0;
    if (pipe(answer)) return 0;
    fcntl(answer[1], F_SETFD, FD_CLOEXEC);  // or a program that another thread starts would keep it open
    pid_t child = fork();
    if (child == 0) {
        signal(SIGILL, SIG_DFL);
        said = !try_out(level);
        _exit(write(answer[1], &said, 1) != 1);
    }
    close(answer[1]);
    if (child > 0) {
        while (read(answer[0], &said, 1) < 0 && errno == EINTR) continue;
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    }
    close(answer[0]);
    return said;
#endif
}
#endif

int fedssa_level(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx2 && avx512 && survives(AVX512)) return AVX512_LINEAR;
    if (avx2) return AVX2;
#endif
    return PLAIN;
}
