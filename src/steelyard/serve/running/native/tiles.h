// A tile of rows times one panel, for each kind of weights.
//
// A column's sum runs along the inner axis in one order, whatever the number of rows.
#pragma once

#include "rows.h"

#define UNROLL _Pragma("GCC unroll 32")

// What a call of a tile works on.
struct Span {
    const int32_t* tile;   // activations, at the first word of this piece
    const uint8_t* lines;  // weights
    long depth;            // lines
    float* out;            // the panel's columns of the tile's first row
    long out_row, rows;    // rows that are stored
    bool fresh;            // whether sums start from 0, not from what stands in `out`
    const float* bias;     // of the panel, or null
    long panel;
};

// Bytes ahead of the weights in use that are fetched. At few rows the processor runs ahead by
// itself, and is only disturbed; at many it sees too few loads at a time to do so.
template <int R>
INLINE void fetch(const uint8_t* line) {
    __builtin_prefetch(line + (R <= 6 ? 256 : 2048));
}

template <int R>
INLINE void begin(const Span& s, Floats (&total)[R]) {
    UNROLL for (int r = 0; r < R; r++) {
        total[r] = s.fresh || r >= s.rows ? Floats{} : load_floats(s.out + r * s.out_row);
        if (s.bias) total[r] += load_floats(s.bias);
    }
}

template <int R>
INLINE void finish(const Span& s, const Floats (&total)[R]) {
    UNROLL for (int r = 0; r < R; r++)
        if (r < s.rows) store(s.out + r * s.out_row, total[r]);
}

// Adds scale * total to what a tile begins with.
template <int R>
INLINE void finish_scaled(const Span& s, const Floats (&total)[R], const float* scales) {
    Floats out[R];
    begin<R>(s, out);
    UNROLL for (int r = 0; r < R; r++) out[r] += scales[r] * total[r];
    finish<R>(s, out);
}

template <int64_t KIND, int R>
static void float_tile(const Linear&, const Span& s) {
    Floats total[R];
    begin<R>(s, total);
    for (long line = 0; line < s.depth; line++) {
        const Words weights = load_words(s.lines + line * LINE);
        fetch<R>(s.lines + line * LINE);
        UNROLL for (int r = 0; r < R; r++)
            if constexpr (KIND == FP32) add_floats(total[r], weights, s.tile[line * R + r]);
            else add_pairs(total[r], weights, s.tile[line * R + r]);
    }
    finish<R>(s, total);
}

template <int R>
static void byte_tile(const Linear& map, const Span& s) {
    Words total[R] = {};
    for (long line = 0; line < s.depth; line++) {
        const Words weights = load_words(s.lines + line * LINE);
        fetch<R>(s.lines + line * LINE);
        UNROLL for (int r = 0; r < R; r++) add_bytes(total[r], weights, s.tile[line * R + r]);
    }
    const float* scales = (const float*)(s.tile + s.depth * R);
    const int32_t* sums = s.tile + (s.depth + 1) * R;
    const Floats scale = load_floats((const float*)map.scales + s.panel * PANEL);
    Floats scaled[R];
    UNROLL for (int r = 0; r < R; r++)
        scaled[r] = to_floats(less(total[r], BYTE_OFFSET * sums[r])) * scale;
    finish_scaled<R>(s, scaled, scales);
}

template <int R>
static void nibble_tile(const Linear& map, const Span& s) {
    const long words = words_of(INT4, map.inputs), groups = groups_of(map.inputs, map.group);
    const int32_t* sums = s.tile + (words + 1) * R;
    const long wide = map.group / 8;
    Floats total[R] = {};
    for (long g = 0; g < groups; g++) {
        Words dot[R] = {};
        for (long line = g * wide; line < std::min(s.depth, (g + 1) * wide); line++) {
            const Words both = load_words(s.lines + line * LINE);
            fetch<R>(s.lines + line * LINE);
            const Words low = low_nibbles(both), high = high_nibbles(both);
            const int32_t* x = s.tile + 2 * line * R;
            UNROLL for (int r = 0; r < R; r++) add_nibbles(dot[r], low, x[r]);
            UNROLL for (int r = 0; r < R; r++) add_nibbles(dot[r], high, x[R + r]);
        }
        const long place = (s.panel * groups + g) * PANEL;
        const Floats scale = halves_to_floats((const uint16_t*)map.scales + place);
        const Floats zero = map.zeros ? bytes_to_floats(map.zeros + place) : spread_floats(8.0f);
        UNROLL for (int r = 0; r < R; r++)
            total[r] += scale * (to_floats(dot[r]) - (float)sums[g * R + r] * zero);
    }
    finish_scaled<R>(s, total, (const float*)(s.tile + words * R));
}

template <int R>
static void tile_of(const Linear& map, const Span& s) {
    switch (map.kind) {
        case FP32: return float_tile<FP32, R>(map, s);
        case BF16: return float_tile<BF16, R>(map, s);
        case INT8: return byte_tile<R>(map, s);
        case INT4: return nibble_tile<R>(map, s);
    }
}

// Multiplies a tile of `tile_height(s.rows)` rows.
static void multiply_tile(const Linear& map, const Span& s) {
    switch (tile_height(s.rows)) {
        case 1: return tile_of<1>(map, s);
        case 2: return tile_of<2>(map, s);
        case 3: return tile_of<3>(map, s);
        case 4: return tile_of<4>(map, s);
        case 6: return tile_of<6>(map, s);
#if defined(STEELYARD_WIDE)
        case 8: return tile_of<8>(map, s);
        case 12: return tile_of<12>(map, s);
        case 16: return tile_of<16>(map, s);
        case 20: return tile_of<20>(map, s);
        case 24: return tile_of<24>(map, s);
#endif
    }
}
