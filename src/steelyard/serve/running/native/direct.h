// Decoding straight from the rows of blocks: what a few queries read once is not laid out in memory.
// All queries of a key head that a tile holds share each number that is read, and sums run in the
// order of the products of tiles, so that both give the same bits.
#pragma once

#include "blocks.h"

#if defined(STEELYARD_WIDE)

// Columns of a line of the cache.
template <class T>
constexpr long COLUMNS = LINE / (long)sizeof(T);

// Sums of products, and what they are of integers.
template <class T>
using Sums = std::conditional_t<is_coded<T>, PlainWords, PlainFloats>;

// total += the numbers of each lane times those of x.
template <class T>
INLINE void add_words(Sums<T>& total, __m512i numbers, int32_t x) {
    if constexpr (is_coded<T>) add_bytes(total, (Words)numbers, x);
    else if constexpr (NUMBERS<T> == 2) add_pairs(total, (Words)numbers, x);
    else add_floats(total, (Words)numbers, x);
}

// Rows of a tile's code, as `tile_height`: of fewer sizes.
INLINE long direct_height(long rows) { return rows <= 4 ? rows : (rows <= 8 ? 8 : MOST_ROWS); }

// Calls the code of a height.
template <class Call>
INLINE void at_direct_height(long rows, const Call& call) {
    switch (direct_height(rows)) {
        case 1: return call(Height<1>());
        case 2: return call(Height<2>());
        case 3: return call(Height<3>());
        case 4: return call(Height<4>());
        case 8: return call(Height<8>());
        case MOST_ROWS: return call(Height<MOST_ROWS>());
    }
}

// What is fetched while sixteen tokens are worked on: as many that come next.
template <class T>
struct Ahead {
    const T* from;
    long width;

    Ahead(const Side<T>& side, long first)
        : from(side.next + side.next_places.numbers[first]), width(side.width) {}
    void fetch(long token, long column) const {
        __builtin_prefetch(from + token * width + column, 0, 2);
    }
};

// Scores [rows, TILE] of a tile of R queries, `chunks` to a row, with the keys of a block.
template <class T, int R>
APART void score_direct(const Side<T>& keys, const int32_t* queries, long chunks, long rows,
    const float* key_scales, float* scores, T* memory, bool fetches) {
    const float* scales = (const float*)(queries + chunks * CHUNK * R);
    const int32_t* starts = (const int32_t*)scales + R;
    const long width = keys.width;
    for (long first = 0; first < keys.places.count; first += PANEL) {
        const T* from = keys.sixteen(first, memory);
        const Ahead<T> ahead(keys, first);
        Sums<T> total[R] = {};
        if constexpr (is_coded<T>)
            UNROLL for (int r = 0; r < R; r++) total[r] = spread_words(starts[r]);
        for (long chunk = 0; chunk < chunks; chunk++) {
            const long column = chunk * COLUMNS<T>;
            const __mmask16 filled = leading((width - column) / NUMBERS<T>);
            __m512i numbers[16], turned[16];
            UNROLL for (int t = 0; t < 16; t++) {
                numbers[t] = read_words(from + t * width + column, filled);
                if constexpr (is_coded<T>) numbers[t] = raised(numbers[t]);
                if (fetches) ahead.fetch(t, column);
            }
            turn(numbers, turned);
            const int32_t* words = queries + chunk * CHUNK * R;
            UNROLL for (int i = 0; i < CHUNK; i++)
                UNROLL for (int r = 0; r < R; r++)
                    add_words<T>(total[r], turned[i], words[r * CHUNK + i]);
        }
        UNROLL for (int r = 0; r < R; r++) {
            if (r >= rows) break;
            if constexpr (is_coded<T>)
                store(scores + r * TILE + first,
                    scales[r] * (load_floats(key_scales + first) * to_floats((Words)total[r])));
            else store(scores + r * TILE + first, total[r]);
        }
    }
}

