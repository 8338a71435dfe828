/* The body of conv_relu_pool.c, for vectors of LANES floats; every name of it goes through NAME. */

#define vec NAME(vec)
#define loose NAME(loose)
#define ints NAME(ints)
#define bytes NAME(bytes)
#define LOAD(address) ((vec)*(const loose *)(address))
#define STORE(address, value) (*(loose *)(address) = (value))
#define BLOCK (2 * LANES) /* output channels at a time: two vectors */
#define SUMS (WIDEST ? 16 : 8) /* vectors of outputs that are summed at a time */
#define WIDEST (LANES == 16)   /* AVX-512: 32 registers and masks, which intrinsics use */
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++) /* the count is a constant */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* at any address */
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

/* ------------------------------------------------------------------ forward */

/* Of two rivals the larger, of equals the earlier, and a NaN always: as torch's max_pool2d decides. */
#if WIDEST
TARGET INLINE void NAME(duel)(vec *best, ints *winner, const vec *rival, int32_t index) {
    __mmask16 wins = _mm512_cmp_ps_mask((__m512)*rival, (__m512)*best, _CMP_GT_OQ) |
                     _mm512_cmp_ps_mask((__m512)*rival, (__m512)*rival, _CMP_UNORD_Q);
    *best = (vec)_mm512_mask_mov_ps((__m512)*best, wins, (__m512)*rival);
    *winner = (ints)_mm512_mask_mov_epi32((__m512i)*winner, wins, _mm512_set1_epi32(index));
}

TARGET INLINE void NAME(stop)(vec *best, ints *winner) {
    __mmask16 stopped = _mm512_cmp_ps_mask((__m512)*best, _mm512_setzero_ps(), _CMP_LE_OQ); /* not a NaN, as below */
    *best = (vec)_mm512_mask_mov_ps((__m512)*best, stopped, _mm512_setzero_ps());
    *winner = (ints)_mm512_mask_mov_epi32((__m512i)*winner, stopped, _mm512_set1_epi32(STOPPED));
}
#else
TARGET INLINE void NAME(duel)(vec *best, ints *winner, const vec *rival, int32_t index) {
    ints wins = (*rival > *best) | (*rival != *rival);
    *best = (vec)(((ints)*rival & wins) | ((ints)*best & ~wins));
    *winner = (index & wins) | (*winner & ~wins);
}

TARGET INLINE void NAME(stop)(vec *best, ints *winner) {
    ints stopped = *best <= 0.0f; /* not a NaN: it must be seen */
    *best = (vec)((ints)*best & ~stopped);
    *winner = (STOPPED & stopped) | (*winner & ~stopped);
}
#endif

/* The four outputs of each of `cells` cells, beginning with `cell`: `wide` vectors of channels, of which `channels` are
   there. w is [rows][run][wide vectors]. */
TARGET INLINE void NAME(forward_cells)(const Call *c, const float *image, int64_t cell, const float *w, const float *bias,
                                       float *out, uint8_t *winners, size_t channels, const int cells, const int wide) {
    int64_t run = run_of(c), stride = stride_of(c), right = c->channels_in;
    const float *x[SUMS / POSITIONS];
    vec sums[SUMS], weights[2];
    EACH(i, cells) x[i] = image + place_of(c, cell + i, 0);
    EACH(i, cells * POSITIONS * wide) sums[i] = LOAD(bias + i % wide * LANES);
    for (int64_t row = 0; row < c->rows; row++) {
        for (int64_t j = 0; j < run; j++, w += wide * LANES) {
            EACH(k, wide) weights[k] = LOAD(w + k * LANES);
            EACH(i, cells * POSITIONS) {
                float pixel = x[i / POSITIONS][i % POSITIONS / 2 * stride + i % 2 * right + j];
                EACH(k, wide) sums[i * wide + k] += weights[k] * pixel;
            }
        }
        EACH(i, cells) x[i] += stride;
    }
    EACH(i, cells) {
        vec best[2];
        ints winner[2];
        bytes narrow[2];
        EACH(k, wide) {
            best[k] = sums[i * POSITIONS * wide + k], winner[k] = (ints){0};
            EACH(p, POSITIONS - 1)
                NAME(duel)(&best[k], &winner[k], &sums[(i * POSITIONS + p + 1) * wide + k], p + 1);
            NAME(stop)(&best[k], &winner[k]);
            narrow[k] = __builtin_convertvector(winner[k], bytes);
        }
        memcpy(out + i * c->channels_out, best, channels * sizeof(float));
        if (winners) memcpy(winners + i * c->channels_out, narrow, channels);
    }
}

