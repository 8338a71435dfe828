/* The kernels against loops that cannot be wrong, for a build with sanitizers. Every buffer is exactly as large as it
   must be and aligned for a float, no more; numbers are whole, so that all sums are exact and results are equal. */

#include "amx.c"
#include "batch.c"
#include "conv_relu_pool.c"
#include "linear.c"

#include <stdio.h>

static uint32_t state = 1;

static int64_t between(int64_t low, int64_t high) {
    state = state * 1664525u + 1013904223u;
    return low + (int64_t)(state >> 8) % (high - low + 1);
}

static void fail(const char *what, int64_t at) {
    fprintf(stderr, "%s differs at %lld\n", what, (long long)at);
    exit(1);
}

/* Ends where the allocation ends; four bytes beyond its alignment. */
static void *buffer(int64_t count, size_t size) {
    char *memory = malloc((size_t)count * size + 4);
    if (!memory) abort();
    memset(memory, 0xff, (size_t)count * size + 4); /* NaN: what is not written, or read too early, is seen */
    return memory + 4;
}

static void release(const void *memory) { free((char *)(uintptr_t)memory - 4); }

static float *numbers(int64_t count, int64_t largest) {
    float *memory = buffer(count, sizeof(float));
    for (int64_t i = 0; i < count; i++) memory[i] = (float)between(-largest, largest);
    return memory;
}

static void same(const char *what, const float *ours, const double *theirs, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!((double)ours[i] == theirs[i])) fail(what, i);
}

/* ------------------------------------------------------------------ conv, ReLU, pool */

typedef struct {
    double *out, *grad_x, *grad_weight, *grad_bias;
} Expected;

static double *doubles(int64_t count) {
    double *memory = calloc((size_t)count, sizeof(double));
    return memory ? memory : (abort(), NULL);
}

/* What the kernel of output channel k at (y, x) sees: each tap's place in the image, and in the weights. */
static double convolve(const Call *c, const float *image, int64_t k, int64_t y, int64_t x) {
    double sum = (double)c->bias[k];
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->columns; j++)
            for (int64_t in = 0; in < c->channels_in; in++)
                sum += (double)image[((y + i) * c->width + x + j) * c->channels_in + in] *
                       (double)c->weight[((k * c->rows + i) * c->columns + j) * c->channels_in + in];
    return sum;
}

static void spread(const Call *c, const Expected *e, int64_t n, int64_t k, int64_t y, int64_t x, double grad) {
    e->grad_bias[k] += grad;
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->columns; j++)
            for (int64_t in = 0; in < c->channels_in; in++) {
                int64_t pixel = (((n * c->height + y + i) * c->width) + x + j) * c->channels_in + in;
                int64_t tap = ((k * c->rows + i) * c->columns + j) * c->channels_in + in;
                e->grad_x[pixel] += grad * (double)c->weight[tap];
                e->grad_weight[tap] += grad * (double)c->x[pixel];
            }
}

static void expect(const Call *c, const Expected *e) {
    int64_t tall = (c->height - c->rows + 1) / 2, wide = (c->width - c->columns + 1) / 2;
    for (int64_t n = 0; n < c->num; n++)
        for (int64_t cell = 0; cell < tall * wide; cell++)
            for (int64_t k = 0; k < c->channels_out; k++) {
                int64_t y = cell / wide * 2, x = cell % wide * 2, at = (n * tall * wide + cell) * c->channels_out + k;
                double best = -1e300;
                int64_t winner = 0;
                for (int64_t p = 0; p < 4; p++) {
                    double rival = convolve(c, c->x + n * c->height * c->width * c->channels_in, k, y + p / 2, x + p % 2);
                    if (rival > best) best = rival, winner = p;
                }
                e->out[at] = best > 0 ? best : 0;
                if (best > 0) spread(c, e, n, k, y + winner / 2, x + winner % 2, (double)c->grad[at]);
            }
}

