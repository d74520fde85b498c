// Tiles of weights in float32, bfloat16 and float16.
#include "tiles.h"

namespace {

template <int64_t KIND, int R>
void float_tile(const Span& s) {
    Floats total[PANELS][R];
    UNROLL for (int p = 0; p < PANELS; p++) begin<R>(s, s.panels[p], total[p]);
    each_line<R, 1>(s.tile, 0, s.depth, [&](long line, const int32_t* words) {
        Words weights[PANELS];
        UNROLL for (int p = 0; p < PANELS; p++)
            weights[p] = load_words(s.panels[p].lines + line * LINE);
        fetch(s, line);
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int p = 0; p < PANELS; p++)
                if constexpr (KIND == FP32) add_floats(total[p][r], weights[p], words[r * CHUNK]);
                else add_pairs(total[p][r], weights[p], words[r * CHUNK]);
    });
    UNROLL for (int p = 0; p < PANELS; p++) finish<R>(s, s.panels[p], total[p]);
}

// Products as of float32, of weights that are widened on the way.
template <int R>
void half_tile(const Span& s) {
    Floats total[PANELS][R];
    UNROLL for (int p = 0; p < PANELS; p++) begin<R>(s, s.panels[p], total[p]);
    each_line<R, 2>(s.tile, 0, s.depth, [&](long line, const int32_t* words) {
        fetch(s, line);
        UNROLL for (int half = 0; half < 2; half++) {
            Floats weights[PANELS];
            UNROLL for (int p = 0; p < PANELS; p++) {
                const auto* halves = (const uint16_t*)(s.panels[p].lines + line * LINE);
                weights[p] = halves_to_floats(halves + half * PANEL);
            }
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int p = 0; p < PANELS; p++)
                    total[p][r] += as_float(words[r * CHUNK + half]) * weights[p];
        }
    });
    UNROLL for (int p = 0; p < PANELS; p++) finish<R>(s, s.panels[p], total[p]);
}

}  // namespace

void multiply_floats(const Linear&, const Span& s) {
    at_height(s.rows, [&](auto height) { float_tile<FP32, decltype(height)::value>(s); });
}

void multiply_pairs(const Linear&, const Span& s) {
    at_height(s.rows, [&](auto height) { float_tile<BF16, decltype(height)::value>(s); });
}

void multiply_halves(const Linear&, const Span& s) {
    at_height(s.rows, [&](auto height) { half_tile<decltype(height)::value>(s); });
}
