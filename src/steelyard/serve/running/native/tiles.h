// A tile of rows times a few panels: what all kinds of weights share.
//
// A column's sum runs along the inner axis in one order, whatever the number of rows.
#pragma once

#include "rows.h"

#define UNROLL _Pragma("GCC unroll 32")

// One panel of a call: its weights, columns of the tile's first row, bias or null, and number. All
// panels of a call may be the same one.
struct Panel {
    const uint8_t* lines;
    float* out;
    const float* bias;
    long index;
};

// What a call of a tile works on.
struct Span {
    const int32_t* tile;  // activations, at the first chunk of this piece
    long depth;           // lines
    long out_row, rows;   // rows that are stored
    bool fresh;           // whether sums start from 0, not from what stands in `out`
    Panel panels[PANELS];
    // What is fetched meanwhile: the weights that come next, so many bytes per line of these.
    const uint8_t* ahead;
    long pace;
};

template <int R>
struct Height {
    static constexpr int value = R;
};

// Into the second-level cache: there is room for all panels of a call.
INLINE void fetch(const Span& s, long line) {
    const uint8_t* place = s.ahead + line * s.pace;
    UNROLL for (int p = 0; p < PANELS; p++) __builtin_prefetch(place + p * LINE, 0, 2);
}

// Calls `body(line, words)` for each line of a span, whose words of row r are at words[r * CHUNK].
template <int R, int WORDS, class Body>
INLINE void each_line(const int32_t* tile, long first, long end, const Body& body) {
    for (long line = first; line < end;) {
        const long place = line * WORDS;
        const int32_t* words = tile + place / CHUNK * R * CHUNK + place % CHUNK;
        const long stop = std::min(end, (place / CHUNK + 1) * CHUNK / WORDS);
        for (; line < stop; line++, words += WORDS) body(line, words);
    }
}

// What rows of a panel start from.
template <int R>
INLINE void begin(const Span& s, const Panel& panel, Floats (&total)[R]) {
    UNROLL for (int r = 0; r < R; r++) {
        total[r] = s.fresh || r >= s.rows ? Floats{} : load_floats(panel.out + r * s.out_row);
        if (panel.bias) total[r] += load_floats(panel.bias);
    }
}

template <int R>
INLINE void finish(const Span& s, const Panel& panel, const Floats (&total)[R]) {
    UNROLL for (int r = 0; r < R; r++)
        if (r < s.rows) store(panel.out + r * s.out_row, total[r]);
}

// Adds scale * total to what rows of the panels start from.
template <int R>
INLINE void finish_scaled(const Span& s, const Floats (&total)[PANELS][R], const float* scales) {
    Floats out[PANELS][R];  // all are read before any is written: they may be of one panel
    UNROLL for (int p = 0; p < PANELS; p++) begin<R>(s, s.panels[p], out[p]);
    UNROLL for (int p = 0; p < PANELS; p++) {
        UNROLL for (int r = 0; r < R; r++) out[p][r] += scales[r] * total[p][r];
        finish<R>(s, s.panels[p], out[p]);
    }
}

// Multiply a tile of `tile_height(s.rows)` rows.
void multiply_floats(const Linear& map, const Span& s);
void multiply_pairs(const Linear& map, const Span& s);
void multiply_halves(const Linear& map, const Span& s);
void multiply_bytes(const Linear& map, const Span& s);
void multiply_nibbles(const Linear& map, const Span& s);
void multiply_blocks(const Linear& map, const Span& s);

// Calls the code of a height, of at most `MOST`.
template <int MOST = MOST_ROWS, class Call>
INLINE void at_height(long rows, const Call& call) {
    switch (tile_height(rows)) {
        case 1: return call(Height<1>());
        case 2: return call(Height<2>());
        case 3: return call(Height<3>());
        case 4: return call(Height<4>());
        case 6: return call(Height<6>());
#if defined(STEELYARD_WIDE)
        case 8: return call(Height<8>());
        case 10: return call(Height<std::min(10, MOST)>());
        case 12: return call(Height<std::min(12, MOST)>());
#endif
    }
}
