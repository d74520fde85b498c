// Blocks of keys and values as the products read them, in words of one float32, of two bfloat16 or
// of four bytes.
#pragma once

#include <array>

#include "attention.h"
#include "registers.h"
#include "tiles.h"

#if defined(STEELYARD_WIDE)

// Where the tokens of a block stand for the first key head, and their scales; places beyond the
// last token are its own. `runs`: sixteen tokens each lie one after the other.
struct Places {
    long numbers[TILE], scales[TILE];
    long count;
    bool runs;
};

template <class T>
static void find_places(const Paged<T>& p, const int64_t* table, long first, long end,
    Places& out) {
    const View& v = p.view;
    const long head = p.head_numbers();
    long block = first / v.block_size, within = first % v.block_size;
    out.count = std::min(TILE, end - first), out.runs = v.block_size % PANEL == 0;
    for (long t = 0; t < TILE; t++) {
        const long begin = table[block] * v.kv_heads * head;
        out.numbers[t] = begin + within * v.width;
        out.scales[t] = begin + v.block_size * v.width + within * (long)sizeof(float);
        if (t + 1 < out.count && ++within == v.block_size) within = 0, block++;
    }
}

// Keys or values of a block for one key head: where they stand, and what is read after them.
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

    // Sixteen rows, one after the other; `memory` takes them where they lie apart or are not all
    // there, those beyond the last one being its own.
    const T* sixteen(long first, T* memory) const {
        if (places.runs && first + PANEL <= places.count) return row(first);
        for (long t = 0; t < PANEL; t++)
            memcpy(memory + t * width, row(first + t), width * sizeof(T));
        return memory;
    }

    // Those of places beyond the last token are its own.
    void read_scales(float* scales) const {
        long t = 0;
        for (; places.runs && t + PANEL <= places.count; t += PANEL) {
            store(scales + t, load_floats((const float*)(numbers + places.scales[t])));
            __builtin_prefetch(next + next_places.scales[t], 0, 2);
        }
        for (; t < TILE; t++) {
            scales[t] = *(const float*)(numbers + places.scales[t]);
            if (t % 16 == 0) __builtin_prefetch(next + next_places.scales[t], 0, 2);
        }
    }
};

// How the products read keys and values of a type.
INLINE int64_t kind_of(int64_t kv_kind) {
    return kv_kind == KV_FP32 ? FP32 : (kv_kind == KV_BF16 ? BF16 : INT8);
}

// Numbers of a word.
template <class T>
constexpr long NUMBERS = (long)(sizeof(int32_t) / sizeof(T));

// Keys lie in panels of 16 tokens, a word's columns following each other; values in panels of 16
// columns, a word's tokens following each other. Codes stand in the order of `turn_four`, plus 128
// as the products take them.
struct Block {
    int32_t *keys, *values;
    alignas(64) float key_scales[TILE], value_scales[TILE];

    Block(const View& v, float* memory)
        : keys((int32_t*)memory), values(keys + TILE * words(v)) {}

    // Words of a key, whole registers; columns of as many; words of both sides.
    static long words(const View& v) { return words_of(kind_of(v.kind), v.width); }
    static long wide(const View& v) { return words(v) * weights_per_line(kind_of(v.kind)); }
    static long size(const View& v) {
        return TILE * words(v) + TILE / weights_per_line(kind_of(v.kind)) * wide(v);
    }
};

// Sixteen words of a row, those beyond the first `words` zero.
INLINE __m512i read_words(const float* p, __mmask16 words) {
    return _mm512_maskz_loadu_epi32(words, p);
}
INLINE __m512i read_words(const bf16* p, __mmask16 words) {
    return _mm512_maskz_loadu_epi32(words, p);
}
INLINE __m512i read_words(const int8* p, __mmask16 words) {
    return _mm512_maskz_loadu_epi32(words, p);
}

// total += the four bytes of x, which are not negative, times the four signed ones of each lane.
INLINE void add_shares(PlainWords& total, int32_t x, __m512i values) {
    total = (PlainWords)_mm512_dpbusd_epi32((__m512i)total, _mm512_set1_epi32(x), values);
}

// Signed bytes plus 128.
INLINE __m512i raised(__m512i codes) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8((char)BYTE_OFFSET));
}

// The first `count` of sixteen.
INLINE __mmask16 leading(long count) {
    return (__mmask16)((1u << std::clamp(count, 0L, 16L)) - 1);
}

