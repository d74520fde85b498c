// Activations as the products read them: tiles of rows, side by side, in words of 32 bits.
//
// A tile of R rows is [words][R], then for integer kinds the rows' scales [R] (float32) and the
// sums of their codes [groups][R] (int32).
#pragma once

#include "lanes.h"
#include "linear.h"

// Rows that one pass over a panel takes: their totals fill the registers that are left beside the
// weights.
#if defined(STEELYARD_WIDE)
constexpr long MOST_ROWS = 24;
#else
constexpr long MOST_ROWS = 6;
#endif

// Rows of a tile's code: what is missing to it is zero. Fewer sizes compile faster.
INLINE long tile_height(long rows) {
    if (rows >= MOST_ROWS) return MOST_ROWS;
    if (rows <= 4) return rows;
    if (rows <= 8) return (rows + 1) / 2 * 2;
    return (rows + 3) / 4 * 4;
}

INLINE long words_of(int64_t kind, long inputs) {
    return kind == FP32 ? inputs : (kind == BF16 ? (inputs + 1) / 2 : (inputs + 3) / 4);
}

// Words that a row takes in a tile.
INLINE long row_words(const Linear& map) {
    const long words = words_of(map.kind, map.inputs);
    return map.kind <= BF16 ? words : words + 1 + groups_of(map.inputs, map.group);
}

INLINE float largest(const float* x, long width) {
    f8 top = {};
    long i = 0;
    for (; i + 8 <= width; i += 8) top = larger(top, larger(load(x + i), -load(x + i)));
    float most = highest(top);
    for (; i < width; i++) most = std::max(most, std::fabs(x[i]));
    return most;
}

// Codes of a row in [-127, 127], to the nearest, ties to even; gives the scale.
INLINE float to_bytes(const float* x, long width, int8_t* codes) {
    const float most = largest(x, width);
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    for (long i = 0; i < width; i++) codes[i] = (int8_t)(int32_t)std::rint(x[i] * inverse);
    return most / 127.0f;
}

// Writes a row's words; gives its scale.
INLINE float encode(const Linear& map, const float* x, int32_t* words) {
    const long last = words_of(map.kind, map.inputs) - 1;
    if (map.kind == FP32) memcpy(words, x, map.inputs * sizeof(float));
    else words[last] = 0;  // places beyond the row's end
    if (map.kind == BF16)
        for (long i = 0; i < map.inputs; i++) ((uint16_t*)words)[i] = to_bf16(x[i]);
    return map.kind <= BF16 ? 1.0f : to_bytes(x, map.inputs, (int8_t*)words);
}

// Scratch of a thread that turns rows into a tile.
static int32_t* row_scratch(size_t words) {
    static thread_local std::vector<int32_t> memory;
    if (memory.size() < words) memory.resize(words);
    return memory.data();
}

// Fills a tile from `rows` rows of x, and with zeros up to its height.
static void fill_tile(const Linear& map, const float* x, long x_row, long rows, int32_t* tile) {
    const long words = words_of(map.kind, map.inputs), height = tile_height(rows);
    // Rows that are a power of two apart would share one set of the cache.
    const long stride = words + 16;
    int32_t* plain = row_scratch(height * stride);
    float* scales = (float*)(tile + words * height);
    int32_t* sums = tile + (words + 1) * height;
    for (long r = 0; r < height; r++) {
        int32_t* row = plain + r * stride;
        float scale = 0.0f;
        if (r < rows) scale = encode(map, x + r * x_row, row);
        else memset(row, 0, words * sizeof(int32_t));
        if (map.kind <= BF16) continue;
        scales[r] = scale;
        const int8_t* codes = (const int8_t*)row;
        for (long first = 0; first < map.inputs; first += map.group) {
            int32_t total = 0;
            for (long i = first; i < std::min((long)map.inputs, first + (long)map.group); i++)
                total += codes[i];
            sums[first / map.group * height + r] = total;
        }
    }
    for (long i = 0; i < words; i++)
        for (long r = 0; r < height; r++) tile[i * height + r] = plain[r * stride + i];
}
