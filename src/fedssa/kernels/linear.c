/* The products of linear layers with small batches: out = x weight^T + bias, the gradient of x, that of the weight, and
   the step of SGD with momentum that follows from it.

   Every number is one sum, from the first term to the last, each with one rounding: it does not depend on the batch that
   it is computed in. A tile of sums stays in registers. The weight, which is the large operand, is read where it lies;
   what is packed is the batch. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* out[n][r] = start[r] + sum over k of x[n][k] * weight, which is weight[r][k], or weight[k][r] if `across`. */
typedef struct {
    int64_t num, rows, depth, across;
    const float *x, *weight, *start; /* no start: zeros */
    float *out;
} LinearProduct;

/* gradient = grad^T x,   velocity = momentum * velocity + gradient,   weight = weight - lr * velocity */
typedef struct {
    int64_t num, outputs, inputs;
    const float *grad; /* [num][outputs], of the layer's output */
    const float *x;    /* [num][inputs] */
    float *weight, *velocity; /* [outputs][inputs]; no weight: only the gradient is wanted, as the first velocity */
    float lr, momentum;
    int32_t first; /* the velocity becomes the gradient, whatever it was */
} LinearStep;

#ifdef __x86_64__
enum { LANES = 16, PANEL = 2 * LANES, TALL = 14 }; /* 28 sums, two vectors of a panel and one factor */
enum { CACHED = 1 << 19, AHEAD = 24 };             /* bytes of panels at a time; rows of the weight */

#define TARGET __attribute__((target("avx512f,avx2,fma")))
#define INLINE static inline __attribute__((always_inline))
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++) /* the count is a constant */

INLINE int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }
INLINE int64_t tall_of(int64_t rows) { return rows >= TALL ? TALL : rows >= 6 ? 6 : rows >= 2 ? 2 : 1; }
INLINE int64_t wide_of(int64_t num) { return num > LANES ? PANEL : LANES; }

/* ------------------------------------------------------------------ products */

/* `rows` rows of the weight with one panel [depth][wide vectors] of samples, of which `num` are there. */
TARGET INLINE void product_tile(const LinearProduct *p, const float *weight, const float *panel, const float *start,
                                float *out, int64_t num, const int rows, const int wide, const int across) {
    const int64_t by_row = across ? 1 : p->depth, by_term = across ? p->rows : 1;
    __m512 sums[TALL][2];
    EACH(r, rows) EACH(v, wide) sums[r][v] = start ? _mm512_set1_ps(start[r]) : _mm512_setzero_ps();
    for (int64_t k = 0; k < p->depth; k++, weight += by_term, panel += wide * LANES) {
        __m512 x[2];
        if (across) { /* one or two lines of each row, which no hardware sees coming */
            _mm_prefetch((const char *)(weight + AHEAD * by_term), _MM_HINT_T0);
            _mm_prefetch((const char *)(weight + AHEAD * by_term + rows - 1), _MM_HINT_T0);
        }
        EACH(v, wide) x[v] = _mm512_load_ps(panel + v * LANES);
        EACH(r, rows) {
            const __m512 w = _mm512_set1_ps(weight[r * by_row]);
            EACH(v, wide) sums[r][v] = _mm512_fmadd_ps(w, x[v], sums[r][v]);
        }
    }
    float tile[TALL][PANEL] __attribute__((aligned(64)));
    EACH(r, rows) EACH(v, wide) _mm512_store_ps(tile[r] + v * LANES, sums[r][v]);
    for (int64_t n = 0; n < num; n++, out += p->rows) EACH(r, rows) out[r] = tile[r][n];
}

/* The samples from `first` on, `num` of them, whose panels are packed. */
TARGET INLINE void product_rows(const LinearProduct *p, const float *packed, int64_t first, int64_t num, int64_t row,
                                const int rows, const int across) {
    const float *weight = p->weight + row * (across ? 1 : p->depth), *start = p->start ? p->start + row : NULL;
    for (int64_t n = 0; n < num; n += PANEL) {
        float *out = p->out + (first + n) * p->rows + row;
        if (wide_of(num - n) == PANEL)
            product_tile(p, weight, packed + n * p->depth, start, out, at_most(num - n, PANEL), rows, 2, across);
        else
            product_tile(p, weight, packed + n * p->depth, start, out, num - n, rows, 1, across);
    }
}

/* Samples [num][depth] as panels [depth][samples], the last one half as wide if that holds what is left. */
static void pack_samples(const float *x, int64_t num, int64_t depth, float *packed) {
    for (int64_t n = 0; n < num; n += PANEL) {
        const int64_t wide = wide_of(num - n), there = at_most(num - n, wide);
        float *panel = packed + n * depth;
        if (there < wide) memset(panel, 0, (size_t)(depth * wide) * sizeof(float));
        for (int64_t k = 0; k < depth; k += LANES) /* a line of each sample at a time */
            for (int64_t i = 0; i < there; i++)
                for (int64_t j = k; j < at_most(depth, k + LANES); j++) panel[j * wide + i] = x[(n + i) * depth + j];
    }
}