// Lays keys out, and fetches half of those that come next.
template <class T>
APART void pack_keys(const Side<T>& side, Block& block) {
    const long words = words_of(kind_of(KV_KIND<T>), side.width);
    if constexpr (is_coded<T>) side.read_scales(block.key_scales);
    for (long first = 0; first < side.places.count; first += PANEL)
        for (long word = 0; word < words; word += CHUNK) {
            const __mmask16 filled = leading(side.width / NUMBERS<T> - word);
            __m512i rows[16], turned[16];
            UNROLL for (int t = 0; t < 16; t++) {
                rows[t] = read_words(side.row(first + t) + NUMBERS<T> * word, filled);
                if constexpr (is_coded<T>) rows[t] = raised(rows[t]);
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

// Lays the values of tokens t and t + 1 out.
template <class T>
INLINE void pack_two(const Side<T>& side, long t, int32_t* to) {
    const bool single = t + 1 == side.places.count;
    constexpr long STEP = CHUNK * NUMBERS<T>;  // columns of a register
    for (long column = 0; column < side.width; column += STEP) {
        const __mmask16 filled = leading((side.width - column) / NUMBERS<T>);
        // What stands beyond the last token is multiplied by 0, so it has to be a number.
        const __mmask16 next_filled = single ? (__mmask16)0 : filled;
        __m512i even = read_words(side.row(t) + column, filled);
        __m512i odd = read_words(side.row(t + 1) + column, next_filled);
        if constexpr (NUMBERS<T> == 2) {
            const __m512i both = even;
            even = _mm512_permutex2var_epi16(both, _mm512_load_si512(IN_TURN.data()), odd);
            odd = _mm512_permutex2var_epi16(both, _mm512_load_si512(IN_TURN.data() + 32), odd);
        }
        // The second register is the next token's, or the next columns'.
        int32_t* panel = to + column * (TILE / NUMBERS<T>) + t / NUMBERS<T> * PANEL;
        _mm512_storeu_si512(panel, even);
        if (NUMBERS<T> == 1) _mm512_storeu_si512(panel + PANEL, odd);
        else if (column + PANEL < side.width)
            _mm512_storeu_si512(panel + TILE / NUMBERS<T> * PANEL, odd);
    }
}

// Four rows of 64 bytes become registers of four rows each: columns 16 l + 4 j + k stand in
// register j, quarter l.
INLINE void turn_four(const __m512i (&rows)[4], __m512i (&out)[4]) {
    const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]);
    const __m512i b = _mm512_unpackhi_epi8(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi8(rows[2], rows[3]);
    const __m512i d = _mm512_unpackhi_epi8(rows[2], rows[3]);
    out[0] = _mm512_unpacklo_epi16(a, c), out[1] = _mm512_unpackhi_epi16(a, c);
    out[2] = _mm512_unpacklo_epi16(b, d), out[3] = _mm512_unpackhi_epi16(b, d);
}

// Where a column's total stands among those that `turn_four` made.
INLINE long turned_place(long column) {
    return column / 64 * 64 + column / 4 % 4 * 16 + column % 64 / 16 * 4 + column % 4;
}

// Lays the values of tokens t to t + 3 out: of those beyond the last one any, as their shares are 0.
INLINE void pack_four(const Side<int8>& side, long t, int32_t* to) {
    for (long column = 0; column < side.width; column += 64) {
        const __mmask16 filled = leading((side.width - column) / 4);
        __m512i rows[4], turned[4];
        for (int i = 0; i < 4; i++) rows[i] = raised(read_words(side.row(t + i) + column, filled));
        turn_four(rows, turned);
        int32_t* panel = to + column * (TILE / 4) + t / 4 * PANEL;
        for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(panel + j * TILE / 4 * PANEL, turned[j]);
    }
}

// Lays values out, and fetches the other half of the keys that come next.
template <class T>
APART void pack_values(const Side<T>& side, const Side<T>& keys, Block& block) {
    if constexpr (is_coded<T>) side.read_scales(block.value_scales);
    for (long t = 0; t < side.places.count; t += 2) {
        keys.fetch((TILE + t) / 2);
        if constexpr (!is_coded<T>) pack_two(side, t, block.values);
        else if (t % 4 == 0) pack_four(side, t, block.values);
    }
}

#endif