static void convolve_all(const Call *shape, int level, int64_t largest) {
    Call c = *shape;
    int64_t pixels = c.num * c.height * c.width * c.channels_in;
    int64_t taps = c.channels_out * c.rows * c.columns * c.channels_in;
    int64_t outs = c.num * ((c.height - c.rows + 1) / 2) * ((c.width - c.columns + 1) / 2) * c.channels_out;
    c.x = numbers(pixels, largest), c.weight = numbers(taps, largest), c.bias = numbers(c.channels_out, largest);
    c.grad = numbers(outs, largest), c.out = buffer(outs, sizeof(float)), c.winners = buffer(outs, 1);
    c.grad_x = buffer(pixels, sizeof(float)), c.grad_weight = buffer(taps, sizeof(float));
    c.grad_bias = buffer(c.channels_out, sizeof(float));
    Expected e = {doubles(outs), doubles(pixels), doubles(taps), doubles(c.channels_out)};
    expect(&c, &e);

    if (fedssa_forward(&c, level)) fail("memory of forward", 0);
    same("out", c.out, e.out, outs);
    if (fedssa_backward(&c, level)) fail("memory of backward", 0);
    same("grad_x", c.grad_x, e.grad_x, pixels);
    same("grad_weight", c.grad_weight, e.grad_weight, taps);
    same("grad_bias", c.grad_bias, e.grad_bias, c.channels_out);

    Call less = c; /* an evaluation, and a first layer */
    less.winners = NULL, less.out = buffer(outs, sizeof(float));
    if (fedssa_forward(&less, level)) fail("memory of forward", 0);
    same("out without winners", less.out, e.out, outs);
    less.winners = c.winners, less.grad_x = NULL, memset(c.grad_weight, 0xff, (size_t)taps * sizeof(float));
    if (fedssa_backward(&less, level)) fail("memory of backward", 0);
    same("grad_weight alone", c.grad_weight, e.grad_weight, taps);

    release(c.x), release(c.weight), release(c.bias), release(c.grad), release(c.out), release(c.winners);
    release(c.grad_x), release(c.grad_weight), release(c.grad_bias), release(less.out);
    free(e.out), free(e.grad_x), free(e.grad_weight), free(e.grad_bias);
}

static void no_memory(int level) {
    Call c = {.num = 1, .height = 6, .width = 6, .channels_in = 1, .channels_out = (int64_t)1 << 50, .rows = 5, .columns = 5};
    if (!fedssa_forward(&c, level)) fail("forward without memory", 0);
    if (!fedssa_backward(&c, level)) fail("backward without memory", 0);
}

/* num, height, width, channels_in, channels_out, rows, columns */
static const Call SHAPES[] = {
    {.num = 2, .height = 32, .width = 32, .channels_in = 3, .channels_out = 16, .rows = 5, .columns = 5},
    {.num = 2, .height = 14, .width = 14, .channels_in = 16, .channels_out = 32, .rows = 5, .columns = 5},
    {.num = 1, .height = 2, .width = 2, .channels_in = 1, .channels_out = 1, .rows = 1, .columns = 1},
    {.num = 3, .height = 6, .width = 6, .channels_in = 3, .channels_out = 17, .rows = 5, .columns = 5},
    {.num = 2, .height = 9, .width = 8, .channels_in = 33, .channels_out = 33, .rows = 3, .columns = 3},
    {.num = 2, .height = 13, .width = 9, .channels_in = 1, .channels_out = 5, .rows = 7, .columns = 2},
    {.num = 2, .height = 5, .width = 14, .channels_in = 32, .channels_out = 3, .rows = 3, .columns = 9},
};

static void all_convolutions(int level) {
    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(*SHAPES); i++) convolve_all(&SHAPES[i], level, 3);
    for (int i = 0; i < 150; i++) {
        Call c = {.num = between(1, 3), .rows = between(1, 7), .columns = between(1, 7)};
        c.height = c.rows + between(1, 6), c.width = c.columns + between(1, 6);
        c.channels_in = between(1, 12), c.channels_out = between(1, 35);
        convolve_all(&c, level, i % 2 ? 1 : 5); /* with many ties, and with few */
    }
    no_memory(level);
}

/* ------------------------------------------------------------------ batches */

static float expected_pixel(const Batch *b, int64_t n, int64_t y, int64_t x, int64_t channel) {
    if (b->down) {
        const int64_t *hole = b->holes + 4 * n;
        if (y >= hole[0] && y < hole[0] + hole[2] && x >= hole[1] && x < hole[1] + hole[3]) return 0;
        y += b->down[n], x = (b->mirrored[n] ? b->width - 1 - x : x) + b->right[n];
        if (y < 0 || y >= b->height || x < 0 || x >= b->width) return 0;
    }
    int64_t at = ((b->index[n] * b->height + y) * b->width + x) * b->channels + channel;
    return b->table ? b->table[((const uint8_t *)b->samples)[at]] : ((const float *)b->samples)[at];
}

static int64_t *whole(int64_t count, int64_t low, int64_t high) {
    int64_t *memory = malloc((size_t)count * sizeof(int64_t));
    if (!memory) abort();
    for (int64_t i = 0; i < count; i++) memory[i] = between(low, high);
    return memory;
}

static void compare_batch(const Batch *b) {
    int64_t at = 0;
    for (int64_t n = 0; n < b->num; n++)
        for (int64_t y = 0; y < b->height; y++)
            for (int64_t x = 0; x < b->width; x++)
                for (int64_t channel = 0; channel < b->channels; channel++, at++)
                    if (!(b->out[at] == expected_pixel(b, n, y, x, channel))) fail("a batch", at);
}

