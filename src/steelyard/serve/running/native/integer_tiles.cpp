// Tiles of weights in bytes and nibbles.
#include "tiles.h"

namespace {

template <int R>
void byte_tile(const Linear& map, const Span& s) {
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
void nibble_tile(const Linear& map, const Span& s) {
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

}  // namespace

void multiply_bytes(const Linear& map, const Span& s) {
    at_height(s.rows, [&](auto height) { byte_tile<decltype(height)::value>(map, s); });
}

void multiply_nibbles(const Linear& map, const Span& s) {
    at_height(s.rows, [&](auto height) { nibble_tile<decltype(height)::value>(map, s); });
}
