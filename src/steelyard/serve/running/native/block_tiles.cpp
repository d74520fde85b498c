// Tiles of weights in blocks: bytes or nibbles in groups, whose scales and lowest numbers are
// themselves multiples of those of a block of groups.
#include "tiles.h"

namespace {

// Scales (0) of a group of a block, or the numbers that a code of 0 stands for (1).
INLINE Floats side_of(const Linear& map, const uint8_t* block, long part, long which) {
    const Floats whole = halves_to_floats((const uint16_t*)block + which * PANEL);
    if (map.parts == 1) return whole;
    const uint8_t* factors = block + PANEL * (map.lowered ? 4 : 2)
        + (which * map.parts + part) * PANEL;
    return whole * to_floats(which ? bytes_to_words(factors) : signed_to_words(factors));
}

// Adds the products of a line.
template <int R>
INLINE void add_line(Words (&dot)[PANELS][R], const Words (&weights)[PANELS], const int32_t* words,
    bool nibbles) {
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < PANELS; p++)
            if (nibbles) add_nibbles(dot[p][r], weights[p], words[r * CHUNK]);
            else add_bytes(dot[p][r], weights[p], words[r * CHUNK]);
}

// Sums of products of the codes of a group.
template <bool NIBBLES, int R>
INLINE void multiply_group(const Span& s, long first, long end, Words (&dot)[PANELS][R]) {
    each_line<R, NIBBLES ? 2 : 1>(s.tile, first, end, [&](long line, const int32_t* words) {
        fetch(s, line);
        Words weights[PANELS];
        UNROLL for (int p = 0; p < PANELS; p++) {
            weights[p] = load_words(s.panels[p].lines + line * LINE);
            if constexpr (NIBBLES) weights[p] = low_nibbles(weights[p]);
        }
        add_line<R>(dot, weights, words, NIBBLES);
        if constexpr (NIBBLES) {
            UNROLL for (int p = 0; p < PANELS; p++)
                weights[p] = high_nibbles(load_words(s.panels[p].lines + line * LINE));
            add_line<R>(dot, weights, words + 1, NIBBLES);
        }
    });
}

template <bool NIBBLES, int R>
void block_tile(const Linear& map, const Span& s) {
    const long groups = map.inputs / map.group, wide = map.group / (NIBBLES ? 8 : 4);
    const long blocks = groups / map.parts, bytes = side_bytes(map);
    const float* scales = (const float*)(s.tile + words_of(map.kind, map.inputs) * R);
    const int32_t* starts = (const int32_t*)scales + R;
    const float* sums = (const float*)starts + (NIBBLES ? 0 : groups * R);
    Floats total[PANELS][R] = {};
    for (long g = 0, block = 0, part = 0; g < groups; g++, starts += R, sums += R) {
        Words dot[PANELS][R];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int p = 0; p < PANELS; p++)
                dot[p][r] = spread_words(NIBBLES ? 0 : starts[r]);
        multiply_group<NIBBLES, R>(s, g * wide, (g + 1) * wide, dot);
        UNROLL for (int p = 0; p < PANELS; p++) {
            const uint8_t* beside =
                (const uint8_t*)map.scales + (s.panels[p].index * blocks + block) * bytes;
            const Floats scale = side_of(map, beside, part, 0);
            UNROLL for (int r = 0; r < R; r++) total[p][r] += scale * to_floats(dot[p][r]);
            if (!map.lowered) continue;
            const Floats low = side_of(map, beside, part, 1);
            UNROLL for (int r = 0; r < R; r++) total[p][r] += sums[r] * low;
        }
        if (++part == map.parts) part = 0, block++;
    }
    finish_scaled<R>(s, total, scales);
}

}  // namespace

void multiply_blocks(const Linear& map, const Span& s) {
    at_height<8>(s.rows, [&](auto height) {
        constexpr int R = decltype(height)::value;
        if (map.kind == BLOCK4) block_tile<true, R>(map, s);
        else block_tile<false, R>(map, s);
    });
}