TARGET INLINE void NAME(forward_block)(const Call *c, const float *x, const float *w, const float *bias, float *out,
                                       uint8_t *winners, size_t channels, const int wide) {
    const int cells = SUMS / POSITIONS / wide;
    for (int64_t cell = 0; cell < cells_of(c);) {
        float *to = out + cell * c->channels_out;
        uint8_t *won = winners ? winners + cell * c->channels_out : NULL;
        if (cell + cells <= cells_of(c))
            NAME(forward_cells)(c, x, cell, w, bias, to, won, channels, cells, wide), cell += cells;
        else
            NAME(forward_cells)(c, x, cell, w, bias, to, won, channels, 1, wide), cell++;
    }
}

/* weight as blocks of [rows][run][two vectors], the last one of one vector if that holds what is left */
static void NAME(pack)(const Call *c, float *packed) {
    int64_t taps = c->rows * run_of(c);
    for (int64_t out = 0; out < c->channels_out; out++) {
        int64_t first = out / BLOCK * BLOCK, block = c->channels_out - first > LANES ? BLOCK : LANES;
        for (int64_t tap = 0; tap < taps; tap++)
            packed[first * taps + tap * block + out - first] = c->weight[out * taps + tap];
    }
}

TARGET static void NAME(forward)(const Call *c, float *packed, float *bias) {
    int64_t taps = c->rows * run_of(c), outs = cells_of(c) * c->channels_out;
    NAME(pack)(c, packed);
    memcpy(bias, c->bias, (size_t)c->channels_out * sizeof(float));
    for (int64_t n = 0; n < c->num; n++)
        for (int64_t first = 0; first < c->channels_out; first += BLOCK) {
            const float *x = c->x + n * pixels_of(c), *w = packed + first * taps;
            float *out = c->out + n * outs + first;
            uint8_t *winners = c->winners ? c->winners + n * outs + first : NULL;
            int64_t left = c->channels_out - first;
            if (left >= BLOCK) /* the usual cases get a constant */
                NAME(forward_block)(c, x, w, bias + first, out, winners, BLOCK, 2);
            else if (left > LANES)
                NAME(forward_block)(c, x, w, bias + first, out, winners, (size_t)left, 2);
            else if (left == LANES)
                NAME(forward_block)(c, x, w, bias + first, out, winners, LANES, 1);
            else
                NAME(forward_block)(c, x, w, bias + first, out, winners, (size_t)left, 1);
        }
}

/* ----------------------------------------------------------------- backward */

/* to[i] (+)= sum of grad * from[at + i] over a list of winners, for a tile of vectors that stays in registers:
   `tall` rows, `from` rows `stride` apart and `to` rows `wide` apart, of `broad` vectors each. */
TARGET INLINE void NAME(sum_tile)(const float *from, int64_t stride, const Winner *list, const Winner *end, float *to,
                                  int64_t wide, const int add, const int tall, const int broad) {
    vec tile[WIDEST ? 25 : 10];
    const float *source[5];
    float *target[5];
    EACH(r, tall) source[r] = from + r * stride, target[r] = to + r * wide;
    EACH(r, tall) EACH(v, broad) tile[r * broad + v] = add ? LOAD(target[r] + v * LANES) : (vec){0};
    for (; list < end; list++) {
        float grad = list->grad;
        EACH(r, tall) EACH(v, broad) tile[r * broad + v] += LOAD(source[r] + list->at + v * LANES) * grad;
    }
    EACH(r, tall) EACH(v, broad) STORE(target[r] + v * LANES, tile[r * broad + v]);
}

/* The same for one row of any number of vectors. */
TARGET INLINE void NAME(sum_row)(const float *from, const Winner *list, const Winner *end, float *to, int64_t vectors,
                                 const int add) {
    for (; vectors >= 10; vectors -= 10, from += 10 * LANES, to += 10 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 10);
    for (; vectors >= 6; vectors -= 6, from += 6 * LANES, to += 6 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 6);
    for (; vectors >= 2; vectors -= 2, from += 2 * LANES, to += 2 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 2);
    if (vectors) NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 1);
}

/* grad_weight of one channel, from one image and the channel's winners in it. */
TARGET INLINE void NAME(add_to_weight)(const Call *c, const Scratch *s, const Winner *list, const Winner *end,
                                       float *grad_weight) {
    int64_t run = run_of(c), vectors = round_up(run, LANES) / LANES, wide = vectors * LANES, row = 0;
#define ROWS(tall, broad)                                   \
    for (; vectors == (broad) && row + (tall) <= c->rows; row += (tall)) \
        NAME(sum_tile)(s->image + row * stride_of(c), stride_of(c), list, end, s->sums + row * wide, wide, 0, tall, broad)
#if WIDEST
    ROWS(5, 5);
    ROWS(5, 1);
#endif
    ROWS(5, 2); /* short runs: several rows fill the registers better */
    ROWS(3, 2);
#undef ROWS
    for (; row < c->rows; row++)
        NAME(sum_row)(s->image + row * stride_of(c), list, end, s->sums + row * wide, vectors, 0);
    for (row = 0; row < c->rows; row++)
        for (int64_t j = 0; j < run; j++) grad_weight[row * run + j] += s->sums[row * wide + j];
}

