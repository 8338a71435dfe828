/* A step of SGD with momentum for the weight of a linear layer, from the two factors of its gradient:

       gradient = grad^T x,   velocity = momentum * velocity + gradient,   weight = weight - lr * velocity

   A tile of the gradient is summed in registers and used at once, so that it is never written to memory; in small
   batches memory is what a step waits for. Sums go over the batch from first to last, each with one rounding. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef struct {
    int64_t num, outputs, inputs;
    const float *grad;       /* [num][outputs], of the layer's output */
    const float *x;          /* [num][inputs] */
    float *weight, *velocity; /* [outputs][inputs] */
    float lr, momentum;
    int32_t first; /* the velocity becomes the gradient, whatever it was */
} LinearStep;

#ifdef __x86_64__
enum { LANES_OF_STEP = 16, PANEL = 2 * LANES_OF_STEP, TALL = 14 }; /* 28 sums, two vectors of x and one of grad */

#define TARGET __attribute__((target("avx512f,avx2,fma")))
#define INLINE static inline __attribute__((always_inline))
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++) /* the count is a constant */

/* `rows` outputs and one panel of inputs, of which `there` tells the columns that exist. */
TARGET INLINE void step_tile(const LinearStep *s, int64_t row, int64_t column, const float *panel,
                             const __mmask16 there[2], const int rows) {
    const float *grad = s->grad + row;
    float *weight = s->weight + row * s->inputs + column, *velocity = s->velocity + row * s->inputs + column;
    __m512 sums[TALL][2];
    EACH(r, rows) EACH(v, 2) {
        sums[r][v] = _mm512_setzero_ps();
        _mm_prefetch((const char *)(weight + r * s->inputs + PANEL + v * LANES_OF_STEP), _MM_HINT_T0); /* the next tile */
        _mm_prefetch((const char *)(velocity + r * s->inputs + PANEL + v * LANES_OF_STEP), _MM_HINT_T0);
    }
    for (int64_t n = 0; n < s->num; n++, panel += PANEL, grad += s->outputs) {
        const __m512 x[2] = {_mm512_load_ps(panel), _mm512_load_ps(panel + LANES_OF_STEP)};
        EACH(r, rows) {
            const __m512 g = _mm512_set1_ps(grad[r]);
            EACH(v, 2) sums[r][v] = _mm512_fmadd_ps(g, x[v], sums[r][v]);
        }
    }
    const __m512 lr = _mm512_set1_ps(s->lr), momentum = _mm512_set1_ps(s->momentum);
    EACH(r, rows) EACH(v, 2) {
        float *w = weight + r * s->inputs + v * LANES_OF_STEP, *u = velocity + r * s->inputs + v * LANES_OF_STEP;
        if (!s->first) {
            __m512 before = _mm512_maskz_loadu_ps(there[v], u);
            before = _mm512_mul_round_ps(momentum, before, _MM_FROUND_CUR_DIRECTION); /* rounded here: no compiler fuses it */
            sums[r][v] = _mm512_add_ps(before, sums[r][v]);
        }
        _mm512_mask_storeu_ps(u, there[v], sums[r][v]);
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
            const int64_t left = s->inputs - p * PANEL, count = left < PANEL ? left : PANEL;
            float *to = packed + (p * s->num + n) * PANEL;
            memcpy(to, s->x + n * s->inputs + p * PANEL, (size_t)count * sizeof(float));
            memset(to + count, 0, (size_t)(PANEL - count) * sizeof(float));
        }
    for (int64_t row = 0, tall; row < s->outputs; row += tall) {
        const int64_t rows = s->outputs - row;
        tall = rows >= TALL ? TALL : rows >= 6 ? 6 : rows >= 2 ? 2 : 1;
        for (int64_t p = 0; p < panels; p++) {
            const int64_t column = p * PANEL, left = s->inputs - column;
            const uint32_t columns = left < PANEL ? (1u << left) - 1 : UINT32_MAX;
            const __mmask16 there[2] = {(__mmask16)columns, (__mmask16)(columns >> LANES_OF_STEP)};
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
int fedssa_linear_step(const LinearStep *s) { return s != NULL; } /* never called: there is no such level */
#endif
