// Attention of one query per sequence to its paged context, with a running softmax.
#include "attention.h"
#include "registers.h"

// Tokens that pass through the softmax at once: as many bytes whatever their type, as those of the
// next stretch are fetched meanwhile.
template <class T>
constexpr long STRETCH = is_coded<T> ? 64 : 32;

// Consecutive tokens of one block, and as many that come later, which are fetched meanwhile.
template <class T>
struct Run {
    const T *numbers, *next;
    long count;
};

// To the second cache: the first has fewer places for what is under way than memory needs.
template <class T>
INLINE void fetch(const T* p, long count) {
    for (long i = 0; i < count; i += 64 / (long)sizeof(T)) __builtin_prefetch(p + i, 0, 2);
}

// One register of columns of ROWS keys times G queries.
template <class L, int PART, class T, int ROWS, int G>
INLINE void score_columns(const float* query, long width, const T* keys,
    typename L::Row (&total)[G][ROWS]) {
    typename L::Row q[G];
    for (int g = 0; g < G; g++) hold(q[g] = L::template read<PART>(query + g * width));
    for (int t = 0; t < ROWS; t++) {
        typename L::Row key = L::template read<PART>(keys + t * width);
        hold(key);
        for (int g = 0; g < G; g++) total[g][t] += q[g] * key;
    }
}

// Products of ROWS keys with G queries, into scores [G, STRETCH].
template <class L, class T, int ROWS, int G>
INLINE void score_rows(const float* query, long width, const T* keys, float* scores) {
    typename L::Row total[G][ROWS] = {};
    for (long i = 0; i < width; i += L::LANES * L::PARTS) {
        score_columns<L, 0>(query + i, width, keys + i, total);
        if constexpr (L::PARTS == 2) score_columns<L, 1>(query + i, width, keys + i, total);
    }
    for (int g = 0; g < G; g++) {
        if constexpr (ROWS == 4)
            *(f4*)(scores + g * STRETCH<T>) = sums(L::fold(total[g][0]), L::fold(total[g][1]),
                L::fold(total[g][2]), L::fold(total[g][3]));
        else scores[g * STRETCH<T>] = sum(L::fold(total[g][0]));
    }
}

template <class L, int G, class T>
APART void score(const float* query, long width, const Run<T>& run, float* scores, bool fetches) {
    long t = 0;
    for (; t + 4 <= run.count; t += 4) {
        if (fetches) fetch(run.next + t * width, 4 * width);
        score_rows<L, T, 4, G>(query, width, run.numbers + t * width, scores + t);
    }
    for (; t < run.count; t++)
        score_rows<L, T, 1, G>(query, width, run.numbers + t * width, scores + t);
}

// Adds one register of columns of a value, G times weighted.
template <class L, int PART, class T, int STRIP, int G>
INLINE void weigh_columns(const typename L::Row (&weight)[G], const T* value, int strip,
    typename L::Row (&part)[G][STRIP]) {
    typename L::Row row = L::template read<PART>(value + L::LANES * strip);
    hold(row);
    for (int g = 0; g < G; g++) part[g][strip + PART] += weight[g] * row;
}

// Adds shares [G, STRETCH] of values to totals, STRIP registers of columns at a time.
template <class L, int STRIP, int G, class T>
INLINE void weigh_rows(const float* shares, const Run<T>* runs, long num_runs, long width,
    long column, float* total, bool fetches) {
    typename L::Row part[G][STRIP];
    for (int g = 0; g < G; g++)
        for (int h = 0; h < STRIP; h++)
            part[g][h] = L::template read<0>(total + g * width + column + L::LANES * h);
    for (long r = 0; r < num_runs; shares += runs[r++].count)
        for (long t = 0; t < runs[r].count; t++) {
            const long here = t * width + column;
            if (fetches) fetch(runs[r].next + here, L::LANES * STRIP);
            typename L::Row weight[G];
            for (int g = 0; g < G; g++) weight[g] = L::all(shares[g * STRETCH<T> + t]);
            for (int h = 0; h < STRIP; h += L::PARTS) {
                weigh_columns<L, 0>(weight, runs[r].numbers + here, h, part);
                if constexpr (L::PARTS == 2)
                    weigh_columns<L, 1>(weight, runs[r].numbers + here, h, part);
            }
        }
    for (int g = 0; g < G; g++)
        for (int h = 0; h < STRIP; h++)
            store(total + g * width + column + L::LANES * h, part[g][h]);
}

