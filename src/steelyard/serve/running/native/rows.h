// Activations as the products read them: tiles of rows, in words of 32 bits.
//
// A tile of R rows is [chunks][R][CHUNK] words, so that a row is written as it is read: a line of
// the cache at a time. For integer kinds follow the rows' scales [R] (float32), what their sums of
// products start from [groups][R] (int32) and, beside blocks that are lowered, the sums of their
// codes [groups][R] (float32); sums of nibbles of blocks start from 0.
#pragma once

#include "lanes.h"
#include "linear.h"

constexpr long CHUNK = 16;  // words of a row that lie side by side

// Rows and panels that one pass takes: their totals fill the registers that are left beside the
// weights.
#if defined(STEELYARD_WIDE)
constexpr long MOST_ROWS = 12, PANELS = 2;
#else
constexpr long MOST_ROWS = 6, PANELS = 1;
#endif

// Rows of a kind's largest tile: sums of groups are kept twice, in integers for each of them.
INLINE long most_rows(int64_t kind) { 
    return is_float(kind) || kind == INT8 ? MOST_ROWS : std::min(MOST_ROWS, 8L);
 }

// Rows of a tile's code: what is missing to it is computed of anything and not stored. Fewer sizes
// compile faster.
INLINE long tile_height(long rows) { return rows <= 4 ? rows : (rows + 1) / 2 * 2; }

// Rows of each tile of some rows but the last: of even size, as a low tile waits for its weights.
INLINE long tile_rows(int64_t kind, long rows) {
    const long most = most_rows(kind), tiles = std::max((rows + most - 1) / most, 1L);
    return tile_height((rows + tiles - 1) / tiles);
}

// Values of a row that fill a chunk.
INLINE long chunk_values(int64_t kind) { 
    return kind == BF16 ? 32 : (is_float(kind) ? 16 : 64);
 }

// Words of a row with those that fill its last chunk.
INLINE long words_of(int64_t kind, long inputs) {
    const long values = chunk_values(kind);
    return (inputs + values - 1) / values * CHUNK;
}

// Words that a row takes in a tile.
INLINE long row_words(const Linear& map) {
    const long words = words_of(map.kind, map.inputs);
    const long each = (map.kind != BLOCK4) + (map.lowered != 0);
    return is_float(map.kind) ? words : words + 1 + groups_of(map.inputs, map.group) * each;
}

// Sizes of floats are ordered as their bits, which integers compare in one step.
INLINE float largest(const float* x, long width) {
    int32_t top = 0;
    for (long i = 0; i < width; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        top = std::max(top, bits & 0x7fffffff);
    }
    return as_float(top);
}

// Codes in [-127, 127], to the nearest, ties to even.
INLINE void to_bytes(const float* x, long count, float inverse, int8_t* codes) {
    for (long i = 0; i < count; i++) codes[i] = (int8_t)(int32_t)std::rint(x[i] * inverse);
}

// Codes that are summed at once: groups are multiples of 32, or 16.
template <long COUNT>
INLINE int32_t sum_codes(const int8_t* codes) {
    int32_t total = 0;
    for (long i = 0; i < COUNT; i++) total += codes[i];
    return total;
}

// Sum of the codes [start, end) of a row of a tile; beyond the row's end codes are zero.
template <long COUNT>
INLINE int32_t sum_group(const int32_t* row, long step, long start, long end) {
    int32_t total = 0;
    for (long i = start; i < end; i += COUNT)
        total += sum_codes<COUNT>((const int8_t*)(row + i / 64 * step) + i % 64);
    return total;
}

// Calls `write(x, count, chunk)` for each chunk of a row of a tile; places beyond the row are zero.
template <int64_t KIND, class Write>
INLINE void each_chunk(const float* x, long inputs, int32_t* row, long step, const Write& write) {
    const long values = chunk_values(KIND);
    for (; inputs >= values; inputs -= values, x += values, row += step) write(x, values, row);
    if (inputs == 0) return;
    memset(row, 0, CHUNK * sizeof(int32_t));
    write(x, inputs, row);
}

// Writes a row's codes, its scale, and what its sums start from: less by what the codes of the
// weights stand above their values. Beside lowered blocks follow the sums of the row's codes.
INLINE void encode_bytes(const Linear& map, const float* x, int32_t* tile, long height, long row) {
    const float most = largest(x, map.inputs), inverse = most > 0 ? 127.0f / most : 0.0f;
    int32_t* first = tile + row * CHUNK;
    each_chunk<INT8>(x, map.inputs, first, height * CHUNK,
        [&](const float* from, long count, int32_t* to) {
            to_bytes(from, count, inverse, (int8_t*)to);
        });
    int32_t* scale = tile + words_of(map.kind, map.inputs) * height + row;
    *(float*)scale = most / 127.0f;
    const int32_t offset = map.kind == INT4 ? (map.zeros ? 1 : 8) : BYTE_OFFSET;
    const long groups = groups_of(map.inputs, map.group), starts = map.kind != BLOCK4;
    for (long g = 0; g < groups; g++) {
        const long start = g * map.group, end = std::min(map.inputs, start + map.group);
        const int32_t total = map.group < 32 ? sum_group<16>(first, height * CHUNK, start, end)
                                             : sum_group<32>(first, height * CHUNK, start, end);
        if (starts) scale[(g + 1) * height] = -offset * total;
        if (map.lowered) ((float*)scale)[(g + starts * groups + 1) * height] = (float)total;
    }
}

// Writes row `row` of a tile.
INLINE void encode_row(const Linear& map, const float* x, int32_t* tile, long height, long row) {
    int32_t* first = tile + row * CHUNK;
    if (map.kind == FP32 || map.kind == FP16)
        each_chunk<FP32>(x, map.inputs, first, height * CHUNK,
            [](const float* from, long count, int32_t* to) {
                memcpy(to, from, count * sizeof(float));
            });
    else if (map.kind == BF16)
        each_chunk<BF16>(x, map.inputs, first, height * CHUNK,
            [](const float* from, long count, int32_t* to) {
                for (long i = 0; i < count; i++) ((uint16_t*)to)[i] = to_bf16(from[i]);
            });
    else encode_bytes(map, x, tile, height, row);
}