/* Both gradients below are of one image; a channel's winners come in the order of cells. */
#if WIDEST
/* The winners of a vector of channels are found together; each channel has its own stretch of the list. */
TARGET INLINE void NAME(add_to_weight_and_bias)(const Call *c, const Scratch *s, const float *grad,
                                                const uint8_t *winners) {
    const int64_t cells = cells_of(c), across = across_of(c), taps = c->rows * run_of(c);
    int32_t shifts[LANES] = {0}, end[LANES];
    EACH(p, POSITIONS) shifts[p] = (int32_t)place_of(c, 0, p);
    const __m512i shift = _mm512_loadu_si512(shifts), stopped = _mm512_set1_epi32(STOPPED);
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0); /* at, grad, at, … */
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t first = 0; first < c->channels_out; first += LANES) {
        const int64_t left = c->channels_out - first;
        const __mmask16 there = (__mmask16)(0xffffu >> (left < LANES ? LANES - left : 0));
        __m512i ends = _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int32_t)cells));
        __m512 sum = _mm512_maskz_loadu_ps(there, c->grad_bias + first);
        for (int64_t cell = 0, x = 0, row = 0; cell < cells; cell++, x++) {
            if (x == across) x = 0, row += 2 * stride_of(c);
            const int64_t out = cell * c->channels_out + first;
            const __m512i won = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, winners + out));
            const __mmask16 live = _mm512_mask_cmpneq_epi32_mask(there, won, stopped);
            const __m512 g = _mm512_maskz_loadu_ps(there, grad + out);
            const __m512i at = _mm512_add_epi32(_mm512_permutexvar_epi32(won, shift),
                                                _mm512_set1_epi32((int32_t)(row + 2 * x * c->channels_in)));
            sum = _mm512_mask_add_ps(sum, live, sum, g);
            _mm512_mask_i32scatter_epi64(s->winners, (__mmask8)live, _mm512_castsi512_si256(ends),
                                         _mm512_permutex2var_epi32(at, low, _mm512_castps_si512(g)), sizeof(Winner));
            _mm512_mask_i32scatter_epi64(s->winners, (__mmask8)(live >> 8), _mm512_extracti64x4_epi64(ends, 1),
                                         _mm512_permutex2var_epi32(at, high, _mm512_castps_si512(g)), sizeof(Winner));
            ends = _mm512_mask_add_epi32(ends, live, ends, _mm512_set1_epi32(1));
        }
        _mm512_mask_storeu_ps(c->grad_bias + first, there, sum);
        _mm512_storeu_si512(end, ends);
        for (int64_t i = 0; i < LANES && i < left; i++)
            NAME(add_to_weight)(c, s, s->winners + i * cells, s->winners + end[i], c->grad_weight + (first + i) * taps);
    }
}
#else
/* Where the pixels under each winner of a channel are; returns the end of the list. */
TARGET INLINE Winner *NAME(winners_of_channel)(const Call *c, const float *grad, const uint8_t *winners, Winner *list) {
    int64_t shift[] = {place_of(c, 0, 0), place_of(c, 0, 1), place_of(c, 0, 2), place_of(c, 0, 3), 0};
    int64_t across = across_of(c), row = 0;
    for (int64_t left = cells_of(c), x = 0; left; left--, x++, grad += c->channels_out, winners += c->channels_out) {
        if (x == across) x = 0, row += 2 * stride_of(c);
        list->at = (int32_t)(row + 2 * x * c->channels_in + shift[*winners]);
        list->grad = *grad;
        list += *winners != STOPPED;
    }
    return list;
}

TARGET INLINE void NAME(add_to_bias)(const Call *c, const float *grad, const uint8_t *winners) {
    for (int64_t cell = 0; cell < cells_of(c); cell++, grad += c->channels_out, winners += c->channels_out)
        for (int64_t out = 0; out < c->channels_out; out++)
            c->grad_bias[out] += winners[out] == STOPPED ? 0.0f : grad[out];
}

TARGET INLINE void NAME(add_to_weight_and_bias)(const Call *c, const Scratch *s, const float *grad,
                                                const uint8_t *winners) {
    NAME(add_to_bias)(c, grad, winners);
    for (int64_t out = 0; out < c->channels_out; out++) {
        const Winner *end = NAME(winners_of_channel)(c, grad + out, winners + out, s->winners);
        NAME(add_to_weight)(c, s, s->winners, end, c->grad_weight + out * c->rows * run_of(c));
    }
}
#endif

