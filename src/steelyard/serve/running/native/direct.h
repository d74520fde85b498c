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

// Scores [rows, TILE] of a tile of R queries, `chunks` to a row, with the keys of a block.
template <class T, int R>
APART void score_direct(const Side<T>& keys, const int32_t* queries, long chunks, long rows,
    const float* key_scales, float* scores, bool fetches) {
    const float* scales = (const float*)(queries + chunks * CHUNK * R);
    const int32_t* starts = (const int32_t*)scales + R;
    for (long first = 0; first < keys.places.count; first += PANEL) {
        Sums<T> total[R] = {};
        if constexpr (is_coded<T>)
            UNROLL for (int r = 0; r < R; r++) total[r] = spread_words(starts[r]);
        for (long chunk = 0; chunk < chunks; chunk++) {
            const long column = chunk * COLUMNS<T>;
            const __mmask16 filled = leading((keys.width - column) / NUMBERS<T>);
            __m512i numbers[16], turned[16];
            UNROLL for (int t = 0; t < 16; t++) {
                numbers[t] = read_words(keys.row(first + t) + column, filled);
                if constexpr (is_coded<T>) numbers[t] = raised(numbers[t]);
                if (fetches) keys.fetch_line(first + t, column);
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
                    scales[r] * (load_floats(key_scales + first) * to_floats(total[r])));
            else store(scores + r * TILE + first, total[r]);
        }
    }
}

// Reads the columns of a word's tokens, a register for each sixteen.
template <class T, int C>
INLINE void read_values(const Side<T>& values, long t, long column, __m512i (&out)[C]) {
    if constexpr (NUMBERS<T> == 1) {
        UNROLL for (int c = 0; c < C; c++)
            out[c] = read_words(values.row(t) + column + c * PANEL,
                leading(values.width - column - c * PANEL));
    } else {
        UNROLL for (int c = 0; c < C; c += 2) {
            const long here = column + c * PANEL;
            const __mmask16 filled = leading((values.width - here) / 2);
            const __m512i even = read_words(values.row(t) + here, filled);
            // A place beyond the last token is the last one's, and its share is 0.
            const __m512i odd = read_words(values.row(t + 1) + here, filled);
            out[c] = _mm512_permutex2var_epi16(even, _mm512_load_si512(IN_TURN.data()), odd);
            out[c + 1] =
                _mm512_permutex2var_epi16(even, _mm512_load_si512(IN_TURN.data() + 32), odd);
        }
    }
}

// Adds a tile of R rows of shares times the values of a block to `rows` totals [wide].
template <class T, int R>
APART void weigh_direct(const Side<T>& values, const int32_t* shares, long rows, float* totals,
    long wide, bool fetches) {
    constexpr int C = R > 6 ? 2 : 4;  // what registers hold beside each other
    for (long column = 0; column < wide; column += C * PANEL) {
        Floats total[R][C];
        const auto each_total = [&](const auto& body) {
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < C; c++)
                    if (r < rows && column + c * PANEL < wide)
                        body(total[r][c], totals + r * wide + column + c * PANEL);
        };
        each_total([](Floats& x, float* at) { x = load_floats(at); });
        for (long t = 0; t < values.places.count; t += NUMBERS<T>) {
            for (long i = 0; fetches && i < NUMBERS<T>; i++)
                for (long c = 0; c < C * PANEL; c += COLUMNS<T>) values.fetch_line(t + i, column + c);
            __m512i numbers[C];
            read_values<T>(values, t, column, numbers);
            const long word = t / NUMBERS<T>;
            const int32_t* from = shares + word / CHUNK * R * CHUNK + word % CHUNK;
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < C; c++)
                    add_words<T>(total[r][c], numbers[c], from[r * CHUNK]);
        }
        each_total([](Floats& x, float* at) { store(at, x); });
    }
}

// The same of bytes; shares are followed by their rows' scales.
template <int R>
APART void weigh_codes(const Side<int8>& values, const int32_t* shares, long rows, float* totals,
    long wide, bool fetches) {
    constexpr int S = R > 6 ? R / 2 : R;  // rows that registers hold
    const float* scales = (const float*)(shares + CHUNK * R);
    for (long column = 0; column < wide; column += COLUMNS<int8>) {
        const __mmask16 filled = leading((values.width - column) / 4);
        for (long top = 0; top < R; top += S) {
            Words total[S][4] = {};
            for (long t = 0; t < values.places.count; t += 4) {
                __m512i numbers[4], turned[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    numbers[i] = read_words(values.row(t + i) + column, filled);
                    if (fetches && top == 0) values.fetch_line(t + i, column);
                }
                turn_four(numbers, turned);
                UNROLL for (int r = 0; r < S; r++) {
                    // Shares are not negative, so they may stand where unsigned bytes do.
                    const Words four = spread_words(shares[(top + r) * CHUNK + t / 4]);
                    UNROLL for (int j = 0; j < 4; j++)
                        add_signed(total[r][j], four, (Words)turned[j]);
                }
            }
            UNROLL for (int r = 0; r < S; r++)
                UNROLL for (int j = 0; j < 4; j++) {
                    if (top + r >= rows) break;
                    float* to = totals + (top + r) * wide + column + j * PANEL;
                    store(to, load_floats(to) + scales[top + r] * to_floats(total[r][j]));
                }
        }
    }
}

#endif
