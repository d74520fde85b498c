// Matrix products with packed weights, and norms.
//
// Every row's result depends on that row alone: sums run in one order whatever else is in the
// batch.
#pragma once

#include "threads.h"
#include "vectors.h"

constexpr long PANEL = 16;    // columns of a packed panel
constexpr long DEPTH = 256;   // inner length of a product that stays in the first-level cache
constexpr long HEIGHT = 192;  // rows of a product that stay in the second-level cache
constexpr long GROUP = 4;     // panels that a thread takes at once

INLINE long padded(long width) { return (width + PANEL - 1) / PANEL * PANEL; }

// Adds R rows of a times a panel of b to c, or starts from a bias when `fresh`.
template <int R>
INLINE void tile(const float* a, long a_row, const float* b, long b_row, long depth, float* c,
    long c_row, bool fresh, const float* bias) {
    f8 total[R][2];
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) total[r][h] = fresh ? f8{} : load(c + r * c_row + 8 * h);
    if (bias)
        for (int r = 0; r < R; r++)
            for (int h = 0; h < 2; h++) total[r][h] += load(bias + 8 * h);
    for (long p = 0; p < depth; p++) {
        f8 left = load(b + p * b_row), right = load(b + p * b_row + 8);
        for (int r = 0; r < R; r++) {
            float x = a[r * a_row + p];
            total[r][0] += x * left;
            total[r][1] += x * right;
        }
    }
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) store(c + r * c_row + 8 * h, total[r][h]);
}

// Does `tile` for any number of rows.
static void rows_times_panel(const float* a, long a_row, const float* b, long b_row, long depth,
    float* c, long c_row, long rows, bool fresh, const float* bias) {
    // Six rows of two registers, with two of weights and one of x, are what 16 registers hold.
    for (; rows >= 6; rows -= 6, a += 6 * a_row, c += 6 * c_row)
        tile<6>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
    switch (rows) {
        case 1: return tile<1>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 2: return tile<2>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 3: return tile<3>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 4: return tile<4>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 5: return tile<5>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
    }
}

struct Linear {
    const float* packed;
    const float* bias;  // padded to whole panels, or null
    int64_t outputs, inputs;
};

// out[rows, outputs] = (add ? out : 0) + x packed + bias. Called by all threads of a team.
static void product(Team& team, const float* x, long x_row, long rows, const Linear& map,
    float* out, long out_row, bool add) {
    const long panels = (map.outputs + PANEL - 1) / PANEL, groups = (panels + GROUP - 1) / GROUP;
    const long blocks = (rows + HEIGHT - 1) / HEIGHT;
    team.loop(blocks * groups, 1, [&](long work) {
        const long top = work / groups * HEIGHT, end = std::min(rows, top + HEIGHT);
        const long first = work % groups * GROUP;
        for (long p = 0; p < map.inputs; p += DEPTH) {
            const long depth = std::min(DEPTH, map.inputs - p);
            for (long panel = first; panel < std::min(panels, first + GROUP); panel++)
                rows_times_panel(x + top * x_row + p, x_row,
                    map.packed + p * panels * PANEL + panel * depth * PANEL, PANEL, depth,
                    out + top * out_row + panel * PANEL, out_row, end - top, !add && p == 0,
                    p == 0 && map.bias ? map.bias + panel * PANEL : nullptr);
        }
    });
}

struct Norm {
    const float* gain;
    const float* bias;  // null for root-mean-square norms
};

INLINE void normalize(const float* x, const Norm& norm, long width, float epsilon, float* out) {
    f8 total = {}, squares = {};
    if (norm.bias)
        for (long i = 0; i < width; i += 8) total += load(x + i);
    const float mean = norm.bias ? sum(total) / width : 0.0f;
    // In two passes: the mean of squares less the square of the mean cancels in float32.
    for (long i = 0; i < width; i += 8) {
        const f8 apart = load(x + i) - mean;
        squares += apart * apart;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / width + epsilon);
    for (long i = 0; i < width; i += 8) {
        const f8 scaled = (load(x + i) - mean) * scale * load(norm.gain + i);
        store(out + i, norm.bias ? scaled + load(norm.bias + i) : scaled);
    }
}

