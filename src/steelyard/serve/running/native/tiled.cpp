// Attention by the products of tiles with panels: queries against blocks of keys and values, of
// prompts and of decoding rows alike. Products are of float32 where keys and values are, else of
// bfloat16, to which queries and shares are rounded; sums are float32.
//
// Softmax runs in base 2 and its peaks are whole numbers: where a peak stands moves only exponents,
// so how shares are rounded does not depend on it, and totals are rescaled without loss.
//
// Source: Dao et al. 2022 (arXiv 2205.14135), algorithm 1; Milakov and Gimelshein 2018 (arXiv
// 1805.02867), algorithm 3.
#include "blocks.h"
#include "products.h"

#if defined(STEELYARD_WIDE)

namespace {

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;
constexpr int32_t ONES = 0x3f803f80;  // two of bfloat16
constexpr long TILE_PANELS = TILE / PANEL;

INLINE Floats widened(__m256i pairs) {
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(pairs), 16);
}

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
    long count, first, wide, words;  // `first`: place of the first line's token
    float *totals, *masses, *peaks;
    int32_t* queries;  // tiles

    Lines(const View& v, long count, long first, float* memory)
        : view(v), count(count), first(first), wide(padded(v.width)), words(Block::words(v)),
          totals(memory), masses(totals + count * wide), peaks(masses + count * PANEL),
          queries((int32_t*)(peaks + padded(count))) {}

    // Floats of the memory, whole lines of the cache.
    static long size(const View& v, long count) {
        return count * (padded(v.width) + PANEL) + padded(count)
            + (count + MOST_ROWS) * Block::words(v);
    }

    long height(long line) const { return tile_height(std::min(MOST_ROWS, count - line)); }

    // Begins a line with its query.
    void start(long line, const float* from) const {
        // Caps are of scores in base e.
        const float scale = view.scale * (view.softcap > 0 ? 1.0f : LOG2_E);
        float* scaled = own_row(view.width);
        for (long i = 0; i < view.width; i++) scaled[i] = from[i] * scale;
        const long top = line / MOST_ROWS * MOST_ROWS;
        const Linear map = {.inputs = view.width, .kind = kind_of(view.kind)};
        encode_row(map, scaled, queries + top * words, height(top), line - top);
        std::fill(totals + line * wide, totals + (line + 1) * wide, 0.0f);
        std::fill(masses + line * PANEL, masses + (line + 1) * PANEL, 0.0f);
        peaks[line] = LOWEST;
    }

    float mass(long line) const {
        return _mm512_reduce_add_ps(_mm512_loadu_ps(masses + line * PANEL));
    }
};

// Scratch of a tile: scores [lines, TILE], and shares in words of one or two tokens.
struct Scratch {
    alignas(64) float scores[MOST_ROWS * TILE];
    alignas(64) int32_t shares[MOST_ROWS * TILE];
};

// Multiplies a tile by panels `panel_words` apart; `ahead(pass)` is what is fetched meanwhile.
template <class T, class Ahead>
INLINE void multiply_panels(const int32_t* tile, long rows, const int32_t* panels, long panel_words,
    long count, long depth, float* out, long out_row, bool fresh, const Ahead& ahead) {
    Span s = {.tile = tile, .depth = depth, .out_row = out_row, .rows = rows, .fresh = fresh};
    s.pace = LINE;
    for (long first = 0; first < count; first += PANELS) {
        for (long p = 0; p < PANELS; p++) {
            const long panel = std::min(first + p, count - 1);
            s.panels[p] = {(const uint8_t*)(panels + panel * panel_words), out + panel * PANEL,
                nullptr, panel};
        }
        s.ahead = (const uint8_t*)ahead(first / PANELS);
        if (NUMBERS<T> == 1) multiply_floats({}, s);
        else multiply_pairs({}, s);
    }
}

