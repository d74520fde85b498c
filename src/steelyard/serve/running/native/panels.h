// Rows times a panel of 16 columns in float32, both wherever they lie: the products of attention.
//
// Every row's result depends on that row alone: sums run in one order whatever else is in the
// batch.
#pragma once

#include "vectors.h"

constexpr long PANEL = 16;  // columns of a packed panel

INLINE long padded(long width) { return (width + PANEL - 1) / PANEL * PANEL; }

// Adds R rows of a times a panel of b to c, or starts from a bias when `fresh`.
template <int R>
INLINE void panel_tile(const float* a, long a_row, const float* b, long b_row, long depth, float* c,
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

// Does `panel_tile` for any number of rows.
static void rows_times_panel(const float* a, long a_row, const float* b, long b_row, long depth,
    float* c, long c_row, long rows, bool fresh, const float* bias) {
    // Six rows of two registers, with two of weights and one of x, are what 16 registers hold.
    for (; rows >= 6; rows -= 6, a += 6 * a_row, c += 6 * c_row)
        panel_tile<6>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
    switch (rows) {
        case 1: return panel_tile<1>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 2: return panel_tile<2>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 3: return panel_tile<3>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 4: return panel_tile<4>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
        case 5: return panel_tile<5>(a, a_row, b, b_row, depth, c, c_row, fresh, bias);
    }
}