template <class L, int G, class T>
APART void weigh(const float* shares, const Run<T>* runs, long num_runs, long width, float* total,
    bool fetches) {
    long column = 0;
    for (; column + 4 * L::LANES <= width; column += 4 * L::LANES)
        weigh_rows<L, 4, G>(shares, runs, num_runs, width, column, total, fetches);
    for (; column < width; column += L::PARTS * L::LANES)
        weigh_rows<L, L::PARTS, G>(shares, runs, num_runs, width, column, total, fetches);
}

// Scales of a stretch's keys and values in eight bits, and the cap of its scores.
struct Scales {
    alignas(64) float keys[STRETCH<int8>], values[STRETCH<int8>];
    float softcap;
};

// Takes the scores of a query into its running softmax: they become shares.
template <class L, bool CODED>
APART void soften_stretch(float* scores, long count, const Scales& scales, float* total,
    long width, float& peak, float& weight) {
    const long end = (count + L::LANES - 1) / L::LANES * L::LANES;
    if (CODED || scales.softcap > 0)
        settle<L>(scores, end, CODED ? scales.keys : nullptr, scales.softcap);
    soften_row<L>(scores, 0, count, end, total, width, peak, weight);
    if (CODED) settle<L>(scores, end, scales.values, 0);
}

// Calls body(first query, number of them as a constant) for the queries of a key head.
template <class L, class Body>
INLINE void in_groups(long members, const Body& body) {
    for (long g = 0; g < members;) {
        const long left = members - g;
        // Seldom taken code takes the compiler half of its time for more than one.
        if constexpr (L::QUERIES == 1) body(g, std::integral_constant<int, 1>()), g += 1;
        else if (L::QUERIES == 4 && left > 3) body(g, std::integral_constant<int, 4>()), g += 4;
        else if (left >= 3) body(g, std::integral_constant<int, 3>()), g += 3;
        else if (left == 2) body(g, std::integral_constant<int, 2>()), g += 2;
        else body(g, std::integral_constant<int, 1>()), g += 1;
    }
}

// A key head's stretch of tokens, in runs of keys and of values.
template <class T>
struct Stretch {
    Run<T> keys[STRETCH<T>], values[STRETCH<T>];
    long num_runs = 0, count = 0;
    Scales scales;
};

// The part of a piece that one key head has: numerators [group, width], peaks and denominators
// [group].
struct Part {
    float *total, *peak, *weight;
};

// Attends from up to 8 queries that share a key head to a stretch.
template <class L, class T>
static void attend_stretch(const Stretch<T>& s, long members, const float* query, long width,
    Part part) {
    alignas(64) float scores[8 * STRETCH<T>];
    long done = 0;
    for (long r = 0; r < s.num_runs; done += s.keys[r++].count)
        in_groups<L>(members, [&](long g, auto count) __attribute__((always_inline)) {
            score<L, count>(query + g * width, width, s.keys[r], scores + g * STRETCH<T> + done,
                g == 0);
        });
    for (long g = 0; g < members; g++)
        soften_stretch<L, is_coded<T>>(scores + g * STRETCH<T>, s.count, s.scales,
            part.total + g * width, width, part.peak[g], part.weight[g]);
    in_groups<L>(members, [&](long g, auto count) __attribute__((always_inline)) {
        weigh<L, count>(scores + g * STRETCH<T>, s.values, s.num_runs, width,
            part.total + g * width, g == 0);
    });
}

// Consecutive tokens of one block: where the first key head's numbers of the block begin, those of
// the first token in it, and those that stand a stretch later.
struct Span {
    long block, token, count, later;
};

// Cuts [first, first + count) by blocks; gives the number of spans.
template <class T>
static long find_spans(const Paged<T>& p, const int64_t* table, long first, long count, long last,
    Span* spans) {
    const long block_size = p.view.block_size;
    long found = 0;
    for (long t = 0; t < count; t += spans[found++].count) {
        const long within = (first + t) % block_size;
        spans[found] = {p.block(table, 0, first + t), within,
            std::min(block_size - within, count - t),
            p.place(table, 0, std::min(first + t + STRETCH<T>, last))};
    }
    return found;
}