// Writes shares of tokens as the products read them, and gives their sum as they are multiplied.
template <class T>
INLINE Floats write_shares(const Floats* share, const Block& block, long token, int32_t* to) {
    if constexpr (NUMBERS<T> == 1) {
        store((float*)to, share[0]);
        return share[0];
    } else {
        Floats scaled[2] = {share[0], share[1]};
        for (int k = 0; is_coded<T> && k < 2; k++)
            scaled[k] = scaled[k] * load_floats(block.value_scales + token + k * PANEL);
        const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)scaled[1], (__m512)scaled[0]);
        _mm512_storeu_si512(to, both);
        Floats sum = {};
        if constexpr (is_coded<T>) {
            const float* inverse = block.inverse_scales + token;
            sum = widened(_mm512_castsi512_si256(both)) * load_floats(inverse)
                + widened(_mm512_extracti64x4_epi64(both, 1)) * load_floats(inverse + PANEL);
        } else add_pairs(sum, (Words)both, ONES);
        return sum;
    }
}

// Takes the scores of a line that sees tokens [first, end) of a block into its softmax, and writes
// its shares, each CHUNK words `step` apart.
template <class T>
INLINE void soften_line(const Lines& lines, long line, const Block& block, const float* scores,
    long first, long end, int32_t* shares, long step) {
    const float softcap = lines.view.softcap;
    Floats x[TILE_PANELS], top = Sixteen::all(LOWEST);
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        x[i] = load_floats(scores + i * PANEL);
        if (is_coded<T>) x[i] = x[i] * load_floats(block.key_scales + i * PANEL);
        if (softcap > 0) x[i] = softcap * LOG2_E * tangent<Sixteen>(x[i] / softcap);
        if (end - first < TILE) {
            const __mmask16 seen = leading(end - i * PANEL) & ~leading(first - i * PANEL);
            x[i] = (Floats)_mm512_mask_blend_ps(seen, (__m512)Sixteen::all(LOWEST), (__m512)x[i]);
        }
        top = Sixteen::most(top, x[i]);
    }
    const float most = std::ceil(Sixteen::highest(top));
    float& peak = lines.peaks[line];
    float* mass = lines.masses + line * PANEL;
    if (most > peak) {
        scale_by_power(lines.totals + line * lines.wide, lines.wide, peak - most);
        scale_by_power(mass, PANEL, peak - most);
        peak = most;
    }
    Floats sum = load_floats(mass);
    UNROLL for (int i = 0; i < TILE_PANELS; i += NUMBERS<T>) {
        UNROLL for (int k = i; k < i + NUMBERS<T>; k++) x[k] = power_of_two(x[k] - peak);
        sum += write_shares<T>(x + i, block, i * PANEL, shares + i / NUMBERS<T> * step);
    }
    store(mass, sum);
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

// Attends from a tile of lines to a block.
template <class T, class Ahead>
APART void attend_tile(const Lines& lines, long line, long token, const Block& block, Scratch& s,
    const Ahead& ahead) {
    const long rows = std::min(MOST_ROWS, lines.count - line), height = lines.height(line);
    const long width = lines.view.width;
    constexpr long WORDS = TILE / NUMBERS<T>;  // of a column's values
    // Later lines see more: what the last does not see is not computed.
    const Sight widest(lines, line + rows - 1, token);
    if (widest.end == 0 || Sight(lines, line, token).first == TILE) return;
    multiply_panels<T>(lines.queries + line * lines.words, rows, block.keys, lines.words * PANEL,
        (widest.end + PANEL - 1) / PANEL, width / NUMBERS<T>, s.scores, TILE, true,
        [&](long pass) { return ahead(16 * pass); });
    for (long row = 0; row < rows; row++) {
        const Sight sight(lines, line + row, token);
        int32_t* shares = s.shares + row * CHUNK;
        if (sight.is_empty())
            for (long i = 0; i < WORDS; i += CHUNK)
                memset(shares + i * height, 0, CHUNK * sizeof(int32_t));
        else
            soften_line<T>(lines, line + row, block, s.scores + row * TILE, sight.first,
                sight.end, shares, height * CHUNK);
    }
    multiply_panels<T>(s.shares, rows, block.values, WORDS * PANEL, lines.wide / PANEL,
        (widest.end + NUMBERS<T> - 1) / NUMBERS<T>, lines.totals + line * lines.wide, lines.wide,
        false,
        [&](long pass) { return ahead(32 + pass * WORDS * LINE / (width * (long)sizeof(T))); });
}

