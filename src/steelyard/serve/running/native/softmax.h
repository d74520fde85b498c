// The running softmax of tiles of lines, and how their shares are rounded.
//
// It runs in base 2 and its peaks are whole numbers: where a peak stands moves only exponents, so how
// shares are rounded does not depend on it, and totals are rescaled without loss.
#pragma once

#include "direct.h"
#include "products.h"

#if defined(STEELYARD_WIDE)

namespace {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int32_t ONES = 0x3f803f80;  // two of bfloat16
constexpr long TILE_PANELS = TILE / PANEL;

// 2^x to 2 units in the last place, for x <= 0.
INLINE Floats power_of_two(Floats x) {
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    const Floats rest = x - whole;
    Floats y = Sixteen::all(1.338130212e-3f);
    y = y * rest + 9.666368365e-3f;
    y = y * rest + 5.550381169e-2f;
    y = y * rest + 2.402234972e-1f;
    y = y * rest + 6.931471825e-1f;
    y = y * rest + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)y, (__m512)whole);
}

INLINE void scale_by_power(float* x, long count, float power) {
    for (long i = 0; i < count; i += PANEL)
        _mm512_storeu_ps(x + i, _mm512_scalef_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(power)));
}

// Queries of a key head, a line for each token and member of its group, and what they found so far:
// numerators [count, wide], denominators in sixteen parts [count, 16], peaks [count].
struct Lines {
    const View& view;
    Linear keys;  // what queries are multiplied by
    long count, first, wide, words;  // `first`: place of the first line's token
    float *totals, *masses, *peaks;
    int32_t* queries;  // tiles
    bool direct;

    Lines(const View& v, long count, long first, bool direct, float* memory)
        : view(v), keys(keys_of(v)), count(count), first(first), wide(Block::wide(v)),
          words(Block::words(v)), totals(memory), masses(totals + count * wide),
          peaks(masses + count * PANEL), queries((int32_t*)(peaks + padded(count))), direct(direct) {}

    static Linear keys_of(const View& v) {
        return {.inputs = v.width, .kind = kind_of(v.kind), .group = v.width};
    }
    // Floats of the memory, whole lines of the cache.
    static long size(const View& v, long count) {
        return count * (Block::wide(v) + PANEL) + padded(count)
            + padded((count + MOST_ROWS) * row_words(keys_of(v)));
    }

    // Rows of the tile that begins at a line.
    long height(long line) const {
        const long rows = std::min(MOST_ROWS, count - line);
        return direct ? direct_height(rows) : tile_height(rows);
    }
    int32_t* tile(long line) const { return queries + line * row_words(keys); }

    // Begins a line with its query.
    void start(long line, const float* from) const {
        // Caps are of scores in base e.
        const float scale = view.scale * (view.softcap > 0 ? 1.0f : LOG2_E);
        float* scaled = own_row(view.width);
        for (long i = 0; i < view.width; i++) scaled[i] = from[i] * scale;
        const long top = line / MOST_ROWS * MOST_ROWS;
        encode_row(keys, scaled, tile(top), height(top), line - top);
        restart(line);
    }

    void restart(long line) const {
        std::fill(totals + line * wide, totals + (line + 1) * wide, 0.0f);
        std::fill(masses + line * PANEL, masses + (line + 1) * PANEL, 0.0f);
        peaks[line] = LOWEST;
    }

    float mass(long line) const {
        return _mm512_reduce_add_ps(_mm512_loadu_ps(masses + line * PANEL));
    }

    // Calls body(column, total, count) for a line's totals, `count` columns at a time.
    template <class Body>
    void each_total(const float* total, const Body& body) const {
        if (view.kind != KV_INT8) return body(0, total, view.width);
        for (long i = 0; i < view.width; i += 4) body(i, total + turned_place(i), 4);
    }
};

// Scratch of a tile: scores [lines, TILE], and shares as a tile of activations.
struct Scratch {
    alignas(64) float scores[MOST_ROWS * TILE];
    alignas(64) int32_t shares[MOST_ROWS * TILE];
};

// Writes shares of a block as row `row` of a tile of some height; gives their sum as they are
// multiplied.
template <class T>
INLINE Floats write_shares(const Floats (&share)[TILE_PANELS], int32_t* tile, long height,
    long row) {
    int32_t* to = tile + row * CHUNK;
    Floats sum = {};
    UNROLL for (int i = 0; i < TILE_PANELS; i += NUMBERS<T>, to += height * CHUNK) {
        if constexpr (NUMBERS<T> == 1) {
            store((float*)to, share[i]);
            sum += share[i];
        } else {
            const auto both = (Words)(__m512i)_mm512_cvtne2ps_pbh((__m512)share[i + 1], (__m512)share[i]);
            _mm512_storeu_si512(to, (__m512i)both);
            add_pairs(sum, both, ONES);
        }
    }
    return sum;
}