// Sets the runs of one key head, and what is read after them.
template <class T>
static void set_runs(const Paged<T>& p, const Span* spans, long head, Stretch<T>& s) {
    const long size = p.head_numbers(), codes = p.view.block_size * p.view.width;
    const bool last = head + 1 == p.view.kv_heads;
    long done = 0;
    for (long r = 0; r < s.num_runs; done += spans[r++].count) {
        const Span& span = spans[r];
        const long block = span.block + head * size, here = block + span.token * p.view.width;
        // Blocks lie scattered, so the processor cannot guess what comes next: it is told.
        const long next = last ? span.later : here + size;
        s.keys[r] = {p.keys + here, p.keys + next, span.count};
        s.values[r] = {p.values + here, p.values + next, span.count};
        if constexpr (is_coded<T>) {
            const size_t bytes = span.count * sizeof(float);
            const T *keys = p.keys + block + codes, *values = p.values + block + codes;
            memcpy(s.scales.keys + done, (const float*)keys + span.token, bytes);
            memcpy(s.scales.values + done, (const float*)values + span.token, bytes);
            fetch(last ? p.keys + next + codes : keys + size, 1);
            fetch(last ? p.values + next + codes : values + size, 1);
        }
    }
}

// One piece of a decoding row, all heads: for each key head `parts` gets numerators [group, width],
// peaks [group], denominators [group].
template <class L, class T>
static void attend_piece(const Paged<T>& p, const Unit& unit, float* query, float* parts) {
    const View& v = p.view;
    const long width = v.width, group = v.group, size = group * (width + 2);
    for (long head = 0; head < v.kv_heads; head++) {
        float* peak = parts + head * size + group * width;
        std::fill(parts + head * size, peak, 0.0f);
        std::fill(peak, peak + group, LOWEST);
        std::fill(peak + group, peak + 2 * group, 0.0f);
    }
    const int64_t* table = v.tables + unit.sequence * v.table_row;
    Stretch<T> s = {};
    Span spans[STRETCH<T>];
    s.scales.softcap = v.softcap;
    for (long first = unit.first; first < unit.end; first += STRETCH<T>) {
        s.count = std::min(STRETCH<T>, unit.end - first);
        s.num_runs = find_spans(p, table, first, s.count, unit.end - 1, spans);
        for (long head = 0; head < v.kv_heads; head++) {  // heads of a block lie side by side
            set_runs(p, spans, head, s);
            float* total = parts + head * size;
            float *peak = total + group * width, *weight = peak + group;
            for (long g = 0; g < group; g += 8) {
                const long members = std::min(8L, group - g);
                const float* q = query + (head * group + g) * width;
                const Part part = {total + g * width, peak + g, weight + g};
                attend_stretch<L>(s, members, q, width, part);
            }
        }
    }
}

// Lays numbers of every 32 columns apart into even and odd ones, or back.
static void part_pairs(float* x, long count, bool back) {
    float kept[32];
    for (long first = 0; first < count; first += 32) {
        for (int i = 0; i < 32; i++) {
            const int apart = i % 2 * 16 + i / 2;
            kept[back ? i : apart] = x[first + (back ? apart : i)];
        }
        memcpy(x + first, kept, sizeof(kept));
    }
}

// One piece of a row with whichever registers its width fills.
template <class T>
static void attend_typed(const Paged<T>& p, const Unit& unit, float* query, float* parts) {
    const View& v = p.view;
#if defined(STEELYARD_WIDE)
    const long heads = v.kv_heads * v.group;
    if (v.width % (Sixteen::PARTS * Sixteen::LANES) == 0) {
        const bool parted = sizeof(T) == sizeof(bf16);
        if (parted) part_pairs(query, heads * v.width, false);
        attend_piece<Sixteen>(p, unit, query, parts);
        for (long head = 0; parted && head < v.kv_heads; head++)
            part_pairs(parts + head * v.group * (v.width + 2), v.group * v.width, true);
        return;
    }
#endif
    attend_piece<Eight>(p, unit, query, parts);
}

void attend_unit(const View& v, const Unit& unit, const float* queries, float* query,
    float* parts) {
    for (long i = 0; i < v.kv_heads * v.group * v.width; i++) query[i] = queries[i] * v.scale;
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (!is_tiled(KV_KIND<T>))
            attend_typed(Paged<T>(v), unit, query, parts);
    });
}