// Reads the columns of a word's tokens, a register for each sixteen.
template <class T, int C>
INLINE void read_values(const T* from, long width, long column, __m512i (&out)[C]) {
    if constexpr (NUMBERS<T> == 1) {
        UNROLL for (int c = 0; c < C; c++)
            out[c] =
                read_words(from + column + c * PANEL, leading(width - column - c * PANEL));
    } else {
        UNROLL for (int c = 0; c < C; c += 2) {
            const long here = column + c * PANEL;
            const __mmask16 filled = leading((width - here) / 2);
            const __m512i even = read_words(from + here, filled);
            const __m512i odd = read_words(from + width + here, filled);
            out[c] = _mm512_permutex2var_epi16(even, _mm512_load_si512(IN_TURN.data()), odd);
            out[c + 1] =
                _mm512_permutex2var_epi16(even, _mm512_load_si512(IN_TURN.data() + 32), odd);
        }
    }
}

// Adds a tile of R rows of shares times the values of a block to `rows` totals [wide]. Places beyond
// the last token are the last one's, and their shares are 0.
template <class T, int R>
APART void weigh_direct(const Side<T>& values, const int32_t* shares, long rows, float* totals,
    long wide, T* memory, bool fetches) {
    constexpr int C = R > 6 ? 2 : 4;  // what registers hold beside each other
    constexpr long STEPS = PANEL / NUMBERS<T>;
    const long width = values.width;
    for (long column = 0; column < wide; column += C * PANEL) {
        Floats total[R][C] = {};
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++)
                if (r < rows && column + c * PANEL < wide)
                    total[r][c] = load_floats(totals + r * wide + column + c * PANEL);
        for (long first = 0; first < values.places.count; first += PANEL) {
            const T* from = values.sixteen(first, memory);
            const Ahead<T> ahead(values, first);
            const long word = first / NUMBERS<T>;
            const int32_t* share = shares + word / CHUNK * R * CHUNK + word % CHUNK;
            for (long i = 0; i < STEPS; i++, from += NUMBERS<T> * width, share++) {
                for (long k = 0; fetches && k < NUMBERS<T>; k++)
                    for (long c = 0; c < C * PANEL; c += COLUMNS<T>)
                        ahead.fetch(i * NUMBERS<T> + k, column + c);
                __m512i numbers[C];
                read_values<T>(from, width, column, numbers);
                UNROLL for (int r = 0; r < R; r++)
                    UNROLL for (int c = 0; c < C; c++)
                        add_words<T>(total[r][c], numbers[c], share[r * CHUNK]);
            }
        }
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++)
                if (r < rows && column + c * PANEL < wide)
                    store(totals + r * wide + column + c * PANEL, total[r][c]);
    }
}

// The same of bytes; shares are followed by their rows' scales.
template <int R>
APART void weigh_codes(const Side<int8>& values, const int32_t* shares, long rows, float* totals,
    long wide, int8* memory, bool fetches) {
    constexpr int S = R > 6 ? R / 2 : R;  // rows that registers hold
    const float* scales = (const float*)(shares + CHUNK * R);
    const long width = values.width;
    for (long column = 0; column < wide; column += COLUMNS<int8>) {
        const __mmask16 filled = leading((width - column) / 4);
        for (long top = 0; top < R; top += S) {
            PlainWords total[S][4] = {};
            const int32_t* share = shares + top * CHUNK;
            for (long first = 0; first < values.places.count; first += PANEL) {
                const int8* from = values.sixteen(first, memory) + column;
                const Ahead<int8> ahead(values, first);
                for (long t = 0; t < PANEL; t += 4, share++) {
                    __m512i numbers[4], turned[4];
                    UNROLL for (int i = 0; i < 4; i++) {
                        numbers[i] = read_words(from + (t + i) * width, filled);
                        if (fetches && top == 0) ahead.fetch(t + i, column);
                    }
                    turn_four(numbers, turned);
                    UNROLL for (int r = 0; r < S; r++)
                        UNROLL for (int j = 0; j < 4; j++)
                            add_shares(total[r][j], share[r * CHUNK], turned[j]);
                }
            }
            UNROLL for (int r = 0; r < S; r++)
                UNROLL for (int j = 0; j < 4; j++) {
                    if (top + r >= rows) break;
                    float* to = totals + (top + r) * wide + column + j * PANEL;
                    store(to,
                        load_floats(to) + scales[top + r] * to_floats((Words)total[r][j]));
                }
        }
    }
}

#endif
