// A decoder and one step of it, as the runner describes them: the structures of layout.py.
#pragma once

#include "activations.h"
#include "norms.h"
#include "pool.h"
#include "products.h"

struct Layer {
    // Null gains where there is none.
    Norm attention_norm, query_norm, key_norm, attention_post_norm, mlp_norm, mlp_post_norm;
    Linear qkv, out, up, down;
    const float *cosines, *sines;  // null where heads are not turned
    int64_t window;                // 0 for none
};

struct Model {
    int64_t num_layers, hidden, heads, kv_heads, head_dim, inner, vocab, block_size, num_blocks,
        position_offset;
    int64_t turned;        // leading columns of a head that are turned
    int64_t across_heads;  // norms of queries and of keys are over all their heads together
    int64_t form, kv_kind, narrow_table;  // embeddings in bfloat16
    float epsilon, query_scale, softcap, embedding_scale, residual_scale, logit_divisor,
        logit_softcap;
    const Layer* layers;
    Norm norm;
    Linear head;
    const void* embedding;
    const float* positions;  // null where they are not learned
    void* kv;

    bool gated() const { return form >= SWIGLU; }
};

struct Step {
    int64_t rows, decodes, sequences, table_row, picked;
    const int64_t *tokens, *positions, *slots;
    int64_t* starts;  // of sequences; comes as their lengths behind a zero
    const int64_t *contexts, *tables, *picks;
    float *hidden, *normed, *qkv, *attended, *up;  // rows of `row_of` numbers
    float* logits;  // rows padded to whole panels
    float* peaks;   // the largest logit of each row, and the first token that has it
    int64_t* likeliest;
    int32_t* tiles;  // `tile_words` of the rows and the widest input
    double* seconds;  // by part, added to; null where nobody asks
};

// Numbers from one row of a buffer to the next: an odd number of lines of the cache. Rows that are
// 4,096 bytes apart would share a few places of the first-level cache.
INLINE long row_of(long width) { return (padded(width) / PANEL | 1) * PANEL; }

// Where a layer's keys (0) or values (1) begin.
INLINE uint8_t* side(const Model& m, long layer, long which) {
    return (uint8_t*)m.kv + (layer * 2 + which) * m.num_blocks * m.kv_heads
        * head_bytes(m.kv_kind, m.block_size, m.head_dim);
}