/* An image's winners by cell and position, and where the weights of each are; ends[cell][position] ends each list. */
TARGET INLINE void NAME(winners_by_position)(const Call *c, const float *grad, const uint8_t *winners, const Scratch *s) {
    int64_t kernel = c->rows * round_up(run_of(c), LANES), begin = 0;
    for (int64_t cell = 0; cell < cells_of(c); cell++, grad += c->channels_out, winners += c->channels_out) {
        int64_t count[POSITIONS + 1] = {0}, *ends = s->ends + cell * POSITIONS;
        for (int64_t out = 0; out < c->channels_out; out++) count[winners[out]]++;
        for (int p = 0; p < POSITIONS; p++) ends[p] = begin, begin += count[p]; /* begins, which the next lines move on */
        for (int64_t out = 0; out < c->channels_out; out++)
            if (winners[out] != STOPPED)
                s->winners[ends[winners[out]]++] = (Winner){(int32_t)(out * kernel), grad[out]};
    }
}

/* Adds to the pixels under the kernels of one position of a cell, beginning with some row of the kernel. */
TARGET INLINE void NAME(add_to_grad_x)(const Call *c, const Scratch *s, int64_t cell, int p, int64_t row, const int tall,
                                       const int broad) {
    int64_t vectors = round_up(run_of(c), LANES) / LANES, wide = vectors * LANES, k = cell * POSITIONS + p;
    const Winner *list = s->winners + (k ? s->ends[k - 1] : 0), *end = s->winners + s->ends[k];
    float *to = s->grad_image + place_of(c, cell, p) + row * stride_of(c);
    if (list == end) return;
    if (tall > 1)
        NAME(sum_tile)(s->weight + row * wide, wide, list, end, to, stride_of(c), 1, tall, broad);
    else
        NAME(sum_row)(s->weight + row * wide, list, end, to, vectors, 1);
}

/* grad_x of one image. One row of all kernels at a time, whose weights stay in the cache; or whole kernels of the paper's
   size, if they fit the registers. Then rows of outputs come from the last to the first, so that what is added to a
   pixel has the same order both ways. */
TARGET INLINE void NAME(fill_grad_x)(const Call *c, const Scratch *s, float *grad_x) {
    int64_t cells = cells_of(c), across = across_of(c);
    memset(s->grad_image, 0, (size_t)pixels_of(c) * sizeof(float));
    if (WIDEST && c->rows == 5 && round_up(run_of(c), LANES) == 5 * LANES)
        for (int64_t y = 2 * (cells / across) - 1; y >= 0; y--)
            for (int64_t x = 0; x < 2 * across; x++)
                NAME(add_to_grad_x)(c, s, y / 2 * across + x / 2, (int)(y % 2 * 2 + x % 2), 0, WIDEST ? 5 : 1, 5);
    else
        for (int64_t row = 0; row < c->rows; row++)
            for (int64_t cell = 0; cell < cells; cell++)
                for (int p = 0; p < POSITIONS; p++) NAME(add_to_grad_x)(c, s, cell, p, row, 1, 0);
    memcpy(grad_x, s->grad_image, (size_t)pixels_of(c) * sizeof(float));
}

TARGET static void NAME(backward)(const Call *c, const Scratch *s) {
    int64_t run = run_of(c), wide = round_up(run, LANES), taps = c->rows * run, outs = cells_of(c) * c->channels_out;
    for (int64_t row = 0; row < c->channels_out * c->rows; row++)
        memcpy(s->weight + row * wide, c->weight + row * run, (size_t)run * sizeof(float));
    memset(c->grad_weight, 0, (size_t)(c->channels_out * taps) * sizeof(float));
    memset(c->grad_bias, 0, (size_t)c->channels_out * sizeof(float));
    for (int64_t n = 0; n < c->num; n++) {
        const float *grad = c->grad + n * outs;
        const uint8_t *winners = c->winners + n * outs;
        memcpy(s->image, c->x + n * pixels_of(c), (size_t)pixels_of(c) * sizeof(float));
        NAME(add_to_weight_and_bias)(c, s, grad, winners);
        if (c->grad_x) {
            NAME(winners_by_position)(c, grad, winners, s);
            NAME(fill_grad_x)(c, s, c->grad_x + n * pixels_of(c));
        }
    }
}

#undef vec
#undef loose
#undef ints
#undef bytes
#undef LOAD
#undef STORE
#undef BLOCK
#undef SUMS
#undef WIDEST
#undef EACH