// Writes shares times their values' scales in bytes, as `encode_bytes` does; gives the sum of what
// they were.
template <bool DIRECT>
INLINE Floats code_shares(const Floats (&share)[TILE_PANELS], const float* scales, int32_t* tile,
    long height, long row) {
    Floats part[TILE_PANELS], top = {}, sum = {};
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        sum += share[i];
        part[i] = share[i] * load_floats(scales + i * PANEL);
        top = Sixteen::most(top, part[i]);
    }
    const float most = Sixteen::highest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
    __m512i sums = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        const __m512i code = _mm512_cvtps_epi32((__m512)(part[i] * inverse));
        _mm_storeu_si128((__m128i*)(tile + row * CHUNK) + i, _mm512_cvtepi32_epi8(code));
        if (!DIRECT) sums = _mm512_add_epi32(sums, code);
    }
    int32_t* scale = tile + height * CHUNK + row;
    *(float*)scale = most * (1.0f / 127);
    if (!DIRECT) scale[height] = -BYTE_OFFSET * _mm512_reduce_add_epi32(sums);
    return sum;
}

// Tokens of a block that begins at `token` that a line sees.
struct Sight {
    long first, end;

    Sight(const Lines& lines, long line, long token) {
        const long open = lines.first + line / lines.view.group + 1 - token;
        const long window = lines.view.window;
        end = std::clamp(open, 0L, TILE);
        first = window ? std::clamp(open - window, 0L, TILE) : 0;
    }
    bool is_empty() const { return first >= end; }
};

// Caps the scores of a line, hides what it does not see, and raises its peak.
INLINE void raise_peak(const Lines& lines, long line, const Sight& sight, float* scores) {
    const float softcap = lines.view.softcap;
    const bool whole = sight.end - sight.first == TILE;
    Floats top = Sixteen::all(LOWEST);
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        Floats x = load_floats(scores + i * PANEL);
        if (softcap > 0) x = softcap * LOG2_E * tangent<Sixteen>(x / softcap);
        if (!whole) {
            const __mmask16 seen =
                leading(sight.end - i * PANEL) & ~leading(sight.first - i * PANEL);
            x = (Floats)_mm512_mask_blend_ps(seen, (__m512)Sixteen::all(LOWEST), (__m512)x);
        }
        if (softcap > 0 || !whole) store(scores + i * PANEL, x);
        top = Sixteen::most(top, x);
    }
    const float most = std::ceil(Sixteen::highest(top));
    float& peak = lines.peaks[line];
    if (most <= peak) return;
    scale_by_power(lines.totals + line * lines.wide, lines.wide, peak - most);
    scale_by_power(lines.masses + line * PANEL, PANEL, peak - most);
    peak = most;
}

// Writes the shares of a line as row `row` of a tile, and adds them to its mass.
template <class T, bool DIRECT>
INLINE void write_line(const Lines& lines, long line, const Block& block, const float* scores,
    int32_t* tile, long height, long row) {
    const float peak = lines.peaks[line];
    Floats x[TILE_PANELS], sum;
    UNROLL for (int i = 0; i < TILE_PANELS; i++)
        x[i] = power_of_two(load_floats(scores + i * PANEL) - peak);
    if constexpr (is_coded<T>) sum = code_shares<DIRECT>(x, block.value_scales, tile, height, row);
    else sum = write_shares<T>(x, tile, height, row);
    float* mass = lines.masses + line * PANEL;
    store(mass, load_floats(mass) + sum);
}

// Takes the scores of a tile of lines into their softmax.
template <class T, bool DIRECT>
APART void soften_tile(const Lines& lines, long line, long rows, long token, const Block& block,
    Scratch& s) {
    const long height = lines.height(line);
    // All peaks first: each one takes long, but none waits for another.
    for (long row = 0; row < rows; row++) {
        const Sight sight(lines, line + row, token);
        if (!sight.is_empty()) raise_peak(lines, line + row, sight, s.scores + row * TILE);
    }
    for (long row = 0; row < rows; row++) {
        if (!Sight(lines, line + row, token).is_empty()) {
            write_line<T, DIRECT>(lines, line + row, block, s.scores + row * TILE, s.shares, height, row);
            continue;
        }
        for (long i = 0; i < TILE / NUMBERS<T>; i += CHUNK)
            memset(s.shares + i * height + row * CHUNK, 0, CHUNK * sizeof(int32_t));
        if constexpr (is_coded<T>)
            s.shares[height * CHUNK + row] = s.shares[height * (CHUNK + 1) + row] = 0;
    }
}

}  // namespace

#endif
