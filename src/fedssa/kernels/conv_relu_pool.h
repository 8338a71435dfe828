/* The body of conv_relu_pool.c, for vectors of LANES floats; every name of it goes through NAME. */

#define vec NAME(vec)
#define loose NAME(loose)
#define ints NAME(ints)
#define bytes NAME(bytes)
#define LOAD(address) ((vec)*(const loose *)(address))
#define STORE(address, value) (*(loose *)(address) = (value))
#define BLOCK (2 * LANES) /* output channels at a time: two vectors */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* at any address */
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

/* ------------------------------------------------------------------ forward */

/* Of two rivals the larger, of equals the earlier, and a NaN always: as torch's max_pool2d decides. */
INLINE void NAME(duel)(vec *best, ints *winner, const vec *rival, int32_t index) {
    ints wins = (*rival > *best) | (*rival != *rival);
    *best = (vec)(((ints)*rival & wins) | ((ints)*best & ~wins));
    *winner = (index & wins) | (*winner & ~wins);
}

INLINE void NAME(stop)(vec *best, ints *winner) {
    ints stopped = *best <= 0.0f; /* not a NaN: it must be seen */
    *best = (vec)((ints)*best & ~stopped);
    *winner = (STOPPED & stopped) | (*winner & ~stopped);
}

/* BLOCK channels of the four outputs of a cell: kernels that start at x, one pixel right, one below, and both.
   w is [rows][run][BLOCK]. */
INLINE void NAME(forward_cell)(const Call *c, const float *x, const float *w, const float *bias, vec best[2],
                               ints winner[2]) {
    int64_t run = run_of(c), stride = stride_of(c), right = c->channels_in;
    vec a0 = LOAD(bias), a1 = LOAD(bias + LANES);
    vec b0 = a0, b1 = a1, c0 = a0, c1 = a1, d0 = a0, d1 = a1;
    for (int64_t row = 0; row < c->rows; row++) {
        const float *upper = x + row * stride, *lower = upper + stride;
        for (int64_t j = 0; j < run; j++, w += BLOCK) {
            vec w0 = LOAD(w), w1 = LOAD(w + LANES);
            a0 += w0 * upper[j], a1 += w1 * upper[j];
            b0 += w0 * upper[j + right], b1 += w1 * upper[j + right];
            c0 += w0 * lower[j], c1 += w1 * lower[j];
            d0 += w0 * lower[j + right], d1 += w1 * lower[j + right];
        }
    }
    winner[0] = winner[1] = (ints){0};
    NAME(duel)(&a0, &winner[0], &b0, 1), NAME(duel)(&a1, &winner[1], &b1, 1);
    NAME(duel)(&a0, &winner[0], &c0, 2), NAME(duel)(&a1, &winner[1], &c1, 2);
    NAME(duel)(&a0, &winner[0], &d0, 3), NAME(duel)(&a1, &winner[1], &d1, 3);
    NAME(stop)(&a0, &winner[0]), NAME(stop)(&a1, &winner[1]);
    best[0] = a0, best[1] = a1;
}

INLINE void NAME(forward_block)(const Call *c, const float *x, const float *w, const float *bias, float *out,
                                uint8_t *winners, size_t channels) {
    for (int64_t cell = 0; cell < cells_of(c); cell++, out += c->channels_out) {
        vec best[2];
        ints winner[2];
        NAME(forward_cell)(c, x + place_of(c, cell, 0), w, bias, best, winner);
        memcpy(out, best, channels * sizeof(float));
        if (winners) {
            bytes narrow[2] = {__builtin_convertvector(winner[0], bytes), __builtin_convertvector(winner[1], bytes)};
            memcpy(winners, narrow, channels);
            winners += c->channels_out;
        }
    }
}

/* weight as [block][rows][run][BLOCK] */
static void NAME(pack)(const Call *c, float *packed) {
    int64_t taps = c->rows * run_of(c);
    for (int64_t out = 0; out < c->channels_out; out++)
        for (int64_t tap = 0; tap < taps; tap++)
            packed[(out / BLOCK * taps + tap) * BLOCK + out % BLOCK] = c->weight[out * taps + tap];
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
            if (c->channels_out - first >= BLOCK) /* the usual case gets a constant */
                NAME(forward_block)(c, x, w, bias + first, out, winners, BLOCK);
            else
                NAME(forward_block)(c, x, w, bias + first, out, winners, (size_t)(c->channels_out - first));
        }
}

/* ----------------------------------------------------------------- backward */

/* to[i] (+)= sum of grad * from[at + i] over a list of winners, for a tile of vectors that stays in registers:
   `tall` rows, `from` rows `stride` apart and `to` rows `wide` apart, of `broad` vectors each. */
INLINE void NAME(sum_tile)(const float *from, int64_t stride, const Winner *list, const Winner *end, float *to,
                           int64_t wide, const int add, const int tall, const int broad) {
    vec tile[10];
#define EACH _Pragma("GCC unroll 10") for (int i = 0; i < tall * broad; i++)
    EACH tile[i] = add ? LOAD(to + i / broad * wide + i % broad * LANES) : (vec){0};
    for (; list < end; list++) {
        const float *source = from + list->at;
        float grad = list->grad;
        EACH tile[i] += LOAD(source + i / broad * stride + i % broad * LANES) * grad;
    }
    EACH STORE(to + i / broad * wide + i % broad * LANES, tile[i]);
#undef EACH
}

