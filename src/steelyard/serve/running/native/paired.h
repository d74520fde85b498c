// Blocks of keys and values as products of bfloat16 read them: words of two numbers side by side.
#pragma once

#include <array>

#include "attention.h"
#include "registers.h"
#include "tiles.h"

#if defined(STEELYARD_BF16)

// Where the tokens of a block stand for the first key head, and their scales; places beyond the
// last token are its own.
struct Places {
    long numbers[TILE], scales[TILE];
    long count;
};

template <class T>
static void find_places(const Paged<T>& p, const int64_t* table, long first, long end,
    Places& out) {
    const View& v = p.view;
    const long head = p.head_numbers();
    long block = first / v.block_size, within = first % v.block_size;
    out.count = std::min(TILE, end - first);
    for (long t = 0; t < TILE; t++) {
        const long begin = table[block] * v.kv_heads * head;
        out.numbers[t] = begin + within * v.width;
        out.scales[t] = begin + v.block_size * v.width + within * (long)sizeof(float);
        if (t + 1 < out.count && ++within == v.block_size) within = 0, block++;
    }
}

// One side, keys or values, of a block for one key head: where it stands, and what is read after it.
template <class T>
struct Side {
    const T *numbers, *next;
    const Places &places, &next_places;
    long width;

    const T* row(long token) const { return numbers + places.numbers[token]; }

    // To the second cache: the first has fewer places for what is under way than memory needs.
    void fetch(long token) const {
        const T *from = next + next_places.numbers[token], *end = from + width;
        do __builtin_prefetch(from, 0, 2);
        while ((from += LINE / (long)sizeof(T)) < end);
    }

    void read_scales(float* scales) const {
        for (long t = 0; t < TILE; t++) {
            scales[t] = *(const float*)(numbers + places.scales[t]);
            if (t % 16 == 0) __builtin_prefetch(next + next_places.scales[t], 0, 2);
        }
    }
};

// Keys lie in panels of 16 tokens, a word's columns following each other; values in panels of 16
// columns, a word's tokens following each other. Numbers in eight bits stand as their codes.
struct Block {
    int32_t *keys, *values;
    alignas(64) float key_scales[TILE], value_scales[TILE], inverse_scales[TILE];

    Block(int32_t* memory, long width) : keys(memory), values(memory + TILE * words(width)) {}

    // Words of a key, whole registers; words of both sides.
    static long words(long width) { return words_of(BF16, width); }
    static long size(long width) { return TILE * words(width) + TILE / 2 * padded(width); }
};

// Sixteen words of a row, those beyond the first `words` zero.
INLINE __m512i read_pairs(const bf16* p, __mmask16 words) {
    return _mm512_maskz_loadu_epi32(words, p);
}
INLINE __m512i read_pairs(const int8* p, __mmask16 words) {
    const __m256i codes = _mm256_maskz_loadu_epi16(words, p);  // exact in bfloat16
    const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes));
    const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}

// The first `count` of sixteen.
INLINE __mmask16 leading(long count) {
    return (__mmask16)((1u << std::clamp(count, 0L, 16L)) - 1);
}

template <class T>
APART void pack_keys(const Side<T>& side, Block& block) {
    const long words = Block::words(side.width);
    if constexpr (is_coded<T>) side.read_scales(block.key_scales);
    for (long first = 0; first < side.places.count; first += PANEL)
        for (long word = 0; word < words; word += CHUNK) {
            const __mmask16 filled = leading(side.width / 2 - word);
            __m512i rows[16], turned[16];
            UNROLL for (int t = 0; t < 16; t++) {
                rows[t] = read_pairs(side.row(first + t) + 2 * word, filled);
                if (word == 0 && t % 2 == 0) side.fetch((first + t) / 2);
            }
            turn(rows, turned);
            int32_t* to = block.keys + first * words + word * PANEL;
            UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * PANEL, turned[i]);
        }
}

// Numbers of two rows in turn: those of columns 0-15, then those of columns 16-31.
alignas(64) static constexpr auto IN_TURN = [] {
    std::array<uint16_t, 64> order = {};
    for (int i = 0; i < 64; i++) order[i] = (uint16_t)(i / 2 + i % 2 * 32);
    return order;
}();

template <class T>
APART void pack_values(const Side<T>& side, const Side<T>& keys, Block& block) {
    const __m512i left = _mm512_load_si512(IN_TURN.data());
    const __m512i right = _mm512_load_si512(IN_TURN.data() + 32);
    if constexpr (is_coded<T>) {
        side.read_scales(block.value_scales);
        for (long t = 0; t < TILE; t++) {
            float& scale = block.value_scales[t];
            if (scale == 0) scale = 1;  // codes are 0, but shares are not
            block.inverse_scales[t] = 1 / scale;
        }
    }
    for (long t = 0; t < side.places.count; t += 2) {
        keys.fetch((TILE + t) / 2);
        for (long column = 0; column < side.width; column += 32) {
            const __mmask16 filled = leading((side.width - column) / 2);
            // What stands beyond the last token is multiplied by 0, so it has to be a number.
            const __mmask16 next_filled = t + 1 < side.places.count ? filled : (__mmask16)0;
            const __m512i even = read_pairs(side.row(t) + column, filled);
            const __m512i odd = read_pairs(side.row(t + 1) + column, next_filled);
            int32_t* to = block.values + column * (TILE / 2) + t / 2 * PANEL;
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, left, odd));
            if (column + PANEL < side.width)
                _mm512_storeu_si512(to + TILE / 2 * PANEL,
                    _mm512_permutex2var_epi16(even, right, odd));
        }
    }
}

#endif
