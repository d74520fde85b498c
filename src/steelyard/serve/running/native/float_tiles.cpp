// Tiles of weights in float32 and bfloat16.
#include "tiles.h"

namespace {

template <int64_t KIND, int R>
void float_tile(const Linear&, const Span& s) {
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

}  // namespace

void multiply_floats(const Linear& map, const Span& s) {
    at_height(s.rows, [&](auto height) { float_tile<FP32, decltype(height)::value>(map, s); });
}

void multiply_pairs(const Linear& map, const Span& s) {
    at_height(s.rows, [&](auto height) { float_tile<BF16, decltype(height)::value>(map, s); });
}
