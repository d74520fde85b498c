// Rows of a step that a thread takes through all layers by itself.
//
// No thread then waits for another, and no row of activations goes from one cache to the other,
// which takes longer than all of a narrow model's norms. Each thread reads all weights for it, which
// costs nothing where products wait for the multipliers anyway.
#pragma once

#include "model.h"

// A thread's rows of a step in which every row decodes, as a step.
struct Share {
    std::vector<int64_t> picks;
    Step step;

    Share(const Model& m, const Step& s, long first, long end) : step(s) {
        long before = 0;
        for (long i = 0; i < s.picked; i++) {
            if (s.picks[i] < first) before++;
            else if (s.picks[i] < end) picks.push_back(s.picks[i] - first);
        }
        step.rows = step.decodes = step.sequences = end - first;
        step.picked = (long)picks.size(), step.picks = picks.data();
        step.tokens += first, step.positions += first, step.slots += first;
        step.contexts += first, step.tables += first * s.table_row;
        step.hidden += first * row_of(m.hidden), step.normed += first * row_of(m.hidden);
        step.qkv += first * row_of((m.heads + 2 * m.kv_heads) * m.head_dim);
        step.attended += first * row_of(m.heads * m.head_dim);
        step.up += first * row_of(m.inner * (m.gated() ? 2 : 1));
        step.logits += before * padded(m.vocab);
        step.peaks += before, step.likeliest += before;
    }
};

// Multiplications of a thread with each line of weights that take as long as the line's way from
// memory, and from the cache that threads share: with more, it may read all weights as the other
// threads do.
constexpr long FAR = 8, NEAR = 4;

// Bytes of weights that stay in the shared cache. What virtual machines say of theirs is not true,
// and 32 MiB is what most processors have.
constexpr double CACHED = 24 << 20;

// How many multiplications of a product take as long as one of attention.
constexpr long DEAR = 8;

// How much more than its part a thread may take.
constexpr double UNEVEN = 1.2;

// Whether a row attends what the row before it stores: both are guesses for one sequence.
static bool follows(const Model& m, const Step& s, long row) {
    const long before = s.positions[row - 1];
    if (before >= s.contexts[row]) return false;
    const long block = s.tables[row * s.table_row + before / m.block_size];
    return block * m.block_size + before % m.block_size == s.slots[row - 1];
}

INLINE double bytes_of(const Linear& map) {
    return (double)panels_of(map.outputs) * lines_of(map.kind, map.inputs) * LINE;
}

// Whether all weights fit the cache that threads share.
static bool is_cached(const Model& m) {
    double bytes = bytes_of(m.head);
    for (long index = 0; index < m.num_layers; index++) {
        const Layer& layer = m.layers[index];
        for (const Linear* map : {&layer.qkv, &layer.out, &layer.up, &layer.down})
            bytes += bytes_of(*map);
    }
    return bytes <= CACHED;
}

// What a row costs beside others.
INLINE double cost_of(const Model& m, const Step& s, long row) {
    const Layer& layer = m.layers[0];
    double weights = 0;
    for (const Linear* map : {&layer.qkv, &layer.out, &layer.up, &layer.down})
        weights += (double)map->inputs * map->outputs;
    return weights + 2.0 * DEAR * s.contexts[row] * m.heads * m.head_dim;
}

// Where the rows end that each of some threads takes through the layers by itself; empty where
// threads rather share each product.
static std::vector<long> cut_rows(const Team& team, const Model& m, const Step& s) {
    const long each = m.layers[0].up.kind == INT4 ? 2 : 1, count = team.size();
    if (count == 1 || s.decodes < s.rows || s.rows * each < NEAR * count) return {};
    if (s.rows * each < FAR * count && !is_cached(m)) return {};
    double total = 0, done = 0, begun = 0, most = 0;
    for (long row = 0; row < s.rows; row++) total += cost_of(m, s, row);
    std::vector<long> ends;
    const auto end = [&](long row) {
        most = std::max(most, done - begun), begun = done;
        ends.push_back(row);
    };
    for (long row = 0; row < s.rows; done += cost_of(m, s, row++))
        if (row > 0 && done >= total * (ends.size() + 1) / count && !follows(m, s, row)) end(row);
    end(s.rows);
    // A long context would keep one thread at work while the others wait.
    return most > UNEVEN * total / count ? std::vector<long>() : ends;
}