/* The same for one row of any number of vectors. */
INLINE void NAME(sum_row)(const float *from, const Winner *list, const Winner *end, float *to, int64_t vectors,
                          const int add) {
    for (; vectors >= 10; vectors -= 10, from += 10 * LANES, to += 10 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 10);
    for (; vectors >= 6; vectors -= 6, from += 6 * LANES, to += 6 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 6);
    for (; vectors >= 2; vectors -= 2, from += 2 * LANES, to += 2 * LANES)
        NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 2);
    if (vectors) NAME(sum_tile)(from, 0, list, end, to, 0, add, 1, 1);
}

/* A channel's winners in the order of cells, and where the pixels under each are; returns the end of the list. */
INLINE Winner *NAME(winners_of_channel)(const Call *c, const float *grad, const uint8_t *winners, Winner *list) {
    int64_t shift[] = {place_of(c, 0, 0), place_of(c, 0, 1), place_of(c, 0, 2), place_of(c, 0, 3), 0};
    int64_t across = across_of(c), row = 0;
    for (int64_t left = cells_of(c), x = 0; left; left--, x++, grad += c->channels_out, winners += c->channels_out) {
        if (x == across) x = 0, row += 2 * stride_of(c);
        list->at = row + 2 * x * c->channels_in + shift[*winners];
        list->grad = *grad;
        list += *winners != STOPPED;
    }
    return list;
}

/* grad_weight of one channel, from one image. */
INLINE void NAME(add_to_weight)(const Call *c, const Scratch *s, const Winner *end, float *grad_weight) {
    int64_t run = run_of(c), vectors = round_up(run, LANES) / LANES, wide = vectors * LANES, row = 0;
    for (; vectors == 2 && row + 5 <= c->rows; row += 5) /* short runs: several rows fill the registers better */
        NAME(sum_tile)(s->image + row * stride_of(c), stride_of(c), s->winners, end, s->sums + row * wide, wide, 0, 5, 2);
    for (; vectors == 2 && row + 3 <= c->rows; row += 3)
        NAME(sum_tile)(s->image + row * stride_of(c), stride_of(c), s->winners, end, s->sums + row * wide, wide, 0, 3, 2);
    for (; row < c->rows; row++)
        NAME(sum_row)(s->image + row * stride_of(c), s->winners, end, s->sums + row * wide, vectors, 0);
    for (row = 0; row < c->rows; row++)
        for (int64_t j = 0; j < run; j++) grad_weight[row * run + j] += s->sums[row * wide + j];
}

INLINE void NAME(add_to_bias)(const Call *c, const float *grad, const uint8_t *winners) {
    for (int64_t cell = 0; cell < cells_of(c); cell++, grad += c->channels_out, winners += c->channels_out)
        for (int64_t out = 0; out < c->channels_out; out++)
            c->grad_bias[out] += winners[out] == STOPPED ? 0.0f : grad[out];
}

/* An image's winners by cell and position, and where the weights of each are; ends[cell][position] ends each list. */
INLINE void NAME(winners_by_position)(const Call *c, const float *grad, const uint8_t *winners, const Scratch *s) {
    int64_t kernel = c->rows * round_up(run_of(c), LANES), begin = 0;
    for (int64_t cell = 0; cell < cells_of(c); cell++, grad += c->channels_out, winners += c->channels_out) {
        int64_t count[POSITIONS + 1] = {0}, *ends = s->ends + cell * POSITIONS;
        for (int64_t out = 0; out < c->channels_out; out++) count[winners[out]]++;
        for (int p = 0; p < POSITIONS; p++) ends[p] = begin, begin += count[p]; /* begins, which the next lines move on */
        for (int64_t out = 0; out < c->channels_out; out++)
            if (winners[out] != STOPPED) s->winners[ends[winners[out]]++] = (Winner){out * kernel, grad[out]};
    }
}

/* grad_x of one image. One row of all kernels at a time: these weights stay in the cache. */
INLINE void NAME(fill_grad_x)(const Call *c, const Scratch *s, float *grad_x) {
    int64_t vectors = round_up(run_of(c), LANES) / LANES;
    memset(s->grad_image, 0, (size_t)pixels_of(c) * sizeof(float));
    for (int64_t row = 0; row < c->rows; row++) {
        const Winner *list = s->winners;
        for (int64_t cell = 0; cell < cells_of(c); cell++)
            for (int p = 0; p < POSITIONS; p++) {
                const Winner *end = s->winners + s->ends[cell * POSITIONS + p];
                float *to = s->grad_image + place_of(c, cell, p) + row * stride_of(c);
                if (list < end) NAME(sum_row)(s->weight + row * vectors * LANES, list, end, to, vectors, 1);
                list = end;
            }
    }
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
        NAME(add_to_bias)(c, grad, winners);
        for (int64_t out = 0; out < c->channels_out; out++) {
            const Winner *end = NAME(winners_of_channel)(c, grad + out, winners + out, s->winners);
            NAME(add_to_weight)(c, s, end, c->grad_weight + out * taps);
        }
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