static void gather_all(int bytes, int moved) {
    Batch b = {.num = between(1, 5), .height = between(1, 9), .width = between(1, 9), .channels = between(1, 4)};
    b.num_samples = between(1, 6);
    int64_t size = b.height * b.width * b.channels;
    float *table = numbers(256, 1000), *floats = numbers(b.num_samples * size, 1000);
    uint8_t *raw = buffer(b.num_samples * size, 1), *mirrored = buffer(b.num, 1);
    for (int64_t i = 0; i < b.num_samples * size; i++) raw[i] = (uint8_t)between(0, 255);
    for (int64_t i = 0; i < b.num; i++) mirrored[i] = (uint8_t)between(0, 1);
    int64_t *index = whole(b.num, 0, b.num_samples - 1), *down = whole(b.num, -11, 11), *right = whole(b.num, -11, 11);
    int64_t *holes = whole(4 * b.num, -11, 11);
    b.samples = bytes ? (void *)raw : floats, b.table = bytes ? table : NULL, b.index = index;
    if (moved) b.down = down, b.right = right, b.mirrored = mirrored, b.holes = holes;
    b.out = buffer(b.num * size, sizeof(float));

    if (fedssa_gather(&b)) fail("an index", 0);
    compare_batch(&b);
    index[b.num - 1] = between(0, 1) ? b.num_samples : -1;
    if (!fedssa_gather(&b)) fail("a wrong index", index[b.num - 1]);

    release(table), release(floats), release(raw), release(mirrored), release(b.out);
    free(index), free(down), free(right), free(holes);
}

/* ------------------------------------------------------------------ linear layers */

static void multiply_once(int across) {
    LinearProduct p = {.num = between(1, 70), .rows = between(1, 40), .depth = between(1, 70), .across = across};
    p.x = numbers(p.num * p.depth, 9), p.weight = numbers(p.rows * p.depth, 9);
    p.start = between(0, 1) ? numbers(p.rows, 9) : NULL;
    p.out = buffer(p.num * p.rows, sizeof(float));
    double *out = doubles(p.num * p.rows);
    for (int64_t i = 0; i < p.num * p.rows; i++) {
        const int64_t n = i / p.rows, r = i % p.rows;
        out[i] = p.start ? (double)p.start[r] : 0;
        for (int64_t k = 0; k < p.depth; k++)
            out[i] += (double)p.x[n * p.depth + k] * (double)p.weight[across ? k * p.rows + r : r * p.depth + k];
    }
    if (fedssa_linear_product(&p)) fail("memory of a product", 0);
    same("a product", p.out, out, p.num * p.rows);
    if (p.start) release(p.start);
    release(p.x), release(p.weight), release(p.out), free(out);
}

static void gradient_once(void) {
    LinearStep s = {.num = between(1, 9), .outputs = between(1, 40), .inputs = between(1, 70), .first = 1};
    const int64_t size = s.outputs * s.inputs;
    s.grad = numbers(s.num * s.outputs, 9), s.x = numbers(s.num * s.inputs, 9), s.velocity = buffer(size, sizeof(float));
    double *gradient = doubles(size);
    for (int64_t i = 0; i < size; i++)
        for (int64_t n = 0; n < s.num; n++)
            gradient[i] += (double)s.grad[n * s.outputs + i / s.inputs] * (double)s.x[n * s.inputs + i % s.inputs];
    if (fedssa_linear_step(&s)) fail("memory of a gradient", 0);
    same("a gradient", s.velocity, gradient, size);
    release(s.grad), release(s.x), release(s.velocity), free(gradient);
}

static void step_once(int first) {
    LinearStep s = {.num = between(1, 9), .outputs = between(1, 40), .inputs = between(1, 70), .lr = 2, .momentum = 3, .first = first};
    const int64_t size = s.outputs * s.inputs;
    s.grad = numbers(s.num * s.outputs, 9), s.x = numbers(s.num * s.inputs, 9);
    s.weight = numbers(size, 9), s.velocity = numbers(size, 9);
    double *weight = doubles(size), *velocity = doubles(size);
    for (int64_t i = 0; i < size; i++) {
        velocity[i] = first ? 0 : 3 * (double)s.velocity[i];
        for (int64_t n = 0; n < s.num; n++)
            velocity[i] += (double)s.grad[n * s.outputs + i / s.inputs] * (double)s.x[n * s.inputs + i % s.inputs];
        weight[i] = (double)s.weight[i] - 2 * velocity[i];
    }
    if (fedssa_linear_step(&s)) fail("memory of a step", 0);
    same("a velocity", s.velocity, velocity, size), same("a weight", s.weight, weight, size);
    release(s.grad), release(s.x), release(s.weight), release(s.velocity), free(weight), free(velocity);
}

int main(void) {
    const char *names[] = {"plain", "avx2", "avx512", "avx512, linear"};
    for (int level = PLAIN; level <= fedssa_level(); level++) all_convolutions(level), puts(names[level]);
    for (int i = 0; i < 2000; i++) gather_all(i & 1, i & 2);
    for (int i = 0; i < 2000 && fedssa_level() == AVX512_LINEAR; i++) step_once(i & 1), multiply_once(i & 1), gradient_once();
    return 0;
}
