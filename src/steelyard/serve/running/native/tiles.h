// A tile of rows times one panel: what all kinds of weights share.
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

template <int R>
struct Height {
    static constexpr int value = R;
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

// Multiply a tile of `tile_height(s.rows)` rows.
void multiply_floats(const Linear& map, const Span& s);
void multiply_pairs(const Linear& map, const Span& s);
void multiply_bytes(const Linear& map, const Span& s);
void multiply_nibbles(const Linear& map, const Span& s);

// Calls the code of a height.
template <class Call>
INLINE void at_height(long rows, const Call& call) {
    switch (tile_height(rows)) {
        case 1: return call(Height<1>());
        case 2: return call(Height<2>());
        case 3: return call(Height<3>());
        case 4: return call(Height<4>());
        case 6: return call(Height<6>());
#if defined(STEELYARD_WIDE)
        case 8: return call(Height<8>());
        case 12: return call(Height<12>());
        case 16: return call(Height<16>());
        case 20: return call(Height<20>());
        case 24: return call(Height<24>());
#endif
    }
}