TARGET INLINE void product(const LinearProduct *p, float *packed, int64_t at_once, const int across) {
    for (int64_t first = 0; first < p->num; first += at_once) {
        const int64_t num = at_most(p->num - first, at_once);
        pack_samples(p->x + first * p->depth, num, p->depth, packed);
        for (int64_t row = 0, tall; row < p->rows; row += tall) {
            tall = tall_of(p->rows - row);
            if (tall == TALL) /* each case gets a constant */
                product_rows(p, packed, first, num, row, TALL, across);
            else if (tall == 6)
                product_rows(p, packed, first, num, row, 6, across);
            else if (tall == 2)
                product_rows(p, packed, first, num, row, 2, across);
            else
                product_rows(p, packed, first, num, row, 1, across);
        }
    }
}

/* Returns 0, or 1 if there is no memory. */
TARGET int fedssa_linear_product(const LinearProduct *p) {
    const int64_t panel = PANEL * p->depth * (int64_t)sizeof(float);
    const int64_t panels = at_most((p->num + PANEL - 1) / PANEL, panel < CACHED ? CACHED / panel : 1);
    float *packed = aligned_alloc(64, (size_t)(panels * panel));
    if (!packed) return 1;
    if (p->across)
        product(p, packed, panels * PANEL, 1);
    else
        product(p, packed, panels * PANEL, 0);
    free(packed);
    return 0;
}

/* --------------------------------------------------------- gradient and step */

/* `rows` outputs and one panel of inputs, of which `there` tells the columns that exist. */
TARGET INLINE void step_tile(const LinearStep *s, int64_t row, int64_t column, const float *panel,
                             const __mmask16 there[2], const int rows) {
    const float *grad = s->grad + row;
    const int64_t place = row * s->inputs + column;
    float *velocity = s->velocity + place, *weight = s->weight ? s->weight + place : velocity;
    __m512 sums[TALL][2];
    EACH(r, rows) EACH(v, 2) {
        sums[r][v] = _mm512_setzero_ps();
        _mm_prefetch((const char *)(weight + r * s->inputs + PANEL + v * LANES), _MM_HINT_T0); /* the next tile */
        _mm_prefetch((const char *)(velocity + r * s->inputs + PANEL + v * LANES), _MM_HINT_T0);
    }
    for (int64_t n = 0; n < s->num; n++, panel += PANEL, grad += s->outputs) {
        const __m512 x[2] = {_mm512_load_ps(panel), _mm512_load_ps(panel + LANES)};
        EACH(r, rows) {
            const __m512 g = _mm512_set1_ps(grad[r]);
            EACH(v, 2) sums[r][v] = _mm512_fmadd_ps(g, x[v], sums[r][v]);
        }
    }
    const __m512 lr = _mm512_set1_ps(s->lr), momentum = _mm512_set1_ps(s->momentum);
    EACH(r, rows) EACH(v, 2) {
        float *w = weight + r * s->inputs + v * LANES, *u = velocity + r * s->inputs + v * LANES;
        if (!s->first) {
            __m512 before = _mm512_maskz_loadu_ps(there[v], u);
            before = _mm512_mul_round_ps(momentum, before, _MM_FROUND_CUR_DIRECTION); /* rounded here: no compiler fuses it */
            sums[r][v] = _mm512_add_ps(before, sums[r][v]);
        }
        _mm512_mask_storeu_ps(u, there[v], sums[r][v]);
        if (s->weight)
            _mm512_mask_storeu_ps(w, there[v], _mm512_fnmadd_ps(lr, sums[r][v], _mm512_maskz_loadu_ps(there[v], w)));
    }
}

/* Returns 0, or 1 if there is no memory. */
TARGET int fedssa_linear_step(const LinearStep *s) {
    const int64_t panels = (s->inputs + PANEL - 1) / PANEL;
    float *packed = aligned_alloc(64, (size_t)(panels * s->num * PANEL) * sizeof(float)); /* x as [panels][num][PANEL] */
    if (!packed) return 1;
    for (int64_t p = 0; p < panels; p++)
        for (int64_t n = 0; n < s->num; n++) {
            const int64_t count = at_most(s->inputs - p * PANEL, PANEL);
            float *to = packed + (p * s->num + n) * PANEL;
            memcpy(to, s->x + n * s->inputs + p * PANEL, (size_t)count * sizeof(float));
            memset(to + count, 0, (size_t)(PANEL - count) * sizeof(float));
        }
    for (int64_t row = 0, tall; row < s->outputs; row += tall) {
        tall = tall_of(s->outputs - row);
        for (int64_t p = 0; p < panels; p++) {
            const int64_t column = p * PANEL, left = s->inputs - column;
            const uint32_t columns = left < PANEL ? (1u << left) - 1 : UINT32_MAX;
            const __mmask16 there[2] = {(__mmask16)columns, (__mmask16)(columns >> LANES)};
            const float *panel = packed + p * s->num * PANEL;
            if (tall == TALL) /* each case gets a constant */
                step_tile(s, row, column, panel, there, TALL);
            else if (tall == 6)
                step_tile(s, row, column, panel, there, 6);
            else if (tall == 2)
                step_tile(s, row, column, panel, there, 2);
            else
                step_tile(s, row, column, panel, there, 1);
        }
    }
    free(packed);
    return 0;
}
#else
int fedssa_linear_product(const LinearProduct *p) { return p != NULL; } /* never called: there is no such level */
int fedssa_linear_step(const LinearStep *s) { return s != NULL; }
#endif