// Attends from `at(head)`, lines of some key heads, to tokens [first, end) of a context; blocks are
// whole, and lines see what is theirs of them. `memory` takes a block.
template <class T, class At>
void attend_blocks(const Paged<T>& p, long sequence, long first_head, long heads, long first,
    long end, float* memory, const At& at) {
    const long size = p.head_numbers(), width = p.view.width, end_head = first_head + heads;
    const int64_t* table = p.view.tables + sequence * p.view.table_row;
    Block block(p.view, memory);
    Places places[2];
    Scratch s;
    long turn = 0;
    first = first / TILE * TILE;
    find_places(p, table, first, end, places[turn]);
    for (long token = first; token < end; token += TILE, turn ^= 1) {
        const Places& here = places[turn];
        find_places(p, table, token + TILE < end ? token + TILE : token, end, places[turn ^ 1]);
        // Heads of a block lie side by side.
        for (long head = first_head; head < end_head; head++) {
            const bool last = head + 1 == end_head;
            const Places& later = last ? places[turn ^ 1] : here;
            const long now = head * size, next = (last ? first_head : head + 1) * size;
            const Side<T> keys{p.keys + now, p.keys + next, here, later, width};
            const Side<T> values{p.values + now, p.values + next, here, later, width};
            pack_keys(keys, block);
            pack_values(values, keys, block);
            const Lines lines = at(head);
            for (long line = 0; line < lines.count; line += MOST_ROWS)
                attend_tile<T>(lines, line, token, block, s, [&](long t) {
                    return values.next + later.numbers[std::min(t, TILE - 1)];
                });
        }
    }
}

}  // namespace

void attend_rows_tiled(const View& v, const Unit& unit, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row) {
    const long start = c.starts[unit.sequence], chunk = c.starts[unit.sequence + 1] - start;
    const long position = c.contexts[unit.sequence] - chunk + unit.first;
    const long count = (unit.end - unit.first) * v.group, heads = unit.head * v.group;
    float* memory = scratch(Block::size(v) + Lines::size(v, count));
    const Lines lines(v, count, position, memory + Block::size(v));
    // Where a line's numbers stand in rows.
    const auto place = [&](long line, long row) {
        return (start + unit.first + line / v.group) * row + (heads + line % v.group) * v.width;
    };
    for (long line = 0; line < count; line++) {
        // Rows stand in pages of their own, where the processor does not look ahead.
        const float* later = qkv + place(std::min(line + 4 * v.group, count - 1), qkv_row);
        for (long i = 0; i < v.width; i += PANEL) __builtin_prefetch(later + i);
        lines.start(line, qkv + place(line, qkv_row));
    }
    const long begin = v.window ? std::max(position + 1 - v.window, 0L) : 0;
    const long end = position + unit.end - unit.first;
    const auto at = [&](long) { return lines; };
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (is_tiled(KV_KIND<T>, false))
            attend_blocks(Paged<T>(v), unit.sequence, unit.head, 1, begin, end, memory, at);
    });
    for (long line = 0; line < count; line++) {
        const float mass = lines.mass(line), *total = lines.totals + line * lines.wide;
        float* to = out + place(line, out_row);
        for (long i = 0; i < v.width; i++) to[i] = total[i] / mass;
    }
}

void attend_unit_tiled(const View& v, const Unit& unit, long context, const float* queries,
    float* parts) {
    const long group = v.group, width = v.width, size = Lines::size(v, group);
    float* memory = scratch(Block::size(v) + v.kv_heads * size);
    const auto at = [&](long head) {
        return Lines(v, group, context - 1, memory + Block::size(v) + head * size);
    };
    for (long head = 0; head < v.kv_heads; head++)
        for (long g = 0; g < group; g++)
            at(head).start(g, queries + (head * group + g) * width);
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (is_tiled(KV_KIND<T>, true))
            attend_blocks(Paged<T>(v), unit.sequence, 0, v.kv_heads, unit.first, unit.end, memory,
                at);
    });
    for (long head = 0; head < v.kv_heads; head++, parts += group * (width + 2))
        for (long g = 0; g < group; g++) {
            const Lines lines = at(head);
            memcpy(parts + g * width, lines.totals + g * lines.wide, width * sizeof(float));
            parts[group * width + g] = lines.peaks[g] * LN_2;
            parts[group * (width + 1) + g] = lines.mass(g);
        }
}

#endif
