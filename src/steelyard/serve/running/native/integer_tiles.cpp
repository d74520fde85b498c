// Tiles of weights in bytes and nibbles.
#include "tiles.h"

namespace {

template <int R>
void byte_tile(const Linear& map, const Span& s) {
    const float* scales = (const float*)(s.tile + words_of(INT8, map.inputs) * R);
    const int32_t* starts = (const int32_t*)scales + R;
    Words total[PANELS][R];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < PANELS; p++) total[p][r] = spread_words(starts[r]);
    each_line<R, 1>(s.tile, 0, s.depth, [&](long line, const int32_t* words) {
        Words weights[PANELS];
        UNROLL for (int p = 0; p < PANELS; p++)
            weights[p] = load_words(s.panels[p].lines + line * LINE);
        fetch(s, line);
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int p = 0; p < PANELS; p++)
                add_bytes(total[p][r], weights[p], words[r * CHUNK]);
    });
    Floats scaled[PANELS][R];
    UNROLL for (int p = 0; p < PANELS; p++) {
        const Floats scale = load_floats((const float*)map.scales + s.panels[p].index * PANEL);
        UNROLL for (int r = 0; r < R; r++) scaled[p][r] = scale * to_floats(total[p][r]);
    }
    finish_scaled<R>(s, scaled, scales);
}

template <int R>
void nibble_tile(const Linear& map, const Span& s) {
    const long groups = groups_of(map.inputs, map.group), wide = map.group / 8;
    const float* scales = (const float*)(s.tile + words_of(INT4, map.inputs) * R);
    const int32_t* starts = (const int32_t*)scales + R;
    Floats total[PANELS][R] = {};
    for (long g = 0; g < groups; g++, starts += R) {
        Words dot[PANELS][R];
        UNROLL for (int p = 0; p < PANELS; p++)
            UNROLL for (int r = 0; r < R; r++) dot[p][r] = spread_words(starts[r]);
        if (map.zeros)
            UNROLL for (int p = 0; p < PANELS; p++) {
                const Words zero =
                    bytes_to_words(map.zeros + (s.panels[p].index * groups + g) * PANEL);
                UNROLL for (int r = 0; r < R; r++) dot[p][r] = dot[p][r] * zero;
            }
        const long first = g * wide, end = std::min(s.depth, first + wide);
        each_line<R, 2>(s.tile, first, end, [&](long line, const int32_t* words) {
            fetch(s, line);
            // One half after the other: four registers of weights would be two too many.
            Words weights[PANELS];
            UNROLL for (int p = 0; p < PANELS; p++)
                weights[p] = low_nibbles(load_words(s.panels[p].lines + line * LINE));
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int p = 0; p < PANELS; p++)
                    add_nibbles(dot[p][r], weights[p], words[r * CHUNK]);
            UNROLL for (int p = 0; p < PANELS; p++)
                weights[p] = high_nibbles(load_words(s.panels[p].lines + line * LINE));
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int p = 0; p < PANELS; p++)
                    add_nibbles(dot[p][r], weights[p], words[r * CHUNK + 1]);
        });
        UNROLL for (int p = 0; p < PANELS; p++) {
            const auto* halves =
                (const uint16_t*)map.scales + (s.panels[p].index * groups + g) * PANEL;
            // Those of the panels that come next, unlike their weights, nobody else fetches.
            __builtin_prefetch(halves + PANELS * groups * PANEL, 0, 2);
            const Floats scale = halves_to_floats(halves);
            UNROLL for (int r = 0; r < R; r++) total[p][r] += scale * to_floats(dot[p][r]);
        }
    }
    finish_scaled<R>(s, total, scales);
}

}  // namespace

void multiply_bytes(const Linear& map, const Span& s) {
    at_height(s.rows, [&](auto height) { byte_tile<decltype(height)::value>(map, s); });
}

void multiply_nibbles(const Linear& map, const Span& s) {
    at_height<8>(s.rows, [&](auto height) { nibble_tile<decltype(height)::value>(map, s); });
}
